"""Schedules, clipping, micro-batches, and optimizers made of small pieces.

In a `model_fn`:

    global_step = tf.train.get_or_create_global_step()
    schedule = WarmupPolynomialDecay(6e-3, num_train_steps=7037, num_warmup_steps=2000)
    optimizer = create_optimizer("lamb", learning_rate=schedule(global_step))
    loss, outputs, grads_and_vars = accumulate(loss_fn, features, micro_batch_size=32)
    scale, global_norm = clipping_scale([gradient for gradient, _ in grads_and_vars], 1.0)
    train_op = optimizer.apply_gradients(grads_and_vars, global_step, scale=scale)
"""

from bert_estimator.optimization.chain import ChainOptimizer
from bert_estimator.optimization.gradients import (
    accumulate,
    clip_by_global_norm,
    clipping_scale,
    to_dense_float32,
)
from bert_estimator.optimization.optimizers import (
    OPTIMIZERS,
    AdafactorOptimizer,
    AdamWeightDecayOptimizer,
    LAMBOptimizer,
    LARSOptimizer,
    create_optimizer,
)
from bert_estimator.optimization.parts import Part, Shards
from bert_estimator.optimization.piece import Piece, Slot, UpdateStep
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
from bert_estimator.optimization.schedules import WarmupPolynomialDecay

__all__ = [
    "LAYER_NORM_AND_BIAS",
    "OPTIMIZERS",
    "AdafactorOptimizer",
    "AdamWeightDecayOptimizer",
    "AddDecayedWeights",
    "ChainOptimizer",
    "ClipByRms",
    "LAMBOptimizer",
    "LARSOptimizer",
    "Momentum",
    "Part",
    "Piece",
    "ScaleByAdam",
    "ScaleByFactoredMoments",
    "ScaleByLearningRate",
    "ScaleByParameterRms",
    "ScaleByTrustRatio",
    "Shards",
    "Slot",
    "UpdateStep",
    "WarmupPolynomialDecay",
    "accumulate",
    "clip_by_global_norm",
    "clipping_scale",
    "create_optimizer",
    "to_dense_float32",
]
