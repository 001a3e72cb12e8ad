"""TPUEstimator on today's TensorFlow. Knows nothing of BERT.

Public names are those of `tf.compat.v1.estimator.tpu`, and what a `model_fn` or a host call needs
besides: `CrossShardOptimizer`, `cross_replica_sum`, the event writer `summary`.
"""

from bert_estimator.tpu import summary
from bert_estimator.tpu.call import TPUContext
from bert_estimator.tpu.config import InputPipelineConfig, RunConfig, TPUConfig
from bert_estimator.tpu.cross_shard_optimizer import CrossShardOptimizer
from bert_estimator.tpu.errors import NanLossDuringTrainingError, NonFiniteWeightsError
from bert_estimator.tpu.estimator import TPUEstimator
from bert_estimator.tpu.progress import LogListener
from bert_estimator.tpu.replica import cross_replica_sum, num_replicas, replica_id
from bert_estimator.tpu.spec import EstimatorSpec, ModeKeys, TPUEstimatorSpec

__all__ = [
    "CrossShardOptimizer",
    "EstimatorSpec",
    "InputPipelineConfig",
    "LogListener",
    "ModeKeys",
    "NanLossDuringTrainingError",
    "NonFiniteWeightsError",
    "RunConfig",
    "TPUConfig",
    "TPUContext",
    "TPUEstimator",
    "TPUEstimatorSpec",
    "cross_replica_sum",
    "num_replicas",
    "replica_id",
    "summary",
]
