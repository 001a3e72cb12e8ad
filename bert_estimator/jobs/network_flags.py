"""The network of a run: the flags that choose it, and its sizes as they are read.

This module does not import TensorFlow, so wrong flags are reported before it is loaded.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.command_line.choices import PRECISIONS
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.storage import remote


@flags.group(flags.COMMON, eval_may_differ=True)
class NetworkFlags:
    """Says which network a run builds, what its weights are at first, and how it is computed."""

    bert_config_file: str | None = flags.field(
        None,
        "Build this network: a bert_config.json, or the config.json of transformers.",
        flags.check_file,
    )
    init_checkpoint: str | None = flags.field(
        None,
        "Start training from the weights of this checkpoint, Google's, Hugging Face's or TF Hub's: "
        "a path without .index, a directory, or a zip archive. Empty: start from scratch.",
        flags.check_checkpoint,
        eval_may_differ=False,
    )
    allow_partial_init: bool = flags.field(
        False,
        "Initialize the variables that --init_checkpoint lacks, and ignore its other variables; "
        "its vocabulary may be another.",
        below="random_seed",
    )
    precision: str = flags.field(
        "float32",
        f"Compute the network in {' or '.join(PRECISIONS)}.",
        flags.one_of(PRECISIONS),
        below="use_tpu",
        eval_may_differ=False,
    )
    recompute: bool = flags.field(
        False,
        "Compute each layer again for its gradient: less memory, more work.",
        below="micro_batch_size",
    )

    def options(self) -> dict[str, Any]:
        """Returns the options of a model_fn's network that flags of the same names give."""
        left_out = ("bert_config_file",)
        return {n: v for n, v in flags.values_of(self).items() if n not in left_out}

    def build(
        self,
        output_dir: str,
        sizes: Mapping[str, Any] | None = None,
        plan: Mapping[str, Any] | None = None,
    ) -> BertConfig:
        """Returns the network of the `sizes`, or else of --bert_config_file, --init_checkpoint or
        the run's directory.

        Args:
          sizes: keys of bert_config.json -> value, if they are known without the flags.
          plan: such keys for a run from scratch that does not name a network.
        """
        if sizes is not None:
            return BertConfig(**sizes)
        bert_config = self._read(output_dir, plan)
        before = of_run(RunDirectory(output_dir))
        if before is None or "classifier_dropout" in before:
            return bert_config
        # The run began before its file said the head's dropout, and goes on as it began.
        return dataclasses.replace(bert_config, classifier_dropout=0.1)

    def _read(self, output_dir, plan):
        from bert_estimator import interchange
        from bert_estimator.interchange.hugging_face import config_json

        if self.bert_config_file is not None:
            with flags.named("bert_config_file"):
                return config_json.read_any_config(self.bert_config_file)
        if plan and not self.init_checkpoint:
            path = RunDirectory(output_dir).network_file()
            with flags.named("output_dir"):
                return BertConfig.from_json_file(path) if path else BertConfig(**plan)
        place = self.init_checkpoint or output_dir
        with flags.named("init_checkpoint" if self.init_checkpoint else "output_dir"):
            bert_config = interchange.open_source(place).config
        rule = f"is needed: there is no configuration beside {place}"
        flags.check(bert_config, "bert_config_file", None, rule)
        return bert_config


def of_run(directory: RunDirectory) -> dict[str, Any] | None:
    """Returns the keys of the bert_config.json of a directory's run, or None without a run."""
    if (path := directory.network_file()) is None:
        return None
    try:
        keys = remote.read_json(path)
        BertConfig.from_dict(keys, path)
    except ValueError as error:
        raise flags.FlagError(
            f"--output_dir={directory.path}: the network of its run cannot be read ({error}); "
            "choose another directory, or put the file back"
        ) from None
    return keys
