"""`tf.tpu.rewrite` and its kin in a script's own session: what upstream's functions would give.

TensorFlow's own functions build graphs that only run on a TPU. Their outputs' structure, shapes and
errors can be seen without one.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy
from tensorflow.python.tpu.topology import Topology

from bert_estimator import tpu
from bert_estimator.legacy import modules
from bert_estimator.tpu.replicas import replicated


def run(build):
    with tf.Graph().as_default(), tf.Session() as session:
        fetched = build()
        session.run(tf.global_variables_initializer())
        return session.run(fetched)


def described(value):
    """Returns a structure with the dtypes and shapes of tensors."""
    if isinstance(value, dict):
        return {key: described(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__, [described(each) for each in value]
    if isinstance(value, tf.Operation):
        return "operation"
    return None if value is None else (value.dtype.name, value.shape.as_list())


def outcome(function, *arguments, **keywords):
    with tf.Graph().as_default():
        x = tf.ones([4, 2])
        try:
            return described(function(*[a(x) if callable(a) else a for a in arguments], **keywords))
        except Exception as error:
            return type(error).__name__


def returns(make):
    """Returns an argument: a computation that returns `make(x)`."""
    return lambda _: lambda x, *more: make(x)


OUTPUTS = {
    "tensor": lambda x: 2 * x,
    "none": lambda x: None,
    "list": lambda x: [x, 2 * x],
    "tuple": lambda x: (x, tf.reduce_sum(x)),
    "operation": lambda x: tf.no_op(),
    "tensor_and_operation": lambda x: [x, tf.no_op()],
    "operation_and_tensor": lambda x: [tf.no_op(), x],
    "tensor_and_none": lambda x: [x, None],
    "number": lambda x: 3.0,
    "dict": lambda x: {"a": x, "b": [x]},
    "nested": lambda x: [x, (x, x)],
    "operation_in_dict": lambda x: {"a": tf.no_op()},
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_have_upstream_s_form(name):
    computation = returns(OUTPUTS[name])
    for call in ("rewrite", "replicate"):
        inputs = (lambda x: [x]) if call == "rewrite" else (lambda x: [[x], [x]])
        expected = outcome(getattr(tf.tpu, call), computation, inputs)
        assert outcome(getattr(replicated, call), computation, inputs) == expected


@pytest.mark.parametrize(
    "keywords",
    [
        {"num_shards": 2},
        {"num_shards": 2, "input_shard_axes": [1], "output_shard_axes": [1, 0]},
        {"num_shards": 2, "outputs_from_all_shards": False},
        {"num_shards": 2, "outputs_from_all_shards": [True, False]},
        {"num_shards": 0},
        {"num_shards": 3},
        {"num_shards": 2, "input_shard_axes": [0, 0]},
        {"num_shards": 2, "output_shard_axes": [0]},
        {"num_shards": 2, "outputs_from_all_shards": [True]},
    ],
)
def test_shards_have_upstream_s_form(keywords):
    arguments = returns(lambda x: (2 * x, tf.reduce_sum(x))), lambda x: [x]
    expected = outcome(tf.tpu.shard, *arguments, **keywords)
    assert outcome(replicated.shard, *arguments, **keywords) == expected


def test_a_shard_is_a_part_of_the_inputs_and_of_the_outputs():
    x = np.arange(8, dtype=np.float32).reshape(4, 2)

    def computation(x):
        return x - tf.reduce_mean(x), tf.reduce_sum(x)

    halves = np.split(x, 2)
    centered, sums = run(lambda: replicated.batch_parallel(computation, [tf.constant(x)], 2))
    np.testing.assert_allclose(centered, np.concatenate([h - h.mean() for h in halves]))
    np.testing.assert_allclose(sums, [h.sum() for h in halves])
    columns = run(lambda: replicated.shard(computation, [tf.constant(x)], 2, [1], [True, False]))
    np.testing.assert_allclose(columns[1], x[:, 0].sum())


def test_replicas_share_their_variables():
    def computation(x):
        return x * tf.get_variable("w", initializer=3.0) + tf.cast(tpu.replica_id(), tf.float32)

    def build():
        outputs = replicated.replicate(computation, [[1.0], [2.0]])
        assert [v.op.name for v in tf.global_variables()] == ["w"]
        return outputs

    assert run(build) == [[3.0], [7.0]]


def test_a_script_trains_with_a_rewritten_step():
    """All operations with effects run, returned or not, as often as an output is fetched."""
    given = modules.look_up("tensorflow.contrib.tpu", "rewrite")

    def step(x):
        with tf.device(tf.tpu.core(0)):
            w = tf.get_variable("w", initializer=4.0)
        loss = tf.square(w - x)
        optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.25))
        optimizer.minimize(loss)
        return loss

    with tf.Graph().as_default(), tf.Session() as session:
        topology = Topology(session.run(replicated.initialize_system()))
        assert topology.num_tasks == topology.num_tpus_per_task == 1
        loss = given(step, [tf.constant(2.0)])
        session.run(tf.global_variables_initializer())
        assert [session.run(loss)[0] for _ in range(3)] == [4, 1, 0.25]
        session.run(replicated.shutdown_system())


@pytest.mark.parametrize(
    ("computation", "words"),
    [
        (lambda x: tf.get_variable("w", initializer=0.0).assign_add(x), "updates a variable.*TPUE"),
        (lambda x: tpu.cross_replica_sum(x), "cross_replica_sum.*2 replicas.*TPUEstimator"),
        (lambda x: x * tf.Variable(1.0), r"one of 2 replicas.*tf\.get_variable"),
    ],
    ids=["update", "sum", "variable"],
)
def test_what_several_replicas_cannot_do_here(computation, words):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=words):
        replicated.replicate(computation, [[1.0], [2.0]])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: replicated.rewrite(tf.abs, [1.0], infeed_queue=3), "infeed_queue is not supp"),
        (lambda: replicated.replicate(tf.abs, [[1.0], []]), "all of the same length"),
        (lambda: replicated.replicate(tf.abs, []), "inputs must be a list"),
        (lambda: replicated.initialize_system(embedding_config=3), "tf.nn.embedding_lookup"),
    ],
)
def test_refuses(call, words):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=words):
        call()


def test_it_says_once_that_cores_are_not_used(warned, monkeypatch):
    monkeypatch.setattr(replicated, "_warned", [])
    for _ in range(2):
        run(lambda: replicated.rewrite(tf.abs, [1.0]))
    assert len(warned()) == 1 and "TPUEstimator runs a model on cores" in warned()[0]
    for _ in range(2):
        run(lambda: replicated.shard(tf.abs, [tf.ones([4])], num_shards=2))
    assert len(warned()) == 2 and "one core stands in for 2" in warned()[1]


def test_a_model_fn_may_rewrite_a_part(tmp_path, cores):
    def model_fn(features, mode, params):
        weight = tf.get_variable("w", initializer=1.0)

        def mean_of_all(x):
            total = tpu.cross_replica_sum(tf.reduce_mean(x) * replica_weight())
            return weight * total / (3 if tpu.num_replicas() == 2 else 1)

        def replica_weight():
            return 1.0 + tf.cast(tpu.replica_id(), tf.float32)

        (loss,) = replicated.rewrite(mean_of_all, [features["x"]])
        optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.25))
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = toy.make_estimator(tmp_path, model_fn)
    estimator.train(toy.input_fn, max_steps=2)
    assert estimator.get_variable_value("w") == 0.25
