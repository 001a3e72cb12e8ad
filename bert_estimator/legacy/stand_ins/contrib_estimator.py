"""The heads of tf.contrib.estimator, and `clip_gradients_by_norm`.

They are the heads of `tf.estimator`, from the tensorflow-estimator package, and also take an
optimizer of `tf.train`, which canned estimators of TensorFlow 1 give them.
"""

import functools
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.legacy import wheel

_SUM_OVER_BATCH_SIZE = tf.losses.Reduction.SUM_OVER_BATCH_SIZE
# The names of TensorFlow 2, which the package's heads take.
_REDUCTIONS = {_SUM_OVER_BATCH_SIZE: "sum_over_batch_size", tf.losses.Reduction.SUM: "sum"}


@functools.cache
def _head(module, name):
    """Returns a class of the package that also takes optimizers of `tf.train`."""
    kind = wheel.member(f"head.{module}", name)

    class Head(kind):
        def _create_tpu_estimator_spec(
            self,
            features,
            mode,
            logits,
            labels=None,
            optimizer=None,
            trainable_variables=None,
            train_op_fn=None,
            update_ops=None,
            regularization_losses=None,
        ):
            return super()._create_tpu_estimator_spec(
                features,
                mode,
                logits,
                labels,
                **_either(optimizer, train_op_fn),
                trainable_variables=trainable_variables,
                update_ops=update_ops or tf.get_collection(tf.GraphKeys.UPDATE_OPS),
                regularization_losses=regularization_losses,
            )

    Head.__name__ = Head.__qualname__ = name
    return Head


@functools.cache
def _multi_head():
    kind = wheel.member("head.multi_head", "MultiHead")

    class MultiHead(kind):
        def create_estimator_spec(
            self, features, mode, logits, labels=None, optimizer=None, train_op_fn=None, **further
        ):
            further.setdefault("update_ops", tf.get_collection(tf.GraphKeys.UPDATE_OPS))
            return super().create_estimator_spec(
                features, mode, logits, labels, **_either(optimizer, train_op_fn), **further
            )

    return MultiHead


def _reduction(loss_reduction):
    if loss_reduction not in _REDUCTIONS:
        raise ValueError(
            f"loss_reduction={loss_reduction!r} is not supported; it must be "
            "tf.losses.Reduction.SUM or SUM_OVER_BATCH_SIZE"
        )
    return _REDUCTIONS[loss_reduction]


def _either(optimizer, train_op_fn):
    """Returns the arguments of a head for an optimizer, which may be of `tf.train`."""
    if not isinstance(optimizer, tf.train.Optimizer):
        return {"optimizer": optimizer, "train_op_fn": train_op_fn}
    step = tf.train.get_or_create_global_step()
    return {"train_op_fn": lambda loss: optimizer.minimize(loss, global_step=step)}


def multi_class_head(
    n_classes: int,
    weight_column: Any = None,
    label_vocabulary: Any = None,
    loss_reduction: str = _SUM_OVER_BATCH_SIZE,
    loss_fn: Any = None,
    name: str | None = None,
) -> Any:
    """Returns a head for labels of which one of `n_classes` holds."""
    return _head("multi_class_head", "MultiClassHead")(
        n_classes, weight_column, label_vocabulary, _reduction(loss_reduction), loss_fn, name
    )


def binary_classification_head(
    weight_column: Any = None,
    thresholds: Any = None,
    label_vocabulary: Any = None,
    loss_reduction: str = _SUM_OVER_BATCH_SIZE,
    loss_fn: Any = None,
    name: str | None = None,
) -> Any:
    """Returns a head for labels that are 0 or 1."""
    return _head("binary_class_head", "BinaryClassHead")(
        weight_column, thresholds, label_vocabulary, _reduction(loss_reduction), loss_fn, name
    )


def multi_label_head(
    n_classes: int,
    weight_column: Any = None,
    thresholds: Any = None,
    label_vocabulary: Any = None,
    loss_reduction: str = _SUM_OVER_BATCH_SIZE,
    loss_fn: Any = None,
    classes_for_class_based_metrics: Any = None,
    name: str | None = None,
) -> Any:
    """Returns a head for labels of which any of `n_classes` may hold."""
    return _head("multi_label_head", "MultiLabelHead")(
        n_classes,
        weight_column,
        thresholds,
        label_vocabulary,
        _reduction(loss_reduction),
        loss_fn,
        classes_for_class_based_metrics,
        name,
    )


def regression_head(
    weight_column: Any = None,
    label_dimension: int = 1,
    loss_reduction: str = _SUM_OVER_BATCH_SIZE,
    loss_fn: Any = None,
    inverse_link_fn: Any = None,
    name: str | None = None,
) -> Any:
    """Returns a head for numbers."""
    return _head("regression_head", "RegressionHead")(
        label_dimension, weight_column, _reduction(loss_reduction), loss_fn, inverse_link_fn, name
    )


def poisson_regression_head(
    weight_column: Any = None,
    label_dimension: int = 1,
    loss_reduction: str = _SUM_OVER_BATCH_SIZE,
    compute_full_loss: bool = True,
    name: str | None = None,
) -> Any:
    """Returns a head for counts, whose logits are logarithms of their means."""
    return _head("regression_head", "PoissonRegressionHead")(
        label_dimension, weight_column, _reduction(loss_reduction), compute_full_loss, name
    )


def logistic_regression_head(
    weight_column: Any = None,
    loss_reduction: str = _SUM_OVER_BATCH_SIZE,
    name: str | None = None,
) -> Any:
    """Returns a head for numbers from 0 to 1."""
    return _head("regression_head", "LogisticRegressionHead")(
        weight_column, _reduction(loss_reduction), name
    )


def multi_head(heads: Any, head_weights: Any = None) -> Any:
    """Returns a head that sums the losses of several heads, each of which has a name."""
    return _multi_head()(heads, head_weights)


class _ClippingOptimizer(tf.train.Optimizer):
    def __init__(self, optimizer, clip_norm):
        super().__init__(use_locking=False, name="ClipByNorm" + optimizer.get_name())
        self._optimizer, self._clip_norm = optimizer, clip_norm

    def compute_gradients(self, *args, **kwargs):
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        gradients, variables = zip(*grads_and_vars, strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, self._clip_norm)
        return self._optimizer.apply_gradients(
            list(zip(clipped, variables, strict=True)), global_step, name
        )

    def get_slot(self, var, name):
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self):
        return self._optimizer.get_slot_names()

    def variables(self):
        return self._optimizer.variables()


def clip_gradients_by_norm(optimizer: tf.train.Optimizer, clip_norm: Any) -> tf.train.Optimizer:
    """Returns an optimizer that clips gradients by their global norm before it applies them.

    Args:
      optimizer: the optimizer that applies the clipped gradients; its slots keep their names.
      clip_norm: the largest global norm, a number or a scalar tensor.
    """
    return _ClippingOptimizer(optimizer, clip_norm)
