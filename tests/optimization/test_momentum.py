"""The momentum piece."""

import numpy as np
import optimizer_steps

from bert_estimator.optimization.momentum import Momentum
from bert_estimator.optimization.optimizer import ChainOptimizer


def test_is_an_exponential_average_from_zero():
    gradients = np.float32([[1.0, -2.0], [3.0, 0.0], [-1.0, 4.0]])
    history = optimizer_steps.run(
        lambda rate: ChainOptimizer([Momentum(0.75)], "Momentum"),
        {"w": np.zeros(2)},
        [{"w": gradient} for gradient in gradients],
        [1.0] * 3,
    )
    m, moved = np.zeros(2), np.zeros(2)
    for gradient, found in zip(gradients, history, strict=True):
        m = 0.75 * m + 0.25 * gradient
        moved -= m
        np.testing.assert_allclose(found["param"]["w"], moved, rtol=1e-6)
