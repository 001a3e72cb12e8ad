"""The learning rate."""

import numpy as np
import optimizer_steps

from bert_estimator.optimization.learning_rate import ScaleByLearningRate
from bert_estimator.optimization.optimizer import ChainOptimizer


def test_a_number_scales_the_update():
    update, _ = optimizer_steps.apply_piece(ScaleByLearningRate(0.5), [7.0, 7.0], [2.0, -4.0])
    np.testing.assert_array_equal(update, [1.0, -2.0])


def test_a_tensor_is_read_in_every_step():
    history = optimizer_steps.run(
        lambda rate: ChainOptimizer([ScaleByLearningRate(rate)], "Descent"),
        {"w": [0.0]},
        [{"w": [1.0]}] * 3,
        [1.0, 0.5, 0.25],
    )
    assert [each["param"]["w"][0] for each in history] == [-1.0, -1.5, -1.75]
