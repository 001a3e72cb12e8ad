"""Loads the weights of a network, whatever format they come from, tells of them in a table, and
compares two copies of them by the network's outputs for a fixed batch."""

import collections
import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

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
from bert_estimator.interchange.source import Source
from bert_estimator.layers import primitives
from bert_estimator.system.errors import listed

RESTORED, NEW, UNUSED, INITIALIZED = "restored", "new", "unused", "initialized"
_ORDER = (RESTORED, NEW, INITIALIZED, UNUSED)  # of the table's rows

_BATCH, _LENGTH = 3, 32  # of the fixed batch
_IDS = ("input_ids", "input_mask", "segment_ids")


def load(
    read: Callable[[str], np.ndarray], variables: Iterable[tf.Variable], session: tf.Session
) -> list[str]:
    """Initializes variables with the weights that `read` returns for their names, and returns the
    names of the variables whose weights are not all finite."""
    bad = []
    for variable in variables:
        value = read(variable.op.name)
        if not np.all(np.isfinite(value)):
            bad.append(variable.op.name)
        # The value goes where the initial one would.
        initializer = variable.initializer
        session.run(initializer, {initializer.inputs[1]: value})
    return bad


def load_all(source: Source, session: tf.Session) -> None:
    """Initializes the variables of a session's graph with a network's weights, rounded to the dtype
    of each."""
    with session.graph.as_default():
        variables = {variable.op.name: variable for variable in tf.global_variables()}
    dtypes = {name: v.dtype.base_dtype.as_numpy_dtype for name, v in variables.items()}
    stored = [variable for name, variable in variables.items() if name in source.shapes]
    bad = load(lambda name: source.read(name).astype(dtypes[name], copy=False), stored, session)
    if bad:
        raise ValueError(f"{source.path}: these weights are not finite: {listed(bad)}")
    # Variables that the network does not have, such as a pooler that is not used, get their initial
    # values.
    session.run([v.initializer for name, v in variables.items() if name not in source.shapes])


def rows_left_out(source: Source) -> list[tuple[str, Any, str]]:
    """Returns the rows of what a source holds besides weights: all optimizer's slots share one."""
    slots = [name for name in source.left_out if name.rpartition("/")[0] in source.shapes]
    others = [name for name in source.left_out if name not in slots]
    names = [f"optimizer's slots: {len(slots)}", *others] if slots else others
    return [(name, "", UNUSED) for name in names]


def table(title: str, rows: Iterable[tuple[str, Any, str]]) -> str:
    """Returns a title, the number of rows of each kind, and a table of rows (name, shape as a list
    of ints, one of RESTORED, NEW, INITIALIZED, UNUSED)."""
    counts = collections.Counter(what for _, _, what in rows)
    lines = [f"{title}: " + ", ".join(f"{counts[what]} {what}" for what in _ORDER if counts[what])]
    # Variables that differ only in the number of their layer share a line.
    groups = collections.Counter(
        (_ORDER.index(what), re.sub(r"\blayer_\d+\b", "layer_*", name), str(shape))
        for name, shape, what in rows
    )
    cells = [
        (_ORDER[what], name, shape + (f" x {count}" if count > 1 else ""))
        for (what, name, shape), count in groups.items()
    ]
    cells.sort(key=lambda row: (_ORDER.index(row[0]), row[1]))
    widths = [max(len(row[column]) for row in cells) for column in range(2)]
    for what, name, shape in cells:
        lines.append(f"  {what:{widths[0]}}  {name:{widths[1]}}  {shape}")
    return "\n".join(lines)


def fixed_batch(config: BertConfig) -> dict[str, np.ndarray]:
    """Returns `input_ids`, `input_mask`, `segment_ids`, int32 [batch, seq], some of it padding."""
    length = min(_LENGTH, config.max_position_embeddings)
    random = np.random.RandomState(0)
    positions = np.arange(length)
    # One example fills the batch's length, one half of it, and one lacks a token.
    lengths = np.array([[length], [length // 2], [length - 1]])
    return {
        "input_ids": random.randint(0, config.vocab_size, [_BATCH, length]).astype(np.int32),
        "input_mask": (positions < lengths).astype(np.int32),
        "segment_ids": (
            (positions >= lengths // 2) & (positions < lengths) & (config.type_vocab_size > 1)
        ).astype(np.int32),
    }


def logits_of(
    config: BertConfig,
    weights: Mapping[str, np.ndarray],
    batch: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Computes all outputs that a model's float32 weights suffice for, for a batch like
    `fixed_batch`'s.

    Returns:
      A dict of float32 arrays: `sequence_output` [batch, seq, hidden]; with a pooler
      `pooled_output` [batch, hidden]; with the heads `masked_lm_logits` [batch, seq, vocab],
      `next_sentence_logits` [batch, 2], `classifier_logits` [batch, labels], `answer_logits`
      [batch, seq, 2]. Without a pooler, the classifier's logits are of the tokens, [batch, seq,
      labels].
    """
    with open_network(config, weights, batch) as outputs_of:
        return outputs_of(weights)


@contextlib.contextmanager
def open_network(
    config: BertConfig,
    names: Collection[str],
    batch: Mapping[str, np.ndarray] | None = None,
    has_any_shape: bool = False,
) -> Iterator[Callable[..., dict[str, np.ndarray]]]:
    """Builds a network once, for weights of these names; yields what `logits_of` does as a function
    of the weights; or, with `has_any_shape`, of the weights and a batch of any shape."""
    batch = fixed_batch(config) if batch is None else batch
    fed = {}

    # Instead of variables, the network gets placeholders: no weight is copied into a session, and
    # the weights of a copy are fed to the same graph.
    def placeholder(getter, name, shape, dtype, **_):
        if name not in fed:  # the layers of an ALBERT share weights
            fed[name] = tf.placeholder(dtype, shape)
        return fed[name]

    with (
        tf.Graph().as_default(),
        tf.variable_scope("", custom_getter=placeholder),
        tf.Session() as session,
        primitives.portable() if has_any_shape else contextlib.nullcontext(),
    ):
        ids = {name: tf.constant(value) for name, value in batch.items() if name in _IDS}
        if has_any_shape:
            ids = {name: tf.placeholder_with_default(x, [None, None]) for name, x in ids.items()}
        model = modeling.BertModel(
            config,
            is_training=False,
            input_ids=ids["input_ids"],
            input_mask=ids["input_mask"],
            token_type_ids=ids["segment_ids"],
        )
        outputs = {"sequence_output": model.get_sequence_output()}
        if "bert/pooler/dense/kernel" in names:
            outputs["pooled_output"] = model.get_pooled_output()
        # The logits of all positions, not only of masked tokens: a difference shows wherever it is.
        if f"{MASKED_LM}/output_bias" in names:
            logits = heads.masked_lm_logits(model, tf.range(tf.size(ids["input_ids"])))
            shape = tf.concat([tf.shape(ids["input_ids"]), [config.vocab_size]], axis=0)
            outputs["masked_lm_logits"] = tf.reshape(logits, shape)
        if f"{NEXT_SENTENCE}/output_bias" in names:
            outputs["next_sentence_logits"] = heads.next_sentence_logits(model)

        def outputs_of(weights, batch=None):
            feed = {fed[name]: weights[name] for name in fed if name in weights}
            feed.update((ids[name], batch[name]) for name in _IDS if batch is not None)
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
