"""Baselines that a fine-tuned network has to beat.

The bag of words, a logistic regression, sees which words each text of an example holds, but neither
their order nor which words of the two texts belong together. The usual tag of a word is its most
frequent tag, whatever the sentence is.
"""

import collections
from collections.abc import Sequence

import numpy as np

from bert_estimator.tokenization import entities
from input_pipelines.tasks.features import Features
from input_pipelines.tasks.tag_files import Sentence

_STEPS = 300
_LEARNING_RATE = 0.05
_WEIGHT_DECAY = 1e-4


def bag_of_words_accuracy(
    train: Features, held_out: Features, num_labels: int, vocab_size: int
) -> float:
    """Trains on one set of examples; returns the share of the other set that it gets right."""
    weights, bias = _fit(train, num_labels, vocab_size)
    scores = _scores(*held_out.bag_of_words(vocab_size), held_out.num_texts, weights, bias)
    return float(np.mean(scores.argmax(axis=1) == held_out.labels))


def _fit(train: Features, num_labels: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights [2 * vocab_size, L] and bias [L], fitted by Adam on all examples at once."""
    owners, words = train.bag_of_words(vocab_size)
    targets = np.eye(num_labels)[train.labels]
    parameters = [np.zeros((2 * vocab_size, num_labels)), np.zeros(num_labels)]
    means = [np.zeros_like(p) for p in parameters]
    squares = [np.zeros_like(p) for p in parameters]
    for step in range(1, _STEPS + 1):
        scores = _scores(owners, words, train.num_texts, *parameters)
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = exponentials / exponentials.sum(axis=1, keepdims=True) - targets
        errors /= train.num_texts
        # A product with a matrix of words would take memory for examples times vocabulary.
        by_word = [
            np.bincount(words, errors[owners, label], 2 * vocab_size) for label in range(num_labels)
        ]
        gradients = [np.stack(by_word, 1) + _WEIGHT_DECAY * parameters[0], errors.sum(axis=0)]
        for parameter, gradient, mean, square in zip(
            parameters, gradients, means, squares, strict=True
        ):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            corrected = np.sqrt(square / (1 - 0.999**step)) + 1e-8
            parameter -= _LEARNING_RATE * mean / (1 - 0.9**step) / corrected
    return parameters[0], parameters[1]


def _scores(
    owners: np.ndarray, words: np.ndarray, num_examples: int, weights: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """Returns the scores of the labels, float64 [number of examples, L]."""
    sums = [np.bincount(owners, weights[words, label], num_examples) for label in range(len(bias))]
    return np.stack(sums, axis=1) + bias


def usual_tags_score(
    train: Sequence[Sentence], held_out: Sequence[Sentence], tags: Sequence[str]
) -> float:
    """Returns the first metric of a tagging task for `usual_tags`."""
    truth = [[tags[number] for number in sentence.tags or ()] for sentence in held_out]
    guess = usual_tags(train, held_out)
    named = [[tags[number] for number in sentence] for sentence in guess]
    if entities.are_entity_tags(tags):
        return entities.scores(truth, named)[2]
    pairs = [pair for t, g in zip(truth, named, strict=True) for pair in zip(t, g, strict=True)]
    return sum(label == other for label, other in pairs) / len(pairs)


def usual_tags(train: Sequence[Sentence], others: Sequence[Sentence]) -> list[list[int]]:
    """Tags each word by itself: with its most frequent tag in the sentences to train on, or with
    their most frequent tag if it does not occur there."""
    counts: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    total: collections.Counter[int] = collections.Counter()
    for sentence in train:
        for word, number in zip(sentence.words, sentence.tags or (), strict=True):
            counts[word][number] += 1
            total[number] += 1
    usual = {word: _most_frequent(counter) for word, counter in counts.items()}
    default = _most_frequent(total)
    return [[usual.get(word, default) for word in sentence.words] for sentence in others]


def _most_frequent(counter: collections.Counter[int]) -> int:
    return min(counter, key=lambda number: (-counter[number], number))
