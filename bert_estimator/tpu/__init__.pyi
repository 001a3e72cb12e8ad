from bert_estimator.tpu import early_stopping as early_stopping
from bert_estimator.tpu import serving as serving
from bert_estimator.tpu import summary as summary
from bert_estimator.tpu.base_estimator import Estimator as Estimator
from bert_estimator.tpu.call import TPUContext as TPUContext
from bert_estimator.tpu.config import InputPipelineConfig as InputPipelineConfig
from bert_estimator.tpu.config import RunConfig as RunConfig
from bert_estimator.tpu.config import TPUClusterResolver as TPUClusterResolver
from bert_estimator.tpu.config import TPUConfig as TPUConfig
from bert_estimator.tpu.errors import DataEndedError as DataEndedError
from bert_estimator.tpu.errors import NanLossDuringTrainingError as NanLossDuringTrainingError
from bert_estimator.tpu.errors import NonFiniteWeightsError as NonFiniteWeightsError
from bert_estimator.tpu.estimator import TPUEstimator as TPUEstimator
from bert_estimator.tpu.program import compile_report as compile_report
from bert_estimator.tpu.program import devices as devices
from bert_estimator.tpu.replicas.replica import CrossShardOptimizer as CrossShardOptimizer
from bert_estimator.tpu.replicas.replica import cross_replica_sum as cross_replica_sum
from bert_estimator.tpu.replicas.replica import num_replicas as num_replicas
from bert_estimator.tpu.replicas.replica import outside_compilation as outside_compilation
from bert_estimator.tpu.replicas.replica import replica_id as replica_id
from bert_estimator.tpu.replicas.replica import update_shards as update_shards
from bert_estimator.tpu.serving import ExportSavedModelApiVersion as ExportSavedModelApiVersion
from bert_estimator.tpu.spec import EstimatorSpec as EstimatorSpec
from bert_estimator.tpu.spec import ModeKeys as ModeKeys
from bert_estimator.tpu.spec import TPUEstimatorSpec as TPUEstimatorSpec
from bert_estimator.tpu.step.xla.step_graph import check_tensorflow as check_tensorflow
from bert_estimator.tpu.train_eval.exporters import BestExporter as BestExporter
from bert_estimator.tpu.train_eval.exporters import Exporter as Exporter
from bert_estimator.tpu.train_eval.exporters import FinalExporter as FinalExporter
from bert_estimator.tpu.train_eval.exporters import LatestExporter as LatestExporter
from bert_estimator.tpu.train_eval.train_and_evaluate import (
    ContinuousEvalListener as ContinuousEvalListener,
)
from bert_estimator.tpu.train_eval.train_and_evaluate import EvalResult as EvalResult
from bert_estimator.tpu.train_eval.train_and_evaluate import EvalSpec as EvalSpec
from bert_estimator.tpu.train_eval.train_and_evaluate import (
    InMemoryEvaluatorHook as InMemoryEvaluatorHook,
)
from bert_estimator.tpu.train_eval.train_and_evaluate import TrainSpec as TrainSpec
from bert_estimator.tpu.train_eval.train_and_evaluate import (
    train_and_evaluate as train_and_evaluate,
)
from bert_estimator.tpu.train_eval.train_and_evaluate import (
    train_with_listener as train_with_listener,
)
from bert_estimator.tpu.verbs import checkpoints as checkpoints
from bert_estimator.tpu.verbs.interrupts import Interrupts as Interrupts
from bert_estimator.tpu.verbs.progress import LogListener as LogListener
from bert_estimator.tpu.warm_start import WarmStartSettings as WarmStartSettings
