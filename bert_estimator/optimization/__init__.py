"""Schedules, clipping, micro-batches, and optimizers made of small pieces.

In a `model_fn`:

    schedule = WarmupPolynomialDecay(6e-3, num_train_steps=7037, num_warmup_steps=2000)
    global_step = tf.train.get_or_create_global_step()
    optimizer = create_optimizer("lamb", schedule(global_step))
    loss, outputs, grads_and_vars = accumulate(loss_fn, features, micro_batch_size=32)
    gradients, variables = zip(*grads_and_vars)
    clipped, global_norm = clip_by_global_norm(gradients, 1.0)
    train_op = optimizer.apply_gradients(zip(clipped, variables), global_step)
"""

from bert_estimator.optimization.adafactor import AdafactorOptimizer
from bert_estimator.optimization.adam_moments import ScaleByAdam
from bert_estimator.optimization.adamw import AdamWeightDecayOptimizer
from bert_estimator.optimization.clipping import clip_by_global_norm
from bert_estimator.optimization.exclusions import LAYER_NORM_AND_BIAS
from bert_estimator.optimization.gradients import to_dense_float32
from bert_estimator.optimization.lamb import LAMBOptimizer
from bert_estimator.optimization.lars import LARSOptimizer
from bert_estimator.optimization.learning_rate import ScaleByLearningRate
from bert_estimator.optimization.micro_batches import accumulate
from bert_estimator.optimization.optimizer import ChainOptimizer
from bert_estimator.optimization.schedules import WarmupPolynomialDecay
from bert_estimator.optimization.trust_ratio import ScaleByTrustRatio
from bert_estimator.optimization.weight_decay import AddDecayedWeights

__all__ = [
    "LAYER_NORM_AND_BIAS",
    "OPTIMIZERS",
    "AdafactorOptimizer",
    "AdamWeightDecayOptimizer",
    "AddDecayedWeights",
    "ChainOptimizer",
    "LAMBOptimizer",
    "LARSOptimizer",
    "ScaleByAdam",
    "ScaleByLearningRate",
    "ScaleByTrustRatio",
    "WarmupPolynomialDecay",
    "accumulate",
    "clip_by_global_norm",
    "create_optimizer",
    "to_dense_float32",
]

OPTIMIZERS = {
    "adafactor": AdafactorOptimizer,
    "adamw": AdamWeightDecayOptimizer,
    "lamb": LAMBOptimizer,
    "lars": LARSOptimizer,
}


def create_optimizer(name, learning_rate, **options):
    """Makes an optimizer by its name.

    Args:
        name: a key of OPTIMIZERS.
        learning_rate: Python float or float scalar tensor.
        **options: the other arguments of that optimizer's class.

    Returns:
        A ChainOptimizer.

    Raises:
        ValueError: no such optimizer, or an option out of range.
    """
    if name not in OPTIMIZERS:
        raise ValueError(
            f"--optimizer={name}: no such optimizer; choose one of {', '.join(sorted(OPTIMIZERS))}."
        )
    return OPTIMIZERS[name](learning_rate, **options)
