"""LAMB: Adam whose steps are scaled, variable by variable, to the variable's own length.

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020.
"""

from bert_estimator.optimization.adam_moments import ScaleByAdam
from bert_estimator.optimization.exclusions import LAYER_NORM_AND_BIAS
from bert_estimator.optimization.learning_rate import ScaleByLearningRate
from bert_estimator.optimization.optimizer import ChainOptimizer
from bert_estimator.optimization.trust_ratio import ScaleByTrustRatio
from bert_estimator.optimization.weight_decay import AddDecayedWeights


class LAMBOptimizer(ChainOptimizer):
    """Adam's ratio plus weight decay, scaled per variable to the length of the variable.

    With r from `ScaleByAdam`, w the variable, and lr the learning rate:

        u = r + weight_decay_rate * w
        w = w - lr * ||w|| / ||u|| * u

    Three rules are in use, and differ:

        A  the default: no bias correction; variables without weight decay are not adapted either.
           ALBERT, and the first author's own TPU code.
        B  bias_correction=True: the paper's algorithm 2; MLPerf's BERT, TensorFlow Addons.
        C  bias_correction=True, exclude_from_layer_adaptation=[]: adapts every variable. NVIDIA's
           BERT, optax.lamb with a mask for the decay.

    A and B differ little once the warm-up has passed. Clip the gradients by their global norm to
    1.0 before (`clip_by_global_norm`), as all of them do.
    """

    def __init__(
        self,
        learning_rate,
        weight_decay_rate=0.01,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        exclude_from_weight_decay=LAYER_NORM_AND_BIAS,
        exclude_from_layer_adaptation=LAYER_NORM_AND_BIAS,
        bias_correction=False,
        bfloat16_first_moments=False,
        name="LAMBOptimizer",
    ):
        """Sets the constants; the defaults are the paper's.

        Args:
            learning_rate: Python float or float scalar tensor.
            weight_decay_rate: Python float >= 0.
            beta_1: decay rate of the first moment, 0 <= beta_1 < 1.
            beta_2: decay rate of the second moment, 0 <= beta_2 < 1.
            epsilon: > 0, added to the root of the second moment.
            exclude_from_weight_decay: list of regular expressions over variable names.
            exclude_from_layer_adaptation: the same, for the trust ratio.
            bias_correction: Python bool; True needs the global_step in `apply_gradients`.
            bfloat16_first_moments: Python bool; store the first moments as bfloat16.
            name: prefix of the operations' names.

        Raises:
            ValueError: a constant is out of range, or an exclusion is no list of patterns.
        """
        super().__init__(
            [
                ScaleByAdam(beta_1, beta_2, epsilon, bias_correction, bfloat16_first_moments),
                AddDecayedWeights(weight_decay_rate, exclude_from_weight_decay),
                ScaleByTrustRatio(exclude_from_layer_adaptation),
                ScaleByLearningRate(learning_rate),
            ],
            name,
        )
