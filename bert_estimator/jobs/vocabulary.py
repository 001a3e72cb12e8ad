"""The vocabulary of a run: found, opened, and checked against the network."""

import os
import shutil

import tensorflow.compat.v1 as tf

from bert_estimator import interchange, tokenization
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs.fine_tuning.fine_tuning_config import FineTuningConfig, TextFlags
from bert_estimator.jobs.job_config import NetworkFlags
from bert_estimator.storage import remote, staging
from input_pipelines.embedded import default_data

# Tokens of this kind wait for other names; the network has not learned anything of them.
_UNUSED = "[unused"


def open_tokenizer(
    texts: TextFlags, vocab_file: str, bert_config: BertConfig, output_dir: str
) -> tokenization.Tokenizer:
    """Opens a vocabulary, which must fit the flags of the casing and the network's size."""
    lower, strip = texts.do_lower_case, texts.strip_accents
    with flags.named("vocab_file"):
        if strip is None and RunDirectory(output_dir).holds_checkpoint():
            # A run of an earlier version may have lost accents, and goes on as it began.
            casing = tokenization.Casing(lower)
            strip = tokenization.reopen_tokenizer(vocab_file, casing).strips_accents
        tokenizer = tokenization.open_tokenizer(vocab_file, lower, strip)
    flags.check(
        tokenizer.vocab_size <= bert_config.vocab_size,
        "vocab_file",
        vocab_file,
        f"has {tokenizer.vocab_size} tokens, but the network only {bert_config.vocab_size}; give "
        "the two that belong together",
    )
    tokenization.say_unused_rows(vocab_file, tokenizer.vocab_size, bert_config.vocab_size)
    return tokenizer


def completed(config: FineTuningConfig) -> FineTuningConfig:
    """Returns a configuration with the vocabulary of --init_checkpoint, or else of the run, and
    with its casing, if no flag names one."""
    texts, start = config.data, config.network.init_checkpoint
    is_of_run = not config.do_train and RunDirectory(config.output_dir).holds_checkpoint()
    # An embedded task that starts from scratch trains a vocabulary of its own; see `of_embedded`.
    if texts.vocab_file or (config.embedded and not start and not is_of_run):
        return config
    place = start or config.output_dir
    with flags.named("init_checkpoint" if start else "output_dir"):
        source = interchange.open_source(place)
    rule = f"is needed: there is no vocabulary beside {place}"
    flags.check(source.vocab_file, "vocab_file", None, rule)
    lower = source.do_lower_case
    if lower is None:
        lower = texts.do_lower_case
    flags.check(
        not config.is_given("do_lower_case") or texts.do_lower_case == lower,
        "do_lower_case",
        texts.do_lower_case,
        f"{place} was trained with {lower}; leave it out",
    )
    strip = texts.strip_accents
    # Both casings are resolved by the tokenizer, since None means another value for each kind.
    if source.casing is not None:
        if strip is None:
            strip = source.strip_accents
        casing = tokenization.Casing(lower, strip)
        tokenizer = tokenization.reopen_tokenizer(source.vocab_file, casing)
        flags.check(
            tokenizer.casing == source.casing,
            "strip_accents",
            strip,
            f"{place} was trained with {not strip}; leave it out",
        )
    return flags.changed(
        config, vocab_file=source.vocab_file, do_lower_case=lower, strip_accents=strip
    )


def of_embedded(config: FineTuningConfig, bert_config: BertConfig) -> str:
    """Returns an embedded task's vocabulary, which training copies into the run's directory."""
    named = config.data.vocab_file
    extension = os.path.splitext(named or "")[1]
    vocab_file = os.path.join(config.output_dir, "vocab" + (extension or ".txt"))
    # A run that goes on keeps the vocabulary that it began with.
    if os.path.exists(vocab_file) and RunDirectory(config.output_dir).holds_checkpoint():
        return vocab_file
    vocab_file = os.path.join(staging.temporary_folder(), os.path.basename(vocab_file))
    # A copy is taken, since a later main job may replace --vocab_file.
    if named:
        open_tokenizer(config.data, named, bert_config, config.output_dir)
        shutil.copy(remote.local(named), vocab_file)
    else:
        default_data.write_vocabulary(vocab_file, bert_config.vocab_size)
    return vocab_file


def name_in_run(vocab_file: str) -> str:
    """Returns the name that a vocabulary has beside checkpoints; vocab.model is SentencePiece's."""
    return "vocab.model" if vocab_file.endswith(".model") else "vocab.txt"


def check_start(
    network: NetworkFlags, vocab_file: str | None, casing: tokenization.Casing | None, flag: str
) -> None:
    """Checks that the network of --init_checkpoint was trained with a vocabulary and casing, None
    if not known; `flag` is what they come from."""
    with flags.named("init_checkpoint"):
        source = interchange.open_source(network.init_checkpoint)
    # The embeddings of another vocabulary would be of other words.
    other = ""
    if None not in (source.casing, casing) and source.casing != casing:
        name = next(n for n in casing._fields if getattr(source, n) != getattr(casing, n))
        theirs, ours = (_shown(getattr(values, name)) for values in (source, casing))
        other = f"with --{name}={theirs}, not {ours}"
    elif source.vocab_file is not None and vocab_file is not None:
        with flags.named("init_checkpoint"):
            differs = _first_difference(source.vocab_file, vocab_file)
        if differs is not None:
            number, theirs, ours = differs
            other = (
                f"with the vocabulary {source.vocab_file}, whose token {number} is {theirs!r}, and "
                f"{vocab_file} has {ours!r} there"
            )
    if not other:
        return
    other = f"{network.init_checkpoint} was trained {other}"
    if network.allow_partial_init:
        tf.logging.warning("--%s: %s.", flag, other)
        return
    raise flags.FlagError(
        f"--{flag}: {other}. Use the same vocabulary and casing, or add --allow_partial_init to "
        "go on all the same"
    )


def _shown(value):
    return "its default" if value is None else value


def check_kept(directory: RunDirectory, vocab_file: str | None) -> None:
    """Checks that a training that goes on has the vocabulary that lies beside its checkpoints."""
    kept = directory.vocab_file()
    if vocab_file is None or kept is None or not directory.holds_checkpoint():
        return
    with flags.named("vocab_file"):
        differs = _first_difference(kept, remote.local(vocab_file))
    if differs is not None:
        number, theirs, ours = differs
        raise flags.FlagError(
            f"--vocab_file={vocab_file}: the run has the vocabulary {kept}, whose token {number} "
            f"is {theirs!r}, not {ours!r}. Give the run's, or another --output_dir"
        )


def _first_difference(theirs, ours):
    """Returns (id, token, token) of the first token that two vocabularies do not share, or None."""
    pairs = zip(_tokens_of(theirs), _tokens_of(ours), strict=False)
    for number, (token, other) in enumerate(pairs):
        if token != other and not token.startswith(_UNUSED):
            return number, token, other
    return None


def _tokens_of(vocab_file):
    tokenizer = tokenization.open_tokenizer(vocab_file, None)
    return tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
