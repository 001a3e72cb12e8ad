"""Two names of TF1 scripts for checkpoints: a saver of their own, and the last step."""

import tensorflow.compat.v1 as tf

from bert_estimator.tpu import checkpoints


class AsyncCheckpointSaverHook(tf.train.CheckpointSaverHook):
    """Saves checkpoints as `tf.train.CheckpointSaverHook` does; training waits for them.

    In TensorFlow 1 this hook saved in a thread, beside training. The files are the same.
    """


def load_global_step_from_checkpoint_dir(checkpoint_dir: str) -> int:
    """Returns the global step that training would resume from; 0 if there are no checkpoints.

    Raises:
      NoWholeCheckpointError: there are checkpoints, but none of them is complete.
    """
    return checkpoints.global_step_of(checkpoints.newest_whole(checkpoint_dir))
