"""TensorFlow's private executor of a training, on train_and_evaluate."""

import legacy_script
import pytest
import tensorflow.compat.v1 as tf
from toy import checkpoint_steps, input_fn, make_estimator

from bert_estimator import tpu
from bert_estimator.legacy.stand_ins import training

SPECS = (
    tpu.TrainSpec(input_fn, max_steps=6),
    tpu.EvalSpec(input_fn, steps=1, throttle_secs=0),
)

# EasyRec's imports, and how it uses them.
NAMES = """
import pydoc
import tensorflow as tf
from tensorflow.python.distribute import estimator_training
from tensorflow.python.estimator import run_config
from tensorflow.python.estimator.exporter import Exporter, _SavedModelExporter
from tensorflow.python.estimator.training import _ContinuousEvalListener, _TrainingExecutor
from tensorflow.python.estimator.training import _assert_eval_spec
from tensorflow.python.saved_model.utils_impl import get_variables_path

assert run_config.TaskType.EVALUATOR == "evaluator"
assert not estimator_training.should_run_distribute_coordinator(tf.estimator.RunConfig())
assert issubclass(_SavedModelExporter, Exporter)
assert _SavedModelExporter("a", None, None, False).name == "a"
assert _ContinuousEvalListener().before_eval() and _ContinuousEvalListener().after_eval(None)
assert get_variables_path("a") == "a/variables/variables"
try:
    _assert_eval_spec("spec")
except TypeError as error:
    assert "eval_spec must be a(n) EvalSpec" in str(error)
# The library's own way to load what a configuration names.
for name, value in {
    "nn.relu": tf.nn.relu,
    "train.AdamOptimizer": tf.train.AdamOptimizer,
    "contrib.layers.layer_norm": tf.contrib.layers.layer_norm,
    "estimator.Estimator": tf.estimator.Estimator,
}.items():
    assert pydoc.locate("tensorflow." + name) is value, name
print("all")
"""


def test_the_names_are_where_programs_import_them(tmp_path):
    assert legacy_script.run(tmp_path, NAMES).stdout.splitlines()[-1:] == ["all"]


def test_the_executor_trains_and_evaluates_with_its_hooks_and_listener(tmp_path):
    estimator = make_estimator(tmp_path, save_checkpoints_steps=2)
    begun = []

    class Hook(tf.train.SessionRunHook):
        def begin(self):
            begun.append(True)

    class UntilStep4(tpu.ContinuousEvalListener):
        def after_eval(self, eval_result):
            assert eval_result.status == training.EvalStatus.EVALUATED
            return eval_result.metrics["global_step"] < 4

    executor = training.TrainingExecutor(
        estimator, *SPECS, train_hooks=[Hook()], continuous_eval_listener=UntilStep4()
    )
    assert executor.estimator is estimator
    results, exports = executor.run()
    assert (results["global_step"], exports, begun) == (4, [], [True])
    assert checkpoint_steps(tmp_path) == [0, 2, 4]


@pytest.mark.parametrize("wrong", ["estimator", "train_spec", "eval_spec", "listener"])
def test_arguments_have_their_types(tmp_path, wrong):
    right = {"estimator": make_estimator(tmp_path), "train_spec": SPECS[0], "eval_spec": SPECS[1]}
    name = "continuous_eval_listener" if wrong == "listener" else wrong
    with pytest.raises(TypeError, match=f"{name} must be a"):
        training.TrainingExecutor(**{**right, name: 1})
