"""The vocabulary of a fine-tuning: opened, checked against the network, and kept in the run."""

import contextlib
import dataclasses
import os
import shutil

from bert_estimator import interchange, storage, tokenization
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs.fine_tuning_config import Config, FineTuningConfig
from input_pipelines import default_data


def open_tokenizer(
    config: FineTuningConfig, vocab_file: str, bert_config: BertConfig
) -> tokenization.Tokenizer:
    """Opens a vocabulary.

    Raises:
      FlagError: it is not a vocabulary, has another casing than --do_lower_case says, or has more
        tokens than the network.
    """
    with flags.named("vocab_file"):
        tokenizer = tokenization.open_tokenizer(vocab_file, config.do_lower_case)
    flags.check(
        tokenizer.vocab_size <= bert_config.vocab_size,
        "vocab_file",
        vocab_file,
        f"has {tokenizer.vocab_size} tokens, but the network only {bert_config.vocab_size}; give "
        "the two that belong together",
    )
    return tokenizer


def completed(config: Config) -> Config:
    """Returns a configuration with the vocabulary of --init_checkpoint, if no flag names one.

    The casing comes with it, if the files beside the weights say the casing.

    Raises:
      FlagError: there is no vocabulary, or it has another casing than --do_lower_case says.
    """
    if config.vocab_file or config.embedded:
        return config
    with flags.named("init_checkpoint"):
        source = interchange.open_source(config.init_checkpoint)
    rule = f"is needed: there is no vocabulary beside {config.init_checkpoint}"
    flags.check(source.vocab_file, "vocab_file", None, rule)
    lower = source.do_lower_case
    if lower is None:
        lower = config.do_lower_case
    flags.check(
        not config.is_given("do_lower_case") or config.do_lower_case == lower,
        "do_lower_case",
        config.do_lower_case,
        f"{config.init_checkpoint} was trained with {lower}; leave it out",
    )
    return dataclasses.replace(config, vocab_file=source.vocab_file, do_lower_case=lower)


def keep(config: FineTuningConfig, bert_config: BertConfig) -> str:
    """Copies the vocabulary into the run's directory, since a later main job may replace it.

    Without --vocab_file it trains a vocabulary on the embedded corpus there.

    Returns:
      The path of the copy.

    Raises:
      FlagError: as `open_tokenizer` does.
    """
    extension = os.path.splitext(config.vocab_file or "")[1]
    vocab_file = os.path.join(config.output_dir, "vocab" + (extension or ".txt"))
    if os.path.exists(vocab_file) and RunDirectory(config.output_dir).holds_checkpoint():
        return vocab_file
    if config.vocab_file:
        open_tokenizer(config, config.vocab_file, bert_config)
        with contextlib.suppress(shutil.SameFileError):
            shutil.copy(storage.local(config.vocab_file), vocab_file)
    else:
        default_data.write_vocabulary(vocab_file, bert_config.vocab_size)
    return vocab_file
