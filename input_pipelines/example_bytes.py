"""Writes `tf.train.Example`s as bytes, without protocol buffers' objects for each number.

`Example.SerializeToString(deterministic=True)` gives the same bytes: features in the order of their
names, and numbers packed.
"""

import functools
import struct
from collections.abc import Mapping, Sequence

_INT64_LIST, _FLOAT_LIST, _BYTES_LIST = b"\x1a", b"\x12", b"\x0a"
_FIRST_FIELD, _SECOND_FIELD = b"\x0a", b"\x12"
_MOST_HELD = 1 << 20


def example(features: Mapping[str, bytes]) -> bytes:
    """Serializes an example; `int64_feature` and the other functions make its features."""
    entries = [
        _field(_FIRST_FIELD, _name(name) + _field(_SECOND_FIELD, features[name]))
        for name in sorted(features)
    ]
    return _field(_FIRST_FIELD, b"".join(entries))


def int64_feature(values: Sequence[int], length: int) -> bytes:
    """Serializes numbers, padded with zeros to a length.

    Raises:
      ValueError: a number is negative.
    """
    try:
        packed = bytes(values)  # of numbers below 128, the bytes are the numbers
        is_packed = packed.isascii()
    except ValueError:
        is_packed = False
    if not is_packed:
        packed = b"".join(map(_VARINTS.__getitem__, values))
    return _list(_INT64_LIST, packed.ljust(len(packed) + length - len(values), b"\0"))


def float_feature(values: Sequence[float], length: int) -> bytes:
    """Serializes float32 numbers, padded with zeros to a length."""
    return _list(_FLOAT_LIST, struct.pack(f"<{len(values)}f", *values).ljust(4 * length, b"\0"))


def bytes_feature(value: bytes) -> bytes:
    """Serializes one byte string."""
    return _list(_BYTES_LIST, value)


def _list(kind, content):
    return _field(kind, _field(_FIRST_FIELD, content) if content else b"")


def _field(tag, content):
    return tag + _VARINTS[len(content)] + content


@functools.cache
def _name(name):
    return _field(_FIRST_FIELD, name.encode())


def _encoded(value):
    """Returns a number in groups of 7 bits, the lowest first, each but the last with a high bit."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


class _Varints(dict[int, bytes]):
    """Maps numbers to their bytes, which are computed when they are asked for first."""

    def __missing__(self, value):
        if value < 0:
            raise ValueError(f"{value} is negative; only numbers from 0 on are written.")
        found = _encoded(value)
        if value < _MOST_HELD:
            self[value] = found
        return found


_VARINTS = _Varints()
