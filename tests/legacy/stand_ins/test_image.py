"""Tests the transforms of tf.contrib.image against NumPy."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.legacy.stand_ins import image

IMAGES = np.random.RandomState(0).uniform(size=[2, 5, 5, 3]).astype(np.float32)


def run(function, *arguments, **named):
    with tf.Graph().as_default(), tf.Session() as session:
        result = function(*arguments, **named)
        value = session.run(result)
        assert result.shape.is_compatible_with(value.shape)
        return value


@pytest.mark.parametrize("interpolation", ["NEAREST", "BILINEAR"])
def test_turned_by_quarters(interpolation):
    got = run(image.rotate, IMAGES, [0.0, np.pi / 2], interpolation)
    np.testing.assert_allclose(got[0], IMAGES[0], rtol=1e-5)
    np.testing.assert_allclose(got[1], np.rot90(IMAGES[1]), atol=1e-5)


def test_moved():
    got = run(image.translate, IMAGES, [2, -1])
    expected = np.zeros_like(IMAGES)
    expected[:, :4, 2:] = IMAGES[:, 1:, :3]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("picture", [IMAGES[0], IMAGES[0, :, :, 0]])
def test_one_image(picture):
    got = run(image.rotate, picture, np.pi)
    np.testing.assert_array_equal(got, picture[::-1, ::-1])


def test_another_size_and_dtype():
    pixels = (255 * IMAGES).astype(np.uint8)
    got = run(image.transform, pixels, [1, 0, 1, 0, 1, 2, 0, 0], output_shape=[2, 3])
    np.testing.assert_array_equal(got, pixels[:, 2:4, 1:4])


def test_composed_transforms_are_matrices_in_turn():
    first, second = [1, 0.1, 2, 0, 0.9, 1, 0.01, 0], [0.5, 0, -1, 0.2, 1, 0, 0, 0.02]
    composed = run(image.compose_transforms, first, second)

    def matrix(flat):
        return np.reshape([*flat, 1], [3, 3])

    product = matrix(first) @ matrix(second)
    np.testing.assert_allclose(composed[0], (product / product[2, 2]).ravel()[:8], rtol=1e-5)


def test_wrong_ranks():
    with tf.Graph().as_default():
        with pytest.raises(TypeError, match="Images should have rank between 2 and 4"):
            image.rotate(IMAGES[None], 1.0)
        with pytest.raises(TypeError, match="Transforms should have rank 1 or 2"):
            image.transform(IMAGES, [[[1.0] * 8]])
        with pytest.raises(ValueError, match="at least one"):
            image.compose_transforms()
