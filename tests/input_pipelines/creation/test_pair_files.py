import numpy as np
import pytest

from input_pipelines.creation import pair_files
from input_pipelines.creation.instances import FlatText, Pairs, make_pairs
from input_pipelines.creation.settings import CreationSettings


def rows_of(pairs):
    starts = np.cumsum(pairs.lengths.sum(axis=1)).tolist()
    return [
        (key, turn, label, lengths, pairs.tokens[start:end].tolist())
        for key, turn, label, lengths, start, end in zip(
            pairs.keys.tolist(),
            pairs.turns.tolist(),
            pairs.labels.tolist(),
            pairs.lengths.tolist(),
            [0, *starts],
            starts,
            strict=False,
        )
    ]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("num_buckets", [1, 3, 50])
def test_all_pairs_are_dealt_evenly(tmp_path, documents, tokenizer, dtype, num_buckets):
    text = FlatText.of([[tokenizer.encode(s) for s in document] for document in documents])
    text.ids = text.ids.astype(dtype)
    settings = CreationSettings(max_seq_length=16, max_predictions_per_seq=4)
    pairs = Pairs.joined([make_pairs(text, settings, turn) for turn in range(2)])
    path = str(tmp_path / "some")
    assert not pair_files.pairs_are_written(path)
    pair_files.write_pairs(pairs, path, num_buckets, seed=1)
    assert pair_files.pairs_are_written(path) and pair_files.num_pairs(path) == len(pairs)
    dealt = [
        pair_files.read_pairs(path, residue, np.dtype(dtype)) for residue in range(num_buckets)
    ]
    sizes = [len(some) for some in dealt]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1
    found = [row for some in dealt for row in rows_of(some)]
    assert sorted(found) == sorted(rows_of(pairs))
    assert found != rows_of(pairs)  # the order is random
    pair_files.write_pairs(pairs, path, num_buckets, seed=2)
    other = [
        row
        for residue in range(num_buckets)
        for row in rows_of(pair_files.read_pairs(path, residue, np.dtype(dtype)))
    ]
    assert sorted(other) == sorted(found) and other != found
