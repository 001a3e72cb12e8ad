"""Decoupled weight decay."""

import numpy as np
import optimizer_steps
import pytest

from bert_estimator.optimization.weight_decay import AddDecayedWeights


def test_adds_its_share_of_the_weights():
    piece = AddDecayedWeights(0.5, exclude=["bias"])
    update, _ = optimizer_steps.apply_piece(piece, [2.0, -4.0], [1.0, 1.0], name="kernel")
    np.testing.assert_array_equal(update, [2.0, -1.0])


def test_leaves_excluded_variables_alone():
    piece = AddDecayedWeights(0.5, exclude=["bias"])
    update, _ = optimizer_steps.apply_piece(piece, [2.0, -4.0], [1.0, 1.0], name="query/bias")
    np.testing.assert_array_equal(update, [1.0, 1.0])


@pytest.mark.parametrize("rate", [-0.1, float("nan")])
def test_refuses_a_bad_rate(rate):
    with pytest.raises(ValueError, match=r"weight_decay_rate=.*: must be a finite number >= 0"):
        AddDecayedWeights(rate, exclude=[])


def test_error_of_a_bad_pattern_names_the_argument():
    with pytest.raises(ValueError, match=r"exclude_from_weight_decay: '\['"):
        AddDecayedWeights(0.01, exclude=["["])
