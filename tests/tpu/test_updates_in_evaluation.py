"""Updates in evaluation, prediction and exports: one value on every runtime, of every batch, each
time."""

import contextlib
import functools
import hashlib
import os

import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu
from bert_estimator.tpu import serving

BATCHES = 3
EVALUATIONS = 20  # without an order of reads and updates, about half of them are wrong


def variable(name, value, shape=()):
    return tf.get_variable(name, shape, initializer=tf.constant_initializer(value), trainable=False)


def network(x, weight):
    """Takes a while, so that what does not wait for it may come before or after it."""
    for _ in range(3):
        x = tf.linalg.matvec(tf.eye(int(x.shape[0])), x)
    return x * weight


def after(updates, value):
    """Returns the value as a tensor that waits for the updates."""
    with tf.control_dependencies(updates):
        return tf.identity(value)


# Programs: functions of x, which is 1 for each example, that give a value for each example. Beside
# each program are the values of three batches. TensorFlow 1.15.5 with its own variables gave these
# values in all of 8 evaluations or more, except `counter` (25 of 28), `decay` (21 of 28), and
# `embedding` and updates in a condition or a loop (1, 2 and 6 of 8), whose first batch often came
# before the update.
PROGRAMS = {}


def program(*values):
    def add(function):
        PROGRAMS[function.__name__] = function, list(values)
        return function

    return add


@program(1, 1, 1)
def network_inside(x):
    w, average = variable("w", 10), variable("average", 1)
    with tf.control_dependencies([tf.assign(w, average)]):
        return network(x, w.read_value() if hasattr(w, "handle") else w)


@program(1, 1, 1)
def network_before(x):
    w, average = variable("w", 10), variable("average", 1)
    y = network(x, w)
    return after([tf.assign(w, average)], y)


@program(2, 2, 2)
def moving_average(x):
    """It does what google-research/s4l does. `trained` made the weight 10, and its average is 2."""
    w = tf.get_variable("w", initializer=2.0)
    y = network(x, w)
    average = tf.train.ExponentialMovingAverage(0.0, name="EMA")
    average.apply([w])
    return after([tf.assign(w, average.average(w))], y)


@program(10, 10, 10)
def update_of_nothing(x):
    w = variable("w", 10)
    tf.assign(w, 1.0)
    tf.assign_add(w, 1.0)
    return network(x, w)


@program(1, 2, 3)
def update_as_value(x):
    return tf.assign_add(variable("n", 0), 1.0) + 0 * x


@program(1, 2, 3)
def counter(x):
    n = variable("n", 0)
    return after([tf.assign_add(n, 1.0)], n + 0 * x)


@program(5, 2.5, 1.25)
def decay(x):
    w = variable("w", 10)
    return after([tf.assign(w, 0.5 * w)], network(x, w))


@program(1, 1, 1)
def two_updates(x):
    w, average = variable("w", 10), variable("average", 1)
    y = network(x, w)
    first = tf.assign(w, 3.0)
    with tf.control_dependencies([first]):
        return after([tf.assign(w, average)], y)


@program(1, 1, 1)
def update_of_the_batch(x):
    w, average = variable("w", 10), variable("average", 1)
    y = network(x, w)
    return after([tf.assign(w, tf.reduce_mean(network(x, average)))], y)


@program(10, 5, 2.5)
def descent(x):
    """The gradient is of the weight before it, and so is the loss."""
    w = tf.get_variable("w", initializer=10.0)
    y = network(x, w)
    optimizer = tf.train.GradientDescentOptimizer(0.25)
    return after([optimizer.minimize(tf.reduce_mean(y * y))], y)


@program(10, 1, 10)
def exchange(x):
    """What is computed from a read that an update takes, too, is of the same value."""
    a, b = variable("a", 10), variable("b", 1)
    taken = a + 0.0
    return after([tf.assign(a, b + 0.0), tf.assign(b, taken)], network(x, taken))


@program(1, 1, 1)
def embedding(x):
    table, average = variable("table", 10, [2, 1]), variable("average", 1, [2, 1])
    y = network(x, tf.reshape(tf.nn.embedding_lookup(table, [1]), []))
    return after([tf.assign(table, average)], y)


@program(1, 1, 1)
def read_in_a_condition(x):
    w, average = variable("w", 10), variable("average", 1)
    y = tf.cond(tf.reduce_mean(x) > 0, lambda: network(x, w), lambda: x)
    return after([tf.assign(w, average)], y)


@program(2, 2, 2)
def read_in_a_loop(x):
    w, average = variable("w", 10), variable("average", 1)
    _, y = tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y + w * x), (0, 0 * x))
    return after([tf.assign(w, average)], y)


IN_FRAMES = {}  # by the old control flow, TensorFlow 1 has these open


def of_new_control_flow(function):
    IN_FRAMES[function.__name__] = PROGRAMS.pop(function.__name__)
    return function


@of_new_control_flow
@program(1, 1, 1)
def update_in_a_condition(x):
    w, average = variable("w", 10), variable("average", 1)
    y = network(x, w)
    update = tf.cond(
        tf.reduce_mean(x) > 0, lambda: tf.identity(tf.assign(w, average)), lambda: tf.zeros([])
    )
    return after([update], y)


@of_new_control_flow
@program(1, 1, 1)
def update_in_a_loop(x):
    w, average = variable("w", 10), variable("average", 1)
    y = network(x, w)
    _, update = tf.while_loop(
        lambda i, _: i < 2, lambda i, _: (i + 1, tf.identity(tf.assign(w, average))), (0, 0.0)
    )
    return after([update], y)


RUNTIMES = {
    "local": {"use_tpu": False},
    "local, references": {"use_tpu": False},
    "session": {"use_tpu": True},
    "rehearse:2": {"master": "rehearse:2"},
    "rehearse:4": {"master": "rehearse:4"},
}


@pytest.fixture(params=RUNTIMES)
def runtime(request):
    if request.param.startswith("rehearse"):
        request.getfixturevalue("xla_runtime")
    if request.param == "local, references":
        request.getfixturevalue("references")
        request.getfixturevalue("old_control_flow")
    return request.param


def local(name):
    collections = [tf.GraphKeys.LOCAL_VARIABLES]
    return tf.get_variable(name, [], initializer=tf.zeros_initializer(), collections=collections)


def metric_fn(is_exported=False, **values):
    """The mean of each program's value; and metrics with updates of their own, on the host."""
    metrics = {name: tf.metrics.mean(value) for name, value in values.items()}
    batches, seen = local("batches"), local("seen")
    # An export refuses a variable as a value.
    value = batches + 0.0 if is_exported else batches
    metrics["batches"] = value, tf.assign_add(batches, 1.0)
    metrics["seen"] = tf.metrics.mean(after([tf.assign_add(seen, 1.0)], 2 * seen))
    return metrics


def model_fn_of(programs):
    """Returns a model_fn that has each program in a scope of its own."""

    def model_fn(features, labels, mode, params):
        values = {}
        for name, (function, _) in programs.items():
            with tf.variable_scope(name):
                values[name] = function(features["x"])
        if mode == tpu.ModeKeys.TRAIN:
            averaged = [v for v in tf.trainable_variables() if v.op.name == "moving_average/w"]
            loss = tpu.cross_replica_sum(tf.reduce_mean(features["x"]))
            with tf.control_dependencies([loss]):
                updates = [v.assign(10.0) for v in averaged]
                updates.append(tf.assign_add(tf.train.get_global_step(), 1))
            return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(updates))
        return tpu.TPUEstimatorSpec(
            mode,
            loss=tf.add_n([tf.reduce_mean(value) for value in values.values()]),
            eval_metrics=(functools.partial(metric_fn, is_exported=labels is not None), values),
            predictions=values,
        )

    return model_fn


def ones(params):
    data = tf.data.Dataset.from_tensors({"x": tf.ones([params["batch_size"]])})
    return data.repeat(BATCHES)


@pytest.fixture
def trained(tmp_path, runtime):
    """Returns (an estimator of a checkpoint with the variables' first values, its programs)."""
    programs = PROGRAMS if runtime == "local, references" else {**PROGRAMS, **IN_FRAMES}
    estimator = toy.make_estimator(
        tmp_path, model_fn_of(programs), predict_batch_size=toy.BATCH_SIZE, **RUNTIMES[runtime]
    )
    estimator.train(ones, steps=1)
    return estimator, programs


def hashes(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.glob("*ckpt*")
    }  # fmt: skip


def test_every_evaluation_gives_the_same(trained, tmp_path):
    estimator, programs = trained
    before = hashes(tmp_path)
    expected = {name: sum(values) / BATCHES for name, (_, values) in programs.items()}
    expected["loss"] = sum(expected.values())
    expected |= {"global_step": 1, "batches": BATCHES, "seen": (2 + 4 + 6) / BATCHES}
    assert estimator.evaluate(ones, steps=BATCHES) == pytest.approx(expected, rel=1e-6)
    with estimator.kept_evaluation(ones, BATCHES, "kept") as evaluation:
        for _ in range(EVALUATIONS):
            assert evaluation.evaluate() == pytest.approx(expected, rel=1e-6)
    assert hashes(tmp_path) == before


def test_every_prediction_gives_the_same(trained, tmp_path):
    estimator, programs = trained
    before = hashes(tmp_path)
    for _ in range(2):
        rows = list(estimator.predict(ones))
        assert len(rows) == BATCHES * toy.BATCH_SIZE
        for name, (_, values) in programs.items():
            given = [row[name] for row in rows]
            wanted = [value for value in values for _ in range(toy.BATCH_SIZE)]
            assert given == pytest.approx(wanted, rel=1e-6), name
    assert hashes(tmp_path) == before


def receiver():
    x = tf.ones([toy.BATCH_SIZE])
    return serving.build_raw_serving_input_receiver_fn({"x": x}, toy.BATCH_SIZE)()


def supervised_receiver():
    x = tf.ones([toy.BATCH_SIZE])
    return serving.build_raw_supervised_input_receiver_fn({"x": x}, x, toy.BATCH_SIZE)()


@contextlib.contextmanager
def loaded(path, tag):
    """Gives a function that runs outputs of a loaded SavedModel's signature, and a function that
    gives its variables the saved values."""
    with tf.Graph().as_default(), tf.Session(config=toy.QUICK) as session:
        model = tf.saved_model.load(session, [tag], path)
        signature = model.signature_def["serving_default" if tag == "serve" else tag]
        saver = model.saver_def

        def restore():
            prefix = f"{os.fsdecode(path)}/variables/variables"
            session.run(saver.restore_op_name, {saver.filename_tensor_name: prefix})

        def run(names):
            fetches = {name: signature.outputs[name].name for name in names}
            return session.run(fetches, {signature.inputs["x"].name: [1.0] * toy.BATCH_SIZE})

        yield run, restore


def test_every_answer_of_an_export_gives_the_same(trained, tmp_path):
    estimator, programs = trained
    path = estimator.export_saved_model(str(tmp_path / "export"), receiver)
    with loaded(path, "serve") as (run, restore):
        for _ in range(EVALUATIONS):
            restore()
            for batch in range(BATCHES):
                given = run(programs)
                for name, (_, values) in programs.items():
                    assert given[name] == pytest.approx(values[batch], rel=1e-6), name


def test_an_exported_evaluation_gives_the_same(trained, tmp_path):
    estimator, programs = trained
    path = estimator.experimental_export_all_saved_models(
        str(tmp_path / "export"), {tpu.ModeKeys.EVAL: supervised_receiver}
    )
    values = {f"metrics/{name}/value": name for name in [*programs, "batches"]}
    updates = [f"metrics/{name}/update_op" for name in [*programs, "batches"]]
    expected = {name: sum(values) / BATCHES for name, (_, values) in programs.items()}
    expected["batches"] = BATCHES
    with loaded(path, "eval") as (run, _):
        for _ in range(BATCHES):
            run(["loss", *updates])
        for _ in range(2):  # Reading the metrics does not change them.
            given = {values[name]: value for name, value in run(values).items()}
            assert given == pytest.approx(expected, rel=1e-6)


def test_a_signature_does_not_run_another_signature_s_update(tmp_path, runtime):
    def model_fn(features, mode, params):
        w = variable("w", 10)
        read = w.read_value() if hasattr(w, "handle") else w.value()
        outputs = {
            "serving_default": read + 0 * features["x"],
            "set": after([tf.assign(w, 1.0)], features["x"]),
            "both": after([tf.assign(w, 2.0)], features["x"]) + read,
        }
        step = tf.assign_add(tf.train.get_global_step(), 1)
        return tpu.TPUEstimatorSpec(
            mode,
            loss=tpu.cross_replica_sum(tf.reduce_mean(features["x"])),
            train_op=tf.group(step),
            predictions=outputs,
            export_outputs={k: serving.PredictOutput({"y": v}) for k, v in outputs.items()},
        )

    estimator = toy.make_estimator(tmp_path, model_fn, **RUNTIMES[runtime])
    estimator.train(ones, steps=1)
    path = estimator.export_saved_model(str(tmp_path / "export"), receiver)
    with loaded(path, "serve") as (run, _):
        assert list(run(["y"])["y"]) == [10] * toy.BATCH_SIZE
