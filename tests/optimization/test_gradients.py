"""Micro-batches, whose sum equals the whole; dense gradients; clipping by the global norm."""

import numpy as np
import optimizer_steps
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from bert_estimator import precision
from bert_estimator.layers.dropout import Dropout
from bert_estimator.optimization import gradients
from bert_estimator.optimization.gradients import accumulate, clip_by_global_norm, to_dense_float32
from bert_estimator.optimization.optimizers import LAMBOptimizer

BATCH = 8
RANDOM = np.random.RandomState(0)
FEATURES = {
    "inputs": np.float32(RANDOM.standard_normal([BATCH, 3])),
    "ids": np.int32([4, 0, 2, 2, 4, 1, 0, 4]),
    "targets": np.float32(RANDOM.standard_normal([BATCH, 2])),
    "weights": np.float32([1.0, 0.0, 0.5, 3.0, 1.0, 0.25, 0.0, 2.0]),
}


INITIAL = {
    "kernel": np.float32(RANDOM.standard_normal([3, 4])),
    "words": np.float32(RANDOM.standard_normal([5, 4])),
    "dense": np.float32(RANDOM.standard_normal([4, 2])),
}


def network(features, first_row):
    """Builds two layers and an embedding, in the style of TF1 scripts; returns [B, 2] outputs."""
    del first_row
    with tf.variable_scope("net"):
        kernel = tf.get_variable("kernel", initializer=INITIAL["kernel"])
        hidden = tf.tanh(tf.matmul(features["inputs"], kernel))
        words = tf.get_variable("words", initializer=INITIAL["words"])
        hidden = tf.tanh(hidden + tf.gather(words, features["ids"]))
        with tf.variable_scope(None, default_name="dense"):
            kernel = tf.get_variable("kernel", initializer=INITIAL["dense"])
            bias = tf.get_variable("bias", [2], initializer=tf.zeros_initializer())
        tf.get_variable("unused", [2], initializer=tf.zeros_initializer())
    return tf.matmul(hidden, kernel) + bias


def make_loss_fn(all_features, build=network):
    """Returns a loss_fn: weighted squares over the sum of the whole batch's weights."""
    normaliser = tf.reduce_sum(all_features["weights"])

    def loss_fn(features, first_row):
        errors = tf.square(build(features, first_row) - features["targets"])
        weights = features["weights"]
        share = tf.reduce_sum(weights[:, None] * errors) / normaliser
        outputs = {
            "weight": tf.reduce_sum(weights),
            "words": tf.reduce_sum(tf.one_hot(features["ids"], 5, dtype=tf.int32), axis=0),
            "rows": tf.reduce_sum(first_row + tf.range(tf.shape(weights)[0])),
        }
        return share, outputs

    return loss_fn


def train(micro_batch_size, build=network, steps=3):
    """Trains with LAMB; returns (loss, outputs, gradients) of the first step, and all variables."""
    with tf.Graph().as_default(), tf.Session() as session:
        features = {name: tf.constant(value) for name, value in FEATURES.items()}
        loss, outputs, pairs = accumulate(make_loss_fn(features, build), features, micro_batch_size)
        gradients, variables = zip(*pairs, strict=True)
        clipped, _ = clip_by_global_norm(gradients, 1.0)
        optimizer = LAMBOptimizer(0.01)
        train_op = optimizer.apply_gradients(zip(clipped, variables, strict=True))
        session.run(tf.global_variables_initializer())
        by_name = {v.name: g for g, v in pairs if g is not None}
        first = session.run((loss, outputs, by_name))
        for _ in range(steps):
            session.run(train_op)
        return first, session.run({v.name: v for v in tf.global_variables()})


def assert_same(found, expected, rtol=1e-6):
    """Compares dicts of arrays, to `rtol` of each array's largest element."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        atol = rtol * np.abs(value).max()
        np.testing.assert_allclose(found[name], value, rtol=0, atol=atol, err_msg=name)


@pytest.fixture(scope="module")
def whole_batch():
    """What `train` returns without micro-batches."""
    return train(None)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("micro_batch_size", [1, 2, 4])
def test_equal_one_batch(whole_batch, micro_batch_size, version):
    (loss, outputs, gradients), variables = whole_batch
    with optimizer_steps.control_flow(version):
        (split_loss, split_outputs, split_gradients), split_variables = train(micro_batch_size)
    assert split_loss == pytest.approx(loss, rel=1e-6)
    assert list(split_outputs) == list(outputs)
    for name in outputs:
        np.testing.assert_array_equal(split_outputs[name], outputs[name])
    assert_same(split_gradients, gradients)
    assert_same(split_variables, variables)


def twin():
    """Returns the loss of `make_loss_fn(FEATURES)` and its gradients by name, in float64."""
    f = {name: np.float64(FEATURES[name]) for name in ("inputs", "targets", "weights")}
    kernel, words, dense = (np.float64(INITIAL[name]) for name in ("kernel", "words", "dense"))
    first = np.tanh(f["inputs"] @ kernel)
    second = np.tanh(first + words[FEATURES["ids"]])
    errors = second @ dense - f["targets"]
    shares = f["weights"][:, None] / f["weights"].sum()
    d_outputs = 2 * shares * errors
    d_second = (d_outputs @ dense.T) * (1 - second**2)
    d_words = np.zeros_like(words)
    np.add.at(d_words, FEATURES["ids"], d_second)
    gradients = {
        "net/kernel:0": f["inputs"].T @ (d_second * (1 - first**2)),
        "net/words:0": d_words,
        "net/dense/kernel:0": second.T @ d_outputs,
        "net/dense/bias:0": d_outputs.sum(axis=0),
    }
    return np.sum(shares * errors**2), gradients


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_loss_and_gradients_equal_their_twin(micro_batch_size):
    (loss, _, gradients), _ = train(micro_batch_size, steps=0)
    expected_loss, expected_gradients = twin()
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert_same(gradients, expected_gradients)


@pytest.mark.parametrize("micro_batch_size", [None, BATCH, 2 * BATCH])
def test_one_micro_batch_is_the_plain_graph(micro_batch_size):
    with tf.Graph().as_default() as graph:
        features = {name: tf.constant(value) for name, value in FEATURES.items()}
        seen = []

        def loss_fn(micro, first_row):
            seen.append(micro)
            return make_loss_fn(features)(micro, first_row)

        accumulate(loss_fn, features, micro_batch_size)
        assert seen == [features]
        assert not {"While", "StatelessWhile", "Enter"} & {op.type for op in graph.get_operations()}


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_graph_does_not_grow_with_the_number_of_micro_batches(version):
    def count_nodes(micro_batch_size):
        with tf.Graph().as_default() as graph:
            features = {
                name: tf.tile(tf.constant(v), [8] + [1] * (v.ndim - 1))
                for name, v in FEATURES.items()
            }
            accumulate(make_loss_fn(features), features, micro_batch_size)
            definition = graph.as_graph_def()
            functions = sum(len(f.node_def) for f in definition.library.function)
            return len(definition.node) + functions

    with optimizer_steps.control_flow(version):
        assert count_nodes(32) == count_nodes(2)


def test_micro_batches_run_one_after_the_other():
    """Otherwise the activations of several micro-batches would be alive at once."""
    with tf.Graph().as_default() as graph:
        features = {name: tf.constant(value) for name, value in FEATURES.items()}
        accumulate(make_loss_fn(features), features, 2)
        (loop,) = [op for op in graph.get_operations() if op.type in ("While", "StatelessWhile")]
        assert loop.get_attr("parallel_iterations") == 1


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_variables_are_created_once_with_their_plain_names(micro_batch_size):
    with tf.Graph().as_default() as graph:
        features = {name: tf.constant(value) for name, value in FEATURES.items()}
        _, _, pairs = accumulate(make_loss_fn(features), features, micro_batch_size)
        names = [
            "net/kernel:0", "net/words:0",
            "net/dense/kernel:0", "net/dense/bias:0", "net/unused:0",
        ]  # fmt: skip
        assert [v.name for _, v in pairs] == names
        assert [v.name for v in tf.trainable_variables()] == names
        assert [v.name for v in tf.global_variables()] == names
        assert all(v.graph is graph for v in tf.global_variables())
        with tf.variable_scope("net", reuse=True):
            assert tf.get_variable("unused", [2]) is tf.global_variables()[-1]


def test_only_the_given_variables_are_differentiated_by():
    with tf.Graph().as_default():
        with tf.variable_scope("net"):
            words = tf.get_variable("words", [5, 4])
        features = {name: tf.constant(value) for name, value in FEATURES.items()}
        with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
            _, _, pairs = accumulate(make_loss_fn(features), features, 2, variables=[words])
        ((gradient, variable),) = pairs
        assert variable is words
        assert gradient.shape.as_list() == [5, 4]


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_a_function_of_names_says_which_variables_are_differentiated_by(micro_batch_size):
    with tf.Graph().as_default():
        features = {name: tf.constant(value) for name, value in FEATURES.items()}
        _, _, pairs = accumulate(
            make_loss_fn(features), features, micro_batch_size, lambda name: name == "net/words"
        )
        assert [variable.op.name for _, variable in pairs] == ["net/words"]
        assert len(tf.trainable_variables()) == 5


def test_reuses_variables_under_auto_reuse():
    with tf.Graph().as_default(), tf.variable_scope("", reuse=tf.AUTO_REUSE):
        features = {name: tf.constant(value) for name, value in FEATURES.items()}
        accumulate(make_loss_fn(features), features, 2)
        accumulate(make_loss_fn(features), features, 4)
        assert len(tf.global_variables()) == 5


def test_a_name_that_is_taken_is_still_an_error():
    with tf.Graph().as_default():
        features = {name: tf.constant(value) for name, value in FEATURES.items()}
        accumulate(make_loss_fn(features), features, 2)
        with pytest.raises(ValueError, match="net/kernel already exists"):
            accumulate(make_loss_fn(features), features, 2)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_variables_of_the_old_kind_work_too(whole_batch, version):
    """Scripts that call disable_v2_behavior() have reference variables."""
    (loss, _, gradients), _ = whole_batch
    with optimizer_steps.control_flow(version), tf.Graph().as_default(), tf.Session() as session:
        with tf.variable_scope("", use_resource=False):
            features = {name: tf.constant(value) for name, value in FEATURES.items()}
            split_loss, _, pairs = accumulate(make_loss_fn(features), features, 2)
        session.run(tf.global_variables_initializer())
        assert session.run(split_loss) == pytest.approx(loss, rel=1e-6)
        assert_same(session.run({v.name: g for g, v in pairs if g is not None}), gradients)


def test_initial_values_follow_the_graphs_seed():
    def initial(seed):
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(seed)
            features = {name: tf.constant(value) for name, value in FEATURES.items()}

            def loss_fn(micro, first_row):
                del first_row
                kernel = tf.get_variable("kernel", [3, 2])
                return tf.reduce_sum(tf.matmul(micro["inputs"], kernel)), {}

            accumulate(loss_fn, features, 2)
            session.run(tf.global_variables_initializer())
            return session.run(tf.global_variables()[0])

    np.testing.assert_array_equal(initial(1), initial(1))
    assert np.abs(initial(1) - initial(2)).max() > 0.01


def with_dropout(features, first_row):
    """Builds the network and drops out its outputs by the row's index in the batch."""
    dropout = Dropout(seed=1, step=7, first_row=first_row)
    return dropout(network(features, first_row), 0.5)


def test_dropout_by_row_equals_the_whole_batchs_dropout(whole_batch):
    (loss, _, gradients), variables = train(None, with_dropout)
    (split_loss, _, split_gradients), split_variables = train(2, with_dropout)
    (without, _, _), _ = whole_batch
    assert split_loss == pytest.approx(loss, rel=1e-6)
    assert abs(loss - without) > 1e-3
    assert_same(split_gradients, gradients)
    assert_same(split_variables, variables)


def in_bfloat16(features, first_row):
    """Builds a lookup under the bfloat16 scope, whose gradient is sparse and bfloat16."""
    del first_row
    with precision.scope("bfloat16"):
        words = tf.get_variable("words", [5, 2], initializer=tf.random_normal_initializer(seed=5))
        return precision.to_float32(tf.gather(words, features["ids"]))


def test_gradients_of_a_bfloat16_network_are_summed_in_float32():
    (_, _, gradients), variables = train(None, in_bfloat16)
    (_, _, split_gradients), split_variables = train(2, in_bfloat16)
    assert {value.dtype for value in split_gradients.values()} == {np.dtype(np.float32)}
    assert_same(split_gradients, gradients)
    assert_same(split_variables, variables)


def test_compiled_by_xla_equals_the_plain_graph():
    (loss, _, _), variables = train(None, steps=1)
    state = []

    def step(*features):
        features = dict(zip(FEATURES, features, strict=True))
        loss, outputs, pairs = accumulate(make_loss_fn(features), features, 2)
        gradients, trained = zip(*pairs, strict=True)
        clipped, _ = clip_by_global_norm(gradients, 1.0)
        optimizer = LAMBOptimizer(0.01)
        train_op = optimizer.apply_gradients(zip(clipped, trained, strict=True))
        state[:] = [*trained, *optimizer.variables()]
        with tf.control_dependencies([train_op]):
            return tf.identity(loss), outputs["weight"]

    specs = [tf.TensorSpec(value.shape, value.dtype) for value in FEATURES.values()]
    wrapped = tf.wrap_function(step, specs)
    compiled = tf2.function(lambda *features: wrapped(*features), jit_compile=True)
    compiled_loss, weight = compiled(*map(tf2.constant, FEATURES.values()))
    assert compiled_loss.numpy() == pytest.approx(loss, rel=1e-6)
    assert weight.numpy() == FEATURES["weights"].sum()
    found = {variable.name: variable.numpy() for variable in state}
    assert_same({name: found[name] for name in variables}, variables)


@pytest.mark.parametrize(
    ("micro_batch_size", "message"),
    [
        (0, r"^micro_batch_size=0: must be at least 1"),
        (3, r"=3 does not divide a core's batch of 8; choose one of \[1, 2, 4, 8"),
    ],
)
def test_refuses_sizes_that_do_not_divide(micro_batch_size, message):
    with tf.Graph().as_default():
        features = {name: tf.constant(value) for name, value in FEATURES.items()}
        with pytest.raises(ValueError, match=message):
            accumulate(make_loss_fn(features), features, micro_batch_size)


def test_refuses_a_batch_size_that_is_not_static():
    with tf.Graph().as_default():
        features = {"ids": tf.placeholder(tf.int32, [None, 3])}
        with pytest.raises(
            ValueError, match=r"feature 'ids' has shape \(None, 3\); batch with drop"
        ):
            accumulate(None, features, 2)


def test_refuses_features_of_different_lengths():
    with tf.Graph().as_default():
        features = {"a": tf.zeros([4]), "b": tf.zeros([2])}
        with pytest.raises(ValueError, match=r"the same number of rows, .* \{'a': 4, 'b': 2\}"):
            accumulate(None, features, 2)


def test_refuses_outputs_without_a_static_shape():
    with tf.Graph().as_default():
        features = {name: tf.constant(value) for name, value in FEATURES.items()}

        def loss_fn(micro, first_row):
            share, _ = make_loss_fn(features)(micro, first_row)
            return share, {"words": tf.unique(micro["ids"]).y}

        with pytest.raises(ValueError, match=r"Output 'words' of loss_fn has shape \(None,\)"):
            accumulate(loss_fn, features, 2)


def clipped_twin(gradients, max_norm):
    """Returns (clipped gradients, norm) by the definition, in float64."""
    gradients = [np.asarray(gradient, np.float64) for gradient in gradients]
    norm = np.sqrt(sum(np.sum(gradient**2) for gradient in gradients))
    return [gradient * max_norm / max(norm, max_norm) for gradient in gradients], norm


def clip(gradients, max_norm):
    """Clips constants in a Session; returns (clipped gradients, norm)."""
    with tf.Graph().as_default(), tf.Session() as session:
        constants = [None if g is None else tf.constant(g, tf.float32) for g in gradients]
        clipped, norm = clip_by_global_norm(constants, max_norm)
        present = [gradient for gradient in clipped if gradient is not None]
        values, norm = session.run([present, norm])
        values = iter(values)
        return [None if gradient is None else next(values) for gradient in clipped], norm


def test_equals_its_twin():
    random = np.random.RandomState(0)
    gradients = [np.float32(random.standard_normal(shape)) for shape in ([3, 4], [5], (), [2, 7])]
    for max_norm in (0.1, 1.0, 100.0):
        clipped, norm = clip(gradients, max_norm)
        expected, expected_norm = clipped_twin(gradients, max_norm)
        assert norm == pytest.approx(expected_norm, rel=1e-6)
        for found, wanted in zip(clipped, expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_below_the_limit_not_one_bit_changes():
    gradients = [np.float32([0.1, 0.2]), np.float32([0.3])]
    clipped, _ = clip(gradients, 1.0)
    np.testing.assert_array_equal(clipped[0], gradients[0])
    np.testing.assert_array_equal(clipped[1], gradients[1])


def test_zero_gradients_stay_zero():
    clipped, norm = clip([[0.0, 0.0]], 1.0)
    assert norm == 0.0
    np.testing.assert_array_equal(clipped[0], [0.0, 0.0])


def test_none_passes_through_in_place():
    clipped, norm = clip([None, [2.0], None], 1.0)
    assert clipped[0] is None and clipped[2] is None
    assert norm == 2.0
    np.testing.assert_array_equal(clipped[1], [1.0])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e30])
def test_a_norm_that_is_not_finite_makes_every_gradient_nan(bad):
    clipped, norm = clip([[bad, 1.0], [1.0]], 1.0)  # The square of 1e30 overflows.
    assert not np.isfinite(norm)
    assert np.isnan(clipped[0]).all() and np.isnan(clipped[1]).all()


def test_rows_of_the_same_id_are_summed_in_float32():
    # In bfloat16, 256 + 1 + 1 is 256.
    with tf.Graph().as_default(), tf.Session() as session:
        values = tf.constant([[256.0, 1.0], [1.0, 2.0], [1.0, 3.0], [5.0, 5.0]], tf.bfloat16)
        sparse = tf.IndexedSlices(values, tf.constant([2, 2, 2, 0]), tf.constant([4, 2]))
        dense = to_dense_float32(sparse)
        assert dense.shape.as_list() == [4, 2]
        np.testing.assert_array_equal(session.run(dense), [[5, 5], [0, 0], [258, 6], [0, 0]])


def test_sparse_gradient_without_a_shape_is_refused():
    with tf.Graph().as_default():
        sparse = tf.IndexedSlices(tf.ones([2, 3], name="rows"), tf.constant([0, 1]))
        with pytest.raises(ValueError, match=r"Sparse gradient rows:0 has no dense_shape"):
            to_dense_float32(sparse)


def test_duplicate_rows_count_as_their_sum():
    with tf.Graph().as_default(), tf.Session() as session:
        values = tf.constant([[3.0], [3.0]])
        sparse = tf.IndexedSlices(values, tf.constant([1, 1]), tf.constant([2, 1]))
        clipped, norm = session.run(clip_by_global_norm([sparse, tf.constant([8.0])], 1.0))
    assert norm == 10.0
    np.testing.assert_allclose(clipped[0], [[0.0], [0.6]], rtol=1e-6)


@pytest.mark.parametrize("least_elements", [1, 10_000])
@pytest.mark.parametrize("shape", [[1001], [77, 13], None])
def test_bfloat16_gradients_are_measured_in_float32(shape, least_elements, monkeypatch):
    monkeypatch.setattr(gradients, "LEAST_ELEMENTS", least_elements)
    with tf.Graph().as_default(), tf.Session() as session:
        ones = tf.placeholder_with_default(tf.ones(shape or [1001], tf.bfloat16), shape)
        clipped, norm = clip_by_global_norm([ones], 1.0)
        assert clipped[0].dtype == tf.float32 and norm.dtype == tf.float32
        assert session.run(norm) == pytest.approx(np.sqrt(1001), rel=1e-6)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("inf"), float("nan")])
def test_refuses_a_limit_that_is_not_a_positive_number(max_norm):
    with pytest.raises(ValueError, match=r"max_norm=.* must be finite and > 0"):
        clip_by_global_norm([], max_norm)


def test_refuses_gradients_that_are_all_none():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="every gradient is None"):
        clip_by_global_norm([None, None], 1.0)
