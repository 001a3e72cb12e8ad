"""LAMB, AdamW, LARS and Adafactor: each is a chain of pieces, in the order of their application.

Arguments have the names that they have in the pieces, which describe and check them.
"""

from collections.abc import Sequence

from bert_estimator.optimization.chain import ChainOptimizer, LearningRate
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


class LAMBOptimizer(ChainOptimizer):
    """Adam whose steps are scaled, variable by variable, to the length of the variable.

    You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR
    2020; the default constants are the paper's. With g the gradient and w the variable, and on the
    right what computes a line:

        g = g * min(1, 1 / global norm)               `clipping_scale`, in the scripts
        m, v = averages of g, g^2                     `ScaleByAdam`, which may correct their bias
        r = m / (sqrt(v) + epsilon)                   `ScaleByAdam`
        u = r + weight_decay_rate * w                 `AddDecayedWeights`
        u = u * ||w|| / ||u||, or u if a norm is 0    `ScaleByTrustRatio`, with phi(z) = z
        w = w - learning_rate * u                     `ScaleByLearningRate`, then `ChainOptimizer`

    Three rules are in use:

    A. The default has no bias correction, and variables without weight decay are not adapted
       either: the rule of ALBERT and of the first author's TPU code.
    B. bias_correction=True is the paper's algorithm 2, but without ratio and decay for layer norms
       and biases: the rule of MLPerf's BERT, TensorFlow Addons and NVIDIA's BERT in PyTorch.
    C. bias_correction=True, exclude_from_layer_adaptation=[] adapts every variable: the rule of
       NVIDIA's BERT in TensorFlow 1 and of optax.lamb with a mask for the decay.

    In each, layer norms and biases have no decay, and in A and B no scaling either: these are two
    lists of patterns, which are equal by default. Rules A and B differ little after the warm-up.
    MLPerf, ALBERT, NVIDIA and the first author clip the gradients by their global norm to 1.0, as
    `model_fns/update.py` does for the scripts; TensorFlow Addons and optax.lamb do not clip.

    Args:
      weight_decay_rate, exclude_from_weight_decay: see `AddDecayedWeights`.
      beta_1, beta_2, epsilon, bias_correction, bfloat16_first_moments: see `ScaleByAdam`.
      exclude_from_layer_adaptation: see `ScaleByTrustRatio`.
      learning_rate, name: see `ChainOptimizer`.
    """

    def __init__(
        self,
        learning_rate: LearningRate,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: Sequence[str] = LAYER_NORM_AND_BIAS,
        exclude_from_layer_adaptation: Sequence[str] = LAYER_NORM_AND_BIAS,
        bias_correction: bool = False,
        bfloat16_first_moments: bool = False,
        name: str = "LAMBOptimizer",
    ):
        pieces = [
            ScaleByAdam(beta_1, beta_2, epsilon, bias_correction, bfloat16_first_moments),
            # After the moments, which must not see it, and before the ratio, which scales it.
            AddDecayedWeights(weight_decay_rate, exclude_from_weight_decay),
            ScaleByTrustRatio(exclude_from_layer_adaptation),
            ScaleByLearningRate(),
        ]
        super().__init__(pieces, learning_rate, name)


class AdamWeightDecayOptimizer(ChainOptimizer):
    """AdamW is Adam's ratio plus decoupled weight decay.

    With r from `ScaleByAdam`, w the variable and lr the learning rate:

        w = w - lr * (r + weight_decay_rate * w)

    The default, with whose constants BERT was trained, has no bias correction and gives the numbers
    of google-research/bert's optimizer of this name. bias_correction=True is Loshchilov and
    Hutter's AdamW (2019, algorithm 2), and `optax.adamw`.

    Args:
      weight_decay_rate, exclude_from_weight_decay: see `AddDecayedWeights`.
      beta_1, beta_2, epsilon, bias_correction, bfloat16_first_moments: see `ScaleByAdam`.
      learning_rate, name: see `ChainOptimizer`.
    """

    def __init__(
        self,
        learning_rate: LearningRate,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: Sequence[str] = LAYER_NORM_AND_BIAS,
        bias_correction: bool = False,
        bfloat16_first_moments: bool = False,
        name: str = "AdamWeightDecayOptimizer",
    ):
        pieces = [
            ScaleByAdam(beta_1, beta_2, epsilon, bias_correction, bfloat16_first_moments),
            AddDecayedWeights(weight_decay_rate, exclude_from_weight_decay),
            ScaleByLearningRate(),
        ]
        super().__init__(pieces, learning_rate, name)


class LARSOptimizer(ChainOptimizer):
    """Momentum whose steps are scaled, variable by variable, to the length of the variable.

    You et al., "Large batch training of convolutional networks", 2017, in the form that the LAMB
    paper compares itself with (ICLR 2020, algorithm 1). With g the gradient, w the variable and lr
    the learning rate:

        m = beta * m + (1 - beta) * (g + weight_decay_rate * w)
        w = w - lr * ||w|| / ||m|| * m

    In the paper of 2017 the ratio is a constant times ||w|| / (||g|| + weight_decay_rate * ||w||),
    and the momentum remembers scaled steps: learning rates of the two forms cannot be compared.
    Variables that are not adapted take momentum steps without the ratio. At rates that suit LARS,
    these hardly move them. The default constants are LAMB's.

    Args:
      weight_decay_rate, exclude_from_weight_decay: see `AddDecayedWeights`.
      beta: see `Momentum`.
      exclude_from_layer_adaptation: see `ScaleByTrustRatio`.
      learning_rate, name: see `ChainOptimizer`.
    """

    def __init__(
        self,
        learning_rate: LearningRate,
        weight_decay_rate: float = 0.01,
        beta: float = 0.9,
        exclude_from_weight_decay: Sequence[str] = LAYER_NORM_AND_BIAS,
        exclude_from_layer_adaptation: Sequence[str] = LAYER_NORM_AND_BIAS,
        name: str = "LARSOptimizer",
    ):
        pieces = [
            # Unlike in LAMB, the momentum remembers the decay, too.
            AddDecayedWeights(weight_decay_rate, exclude_from_weight_decay),
            Momentum(beta),
            ScaleByTrustRatio(exclude_from_layer_adaptation),
            ScaleByLearningRate(),
        ]
        super().__init__(pieces, learning_rate, name)


class AdafactorOptimizer(ChainOptimizer):
    """Adam without a first moment, whose second moment is kept as row means and column means.

    Shazeer and Stern, "Adafactor: Adaptive learning rates with sublinear memory cost", ICML 2018,
    algorithms 4 and 5 with the constants of algorithm 6. With u from `ScaleByFactoredMoments`, w
    the variable and lr the learning rate:

        w = w - lr * max(epsilon_2, RMS(w)) * u / max(1, RMS(u) / clipping_threshold)

    The state of a matrix is a row and a column. There is no weight decay. The optimizer needs the
    global_step in `apply_gradients`.

    Args:
      learning_rate: see `ChainOptimizer`; it is relative to the size of the variable. The paper's
        is the smaller of 1e-2 and 1 / sqrt(t).
      decay_exponent, epsilon_1: see `ScaleByFactoredMoments`.
      epsilon_2: see `ScaleByParameterRms`.
      clipping_threshold: see `ClipByRms`.
      name: see `ChainOptimizer`.
    """

    def __init__(
        self,
        learning_rate: LearningRate,
        decay_exponent: float = 0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clipping_threshold: float = 1.0,
        name: str = "AdafactorOptimizer",
    ):
        pieces = [
            ScaleByFactoredMoments(decay_exponent, epsilon_1),
            # Before the size of the variable comes in: the threshold is of the update alone.
            ClipByRms(clipping_threshold),
            ScaleByParameterRms(epsilon_2),
            ScaleByLearningRate(),
        ]
        super().__init__(pieces, learning_rate, name)


# The classes of the names in `command_line.choices.OPTIMIZER_NAMES`, in the same order.
OPTIMIZERS: dict[str, type[ChainOptimizer]] = {
    "lamb": LAMBOptimizer,
    "adamw": AdamWeightDecayOptimizer,
    "lars": LARSOptimizer,
    "adafactor": AdafactorOptimizer,
}


def create_optimizer(name: str, learning_rate: LearningRate, **options) -> ChainOptimizer:
    """Makes an optimizer by its name, a key of OPTIMIZERS.

    The learning rate (a number, a float scalar tensor or a function) and the options are arguments
    of its class.

    Raises:
      ValueError: `name` is not a key of OPTIMIZERS, or an option is out of range.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"name={name!r}: must be one of {', '.join(OPTIMIZERS)}.")
    return OPTIMIZERS[name](learning_rate, **options)
