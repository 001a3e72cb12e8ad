import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.command_line.choices import MASKING_UNITS
from input_pipelines.creation.instances import Pairs
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.creation.stages import serializer

CLS, SEP, MASK = 2, 3, 4


def features_of(record):
    features = tf.train.Example.FromString(record).features.feature
    return {
        name: list(getattr(feature, feature.WhichOneof("kind")).value)
        for name, feature in features.items()
    }


def pairs_of(*rows):
    return Pairs(
        np.array([token for a, b, _ in rows for token in [*a, *b]]),
        np.array([[len(a), len(b)] for a, b, _ in rows], int).reshape(-1, 2),
        np.array([label for *_, label in rows]),
        np.arange(len(rows)) + 7,
        np.full(len(rows), 2),
    )


def settings(**changes):
    return CreationSettings(max_seq_length=10, max_predictions_per_seq=3, **changes)


def test_features_of_an_example(tokenizer):
    pairs = pairs_of(([9, 10], [11], 1), ([5, 6, 7], [8, 9, 10, 11], 0))
    serialize = serializer(tokenizer, settings(masked_lm_prob=0.3), is_dynamic=False)
    first, second = map(features_of, serialize(pairs))
    assert first["input_mask"] == [1] * 6 + [0] * 4
    assert first["segment_ids"] == [0] * 4 + [1] * 2 + [0] * 4
    assert first["next_sentence_labels"] == [1] and second["next_sentence_labels"] == [0]
    assert first["masked_lm_weights"] == [1.0, 1.0, 0.0]
    assert second["masked_lm_weights"] == [1.0, 1.0, 1.0]
    for features, whole in (
        (first, [CLS, 9, 10, SEP, 11, SEP, 0, 0, 0, 0]),
        (second, [CLS, 5, 6, 7, SEP, 8, 9, 10, 11, SEP]),
    ):
        unmasked = list(features["input_ids"])
        number = int(sum(features["masked_lm_weights"]))
        positions = features["masked_lm_positions"]
        assert positions[:number] == sorted(set(positions[:number]))
        assert not any(positions[number:]) and not any(features["masked_lm_ids"][number:])
        for position, label in zip(positions[:number], features["masked_lm_ids"], strict=False):
            assert label not in (CLS, SEP)
            unmasked[position] = label
        assert unmasked == whole


def test_features_of_whole_sentences(tokenizer):
    """There is one [SEP], or another one between documents, which is not masked."""
    rows = [[9, 10, SEP, 11, 12], [5] * 8, [6, 7]]
    pairs = pairs_of(*((row, [], 0) for row in rows))
    for features, row in zip(
        map(features_of, serializer(tokenizer, settings(masked_lm_prob=1.0), False)(pairs)),
        rows,
        strict=True,
    ):
        length = len(row) + 2
        assert features["input_mask"] == [1] * length + [0] * (10 - length)
        assert features["segment_ids"] == [0] * 10 and features["next_sentence_labels"] == [0]
        unmasked = list(features["input_ids"])
        labelled = list(
            zip(features["masked_lm_positions"], features["masked_lm_ids"], strict=True)
        )
        for position, label in labelled[: int(sum(features["masked_lm_weights"]))]:
            assert label != SEP
            unmasked[position] = label
        assert unmasked == [CLS, *row, SEP, *[0] * (10 - length)]


@pytest.mark.parametrize("unit", MASKING_UNITS)
def test_masks_depend_on_seed_turn_and_key_alone(tokenizer, unit):
    rows = [([5, 45, 6], [7, 46, 47, 8], 0)] * 600
    pairs = pairs_of(*rows)
    serialize = serializer(tokenizer, settings(masking_unit=unit), False)
    records = serialize(pairs)
    assert len(records) == 600 and len(set(records)) > 5
    order = np.random.RandomState(0).permutation(600)
    assert serialize(pairs.chosen(order)) == [records[row] for row in order]
    pairs.turns[:] = 3
    assert serialize(pairs) != records
    pairs.turns[:] = 2
    other = settings(masking_unit=unit, random_seed=1)
    assert serializer(tokenizer, other, False)(pairs) != records


def test_unmasked_records(tokenizer):
    rows = [([5] * (1 + i % 4), [6, 49], i % 2) for i in range(300)]
    records = serializer(tokenizer, settings(), is_dynamic=True)(pairs_of(*rows))
    for record, (a, b, label) in zip(records, rows, strict=True):
        assert features_of(record) == {
            "token_ids": [np.array([*a, *b], "<u2").tobytes()],
            "segment_lengths": [len(a), len(b)],
            "next_sentence_labels": [label],
        }
