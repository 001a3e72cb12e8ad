"""Moved and turned images: the transforms of tf.contrib.image."""

from typing import Any

import tensorflow.compat.v1 as tf


def transform(
    images: Any,
    transforms: Any,
    interpolation: str = "NEAREST",
    output_shape: Any = None,
    name: str | None = None,
) -> tf.Tensor:
    """Returns images moved by projective transforms; what comes from outside of an image is 0.

    A transform a0, a1, a2, b0, b1, b2, c0, c1 (float32 [batch, 8], [1, 8] or [8]) says, with
    k = c0 x + c1 y + 1, that the output's (x, y) is the input's
    ((a0 x + a1 y + a2) / k, (b0 x + b1 y + b2) / k).
    """
    with tf.name_scope(name, "transform"):
        images = tf.convert_to_tensor(images)
        transforms = tf.convert_to_tensor(transforms, tf.float32)
        batch = _as_batch(images)
        if transforms.shape.rank not in (1, 2):
            raise TypeError("Transforms should have rank 1 or 2.")
        if output_shape is None:
            output_shape = tf.shape(batch)[1:3]
        moved = tf.raw_ops.ImageProjectiveTransformV3(
            images=batch,
            transforms=tf.reshape(transforms, [-1, 8]),
            output_shape=output_shape,
            fill_value=0.0,
            interpolation=interpolation.upper(),
        )
        # The operation does not tell the static shape of its result.
        size = tf.get_static_value(tf.convert_to_tensor(output_shape))
        if size is not None:
            moved.set_shape([batch.shape[0], *size, batch.shape[3]])
        if images.shape.rank == 2:
            return moved[0, :, :, 0]
        return moved[0] if images.shape.rank == 3 else moved


def rotate(
    images: Any, angles: Any, interpolation: str = "NEAREST", name: str | None = None
) -> tf.Tensor:
    """Returns images turned about their middle, counterclockwise by `angles`, float32 scalar or
    [batch], in radians."""
    with tf.name_scope(name, "rotate"):
        images = tf.convert_to_tensor(images)
        height, width = tf.unstack(tf.cast(tf.shape(_as_batch(images))[1:3], tf.float32))
        turns = angles_to_projective_transforms(angles, height, width)
        return transform(images, turns, interpolation)


def translate(
    images: Any, translations: Any, interpolation: str = "NEAREST", name: str | None = None
) -> tf.Tensor:
    """Returns images moved by `translations`, float32 [dx, dy] or [batch, 2], in pixels."""
    with tf.name_scope(name, "translate"):
        return transform(images, translations_to_projective_transforms(translations), interpolation)


def angles_to_projective_transforms(
    angles: Any, image_height: Any, image_width: Any, name: str | None = None
) -> tf.Tensor:
    """Returns the transforms, float32 [batch, 8], that turn images by angles in radians."""
    with tf.name_scope(name, "angles_to_projective_transforms"):
        angles = tf.reshape(tf.convert_to_tensor(angles, tf.float32), [-1])
        cos, sin = tf.cos(angles), tf.sin(angles)
        # The middle of the pixels stays where it is: half of the last index, not of the size.
        right, down = image_width - 1, image_height - 1
        x = (right - (cos * right - sin * down)) / 2
        y = (down - (sin * right + cos * down)) / 2
        zero = tf.zeros_like(angles)
        return tf.stack([cos, -sin, x, sin, cos, y, zero, zero], axis=1)


def translations_to_projective_transforms(translations: Any, name: str | None = None) -> tf.Tensor:
    """Returns the transforms, float32 [batch, 8], that move images by [dx, dy] or [batch, 2]."""
    with tf.name_scope(name, "translations_to_projective_transforms"):
        moves = tf.reshape(tf.convert_to_tensor(translations, tf.float32), [-1, 2])
        one, zero = tf.ones_like(moves[:, 0]), tf.zeros_like(moves[:, 0])
        return tf.stack([one, zero, -moves[:, 0], zero, one, -moves[:, 1], zero, zero], axis=1)


def flat_transforms_to_matrices(transforms: Any) -> tf.Tensor:
    """Returns transforms, [batch, 8] or [8], as matrices [batch, 3, 3]."""
    flat = tf.reshape(tf.convert_to_tensor(transforms), [-1, 8])
    return tf.reshape(tf.concat([flat, tf.ones_like(flat[:, :1])], axis=1), [-1, 3, 3])


def matrices_to_flat_transforms(transform_matrices: Any) -> tf.Tensor:
    """Returns matrices, [batch, 3, 3] or [3, 3], as transforms [batch, 8]."""
    flat = tf.reshape(tf.convert_to_tensor(transform_matrices), [-1, 9])
    return flat[:, :8] / flat[:, 8:]


def compose_transforms(*transforms: Any) -> tf.Tensor:
    """Returns the transform, [batch, 8], that does the given ones in turn, the first one first."""
    if not transforms:
        raise ValueError("compose_transforms: give at least one transform")
    # A transform leads from the output to the input, so the first one is the left factor.
    composed = flat_transforms_to_matrices(transforms[0])
    for following in transforms[1:]:
        composed = tf.matmul(composed, flat_transforms_to_matrices(following))
    return matrices_to_flat_transforms(composed)


def _as_batch(images):
    if images.shape.rank == 2:
        return images[None, :, :, None]
    if images.shape.rank == 3:
        return images[None]
    if images.shape.rank != 4:
        raise TypeError("Images should have rank between 2 and 4.")
    return images
