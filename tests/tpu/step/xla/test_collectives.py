"""Tests each way in which a model talks across replicas, on 2 and 4 cores, against numpy."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.tpu.ops import tpu_ops

from bert_estimator import tpu
from bert_estimator.tpu.program import devices
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.step.xla.step_graph import StepGraph

SHAPE = [4, 4]  # of one replica's input


def values(cores):
    """Returns the inputs of all replicas, float32 [cores, *SHAPE]; no two numbers are equal."""
    return np.arange(cores * 16, dtype=np.float32).reshape(cores, *SHAPE)


def on_cores(models, cores, cores_per_replica=1):
    """Returns for each model, a function of x, its results on all replicas: [replicas, ...]."""
    with tf.Graph().as_default():
        replicas = cores // cores_per_replica
        step = StepGraph(replicas, cores_per_replica)
        x = step.placeholder(tf.float32, SHAPE)
        with step.building():
            outputs = [tf.convert_to_tensor(model(x))[tf.newaxis] for model in models]
        lowered = step.lower(outputs, None)
    mesh = CoreMesh(devices.find(f"rehearse:{cores}"), cores_per_replica)
    state = [np.zeros(variable.shape, variable.dtype) for variable in lowered.state]
    results, _ = lowered.compile(mesh)(state, [values(replicas).reshape(-1, SHAPE[1])])
    return [np.asarray(result) for result in results]


def check(cases, cores, cores_per_replica=1):
    """Checks a list of pairs of a model and what it gives on all replicas, [replicas, ...]."""
    results = on_cores([model for model, _ in cases], cores, cores_per_replica)
    for result, (_, want) in zip(results, cases, strict=True):
        assert np.array_equal(result, want)


def summed(x, groups):
    """Returns what replicas get whose inputs x [cores, ...] are summed in groups."""
    result = np.zeros_like(x)
    for group in groups:
        result[group] = x[group].sum(0)
    return result


def permuted(x, pairs):
    result = np.zeros_like(x)
    for sends, receives in pairs:
        result[receives] = x[sends]
    return result


def exchanged(x, concatenated, split, groups):
    """Returns what replicas get whose inputs are split along an axis of theirs and exchanged."""
    result = [None] * len(x)
    for group in groups:
        parts = [np.split(x[replica], len(group), split) for replica in group]
        for place, replica in enumerate(group):
            result[replica] = np.concatenate([own[place] for own in parts], concatenated)
    return np.stack(result)


def groups_of(cores):
    """Returns groups of replicas, by names: all, neighbours, strangers, each alone."""
    return {
        "all": [list(range(cores))],
        "neighbours": [[i, i + 1] for i in range(0, cores, 2)],
        "strangers": [[i, i + cores // 2] for i in range(cores // 2)],
        "alone": [[i] for i in range(cores)],
    }


def raw_sum(x, group_assignment):
    return tf.raw_ops.CrossReplicaSum(input=x, group_assignment=group_assignment)


def squared_gradient(function, x):
    """Returns the gradient of the sum over all replicas of function(x) ** 2 / 2."""
    return tf.gradients(tf.reduce_sum(tf.square(function(x)) / 2), x)[0]


def taped_gradient(function, x):
    with tf.compat.v2.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.square(function(x)) / 2)
    return tape.gradient(loss, x)


def in_condition(function, x):
    return tf.cond(tf.reduce_sum(x) > -1, lambda: function(x), lambda: tf.zeros_like(x))


def in_loop(function, x):
    return tf.while_loop(lambda i, _: i < 1, lambda i, y: (i + 1, function(y)), (0, x))[1]


def in_function(function, x):
    return tf.compat.v2.function(function)(x)


# How a function is used -> function of (function, x) that uses it.
USES = {
    "straight": lambda function, x: function(x),
    "condition": in_condition,
    "loop": in_loop,
    "function": in_function,
}

pytestmark = pytest.mark.usefixtures("xla_runtime")
on_2_and_4 = pytest.mark.parametrize("cores", [2, 4])


@on_2_and_4
def test_sums_in_groups_and_their_gradients(cores):
    cases = [(tpu_ops.cross_replica_sum, summed(values(cores), groups_of(cores)["all"]))]
    for groups in groups_of(cores).values():
        total = summed(values(cores), groups)
        for function in (tpu.cross_replica_sum, tpu_ops.cross_replica_sum, raw_sum):
            sum_up = functools.partial(function, group_assignment=groups)
            cases += [
                (sum_up, total),
                (functools.partial(squared_gradient, sum_up), summed(total, groups)),
            ]
    check(cases, cores)


@on_2_and_4
@pytest.mark.parametrize("use", USES)
def test_each_way_to_use_an_exchange(cores, use):
    groups, x = groups_of(cores)["strangers"], values(cores)
    ring = [[i, (i + 1) % cores] for i in range(cores)]
    cases = [
        (lambda x: raw_sum(x, groups), summed(x, groups)),
        (lambda x: tpu_ops.collective_permute(x, ring), permuted(x, ring)),
        (lambda x: tpu_ops.all_to_all(x, 0, 0, cores), exchanged(x, 0, 0, [range(cores)])),
        (lambda x: x + tf.cast(xla.replica_id(), tf.float32), x + np.arange(cores)[:, None, None]),
    ]
    check([(functools.partial(USES[use], function), want) for function, want in cases], cores)


@on_2_and_4
@pytest.mark.parametrize("use", USES)
def test_gradients_of_exchanges(cores, use):
    """The gradients of all but the sum give each replica its own x again, if it was sent."""
    groups, x = groups_of(cores)["strangers"], values(cores)
    pairs = [[i, i + 1] for i in range(cores - 1)]
    exchanges = [
        (lambda x: raw_sum(x, groups), summed(summed(x, groups), groups)),
        (
            lambda x: tpu_ops.collective_permute(x, pairs),
            np.where(np.arange(cores)[:, None, None] < cores - 1, x, 0),
        ),
        (lambda x: tf.reshape(tpu_ops.all_to_all(x, 0, 1, 2, groups), SHAPE), x),
    ]
    cases = []
    for function, want in exchanges:
        used = functools.partial(USES[use], function)
        cases += [
            (functools.partial(squared_gradient, used), want),
            (functools.partial(taped_gradient, used), want),
        ]
    check(cases, cores)


@on_2_and_4
def test_all_to_all(cores):
    cases = [
        (
            lambda x, axes=axes, groups=groups: tpu_ops.all_to_all(
                x, *axes, len(groups[0]), groups
            ),
            exchanged(values(cores), *axes, groups),
        )
        for axes in [(0, 0), (0, 1), (1, 0), (1, 1)]
        for groups in groups_of(cores).values()
    ]
    check(cases, cores)


@on_2_and_4
def test_collective_permute(cores):
    cases = [
        (
            lambda x, pairs=pairs: tpu_ops.collective_permute(x, np.reshape(pairs, [-1, 2])),
            permuted(values(cores), pairs),
        )
        for pairs in ([], [[0, 1]], [[1, 0], [0, 1]], [[1, 1]])
    ]
    check(cases, cores)


@on_2_and_4
def test_the_concatenation_over_replicas_of_simclr(cores):
    def concatenated(x):
        number = tpu.num_replicas()
        scattered = tf.scatter_nd([[xla.replica_id()]], [x], [number, *SHAPE])
        return tf.reshape(tpu_ops.cross_replica_sum(scattered), [-1, SHAPE[1]])

    check([(concatenated, [values(cores).reshape(-1, SHAPE[1])] * cores)], cores)


@on_2_and_4
def test_the_number_of_a_replica_context(cores):
    def with_number(x):
        return x + tf.cast(context().replica_id_in_sync_group, x.dtype)

    want = values(cores) + np.arange(cores)[:, None, None]
    check([(functools.partial(use, with_number), want) for use in USES.values()], cores)


def test_replicas_of_two_cores():
    cases = [
        (lambda x: raw_sum(x, [[0, 1]]), summed(values(2), [[0, 1]])),
        (lambda x: raw_sum(x, [[0], [1]]), values(2)),
        (lambda x: tf.cast(xla.replica_id(), tf.float32) + x, values(2) + [[[0]], [[1]]]),
    ]
    check(cases, 4, cores_per_replica=2)
    with pytest.raises(ValueError, match=r"collective_permute.*num_cores_per_replica=2"):
        on_cores([lambda x: tpu_ops.collective_permute(x, [[0, 1]])], 4, cores_per_replica=2)


def context():
    return tf.distribute.get_replica_context()


REFUSED = {
    "groups that lack a replica": (
        lambda x: raw_sum(x, [[0]]),
        r"group_assignment=\[\[0\]\].*2 replicas, 0 to 1",
    ),
    "groups that are computed": (
        lambda x: raw_sum(x, tf.cast(x[:1, :2], tf.int32)),
        "group_assignment must be a constant",
    ),
    "a replica that receives twice": (
        lambda x: tpu_ops.collective_permute(x, [[0, 1], [1, 1]]),
        "receives at most once",
    ),
    "a replica that does not exist": (
        lambda x: tpu_ops.collective_permute(x, [[0, 2]]),
        "replicas 0 to 1",
    ),
    "an axis that cannot be split": (
        lambda x: tpu_ops.all_to_all(x[:3], 0, 0, 2),
        "split_count=2.*axis 0.*3",
    ),
    "all_reduce": (
        lambda x: context().all_reduce(tf.distribute.ReduceOp.SUM, x),
        r"all_reduce.*2 replicas.*bert_estimator\.tpu\.cross_replica_sum",
    ),
    "all_gather": (
        lambda x: context().all_gather(x, 0),
        r"all_gather.*2 replicas.*bert_estimator\.tpu\.cross_replica_sum",
    ),
    "CollectiveReduce": (
        lambda x: tf.raw_ops.CollectiveReduce(
            input=x, group_size=2, group_key=1, instance_key=1, merge_op="Add", final_op="Id",
            subdiv_offsets=[0],
        ),
        r"CollectiveReduce\).*bert_estimator\.tpu\.cross_replica_sum",
    ),
    "NcclAllReduce": (
        lambda x: tf.raw_ops.NcclAllReduce(
            input=x, reduction="sum", num_devices=2, shared_name="c"
        ),
        r"NcclAllReduce\).*bert_estimator\.tpu\.cross_replica_sum",
    ),
    "TPUReplicatedInput": (
        lambda x: tf.raw_ops.TPUReplicatedInput(inputs=[x, x]),
        r"TPUReplicatedInput\).*bert_estimator\.tpu\.cross_replica_sum",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    model, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        on_cores([model], 2)
    assert context().replica_id_in_sync_group == 0  # as before


def test_an_imported_graph_is_refused():
    with tf.Graph().as_default() as graph:
        raw_sum(tf.ones(SHAPE), [[0, 1]])
    imported = graph.as_graph_def()

    def model(x):
        (total,) = tf.import_graph_def(imported, return_elements=["CrossReplicaSum:0"], name="old")
        return total

    with pytest.raises(
        RuntimeError, match=r"old/CrossReplicaSum .*bert_estimator\.tpu\.cross_replica_sum"
    ):
        on_cores([model], 2)


def test_a_function_that_was_traced_before_is_refused():
    function = tf.compat.v2.function(lambda x: x + tf.cast(xla.replica_id(), x.dtype))
    with tf.Graph().as_default():
        function = function.get_concrete_function(tf.TensorSpec(SHAPE))
    with pytest.raises(RuntimeError, match=r"XlaReplicaId.*bert_estimator\.tpu\..*replica_id"):
        on_cores([function], 2)


def test_cross_shard_optimizer_in_groups():
    """Each replica has the gradient x of its weight; each group applies the mean or the sum."""
    groups, x = [[0, 2], [1, 3]], values(4)
    cases = []
    for reduction, share in ((tf.losses.Reduction.MEAN, 2), (tf.losses.Reduction.SUM, 1)):

        def model(x, reduction=reduction):
            weight = tf.get_variable(reduction, SHAPE, initializer=tf.zeros_initializer())
            optimizer = tpu.CrossShardOptimizer(
                tf.train.GradientDescentOptimizer(-1.0), reduction, group_assignment=groups
            )
            with tf.control_dependencies([optimizer.minimize(tf.reduce_sum(weight * x))]):
                return weight.read_value()

        cases.append((model, summed(x, groups) / share))
    check(cases, 4)


def model_fn(features, mode, params):
    x = features["x"]
    everyone = [list(range(tpu.num_replicas()))]
    ring = [[i, (i + 1) % tpu.num_replicas()] for i in everyone[0]]
    summed = tf.reduce_sum(tpu_ops.cross_replica_sum(x))
    received = tpu_ops.collective_permute(x * tf.cast(xla.replica_id() + 1, x.dtype), ring)
    rows = tf.tile(x[:1, tf.newaxis], [4, 1])
    exchanged = tpu_ops.all_to_all(rows, 0, 0, tpu.num_replicas(), everyone)
    gradient = taped_gradient(tpu_ops.cross_replica_sum, x) / tpu.num_replicas()
    weight = tf.get_variable("w", [4], initializer=tf.zeros_initializer())
    numbers = tf.stack([summed, *map(tf.reduce_sum, (received, exchanged, gradient))])
    loss = tf.reduce_sum(weight * numbers)
    optimizer = tpu.CrossShardOptimizer(
        tf.train.GradientDescentOptimizer(1.0), tf.losses.Reduction.SUM, group_assignment=everyone
    )
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


@pytest.mark.parametrize("master", ["", "rehearse:2", "rehearse:4"])
def test_a_training_on_each_runtime(tmp_path, master):
    toy.make_estimator(tmp_path, model_fn, master=master).train(toy.input_fn, max_steps=1)
    weights = tf.train.load_variable(str(tmp_path), "w")
    cores = int(master[-1]) if master else 1
    # A batch of step 1 has 4 ones. The gradient is the sum over the replicas.
    received = sum(range(1, cores + 1)) * 4 // cores
    assert (-weights).tolist() == [4 * cores, received, 4 * cores, 4 * cores]


def test_a_keras_optimizer_applies_gradients_as_they_are(tmp_path, cores):
    """The gradient of step 1 is 1, the mean over the replicas; the optimizer must not sum it."""
    optimizer = pytest.importorskip("tf_keras").optimizers.legacy.SGD(1.0)

    def model_fn(features, mode, params):
        weight = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(features["x"]) * weight
        mean = tpu.cross_replica_sum(tf.gradients(loss, weight)[0]) / tpu.num_replicas()
        with tf.control_dependencies([optimizer.apply_gradients([(mean, weight)])]):
            train_op = tf.train.get_global_step().assign_add(1)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    toy.make_estimator(tmp_path, model_fn).train(toy.input_fn, max_steps=1)
    assert tf.train.load_variable(str(tmp_path), "w") == -1


def test_a_training_whose_only_sum_is_tensorflow_s(tmp_path):
    def model_fn(features, mode, params):
        weight = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        total = raw_sum(tf.reduce_sum(features["x"]), [[0, 1]])
        updates = tf.group(weight.assign_add(total), tf.train.get_global_step().assign_add(1))
        return tpu.TPUEstimatorSpec(mode, loss=total, train_op=updates)

    toy.make_estimator(tmp_path, model_fn, master="rehearse:2").train(toy.input_fn, max_steps=1)
    assert tf.train.load_variable(str(tmp_path), "w") == 4
