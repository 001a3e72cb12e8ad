"""The XLA runtime means what the session runtime means, on any number of cores."""

import dataclasses
import os
import sys

import forked
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_variables
from bert_estimator.model_fns import pretraining, update
from bert_estimator.optimization import WarmupPolynomialDecay

pytestmark = pytest.mark.usefixtures("xla_runtime")

MASTERS = ("", "rehearse:1", "rehearse:2", "rehearse:4")
STEPS = 6
ROWS = 8


def weights_of(estimator):
    return {n: estimator.get_variable_value(n) for n in estimator.get_variable_names()}


def assert_same_weights(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # The gradient of a key's bias is zero but for rounding.
        if "/key/bias" not in name:
            distance = np.linalg.norm(found[name] - value)
            assert distance <= 1e-3 * np.linalg.norm(value) + 1e-7, name


# A model of four weights: a step of it says everything but what the network does.


def toy_input_fn(params):
    """Batch k has the rows 8k, ..., 8k + 7."""
    start = params["context"].global_step
    size = params["batch_size"]
    return tf.data.Dataset.range(start, 1000).map(
        lambda k: {"x": tf.cast(k * ROWS + tf.range(size, dtype=tf.int64), tf.float32)}
    )


def regression(log=None):
    """Returns a model_fn that fits y = 2x with Adam; with `log`, it has a host call."""

    def model_fn(features, mode, params):
        x = features["x"]
        weight = tf.get_variable("w", [4], initializer=tf.ones_initializer())
        scaled = x[:, None] / 50.0 * tf.constant([1.0, 0.5, -1.0, 2.0])
        errors = tf.square(tf.reduce_sum(scaled * weight, 1) - 2.0 * x)
        loss = tf.reduce_mean(errors)
        if mode == tpu.ModeKeys.EVAL:
            metrics = (lambda errors: {"error": tf.metrics.mean(errors)}, [errors])
            return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
        optimizer = tpu.CrossShardOptimizer(tf.train.AdamOptimizer(0.1))
        step = tf.train.get_global_step()
        call = None
        if log is not None:
            tensors = {
                "core": tf.reshape(tf.convert_to_tensor(tpu.replica_id()), [1]),
                "step": tf.reshape(tf.identity(step), [1]),
                "x": x,
            }
            call = (log, tensors)
        with tf.control_dependencies([t for t in (call[1].values() if call else ())]):
            train_op = optimizer.minimize(loss, global_step=step)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, host_call=call)

    return model_fn


def make_regression(folder, master, log=None, **keywords):
    return toy.make_estimator(
        folder,
        regression(log),
        **{"master": master, "train_batch_size": ROWS, "eval_batch_size": ROWS, **keywords},
    )


@pytest.fixture(scope="module")
def regressions(tmp_path_factory):
    """Returns the results of six steps in loops of four, by master."""
    found = {}
    for master in MASTERS:
        folder = tmp_path_factory.mktemp("regression")
        log, losses = toy.HostLog(), []
        estimator = make_regression(
            folder, master, log, iterations_per_loop=4, save_checkpoints_steps=1,
            log_step_count_steps=1,
        )  # fmt: skip
        listener = tpu.LogListener(lambda report, losses=losses: losses.append(report["loss"]))
        estimator.train(toy_input_fn, hooks=[listener], max_steps=STEPS)
        found[master] = {
            "log": log.values,
            "losses": losses,
            "weights": weights_of(estimator),
            "metrics": estimator.evaluate(toy_input_fn, steps=3),
        }
    return found


@pytest.mark.parametrize("master", MASTERS[1:])
class TestRegression:
    def test_losses_and_weights(self, regressions, master):
        found, expected = regressions[master], regressions[""]
        assert len(found["losses"]) == len(expected["losses"]) > 0
        np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-4)
        assert_same_weights(found["weights"], expected["weights"])

    def test_the_host_call_gets_every_step_of_every_core(self, regressions, master):
        cores = int(master.split(":")[1])
        assert regressions[master]["log"] == [
            {
                "core": list(range(cores)),
                "step": [k] * cores,
                "x": [float(k * ROWS + row) for row in range(ROWS)],
            }
            for k in range(STEPS)
        ]

    def test_metrics(self, regressions, master):
        found, expected = regressions[master]["metrics"], regressions[""]["metrics"]
        assert found.keys() == expected.keys()
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4)


@pytest.mark.parametrize("order", [("", "rehearse:2"), ("rehearse:2", "")])
def test_a_checkpoint_of_one_runtime_is_trained_on_by_the_other(tmp_path, regressions, order):
    for master, end in zip(order, (3, STEPS), strict=True):
        estimator = make_regression(tmp_path, master)
        estimator.train(toy_input_fn, max_steps=end)
    assert_same_weights(weights_of(estimator), regressions[""]["weights"])


def test_estimators_on_more_and_fewer_cores_in_one_process(tmp_path):
    """Nine cores are more than jax was started with, by the first test that used it."""
    by_master, fields = {}, lambda features, loss: {"predictions": {"x": features["x"]}}
    for cores in (2, 9, 4, 9):
        folder = tmp_path / str(len(by_master))
        estimator = toy.make_estimator(
            folder, toy.make_model_fn(fields), master=f"rehearse:{cores}", iterations_per_loop=2,
            train_batch_size=36, predict_batch_size=36,
        )  # fmt: skip
        estimator.train(toy.input_fn, max_steps=3)
        assert estimator.get_variable_value("w") == 3
        predictions = estimator.predict(
            lambda params: toy.batches(last=2, batch_size=params["batch_size"])
        )
        by_master[folder] = predictions, [float(next(predictions)["x"])]
    # The first of them are still at work, on their own cores.
    for predictions, values in by_master.values():
        values += [float(each["x"]) for each in predictions]
        assert values == [1.0] * 36 + [2.0] * 36


# What goes wrong.


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"train_batch_size": 6}, r"batch size 6 .* divisible by the 4 cores of 'rehearse:4'"),
        ({"num_shards": 2}, "num_shards=2, but master='rehearse:4' has 4 cores"),
        (
            {"per_host_input_for_training": tpu.InputPipelineConfig.PER_SHARD_V1},
            r"master='rehearse:4': .*PER_SHARD_V1 \(False\) is not supported",
        ),
    ],
)
def test_what_does_not_fit_the_cores(tmp_path, keywords, message):
    with pytest.raises(ValueError, match=message):
        make_regression(tmp_path, "rehearse:4", **keywords).train(toy_input_fn, max_steps=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tf.zeros([]), "divisible by the 4 cores"),
        (lambda: tf.zeros([6]), "divisible by the 4 cores"),
        (lambda: tf.fill([ROWS], "a"), "holds strings, which a core cannot take"),
    ],
)
def test_an_input_that_cores_cannot_take(tmp_path, make, message):
    def input_fn(params):
        return tf.data.Dataset.from_tensors({"x": make()}).repeat()

    with pytest.raises(ValueError, match=message):
        make_regression(tmp_path, "rehearse:4").train(input_fn, max_steps=1)


# What input_fn and model_fn may give, and how batches get to the cores.


def sending_model_fn(log):
    """A model_fn whose host call gets the rows it sees, an array and a variable."""

    def model_fn(features, labels, mode, params):
        rows = features["deep"][0] if isinstance(features, dict) else features
        if labels is not None:
            rows = rows + labels
        step = tf.train.get_global_step()
        size = np.array([params["batch_size"]])
        tensors = {"rows": rows, "size": size, "step": tf.reshape(step, [1])}
        train_op = tf.group(step.assign_add(1), tpu.cross_replica_sum(rows))
        call = (log, tensors)
        return tpu.TPUEstimatorSpec(
            mode, loss=tf.reduce_mean(rows), train_op=train_op, host_call=call
        )

    return model_fn


def numbers(size):
    """Rows 0, 1, 2, ... in batches of a size."""
    return tf.data.Dataset.range(1000).map(lambda i: tf.cast(i, tf.float32)).batch(size, True)


def nested(x):
    return {"deep": (x, tf.zeros([1, 1]) + x[:, None])}


@pytest.mark.parametrize(
    "structure",
    [lambda x: x, lambda x: (nested(x), None), lambda x: (x, x * 0), lambda x: (nested(x), x * 0)],
)
def test_features_of_any_structure_with_labels_or_without(tmp_path, structure):
    log = toy.HostLog()
    estimator = toy.make_estimator(
        tmp_path, sending_model_fn(log), master="rehearse:2", train_batch_size=4
    )
    estimator.train(lambda params: structure(tf.constant([1.0, 2.0, 3.0, 4.0])), max_steps=2)
    assert [call["rows"] for call in log.values] == [[1, 2, 3, 4]] * 2


@pytest.mark.parametrize(
    ("mode", "rows", "sizes"),
    [
        ("PER_HOST_V1", [0, 1, 2, 3], [2, 2]),
        ("PER_HOST_V2", [0, 1, 2, 3], [2, 2]),
        ("SLICED", [0, 1, 2, 3], [2, 2]),
        ("BROADCAST", [0, 1, 2, 3], [4]),
    ],
)
def test_input_modes(tmp_path, mode, rows, sizes):
    given, log = [], toy.HostLog()

    def input_fn(params):
        given.append(params["batch_size"])
        return numbers(params["batch_size"])

    estimator = toy.make_estimator(
        tmp_path, sending_model_fn(log), master="rehearse:2", train_batch_size=4,
        per_host_input_for_training=getattr(tpu.InputPipelineConfig, mode),
    )  # fmt: skip
    estimator.train(input_fn, max_steps=2)
    assert given == [2 if mode == "PER_HOST_V2" else 4]
    assert [call["rows"] for call in log.values] == [rows, [row + 4 for row in rows]]
    assert [call["size"] for call in log.values] == [sizes] * 2


_WITHOUT_V2 = """
import sys
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import toy
estimator = toy.make_estimator(sys.argv[1], master="rehearse:2")
estimator.train(toy.input_fn, max_steps=3)
print("weight", estimator.get_variable_value("w"))
"""


def test_after_disable_v2_behavior(tmp_path):
    done = forked.run(
        [sys.executable, "-c", _WITHOUT_V2, str(tmp_path)],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "weight 3.0" in done.stdout


# The network, with dropout.

LENGTH, MASKED, VOCAB = 8, 2, 40
BERT = BertConfig(
    vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=LENGTH,
)  # fmt: skip


def records(params):
    random, n = np.random.RandomState(0), ROWS * STEPS
    features = {
        "input_ids": random.randint(5, VOCAB, (n, LENGTH)),
        "input_mask": np.ones((n, LENGTH)),
        "segment_ids": random.randint(0, 2, (n, LENGTH)),
        "masked_lm_positions": random.randint(0, LENGTH, (n, MASKED)),
        "masked_lm_ids": random.randint(5, VOCAB, (n, MASKED)),
        "masked_lm_weights": random.rand(n, MASKED) < 0.8,
        "next_sentence_labels": random.randint(0, 2, (n, 1)),
    }
    features = {k: v.astype("f" if "weights" in k else "i") for k, v in features.items()}
    data = tf.data.Dataset.from_tensor_slices(features).repeat()
    return data.batch(params["batch_size"], drop_remainder=True)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A function of where, in what parts, and what to train: (losses, weights) after six steps."""
    found = {}

    def train(
        master, micro_batch_size=None, recompute=False, num_cores_per_replica=None, vocab_size=VOCAB
    ):
        key = (master, micro_batch_size, recompute, num_cores_per_replica, vocab_size)
        if key not in found:
            losses = []
            rule = update.UpdateRule("lamb", WarmupPolynomialDecay(1e-2, 100, 2), micro_batch_size)
            network = dataclasses.replace(BERT, vocab_size=vocab_size)
            model_fn = pretraining.model_fn_builder(
                network, rule, random_seed=3, recompute=recompute
            )
            estimator = toy.make_estimator(
                tmp_path_factory.mktemp("pretraining"), model_fn, master=master, tf_random_seed=3,
                log_step_count_steps=1, train_batch_size=ROWS, params={}, iterations_per_loop=1,
                num_cores_per_replica=num_cores_per_replica, sharding=network_variables.SHARDING,
            )  # fmt: skip
            listener = tpu.LogListener(lambda report: losses.append(report["loss"]))
            estimator.train(records, hooks=[listener], max_steps=STEPS)
            found[key] = losses, weights_of(estimator)
        return found[key]

    return train


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


# Compiling takes most of the time, and the slow cases are parts of what the first one does.
@pytest.mark.parametrize(
    ("master", "options"),
    [
        ("rehearse:8", {"micro_batch_size": 1, "recompute": True, "num_cores_per_replica": 2}),
        slow("rehearse:4", {"micro_batch_size": 1, "recompute": True}),
        slow("rehearse:2", {"micro_batch_size": 2}),
        slow("rehearse:4", {"recompute": True}),
        slow("rehearse:2", {}),
        slow("rehearse:4", {}),
        slow("rehearse:2", {"recompute": True}),
        slow("rehearse:8", {"num_cores_per_replica": 2}),
        slow("rehearse:2", {"num_cores_per_replica": 2}),
        # Here the cores do not divide the vocabulary.
        slow("rehearse:4", {"num_cores_per_replica": 2, "vocab_size": VOCAB + 1}),
    ],
)
def test_pretraining(pretrained, master, options):
    losses, weights = pretrained(master, **options)
    expected_losses, expected_weights = pretrained("", vocab_size=options.get("vocab_size", VOCAB))
    assert len(losses) == STEPS
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    assert_same_weights(weights, expected_weights)


@pytest.mark.parametrize("master", ["", "rehearse:4"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_without_rules_every_core_of_a_replica_has_the_whole_model(tmp_path, master, number):
    """As TensorFlow's compiler had it: the cores of a replica compute the same."""
    estimator = toy.make_estimator(tmp_path, master=master, num_cores_per_replica=number)
    estimator.train(toy.input_fn, max_steps=3)
    assert toy.weight_at(tmp_path, 3) == 3
    assert estimator.evaluate(toy.input_fn, steps=2)["loss"] == 3.5 + 1


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"num_cores_per_replica": 8}, "num_cores_per_replica=8 does not divide the 4 cores"),
        (
            {"num_cores_per_replica": 2, "num_shards": 4},
            "num_shards=4, but master='rehearse:4' has 4 cores, 2 a replica",
        ),
        (
            {"num_cores_per_replica": 2, "train_batch_size": 5},
            r"batch size 5 \(mode 'train'\) must be divisible by the 2 replicas",
        ),
        (
            {"num_cores_per_replica": 4, "sharding": [("w", 0)], "train_batch_size": 4},
            r"num_cores_per_replica=4: w of shape \(3,\) cannot be split evenly along axis 0",
        ),
    ],
)
def test_splits_that_cannot_be(tmp_path, keywords, message):
    def model_fn(features, mode, params):
        weight = tf.get_variable("w", [3], initializer=tf.zeros_initializer())
        loss = tf.reduce_sum(weight) + tf.reduce_mean(features["x"])
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = toy.make_estimator(
        tmp_path,
        model_fn,
        master="rehearse:4",
        **{"sharding": network_variables.SHARDING, **keywords},
    )
    with pytest.raises(ValueError, match=message):
        estimator.train(toy.input_fn, steps=1)


def test_training_without_a_sum_over_the_cores_is_refused(tmp_path):
    def model_fn(features, mode, params):
        loss = tf.reduce_mean(tf.get_variable("w", []) * features["x"])
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    with pytest.raises(ValueError, match=r"CrossShardOptimizer must be used.* the 2 replicas"):
        toy.make_estimator(tmp_path, model_fn, master="rehearse:2").train(toy_input_fn, steps=1)
    # One core needs none.
    toy.make_estimator(tmp_path, model_fn, master="rehearse:1").train(toy.input_fn, steps=1)
