"""LARS: momentum whose steps are scaled, variable by variable, to the variable's own length.

You et al., "Large batch training of convolutional networks", 2017, in the form that the LAMB paper
compares itself with: You et al., ICLR 2020, algorithm 1.
"""

from bert_estimator.optimization.exclusions import LAYER_NORM_AND_BIAS
from bert_estimator.optimization.learning_rate import ScaleByLearningRate
from bert_estimator.optimization.momentum import Momentum
from bert_estimator.optimization.optimizer import ChainOptimizer
from bert_estimator.optimization.trust_ratio import ScaleByTrustRatio
from bert_estimator.optimization.weight_decay import AddDecayedWeights


class LARSOptimizer(ChainOptimizer):
    """LAMB without Adam's second moment. With g the gradient, w the variable, lr the rate:

        m = beta * m + (1 - beta) * (g + weight_decay_rate * w)
        w = w - lr * ||w|| / ||m|| * m

    The paper of 2017 takes the ratio of ||w|| and ||g|| + weight_decay_rate * ||w||, times a
    constant, and its momentum remembers scaled steps; rates of the two forms cannot be compared.
    Variables that are not adapted take plain momentum steps, small ones at LARS's rates.
    """

    def __init__(
        self,
        learning_rate,
        weight_decay_rate=0.01,
        beta=0.9,
        exclude_from_weight_decay=LAYER_NORM_AND_BIAS,
        exclude_from_layer_adaptation=LAYER_NORM_AND_BIAS,
        name="LARSOptimizer",
    ):
        """Sets the constants; the defaults are LAMB's.

        Args:
            learning_rate: what `ScaleByLearningRate` takes.
            weight_decay_rate: Python float >= 0.
            beta: decay rate of the momentum, 0 <= beta < 1.
            exclude_from_weight_decay: list of regular expressions over variable names.
            exclude_from_layer_adaptation: the same, for the trust ratio.
            name: prefix of the operations' names.

        Raises:
            ValueError: a constant is out of range, or an exclusion is no list of patterns.
        """
        super().__init__(
            [
                AddDecayedWeights(weight_decay_rate, exclude_from_weight_decay),
                Momentum(beta),
                ScaleByTrustRatio(exclude_from_layer_adaptation),
                ScaleByLearningRate(learning_rate),
            ],
            name,
        )
