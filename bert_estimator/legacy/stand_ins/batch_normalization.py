"""`tf.layers.batch_normalization`, the only one of TF1's layers that TensorFlow removed.

The paper is Ioffe and Szegedy, "Batch Normalization", 2015. The variables (`gamma`, `beta`,
`moving_mean`, `moving_variance`) and the UPDATE_OPS collection are as in TensorFlow 1.
"""

from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import tensor_util
from tensorflow.python.layers import base


class BatchNormalization(base.Layer):
    """Normalizes each channel (of `axis`) over the batch; scale and shift are learned."""

    def __init__(
        self,
        axis: Any = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        moving_mean_initializer: Any = None,
        moving_variance_initializer: Any = None,
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        renorm: bool = False,
        renorm_clipping: Any = None,
        renorm_momentum: float = 0.99,
        fused: bool | None = None,
        trainable: bool = True,
        virtual_batch_size: int | None = None,
        adjustment: Any = None,
        name: str | None = None,
        **kwargs,
    ):
        super().__init__(trainable=trainable, name=name, **kwargs)
        for argument, value in (
            ("renorm", renorm),
            ("virtual_batch_size", virtual_batch_size),
            ("adjustment", adjustment),
        ):
            if value:
                raise ValueError(
                    f"tf.layers.batch_normalization: {argument} is not supported; "
                    "tf.keras.layers.BatchNormalization of the tf_keras package may have it"
                )
        if isinstance(axis, list | tuple):
            if len(axis) != 1:
                raise ValueError(
                    f"tf.layers.batch_normalization: axis={axis!r} must be one axis, an integer"
                )
            axis = axis[0]
        self.axis = axis
        self.momentum = momentum
        self.epsilon = epsilon
        # None is as True: TensorFlow's fused kernel is used if it applies.
        self.fused = fused
        self._initializers = {
            "beta": (center, beta_initializer or tf.zeros_initializer()),
            "gamma": (scale, gamma_initializer or tf.ones_initializer()),
        }
        self._regularizers = {"beta": beta_regularizer, "gamma": gamma_regularizer}
        self._constraints = {"beta": beta_constraint, "gamma": gamma_constraint}
        self._moving_initializers = {
            "moving_mean": moving_mean_initializer or tf.zeros_initializer(),
            "moving_variance": moving_variance_initializer or tf.ones_initializer(),
        }

    def build(self, input_shape: Any) -> None:
        shape = tf.TensorShape(input_shape).as_list()
        if not -len(shape) <= self.axis < len(shape):
            raise ValueError(
                f"tf.layers.batch_normalization: axis={self.axis} is not an axis of the input, "
                f"whose shape is {shape}"
            )
        # From here on the axis counts from the front.
        self.axis %= len(shape)
        channels = shape[self.axis]
        if channels is None:
            raise ValueError(
                f"tf.layers.batch_normalization: the size of axis {self.axis} must be known; the "
                f"input's shape is {shape}"
            )
        for name in ("gamma", "beta"):
            is_used, initializer = self._initializers[name]
            weight = None
            if is_used:
                weight = self.add_weight(
                    name,
                    [channels],
                    tf.float32,
                    initializer,
                    regularizer=self._regularizers[name],
                    constraint=self._constraints[name],
                )
            setattr(self, name, weight)
        for name, initializer in self._moving_initializers.items():
            weight = self.add_weight(name, [channels], tf.float32, initializer, trainable=False)
            setattr(self, name, weight)
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool | tf.Tensor = False) -> tf.Tensor:
        """Returns the inputs normalized, of their shape and dtype: by the batch's statistics if
        `training` (bool or bool tensor), else by the moving statistics."""
        known = tensor_util.constant_value(tf.convert_to_tensor(training, tf.bool))
        # Statistics are float32, whatever the inputs are.
        x = tf.cast(inputs, tf.float32)
        if known is None:
            training = tf.convert_to_tensor(training)
            outputs, mean, variance = tf.cond(
                training,
                lambda: self._by_batch_statistics(x),
                lambda: self._by_moving_statistics(x),
            )
            # A share of 1 leaves the moving statistics as they are.
            keep = tf.where(training, self.momentum, 1.0)
        elif known:
            outputs, mean, variance = self._by_batch_statistics(x)
            keep = self.momentum
        else:
            outputs, _, _ = self._by_moving_statistics(x)
        if known is None or known:
            for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
                self.add_update(moving.assign_sub((moving - value) * (1 - keep)))
        return tf.cast(outputs, inputs.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def _by_batch_statistics(self, x):
        if self._is_fused(x):
            # The kernel returns the unbiased variance, which TensorFlow 1 averaged too.
            return self._fused(x, None, None, is_training=True)
        axes = [axis for axis in range(x.shape.rank) if axis != self.axis]
        mean, variance = self._moments(x, axes, keep_dims=False)
        return self._normalized(x, mean, variance), mean, variance

    def _moments(self, inputs, reduction_axes, keep_dims):
        """Returns mean and variance; subclasses of scripts take them over all cores."""
        return tf.nn.moments(inputs, reduction_axes, keep_dims=keep_dims)

    def _by_moving_statistics(self, x):
        mean = tf.convert_to_tensor(self.moving_mean)
        variance = tf.convert_to_tensor(self.moving_variance)
        if self._is_fused(x):
            outputs, _, _ = self._fused(x, mean, variance, is_training=False)
        else:
            outputs = self._normalized(x, mean, variance)
        return outputs, mean, variance

    def _is_fused(self, x):
        # The kernel takes [batch, height, width, channels] and [batch, channels, height, width].
        return self.fused in (None, True) and x.shape.rank == 4 and self.axis in (1, 3)

    def _fused(self, x, mean, variance, is_training):
        channels = [self.moving_mean.shape.as_list()[0]]
        return tf.nn.fused_batch_norm(
            x,
            tf.ones(channels) if self.gamma is None else self.gamma,
            tf.zeros(channels) if self.beta is None else self.beta,
            mean,
            variance,
            epsilon=self.epsilon,
            data_format="NHWC" if self.axis == 3 else "NCHW",
            is_training=is_training,
        )

    def _normalized(self, x, mean, variance):
        shape = [1] * x.shape.rank
        shape[self.axis] = -1

        def broadcast(tensor):
            return None if tensor is None else tf.reshape(tensor, shape)

        return tf.nn.batch_normalization(
            x,
            broadcast(mean),
            broadcast(variance),
            broadcast(self.beta),
            broadcast(self.gamma),
            self.epsilon,
        )


def batch_normalization(
    inputs: tf.Tensor,
    axis: Any = -1,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = None,
    gamma_initializer: Any = None,
    moving_mean_initializer: Any = None,
    moving_variance_initializer: Any = None,
    beta_regularizer: Any = None,
    gamma_regularizer: Any = None,
    beta_constraint: Any = None,
    gamma_constraint: Any = None,
    training: bool | tf.Tensor = False,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | None = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_momentum: float = 0.99,
    fused: bool | None = None,
    virtual_batch_size: int | None = None,
    adjustment: Any = None,
) -> tf.Tensor:
    """Applies a `BatchNormalization` layer; its updates go to the UPDATE_OPS collection, and
    training must run them."""
    layer = BatchNormalization(
        axis=axis,
        momentum=momentum,
        epsilon=epsilon,
        center=center,
        scale=scale,
        beta_initializer=beta_initializer,
        gamma_initializer=gamma_initializer,
        moving_mean_initializer=moving_mean_initializer,
        moving_variance_initializer=moving_variance_initializer,
        beta_regularizer=beta_regularizer,
        gamma_regularizer=gamma_regularizer,
        beta_constraint=beta_constraint,
        gamma_constraint=gamma_constraint,
        renorm=renorm,
        renorm_clipping=renorm_clipping,
        renorm_momentum=renorm_momentum,
        fused=fused,
        trainable=trainable,
        virtual_batch_size=virtual_batch_size,
        adjustment=adjustment,
        name=name,
        # The layer's variables are in the scope `name` itself, so that another call can reuse them.
        _reuse=reuse,
        _scope=name,
    )
    return layer(inputs, training=training)
