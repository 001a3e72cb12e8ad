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


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (ScaleByAdam(0.9, 0.999, 1e-6, True), "bias_correction=True,"),
        (ScaleByFactoredMoments(0.8, 1e-30), r"^ScaleByFactoredMoments\(.*\) depends on"),
    ],
)
def test_without_the_number_of_the_update_it_is_refused(piece, message):
    with tf.Graph().as_default():
        optimizer = ChainOptimizer([piece], 1.0, "Own")
        with pytest.raises(ValueError, match=f"{message} .* apply_gradients or minimize"):
            optimizer.apply_gradients([(tf.ones([2]), tf.get_variable("w", [2]))])


NAN, INF = float("nan"), float("inf")
SHARE, EXPONENT = "must be at least 0 and below 1", "must be above 0 and at most 1"
POSITIVE, FROM_0 = "must be a finite number > 0", "must be a finite number >= 0"


@pytest.mark.parametrize(
    ("make", "argument", "values", "message"),
    [
        (lambda x: ScaleByAdam(x, 0.999, 1e-6, False), "beta_1", [1.0], SHARE),
        (lambda x: ScaleByAdam(0.9, x, 1e-6, False), "beta_2", [-0.1], SHARE),
        (lambda x: ScaleByAdam(0.9, 0.999, x, False), "epsilon", [0.0], POSITIVE),
        (lambda x: ScaleByFactoredMoments(x, 0.1), "decay_exponent", [0.0], EXPONENT),
        (lambda x: ScaleByFactoredMoments(0.8, x), "epsilon_1", [0.0, INF], POSITIVE),
        (Momentum, "beta", [1.0, -0.1, NAN], SHARE),
        (lambda x: AddDecayedWeights(x, []), "weight_decay_rate", [-0.1, NAN], FROM_0),
        (ClipByRms, "clipping_threshold", [0.0, -1.0, NAN, INF], POSITIVE),
        (ScaleByParameterRms, "epsilon_2", [0.0, -1.0, NAN, INF], POSITIVE),
    ],
)
def test_numbers_out_of_range_are_refused(make, argument, values, message):
    for value in values:
        with pytest.raises(ValueError, match=f"{argument}={value}: {message}"):
            make(value)


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


@pytest.mark.parametrize(
    ("make", "patterns", "message"),
    [
        (
            ScaleByTrustRatio,
            "bias",
            r"exclude_from_layer_adaptation='bias': must be a list .* write \['bias'\]",
        ),
        (ScaleByTrustRatio, ["["], r"exclude_from_layer_adaptation: '\['"),
        (lambda x: AddDecayedWeights(0.1, x), ["("], r"decay: '\(' is not a regular expression"),
    ],
)
def test_what_is_not_a_list_of_patterns_is_refused(make, patterns, message):
    with pytest.raises(ValueError, match=message):
        make(patterns)


def test_pieces_of_equal_constants_are_equal_and_may_be_keys():
    """Updates by equal pieces are traced and compiled once."""
    for make in (lambda: AddDecayedWeights(0.1, ["a"]), lambda: ScaleByTrustRatio(["a"])):
        assert make() == make() and len({make(), make()}) == 1
    assert AddDecayedWeights(0.1, ["a"]) != AddDecayedWeights(0.1, ["b"])


# Weight decay


def test_weight_decay_equals_its_twin():
    assert_equals_twin(AddDecayedWeights(0.3, []), lambda value, update: update + 0.3 * value)


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
