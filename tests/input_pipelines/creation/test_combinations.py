"""The creation of records with all pairs of features: killed, and resumed by other processes."""

import bz2
import functools
import gzip
import json
import os

import numpy as np
import pairwise
import pytest
from kills import Killed

from bert_estimator.tokenization import SPECIAL_TOKENS, train_sentencepiece, write_vocab
from input_pipelines import create_pretraining_data
from input_pipelines.arguments import parse
from input_pipelines.creation import stages
from input_pipelines.creation.pools import BeamPool, WorkerPool
from input_pipelines.records import manifest as manifests
from input_pipelines.records.pretraining_features import open_pretraining_records
from input_pipelines.text.documents import split_files

POOLS = {
    "here": lambda directory: WorkerPool(0),
    "workers": lambda directory: WorkerPool(2),
    "beam": lambda directory: BeamPool("DirectRunner", (), directory),
}
FEATURES = {
    "text": {"plain": "", "gz": "", "bz2 and jsonl": ""},
    "vocabulary": {"wordpiece": [], "cased": ["--nodo_lower_case"], "sentencepiece": []},
    "masking": {name: [f"--masking={name}"] for name in ("dynamic", "static")},
    "passes": {"one": ["--dupe_factor=1"], "three": ["--dupe_factor=3"]},
    "pairs": {
        "random": [],
        "in order": ["--norandom_next_sentence"],
        "whole sentences": ["--objective=mlm"],
        "across documents": ["--objective=mlm", "--across_documents"],
    },
    "masks": {
        "tokens": [],
        "whole words": ["--do_whole_word_mask"],
        "spans": ["--masking_unit=span"],
        "words of a segmenter": ["--masking_unit=word", "--word_segmenter=word_cutters:in_pairs"],
    },
    "files": {"one": [], "three": ["--num_shards=3"]},
    "held out": {"no": [], "yes": ["--eval_fraction=0.3"]},
    "left out": {"no": [], "yes": ["--min_words=6", "--min_letters=0.1"]},
    "killed": {"early": 0.1, "half way": 0.5, "late": 0.95},
    "killed in": POOLS,
    "resumed in": POOLS,
}
TABLE = pairwise.table(FEATURES)
# The other rows take minutes together.
QUICK = [
    next(
        row
        for row in TABLE
        if {row["killed in"], row["resumed in"]} == {"here", "workers"} and row["held out"] == "yes"
    )
]


def test_every_pair_of_features_is_in_the_table():
    pairwise.check_table(TABLE, FEATURES)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns a directory with the same documents in all formats, and the vocabularies."""
    path = tmp_path_factory.mktemp("data")
    words = np.random.default_rng(3).integers(0, 30, [24, 5, 4])
    documents = [[" ".join(f"w{w}" for w in line) for line in document] for document in words]
    documents += [["w1 w2"], ["w3"], ["1 2 3 4 5 6 7 8"]]
    plain = "\n\n".join("\n".join(document) for document in documents).encode()
    rows = "\n".join(json.dumps({"text": "\n".join(document)}) for document in documents)
    (path / "plain").write_bytes(plain)
    (path / "gz.gz").write_bytes(gzip.compress(plain))
    (path / "bz2 and jsonl.jsonl.bz2").write_bytes(bz2.compress(rows.encode()))
    write_vocab([*SPECIAL_TOKENS, *(f"w{w}" for w in range(30))], str(path / "wordpiece.txt"))
    (path / "cased.txt").write_bytes((path / "wordpiece.txt").read_bytes())
    sentences = [sentence for document in documents for sentence in document]
    train_sentencepiece(sentences, str(path / "sentencepiece.model"), 36)
    return path


class KilledPool:
    """Runs tasks in another pool, and ends this process, as it were, after some results."""

    def __init__(self, pool, after=None):
        self._pool, self._after, self.results = pool, after, 0

    def __enter__(self):
        self._pool.__enter__()
        return self

    def __exit__(self, *arguments):
        self._pool.__exit__(*arguments)

    def run(self, *arguments):
        for result in self._pool.run(*arguments):
            if self.results == self._after:
                raise Killed
            self.results += 1
            yield result


def create(row, data, output, pool):
    """Creates the records of a row; returns the files by name."""
    output.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        (text_file,) = data.glob(f"{row['text']}*")
        (vocab_file,) = data.glob(f"{row['vocabulary']}.*")
        chosen = [
            flag
            for name, choices in FEATURES.items()
            if isinstance(choices[row[name]], list)
            for flag in choices[row[name]]
        ]
        config = parse(
            create_pretraining_data.RecordsConfig,
            ["name", f"--input_file={text_file}", f"--vocab_file={vocab_file}",
             f"--output_file={output}/train.tfrecord", "--max_seq_length=16",
             "--max_predictions_per_seq=4", "--masked_lm_prob=0.3", *chosen],
        )  # fmt: skip
        # Many groups, buckets and parts of a short text.
        patch.setattr(stages, "_GROUP_TOKENS", 100)
        patch.setattr(stages, "_BUCKET_TOKENS", 200)
        split = functools.partial(split_files, part_bytes=400)
        patch.setattr(create_pretraining_data, "split_files", split)
        patch.setattr(create_pretraining_data, "_pool", lambda *_: pool)
        create_pretraining_data.create(config)
    names = [name for name in os.listdir(output) if not name.endswith(".lock")]
    return {name: (output / name).read_bytes() for name in names}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id="-".join(row.values()), marks=() if row in QUICK else pytest.mark.slow)
        for row in TABLE
    ],
)
def test_a_killed_creation_resumes_in_other_processes(data, tmp_path, row):
    if "beam" in (row["killed in"], row["resumed in"]):
        pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    whole = KilledPool(WorkerPool(0))
    expected = create(row, data, tmp_path / "whole", whole)
    after = int(FEATURES["killed"][row["killed"]] * whole.results)
    with pytest.raises(Killed):
        killed = KilledPool(POOLS[row["killed in"]](str(tmp_path)), after)
        create(row, data, tmp_path / "x", killed)
    resumed = POOLS[row["resumed in"]](str(tmp_path))
    assert create(row, data, tmp_path / "x", resumed) == expected
    check(row, tmp_path / "x")


def check(row, directory):
    """Checks that the records can be read, and that the manifests say what is in them."""
    records = open_pretraining_records(str(directory), 16, 4, None)
    (listed,) = {path for path, _ in manifests.read_manifests_of(records.files).values()}
    manifest = manifests.read_manifest(listed)
    assert records.num_records == manifest.num_records > 0
    assert len(records.read_all(np.arange(records.num_records))) == records.num_records
    held_out = manifest.corpus.get("held_out")
    assert (held_out is not None) == (row["held out"] == "yes")
    number = manifest.corpus["documents"]
    if held_out:
        path = str(directory / held_out["file"])
        number += manifests.read_manifest(manifests.manifest_path(path)).corpus["documents"]
    left_out = {"short": 2, "of too few letters": 1}
    assert manifest.corpus.get("left_out", {}) == (left_out if row["left out"] == "yes" else {})
    # A document of digits has no token in the vocabulary of SentencePiece, perhaps.
    assert number == 24 if row["left out"] == "yes" else 26 <= number <= 27
