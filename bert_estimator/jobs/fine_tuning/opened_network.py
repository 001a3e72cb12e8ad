"""The network of a fine-tuning and its vocabulary: found, opened, and named."""

import os
import shutil

from bert_estimator import interchange, tokenization
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs import job_estimator
from bert_estimator.jobs.fine_tuning.fine_tuning_config import FineTuningConfig
from bert_estimator.recipes import embedded
from bert_estimator.storage import remote, staging
from input_pipelines.embedded import default_data


def open_network(
    config: FineTuningConfig,
) -> tuple[FineTuningConfig, BertConfig, tokenization.Tokenizer]:
    """Returns (a configuration that names its vocabulary, the network, the tokenizer), which fit
    each other."""
    config = completed(config)
    plan = embedded.NETWORK if config.embedded else None
    bert_config = config.network.build(config.output_dir, plan=plan)
    job_estimator.check_sizes(config, bert_config)
    if config.embedded:
        config = flags.changed(config, vocab_file=of_embedded(config, bert_config))
    vocab_file = config.data.vocab_file
    return config, bert_config, _open(config.data, vocab_file, bert_config, config.output_dir)


def _open(texts, vocab_file, bert_config, output_dir):
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
        _open(config.data, named, bert_config, config.output_dir)
        shutil.copy(remote.local(named), vocab_file)
    else:
        default_data.write_vocabulary(vocab_file, bert_config.vocab_size)
    return vocab_file
