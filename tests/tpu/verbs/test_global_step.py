"""What kind of variable the global step is, and what hooks and programs get of it by its name."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import input_fn, make_estimator, make_model_fn


@pytest.fixture
def references():
    """As the legacy runner does: variables are references, as in TensorFlow 1, by default."""
    tf.disable_resource_variables()
    yield
    tf.enable_resource_variables()


class Steps(tf.train.SessionRunHook):
    """Notes the kind of the global step, and its value by its name after each step."""

    def __init__(self):
        self.is_resource, self.values = None, []

    def begin(self):
        self.is_resource = hasattr(tf.train.get_global_step(), "handle")

    def after_run(self, run_context, run_values):
        self.values.append(run_context.session.run("global_step:0"))


def test_in_local_mode_it_is_what_all_other_variables_are(tmp_path, references):
    hook = Steps()
    estimator = make_estimator(tmp_path, use_tpu=False, checkpoint_save_graph_def=True)
    for last in (3, 5):
        estimator.train(input_fn, hooks=[hook], max_steps=last)
    assert not hook.is_resource
    assert hook.values == [1, 2, 3, 4, 5]
    with tf.Graph().as_default(), tf.Session() as session:
        saver = tf.train.import_meta_graph(f"{tmp_path}/model.ckpt-5.meta")
        saver.restore(session, f"{tmp_path}/model.ckpt-5")
        assert session.run("global_step:0") == 5


@pytest.mark.parametrize("use_tpu", [False, True])
def test_otherwise_it_is_a_resource(tmp_path, use_tpu):
    hook = Steps()
    make_estimator(tmp_path, use_tpu=use_tpu).train(input_fn, hooks=[hook], steps=1)
    assert hook.is_resource


def test_by_the_tpu_s_rules_it_is_always_a_resource(tmp_path, references):
    hook = Steps()
    make_estimator(tmp_path).train(input_fn, hooks=[hook], steps=1)
    assert hook.is_resource


def test_all_verbs_with_references(tmp_path, references):
    fields = make_model_fn(lambda features, loss: {"predictions": features})
    estimator = make_estimator(tmp_path, fields, use_tpu=False, predict_batch_size=4)
    estimator.train(input_fn, steps=2)
    assert estimator.evaluate(input_fn, steps=1)["global_step"] == 2
    assert len(next(iter(estimator.predict(input_fn)))) == 1


@pytest.mark.parametrize("of", ["step", "rate", "variable", "after"])
def test_a_host_call_gets_it_as_before_the_step(tmp_path, references, of):
    """But if it is computed after the update, it is as after the step."""
    seen = []

    def model_fn(features, mode, params):
        step = tf.train.get_global_step()
        spec = make_model_fn()(features, mode, params)
        with tf.control_dependencies([spec.train_op]):
            after = tf.reshape(step.read_value(), [1])
        given = {"step": tf.reshape(step, [1]), "rate": 2 * step, "variable": step, "after": after}

        def host_fn(value):
            with tf.control_dependencies([spec.train_op]):
                return tf.py_func(lambda each: seen.append(int(np.sum(each))), [value], [])

        return spec._replace(host_call=(host_fn, [given[of]]))

    make_estimator(tmp_path, model_fn, use_tpu=False).train(input_fn, steps=5)
    expected = {"rate": [0, 2, 4, 6, 8], "after": [1, 2, 3, 4, 5]}
    assert seen == expected.get(of, [0, 1, 2, 3, 4])
