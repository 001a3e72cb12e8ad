import json
import os
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from input_pipelines.creation import stages
from input_pipelines.creation.instances import FlatText, Pairs, spans_of_document
from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.records import manifest as manifests
from input_pipelines.records import record_lengths, unmasked_records
from input_pipelines.records.pretraining_features import PretrainingFeatures
from input_pipelines.records.record_reader import RecordError, RecordFiles
from input_pipelines.records.unmasked_records import open_masker

CLS, SEP, MASK = 2, 3, 4


def values_of(serialized):
    """Parses records to the arrays that TensorFlow's parser gives."""
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(tf.io.parse_example(serialized, unmasked_records.SPEC))


def features_of(files, numbers, epoch=0, seed=1, **changes):
    """Returns the features of records, whose values may be changed first."""
    records = RecordFiles(files)
    numbers = np.array(numbers)
    values = values_of(records.read_all(numbers))
    for name, (row, value) in changes.items():
        values[name][row] = value
    masker = open_masker(records.files, seed)
    return masker.features(records, numbers, np.full(len(numbers), epoch), values)


def unmasked(features, row):
    ids = features["input_ids"][row].copy()
    for place, label, weight in zip(
        features["masked_lm_positions"][row],
        features["masked_lm_ids"][row],
        features["masked_lm_weights"][row],
        strict=True,
    ):
        if weight:
            ids[place] = label
    return ids.tolist()


def test_records_hold_the_pairs_of_the_text(unmasked_files, documents, tokenizer):
    settings = CreationSettings(max_seq_length=16, max_predictions_per_seq=4, dupe_factor=2)
    text = FlatText.of([[tokenizer.encode(s) for s in document] for document in documents])
    spans = [
        span
        for turn in range(2)
        for number in range(6)
        for span in spans_of_document(text, number, settings, turn)
    ]
    expected = []
    for a_start, a_end, b_start, b_end, is_random_next in spans:
        a, b = text.ids[a_start:a_end].tolist(), text.ids[b_start:b_end].tolist()
        padding = 16 - len(a) - len(b) - 3
        expected.append(
            (
                [CLS, *a, SEP, *b, SEP] + [0] * padding,
                [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * padding,
                [1] * (16 - padding) + [0] * padding,
                [int(is_random_next)],
            )
        )
    number = RecordFiles(unmasked_files).num_records
    for epoch in (0, 3):
        features = features_of(unmasked_files, range(number), epoch)
        found = [
            (unmasked(features, row), *(features[name][row].tolist() for name in names))
            for names in [("segment_ids", "input_mask", "next_sentence_labels")]
            for row in range(number)
        ]
        assert sorted(found) == sorted(expected)
        special = features["masked_lm_ids"][features["masked_lm_weights"] > 0]
        assert not np.isin(special, [CLS, SEP]).any()


@pytest.mark.parametrize("across", [False, True])
def test_records_hold_whole_sentences(tmp_path, documents, tokenizer, vocab_file, across):
    """Records with and without masks hold the same, with one segment; so do their lengths."""
    settings = CreationSettings(
        max_seq_length=16, max_predictions_per_seq=4, objective="mlm", across_documents=across
    )
    encoded = [[tokenizer.encode(sentence) for sentence in document] for document in documents]
    # Three sentences of four tokens fit, and then two; or across documents, with [SEP] between.
    expected = [
        [token for sentence in sentences for token in sentence]
        for document in encoded
        for sentences in (document[:3], document[3:])
    ]
    if across:
        a, b = encoded[:2]
        expected = [[*a[0], *a[1], *a[2]], [*a[3], *a[4], SEP, *b[0]], [*b[1], *b[2], *b[3]]]
    found = {}
    for masking, version in (("static", 1), ("dynamic", 3)):
        files = [str(tmp_path / f"{masking}.tfrecord")]
        made = write_pretraining_records(
            documents, tokenizer, vocab_file, files, settings, masking=masking
        )
        assert made.format_version == version and made.creation["objective"] == "mlm"
        records = RecordFiles(files)
        numbers = np.arange(records.num_records)
        kinds = PretrainingFeatures(16, 4, has_sentences=False)
        if masking == "dynamic":
            features = features_of(files, numbers)
        else:
            with tf.Graph().as_default(), tf.Session() as session:
                parsed = tf.io.parse_example(records.read_all(numbers), kinds.spec())
                features = session.run(parsed)
        assert not features["segment_ids"].any()
        lengths = features["input_mask"].sum(axis=1)
        for path in (None, made.corpus["record_lengths"]["file"]):  # beside the records, or read
            if path is not None:
                del made.corpus["record_lengths"]
                manifests.write_manifest(made, manifests.manifest_path(files[0]))
            read = record_lengths.read(records, kinds.kinds)
            assert read.tokens.tolist() == lengths.tolist()
        rows = [unmasked(features, row)[:n] for row, n in enumerate(lengths)]
        found[masking] = [row[1:-1] for row in rows]
        assert {(row[0], row[-1]) for row in rows} == {(CLS, SEP)}
    assert sorted(found["static"]) == sorted(10 * found["dynamic"])
    assert all(row in found["dynamic"] for row in expected)
    assert len(found["dynamic"]) == (10 if across else 12)


def test_the_disk_that_records_take(unmasked_files, record_files):
    sizes = [
        sum(os.path.getsize(file) for file in files) for files in (unmasked_files, record_files)
    ]
    assert sizes[0] < 0.5 * sizes[1]  # most of it is names, in records as short as these


def test_large_vocabularies_take_four_bytes():
    pairs = Pairs(*map(np.array, ([7, 8, 9], [[2, 1]], [1], [0], [0])))
    two, four = (
        stages.serializer(types.SimpleNamespace(vocab_size=size), CreationSettings(), True)(pairs)[
            0
        ]
        for size in (65536, 65537)
    )
    assert values_of([two])["token_ids"].tolist() == [b"\7\0\x08\0\x09\0"]
    assert len(four) == len(two) + 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"segment_lengths": [15, 0]}, r"two numbers from 0 to 14 in sum, since max_seq_length is"),
        ({"segment_lengths": [9, 5]}, r"holds \[9, 5\] and token_ids \d+ bytes; segment_lengths m"),
        ({"segment_lengths": [-1, 5]}, r"two numbers from 0 to 13 in sum, since max_seq_length is"),
        ({"segment_lengths": [0, 0]}, r"holds \[0, 0\]"),
        ({"segment_lengths": [2**63 - 1, 2**63 - 1]}, r"holds \[9223372036854775807, "),
        ({"segment_lengths": [1, 1]}, r"bytes; token_ids must have 2 bytes for each token"),
        ({"token_ids": b"\1"}, r"token_ids 1 bytes; token_ids must have 2 bytes for each token"),
        ({"token_ids": b"\xff" * 26, "segment_lengths": [12, 1]}, r"holds 65535; it .* 0 to 49, "),
    ],
)
def test_values_that_do_not_fit(unmasked_files, changes, message):
    with pytest.raises(RecordError, match=r"unmasked-0\.tfrecord: record 2 .*" + message) as raised:
        features_of(unmasked_files, [5, 0, 2], **{name: (2, v) for name, v in changes.items()})
    assert raised.value.number == 2


def test_the_manifest_says_that_masks_are_drawn_later(unmasked_files, record_files):
    dynamic, static = (
        manifests.read_manifest(manifests.manifest_path(files[0]))
        for files in (unmasked_files, record_files)
    )
    assert (dynamic.is_dynamic, dynamic.format_version) == (True, 2)
    assert (static.is_dynamic, static.format_version) == (False, 1)
    # The files of the lengths are named after the files of the records.
    lengths = [manifest.corpus.pop("record_lengths")["mean"] for manifest in (dynamic, static)]
    assert lengths[0] == lengths[1]
    assert dynamic.creation == static.creation and dynamic.corpus == static.corpus
    assert open_masker(record_files, 1) is None


def change_manifest(files, **creation):
    path = manifests.manifest_path(files[0])
    with open(path) as file:
        fields = json.load(file)
    fields["creation"].update(creation)
    with open(path, "w") as file:
        json.dump(fields, file)


@pytest.mark.parametrize(
    ("creation", "message"),
    [
        ({"masked_lm_prob": "much"}, "masked_lm_prob: must be a finite number"),
        ({"masked_lm_prob": 1.5}, r"masked_lm_prob is 1\.5"),
        ({"do_whole_word_mask": None}, "do_whole_word_mask"),
        ({"random_seed": "x"}, "random_seed"),
        ({"masking_unit": "letter"}, r"masking_unit is 'letter'\. Create the data again"),
        ({"masking_unit": "span", "word_segmenter": 3}, "word_segmenter: must be a string, not 3"),
    ],
)
def test_a_manifest_without_the_rules(unmasked_files, creation, message):
    change_manifest(unmasked_files, **creation)
    with pytest.raises(ValueError, match=rf"manifest\.unmasked-0\.tfrecord\.json: {message}"):
        open_masker(unmasked_files, None)


def test_sets_that_do_not_go_together(unmasked_files, record_files, tmp_path, documents, tokenizer):
    with pytest.raises(
        ValueError, match=r"unmasked-0.* and .*set-0.* do not agree in --masking, --"
    ):
        open_masker([*unmasked_files, *record_files], 1)
    other = str(tmp_path / "other.tfrecord")
    settings = CreationSettings(
        max_seq_length=16, max_predictions_per_seq=4, dupe_factor=1, masked_lm_prob=0.3
    )
    vocab_file = manifests.find_vocabulary(unmasked_files)
    write_pretraining_records(
        documents, tokenizer, vocab_file, [other], settings, masking="dynamic"
    )
    with pytest.raises(ValueError, match=r"unmasked-0.* and .*other.* do not agree"):
        open_masker([*unmasked_files, other], 1)
