"""What TF1 models are made of trains on devices, with the numbers of the session runtime.

Each core gets the same rows, so that what a model computes over a core's batch is defined alike.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tf_slim
import toy

from bert_estimator import tpu

pytestmark = pytest.mark.usefixtures("xla_runtime")

ROWS, STEPS = 4, 3


def input_fn(params):
    """Gives a new batch [4, 3] each step; its second half repeats the rows of its first half."""
    half = tf.constant(np.random.RandomState(0).normal(size=(ROWS // 2, 3)), tf.float32)
    step = params["context"].global_step
    return tf.data.Dataset.range(step, 1000).map(
        lambda k: {"x": tf.concat([half, half], 0) * (1 + tf.cast(k, tf.float32))}
    )


def batch_norm(x, training):
    mean = tf.get_variable("norm/moving_mean", [3], trainable=False)
    variance = tf.get_variable(
        "norm/moving_variance", [3], initializer=tf.ones_initializer(), trainable=False
    )
    offset = tf.get_variable("norm/beta", [3], initializer=tf.zeros_initializer())
    if training:
        own_mean, own_variance = tf.nn.moments(x, [0])
        x = tf.nn.batch_normalization(x, own_mean, own_variance, offset, None, 1e-3)
        for moving, own in ((mean, own_mean), (variance, own_variance)):
            update = moving.assign_sub((moving - tf.stop_gradient(own)) * 0.5)
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    else:
        x = tf.nn.batch_normalization(x, mean, variance, offset, None, 1e-3)
    return x @ tf.get_variable("dense", [3, 1])


def cond(x, training):
    step = tf.cast(tf.train.get_or_create_global_step(), tf.int32)
    a = tf.get_variable("a", [3, 1], initializer=tf.ones_initializer())
    b = tf.get_variable("b", [3, 1], initializer=tf.ones_initializer())
    return tf.cond(step % 2 > 0, lambda: x @ a, lambda: x @ (2 * b))


def while_loop(x, training):
    w = tf.get_variable("w", [3, 3], initializer=tf.ones_initializer())
    turns = tf.while_loop(
        lambda i, _: i < 3, lambda i, y: (i + 1, tf.tanh(y @ w)), (0, x), maximum_iterations=3
    )
    return tf.reduce_sum(turns[1], 1, keepdims=True)


def layers(x, training):
    weights = tf.get_variable("one", [3, 4], regularizer=tf_slim.l2_regularizer(1.0))
    x = tf.nn.relu(x @ weights)
    x = tf.nn.conv2d(x[:, None, :, None], tf.get_variable("conv", [1, 3, 1, 2]), 1, "SAME")
    x = tf.nn.max_pool2d(x, [1, 2], [1, 2], "SAME")
    return tf.reduce_sum(x, [1, 2, 3])[:, None]


def embedding(x, training):
    table = tf.get_variable("table", [5, 2], initializer=tf.ones_initializer())
    ids = tf.cast(tf.clip_by_value(x, 0, 4), tf.int32)
    return tf.reduce_sum(tf.nn.embedding_lookup(table, ids), [1, 2])[:, None]


NETWORKS = [batch_norm, cond, while_loop, layers, embedding]


class Cell:
    """A recurrent cell as `tf.nn.dynamic_rnn` takes it, that makes its variable in the loop."""

    state_size = output_size = 2

    def __call__(self, inputs, state, scope=None):
        w = tf.get_variable("w", [3, 2], initializer=tf.ones_initializer())
        state = tf.tanh(tf.concat([inputs, state], 1) @ w)
        return state, state

    def zero_state(self, batch_size, dtype):
        return tf.zeros([batch_size, 2], dtype)


def recurrent(x, training):
    outputs, _ = tf.nn.dynamic_rnn(Cell(), x[:, :, None], dtype=tf.float32)
    return tf.reduce_sum(outputs, [1, 2])[:, None]


def mapped(x, training):
    def row(value):
        return tf.reduce_sum(value * tf.get_variable("w", [3], initializer=tf.ones_initializer()))

    return tf.map_fn(row, x)[:, None]


def scanned(x, training):
    def turn(state, value):
        w = tf.get_variable("w", [1], initializer=tf.ones_initializer())
        return tf.tanh(state + value * w)

    return tf.scan(turn, tf.transpose(x), tf.zeros_like(x[:, 0]))[-1][:, None]


OPTIMIZERS = {
    "Adam": lambda: tf.train.AdamOptimizer(0.1),
    "RMSProp": lambda: tf.train.RMSPropOptimizer(0.1, momentum=0.5),
    "Adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "Ftrl": lambda: tf.train.FtrlOptimizer(0.1),
    "decayed": lambda: tf.train.GradientDescentOptimizer(
        tf.train.exponential_decay(0.1, tf.train.get_global_step(), 2, 0.5)
    ),
}
LOOPS = {network.__name__: network for network in (recurrent, mapped, scanned)}

# (network, optimizer) by name
MODELS = {
    **{f.__name__: (f, lambda: tf.train.MomentumOptimizer(0.1, 0.9)) for f in NETWORKS},
    **{name: (f, lambda: tf.train.MomentumOptimizer(0.01, 0.9)) for name, f in LOOPS.items()},
    **{name: (embedding, optimizer) for name, optimizer in OPTIMIZERS.items()},
}


def make_model_fn(models):
    """Fits all networks, each in a scope of its name, to 1 in one step, for the sake of compiling;
    with UPDATE_OPS and a moving average of all variables. Evaluation gives each one's loss."""

    def model_fn(features, mode, params):
        is_training, losses, updates = mode == tpu.ModeKeys.TRAIN, {}, []
        step = tf.train.get_global_step()
        for name, (network, optimizer) in models.items():
            with tf.variable_scope(name):
                y = network(features["x"], is_training)
                penalties = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES, f"{name}/")
                loss = tf.reduce_mean(tf.square(y - 1)) + 0.01 * tf.add_n(
                    [tf.zeros([]), *penalties]
                )
                losses[name] = loss
                if is_training:
                    first = tf.get_collection(tf.GraphKeys.UPDATE_OPS, f"{name}/")
                    with tf.control_dependencies(first):
                        update = tpu.CrossShardOptimizer(optimizer()).minimize(
                            loss, var_list=tf.trainable_variables(f"{name}/")
                        )
                    updates.append(update)
        loss = tf.add_n([*losses.values()])
        average = tf.train.ExponentialMovingAverage(0.5, step)
        if is_training:
            with tf.control_dependencies(updates), tf.control_dependencies([step.assign_add(1)]):
                averaged = average.apply(tf.trainable_variables())
            with tf.control_dependencies([averaged]):
                train_op = tf.identity(loss)  # a tensor, as tf.contrib.layers.optimize_loss has it
            return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

        def scaffold_fn():
            return tf.train.Scaffold(saver=tf.train.Saver(average.variables_to_restore()))

        def means(**values):
            return {name: tf.metrics.mean(value) for name, value in values.items()}

        metrics = means, {name: loss[None] for name, loss in losses.items()}
        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics, scaffold_fn=scaffold_fn)

    return model_fn


def outcome(folder, master, models):
    """Returns (the weights after training, the losses of their moving averages)."""
    estimator = toy.make_estimator(
        folder, make_model_fn(models), master=master, train_batch_size=ROWS,
        eval_batch_size=ROWS, tf_random_seed=1, iterations_per_loop=2,
    )  # fmt: skip
    estimator.train(input_fn, max_steps=STEPS)
    weights = {n: estimator.get_variable_value(n) for n in estimator.get_variable_names()}
    return weights, estimator.evaluate(input_fn, steps=1)


def outcomes(folder, models):
    """Returns what the models give on devices, and what they give in a session."""
    return outcome(folder / "devices", "rehearse:2", models), outcome(
        folder / "session", "", models
    )


def assert_same(outcomes, name):
    """A model has the same weights and the same loss on both runtimes."""
    (found, found_losses), (expected, expected_losses) = outcomes
    assert found.keys() == expected.keys()
    of_model = [variable for variable in expected if variable.startswith(f"{name}/")]
    assert of_model and found["global_step"] == expected["global_step"] == STEPS
    for variable in of_model:
        np.testing.assert_allclose(
            found[variable], expected[variable], rtol=1e-4, atol=1e-6, err_msg=variable
        )
    np.testing.assert_allclose(found_losses[name], expected_losses[name], rtol=1e-4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, xla_runtime):
    """What all models give: see `outcomes`."""
    return outcomes(tmp_path_factory.mktemp("models"), MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_networks_loops_that_make_variables_and_optimizers(trained, name):
    assert_same(trained, name)


def test_colocated_gradients_of_a_variable_used_twice(tmp_path):
    def tied(x, training):
        table = tf.get_variable("table", [5, 2], initializer=tf.ones_initializer())
        ids = tf.cast(tf.clip_by_value(x, 0, 4), tf.int32)
        return tf.reduce_sum(tf.gather(table, ids) @ table[:2], [1, 2])[:, None]

    class Colocated(tf.train.GradientDescentOptimizer):
        def compute_gradients(self, *arguments, **keywords):
            keywords["colocate_gradients_with_ops"] = True
            return super().compute_gradients(*arguments, **keywords)

    assert_same(outcomes(tmp_path, {"tied": (tied, lambda: Colocated(0.01))}), "tied")


def test_batch_norm_moves_its_averages(trained):
    for weights, _ in trained:
        assert np.abs(weights["batch_norm/norm/moving_mean"]).min() > 0
        assert "batch_norm/dense/ExponentialMovingAverage" in weights


def test_a_scaffold_fn_sees_the_collections(tmp_path):
    seen = {}

    def model_fn(features, mode, params):
        models = {"model": (embedding, lambda: tf.train.GradientDescentOptimizer(0.1))}
        spec = make_model_fn(models)(features, mode, params)
        tf.add_to_collection(tf.GraphKeys.MODEL_VARIABLES, tf.trainable_variables()[0])

        def scaffold_fn():
            for name in (tf.GraphKeys.MODEL_VARIABLES, tf.GraphKeys.MOVING_AVERAGE_VARIABLES):
                seen[name] = [variable.op.name for variable in tf.get_collection(name)]
            return tf.train.Scaffold()

        return spec._replace(scaffold_fn=scaffold_fn)

    estimator = toy.make_estimator(tmp_path, model_fn, master="rehearse:2", train_batch_size=ROWS)
    estimator.train(input_fn, max_steps=1)
    assert seen == {
        "model_variables": ["model/table"],
        "moving_average_variables": ["model/table"],
    }
