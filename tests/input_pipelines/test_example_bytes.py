import random

import pytest
import tensorflow.compat.v1 as tf

from input_pipelines import example_bytes


def test_equals_protocol_buffers():
    rng = random.Random(0)
    for size in (0, 1, 2, 20, 100, 300, 5000):
        for most in (1, 127, 128, 16383, 16384, 65535, 65536, 2**31 - 1, 2**63 - 1):
            integers = [rng.randint(0, most) for _ in range(size)]
            floats = [rng.uniform(-1e30, 1e30) for _ in range(size)]
            data = rng.randbytes(size)
            expected = tf.train.Example()
            feature = expected.features.feature
            feature["b integers"].int64_list.value.extend([*integers, 0, 0])
            feature["c"].float_list.value.extend([*floats, 0.0])
            feature["a"].bytes_list.value.append(data or b"x")
            written = example_bytes.example(
                {
                    "b integers": example_bytes.int64_feature(integers, size + 2),
                    "c": example_bytes.float_feature(floats, size + 1),
                    "a": example_bytes.bytes_feature(data or b"x"),
                }
            )
            assert written == expected.SerializeToString(deterministic=True)


def test_negative_numbers_are_refused():
    for values in ([-1], [5, -(2**40)], [200, -1], [-1, 2**40]):
        with pytest.raises(ValueError, match="is negative"):
            example_bytes.int64_feature(values, 2)
