"""Writes TFRecord files, without TensorFlow.

A record is its length (8 bytes, little-endian), the checksum of the length (4 bytes), its data, and
the checksum of the data (4 bytes).
"""

import itertools
from collections.abc import Sequence

import numpy as np

from input_pipelines.records.crc32c import masked_crc32c, masked_crc32c_of_strings


def framed(records: Sequence[bytes]) -> bytes:
    """Returns records as they stand in a TFRecord file, one after the other."""
    distinct, of_record = np.unique([len(record) for record in records], return_inverse=True)
    lengths = distinct.astype("<u8").view(np.uint8).reshape(-1, 8)
    checksums = masked_crc32c(lengths).astype("<u4").view(np.uint8).reshape(-1, 4)
    headers = np.concatenate([lengths, checksums], axis=1)[of_record].tobytes()
    footers = masked_crc32c_of_strings(records).astype("<u4").tobytes()
    return b"".join(
        itertools.chain.from_iterable(
            (headers[12 * row : 12 * row + 12], record, footers[4 * row : 4 * row + 4])
            for row, record in enumerate(records)
        )
    )
