import subprocess
import sys

import google_crc32c
import numpy as np
import tensorflow.compat.v1 as tf

from input_pipelines.records.encoding import id_type, masked_crc32c


def test_checksums_are_computed_in_c():
    """In Python they would take a thousand times as long."""
    assert google_crc32c.implementation == "c"


def test_equals_what_tensorflow_writes(tmp_path):
    path = tmp_path / "records"
    data = bytes(range(256)) * 9
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(data)
    written = path.read_bytes()
    of_length, of_data = masked_crc32c([written[:8], data]).astype("<u4")
    assert written[8:12] == of_length.tobytes() and written[-4:] == of_data.tobytes()


def test_the_type_of_ids():
    assert id_type(1 << 16) == np.dtype("<u2") and id_type((1 << 16) + 1) == np.dtype("<u4")


def test_what_workers_import_is_without_tensorflow():
    program = (
        "import sys, input_pipelines.creation.stages, input_pipelines.creation.pools; "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
