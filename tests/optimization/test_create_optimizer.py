"""Optimizers by name."""

import pytest

from bert_estimator import optimization


def test_makes_each_optimizer_by_its_name():
    assert type(optimization.create_optimizer("lamb", 0.1)) is optimization.LAMBOptimizer
    adamw = optimization.create_optimizer("adamw", 0.1, bias_correction=True)
    assert type(adamw) is optimization.AdamWeightDecayOptimizer
    assert type(optimization.create_optimizer("lars", 0.1)) is optimization.LARSOptimizer
    adafactor = optimization.create_optimizer("adafactor", 0.1)
    assert type(adafactor) is optimization.AdafactorOptimizer


def test_passes_options_on():
    with pytest.raises(ValueError, match=r"beta_1=2\.0"):
        optimization.create_optimizer("lamb", 0.1, beta_1=2.0)


def test_refuses_an_unknown_name_and_lists_the_known():
    message = r"--optimizer=adam: .* choose one of adafactor, adamw, lamb, lars\."
    with pytest.raises(ValueError, match=message):
        optimization.create_optimizer("adam", 0.1)


def test_exports_what_it_says():
    assert all(hasattr(optimization, name) for name in optimization.__all__)
