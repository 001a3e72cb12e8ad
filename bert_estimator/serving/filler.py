"""Masked words: which words a network expects there, and how well it expects the words of a text.

Letters: B texts of a batch, F sequence length, V vocabulary size, M masked words of a batch.
"""

import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator import heads
from bert_estimator.interchange import network_variables
from bert_estimator.interchange.network_variables import MASKED_LM
from bert_estimator.interchange.onnx import runtime
from bert_estimator.interchange.source import ELECTRA, Source
from bert_estimator.layers import primitives
from bert_estimator.serving import commands
from bert_estimator.serving.commands import Text
from bert_estimator.serving.embedder import Embedder
from bert_estimator.tokenization import MASK
from bert_estimator.tokenization.sentencepiece_tokenizer import WORD_START
from bert_estimator.tokenization.wordpiece import WHOLE_WORDS
from input_pipelines.tasks.examples import Example
from input_pipelines.tasks.features import Features

TOP = 5  # how many words are listed for a masked word by default

_MOST_MASKS = 256  # the logits of so many masked words are in memory at a time
_HEADS = {
    network_variables.NEXT_SENTENCE: "a head for next sentences",
    network_variables.CLASSIFIER: "a classifier",
    network_variables.ANSWER: "a head for answers",
}


class Filler(Embedder):
    """Opens a network with its head for masked words, whatever format it is stored in.

    ```
    filler = Filler("uncased_L-12_H-768_A-12")
    filler.fill(["The [MASK] of a class is called its [MASK].", ("Who is [MASK]?", "It is me.")])
    filler.score(["A text without masks."])
    ```

    It is an `Embedder`, with its arguments, attributes and errors: a call gives vectors.

    Args:
      is_needed: whether a network without the head is an error.

    Attributes:
      fills: whether the network has the head, which `fill` and `score` need.

    Raises:
      ValueError: as for `Embedder`; or the network does not have the head, and the message says
        what it has instead.
    """

    def __init__(self, path: str, *arguments: Any, is_needed: bool = True, **options: Any):
        self._is_needed, self.fills = is_needed, True
        super().__init__(path, *arguments, **options)
        # The network may have more rows than the vocabulary has tokens, and one lists words.
        tokens = self._tokenizer.convert_ids_to_tokens(range(self._tokenizer.vocab_size))
        self._words = np.flatnonzero([not t.startswith(WHOLE_WORDS) for t in tokens])

    def fill(self, texts: Sequence[Text], top: int | Sequence[int] = TOP) -> list[dict[str, Any]]:
        """Finds the most probable words for each `[MASK]` of texts.

        Args:
          texts: strings, and tuples of two strings for pairs, each with one `[MASK]` or more. Of
            the special tokens, `[MASK]` alone is read in a text.
          top: how many words are listed for each; a number, or one for each text.

        Returns:
          For each text, a dict whose `masks` has an item for each `[MASK]`, in order: a list, the
          most probable first, of dicts of `word`, a token of the vocabulary, and `probability`.

        Raises:
          ValueError: a text lacks `[MASK]`, or has more tokens than the network has positions, or
            is not a text; the message says which.
        """
        examples = self._examples(texts)
        for number, example in enumerate(examples):
            if MASK not in f"{example.text_a} {example.text_b or ''}":
                raise ValueError(
                    f"texts[{number}] does not have {MASK}, in capitals, which stands for a word "
                    "to fill in"
                )
        features = self._uncut(examples, _reading_masks(self._tokenizer))
        answers: list[dict[str, Any]] = [{"masks": []} for _ in texts]
        tops = np.broadcast_to(top, len(texts))
        for numbers, feed in self._batches(features):
            ids = feed[self._inputs["input_ids"]]
            places = np.flatnonzero(ids == self._tokenizer.mask_id)
            for first in range(0, len(places), _MOST_MASKS):
                some = places[first : first + _MOST_MASKS]
                owners = numbers[some // ids.shape[1]]
                logs = self._log_probabilities(feed, some, owners)
                for number, row in zip(owners, logs, strict=True):
                    answers[number]["masks"].append(self._best(row, tops[number]))
        return answers

    def score(self, texts: Sequence[Text]) -> list[dict[str, Any]]:
        """Finds how well the network expects texts: each token is masked in turn (Salazar et al.,
        "Masked Language Model Scoring", 2020).

        Args:
          texts: strings, and tuples of two strings for pairs.

        Returns:
          For each text, a dict of `pseudo_log_likelihood`, the sum of the logarithms of the tokens'
          probabilities; `num_tokens`, without `[CLS]` and `[SEP]`; and `pseudo_perplexity`, the
          exponential of the negated mean.

        Raises:
          ValueError: a text does not have a token, has more tokens than the network has positions,
            or is not a text; the message says which.
        """
        features = self._uncut(self._examples(texts), self._tokenizer)
        special, places = (self._tokenizer.cls_id, self._tokenizer.sep_id), []
        for number, length in enumerate(features.lengths):
            ids = features.batch(np.array([number]), length)["input_ids"][0]
            places.append(np.flatnonzero(~np.isin(ids, special)))
            if not len(places[-1]):
                raise ValueError(f"texts[{number}] does not have a word to score")
        # A row for each token: the number of its text, and its place.
        owners = np.repeat(np.arange(len(texts)), [len(own) for own in places])
        places = np.concatenate([*places, np.zeros([0], np.int64)])
        logs = np.zeros(len(owners))
        for rows in commands.batches_by_length(features.lengths[owners], self.batch_size):
            feed = self._feed(features, owners[rows])
            ids = feed[self._inputs["input_ids"]]
            masked = np.arange(len(rows)) * ids.shape[1] + places[rows]
            tokens = ids.flat[masked]
            ids.flat[masked] = self._tokenizer.mask_id
            of_all = self._log_probabilities(feed, masked, owners[rows])
            logs[rows] = of_all[np.arange(len(rows)), tokens]
        sums, counts = (np.bincount(owners, x, len(texts)) for x in (logs, np.ones(len(logs))))
        return [
            {
                "pseudo_log_likelihood": float(total),
                "num_tokens": int(count),
                "pseudo_perplexity": float(np.exp(-total / count)),
            }
            for total, count in zip(sums, counts, strict=True)
        ]

    def _examples(self, texts):
        commands.check_list(texts)
        return [self._example(number, text) for number, text in enumerate(texts)]

    def _uncut(self, examples: Sequence[Example], tokenizer: Any) -> Features:
        """Returns the features of examples, or raises ValueError if one is too long."""
        features = Features(examples, tokenizer, max_seq_length=1 << 30)
        most = self._config.max_position_embeddings
        for number in np.flatnonzero(features.lengths > most):
            raise ValueError(
                f"texts[{number}] has {features.lengths[number]} tokens with [CLS] and [SEP], but "
                f"the network has {most} positions; shorten the text"
            )
        return features

    def _log_probabilities(
        self, feed: Mapping, places: np.ndarray, numbers: np.ndarray
    ) -> np.ndarray:
        """Returns the logarithms of the words' probabilities, float64 [M, V], at places [M] among
        the B * F tokens of texts; the `numbers` of their texts are for errors."""
        if not self.fills:
            raise ValueError(f"{self._source.path}: does not have a head for masked words")
        logits = np.float64(self._session.run(self._logits, {**feed, self._places: places}))
        for number, row in zip(numbers, logits, strict=True):
            if not np.isfinite(row).all():
                raise ValueError(f"the network's output for texts[{number}] is not finite")
        logits -= logits.max(axis=-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    def _best(self, logs, top):
        """Returns the most probable words of log probabilities [V]."""
        best = self._words[np.argsort(-logs[self._words], kind="stable")[:top]]
        tokens = self._tokenizer.convert_ids_to_tokens(best.tolist())
        return [
            {"word": token.removeprefix(WORD_START) or token, "probability": float(probability)}
            for token, probability in zip(tokens, np.exp(logs[best]), strict=True)
        ]

    def _check_weights(self):
        super()._check_weights()
        shapes = self._source.shapes
        has = [name in shapes for name in network_variables.head_shapes(self._config, 0)[MASKED_LM]]
        self._check_head(all(has) or (self._is_needed and any(has)), _told(self._source))
        if self.fills:
            whole = {n: s for n, s in shapes.items() if n.startswith(("bert/", MASKED_LM))}
            network_variables.check(self._config, whole, self._source.path)

    def _open_onnx(self, folder):
        super()._open_onnx(folder)
        told = f"an ONNX model with {', '.join(self._onnx_outputs)}"
        self._check_head(runtime.MASKED in self._onnx_outputs, told)
        self._logits, self._places = runtime.MASKED, runtime.POSITIONS

    def _check_head(self, has_head, told):
        self.fills = has_head
        if self._is_needed and not has_head:
            raise ValueError(
                f"{self._source.path}: does not have a head for masked words: it is {told}. Give a "
                "network with the head of its pretraining, such as a run of run_pretraining.py"
            )

    def _graph(self):
        outputs = super()._graph()
        if self.fills:
            self._places = tf.placeholder(tf.int32, [None], "places")
            with primitives.portable():
                self._logits = heads.masked_lm_logits(self._model, self._places)
        return outputs


def _reading_masks(tokenizer):
    """Returns a tokenizer that reads [MASK] in texts as the token, as transformers does."""

    def encode(text):
        first, *others = map(tokenizer.encode, text.split(MASK))
        return first + [index for part in others for index in (tokenizer.mask_id, *part)]

    ids = {name: getattr(tokenizer, name) for name in ("cls_id", "sep_id", "unk_id")}
    return types.SimpleNamespace(encode=encode, **ids)


def _told(source: Source) -> str:
    """Returns what a network without the head is."""
    has = [what for head, what in _HEADS.items() if any(n.startswith(head) for n in source.shapes)]
    if has:
        return f"an encoder with {' and '.join(has)}"
    if source.architecture == ELECTRA:
        return "the encoder of an ELECTRA's discriminator, which tells replaced words from others"
    return "an encoder alone"
