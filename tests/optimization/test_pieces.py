"""The pieces against float64 twins; moments and momentum are in `test_optimizers`."""

import numpy as np
import optimizer_steps
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.optimization import pieces
from bert_estimator.optimization.chain import ChainOptimizer
from bert_estimator.optimization.piece import Piece, UpdateStep
from bert_estimator.optimization.pieces import (
    LAYER_NORM_AND_BIAS,
    AddDecayedWeights,
    ClipByRms,
    Momentum,
    ScaleByAdam,
    ScaleByFactoredMoments,
    ScaleByLearningRate,
    ScaleByParameterRms,
    ScaleByTrustRatio,
)


def test_bias_correction_counts_from_the_global_step():
    """After a resume at global step 1000, the next update is corrected as the 1001st update."""
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", initializer=[0.0])
        step = tf.get_variable("step", initializer=np.int64(1000), trainable=False)
        optimizer = ChainOptimizer([ScaleByAdam(0.9, 0.999, 1e-6, True)], 1.0, "Adam")
        train_op = optimizer.apply_gradients([(tf.constant([1.0]), weight)], step)
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        moved = -session.run(weight)[0]
        assert session.run(step) == 1001
    v = 0.001 / (1 - 0.999**1001)
    assert moved == pytest.approx(0.1 / (1 - 0.9**1001) / (np.sqrt(v) + 1e-6), rel=1e-6)


def test_bfloat16_first_moments():
    """The update uses the unrounded first moment; the slot stores its nearest bfloat16."""
    gradients = np.random.RandomState(1).randn(5, 3, 2).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", [3, 2], initializer=tf.zeros_initializer())
        gradient = tf.placeholder(tf.float32, [3, 2])
        optimizer = ChainOptimizer([ScaleByAdam(0.9, 0.999, 1e-6, False, True)], 1.0, "Adam")
        train_op = optimizer.apply_gradients([(gradient, weight)])
        slots = [optimizer.get_slot(weight, name) for name in ("adam_m", "adam_v")]
        assert [slot.dtype.base_dtype for slot in slots] == [tf.bfloat16, tf.float32]
        session.run(tf.global_variables_initializer())
        m = np.zeros([3, 2], np.float32)
        v, expected = np.zeros([3, 2]), np.zeros([3, 2])
        for value in gradients:
            session.run(train_op, {gradient: value})
            m = np.float32(0.9) * m + np.float32(0.1) * value
            v = 0.999 * v + 0.001 * np.float64(value) ** 2
            expected -= m / (np.sqrt(v) + 1e-6)
            m = m.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)
            np.testing.assert_allclose(session.run(weight), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.float32(session.run(slots[0])), m, rtol=2**-7)


def test_bias_correction_without_a_step_is_refused():
    with tf.Graph().as_default():
        weight = tf.get_variable("w", initializer=[0.0])
        optimizer = ChainOptimizer([ScaleByAdam(0.9, 0.999, 1e-6, True)], 1.0, "Adam")
        with pytest.raises(
            ValueError, match=r"bias_correction=True, .* apply_gradients or minimize"
        ):
            optimizer.apply_gradients([(tf.constant([1.0]), weight)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 0.999, 1e-6), r"beta_1=1.0: must be at least 0 and below 1"),
        ((0.9, -0.1, 1e-6), r"beta_2=-0.1: must be at least 0 and below 1"),
        ((0.9, 0.999, 0.0), r"epsilon=0.0: must be a finite number > 0"),
    ],
)
def test_adam_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScaleByAdam(*arguments, bias_correction=False)


def test_factored_moments_of_a_matrix_are_a_row_and_a_column():
    with tf.Graph().as_default():
        kernel = tf.get_variable("kernel", [6, 4])
        bias = tf.get_variable("bias", [4])
        optimizer = ChainOptimizer([ScaleByFactoredMoments(0.8, 1e-30)], 1.0, "Factored")
        pairs = [(tf.ones([6, 4]), kernel), (tf.ones([4]), bias)]
        optimizer.apply_gradients(pairs, tf.train.create_global_step())
        found = {v.op.name: v.shape.as_list() for v in optimizer.variables()}
    assert found == {
        "kernel/adafactor_row": [6],
        "kernel/adafactor_column": [4],
        "bias/adafactor_v": [4],
    }


def test_factored_moments_need_the_number_of_the_update():
    with tf.Graph().as_default():
        weight = tf.get_variable("w", [2])
        optimizer = ChainOptimizer([ScaleByFactoredMoments(0.8, 1e-30)], 1.0, "Factored")
        with pytest.raises(
            ValueError,
            match=r"^ScaleByFactoredMoments\(.*\) depends on .* apply_gradients or minimize",
        ):
            optimizer.apply_gradients([(tf.ones([2]), weight)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1e-30), r"decay_exponent=0.0: must be above 0 and at most 1"),
        ((0.8, 0.0), r"epsilon_1=0.0: must be a finite number > 0"),
        ((0.8, float("inf")), r"epsilon_1=inf: must be a finite number > 0"),
    ],
)
def test_factored_moments_refuse(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScaleByFactoredMoments(*arguments)


# Each piece that cores may give their parts of a variable.
PIECES_OF_PARTS = [
    ScaleByAdam(0.9, 0.999, 1e-6, True),
    Momentum(0.9),
    AddDecayedWeights(0.1, []),
    ScaleByTrustRatio([]),
    ClipByRms(0.5),
    ScaleByParameterRms(1e-3),
    ScaleByLearningRate(),
]


def test_all_pieces_that_take_parts_are_tried():
    kinds = {kind for kind in vars(pieces).values() if isinstance(kind, type)}
    take_parts = {kind for kind in kinds if issubclass(kind, Piece) and kind.takes_parts}
    assert take_parts == {type(piece) for piece in PIECES_OF_PARTS}


@pytest.mark.parametrize("piece", PIECES_OF_PARTS, ids=lambda piece: type(piece).__name__)
def test_a_core_computes_its_part_of_an_update(piece):
    """The cores have parts of the same norms, so their sum is twice what each of them has."""
    random = np.random.RandomState(3)
    part = {name: np.float32(random.randn(4, 3)) for name in ("u", "w")}
    slots = {name: np.full([4, 3], 0.25, np.float32) for name in piece.slots((4, 3))}

    def applied(cores, total):
        def whole(x):
            return tf.constant(np.concatenate([x, -x][:cores]))

        rate, number = tf.constant(0.5), tf.constant(3.0)
        step = UpdateStep(rate, number, size=24, total=total)
        of_slots = {name: tf.constant(np.tile(slots[name], [cores, 1])) for name in slots}
        return piece(whole(part["u"]), whole(part["w"]), of_slots, step)

    with tf.Graph().as_default(), tf.Session() as session:
        (update, new), (of_part, new_of_part) = session.run(
            [applied(2, lambda scalar: scalar), applied(1, lambda scalar: 2.0 * scalar)]
        )
    np.testing.assert_allclose(of_part, update[:4], rtol=1e-6)
    for name in slots:
        np.testing.assert_allclose(new_of_part[name], new[name][:4], rtol=1e-6)
    for name in piece.reports:
        np.testing.assert_allclose(new_of_part[name], new[name], rtol=1e-6)
    assert np.abs(update[:4] - part["u"]).max() > 1e-3


@pytest.mark.parametrize("beta", [1.0, -0.1, float("nan")])
def test_momentum_refuses_a_beta_out_of_range(beta):
    with pytest.raises(ValueError, match=rf"beta={beta}: must be at least 0 and below 1"):
        Momentum(beta)


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
        ("cls/seq_relationship/output_weights", False),
        ("bert/embeddings/word_embeddings", False),
    ],
)
def test_the_usual_list_on_bert(name, excluded):
    for piece in (
        AddDecayedWeights(0.1, LAYER_NORM_AND_BIAS),
        ScaleByTrustRatio(LAYER_NORM_AND_BIAS),
    ):
        assert piece.of(name) is (None if excluded else piece)


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


@pytest.mark.parametrize("rate", [-0.1, float("nan")])
def test_weight_decay_refuses_a_rate_out_of_range(rate):
    with pytest.raises(ValueError, match=r"weight_decay_rate=.*: must be a finite number >= 0"):
        AddDecayedWeights(rate, exclude_from_weight_decay=[])


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


@pytest.mark.parametrize(
    ("value", "update"), [([0.0, 0.0], [3.0, 4.0]), ([3.0, 4.0], [0.0, 0.0]), ([0.0], [0.0])]
)
def test_trust_ratio_is_one_if_either_norm_is_zero(value, update):
    found, ratio = optimizer_steps.apply_piece(ScaleByTrustRatio([]), value, update)
    assert ratio == 1.0
    np.testing.assert_array_equal(found, update)


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
