"""Pairs of segments on disk, dealt to the buckets in which they will be shuffled.

A bucket is a part of the records that fits into memory. The pairs of a file, in a random order, are
dealt to the buckets in turn. Which bucket is the first depends on how many pairs the files before
it have; so all buckets have the same number of pairs, give or take one.

A file is `<path>.pairs`, with the pairs of each residue of their places divided by the number of
buckets, and `<path>.npz`, which says where each residue's pairs are, and is written last.
"""

import os

import numpy as np

from bert_estimator.system import disk_files
from bert_estimator.system.splitmix import keys
from input_pipelines.creation.instances import Pairs

_DEALING_SEED = 0xDEA1  # tells the order in which pairs are dealt from other orders
_ROWS = np.dtype(
    [("key", "<i8"), ("turn", "<i4"), ("a", "<i4"), ("b", "<i4"), ("label", "i1")], align=False
)


def write(pairs: Pairs, path: str, num_buckets: int, seed: int) -> None:
    """Writes pairs to a file.

    Args:
      pairs: the pairs.
      path: the file's path without suffix.
      num_buckets: the number of buckets.
      seed: any integer; decides which pairs meet in a bucket.
    """
    order = np.argsort(keys(seed ^ _DEALING_SEED, pairs.turns, pairs.keys), kind="stable")
    offsets, counts = [0], []
    with disk_files.writer(path + ".pairs", "wb") as file:
        for residue in range(num_buckets):
            dealt = pairs.chosen(order[residue::num_buckets])
            rows = np.empty(len(dealt), _ROWS)
            rows["key"], rows["turn"], rows["label"] = dealt.keys, dealt.turns, dealt.labels
            rows["a"], rows["b"] = dealt.lengths.T
            file.write(rows.tobytes())
            file.write(dealt.tokens.tobytes())
            offsets.append(file.tell())
            counts.append(len(dealt))
    with disk_files.writer(path + ".npz", "wb") as file:
        np.savez(file, offsets=np.array(offsets), counts=np.array(counts), num_pairs=len(pairs))


def is_written(path: str) -> bool:
    """Returns whether a file is complete: a kill while it is removed may leave one of its files."""
    return all(os.path.exists(path + suffix) for suffix in (".pairs", ".npz"))


def num_pairs(path: str) -> int:
    """Returns the number of pairs in a file."""
    with np.load(path + ".npz") as index:
        return int(index["num_pairs"])


def read(path: str, residue: int, id_type: np.dtype) -> Pairs:
    """Reads the pairs whose places have a residue.

    Args:
      path: the file's path without suffix.
      residue: from 0 to the number of buckets - 1.
      id_type: the type of the tokens that were written.
    """
    with np.load(path + ".npz") as index:
        start, end = index["offsets"][residue : residue + 2].tolist()
        count = int(index["counts"][residue])
    with open(path + ".pairs", "rb") as file:
        file.seek(start)
        content = file.read(end - start)
    rows = np.frombuffer(content, _ROWS, count)
    tokens = np.frombuffer(content, id_type, offset=count * _ROWS.itemsize)
    lengths = np.stack([rows["a"], rows["b"]], axis=1).astype(np.int64)
    return Pairs(
        tokens,
        lengths,
        rows["label"].astype(np.int64),
        rows["key"].astype(np.int64),
        rows["turn"].astype(np.int64),
    )
