"""What TF1 scripts ask of checkpoints besides RunConfig: a saver of their own, the last step."""

import tensorflow.compat.v1 as tf

from bert_estimator.tpu.verbs import checkpoints


class AsyncCheckpointSaverHook(tf.train.CheckpointSaverHook):
    """As `tf.train.CheckpointSaverHook`, which it is: training waits while a checkpoint is written.

    In TensorFlow 1 a thread wrote it beside training. The files are the same.
    """


def load_global_step_from_checkpoint_dir(checkpoint_dir):
    """Returns the global step of the checkpoint that training would go on from; 0 without one.

    Raises:
      NoWholeCheckpointError: there are checkpoints, and none is whole.
    """
    return checkpoints.global_step_of(checkpoints.newest_whole(checkpoint_dir))
