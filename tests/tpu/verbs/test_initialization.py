"""What a session initializes and checks before its first step, whoever asks for it."""

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import resources
from toy import input_fn, make_estimator, make_model_fn


@pytest.fixture(params=[False, True], ids=["local", "tpu_rules"])
def use_tpu(request):
    return request.param


def make(folder, fields, use_tpu):
    return make_estimator(folder, make_model_fn(fields), use_tpu=use_tpu, predict_batch_size=4)


def run_verbs(estimator):
    """Trains, resumes, evaluates and predicts; returns the loss and a prediction of x."""
    estimator.train(input_fn, steps=2)
    estimator.train(input_fn, steps=2)
    loss = estimator.evaluate(input_fn, steps=1)["loss"]
    return loss, float(next(iter(estimator.predict(input_fn)))["x"])


def resource_of_7(is_shared):
    """Registers a resource that holds 7 once it is initialized; returns its handle."""
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="mine")
    create = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(7.0))
    is_made = tf.raw_ops.VarIsInitializedOp(resource=handle)
    resources.register_resource(handle, create, is_made, is_shared)
    return handle


def test_tables_of_a_model(tmp_path, use_tpu):
    def fields(features, loss):
        pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1]), tf.constant([10.0, 20.0]))
        table = tf.lookup.StaticHashTable(pairs, 5.0)
        x = features["x"] * 0.0 + table.lookup(tf.constant(0))
        return {"loss": loss * 0.0 + table.lookup(tf.constant(1)), "predictions": {"x": x}}

    assert run_verbs(make(tmp_path, fields, use_tpu)) == (20.0, 10.0)


def test_local_resources_of_a_model(tmp_path, use_tpu):
    def fields(features, loss):
        value = tf.raw_ops.ReadVariableOp(resource=resource_of_7(is_shared=False), dtype=tf.float32)
        return {"loss": loss * 0.0 + value, "predictions": {"x": features["x"] * 0.0 + value}}

    assert run_verbs(make(tmp_path, fields, use_tpu)) == (7.0, 7.0)


@pytest.mark.parametrize("name", ["ready_op", "ready_for_local_init_op"])
@pytest.mark.parametrize("collected", [False, True])
def test_a_check_of_a_model_ends_what_is_not_ready(tmp_path, use_tpu, name, collected):
    def fields(features, loss):
        operation = tf.constant(["my own variable"])
        if collected:
            tf.add_to_collection(name, operation)
        scaffold = tf.train.Scaffold(**{} if collected else {name: operation})
        return {"scaffold_fn": lambda: scaffold}

    with pytest.raises(RuntimeError, match=r"(?s)not make model ready.*my own variable"):
        make(tmp_path, fields, use_tpu).train(input_fn, steps=1)


def test_one_check_of_a_model_does_not_bring_the_other(tmp_path, use_tpu):
    """The handle of a shared resource that no checkpoint holds is not there after a resume."""

    def fields(features, loss):
        resource_of_7(is_shared=True)
        scaffold = tf.train.Scaffold(ready_op=tf.zeros([0], tf.string))
        return {"scaffold_fn": lambda: scaffold}

    estimator = make(tmp_path, fields, use_tpu)
    estimator.train(input_fn, steps=2)
    estimator.train(input_fn, steps=2)
    assert estimator.global_step() == 4


def test_a_hook_may_give_the_operation_that_initializes(tmp_path, use_tpu):
    calls = []

    class Hook(tf.train.SessionRunHook):
        def begin(self):
            noted = tf.py_func(lambda: calls.append(1), [], [])
            operation = tf.group(tf.local_variables_initializer(), noted)
            tf.add_to_collection(tf.GraphKeys.LOCAL_INIT_OP, operation)

    make(tmp_path, None, use_tpu).train(input_fn, hooks=[Hook()], steps=2)
    assert calls == [1]
