"""The checksum of TFRecord files: CRC-32C (Castagnoli), masked as the TFRecord format requires.

TensorFlow's own random reader verifies checksums too, but it fills a buffer of megabytes for each
record. A CRC is linear over GF(2): each of its 32 bits is the parity of the data ANDed with a mask
of that bit. So numpy computes the checksums of many byte strings together, 8 bytes at a time.
Zeros in front of the data do not change a parity, so the strings may have different lengths.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed.
_CHUNK = 1024
_START = 0xFFFFFFFF
# So few strings, and so many results of masks, stay in the processor's cache.
_AT_ONCE = 256
_WORDS_AT_ONCE = 1 << 16


def masked_crc32c(data: np.ndarray) -> np.ndarray:
    """Computes the masked CRC-32C of each row.

    Args:
      data: uint8 array [..., number of bytes].

    Returns:
      uint32 array [...]: the CRC rotated right by 15 bits plus 0xa282ead8, as TFRecord stores it.
    """
    return _masked(crc32c(data))


def masked_crc32c_of_strings(strings: Sequence[bytes]) -> np.ndarray:
    """Computes the masked CRC-32C of byte strings of any lengths, uint32 [number of strings]."""
    checksums = np.empty(len(strings), np.uint32)
    for first in range(0, len(strings), _AT_ONCE):
        part = strings[first : first + _AT_ONCE]
        lengths = np.array([len(string) for string in part])
        width = -(-max(1, int(lengths.max())) // _CHUNK) * _CHUNK
        padded = b"".join([string.rjust(width, b"\0") for string in part])
        table = np.frombuffer(padded, np.uint8).reshape(len(part), width)
        checksums[first : first + _AT_ONCE] = _crc32c(table, lengths)
    return _masked(checksums)


def crc32c(data: np.ndarray) -> np.ndarray:
    """Computes the CRC-32C of each row: uint8 [..., number of bytes] to uint32 [...]."""
    *shape, length = data.shape
    rows = np.asarray(data).reshape(math.prod(shape), length)
    width = -(-max(1, length) // _CHUNK) * _CHUNK
    checksums = np.empty(len(rows), np.uint32)
    for first in range(0, len(rows), _AT_ONCE):
        part = rows[first : first + _AT_ONCE]
        padded = np.zeros([len(part), width], np.uint8)
        padded[:, width - length :] = part
        checksums[first : first + _AT_ONCE] = _crc32c(padded, np.full(len(part), length))
    return checksums.reshape(shape)


def _masked(crc: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # a single number would warn of its wrapping around
        return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)


def _crc32c(padded: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Computes the CRCs of rows with zeros in front of their data.

    Args:
      padded: uint8 [rows, a multiple of `_CHUNK`].
      lengths: int64 [rows], number of bytes of each row's data.

    Returns:
      uint32 [rows].
    """
    masks, starts = _tables()
    num_chunks = padded.shape[1] // _CHUNK
    first_chunks = num_chunks - np.maximum(1, -(-lengths // _CHUNK))
    in_first_chunk = np.where(lengths == 0, 0, (lengths - 1) % _CHUNK + 1)
    state = np.zeros(len(padded), np.uint32)
    for number in range(num_chunks):
        # The zeros in front of the longest row need no work.
        skipped = (padded.shape[1] - int(lengths.max(initial=0))) // 8 if number == 0 else 0
        chunk = padded[:, number * _CHUNK : (number + 1) * _CHUNK]
        words = np.ascontiguousarray(chunk).view("<u8")[:, skipped:].T.copy()
        if number:  # The state so far acts as if it were XORed into the next four bytes.
            words[0] ^= state
        begins = first_chunks == number
        state = _parities(words, masks[:, skipped:])
        state[begins] ^= starts[in_first_chunk[begins]]
    return state ^ np.uint32(_START)


def _parities(words: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Returns bit j as the parity of the words ANDed with mask j.

    Args:
      words: uint64 [number of words, rows].
      masks: uint64 [32, number of words].

    Returns:
      uint32 [rows].
    """
    folded = np.empty([32, words.shape[1]], np.uint64)
    at_once = max(1, _WORDS_AT_ONCE // max(1, words.size))
    for bit in range(0, 32, at_once):
        part = slice(bit, bit + at_once)
        np.bitwise_xor.reduce(words & masks[part, :, None], axis=1, out=folded[part])
    for shift in (32, 16, 8, 4, 2, 1):
        folded ^= folded >> np.uint64(shift)
    bits = (folded & np.uint64(1)).astype(np.uint32)
    return np.bitwise_or.reduce(bits << np.arange(32, dtype=np.uint32)[:, None], axis=0)


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Returns the masks of a chunk, and what the CRC's start adds to the data after it.

    Returns:
      (uint64 [32, _CHUNK / 8]: the bits of a chunk, in little-endian words, that each bit of its
      CRC depends on; uint32 [_CHUNK + 1]: the CRC's start after so many bytes of zeros).
    """
    by_byte = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        by_byte = np.where(by_byte & 1, (by_byte >> 1) ^ np.uint32(_POLYNOMIAL), by_byte >> 1)
    # The state after the bytes with one bit each, and after the start; then zeros follow.
    state = np.append(by_byte[1 << np.arange(8)], np.uint32(_START))
    after = np.empty([_CHUNK + 1, 9], np.uint32)
    after[0] = state
    for number_of_zeros in range(1, _CHUNK + 1):
        state = (state >> np.uint32(8)) ^ by_byte[state & np.uint32(0xFF)]
        after[number_of_zeros] = state
    of_bits = after[_CHUNK - 1 :: -1, :8]  # [byte of the chunk, bit of the byte]
    depends = (of_bits[None] >> np.arange(32, dtype=np.uint32)[:, None, None]) & np.uint32(1)
    masks = np.packbits(depends.astype(np.uint8), axis=-1, bitorder="little")[..., 0]
    return np.ascontiguousarray(masks).view("<u8"), after[:, 8].copy()
