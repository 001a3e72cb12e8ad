import numpy as np
import tensorflow.compat.v1 as tf

from input_pipelines.creation import record_bytes


def test_equals_what_tensorflow_writes(tmp_path):
    rng = np.random.RandomState(0)
    records = [rng.bytes(size) for size in (0, 1, 700, 5, 700, 3000, 90_000)] + [b"x"] * 600
    path = str(tmp_path / "x")
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    with open(path, "rb") as file:
        assert record_bytes.framed(records) == file.read()
    assert record_bytes.framed([]) == b""
