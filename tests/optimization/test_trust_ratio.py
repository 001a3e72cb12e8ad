"""Layer-wise adaptation."""

import numpy as np
import optimizer_steps
import pytest

from bert_estimator.optimization.trust_ratio import ScaleByTrustRatio


def twin(value, update):
    """(scaled update, ratio) in float64."""
    value, update = np.asarray(value, np.float64), np.asarray(update, np.float64)
    weight_norm, update_norm = np.sqrt(np.sum(value**2)), np.sqrt(np.sum(update**2))
    ratio = weight_norm / update_norm if weight_norm > 0 and update_norm > 0 else 1.0
    return ratio * update, ratio


def test_equals_its_twin_on_tensors_of_every_rank():
    random = np.random.RandomState(2)
    for shape in ((), [5], [3, 4], [2, 3, 4]):
        value = np.float32(random.standard_normal(shape))
        update = np.float32(1e-3 * random.standard_normal(shape))
        found, ratio = optimizer_steps.apply_piece(ScaleByTrustRatio([]), value, update)
        expected, expected_ratio = twin(value, update)
        assert ratio == pytest.approx(expected_ratio, rel=1e-6)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_norm_of_a_matrix_is_that_of_its_elements():
    """Frobenius, 2; the spectral norm of this matrix is sqrt(2)."""
    value = [[1.0, 1.0], [1.0, -1.0]]
    _, ratio = optimizer_steps.apply_piece(ScaleByTrustRatio([]), value, [[1.0, 0.0], [0.0, 0.0]])
    assert ratio == 2.0


@pytest.mark.parametrize(
    ("value", "update"), [([0.0, 0.0], [3.0, 4.0]), ([3.0, 4.0], [0.0, 0.0]), ([0.0], [0.0])]
)
def test_ratio_is_one_if_either_norm_is_zero(value, update):
    found, ratio = optimizer_steps.apply_piece(ScaleByTrustRatio([]), value, update)
    assert ratio == 1.0
    np.testing.assert_array_equal(found, update)


def test_leaves_excluded_variables_alone_and_reports_nothing():
    piece = ScaleByTrustRatio(["LayerNorm"])
    found, ratio = optimizer_steps.apply_piece(piece, [2.0], [1.0], name="LayerNorm/gamma")
    assert ratio is None
    np.testing.assert_array_equal(found, [1.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_stays_so(bad):
    found, _ = optimizer_steps.apply_piece(ScaleByTrustRatio([]), [1.0, 1.0], [bad, 1.0])
    assert not np.isfinite(found).all()


def test_error_of_a_bad_pattern_names_the_argument():
    with pytest.raises(ValueError, match=r"exclude_from_layer_adaptation: '\['"):
        ScaleByTrustRatio(["["])
