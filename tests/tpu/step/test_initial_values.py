"""Initial values that a model_fn gives as tensors, as TF1 programs do, on every runtime."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu

STEPS = 4


class WithSlots(tf.train.GradientDescentOptimizer):
    """Makes a slot whose initial value is a tensor."""

    def _create_slots(self, var_list):
        for variable in var_list:
            value = 0.5 + tf.random_normal(variable.shape)
            self._get_or_make_slot(variable, value, "start", self._name)


def variables(x):
    """Returns variables, made of tensors in each way that TF1 has."""
    outside = tf.random_normal([2])
    a = tf.get_variable("tensor", initializer=tf.random_normal([3]))
    tf.nn.dropout(tf.ones([4]), rate=0.5)  # takes a number of the graph's random operations
    return [
        a,
        tf.get_variable("callable", [3, 2]),
        tf.Variable(tf.truncated_normal([2], seed=5), name="own_seed"),
        tf.Variable([tf.constant(1.0), tf.random_uniform([])], name="list"),
        tf.Variable(lambda: tf.random_uniform([2]), name="function"),
        tf.Variable(lambda: outside, name="function_of_nothing"),
        tf.Variable(lambda: outside + tf.reduce_sum(outside), name="function_of_a_tensor"),
        tf.Variable(
            2 * tf.cond(tf.is_variable_initialized(a), a.read_value, lambda: a.initial_value),
            name="of_another_variable",
        ),
        tf.get_variable(
            "condition",
            initializer=tf.cond(tf.random_uniform([]) > 2, lambda: tf.zeros(2), lambda: tf.ones(2)),
        ),
        tf.get_variable("array", initializer=np.ones(2, np.float32)),
        tf.get_variable("number", initializer=2.0),
        tf.get_variable("of_a_shape", initializer=tf.zeros_like(x[:1])),
    ]


def model_fn(features, mode, params):
    weights = variables(features["x"])
    loss = tf.add_n([tf.reduce_sum(w * w) for w in weights]) + tf.reduce_mean(features["x"])
    train_op = None
    if mode == tpu.ModeKeys.TRAIN:
        optimizer = tpu.CrossShardOptimizer(WithSlots(0.125))
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    predictions = {"first": tf.zeros([params["batch_size"]]) + weights[0][0]}
    return tpu.TPUEstimatorSpec(mode, predictions, loss, train_op)


class Start(tf.train.SessionRunHook):
    """Notes the variables before the first step."""

    def after_create_session(self, session, coord):
        self.values = session.run({v.op.name: v for v in tf.global_variables()})


def make_estimator(folder, master, **keywords):
    return toy.make_estimator(
        folder, model_fn, master=master, tf_random_seed=3, predict_batch_size=4, **keywords
    )


def outcome(folder, master):
    """Returns the initial values, and what all verbs give, with a resume within the training."""
    estimator, start = make_estimator(folder, master), Start()
    estimator.train(toy.input_fn, max_steps=1, hooks=[start])
    estimator.train(toy.input_fn, max_steps=STEPS)
    weights = {n: estimator.get_variable_value(n) for n in estimator.get_variable_names()}
    loss = estimator.evaluate(toy.input_fn, steps=1)["loss"]
    return start.values, weights, loss, next(estimator.predict(toy.input_fn))["first"]


def test_tensors_as_initial_values(tmp_path, xla_runtime):
    expected = outcome(tmp_path / "session", "")
    found = outcome(tmp_path / "cores", "rehearse:2")
    assert found[0].keys() == expected[0].keys()
    for name, value in expected[0].items():
        np.testing.assert_array_equal(found[0][name], value, name)
    assert found[0]["condition"].tolist() == [1, 1]
    assert "tensor/GradientDescent" in found[0]
    np.testing.assert_array_equal(
        found[0]["of_another_variable"], 2 * found[0]["tensor"], "of_another_variable"
    )
    for name, value in expected[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(found[2:], expected[2:], rtol=1e-5)


@pytest.mark.parametrize("seed", [None, 3])
def test_variables_of_one_tensor_start_equal(tmp_path, rules, seed):
    """As networks and their targets do, whatever the tensor draws or computes."""

    def model_fn(features, mode, params):
        drawn = tf.random_normal([3])
        top, order = tf.nn.top_k(drawn, 2)
        number = tf.ensure_shape(tf.py_func(lambda: np.random.random(), [], tf.float64), [])
        made = [
            *(tf.Variable(drawn, name=name) for name in "ab"),
            *(tf.Variable(lambda: 2 * drawn, name=name) for name in "cd"),
            tf.Variable([drawn, drawn], name="both"),
            tf.Variable(top, name="top"),
            tf.Variable(tf.cast(order, tf.float32), name="order"),
            *(
                tf.Variable(tf.cast(number, tf.float32), name=name, trainable=False)
                for name in "pq"
            ),
            tf.Variable(tf.random_normal([3]), name="other"),
        ]
        loss = tf.add_n([tf.reduce_sum(v * 0) for v in made]) + tf.reduce_mean(features["x"])
        optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.125))
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=optimizer.minimize(loss, tf.train.get_global_step())
        )

    start = Start()
    estimator = toy.make_estimator(tmp_path, model_fn, tf_random_seed=seed, **rules)
    estimator.train(toy.input_fn, max_steps=1, hooks=[start])
    values = start.values
    drawn = values["a"]
    for name, expected in {
        "b": drawn,
        "c": 2 * drawn,
        "d": 2 * drawn,
        "both": [drawn, drawn],
        "top": np.sort(drawn)[:0:-1],
        "order": np.argsort(drawn)[:0:-1],
        "q": values["p"],
    }.items():
        np.testing.assert_array_equal(values[name], expected, name)
    assert not np.array_equal(values["other"], drawn)


def test_a_warm_start_replaces_them(tmp_path, cores):
    make_estimator(tmp_path / "first", toy.MASTER).train(toy.input_fn, max_steps=1)
    estimator, start = (
        make_estimator(tmp_path / "next", toy.MASTER, warm_start_from=str(tmp_path / "first")),
        Start(),
    )
    estimator.train(toy.input_fn, max_steps=1, hooks=[start])
    for name in ("tensor", "condition", "function_of_nothing"):
        value = tf.train.load_variable(str(tmp_path / "first"), name)
        np.testing.assert_array_equal(start.values[name], value, name)


@pytest.mark.parametrize(
    "value_of",
    [lambda x: 2 * x[0], lambda x: lambda: tf.reduce_sum(x)],
    ids=["tensor", "function"],
)
def test_an_initial_value_that_depends_on_a_batch(tmp_path, cores, value_of):
    def model_fn(features, mode, params):
        weight = tf.Variable(value_of(features["x"]), name="first_batch")
        optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.125))
        train_op = optimizer.minimize(weight**2, tf.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=weight**2, train_op=train_op)

    with pytest.raises(ValueError, match="initial value of the variable first_batch depends on a"):
        toy.make_estimator(tmp_path, model_fn).train(toy.input_fn, max_steps=1)


@pytest.mark.parametrize("where", ["model_fn", "scaffold_fn"])
def test_init_from_checkpoint(tmp_path, rules, where):
    """On a core, TensorFlow's function cannot be called in the model_fn itself."""
    toy.make_estimator(tmp_path / "first", **rules).train(toy.input_fn, max_steps=3)

    def restore():
        tf.train.init_from_checkpoint(str(tmp_path / "first"), {"w": "w"})
        return tf.train.Scaffold()

    def fields(features, loss):
        if where == "model_fn":
            restore()
            return {}
        return {"scaffold_fn": restore}

    estimator = toy.make_estimator(tmp_path / "next", toy.make_model_fn(fields), **rules)
    if where == "model_fn" and rules.get("master"):
        with pytest.raises(ValueError, match=r"gave the variable w another.*scaffold_fn"):
            estimator.train(toy.input_fn, max_steps=1)
    else:
        estimator.train(toy.input_fn, max_steps=1)
        assert estimator.get_variable_value("w") == 4
