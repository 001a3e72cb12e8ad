import dataclasses
import hashlib
import os
import pathlib

import numpy as np
import pytest

from bert_estimator.tokenization import Casing
from input_pipelines.creation import stages
from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.records import manifest as manifests
from input_pipelines.records.record_reader import RecordFiles
from input_pipelines.text.documents import split_files

SETTINGS = CreationSettings(
    max_seq_length=16, max_predictions_per_seq=4, dupe_factor=3, random_seed=9
)


def write(documents, tokenizer, vocab_file, files, settings=SETTINGS):
    return write_pretraining_records(
        documents, tokenizer, vocab_file, files, settings, masking="static"
    )


def test_records_and_manifest(tmp_path, documents, tokenizer, vocab_file):
    files = [str(tmp_path / f"train-{i}.tfrecord") for i in range(2)]
    manifest = write(documents, tokenizer, vocab_file, files)
    assert sorted(os.listdir(tmp_path)) == [
        "manifest.train-0.tfrecord.json",
        "token_counts.train-0.tfrecord.lengths.npy",
        "token_counts.train-0.tfrecord.npy",
        "train-0.tfrecord",
        "train-1.tfrecord",
        f"vocab.{manifest.vocab_sha256}.txt",
    ]
    assert manifest.vocab_file == f"vocab.{manifest.vocab_sha256}.txt"
    assert manifest == manifests.read_manifest(manifests.manifest_path(files[0]))
    assert (manifest.max_seq_length, manifest.max_predictions_per_seq) == (16, 4)
    assert (manifest.vocab_size, manifest.do_lower_case) == (50, True)
    with open(vocab_file, "rb") as file:
        assert manifest.vocab_sha256 == hashlib.sha256(file.read()).hexdigest()
    assert manifest.creation == {
        "masked_lm_prob": 0.15,
        "short_seq_prob": 0.1,
        "dupe_factor": 3,
        "do_whole_word_mask": False,
        "random_next_sentence": True,
        "random_seed": 9,
    }
    assert manifest.corpus["documents"] == 6
    for entry, path in zip(manifest.files, files, strict=True):
        with open(path, "rb") as file:
            content = file.read()
        assert entry.name == os.path.basename(path)
        assert entry.num_bytes == len(content)
        assert entry.sha256 == hashlib.sha256(content).hexdigest()
        assert entry.num_records == RecordFiles([path]).num_records
    counts = [entry.num_records for entry in manifest.files]
    assert sum(counts) == manifest.num_records and counts[0] - counts[1] in (0, 1)
    token_counts = manifests.read_token_counts(str(tmp_path / manifest.token_counts))
    assert token_counts.dtype == np.int64 and token_counts.shape == (50,)
    assert manifest.token_counts_sha256 == manifests.sha256_of_file(
        str(tmp_path / manifest.token_counts)
    )
    assert token_counts.sum() == manifest.corpus["tokens"] == 120


@pytest.mark.parametrize("stage", ["make_pairs", "join_pieces"])
@pytest.mark.parametrize("is_file", [False, True])
def test_a_vocabulary_that_changes_meanwhile(
    tmp_path, documents, tokenizer, vocab_file, text_file, monkeypatch, is_file, stage
):
    own = tmp_path / "vocab.txt"
    original = pathlib.Path(vocab_file).read_bytes()
    own.write_bytes(original)

    do_stage = getattr(stages, stage)

    def change(*args):  # another vocabulary gets the same name, while records are made
        own.write_bytes(original.replace(b"w1\nw2\n", b"w2\nw1\n"))
        return do_stage(*args)

    monkeypatch.setattr(stages, stage, change)
    text = split_files([text_file]) if is_file else documents
    files = [str(tmp_path / "out" / "x.tfrecord")]
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match=r"vocab\.txt: has changed while records were made"):
        write(text, tokenizer, str(own), files)
    assert not os.path.exists(manifests.manifest_path(files[0]))
    assert os.path.exists(files[0]) == (stage == "join_pieces")
    monkeypatch.undo()
    own.write_bytes(original)
    manifest = write(text, tokenizer, str(own), files)
    assert manifest.vocab_sha256 == hashlib.sha256(original).hexdigest()


def test_a_worker_does_not_tokenize_with_another_vocabulary(tmp_path, vocab_file):
    own = tmp_path / "vocab.txt"
    own.write_bytes(pathlib.Path(vocab_file).read_bytes() + b"more\n")
    sha256 = manifests.sha256_of_file(vocab_file)
    work = stages.Work("", str(own), sha256, Casing(True), SETTINGS, False, ("x",))
    with pytest.raises(ValueError, match=r"vocab\.txt: has changed while records were made"):
        work.tokenizer  # noqa: B018


def test_unfinished_work_of_earlier_versions_goes_on():
    """What names the work's directories is as it was, unless the casing is a new one."""
    work = stages.Work("", "vocab.txt", "sha", Casing(True), SETTINGS, False, ("x",))
    assert work.vocabulary == ["sha", True]
    work = dataclasses.replace(work, casing=Casing(False, True))
    assert work.vocabulary == ["sha", False, True]
    assert list(SETTINGS.described().items()) == [  # its hash depends on the order
        ("max_seq_length", 16),
        ("max_predictions_per_seq", 4),
        ("masked_lm_prob", 0.15),
        ("short_seq_prob", 0.1),
        ("dupe_factor", 3),
        ("do_whole_word_mask", False),
        ("random_next_sentence", True),
        ("random_seed", 9),
    ]


def test_unfinished_work_is_of_one_segmenter():
    settings = dataclasses.replace(SETTINGS, masking_unit="word")
    works = [stages.Work("", "vocab.txt", "sha", Casing(True), settings, False, ("x",))]
    settings = dataclasses.replace(settings, word_segmenter="a:b")
    works.append(dataclasses.replace(works[0], settings=settings, segmenter_sha256="c"))
    works.append(dataclasses.replace(works[1], segmenter_sha256="d"))
    named = [work.vocabulary for work in works]
    assert named == [["sha", True], ["sha", True, "a:b", "c"], ["sha", True, "a:b", "d"]]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a/x", "b/x"], r"output_files: .* lie in different directories"),
        (["a/x", "a/x"], r"output_files: .* name a file twice"),
    ],
)
def test_unfit_output_files(tmp_path, documents, tokenizer, vocab_file, names, message):
    with pytest.raises(ValueError, match=message):
        write(documents, tokenizer, vocab_file, [str(tmp_path / name) for name in names])
