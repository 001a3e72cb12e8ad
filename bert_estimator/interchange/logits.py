"""A model's outputs for a fixed batch, by which two copies of its weights are compared."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator import heads, modeling
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange.network_variables import (
    ANSWER,
    CLASSIFIER,
    MASKED_LM,
    NEXT_SENTENCE,
)

_BATCH, _LENGTH = 3, 32


def fixed_batch(config: BertConfig) -> dict[str, np.ndarray]:
    """Returns `input_ids`, `input_mask`, `segment_ids`, int32 [batch, seq], some of it padding."""
    length = min(_LENGTH, config.max_position_embeddings)
    random = np.random.RandomState(0)
    positions = np.arange(length)
    lengths = np.array([[length], [length // 2], [length - 1]])
    return {
        "input_ids": random.randint(0, config.vocab_size, [_BATCH, length]).astype(np.int32),
        "input_mask": (positions < lengths).astype(np.int32),
        "segment_ids": (
            (positions >= lengths // 2) & (positions < lengths) & (config.type_vocab_size > 1)
        ).astype(np.int32),
    }


def compute(
    config: BertConfig,
    weights: Mapping[str, np.ndarray],
    batch: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Computes all outputs that a model's weights suffice for, in float32.

    Args:
      config: `BertConfig`.
      weights: name -> float32 array: an encoder, with or without pooler and heads.
      batch: a dict with the keys of `fixed_batch`, whose batch is the default.

    Returns:
      A dict of arrays: `sequence_output` [batch, seq, hidden]; with a pooler `pooled_output`
      [batch, hidden]; with the heads `masked_lm_logits` [batch, seq, vocab],
      `next_sentence_logits` [batch, 2], `classifier_logits` [batch, labels], `answer_logits`
      [batch, seq, 2]. Without a pooler, the classifier's logits are of the tokens, [batch, seq,
      labels].
    """
    with opened(config, weights, batch) as outputs_of:
        return outputs_of(weights)


@contextlib.contextmanager
def opened(
    config: BertConfig, names: Collection[str], batch: Mapping[str, np.ndarray] | None = None
) -> Iterator[Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]]:
    """Builds a network once, for weights of these names; yields what `compute` does as a function
    of the weights alone."""
    batch = fixed_batch(config) if batch is None else batch
    size, length = batch["input_ids"].shape
    fed = {}

    def placeholder(getter, name, shape, dtype, **_):
        if name not in fed:  # the layers of an ALBERT share weights
            fed[name] = tf.placeholder(dtype, shape)
        return fed[name]

    with (
        tf.Graph().as_default(),
        tf.variable_scope("", custom_getter=placeholder),
        tf.Session() as session,
    ):
        model = modeling.BertModel(
            config,
            is_training=False,
            input_ids=tf.constant(batch["input_ids"]),
            input_mask=tf.constant(batch["input_mask"]),
            token_type_ids=tf.constant(batch["segment_ids"]),
        )
        outputs = {"sequence_output": model.get_sequence_output()}
        if "bert/pooler/dense/kernel" in names:
            outputs["pooled_output"] = model.get_pooled_output()
        if f"{MASKED_LM}/output_bias" in names:
            positions = tf.tile(tf.range(length)[tf.newaxis], [size, 1])
            logits = heads.masked_lm_logits(model, positions)
            outputs["masked_lm_logits"] = tf.reshape(logits, [size, length, config.vocab_size])
        if f"{NEXT_SENTENCE}/output_bias" in names:
            outputs["next_sentence_logits"] = heads.next_sentence_logits(model)

        def outputs_of(weights):
            feed = {fed[name]: weights[name] for name in fed if name in weights}
            return _with_logits(session.run(outputs, feed), weights)

        yield outputs_of


def _with_logits(values, weights):
    """Adds the logits of the heads that fine-tuning trains to a network's outputs."""
    if CLASSIFIER in weights:
        hidden = values.get("pooled_output", values["sequence_output"])
        logits = hidden @ weights[CLASSIFIER].T + weights["output_bias"]
        values["classifier_logits"] = logits
    if f"{ANSWER}/output_weights" in weights:
        logits = values["sequence_output"] @ weights[f"{ANSWER}/output_weights"].T
        values["answer_logits"] = logits + weights[f"{ANSWER}/output_bias"]
    return values
