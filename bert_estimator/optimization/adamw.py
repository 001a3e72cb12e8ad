"""AdamW as google-research/bert has it, and as Loshchilov and Hutter (2019) have it."""

from bert_estimator.optimization.adam_moments import ScaleByAdam
from bert_estimator.optimization.exclusions import LAYER_NORM_AND_BIAS
from bert_estimator.optimization.learning_rate import ScaleByLearningRate
from bert_estimator.optimization.optimizer import ChainOptimizer
from bert_estimator.optimization.weight_decay import AddDecayedWeights


class AdamWeightDecayOptimizer(ChainOptimizer):
    """Adam's ratio plus decoupled weight decay. With r from `ScaleByAdam`, w the variable:

        w = w - learning_rate * (r + weight_decay_rate * w)

    The default has no bias correction: the numbers of google-research/bert's optimizer of this
    name. bias_correction=True is the paper's AdamW (algorithm 2), and `optax.adamw`.
    """

    def __init__(
        self,
        learning_rate,
        weight_decay_rate=0.01,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        exclude_from_weight_decay=LAYER_NORM_AND_BIAS,
        bias_correction=False,
        bfloat16_first_moments=False,
        name="AdamWeightDecayOptimizer",
    ):
        """Sets the constants; the defaults are those with which BERT was trained.

        Args:
            learning_rate: Python float or float scalar tensor.
            weight_decay_rate: Python float >= 0.
            beta_1: decay rate of the first moment, 0 <= beta_1 < 1.
            beta_2: decay rate of the second moment, 0 <= beta_2 < 1.
            epsilon: > 0, added to the root of the second moment.
            exclude_from_weight_decay: list of regular expressions over variable names.
            bias_correction: Python bool; True needs the global_step in `apply_gradients`.
            bfloat16_first_moments: Python bool; store the first moments as bfloat16.
            name: prefix of the operations' names.

        Raises:
            ValueError: a constant is out of range, or the exclusion is no list of patterns.
        """
        super().__init__(
            [
                ScaleByAdam(beta_1, beta_2, epsilon, bias_correction, bfloat16_first_moments),
                AddDecayedWeights(weight_decay_rate, exclude_from_weight_decay),
                ScaleByLearningRate(learning_rate),
            ],
            name,
        )
