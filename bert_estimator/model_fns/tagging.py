"""The head that labels words: named entities, parts of speech. `classification` has its `model_fn`.

Letters: B windows of one core's batch, F sequence length, H hidden size, L labels, N words.

Besides the features of `classification` there are `label_ids` int32 [B, F], the number of the label
at the first piece of each word; `label_mask` int32 [B, F], 1 at the first pieces of words; and for
evaluation `unique_ids` int32 [B], the window's number, and `continues_sentence` int32 [B], 1 if the
window goes on with the sentence of the window that has the number before.

The head is `output_weights` [L, H], `output_bias` [L] on the last layer's output of each piece
(Devlin et al., 2018, section 5.3), in training with the dropout `classifier_dropout` of the
network. The pooler is not used, and is not trained.
"""

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator import modeling
from bert_estimator.model_fns import classification, update
from bert_estimator.model_fns.metrics import METRICS, Counts
from bert_estimator.tokenization import entities

ENTITY_METRICS = ("entity_f1", "entity_precision", "entity_recall")
_WORDS = "words"  # the name of a list of `Counts`


@dataclasses.dataclass(frozen=True)
class TaggingHead(classification.Head):
    """Says what labels words have, and how predicted labels are scored."""

    # The names of the L labels in the order of their numbers; ENTITY_METRICS need them.
    labels: tuple[str, ...] = ()

    COUNTED: ClassVar[tuple[str, ...]] = ("label_ids", "unique_ids", "continues_sentence")
    USES_POOLER: ClassVar[bool] = False

    def input_of(self, model: modeling.BertModel) -> tf.Tensor:
        """Returns the output of the last layer, [B, F, H] in the compute dtype."""
        return model.get_sequence_output()

    def weights_of(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns float32 [B, F], 1 at the first pieces of words."""
        is_first = tf.cast(features["label_mask"], tf.float32)
        return is_first * update.example_weights(features)[:, tf.newaxis]

    def is_one_of_several(self) -> bool:
        return True

    def count(
        self,
        logits: np.ndarray,
        label_ids: np.ndarray,
        weights: np.ndarray,
        unique_ids: np.ndarray,
        continues_sentence: np.ndarray,
    ) -> Counts:
        """Counts the words of a batch, and keeps their places, labels and predicted labels."""
        is_word = weights > 0
        is_first = is_word & (np.cumsum(is_word, axis=1) == 1)
        begins = is_first & (continues_sentence == 0)[:, np.newaxis]
        windows = np.broadcast_to(unique_ids[:, np.newaxis], is_word.shape)
        words = np.stack([windows, begins, label_ids, logits.argmax(axis=-1)], axis=-1)[is_word]
        return super().count(logits, label_ids, weights) | {_WORDS: [words.astype(np.int32)]}

    def values_of(self, counts: Counts) -> dict[str, float]:
        values = {}
        if set(self.metrics) & set(ENTITY_METRICS):
            values = _entity_metrics(self.labels, np.concatenate(counts[_WORDS]))
        return values | {name: METRICS[name](counts) for name in self.metrics if name not in values}


def _entity_metrics(labels, words):
    """Returns ENTITY_METRICS of words, int32 [N, 4]: window, begins a sentence, label, prediction.

    They are conlleval's. The windows of a sentence are joined, so they do not depend on the batch
    size, on the sequence length, or on the order of the windows.
    """
    # A stable sort keeps the words of a window in their order.
    words = words[np.argsort(words[:, 0], kind="stable"), 1:]
    starts = np.flatnonzero(words[:, 0])
    names = np.array(labels, object)[words[:, 1:]]
    sentences = np.split(names, starts[1:]) if len(names) else []
    scores = entities.scores([s[:, 0] for s in sentences], [s[:, 1] for s in sentences])
    return dict(zip(("entity_precision", "entity_recall", "entity_f1"), scores, strict=True))
