"""The cross-entropy of labels under logits, which on a CPU is compiled if it is large."""

import tensorflow.compat.v1 as tf

from bert_estimator.layers import primitives
from bert_estimator.xla_context import in_xla_program

# TensorFlow's own operation takes 4 nanoseconds for an element, and the compiled one takes 1. For
# fewer elements that saves less than the time to compile it.
_LEAST_ELEMENTS = 1 << 22


def sparse_softmax_cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Computes -log(softmax(logits)[label]) of each row.

    On a CPU TensorFlow's own operation takes as long as the product that makes the logits. So large
    logits go through one compiled computation forward and one backward.

    Args:
      labels: int32 [rows], from 0 to V - 1. Another label gives NaN on accelerators and for large
        logits, and TensorFlow's error otherwise.
      logits: float32 [rows, V].

    Returns:
      float32 [rows].
    """
    elements = logits.shape.num_elements() or 0
    if elements < _LEAST_ELEMENTS or in_xla_program():
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss, log_sum = primitives.fused(_loss_and_log_sum, labels, logits)
    name = "BertEstimatorCrossEntropy"
    return primitives.with_gradient(name, loss, labels, logits, log_sum)


@tf.RegisterGradient("BertEstimatorCrossEntropy")
def _gradient(op, gradient, *_):
    _, labels, logits, log_sum = op.inputs
    return None, None, primitives.fused(_slope, labels, logits, log_sum, gradient), None


def _loss_and_log_sum(labels, logits):
    largest = tf.reduce_max(logits, axis=-1)
    log_sum = largest + tf.math.log(tf.reduce_sum(tf.exp(logits - largest[:, tf.newaxis]), axis=-1))
    # XLA would take another row's logit for a label that is out of range.
    in_range = tf.logical_and(labels >= 0, labels < tf.shape(logits)[-1])
    loss = log_sum - tf.gather(logits, labels, batch_dims=1)
    return tf.where(in_range, loss, tf.fill(tf.shape(loss), float("nan"))), log_sum


def _slope(labels, logits, log_sum, gradient):
    at_label = tf.one_hot(labels, tf.shape(logits)[-1])
    return (tf.exp(logits - log_sum[:, tf.newaxis]) - at_label) * gradient[:, tf.newaxis]
