"""Starting from another model's weights, with a table of which came from where."""

import functools
import re
from collections.abc import Callable, Mapping

import tensorflow.compat.v1 as tf

from bert_estimator import interchange
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import weights
from bert_estimator.interchange.network_variables import MASKED_LM, NEXT_SENTENCE
from bert_estimator.interchange.weights import INITIALIZED, NEW, RESTORED, UNUSED, table
from bert_estimator.system.errors import ArgumentError, listed

_POOLER = "bert/pooler"
# Sections of a network whose absence is said; a task's own head is new as a rule.
SECTIONS = {
    _POOLER: "pooler",
    MASKED_LM: "masked-word head",
    NEXT_SENTENCE: "next-sentence head",
}


def scaffold_fn(
    init_checkpoint: str | None,
    bert_config: BertConfig | None = None,
    uses_pooler: bool = True,
    allow_partial_init: bool = False,
    is_trained: Callable[[str], bool] | None = None,
    log: Callable[..., None] = tf.logging.info,
) -> Callable[[], tf.train.Scaffold] | None:
    """Returns a `scaffold_fn` that initializes the graph's trainable variables from a checkpoint.

    Args:
      init_checkpoint: what `interchange.open_source` opens; if it is None, so is the result.
      bert_config: the model's, compared with the checkpoint's if the checkpoint has one.
      uses_pooler: whether the model reads its pooler, so that it matters if the checkpoint has one.
      allow_partial_init: whether any variable may start anew or stay unused.
      is_trained: function of a variable's name, as `depth.trained` returns; what is not trained
        must not start anew.
      log: function (format, text) that gets the table of what was initialized from where.
    """
    if init_checkpoint is None:
        return None

    # The estimator calls this once the graph's variables are there, so whether they fit is known
    # before the first step. A checkpoint in the model's own directory outranks these initial
    # values.
    def initialize():
        source = open_source(init_checkpoint)
        check_config(source, bert_config)
        # Only weights are read: the global step and the optimizer's slots start anew.
        variables = {v.op.name: v for v in tf.trainable_variables()}
        shapes = {name: v.shape.as_list() for name, v in variables.items()}
        rows = match(source, shapes, allow_partial_init)
        random = [name for name, _, what in rows if what == NEW]
        if is_trained and (stay := [name for name in random if not is_trained(name)]):
            raise ArgumentError(
                "init_checkpoint",
                "does not have these weights, which would stay random, since trainable leaves "
                f"them out: {listed(stay)}. Give trainable=all",
                source.path,
            )
        sections = set(map(_section_of, random))
        new = tuple(p for p in SECTIONS if p in sections and (uses_pooler or p != _POOLER))
        others = len(tf.global_variables()) - len(variables)
        rows.append((f"optimizer's slots and counters: {others}", "", INITIALIZED))

        def load(scaffold, session):
            del scaffold
            restored = [variables[name] for name, _, what in rows if what == RESTORED]
            try:
                bad = weights.load(source.read, restored, session)
            except ValueError as error:
                raise ArgumentError("init_checkpoint", str(error)) from None
            if bad:
                raise ArgumentError(
                    "init_checkpoint",
                    f"these weights are not finite: {listed(bad)}. Training cannot start from "
                    "them; use an earlier checkpoint",
                    init_checkpoint,
                )
            if new:
                _say_new(init_checkpoint, new)
            log("%s", table(f"Initial weights from {init_checkpoint}", rows))

        return tf.train.Scaffold(init_fn=load)

    return initialize


def open_source(init_checkpoint: str) -> interchange.Source:
    """Opens a checkpoint as `interchange.open_source` does, with an ArgumentError if it cannot."""
    try:
        return interchange.open_source(init_checkpoint)
    except ValueError as error:
        raise ArgumentError("init_checkpoint", str(error)) from None


def check_config(source: interchange.Source, bert_config: BertConfig | None) -> None:
    """Checks what the shapes of variables do not show, if the checkpoint has a configuration."""
    if bert_config is None:
        return
    try:
        source.check_network(bert_config)
    except ValueError as error:
        raise ArgumentError("init_checkpoint", str(error)) from None
    for key, was, value in source.differences(bert_config):
        raise ArgumentError(
            "init_checkpoint",
            f"is of a network with {key}={was!r}, but the configuration of the network has "
            f"{value!r}; change it there",
            source.path,
        )


def match(
    source: interchange.Source,
    shapes: Mapping[str, list[int]],
    allow_partial_init: bool = False,
) -> list[tuple[str, list[int] | str, str]]:
    """Compares a checkpoint with a model, name -> shape of its trainable variables; returns the
    rows of the table: (name, shape, RESTORED, NEW or UNUSED). The pooler and the heads are new if
    the checkpoint lacks them; of the encoder it must have all."""
    fitting = {name for name, shape in shapes.items() if source.shapes.get(name) == shape}
    unused = [name for name in source.shapes if name not in fitting]
    # Even with allow_partial_init, a checkpoint that gives nothing is a mistake.
    if not fitting and not set(shapes) & set(source.shapes):
        raise ArgumentError(
            "init_checkpoint",
            f"does not hold any of the model's {len(shapes)} variables. The model's begin with "
            f"{sorted(shapes)[:3]}, the checkpoint's with {unused[:3]}",
            source.path,
        )
    own, theirs = (set(map(_section_of, names)) for names in (shapes, source.shapes))
    problems = []
    for name, shape in shapes.items():
        if name in source.shapes and name not in fitting:
            problems.append(
                f"{name}: {shape} in the model, {source.shapes[name]} in the checkpoint"
            )
        elif name not in fitting and _section_of(name) in {*theirs, "bert"}:
            problems.append(f"{name}: {shape} in the model, not in the checkpoint")
    # What is unused in the checkpoint may be a head that the model lacks. Weights of a section that
    # the model has, such as the weights of further layers, are a mistake.
    for name in unused:
        if name not in shapes and _section_of(name) in own:
            problems.append(f"{name}: {source.shapes[name]} in the checkpoint, not in the model")
    if problems and not allow_partial_init:
        raise ArgumentError(
            "init_checkpoint",
            "does not fit the configuration of the network:\n  "
            + listed(problems, "\n  ")
            + "\nUse the configuration that the checkpoint was made with; or allow_partial_init, "
            "to initialize these variables anew and leave the checkpoint's others unused",
            source.path,
        )
    return [
        *((name, shape, RESTORED if name in fitting else NEW) for name, shape in shapes.items()),
        *((name, source.shapes[name], UNUSED) for name in unused),
        *weights.rows_left_out(source),
    ]


def _section_of(name):
    """Returns the section of a network that a variable is in: the encoder ("bert"), the pooler,
    or a head."""
    return re.match(rf"{_POOLER}|cls/[^/]+|output(?=_)|[^/]+", name)[0]


@functools.cache  # an evaluation before the training reads the same network
def _say_new(path, sections):
    names = " and no ".join(f"{SECTIONS[each]} ({each})" for each in sections)
    # Nothing else of it is as large as the vocabulary.
    tied = ", but for the masked-word head's output weights, which are the word embeddings"
    tied *= MASKED_LM in sections
    tf.logging.info("%s has no %s: what it lacks starts from new weights%s.", path, names, tied)
