import random

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from input_pipelines.creation import record_bytes


def test_equals_protocol_buffers():
    rng = random.Random(0)
    for size in (1, 2, 20, 300, 5000):
        for most in (0, 1, 127, 128, 16383, 16384, 65535, 65536, 2**28, 2**31 - 1, 2**63 - 1):
            integers = [[rng.randint(0, rng.randint(0, most)) for _ in range(size)] for _ in "abc"]
            floats = [[rng.uniform(-1e30, 1e30) for _ in range(size)] for _ in "abc"]
            data = [rng.randbytes(size) for _ in "abc"]
            kept = np.arange(size) >= np.array([[0], [size // 2], [size - 1]])
            expected = []
            for row in range(3):
                example = tf.train.Example()
                feature = example.features.feature
                feature["b integers"].int64_list.value.extend(integers[row])
                feature["c"].float_list.value.extend(floats[row])
                feature["a"].bytes_list.value.append(data[row][kept[row].tolist().index(True) :])
                expected.append(example.SerializeToString(deterministic=True))
            table = np.frombuffer(b"".join(data), np.uint8).reshape(3, size)
            assert expected == record_bytes.examples(
                {
                    "b integers": record_bytes.int64_feature(np.array(integers, np.int64)),
                    "c": record_bytes.float_feature(np.array(floats, np.float32)),
                    "a": record_bytes.bytes_feature(table, kept),
                }
            )


@pytest.mark.parametrize("values", [[-1], [5, -(2**40)], [200, -1], [-1, 2**40]])
def test_negative_numbers_are_refused(values):
    with pytest.raises(ValueError, match="is negative"):
        record_bytes.int64_feature(np.array([values]))
