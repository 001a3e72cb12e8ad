"""The checksum of TFRecord files: CRC-32C (Castagnoli), masked as the TFRecord format requires.

TensorFlow's own random reader verifies checksums too, but it fills a buffer of megabytes for each
record. A CRC is linear over GF(2), so numpy can look up the contribution of each byte by its
distance from the end, and XOR all contributions at once.
"""

import functools

import numpy as np

_POLYNOMIAL = np.uint32(0x82F63B78)  # Castagnoli's, bits reversed.
_CHUNK = 1024


def masked_crc32c(data: np.ndarray) -> np.ndarray:
    """Computes the masked CRC-32C of each row.

    Args:
      data: uint8 array [..., number of bytes].

    Returns:
      uint32 array [...]: the CRC rotated right by 15 bits plus 0xa282ead8, as TFRecord stores it.
    """
    crc = _crc32c(data)
    return (((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8))[..., 0]


def crc32c(data: np.ndarray) -> np.ndarray:
    """Computes the CRC-32C of each row: uint8 [..., number of bytes] to uint32 [...]."""
    return _crc32c(data)[..., 0]


def _crc32c(data: np.ndarray) -> np.ndarray:
    """Computes `crc32c` with shape [..., 1]: arrays wrap around silently, but scalars warn."""
    table, distances = _tables()
    state = np.full((*data.shape[:-1], 1), 0xFFFFFFFF, np.uint32)
    for start in range(0, data.shape[-1], _CHUNK):
        chunk = np.array(data[..., start : start + _CHUNK])
        # The state so far acts as if it were XORed into the next four bytes.
        n = chunk.shape[-1]
        shifts = np.arange(0, 8 * min(4, n), 8, dtype=np.uint32)
        chunk[..., : len(shifts)] ^= (state >> shifts).astype(np.uint8)
        rest = state >> np.uint32(8 * n) if n < 4 else np.zeros_like(state)
        added = table[distances[-n:] * 256 + chunk]
        state = np.bitwise_xor.reduce(added, axis=-1, keepdims=True) ^ rest
    return state ^ np.uint32(0xFFFFFFFF)


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Returns the contributions of bytes and the distances to look them up by.

    The contribution of a byte to its chunk's CRC is at 256 * (distance from the end) + value. The
    distances are given for a full chunk, from its first byte to its last.
    """
    table = np.empty((_CHUNK, 256), np.uint32)
    row = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        row = np.where(row & 1, (row >> 1) ^ _POLYNOMIAL, row >> 1)
    table[0] = row
    for distance in range(1, _CHUNK):
        row = (row >> 8) ^ table[0][row & 0xFF]
        table[distance] = row
    return table.reshape(-1), np.arange(_CHUNK - 1, -1, -1)
