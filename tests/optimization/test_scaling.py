"""The pieces that scale updates, against float64 twins, and the exclusions by name."""

import numpy as np
import optimizer_steps
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.optimization.chain import ChainOptimizer
from bert_estimator.optimization.scaling import (
    LAYER_NORM_AND_BIAS,
    AddDecayedWeights,
    ClipByRms,
    ScaleByLearningRate,
    ScaleByParameterRms,
    ScaleByTrustRatio,
)


def values_and_updates():
    """Yields float32 (value, update) of every rank; the updates' sizes differ."""
    random = np.random.RandomState(2)
    for scale, shape in ((1e-3, ()), (1.0, [5]), (1e-3, [3, 4]), (30.0, [2, 3, 4])):
        value = np.float32(random.standard_normal(shape))
        yield value, np.float32(scale * random.standard_normal(shape))


def assert_equals_twin(piece, twin):
    """Compares a piece with `twin(value, update)`, which computes in float64."""
    for value, update in values_and_updates():
        found, _ = optimizer_steps.apply_piece(piece, value, update)
        expected = twin(np.float64(value), np.float64(update))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def rms(x):
    return np.sqrt(np.mean(np.square(x)))


# Exclusions


@pytest.mark.parametrize(
    ("name", "excluded"),
    [
        ("bert/embeddings/LayerNorm/gamma", True),
        ("bert/encoder/layer_0/output/layer_norm/beta", True),
        ("bert/encoder/layer_0/attention/self/query/bias", True),
        ("cls/predictions/output_bias", True),
        ("cls/seq_relationship/output_bias", True),
        ("cls/seq_relationship/output_weights", False),
        ("bert/encoder/layer_0/attention/self/query/kernel", False),
        ("bert/embeddings/word_embeddings", False),
    ],
)
def test_the_usual_list_on_bert(name, excluded):
    for piece in (
        AddDecayedWeights(0.1, LAYER_NORM_AND_BIAS),
        ScaleByTrustRatio(LAYER_NORM_AND_BIAS),
    ):
        assert piece.of(name) is (None if excluded else piece)


def test_an_empty_list_excludes_nothing():
    assert AddDecayedWeights(0.1, []).of("bias") is not None


def test_patterns_are_regular_expressions_over_the_whole_name():
    piece = ScaleByTrustRatio(["kernel$", "^cls/"])
    assert piece.of("a/kernel") is None
    assert piece.of("a/kernel/b") is piece
    assert piece.of("cls/x") is None
    assert piece.of("a/cls/x") is piece


def test_a_bare_string_is_refused():
    name = "exclude_from_layer_adaptation"
    with pytest.raises(ValueError, match=rf"{name}='bias': must be a list .* write \['bias'\]"):
        ScaleByTrustRatio("bias")


def test_a_pattern_that_is_not_a_regular_expression_is_refused():
    with pytest.raises(ValueError, match=r"decay: '\(' is not a regular expression"):
        AddDecayedWeights(0.1, ["bias", "("])


def test_pieces_of_equal_constants_are_equal_and_may_be_keys():
    """Updates by equal pieces are traced and compiled once."""
    for make in (lambda: AddDecayedWeights(0.1, ["a"]), lambda: ScaleByTrustRatio(["a"])):
        assert make() == make() and len({make(), make()}) == 1
    assert AddDecayedWeights(0.1, ["a"]) != AddDecayedWeights(0.1, ["b"])


# Weight decay


def test_weight_decay_equals_its_twin():
    assert_equals_twin(AddDecayedWeights(0.3, []), lambda value, update: update + 0.3 * value)


def test_weight_decay_adds_its_share_of_the_weights():
    piece = AddDecayedWeights(0.5, exclude_from_weight_decay=["bias"])
    update, _ = optimizer_steps.apply_piece(piece, [2.0, -4.0], [1.0, 1.0], name="kernel")
    np.testing.assert_array_equal(update, [2.0, -1.0])


def test_weight_decay_leaves_excluded_variables_alone():
    piece = AddDecayedWeights(0.5, exclude_from_weight_decay=["bias"])
    update, _ = optimizer_steps.apply_piece(piece, [2.0, -4.0], [1.0, 1.0], name="query/bias")
    np.testing.assert_array_equal(update, [1.0, 1.0])


@pytest.mark.parametrize("rate", [-0.1, float("nan")])
def test_weight_decay_refuses_a_rate_out_of_range(rate):
    with pytest.raises(ValueError, match=r"weight_decay_rate=.*: must be a finite number >= 0"):
        AddDecayedWeights(rate, exclude_from_weight_decay=[])


def test_weight_decay_names_the_argument_of_a_bad_pattern():
    with pytest.raises(ValueError, match=r"exclude_from_weight_decay: '\['"):
        AddDecayedWeights(0.01, exclude_from_weight_decay=["["])


# Trust ratio


def trust_ratio_twin(value, update):
    """Returns the ratio in float64."""
    weight_norm, update_norm = np.sqrt(np.sum(value**2)), np.sqrt(np.sum(update**2))
    return weight_norm / update_norm if weight_norm > 0 and update_norm > 0 else 1.0


def test_trust_ratio_equals_its_twin_on_tensors_of_every_rank():
    for value, update in values_and_updates():
        found, ratio = optimizer_steps.apply_piece(ScaleByTrustRatio([]), value, update)
        expected = trust_ratio_twin(np.float64(value), np.float64(update))
        assert ratio == pytest.approx(expected, rel=1e-6)
        np.testing.assert_allclose(found, expected * np.float64(update), rtol=1e-6)


def test_the_norm_of_a_matrix_is_over_its_elements():
    """The Frobenius norm of this matrix is 2; its spectral norm is sqrt(2)."""
    value = [[1.0, 1.0], [1.0, -1.0]]
    _, ratio = optimizer_steps.apply_piece(ScaleByTrustRatio([]), value, [[1.0, 0.0], [0.0, 0.0]])
    assert ratio == 2.0


@pytest.mark.parametrize(
    ("value", "update"), [([0.0, 0.0], [3.0, 4.0]), ([3.0, 4.0], [0.0, 0.0]), ([0.0], [0.0])]
)
def test_trust_ratio_is_one_if_either_norm_is_zero(value, update):
    found, ratio = optimizer_steps.apply_piece(ScaleByTrustRatio([]), value, update)
    assert ratio == 1.0
    np.testing.assert_array_equal(found, update)


def test_trust_ratio_leaves_excluded_variables_alone_and_reports_nothing():
    piece = ScaleByTrustRatio(["LayerNorm"])
    found, ratio = optimizer_steps.apply_piece(piece, [2.0], [1.0], name="LayerNorm/gamma")
    assert ratio is None
    np.testing.assert_array_equal(found, [1.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_stays_so(bad):
    found, _ = optimizer_steps.apply_piece(ScaleByTrustRatio([]), [1.0, 1.0], [bad, 1.0])
    assert not np.isfinite(found).all()


@pytest.mark.parametrize(("value", "update"), [(1.0, 1e30), (1e30, 1.0), (1e30, 1e30)])
def test_a_norm_that_overflows_is_not_hidden(value, update):
    found, ratio = optimizer_steps.apply_piece(ScaleByTrustRatio([]), [value] * 2, [update] * 2)
    assert ratio == np.inf
    assert not np.isfinite(found).any()


def test_trust_ratio_names_the_argument_of_a_bad_pattern():
    with pytest.raises(ValueError, match=r"exclude_from_layer_adaptation: '\['"):
        ScaleByTrustRatio(["["])


# Root mean squares


@pytest.mark.parametrize("threshold", [0.01, 1.0])
def test_clipping_by_rms_equals_its_twin(threshold):
    assert_equals_twin(
        ClipByRms(threshold), lambda _, update: update / max(1.0, rms(update) / threshold)
    )


@pytest.mark.parametrize("epsilon", [1e-3, 2.0])
def test_scaling_by_the_parameters_rms_equals_its_twin(epsilon):
    assert_equals_twin(
        ScaleByParameterRms(epsilon), lambda value, update: max(epsilon, rms(value)) * update
    )


def test_a_variable_that_is_zero_can_leave_zero():
    found, _ = optimizer_steps.apply_piece(ScaleByParameterRms(0.25), [0.0, 0.0], [2.0, 4.0])
    np.testing.assert_array_equal(found, [0.5, 1.0])


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("piece", "argument"), [(ClipByRms, "clipping_threshold"), (ScaleByParameterRms, "epsilon_2")]
)
def test_rms_pieces_refuse_a_bound_out_of_range(piece, argument, value):
    with pytest.raises(ValueError, match=f"{argument}={value}: must be a finite number > 0"):
        piece(value)


# Learning rate


@pytest.mark.parametrize("rate", [0.3, 3, np.float64(0.3), np.float32(0.3)])
def test_every_kind_of_number_scales_updates(rate):
    history = optimizer_steps.run(
        lambda _: ChainOptimizer([ScaleByLearningRate()], rate, "Descent"),
        {"w": [7.0, 7.0]},
        [{"w": [2.0, -4.0]}],
        [1.0],
    )
    expected = 7.0 - float(rate) * np.array([2.0, -4.0])
    np.testing.assert_allclose(history[0]["param"]["w"], expected, rtol=1e-6)


def test_a_tensor_is_read_in_every_step():
    history = optimizer_steps.run(
        lambda rate: ChainOptimizer([ScaleByLearningRate()], rate, "Descent"),
        {"w": [0.0]},
        [{"w": [1.0]}] * 3,
        [1.0, 0.5, 0.25],
    )
    assert [step["param"]["w"][0] for step in history] == [-1.0, -1.5, -1.75]


def test_a_variable_is_read_in_every_step():
    with tf.Graph().as_default(), tf.Session() as session:
        rate = tf.get_variable("rate", initializer=1.0, trainable=False)
        weight = tf.get_variable("w", initializer=[0.0])
        optimizer = ChainOptimizer([ScaleByLearningRate()], rate, "Descent")
        train_op = optimizer.apply_gradients([(tf.constant([1.0]), weight)])
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        session.run(rate.assign(0.5))
        session.run(train_op)
        assert session.run(weight) == [-1.5]


def test_a_function_gets_the_variables_name_and_returns_its_rate():
    """The name has no ":0"; the function may return a number for one variable, a tensor for
    another."""
    names = []
    history = optimizer_steps.run(
        lambda rate: ChainOptimizer(
            [ScaleByLearningRate()],
            lambda name: names.append(name) or {"a/w": rate}.get(name, 2.0),
            "Descent",
        ),
        {"a/w": [0.0], "b/w": [0.0]},
        [{"a/w": [1.0], "b/w": [1.0]}] * 2,
        [0.5, 0.25],
    )
    assert names == ["a/w", "b/w"]
    assert [step["param"]["a/w"][0] for step in history] == [-0.5, -0.75]
    assert [step["param"]["b/w"][0] for step in history] == [-2.0, -4.0]
