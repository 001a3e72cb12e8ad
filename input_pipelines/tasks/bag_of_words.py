"""The baseline that a fine-tuned network has to beat: logistic regression on which words occur.

It sees which words each text of an example holds, but neither their order nor which words of the
two texts belong together.
"""

import numpy as np

from input_pipelines.tasks.features import Features

_STEPS = 300
_LEARNING_RATE = 0.05
_WEIGHT_DECAY = 1e-4


def accuracy(train: Features, held_out: Features, num_labels: int, vocab_size: int) -> float:
    """Trains on one set of examples; returns the share of the other set that it gets right.

    Args:
      train, held_out: features with int32 labels [number of examples].
      num_labels: number of labels.
      vocab_size: number of tokens of the tokenizer that made the features.
    """
    weights, bias = _fit(train, num_labels, vocab_size)
    scores = _scores(*held_out.bag_of_words(vocab_size), len(held_out), weights, bias)
    return float(np.mean(scores.argmax(axis=1) == held_out.labels))


def _fit(train: Features, num_labels: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights [2 * vocab_size, L] and bias [L], fitted by Adam on all examples at once."""
    owners, words = train.bag_of_words(vocab_size)
    targets = np.eye(num_labels)[train.labels]
    parameters = [np.zeros((2 * vocab_size, num_labels)), np.zeros(num_labels)]
    means = [np.zeros_like(p) for p in parameters]
    squares = [np.zeros_like(p) for p in parameters]
    for step in range(1, _STEPS + 1):
        scores = _scores(owners, words, len(train), *parameters)
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = exponentials / exponentials.sum(axis=1, keepdims=True) - targets
        errors /= len(train)
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
