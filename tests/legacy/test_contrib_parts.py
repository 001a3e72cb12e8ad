"""Parts of tf.contrib give what TensorFlow 1.15.5 gave, and train on cores as in a session."""

import itertools
import json

import legacy_script
import numpy as np
import printed
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu
from bert_estimator.legacy.stand_ins import crf, optimizers, rnn


def test_they_give_what_tensorflow_1_gave(tmp_path):
    done = legacy_script.run(tmp_path, printed.CONTRIB_PARTS.read_text())
    got = printed.read(done.stdout)
    golden = json.loads(printed.CONTRIB_PARTS_GOLDEN.read_text())
    assert list(got) == list(golden) and len(got) == 63
    for name, expected in golden.items():
        if name.startswith("variable") or name == "crf variable":
            assert got[name] == expected, name
            continue
        assert len(got[name]) == len(expected), name
        for one, other in zip(got[name], expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=3e-6, err_msg=name)


NAMED = """
import os, sys
import tensorflow as tf

lookup, framework = tf.contrib.lookup, tf.contrib.framework
with tf.Session() as session:
    for kind, keys in [
        (lookup.MutableDenseHashTable, dict(empty_key=-2, deleted_key=-3, shared_name="a")),
        (lookup.MutableHashTable, dict(shared_name="b")),
    ]:
        table = kind(tf.int64, tf.int64, -1, **keys)
        session.run(table.insert(tf.constant([1], tf.int64), tf.constant([5], tf.int64)))
        print(session.run(table.lookup(tf.constant([1, 4], tf.int64))).tolist())
    initializer = lookup.KeyValueTensorInitializer(["a"], [7], value_dtype=tf.int64)
    table = lookup.HashTable(initializer, -1, shared_name="c")
    session.run(table.init)
    print(session.run(table.lookup(tf.constant(["a", "b"]))).tolist())
    twice = framework.py_func(
        lambda a, by: {"y": a * by, "z": a}, (tf.constant([1.0, 2.0]),), {"by": tf.constant(2.0)},
        output_types={"y": tf.float32, "z": tf.float32}, output_shapes={"y": [2], "z": None})
    print(twice["y"].shape, twice["z"].shape, session.run(twice)["y"].tolist())
    print(session.run(framework.py_func(lambda: 3.0, (), output_types=tf.float64)))
    session.run(tf.get_variable("v", initializer=1.5).initializer)
    path = tf.train.Saver().save(session, os.path.join(sys.argv[1], "m"))
    print(framework.list_variables(checkpoint_dir=path)[-1])
    print(framework.load_variable(checkpoint_dir=path, name="v"))
    print(framework.load_checkpoint(filepattern=path).has_tensor("v"))
with tf.Graph().as_default(), tf.Session() as session:
    variable = tf.get_variable("v", [])
    framework.init_from_checkpoint(checkpoint_dir=path, assignment_map={"v": variable})
    session.run(tf.global_variables_initializer())
    print(session.run("v:0"))
"""


def test_names_with_contrib_s_own_arguments(tmp_path):
    assert legacy_script.run(tmp_path, NAMED, tmp_path).stdout.splitlines() == [
        *("[5, -1]", "[5, -1]", "[7, -1]"),
        "(2,) <unknown> [2.0, 4.0]",
        *("3.0", "('v', [])", "1.5", "True", "1.5"),
    ]


@pytest.mark.parametrize(
    ("cell", "number"),
    [(rnn.LSTMBlockCell, 2), (rnn.GRUBlockCell, 4), (rnn.LayerNormBasicLSTMCell, 11)],
)
def test_cells_have_their_variables(cell, number):
    """Programs sum up their squares, or train some cells only."""
    with tf.Graph().as_default():
        made = cell(4)
        assert made.variables == []
        made(tf.zeros([2, 3]), made.zero_state(2, tf.float32))
        assert len(made.variables) == number
        for name in ("weights", "trainable_variables", "trainable_weights"):
            assert getattr(made, name) == made.variables
        assert {v.ref() for v in made.variables} == {v.ref() for v in tf.trainable_variables()}


def tagger(features, labels, mode, params):
    """Trains LSTMs in both directions with a conditional random field and a loss scale."""
    words = tf.transpose(features["words"], [1, 0, 2])
    run = {"dtype": tf.float32, "sequence_length": features["length"]}
    with tf.variable_scope("lstm", initializer=tf.constant_initializer(0.1)):
        forward, _ = rnn.LSTMBlockFusedCell(3)(words, **run)
        backward, _ = rnn.TimeReversedFusedRNN(rnn.LSTMBlockFusedCell(3))(words, **run)
        cell = rnn.LSTMBlockCell(2, use_peephole=True)
        above, _ = tf.nn.dynamic_rnn(
            cell, forward, features["length"], dtype=tf.float32, time_major=True
        )
        hidden = tf.transpose(tf.concat([forward, backward, above], 2), [1, 0, 2])
        potentials = tf.tensordot(hidden, tf.get_variable("w", [8, 3]), 1)
        transitions = tf.get_variable("transitions", [3, 3])
    tags, score = crf.crf_decode(potentials, transitions, features["length"])
    if mode == tpu.ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions={"tags": tags, "score": score})
    likelihood, _ = crf.crf_log_likelihood(potentials, labels, features["length"], transitions)
    loss = 8.0 * tf.reduce_mean(-likelihood)  # the first scale is too large for gradients above 2
    optimizer = tf.train.MomentumOptimizer(0.0125, 0.9)
    if params["use_tpu"]:
        optimizer = tpu.CrossShardOptimizer(optimizer)
    manager = optimizers.ExponentialUpdateLossScaleManager(2.0**127, 2, 1, decr_ratio=2.0**-20)
    optimizer = optimizers.LossScaleOptimizer(optimizer, manager)
    return tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, tf.train.get_global_step())
    )


def sentences(params):
    random = np.random.RandomState(1)
    features = {
        "words": random.normal(size=(8, 5, 2)).astype(np.float32),
        "length": np.array([5, 3, 1, 4, 2, 5, 4, 1], np.int32),
    }
    tags = random.randint(0, 3, (8, 5)).astype(np.int32)
    data = tf.data.Dataset.from_tensor_slices((features, tags))
    return data.batch(params["batch_size"], drop_remainder=True).repeat(20)


def trained(folder, **rules):
    estimator = toy.make_estimator(
        folder, tagger, train_batch_size=8, predict_batch_size=8, params={}, iterations_per_loop=2,
        **rules,
    )  # fmt: skip
    estimator.train(sentences, max_steps=4)
    weights = {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}
    predictions = list(itertools.islice(estimator.predict(sentences), 8))
    return weights, [list(p["tags"]) for p in predictions], [p["score"] for p in predictions]


@pytest.mark.usefixtures("xla_runtime")
def test_a_tagger_trains_on_cores_as_in_a_session(tmp_path):
    """The first step overflows, so it lowers the loss scale and is left out by all cores."""
    expected = trained(tmp_path / "local", use_tpu=False)
    assert expected[0]["loss_scale"] == 2.0**109 and expected[0]["global_step"] == 4
    for name, rules in (("session", {}), ("cores", {"master": "rehearse:2"})):
        got = trained(tmp_path / name, **rules)
        assert list(got[0]) == list(expected[0]) and got[1] == expected[1]
        for weight, value in expected[0].items():
            np.testing.assert_allclose(got[0][weight], value, rtol=1e-4, atol=1e-5, err_msg=weight)
        np.testing.assert_allclose(got[2], expected[2], rtol=1e-4)
