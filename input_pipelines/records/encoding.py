"""How records are written in bytes: serialized examples, TFRecord files, checksums and ids.

`Example.SerializeToString(deterministic=True)` gives the same bytes: features in the order of their
names, and numbers packed. The bytes of n examples are computed as a table of n rows, in which each
byte has a column of its own; bytes that an example does not have are left out at the end.

This module does not import TensorFlow, which workers that make records do not have.
"""

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence

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


_INT64_LIST, _FLOAT_LIST, _BYTES_LIST = b"\x1a", b"\x12", b"\x0a"
_FIRST_FIELD, _SECOND_FIELD = b"\x0a", b"\x12"


class Columns:
    """Holds some neighbouring columns of the table: pairs of bytes, uint8 [n, width], and which of
    them each row has, bool [n, width] or None for all."""

    def __init__(
        self, parts: list[tuple[np.ndarray, np.ndarray | None]], sizes: np.ndarray | None = None
    ):
        self._parts = parts
        if sizes is None:
            ((content, kept),) = parts
            sizes = np.full(len(content), content.shape[1])
            if kept is not None:
                sizes = np.count_nonzero(kept, axis=1)
        # int64 [n], how many of the bytes each row has: lengths come before what they measure.
        self.sizes = sizes

    def __add__(self, other: "Columns") -> "Columns":
        return Columns(self._parts + other._parts, self.sizes + other.sizes)

    def strings(self) -> list[bytes]:
        """Returns the bytes of each row."""
        shape = [len(self.sizes), sum(part.shape[1] for part, _ in self._parts)]
        table, kept = np.empty(shape, np.uint8), np.ones(shape, bool)
        first = 0
        for part, kept_of_part in self._parts:
            end = first + part.shape[1]
            table[:, first:end] = part
            if kept_of_part is not None:
                kept[:, first:end] = kept_of_part
            first = end
        content = table[kept].tobytes()
        ends = np.cumsum(self.sizes).tolist()
        return [content[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def examples(features: Mapping[str, Columns]) -> list[bytes]:
    """Serializes examples; `int64_feature` and the other functions make their features."""
    entries = [
        _field(
            _FIRST_FIELD,
            _constant(_name(name), features[name]) + _field(_SECOND_FIELD, features[name]),
        )
        for name in sorted(features)
    ]
    return _field(_FIRST_FIELD, functools.reduce(Columns.__add__, entries)).strings()


def int64_feature(values: np.ndarray) -> Columns:
    """Serializes integers [n, k], with k > 0, which are not negative."""
    # A negative number would take ten bytes, which `_varints` does not make.
    if values.size and values.min() < 0:
        raise ValueError(f"{values.min()} is negative; only numbers from 0 on are written.")
    return _list(_INT64_LIST, _varints(values))


def float_feature(values: np.ndarray) -> Columns:
    """Serializes float32 numbers [n, k], with k > 0."""
    content = np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(len(values), -1)
    return _list(_FLOAT_LIST, Columns([(content, None)]))


def bytes_feature(values: np.ndarray, kept: np.ndarray) -> Columns:
    """Serializes a byte string for each example: the bytes of uint8 [n, k] that are kept."""
    return _list(_BYTES_LIST, Columns([(values, kept)]))


def _list(kind: bytes, content: Columns) -> Columns:
    return _field(kind, _field(_FIRST_FIELD, content))


def _field(tag: bytes, content: Columns) -> Columns:
    return _constant(tag, content) + _varints(content.sizes[:, None]) + content


def _constant(value: bytes, like: Columns) -> Columns:
    row = np.frombuffer(value, np.uint8)
    return Columns([(np.broadcast_to(row, [len(like.sizes), len(row)]), None)])


def _name(name: str) -> bytes:
    encoded = name.encode()
    # The length of a name is one byte: all names are of fewer than 128.
    return _FIRST_FIELD + bytes([len(encoded)]) + encoded


def _varints(values: np.ndarray) -> Columns:
    """Returns numbers [n, k] in groups of 7 bits, the lowest first; each but the last has a bit."""
    most = int(values.max(initial=0))
    # Nearly all features but ids are so small: one byte a number, without a table of groups.
    if most < 128:
        return Columns([(values.astype(np.uint8), None)])
    groups = -(-most.bit_length() // 7)
    values = values.astype(np.uint64 if groups > 4 else np.uint32)
    shifts = np.arange(0, 7 * groups, 7, dtype=values.dtype)
    shifted = values[:, :, None] >> shifts
    kept = shifted > 0
    # Zero has a byte, too.
    kept[:, :, 0] = True
    content = (shifted & np.array(0x7F, values.dtype)).astype(np.uint8)
    content[:, :, :-1] |= kept[:, :, 1:].astype(np.uint8) << np.uint8(7)
    return Columns([(content.reshape(len(values), -1), kept.reshape(len(values), -1))])


def framed(records: Sequence[bytes]) -> bytes:
    """Returns records as they stand in a TFRecord file, one after the other."""
    lengths = [len(record).to_bytes(8, "little") for record in records]
    of_lengths, of_records = (
        masked_crc32c(strings).astype("<u4").view("V4").tolist() for strings in (lengths, records)
    )
    framed_records = zip(lengths, of_lengths, records, of_records, strict=True)
    return b"".join(itertools.chain.from_iterable(framed_records))
