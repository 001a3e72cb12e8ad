import collections
import random

import pytest

from input_pipelines.instances import (
    CreationSettings,
    InstanceMaker,
    TrainingInstance,
    create_training_instances,
    truncated_pair,
)

CLS, SEP, MASK = 2, 3, 4


def settings(**changes):
    defaults = {"max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 3}
    return CreationSettings(**{**defaults, "random_seed": 1, **changes})


def ids_of(documents, tokenizer):
    return [
        [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(sentence)) for sentence in document]
        for document in documents
    ]


def unmasked(instance):
    ids = list(instance.input_ids)
    for position, label in zip(instance.masked_lm_positions, instance.masked_lm_ids, strict=True):
        ids[position] = label
    return ids


def segments(instance):
    """Returns A and B with the original tokens; checks their place and the segment ids."""
    ids = unmasked(instance)
    first = ids.index(SEP)
    assert ids[0] == CLS and ids[-1] == SEP and ids.count(SEP) == 2
    assert instance.segment_ids == [0] * (first + 1) + [1] * (len(ids) - first - 1)
    return ids[1:first], ids[first + 1 : -1]


def contains(document, part):
    text = [token for sentence in document for token in sentence]
    return any(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


def test_pinned_instances(tokenizer, documents):
    instances = list(
        create_training_instances(
            ids_of(documents[:2], tokenizer), tokenizer, settings(max_seq_length=16, dupe_factor=1)
        )
    )
    # The first document is 5 6 7 8 | 8 9 10 11 | 11 12 13 14 | 14 15 16 17 | 17 18 19 20. The first
    # instance lost tokens at both ends; the second has a segment of the other document
    # and one chosen token that stays as it is.
    assert instances[:2] == [
        TrainingInstance(
            input_ids=[2, 6, 7, 8, 8, 4, 10, 11, 3, 11, 12, 13, 14, 14, 4, 3],
            segment_ids=[0] * 9 + [1] * 7,
            is_random_next=False,
            masked_lm_positions=[5, 14],
            masked_lm_ids=[9, 15],
        ),
        TrainingInstance(
            input_ids=[2, 17, 18, 19, 20, 3, 18, 18, 19, 20, 4, 21, 22, 23, 24, 3],
            segment_ids=[0] * 6 + [1] * 10,
            is_random_next=True,
            masked_lm_positions=[10, 13],
            masked_lm_ids=[21, 23],
        ),
    ]


def test_meaning_of_the_instances(tokenizer, documents):
    tokenized = ids_of(documents, tokenizer)
    maker = InstanceMaker(tokenizer, settings())
    labels = collections.Counter()
    for turn in range(20):
        for number, document in enumerate(tokenized):
            for instance in maker.of_document(tokenized, number, turn):
                a, b = segments(instance)
                assert a and b and len(instance.input_ids) <= 32
                assert 1 <= len(instance.masked_lm_positions) <= 5
                assert contains(document, a)
                if not instance.is_random_next:
                    assert contains(document, b)
                labels[instance.is_random_next] += 1
    assert min(labels.values()) > 0.3 * labels.total()


def test_true_next_segments_follow_directly(tokenizer):
    # Tokens ascend through the document, and nothing is cut: B starts after A's last token.
    tokenized = [[[5 + 3 * s + t for t in range(3)] for s in range(12)], [[41]]]
    maker = InstanceMaker(tokenizer, settings(max_seq_length=43, short_seq_prob=0.0))
    seen = 0
    for turn in range(30):
        for instance in maker.of_document(tokenized, 0, turn):
            a, b = segments(instance)
            if instance.is_random_next:
                assert b == [41]
            else:
                assert a + b == list(range(a[0], b[-1] + 1))
                seen += 1
    assert seen > 10


def test_sentence_order(tokenizer):
    # Tokens ascend through the document: B borders on A, after it or, when swapped, before it.
    tokenized = [[[5 + 3 * s + t for t in range(3)] for s in range(12)], [[41, 42]]]
    maker = InstanceMaker(
        tokenizer, settings(max_seq_length=43, short_seq_prob=0.3, random_next_sentence=False)
    )
    labels = collections.Counter()
    for turn in range(100):
        for instance in maker.of_document(tokenized, 0, turn):
            a, b = segments(instance)
            first, second = (b, a) if instance.is_random_next else (a, b)
            assert first + second == list(range(first[0], second[-1] + 1))
            labels[instance.is_random_next] += 1
        for instance in maker.of_document(tokenized, 1, turn):
            # A sentence alone: its halves.
            assert segments(instance) == (([42], [41]) if instance.is_random_next else ([41], [42]))
    assert 0.4 < labels[True] / labels.total() < 0.6


def test_random_segments_come_from_other_documents(tokenizer):
    tokenized = [[[10 * d + 5] * 3 for _ in range(4)] for d in range(4)]
    maker = InstanceMaker(tokenizer, settings())
    sources = set()
    for turn in range(50):
        for instance in maker.of_document(tokenized, 1, turn):
            if instance.is_random_next:
                sources |= set(segments(instance)[1])
    assert sources == {5, 25, 35}


def test_unused_sentences_are_not_lost(tokenizer):
    tokenized = [[[5 + s] * 4 for s in range(10)], [[40] * 4] * 10]
    maker = InstanceMaker(tokenizer, settings(max_seq_length=50, short_seq_prob=0.0))
    for turn in range(20):
        seen = set()
        for instance in maker.of_document(tokenized, 0, turn):
            seen |= set(unmasked(instance))
        assert set(range(5, 15)) <= seen


def test_short_sequences(tokenizer):
    tokenized = [[[5 + s % 40] for s in range(400)], [[6] * 100]]
    lengths = {}
    for probability in (0.0, 1.0):
        maker = InstanceMaker(tokenizer, settings(short_seq_prob=probability))
        lengths[probability] = [
            len(instance.input_ids)
            for turn in range(5)
            for instance in maker.of_document(tokenized, 0, turn)
        ]
    # All but the last of each turn are full.
    assert lengths[0.0].count(32) >= len(lengths[0.0]) - 5
    assert min(lengths[1.0]) == 5 and len(set(lengths[1.0])) > 20


@pytest.mark.parametrize("document", [[[5, 6, 7, 8]], [[5, 6, 7, 8], [9, 10]]])
def test_a_short_document_alone_keeps_its_text(tokenizer, document):
    # Without other text, a segment that is labelled as the next one is the next one.
    instances = list(create_training_instances([document], tokenizer, settings()))
    assert instances
    for instance in instances:
        a, b = segments(instance)
        assert not instance.is_random_next
        assert contains(document, a + b)
    a, b = segments(instances[0])
    assert a + b == [token for sentence in document for token in sentence]


def test_a_lone_sentence_is_halved(tokenizer):
    (instance,) = create_training_instances(
        [[[5, 6, 7]]], tokenizer, settings(dupe_factor=1, short_seq_prob=0.0)
    )
    assert segments(instance) == ([5, 6], [7])


def test_a_lone_token_gives_nothing(tokenizer):
    assert list(create_training_instances([[[5]]], tokenizer, settings())) == []
    assert list(create_training_instances([], tokenizer, settings())) == []


def test_a_long_document_alone_has_random_segments_of_its_own(tokenizer):
    document = [[5 + s] * 8 for s in range(20)]
    labels = set()
    for instance in create_training_instances([document], tokenizer, settings()):
        a, b = segments(instance)
        labels.add(instance.is_random_next)
        if instance.is_random_next:
            assert b[0] != a[-1] and b[0] != a[-1] + 1
    assert labels == {False, True}


def test_each_document_has_its_own_generator(tokenizer, documents):
    tokenized = ids_of(documents, tokenizer)
    in_order = list(create_training_instances(tokenized, tokenizer, settings()))
    maker = InstanceMaker(tokenizer, settings())
    jobs = [(turn, number) for turn in range(3) for number in range(6)]
    random.Random(0).shuffle(jobs)
    results = {job: list(maker.of_document(tokenized, job[1], job[0])) for job in jobs}
    assert [instance for job in sorted(results) for instance in results[job]] == in_order


def test_seeds_and_turns_differ(tokenizer, documents):
    tokenized = ids_of(documents, tokenizer)
    maker = InstanceMaker(tokenizer, settings())
    other = InstanceMaker(tokenizer, settings(random_seed=2))
    first = list(maker.of_document(tokenized, 0, 0))
    assert first == list(maker.of_document(tokenized, 0, 0))
    assert first != list(maker.of_document(tokenized, 0, 1))
    assert first != list(other.of_document(tokenized, 0, 0))


def test_truncation_shortens_the_longer_at_both_ends():
    rng = random.Random(0)
    starts, ends = set(), set()
    for _ in range(100):
        a, b = truncated_pair(list(range(20)), list(range(100, 105)), 12, rng)
        assert b == list(range(100, 105)) and len(a) == 7
        assert a == list(range(a[0], a[0] + 7))
        starts.add(a[0])
        ends.add(a[-1])
    assert len(starts) > 4 and len(ends) > 4


def test_truncation_of_equal_lengths_takes_from_b():
    a, b = truncated_pair([1, 2, 3], [4, 5, 6], 5, random.Random(0))
    assert a == [1, 2, 3] and len(b) == 2
    a, b = truncated_pair(a, b, 5, random.Random(0))
    assert len(a) + len(b) == 5


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_seq_length", 4, r"^max_seq_length is 4; it must be at least 5\."),
        ("max_predictions_per_seq", 0, r"^max_predictions_per_seq is 0; it must be from 1 to"),
        ("max_predictions_per_seq", 33, r"from 1 to max_seq_length \(32\)"),
        ("masked_lm_prob", 0.0, r"^masked_lm_prob is 0\.0; it must be above 0 and at most 1"),
        ("short_seq_prob", 1.1, r"^short_seq_prob is 1\.1; it must be from 0 to 1"),
        ("dupe_factor", 0, r"^dupe_factor is 0; it must be at least 1"),
    ],
)
def test_settings_out_of_range(name, value, message):
    with pytest.raises(ValueError, match=message):
        settings(**{name: value})
