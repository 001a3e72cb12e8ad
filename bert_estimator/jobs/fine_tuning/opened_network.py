"""The network of a fine-tuning and its vocabulary: found, opened, and named."""

import os
import shutil

from bert_estimator import interchange, tokenization
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.interchange import network_files
from bert_estimator.jobs import facts, job_estimator
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
    return config, bert_config, _open(config, vocab_file, bert_config)


def _open(config, vocab_file, bert_config):
    """Opens a vocabulary, which must fit the network's size, with the casing of the flags, or else
    of the run or of the network that it starts from."""
    asked = config.data.do_lower_case, config.data.strip_accents
    with flags.named("vocab_file"):
        known = _known_casing(config, vocab_file)
        tokenizer = tokenization.open_tokenizer(vocab_file, *asked, *known)
        tokenization.check_rows(vocab_file, tokenizer.vocab_size, bert_config.vocab_size)
    return tokenizer


def _known_casing(config, vocab_file):
    """Returns (the casing that the run has recorded, or else the network that it starts from; the
    file that says it, or None if it is the run's record, which `facts` compares with the flags)."""
    if RunDirectory(config.output_dir).holds_checkpoint():
        with flags.named("output_dir"):
            return network_files.casing(config.output_dir), None
    if not config.network.init_checkpoint:
        return None, None
    with flags.named("init_checkpoint"):
        source = interchange.open_source(config.network.init_checkpoint)
    own = source.vocab_file
    if own in (None, vocab_file) or facts.first_difference(own, vocab_file) is None:
        return source.casing, source.casing_file
    return None, None  # of another vocabulary its files say nothing


def completed(config: FineTuningConfig) -> FineTuningConfig:
    """Returns a configuration with the vocabulary of --init_checkpoint, or else of the run, if no
    flag names one."""
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
    return flags.changed(config, vocab_file=source.vocab_file)


def start_in_words(config: FineTuningConfig) -> str:
    """Returns what the training of an embedded task starts from."""
    return config.network.init_checkpoint or "from scratch (run_pretraining.py makes a start)"


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
        _open(config, named, bert_config)
        shutil.copy(remote.local(named), vocab_file)
    else:
        default_data.write_vocabulary(vocab_file, bert_config.vocab_size)
    return vocab_file
