"""Opens text files as streams of bytes: plain or packed, here or on a remote file system.

The end of a name says how a file is packed: .gz, .bz2, .xz or .zst. A name with `://` is on a
remote file system (`storage.reading`). Memory holds a block of the file at a time.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO

from bert_estimator.storage import reading
from bert_estimator.system import paths
from bert_estimator.system.ticker import Progress

EXTRA = "corpora"
"""The extra of this package whose modules read .zst, parquet and remote files."""

_BLOCK = 1 << 18

_PACKED = (".gz", ".bz2", ".xz", ".zst")
_ARCHIVES = (".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst", ".zip", ".7z", ".rar")


def packing(path: str) -> str:
    """Returns how a file is packed, ".gz" for example, or "" for a plain file."""
    ending = os.path.splitext(path)[1].lower()
    return ending if ending in _PACKED else ""


def unpacked_name(path: str) -> str:
    """Returns the name of a file without how it is packed, in small letters."""
    return path.lower().removesuffix(packing(path))


def is_archive(path: str) -> bool:
    """Returns whether the name of a file is of an archive of files, which cannot be read."""
    return unpacked_name(path).endswith(_ARCHIVES)


@contextlib.contextmanager
def opened(path: str, progress: Progress | None = None) -> Iterator[IO[bytes]]:
    """Opens a file for reading, unpacked; errors of the system, and of damaged files while the
    block reads, become a ValueError with the place in the file."""
    if is_archive(path):
        raise ValueError(
            f"{path}: is an archive of files, which is not text. Unpack it first, then give its "
            "files."
        )
    try:
        with reading.opened(path) if paths.is_remote(path) else open(path, "rb") as raw:
            # The bytes are counted before they are unpacked, as the sizes of files are.
            stream = io.BufferedReader(_Counted(raw, progress), _BLOCK)
            try:
                with _unpacked(stream, path) as unpacked:
                    yield unpacked
            except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, _DamagedError) as error:
                raise _damaged(path, raw, error) from None
            except OSError as error:
                # An error of the system has a `strerror`; an error of bz2 does not have it.
                if error.strerror is not None or not packing(path):
                    raise
                raise _damaged(path, raw, error) from None  # this is how bz2 says it
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}.") from None


def _damaged(path, raw, error):
    text = str(error).rstrip(".")
    return ValueError(
        f"{path}: is damaged or cut short, at byte {raw.tell()} or before it ({text}). Get the "
        "file again, or leave it out."
    )


def _unpacked(stream, path):
    ending = packing(path)
    if ending == ".gz":
        return gzip.open(stream, "rb")
    if ending == ".bz2":
        return io.BufferedReader(_Streams(stream, bz2.BZ2Decompressor), _BLOCK)
    if ending == ".xz":
        return io.BufferedReader(_XzStreams(stream, lzma.LZMADecompressor), _BLOCK)
    if ending == ".zst":
        return io.BufferedReader(_Zstandard(stream, path), _BLOCK)
    return contextlib.nullcontext(stream)


class _DamagedError(Exception):
    """Says that a packed file is damaged; `opened` turns this into its own error."""


class _Counted(io.RawIOBase):
    """Counts the bytes of a stream as they are read; it has what `BufferedReader` needs."""

    def __init__(self, stream: IO[bytes], progress: Progress | None):
        self._stream, self._progress = stream, progress

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._stream.seekable()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readinto(self, buffer) -> int:
        block = self._stream.read(len(buffer))
        buffer[: len(block)] = block
        if self._progress:
            self._progress.add(len(block))
        return len(block)


class _Streams(io.RawIOBase):
    """Unpacks a .bz2 or .xz file, which may have several streams."""

    def __init__(
        self,
        stream: IO[bytes],
        new_unpacker: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor],
    ):
        self._stream = stream
        self._new_unpacker = new_unpacker
        self._unpacker = new_unpacker()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while True:
            packed = b""
            if self._unpacker.eof:
                # Python's own readers drop what follows the first stream if it does not begin as a
                # stream does. Here the next unpacker raises an error.
                packed = self._next_stream(self._unpacker.unused_data or self._stream.read(_BLOCK))
                if not packed:
                    return 0
                self._unpacker = self._new_unpacker()
            elif self._unpacker.needs_input:
                packed = self._stream.read(_BLOCK)
                if not packed:
                    raise _DamagedError("it ends within a stream")
            unpacked = self._unpacker.decompress(packed, len(buffer))
            # An unpacker may need several blocks before it has a byte; 0 would mean the file's end.
            if unpacked:
                buffer[: len(unpacked)] = unpacked
                return len(unpacked)

    def _next_stream(self, packed: bytes) -> bytes:
        """Returns the beginning of the next stream; nothing at the end of the file."""
        return packed


class _XzStreams(_Streams):
    """Unpacks an .xz file, whose streams may have zeros after them."""

    def _next_stream(self, packed: bytes) -> bytes:
        zeros = 0
        while packed:
            rest = packed.lstrip(b"\0")
            zeros += len(packed) - len(rest)
            if rest:
                break
            packed = self._stream.read(_BLOCK)
        if zeros % 4:
            raise _DamagedError(f"{zeros} zeros follow a stream, which is not a multiple of 4")
        return packed.lstrip(b"\0")


class _Zstandard(io.RawIOBase):
    """Unpacks a .zst file, which may have several frames."""

    def __init__(self, stream: IO[bytes], path: str):
        self._stream, self._path = stream, path
        self._unpacker = None
        self._left = memoryview(b"")
        self._packed = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._left:
            block = self._packed or self._stream.read(_BLOCK)
            self._packed = b""
            if not block:
                # zstandard's own reader takes a file that is cut short for a complete one.
                if self._unpacker is not None:
                    raise _DamagedError("it ends within a frame")
                return 0
            self._left = memoryview(self._unpack(block))
        number = min(len(buffer), len(self._left))
        buffer[:number] = self._left[:number]
        self._left = self._left[number:]
        return number

    def _unpack(self, block):
        try:
            import zstandard
        except ImportError as error:
            raise missing_module("zstandard", f"{self._path}: a .zst file", error) from None
        if self._unpacker is None:
            self._unpacker = zstandard.ZstdDecompressor().decompressobj()
        try:
            unpacked = self._unpacker.decompress(block)
        except zstandard.ZstdError as error:
            raise _DamagedError(str(error)) from None
        if self._unpacker.eof:
            self._packed = self._unpacker.unused_data
            self._unpacker = None
        return unpacked


def missing_module(module: str, what: str, error: ImportError) -> ValueError:
    """Returns the error of an optional module that is not installed, or does not work here."""
    needs = f"{what} needs the module {module}"
    if isinstance(error, ModuleNotFoundError):
        return ValueError(f"{needs}: pip install 'bert-estimator[{EXTRA}]'.")
    return ValueError(f"{needs}, which cannot be imported: {error}")
