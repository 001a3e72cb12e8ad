import random

import google_crc32c
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from input_pipelines.records import encoding
from input_pipelines.records.encoding import id_type, masked_crc32c


def test_checksums_are_computed_in_c():
    """In Python they would take a thousand times as long."""
    assert google_crc32c.implementation == "c"


def test_checksums_equal_what_tensorflow_writes(tmp_path):
    path = tmp_path / "records"
    data = bytes(range(256)) * 9
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(data)
    written = path.read_bytes()
    of_length, of_data = masked_crc32c([written[:8], data]).astype("<u4")
    assert written[8:12] == of_length.tobytes() and written[-4:] == of_data.tobytes()


def test_the_type_of_ids():
    assert id_type(1 << 16) == np.dtype("<u2") and id_type((1 << 16) + 1) == np.dtype("<u4")


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
            assert expected == encoding.examples(
                {
                    "b integers": encoding.int64_feature(np.array(integers, np.int64)),
                    "c": encoding.float_feature(np.array(floats, np.float32)),
                    "a": encoding.bytes_feature(table, kept),
                }
            )


@pytest.mark.parametrize("values", [[-1], [5, -(2**40)], [200, -1], [-1, 2**40]])
def test_negative_numbers_are_refused(values):
    with pytest.raises(ValueError, match="is negative"):
        encoding.int64_feature(np.array([values]))


def test_files_equal_what_tensorflow_writes(tmp_path):
    rng = np.random.RandomState(0)
    records = [rng.bytes(size) for size in (0, 1, 700, 5, 700, 3000, 90_000)] + [b"x"] * 600
    path = str(tmp_path / "x")
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    with open(path, "rb") as file:
        assert encoding.framed(records) == file.read()
    assert encoding.framed([]) == b""
