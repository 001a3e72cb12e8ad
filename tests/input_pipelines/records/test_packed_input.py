"""Batches of pretraining records whose rows are packed."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from batches import batches, context
from tiny_run import copy_records

from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.records import record_lengths
from input_pipelines.records.packed_rows import TOKEN_FEATURES, Packs
from input_pipelines.records.pretraining_features import PretrainingFeatures
from input_pipelines.records.pretraining_input import input_fn_builder, shapes_input_fn
from input_pipelines.records.record_reader import RecordError, RecordFiles

F, P, BATCH = 24, 4, 6
LENGTHS = {"max_seq_length": F, "max_predictions_per_seq": P}


@pytest.fixture
def files(tmp_path, documents, tokenizer, vocab_file):
    """Returns two record files with sequences of several lengths, without masks."""
    generator = np.random.default_rng(1)
    documents = [document[: generator.integers(2, 6)] for document in documents]
    paths = [str(tmp_path / f"set-{number}.tfrecord") for number in range(2)]
    settings = CreationSettings(**LENGTHS, short_seq_prob=0.5, dupe_factor=3)
    write_pretraining_records(documents, tokenizer, vocab_file, paths, settings, masking="dynamic")
    return paths


def static(files, tokenizer, vocab_file, documents, **settings):
    settings = CreationSettings(**LENGTHS, short_seq_prob=0.5, dupe_factor=3, **settings)
    write_pretraining_records(documents, tokenizer, vocab_file, files, settings, masking="static")


def input_fn(files, packs=None, **options):
    lengths = record_lengths.read(RecordFiles(files), PretrainingFeatures(F, P).kinds)
    return input_fn_builder(files, F, P, True, packs=packs, lengths=lengths, **options)


def sequences(batch):
    """Returns number -> tokens, label and masked words of a batch, whether packed or not."""
    result = {}
    if "sequence_starts" not in batch:
        for number, mask in enumerate(batch["input_mask"]):
            length = mask.sum()
            is_word = batch["masked_lm_weights"][number] > 0
            result[number] = (
                batch["input_ids"][number, :length].tolist(),
                batch["segment_ids"][number, :length].tolist(),
                batch["next_sentence_labels"][number].tolist(),
                sorted(
                    zip(
                        batch["masked_lm_positions"][number, is_word].tolist(),
                        batch["masked_lm_ids"][number, is_word].tolist(),
                        strict=True,
                    )
                ),
            )
        return result
    flat = {name: batch[name].ravel() for name in (*TOKEN_FEATURES, "position_ids")}
    words = [
        (place, word)
        for place, word, weight in zip(
            *(batch[f"masked_lm_{name}"].tolist() for name in ("positions", "ids", "weights")),
            strict=True,
        )
        if weight
    ]
    for slot, number in enumerate(batch["sequence_numbers"].tolist()):
        if not batch["is_real_example"][slot]:
            continue
        start = int(batch["sequence_starts"][slot])
        length = 1
        while start + length < flat["position_ids"].size and (
            flat["position_ids"][start + length] == length
        ):
            length += 1
        part = slice(start, start + length)
        assert len(set(flat["input_mask"][part])) == 1 and flat["input_mask"][start] > 0
        result[number] = (
            flat["input_ids"][part].tolist(),
            flat["segment_ids"][part].tolist(),
            batch["next_sentence_labels"][slot].tolist(),
            sorted((place - start, word) for place, word in words if start <= place < part.stop),
        )
    return result


@pytest.mark.parametrize("is_static", [True, False])
def test_packed_batches_have_the_sequences_of_unpacked_ones(files, is_static):
    packs = Packs(9, is_static=is_static)
    unpacked = batches(input_fn(files), {"batch_size": BATCH}, most=9)
    packed = batches(input_fn(files, packs), {"batch_size": BATCH})  # ends with the plan
    for one, other in zip(packed, unpacked, strict=True):
        assert sequences(one) == sequences(other)
    rows = {len(batch["input_ids"]) for batch in packed}
    assert (len(rows) == 1) == is_static and max(rows) < BATCH


def test_a_resumed_training_packs_as_an_uninterrupted_one(files):
    function = input_fn(files, Packs(9))
    whole = batches(function, {"batch_size": BATCH}, most=9)
    resumed = batches(function, {"batch_size": BATCH, "context": context(5)}, most=4)
    np.testing.assert_equal(resumed, whole[5:])


def test_the_rows_of_an_evaluation_are_not_packed(files):
    with pytest.raises(ValueError, match="only the records of a training are packed"):
        input_fn_builder(files, F, P, is_training=False, packs=Packs(9))


def test_hosts_read_their_own_slots(files, monkeypatch):
    """Together they have what a single host has on as many parts."""
    function = input_fn(files, Packs(3, micro_batch_size=BATCH // 2))
    whole = batches(function, {"batch_size": BATCH}, most=3)
    read, read_all = [], RecordFiles.read_all

    def counting(records, numbers):
        read.append(len(numbers))
        return read_all(records, numbers)

    monkeypatch.setattr(RecordFiles, "read_all", counting)
    halves = [
        batches(
            input_fn(files, Packs(3)),
            {"batch_size": BATCH // 2, "context": context(0, number, 2)},
            most=3,
        )
        for number in range(2)
    ]
    for batch, *parts in zip(whole, *halves, strict=True):
        for name, expected in batch.items():
            together = np.concatenate([part[name] for part in parts])
            np.testing.assert_array_equal(together, expected, err_msg=name)
    assert sum(read) == 3 * BATCH


def test_shapes_are_those_of_batches(files):
    lengths = record_lengths.read(RecordFiles(files), PretrainingFeatures(F, P).kinds)
    packs = Packs(9, micro_batch_size=2)
    with tf.Graph().as_default():
        zeros = shapes_input_fn(F, P, "bfloat16", packs, lengths)({"batch_size": BATCH})
        dataset = input_fn(files, packs, precision="bfloat16")({"batch_size": BATCH})
        spec = dataset.element_spec
    assert zeros.keys() == spec.keys()
    for name, tensor in zeros.items():
        assert tensor.dtype == spec[name].dtype and tensor.shape == spec[name].shape, name
        assert tensor.shape.is_fully_defined()


def test_bad_records_are_left_out(files, tokenizer, vocab_file, documents, tmp_path):
    """What is found to be bad while it is read leaves an empty slot."""
    static(files, tokenizer, vocab_file, documents)
    copies = [str(tmp_path / f"copy-{number}.tfrecord") for number in range(2)]

    def spoil(features):
        features["segment_ids"].int64_list.value[0] = 9

    copy_records(files[0], copies[0], {1: spoil})
    copy_records(files[1], copies[1], {})
    steps = RecordFiles(copies).num_records // BATCH + 1
    expected = batches(input_fn(files), {"batch_size": BATCH}, most=steps)
    function = input_fn(copies, Packs(steps), type_vocab_size=2, max_bad_records=1)
    packed = [sequences(batch) for batch in batches(function, {"batch_size": BATCH}, most=steps)]
    missing = 0
    for batch, whole in zip(packed, map(sequences, expected), strict=True):
        assert batch.items() <= whole.items()
        missing += len(whole) - len(batch)
    assert missing in (1, 2)  # the last step may read it again
    with pytest.raises(tf.errors.InvalidArgumentError, match="segment_ids holds 9"):
        batches(
            input_fn(copies, Packs(steps), type_vocab_size=2), {"batch_size": BATCH}, most=steps
        )


def test_tokens_after_padding_cannot_be_packed(files, tokenizer, vocab_file, documents, tmp_path):
    static(files, tokenizer, vocab_file, documents)
    copy = str(tmp_path / "copy.tfrecord")

    def swap(features):
        mask = features["input_mask"].int64_list.value
        mask[0], mask[F - 1] = mask[F - 1], mask[0]

    records = RecordFiles(files[:1])
    copy_records(files[0], copy, dict.fromkeys(range(records.num_records), swap))
    with pytest.raises(RecordError, match=r"record 0 .*: input_mask must be ones and then zeros"):
        input_fn([copy], Packs(9))({"batch_size": BATCH})
