"""The eval step: a variable with the number of evaluated steps, which hooks may read."""

import tensorflow.compat.v1 as tf
from tensorflow.python.training import evaluation


class EvalStepCounter(tf.train.SessionRunHook):
    """Counts steps in the graph's eval step (`tf.GraphKeys.EVAL_STEP`), made if it does not exist.

    Args:
      steps_a_loop: how many steps run between two visits of the hooks.
      hooks: the evaluation's hooks. TensorFlow's own `StopAfterNEvalsHook` gets the count.
    """

    def __init__(self, steps_a_loop: int, hooks: list[tf.train.SessionRunHook]):
        with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
            eval_step = evaluation._get_or_create_eval_step()
        self._count = tf.assign_add(eval_step, steps_a_loop, use_locking=True)
        with tf.control_dependencies([self._count]):
            completed = tf.identity(eval_step.read_value())
        for hook in hooks:
            if hasattr(hook, "_set_evals_completed_tensor"):
                hook._set_evals_completed_tensor(completed)

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._count)
