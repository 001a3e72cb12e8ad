"""The vocabulary of a fine-tuning: opened, checked against the network, and kept in the run."""

import contextlib
import os
import shutil

from bert_estimator import tokenization
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs.fine_tuning_config import FineTuningConfig
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
            shutil.copy(config.vocab_file, vocab_file)
    else:
        default_data.write_vocabulary(vocab_file, bert_config.vocab_size)
    return vocab_file
