"""The weights of an export, stored in the dtype in which its network reads them.

A run with --precision=bfloat16 has float32 weights, since training adds small updates to them. Each
step rounds them, and each request would, too, which takes a third of the time of a single text
(BERT-base). So an export rounds them once.
"""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import precision
from bert_estimator.interchange import weights
from bert_estimator.tpu import checkpoints


class RoundingSaver(tf.train.Saver):
    """Restores variables of bfloat16 from float32, too, rounded to the nearest, as a cast does."""

    def restore(self, sess: tf.Session, save_path: str) -> None:
        """Restores all variables of the graph; adds no operations to it.

        Raises:
          ValueError: the checkpoint does not fit; see `checkpoints.check_restorable`.
        """
        variables = tf.global_variables()
        checkpoints.check_restorable(save_path, variables, rounds=True)
        reader = tf.train.load_checkpoint(save_path)
        dtypes = {v.op.name: v.dtype.base_dtype.as_numpy_dtype for v in variables}
        weights.load(lambda name: reader.get_tensor(name).astype(dtypes[name]), variables, sess)


def rounded(model_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the model_fn to export: its variables have the dtype in which the model reads them.

    Args:
      model_fn: returns a `TPUEstimatorSpec` without a saver.
    """

    def with_rounded_weights(features, labels, mode, params):
        with precision.stored_as_read():
            spec = model_fn(features, labels, mode, params)
        return spec._replace(
            scaffold_fn=lambda: tf.train.Scaffold(saver=RoundingSaver(sharded=True))
        )

    return with_rounded_weights
