"""Tests how replicas exchange tensors, against numpy, and how cores share an update."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy
from compiled_steps import compiled
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.tpu.ops import tpu_ops

from bert_estimator import optimization, tpu
from bert_estimator.model_fns import update
from bert_estimator.optimization import WarmupPolynomialDecay
from bert_estimator.tpu import run_program
from bert_estimator.tpu.program import devices, exported_program
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.step.xla.step_graph import StepGraph
from tests.cluster.test_hosts import start_two

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
    results, _ = compiled(lowered, mesh)(state, [values(replicas).reshape(-1, SHAPE[1])])
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
on_2_and_4 = pytest.mark.parametrize("cores", [pytest.param(2, marks=pytest.mark.slow), 4])


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
        lambda x: tf.raw_ops.TPUReplicatedInput(inputs=[x, x, x]),
        "TPUReplicatedInput: 3 inputs for the 2 replicas",
    ),
    "TPUReplicatedInput of variables": (
        lambda x: tf.raw_ops.TPUReplicatedInput(
            inputs=[tf.Variable(0.0, use_resource=True).handle for _ in range(2)]
        ),
        "TPUReplicatedInput: the inputs are handles of variables.*get_replicated_var_handle",
    ),
    "TPUReplicatedOutput": (
        lambda x: tf.raw_ops.TPUReplicatedOutput(input=x, num_replicas=2),
        r"TPUReplicatedOutput\).*bert_estimator\.tpu\.cross_replica_sum",
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


@pytest.mark.parametrize("groups", [[[0, 2], [1, 3]], [[0], [1]]])
def test_cross_shard_optimizer_in_groups(groups):
    """Each replica has the gradient x of its weight; each group applies the mean or the sum."""
    size, cores = len(groups[0]), sum(map(len, groups))
    x, cases = values(cores), []
    for reduction, share in ((tf.losses.Reduction.MEAN, size), (tf.losses.Reduction.SUM, 1)):

        def model(x, reduction=reduction):
            weight = tf.get_variable(reduction, SHAPE, initializer=tf.zeros_initializer())
            optimizer = tpu.CrossShardOptimizer(
                tf.train.GradientDescentOptimizer(-1.0), reduction, group_assignment=groups
            )
            with tf.control_dependencies([optimizer.minimize(tf.reduce_sum(weight * x))]):
                return weight.read_value()

        cases.append((model, summed(x, groups) / share))
    check(cases, cores)


def exchanging_model_fn(features, mode, params):
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
    toy.make_estimator(tmp_path, exchanging_model_fn, master=master).train(
        toy.input_fn, max_steps=1
    )
    weights = tf.train.load_variable(str(tmp_path), "w")
    cores = int(master[-1]) if master else 1
    # A batch of step 1 has 4 ones. The gradient is the sum over the replicas.
    received = sum(range(1, cores + 1)) * 4 // cores
    assert (-weights).tolist() == [4 * cores, received, 4 * cores, 4 * cores]


def test_a_keras_optimizer_applies_gradients_as_they_are(tmp_path, cores):
    """The gradient of step 1 is 1, the mean over the replicas; the optimizer must not sum it."""
    optimizer = pytest.importorskip("tf_keras").optimizers.legacy.SGD(1.0)

    def exchanging_model_fn(features, mode, params):
        weight = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(features["x"]) * weight
        mean = tpu.cross_replica_sum(tf.gradients(loss, weight)[0]) / tpu.num_replicas()
        with tf.control_dependencies([optimizer.apply_gradients([(mean, weight)])]):
            train_op = tf.train.get_global_step().assign_add(1)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    toy.make_estimator(tmp_path, exchanging_model_fn).train(toy.input_fn, max_steps=1)
    assert tf.train.load_variable(str(tmp_path), "w") == -1


def test_a_training_whose_only_sum_is_tensorflow_s(tmp_path):
    def exchanging_model_fn(features, mode, params):
        weight = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        total = raw_sum(tf.reduce_sum(features["x"]), [[0, 1]])
        updates = tf.group(weight.assign_add(total), tf.train.get_global_step().assign_add(1))
        return tpu.TPUEstimatorSpec(mode, loss=total, train_op=updates)

    toy.make_estimator(tmp_path, exchanging_model_fn, master="rehearse:2").train(
        toy.input_fn, max_steps=1
    )
    assert tf.train.load_variable(str(tmp_path), "w") == 4


WIDTH, OTHER, ROWS = 64, 65, 8
SCHEDULE = WarmupPolynomialDecay(0.01, 20, num_warmup_steps=2)


def model_fn(features, mode, params):
    """Two matrices, one of which can only be split by its rows, and a bias, which is too small."""
    normal = tf.random_normal_initializer
    first = tf.get_variable("net/first/kernel", [WIDTH, WIDTH], initializer=normal(0.1, seed=3))
    second = tf.get_variable("net/second/kernel", [WIDTH, OTHER], initializer=normal(0.1, seed=4))
    bias = tf.get_variable("net/second/bias", [OTHER], initializer=tf.zeros_initializer())
    values = tpu.num_replicas() * params["batch_size"] * OTHER
    step = tf.identity(tf.train.get_or_create_global_step())

    def make_loss_fn(step):
        def loss_fn(micro_features, first_row):
            hidden = tf.tanh(tf.matmul(micro_features["x"], first))
            return tf.nn.l2_loss(tf.matmul(hidden, second) + bias - 1.0) / values, {}

        return loss_fn

    def new_spec(**changes):
        rule = update.UpdateRule(**{**params["rule"], **changes})
        return rule.train_spec(make_loss_fn, {"x": tf.identity(features["x"])})

    return THEN[params["then"]](new_spec, step, first, second)


def averaged(first):
    """Assigns a moving average of a weight; returns the operation."""
    zeros = tf.zeros_initializer()
    with tf.variable_scope("", reuse=tf.AUTO_REUSE):
        average = tf.get_variable("average", [WIDTH, WIDTH], None, zeros, trainable=False)
    return average.assign(0.5 * average.read_value() + 0.5 * first.read_value())


def one_step(step, operation):
    """Returns the spec of a step whose updates are an operation."""
    with tf.control_dependencies([operation]):
        train_op = tf.train.get_global_step().assign(step + 1)
    return tpu.TPUEstimatorSpec(tpu.ModeKeys.TRAIN, loss=tf.zeros([]), train_op=train_op)


def then_averaged(new_spec, step, first, second):
    """Reads the whole weight after the update."""
    spec = new_spec()
    with tf.control_dependencies([spec.train_op]):
        return spec._replace(train_op=averaged(first))


def then_clipped(new_spec, step, first, second):
    """Writes to weights after the update."""
    spec = new_spec()
    with tf.control_dependencies([spec.train_op]):
        clipped = first.assign(tf.clip_by_value(first.read_value(), -0.1, 0.1))
    with tf.control_dependencies([clipped]):
        return spec._replace(train_op=second.assign_add(tf.ones_like(second)))


def then_written_by_another_name(new_spec, step, first, second):
    spec = new_spec()
    with tf.control_dependencies([spec.train_op]):
        handle = tf.identity(first.handle)
        written = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.ones_like(first))
    return spec._replace(train_op=written)


def doubled_before(new_spec, step, first, second):
    with tf.control_dependencies([first.assign(2.0 * first)]):
        return new_spec()


def updated_twice(new_spec, step, first, second):
    with tf.control_dependencies([new_spec().train_op]):
        again = new_spec(optimizer="lamb").train_op
    return one_step(step, again)


def updated_in_a_loop(new_spec, step, first, second):
    def body(number):
        with tf.control_dependencies([new_spec().train_op]):
            return number + 1

    return one_step(step, tf.while_loop(lambda number: number < 3, body, [tf.constant(0)]))


def updated_in_a_branch(new_spec, step, first, second):
    averaged(first)

    def branch():
        with tf.control_dependencies([new_spec().train_op]):
            return tf.group(averaged(first))

    return one_step(step, tf.cond(tf.equal(step % 2, 0), branch, tf.no_op))


def not_updated(new_spec, step, first, second):
    new_spec()
    return one_step(step, first.assign_add(tf.ones_like(first)))


THEN = {
    None: lambda new_spec, *_: new_spec(),
    **{
        function.__name__: function
        for function in (
            then_averaged,
            then_clipped,
            then_written_by_another_name,
            doubled_before,
            updated_twice,
            updated_in_a_loop,
            updated_in_a_branch,
            not_updated,
        )
    },
}


def input_fn(params):
    rows = np.random.RandomState(0).randn(ROWS, WIDTH).astype(np.float32)
    rows = tf.data.Dataset.from_tensor_slices({"x": rows}).repeat()
    batches, context = rows.batch(params["batch_size"], drop_remainder=True), params["context"]
    return batches.shard(context.num_hosts, context.current_host)


class SlotAtEachStep(tf.train.SessionRunHook):
    """Fetches a slot after each step."""

    def __init__(self):
        self.values = []

    def before_run(self, run_context):
        return tf.train.SessionRunArgs("net/first/kernel/adam_m/Read/ReadVariableOp:0")

    def after_run(self, run_context, run_values):
        self.values.append(run_values.results)


def make_estimator(directory, master, rule, loop_length=2, then=None):
    return tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(
            model_dir=str(directory), master=master, tpu_config=tpu.TPUConfig(loop_length)
        ),
        use_tpu=bool(master),
        train_batch_size=ROWS,
        params={"rule": rule, "then": then},
    )


def train(directory, master, rule, steps=(2, 5), hooks=(), loop_length=2, then=None):
    """Trains up to each number of steps in turn; returns the checkpoint's variables by name."""
    for step in steps:
        estimator = make_estimator(directory, master, rule, loop_length, then)
        estimator.train(input_fn, max_steps=step, hooks=hooks)
    reader = tf.train.load_checkpoint(str(directory))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_equal(found, expected, rtol=1e-3, atol=2e-5):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        value, own = np.float64(value), np.float64(found[name])
        np.testing.assert_allclose(own, value, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize(
    ("cores", "optimizer", "options"),
    [
        (2, "lamb", {}),
        pytest.param(4, "lamb", {"micro_batch_size": 1}, marks=pytest.mark.slow),
        *(
            pytest.param(2, name, {"rate_scale": lambda name: 0.5}, marks=pytest.mark.slow)
            for name in optimization.OPTIMIZERS
            if name != "lamb"
        ),
    ],
)
def test_cores_that_share_an_update_train_as_one_session(tmp_path, cores, optimizer, options):
    """The training on cores is ended and resumed, so the parts become whole and parts again."""
    rule = {"optimizer": optimizer, "schedule": SCHEDULE, **options}
    expected = train(tmp_path / "session", "", rule, steps=[5])
    assert_equal(train(tmp_path / "cores", f"rehearse:{cores}", rule), expected)


@pytest.mark.parametrize(
    "then",
    [
        name if name == "then_clipped" else pytest.param(name, marks=pytest.mark.slow)
        for name in THEN
        if name
    ],
)
def test_other_uses_of_a_weight_that_is_shared(tmp_path, then):
    """One core has the same order of reads and updates; a session does not in loops."""
    rule = {"optimizer": "lars", "schedule": WarmupPolynomialDecay(0.01, 20)}
    expected = train(tmp_path / "one", "rehearse:1", rule, steps=[4], then=then)
    assert_equal(train(tmp_path / "two", "rehearse:2", rule, [2, 4], then=then), expected)
    if then == "then_clipped":
        assert np.abs(expected["net/first/kernel"]).max() == np.float32(0.1)


@pytest.mark.slow
def test_first_moments_in_bfloat16(tmp_path):
    rule = {"optimizer": "lamb", "schedule": SCHEDULE}
    rule["optimizer_options"] = {"bfloat16_first_moments": True}
    expected = train(tmp_path / "session", "", rule, steps=[5])
    found = train(tmp_path / "cores", "rehearse:2", rule)
    assert found["net/first/kernel/adam_m"].dtype == expected["net/first/kernel/adam_m"].dtype
    assert_equal(found, expected, rtol=1e-2, atol=2e-5)


@pytest.mark.slow
def test_hooks_see_whole_slots_and_a_run_goes_on_with_another_number_of_cores(tmp_path):
    rule = {"optimizer": "adamw", "schedule": WarmupPolynomialDecay(0.01, 20)}
    seen, expected = SlotAtEachStep(), SlotAtEachStep()
    train(tmp_path / "one", "rehearse:1", rule, [4], [expected], 1)
    train(tmp_path / "cores", "rehearse:2", rule, [2], [seen], 1)
    train(tmp_path / "cores", "rehearse:4", rule, [3], [seen], 1)
    train(tmp_path / "cores", "rehearse:1", rule, [4], [seen], 1)
    np.testing.assert_allclose(seen.values, expected.values, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("cores", "num_shards"),
    [(2, 2), pytest.param(1, 1, marks=pytest.mark.slow)],
)
def test_an_exported_program(tmp_path, cores, num_shards):
    rule, losses = {"optimizer": "lamb", "schedule": SCHEDULE}, []
    master, directory = f"rehearse:{cores}", tmp_path / "program"
    train(tmp_path / "run", master, rule, steps=[2])
    estimator = make_estimator(tmp_path / "run", master, rule, loop_length=1)
    estimator.export_training_program(input_fn, str(directory))
    program = exported_program.load(str(directory))
    assert program.num_shards == num_shards
    found, *_ = run_program.run(program, devices.find(master), 3)
    listener = tpu.LogListener(lambda record: losses.append(record["loss"]))
    estimator.train(input_fn, steps=3, hooks=[listener])
    np.testing.assert_allclose(found[-1:], losses, rtol=1e-6)


# This trains on a host of TF_CONFIG.
PROGRAM = """
import sys
from tests.tpu.step.xla import test_update_shards
from bert_estimator.tpu.program.lowered_step import LoweredStep
init = LoweredStep.__init__
def noted(self, *values, **named):
    init(self, *values, **named)
    print("its shards:", self.num_shards)
LoweredStep.__init__ = noted
rule = {"optimizer": "lamb", "schedule": test_update_shards.SCHEDULE}
test_update_shards.train(sys.argv[1], "rehearse:4", rule, [3, 5])
"""


@pytest.mark.slow
def test_each_host_has_all_parts(tmp_path):
    for host in start_two(tmp_path / "hosts", 5, program=PROGRAM):
        out, err = host.communicate(timeout=240)
        assert host.returncode == 0, err
        assert {line for line in out.splitlines() if "its" in line} == {"its shards: 2"}
    rule = {"optimizer": "lamb", "schedule": SCHEDULE}
    expected = train(tmp_path / "alone", "", rule, [5])
    reader = tf.train.load_checkpoint(str(tmp_path / "hosts" / "model.ckpt-5"))
    names = reader.get_variable_to_shape_map()
    assert_equal({name: reader.get_tensor(name) for name in names}, expected)


@pytest.mark.parametrize(
    ("rule", "axes"),
    [
        (
            {"optimizer": "lamb", "micro_batch_size": 1},
            {"first/kernel": 0, "first/kernel/adam_m": 0, "second/bias/adam_m": None},
        ),
        ({"optimizer": "adafactor"}, {"first/kernel": None, "first/kernel/adafactor_row": None}),
    ],
)
def test_what_a_core_holds(tmp_path, rule, axes):
    rule |= {"schedule": SCHEDULE}
    estimator = tpu.TPUEstimator(
        model_fn,
        str(tmp_path),
        tpu.RunConfig(),
        train_batch_size=ROWS,
        params={"rule": rule, "then": None},
    )
    lowered = estimator.lower(input_fn, num_cores=8, num_hosts=2)
    assert lowered.num_shards == 4
    found = {variable.name: variable for variable in lowered.state}
    assert {name: found[f"net/{name}"].split_axis for name in axes} == axes
    assert found["net/first/kernel"].shape == (WIDTH, WIDTH)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ([1024, 1024], 0),
        ([30522, 1024], 1),  # the rows cannot be split evenly
        ([24, 1024], 1),  # 6 rows do not fill a tile, 256 columns fill two
        ([24, 1000], 0),  # neither makes whole tiles
        ([1001, 1001], None),
        ([1024], None),  # too small
        ([8192], 0),
        ([], None),
    ],
)
def test_the_axis_of_parts(shape, axis):
    with tf.Graph().as_default():
        step = StepGraph(4, num_shards=4)
        with step.building():
            assert tpu.update_shards().axis_of(tf.get_variable("variable", shape)) == axis


def test_a_piece_that_sums_over_elements_by_itself_gets_whole_gradients():
    optimizer = optimization.ChainOptimizer([optimization.Piece()], 1.0, name="Own")
    assert not optimizer.takes_parts
    assert optimization.create_optimizer("lamb", 0.1).takes_parts
    assert not optimization.create_optimizer("adafactor", 0.1).takes_parts
    with tf.Graph().as_default():
        part = optimization.Part(tf.zeros([2]), 0, None)
        with pytest.raises(ValueError, match=r"^Own: its pieces do not take parts"):
            optimizer.apply_gradients([(part, tf.get_variable("w", [4]))])


def test_one_replica_and_split_models_do_not_share():
    assert tpu.update_shards() is None
    with tf.Graph().as_default():
        assert StepGraph(1)._shards is None
        assert StepGraph(2, cores_per_replica=2)._shards is None
