"""What kind of variable the global step is, and what hooks and programs get of it by its name."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import batches, input_fn, make_estimator, make_model_fn

from bert_estimator import tpu


class Steps(tf.train.SessionRunHook):
    """Notes the kind of the global step; if it is a reference, its value by its name, too."""

    def __init__(self):
        self.is_resource, self.values = None, []

    def begin(self):
        self.is_resource = hasattr(tf.train.get_global_step(), "handle")

    def after_run(self, run_context, run_values):
        if not self.is_resource:
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


def model_of(train_op_of, host_tensors_of=lambda loss, step: [step]):
    """Returns a model_fn whose host call notes what it gets, and the list of it."""
    seen = []

    def model_fn(features, mode, params):
        weight, step = tf.get_variable("w", initializer=0.0), tf.train.get_global_step()
        loss = tf.reduce_mean(features["x"] * weight)

        def host_fn(*values):
            return tf.py_func(lambda *each: seen.append(each), values, [])

        train_op = train_op_of(loss, step) if mode == "train" else None
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op, host_call=(host_fn, host_tensors_of(loss, step))
        )

    return model_fn, seen


def beside(new_step):
    """Returns a train_op that assigns the step beside the optimizer, whose rate reads the step."""

    def train_op_of(loss, step):
        rate = 0.5 * tf.cast(step, tf.float32)
        train_op = tf.train.GradientDescentOptimizer(rate).minimize(loss)
        return tf.group(train_op, [step.assign(new_step(loss, step))])

    return train_op_of


as_bert_does = beside(lambda loss, step: step + 1)
as_nvidia_does = beside(
    lambda loss, step: tf.identity(tf.cond(tf.constant(True), lambda: step + 1, lambda: step))
)
# As NVIDIA's BERT does with losses that are scaled: the step is counted if the loss is finite.
if_finite = beside(
    lambda loss, step: tf.cond(tf.is_finite(loss), lambda: step + 1, lambda: tf.identity(step))
)


def in_a_condition(loss, step):
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    return tf.cond(loss > -1e9, lambda: tf.group(optimizer.minimize(loss, step)), tf.no_op)


def counting(loss, step):
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    return tf.group(train_op, step.count_up_to(100))


@pytest.mark.usefixtures("references", "old_control_flow")
@pytest.mark.parametrize(
    ("train_op_of", "rate", "host"),
    [
        (as_bert_does, 0, 0),
        (as_nvidia_does, 1, 1),
        (counting, 1, 1),
        (if_finite, 0, 0),
        (in_a_condition, 0, 0),
    ],
)
def test_what_a_step_computes_from_it(tmp_path, train_op_of, rate, host):
    """How many steps later than before the step it is, for the rate and for the host call."""
    model_fn, seen = model_of(train_op_of)
    estimator = make_estimator(tmp_path, model_fn, use_tpu=False)
    for last in (15, 30):
        estimator.train(input_fn, max_steps=last)
    assert [int(each) for (each,) in seen] == list(range(host, 30 + host))
    if train_op_of in (as_bert_does, as_nvidia_does, if_finite):
        # The gradient is the mean of x, which is 1 in the first batch after each start, then 2, ...
        weight = tf.train.load_checkpoint(f"{tmp_path}/model.ckpt-15").get_tensor("w")
        assert weight == -sum(0.5 * (step + rate) * (step + 1) for step in range(15))


READS = {
    "decay": lambda step: 1000 - tf.train.polynomial_decay(1000.0, step, 1000, 0.0),
    "warm-up": lambda step: tf.cast(tf.cast(step, tf.int32), tf.float32),
    "shared": lambda step: tf.reshape(tf.cast(tf.reshape(step, [1]), tf.float32), []),
    "pieces": lambda step: tf.train.piecewise_constant(
        step, list(range(20)), [float(number) for number in range(21)]
    ),
}
UPDATES = {
    "assign": lambda step: step.assign(step + 1),
    "assign_add": lambda step: step.assign_add(1),
    "conditional": lambda step: step.assign(
        tf.identity(tf.cond(tf.constant(True), lambda: step + 1, lambda: step))
    ),
}


@pytest.mark.usefixtures("references", "old_control_flow")
@pytest.mark.parametrize(
    ("reads", "update", "of_tpu_estimator"),
    [
        ("decay", "assign", "1"),
        ("decay warm-up", "assign", "01"),
        ("warm-up decay shared", "assign", "001"),
        ("decay pieces", "assign", "01"),
        ("decay update", "assign", "1"),
        ("decay update warm-up", "assign", "00"),
        ("decay warm-up", "assign_add", "11"),
        ("decay update warm-up", "assign_add", "11"),
        ("decay warm-up shared", "conditional", "111"),
    ],
)
@pytest.mark.parametrize("estimator_class", [tpu.TPUEstimator, tpu.Estimator])
def test_reads_beside_an_update_that_could_run_at_once(
    tmp_path, estimator_class, reads, update, of_tpu_estimator
):
    """As most steps had it in TensorFlow 1.15.5: 1 if a read sees the step counted."""
    seen = []

    def model_fn(features, mode, params):
        step, loss = tf.train.get_global_step(), tf.reduce_mean(features["x"])
        values, count = [], None
        for name in reads.split():
            if name == "update":
                count = UPDATES[update](step)
            else:
                values.append(READS[name](step))
        count = UPDATES[update](step) if count is None else count
        note = tf.py_func(lambda *steps: seen.append([int(s) for s in steps]), values, [])
        return tpu.EstimatorSpec(mode, loss=loss, train_op=tf.group(count, note))

    rules = {"use_tpu": False, "train_batch_size": 8}
    options = rules if estimator_class is tpu.TPUEstimator else {"params": {}}
    estimator = estimator_class(model_fn, config=tpu.RunConfig(model_dir=str(tmp_path)), **options)
    estimator.train(lambda params: batches(batch_size=8), steps=3)
    later = of_tpu_estimator if estimator_class is tpu.TPUEstimator else "1" * len(seen[0])
    assert seen == [[step + int(each) for each in later] for step in range(3)]


def test_only_what_a_step_runs_waits(tmp_path, references):
    """Savers, initializers and hooks assign it as well."""

    class Resets(tf.train.SessionRunHook):
        def begin(self):
            self._reset = tf.train.get_global_step().assign(20)

        def after_create_session(self, session, coord):
            session.run(self._reset)

    def both(loss, step):
        return [loss, step]

    def minimized(loss, step):
        return tf.train.GradientDescentOptimizer(0.0).minimize(loss, step)

    model_fn, seen = model_of(minimized, both)
    make_estimator(tmp_path, model_fn, use_tpu=False).train(input_fn, steps=2)
    estimator = make_estimator(tmp_path, model_fn, use_tpu=False)
    estimator.train(input_fn, hooks=[Resets()], steps=2)
    assert [int(step) for _, step in seen] == [0, 1, 20, 21]


def test_a_saver_that_the_model_builds(tmp_path, references):
    def with_saver(features, mode, params):
        spec = model_fn(features, mode, params)
        saver = tf.train.Saver()
        return spec._replace(scaffold_fn=lambda: tf.train.Scaffold(saver=saver))

    model_fn, seen = model_of(as_bert_does)
    for last in (2, 4):
        make_estimator(tmp_path, with_saver, use_tpu=False).train(input_fn, max_steps=last)
    assert [int(each) for (each,) in seen] == [0, 1, 2, 3]
