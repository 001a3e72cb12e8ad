"""Adafactor: Adam's second moment from row and column means, no first moment, relative steps.

Shazeer and Stern, "Adafactor: Adaptive learning rates with sublinear memory cost", ICML 2018,
algorithms 4 and 5 with the constants of algorithm 6.
"""

from bert_estimator.optimization.factored_moments import ScaleByFactoredMoments
from bert_estimator.optimization.learning_rate import ScaleByLearningRate
from bert_estimator.optimization.optimizer import ChainOptimizer
from bert_estimator.optimization.rms import ClipByRms, ScaleByParameterRms


class AdafactorOptimizer(ChainOptimizer):
    """With u from `ScaleByFactoredMoments`, w the variable, and lr the relative step size:

        w = w - lr * max(epsilon_2, RMS(w)) * u / max(1, RMS(u) / clipping_threshold)

    The learning rate is relative to the size of the variable; the paper's is the smaller of 1e-2
    and 1 / sqrt(t). Its state is a row and a column for each matrix. There is no weight decay.
    """

    def __init__(
        self,
        learning_rate,
        decay_exponent=0.8,
        epsilon_1=1e-30,
        epsilon_2=1e-3,
        clipping_threshold=1.0,
        name="AdafactorOptimizer",
    ):
        """Sets the constants; the defaults are the paper's.

        Args:
            learning_rate: what `ScaleByLearningRate` takes, relative to the variables.
            decay_exponent: above 0 and at most 1: the second moment of update t is an average with
                weight t^-decay_exponent for the newest gradient.
            epsilon_1: > 0, added to squared gradients.
            epsilon_2: > 0, the least size that a variable counts as.
            clipping_threshold: > 0, the largest root mean square of an update.
            name: prefix of the operations' names.

        Raises:
            ValueError: a constant is out of range.
        """
        super().__init__(
            [
                ScaleByFactoredMoments(decay_exponent, epsilon_1),
                ClipByRms(clipping_threshold),
                ScaleByParameterRms(epsilon_2),
                ScaleByLearningRate(learning_rate),
            ],
            name,
        )
