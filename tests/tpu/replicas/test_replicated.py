"""`tf.tpu.rewrite` and its kin in a script's own session: what upstream's functions would give."""

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
        inputs = (lambda x: [[x]]) if call == "replicate" else (lambda x: [x])
        expected = outcome(getattr(tf.tpu, call), computation, inputs)
        assert outcome(getattr(replicated, call), computation, inputs) == expected


@pytest.mark.parametrize("name", ["tensor", "none", "list", "operation", "tensor_and_operation"])
@pytest.mark.parametrize("call", ["shard", "batch_parallel"])
def test_one_shard_has_upstream_s_form(call, name):
    arguments = returns(OUTPUTS[name]), lambda x: [x]
    expected = outcome(getattr(tf.tpu, call), *arguments)
    assert outcome(getattr(replicated, call), *arguments) == expected


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
    ("call", "words"),
    [
        (lambda: replicated.rewrite(tf.abs, [1.0], infeed_queue=3), "infeed_queue is not supp"),
        (lambda: replicated.replicate(tf.abs, [[1.0]], maximum_shapes=3), "maximum_shapes is not"),
        (lambda: replicated.replicate(tf.abs, [[1.0], [2.0]]), "replicate of 2 replicas.*TPUEst"),
        (lambda: replicated.replicate(tf.abs, []), "replicate of 0 replicas"),
        (lambda: replicated.shard(tf.abs, [[1.0, 2.0]], 2), "shard of 2 replicas"),
        (lambda: replicated.batch_parallel(tf.abs, [[1.0, 2.0]], 2), "shard of 2 replicas"),
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
