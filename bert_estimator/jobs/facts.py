"""What is known of a network, compared with what a run asks of it.

The facts are the kind of the task, its labels, the casing, the vocabulary and the sizes. A run
records them beside its checkpoints (task.json, the vocabulary, bert_config.json), and the files of
other networks say some of them. What a difference means depends on the use:

1. A network that is used as it is must have learned what is asked.
2. The network that a training starts from must know the words of the text.
3. A training goes on with the vocabulary and the sizes that it began with.
"""

import dataclasses
import filecmp
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import interchange, tokenization
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.interchange import Source, network_files
from bert_estimator.jobs.groups import NetworkFlags, network_of_run
from bert_estimator.storage import remote
from bert_estimator.system import json_files
from bert_estimator.tokenization import Casing
from bert_estimator.tokenization.wordpiece import WHOLE_WORDS

Facts = dict[str, Any]  # what is not known is left out

# What a network's configuration says that matters only in training.
_OF_TRAINING = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "initializer_range",
)
_OF_TEXT = (*Casing._fields, "vocabulary")
# Tokens of this kind, and rows without tokens, wait for other names; the network has not learned
# anything of them.
_UNUSED = "[unused"

# How a network that is used differs from what is asked, in words; the others are like `_LEARNED`.
_LEARNED = "was trained for {name} {theirs}, but the flags and files ask for {ours}"
_IN_WORDS = {
    "strip_accents": "was trained with {theirs} for strip_accents, but the flags ask for {ours}",
    "outputs": "has {theirs} outputs, but the flags and files ask for {ours}",
    "vocabulary": "was trained with the vocabulary {theirs}, and {ours} is another one",
    "version_2_with_negative": (
        "was trained with --version_2_with_negative, to leave questions without an answer"
    ),
}
_WHAT_TO_DO = "Give the files and flags of its training, or add --do_train to train it for these"
_WHAT_TO_DO_ABOUT = {
    "version_2_with_negative": (
        "Add that flag; with a large --null_score_diff_threshold, every question is answered all "
        "the same"
    ),
}


def of_network(source: Source, head: str | None = None) -> Facts:
    """Returns what the files beside a network say; `head` names the weights of its outputs."""
    said = {
        "kind": source.kind,
        "labels": list(source.labels) or None,
        "is_pair": source.is_pair,
        "do_lower_case": source.do_lower_case,
        "strip_accents": source.strip_accents,
        # A network of SQuAD 1.1 is measured on questions of 2.0, too: it answers all of them.
        "version_2_with_negative": source.version_2_with_negative or None,
        "outputs": source.shapes[head][0] if head in source.shapes else None,
        "vocabulary": source.vocab_file,
    }
    return _known(said, source.casing is not None)


def of_task(task: Mapping[str, Any], vocab_file: str | None) -> Facts:
    """Returns what flags and files ask for; `task` has the keys of task.json."""
    said = {**task, "vocabulary": vocab_file}
    if "labels" in task:
        said |= {"labels": list(task["labels"]), "outputs": len(task["labels"]) or 1}
    return _known(said, "strip_accents" in task)


def _known(said, knows_casing):
    # None is a value of strip_accents, its default.
    return {
        name: value
        for name, value in said.items()
        if value is not None or (name == "strip_accents" and knows_casing)
    }


def differences(
    theirs: Facts, ours: Facts, differ: Callable[[str, str], Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yields (name, their value, our value) of what both know and what is not the same;
    `differ` says whether two vocabularies differ."""
    for name in theirs:
        if name not in ours or theirs[name] == ours[name]:
            continue
        if name != "vocabulary" or differ(theirs[name], ours[name]):
            yield name, theirs[name], ours[name]


def differing_sizes(
    before: BertConfig, now: BertConfig, do_train: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yields (key, its value before, its value now) of the keys in which two networks differ."""
    for field in dataclasses.fields(BertConfig):
        was, value = (getattr(config, field.name) for config in (before, now))
        # Without training, what matters in training only does not count.
        if was != value and (do_train or field.name not in _OF_TRAINING):
            yield field.name, was, value


def check_used(
    source: Source,
    head: Sequence[str],
    task: Mapping[str, Any],
    vocab_file: str,
    bert_config: BertConfig,
    flag: str,
) -> None:
    """Checks that a network was fine-tuned for a task, as far as the files beside it say for which.

    Args:
      head: names of the variables that the task needs besides the encoder; the first of them is
        [number of outputs, hidden].
      task: what task.json would say of the flags and files.
      flag: the flag that names the network.
    """
    flags.check(
        all(name in source.shapes for name in head),
        flag,
        source.path,
        "holds a network that was not fine-tuned for a task of this script; add --do_train",
    )
    with flags.named(flag):
        source.check_network(bert_config)
        theirs = source.config or bert_config
        for name, was, value in differing_sizes(theirs, bert_config, do_train=False):
            raise ValueError(
                f"{source.path}: is a network with {name}={was!r}, but --bert_config_file has "
                f"{value!r}. Give its own file"
            )
        # A head is a matrix: it fits every task with as many labels, whatever they mean.
        asked = of_task(task, vocab_file)
        for name, *values in differences(of_network(source, head[0]), asked, _is_another_file):
            shown = _shown if name in _IN_WORDS else json_files.shown
            learned, ours = map(shown, values)
            differs = _IN_WORDS.get(name, _LEARNED).format(name=name, theirs=learned, ours=ours)
            what_to_do = _WHAT_TO_DO_ABOUT.get(name, _WHAT_TO_DO)
            raise ValueError(f"{source.path}: the network {differs}. {what_to_do}")


def check_start(network: NetworkFlags, asked: Facts, flag: str, head: str | None = None) -> None:
    """Checks that the network of --init_checkpoint has learned words of the same vocabulary and
    casing, which come from `flag`; warns if its head has learned something else."""
    with flags.named("init_checkpoint"):
        source = interchange.open_source(network.init_checkpoint)
        theirs = of_network(source, head)
        differ = functools.cache(first_difference)  # reading two vocabularies takes a while
        found = {name: values for name, *values in differences(theirs, asked, differ)}
    # The embeddings of another vocabulary would be of other words.
    if name := next(filter(found.get, _OF_TEXT), None):
        learned = _text_in_words(name, *found[name], differ)
        other = f"{network.init_checkpoint} was trained {learned}"
        if not network.allow_partial_init:
            raise flags.FlagError(
                f"--{flag}: {other}. Use the same vocabulary and casing, or add "
                "--allow_partial_init to go on all the same"
            )
        tf.logging.warning("--%s: %s.", flag, other)
    # A head of another size begins anew.
    if "outputs" not in theirs or theirs["outputs"] != asked.get("outputs"):
        return
    for name in ("kind", "labels"):
        learned, ours = found.get(name, (None, None))
        if ours:
            tf.logging.warning(
                "--init_checkpoint: the head of %s has learned the %s %s; training goes on from it "
                "with the %s %s.",
                *(source.path, name, json_files.shown(learned), name, json_files.shown(ours)),
            )


def check_kept(directory: RunDirectory, vocab_file: str | None, casing: Casing | None) -> None:
    """Checks that a training that goes on has the vocabulary that lies beside its checkpoints, and
    the casing, if flags say it."""
    kept = directory.vocab_file()
    if vocab_file is None or kept is None or not directory.holds_checkpoint():
        return
    with flags.named("output_dir"):
        before = network_files.casing(directory.path)
    for name, *values in zip(Casing._fields, before or (), casing or (), strict=False):
        usual = before.do_lower_case or kept.endswith(".model")  # what None says of accents
        was, value = (usual if said is None else said for said in values)
        rule = f"the run began with {was}; leave the flag out to go on with it"
        flags.check(was == value, name, value, rule)
    with flags.named("vocab_file"):
        differs = first_difference(kept, vocab_file)
    if differs is not None:
        number, theirs, ours = differs
        raise flags.FlagError(
            f"--vocab_file={vocab_file}: the run has the vocabulary {kept}, whose token {number} "
            f"is {theirs!r}, not {ours!r}. Give the run's, or another --output_dir"
        )


def check_network(directory: RunDirectory, bert_config: BertConfig, do_train: bool) -> None:
    """Checks that the checkpoints of a run's directory are of a network; unless the run goes on
    with training, what matters in training only may differ."""
    # Shapes would not tell: variables of the same shapes may belong to several networks, and with
    # `num_hidden_groups` some variables would just be left out.
    if (before := network_of_run(directory)) is None:
        return
    for name, was, value in differing_sizes(BertConfig.from_dict(before), bert_config, do_train):
        raise flags.FlagError(
            f"--bert_config_file: {directory.path} holds a run of a network with "
            f"{name}={was!r}, not {value!r}. Use that value to go on with it, or another "
            "--output_dir"
        )


def _text_in_words(name, theirs, ours, differ):
    """Returns how the text that a network learned differs from a run's."""
    if name == "vocabulary":
        number, token, other = differ(theirs, ours)
        return (
            f"with the vocabulary {theirs}, whose token {number} is {token!r}, and {ours} has "
            f"{other!r} there"
        )
    return f"with {_shown(theirs)} for --{name}, not {_shown(ours)}"


def _shown(value):
    return "the default" if value is None else value


def _is_another_file(theirs, ours):
    # A vocabulary that was cut, or a model of SentencePiece with other scores, has the same tokens
    # at its beginning, and gives other ids.
    return not filecmp.cmp(remote.local(theirs), remote.local(ours), shallow=False)


def first_difference(theirs: str, ours: str) -> tuple[int, str, str] | None:
    """Returns (id, token, token) of the first token that two vocabularies do not share, or None."""
    nothing = f"{_UNUSED}]"
    both = itertools.zip_longest(_tokens_of(theirs), _tokens_of(ours), fillvalue=nothing)
    for number, (token, other) in enumerate(both):
        # Words that such a token lists have rows in the network that was extended, and only there.
        is_extended = token.startswith(WHOLE_WORDS) or other.startswith(WHOLE_WORDS)
        # Our vocabulary may end before theirs.
        is_learned = not token.startswith(_UNUSED) and other != nothing
        if token != other and (is_extended or is_learned):
            return number, token, other
    return None


def _tokens_of(vocab_file):
    tokenizer = tokenization.reopen_tokenizer(vocab_file, Casing(True))
    return tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
