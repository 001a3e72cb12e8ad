"""How records are written in bytes: checksums and ids, without TensorFlow, which workers that make
records do not have."""

from collections.abc import Iterable

import google_crc32c
import numpy as np


def masked_crc32c(strings: Iterable[bytes]) -> np.ndarray:
    """Computes the checksums of n byte strings as TFRecord stores them, uint32 [n]."""
    # It is CRC-32C (Castagnoli), rotated right by 15 bits, plus 0xa282ead8.
    crc = np.array([google_crc32c.value(string) for string in strings], np.uint32)
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)


def id_type(vocab_size: int) -> np.dtype:
    """Returns the type in which ids are written, little-endian."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
