"""Batches of a task: order, resume, padding, deployment."""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from number_features import Numbers, features_of

from input_pipelines.records.order import record_order
from input_pipelines.records.packed_rows import FEATURES_OF_ROWS, TOKEN_FEATURES
from input_pipelines.tasks.features_input import Packs, input_fn_builder, row_length_of
from input_pipelines.tasks.tag_features import TagFeatures
from input_pipelines.tasks.tag_files import Sentence

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


def context_at(step, invocation=0, num_invocations=1):
    return types.SimpleNamespace(
        global_step=step,
        current_input_fn_deployment=lambda: (None, invocation, num_invocations, None),
    )


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
    resumed = batches(input_fn, 2, context=context_at(3))
    for found, expected in zip(resumed, whole[3:], strict=True):
        np.testing.assert_array_equal(found["input_ids"], expected["input_ids"])


def test_several_invocations_share_the_examples():
    input_fn = input_fn_builder(FEATURES, is_training=False)
    sides = [batches(input_fn, 9, 2, context_at(0, number, 2)) for number in range(2)]
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


def unpacked(batch, part_size, length):
    """Returns the features of a packed batch's sequences, in rows of their own."""
    num_parts = len(batch["sequence_starts"]) // part_size
    features = {name: values for name, values in batch.items() if name not in FEATURES_OF_ROWS}
    for name in TOKEN_FEATURES:
        features[name] = np.zeros([len(batch["sequence_starts"]), length], np.int32)
    for sequence, start in enumerate(features.pop("sequence_starts")):
        part = sequence // part_size
        rows = {name: np.split(batch[name], num_parts)[part].ravel() for name in FEATURES_OF_ROWS}
        if not features["is_real_example"][sequence]:
            continue
        number, place = rows["input_mask"][start], start
        while place < len(rows["input_ids"]) and rows["input_mask"][place] == number:
            if rows["position_ids"][place] != place - start:
                break
            for name in TOKEN_FEATURES:
                value = 1 if name == "input_mask" else rows[name][place]
                features[name][sequence, place - start] = value
            place += 1
    return features


@pytest.mark.parametrize("kind", ["one label", "several", "tags"])
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("part_size", [4, 2])
def test_packed_batches_have_the_examples_of_unpacked_batches(
    part_size, is_training, is_static, kind
):
    features = of_lengths(kind)
    number = 9 if is_training else 2
    said = []
    packs = Packs(number if is_training else None, part_size, is_static, said.append)
    options = {"is_training": is_training, "random_seed": 3}
    whole = batches(input_fn_builder(features, **options), number)
    packed = input_fn_builder(features, **options, packs=packs)
    shapes = set()
    for batch, expected in zip(
        batches(packed, number, is_dynamic=not is_static), whole, strict=True
    ):
        shapes.add(batch["input_ids"].shape)
        actual = unpacked(batch, part_size, 12)
        assert actual.keys() == expected.keys()
        for name, values in actual.items():
            np.testing.assert_array_equal(values, expected[name], name)
    assert len(shapes) == 1 or not is_static
    rows = [rows for rows, length in shapes if length == 12]
    tokens = sum(batch["input_mask"].sum() for batch in whole)
    assert len(said) == 1
    if is_static:
        share = tokens / (rows[0] * 12 * number)
        assert said[0].endswith(f"{share:.0%} of the computed positions are tokens")


def test_packed_rows_are_not_much_longer_than_the_longest_example():
    for longest, max_seq_length, row_length in [(9, 12, 12), (9, 500, 128), (300, 512, 304)]:
        features = features_of((" ".join("7" * (longest - 2)), None, 1), length=max_seq_length)
        assert row_length_of(features) == row_length
