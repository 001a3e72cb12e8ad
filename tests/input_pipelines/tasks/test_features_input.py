"""Batches of a task: order, resume, padding, deployment."""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from batches import context
from number_features import Numbers, features_of

from input_pipelines.records.order import record_order
from input_pipelines.records.packed_rows import TOKEN_FEATURES
from input_pipelines.tasks.features import TagFeatures
from input_pipelines.tasks.features_input import Packs, input_fn_builder, row_length_of
from input_pipelines.tasks.tag_files import Sentence

ROW_FEATURES = (*TOKEN_FEATURES, "position_ids")
FEATURES = features_of(*((str(i), None, i) for i in range(10)))


def batches(input_fn, number, batch_size=4, context=None, is_dynamic=False):
    """Returns the first label_ids and is_real_example of batches."""
    params = {"batch_size": batch_size}
    if context is not None:
        params["context"] = context
    with tf.Graph().as_default(), tf.Session() as session:
        dataset = input_fn(params)
        for spec in tf.data.get_output_shapes(dataset).values():
            assert spec.is_fully_defined() or is_dynamic
        batch = tf.data.make_one_shot_iterator(dataset.take(number)).get_next()
        found = []
        while True:
            try:
                found.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                return found


def test_evaluation_is_one_pass_in_order_and_padded():
    found = batches(input_fn_builder(FEATURES, is_training=False), 100)
    labels = np.concatenate([batch["label_ids"] for batch in found])
    assert labels.tolist() == [*range(10), 0, 0]
    real = np.concatenate([batch["is_real_example"] for batch in found])
    assert real.tolist() == [1] * 10 + [0, 0]


def test_training_is_an_endless_permutation_that_depends_on_the_seed():
    found = batches(input_fn_builder(FEATURES, is_training=True, random_seed=3), 5)
    labels = np.concatenate([batch["label_ids"] for batch in found])
    np.testing.assert_array_equal(labels, record_order(np.arange(20), 10, 3))
    other = batches(input_fn_builder(FEATURES, is_training=True, random_seed=4), 5)
    assert labels.tolist() != np.concatenate([b["label_ids"] for b in other]).tolist()


def test_a_resumed_training_goes_on_with_its_examples():
    input_fn = input_fn_builder(FEATURES, is_training=True)
    whole = batches(input_fn, 5)
    resumed = batches(input_fn, 2, context=context(3))
    for found, expected in zip(resumed, whole[3:], strict=True):
        np.testing.assert_array_equal(found["input_ids"], expected["input_ids"])


def test_several_invocations_share_the_examples():
    input_fn = input_fn_builder(FEATURES, is_training=False)
    sides = [batches(input_fn, 9, 2, context(0, number, 2)) for number in range(2)]
    rows = [np.concatenate([b["label_ids"] for b in pair]) for pair in zip(*sides, strict=True)]
    assert np.concatenate(rows).tolist() == [*range(10), 0, 0]


def of_lengths(kind):
    """Returns examples whose lengths differ: labelled texts, several labels for each, or tags."""
    tokens = [2, 5, 3, 6, 2, 2, 2]
    if kind == "tags":
        sentences = [Sentence(("7",) * n, (1,) * n) for n in tokens]
        return TagFeatures(sentences, Numbers(), 12)
    labels = [[0, 1] * 6] * 7 if kind == "several" else range(7)
    texts = [" ".join("7" * n) for n in tokens]
    return features_of(*zip(texts, [None] * 7, labels, strict=True), length=12)


@pytest.mark.parametrize("kind", ["one label", "several", "tags"])
def test_batches_may_be_as_long_as_their_longest_example(kind):
    features = of_lengths(kind)
    whole = batches(input_fn_builder(features, is_training=False), 9, 3)
    short = input_fn_builder(features, is_training=False, pads_to_longest=True)
    found = batches(short, 9, 3, is_dynamic=True)
    assert [batch["input_ids"].shape for batch in found] == [(3, 7), (3, 8), (3, 4)]
    for batch, expected in zip(found, whole, strict=True):
        length = batch["input_ids"].shape[1]
        for name, values in batch.items():
            is_of_tokens = name.startswith("input") or name in ("segment_ids", "label_mask")
            is_cut = is_of_tokens or (kind == "tags" and name == "label_ids")
            whole_values = expected[name][:, :length] if is_cut else expected[name]
            np.testing.assert_array_equal(values, whole_values, name)
            assert not (is_cut and expected[name][:, length:].any())


@pytest.mark.parametrize(
    ("max_seq_length", "lengths"), [(8, {8}), (12, {12}), (40, {16, 24, 40}), (400, {25, 325, 350})]
)
def test_batches_of_training_have_few_lengths(max_seq_length, lengths):
    tokens = [7, 10, 20, 300, 330]
    texts = [(" ".join("7" * n), None, n) for n in tokens]
    features = features_of(*texts, length=max_seq_length)
    input_fn = input_fn_builder(features, is_training=True, pads_to_longest=True)
    found = batches(input_fn, 20, 1, is_dynamic=True)
    sizes = {batch["input_ids"].shape[1] for batch in found}
    assert sizes == lengths
    for batch in found:
        assert batch["input_mask"].sum() == min(batch["label_ids"][0] + 2, max_seq_length)


def unpacked(batch, num_parts, length):
    """Returns the features of a packed batch's examples by their number in the batch."""
    examples = {}
    slots = range(len(batch["sequence_starts"]))
    for slot, start, number in zip(
        slots, batch["sequence_starts"], batch["sequence_numbers"], strict=True
    ):
        if not batch["is_real_example"][slot]:
            continue
        part = slot * num_parts // len(slots)
        rows = {name: np.split(batch[name], num_parts)[part].ravel() for name in ROW_FEATURES}
        example = {name: np.zeros(length, np.int32) for name in TOKEN_FEATURES}
        position = 0
        while (
            start + position < len(rows["input_ids"])
            and rows["position_ids"][start + position] == position
            and rows["input_mask"][start + position] == rows["input_mask"][start]
        ):
            for name in TOKEN_FEATURES:
                example[name][position] = rows[name][start + position]
            position += 1
        example["input_mask"] = (example["input_mask"] > 0).astype(np.int32)
        for name in batch.keys() - {*ROW_FEATURES, "sequence_starts", "sequence_numbers"}:
            example[name] = batch[name][slot]
        examples[number] = example
    return examples


@pytest.mark.parametrize("kind", ["one label", "several", "tags"])
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_packed_batches_have_the_examples_of_unpacked_batches(
    micro_batch_size, is_training, is_static, kind
):
    features = of_lengths(kind)
    number = 9 if is_training else 2
    said = []
    packs = Packs(number if is_training else None, micro_batch_size, is_static, report=said.append)
    options = {"is_training": is_training, "random_seed": 3}
    whole = batches(input_fn_builder(features, **options), number)
    packed = input_fn_builder(features, **options, packs=packs)
    packed = batches(packed, number, is_dynamic=not is_static)
    for batch, expected in zip(packed, whole, strict=True):
        examples = unpacked(batch, 2 if micro_batch_size else 1, 12)
        assert len(examples) == expected["is_real_example"].sum()
        for place, example in examples.items():
            assert example.keys() == expected.keys()
            for name, values in example.items():
                np.testing.assert_array_equal(values, expected[name][place], name)
    sizes = [batch["input_ids"].size for batch in packed]
    assert len(set(sizes)) == 1 or not is_static
    share = sum(batch["input_mask"].sum() for batch in whole) / sum(sizes)
    (filling,) = said
    assert filling.row_length == 12 and filling.token_share == pytest.approx(share)


def test_hosts_and_cores_compute_rows_of_one_batch():
    features = of_lengths("one label")

    def first_batch(host, num_hosts, cores):
        context = types.SimpleNamespace(
            global_step=0, current_input_fn_deployment=lambda: (None, host, num_hosts, cores)
        )
        input_fn = input_fn_builder(features, is_training=True, packs=Packs(3))
        return batches(input_fn, 1, 4 // num_hosts, context)[0]

    whole = first_batch(0, 1, 1)
    parts = first_batch(0, 1, 2)
    hosts = [first_batch(host, 2, 1) for host in range(2)]
    for name in ROW_FEATURES:
        joined = np.concatenate([batch[name] for batch in hosts])
        np.testing.assert_array_equal(parts[name], joined)
        rows = min(len(joined), len(whole[name]))
        np.testing.assert_array_equal(joined[:rows], whole[name][:rows])
        assert not joined[rows:].any() and not whole[name][rows:].any()


def test_packed_rows_are_not_much_longer_than_the_longest_example():
    for longest, max_seq_length, row_length in [(9, 12, 12), (9, 500, 128), (300, 512, 304)]:
        features = features_of((" ".join("7" * (longest - 2)), None, 1), length=max_seq_length)
        assert row_length_of(features) == row_length
