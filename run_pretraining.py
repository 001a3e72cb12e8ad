"""Pretrains BERT: masked words and next sentence, with LAMB or AdamW.

    python run_pretraining.py --use_tpu --precision=bfloat16

trains a small BERT on English text that every Python carries, in about two minutes on two cores,
and evaluates it on held-out text. With --input_file and --bert_config_file it is
google-research/bert's run_pretraining.py, flags and records included.
"""

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from bert_estimator.command_line import console, flags
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs import compile_only, pretraining_config
from bert_estimator.jobs.pretraining_config import define_flags, resolve
from bert_estimator.recipes import embedded


@dataclasses.dataclass
class Pretraining:
    """A run, or a stage of a recipe, all of whose flags and files have been checked.

    Attributes:
      config: the checked configuration.
      directory: its `RunDirectory`.
      estimator: its `TPUEstimator`.
      train_files, eval_files: records.
      num_eval_records: how many of them there are to evaluate on.
      input_fn: function of (files, is_training) that returns an `input_fn`.
      token_counts_file: of the embedded corpus, for the baseline; None of others.
    """

    config: pretraining_config.Config
    directory: RunDirectory
    estimator: Any
    train_files: Any
    eval_files: Any
    num_eval_records: int
    input_fn: Callable
    token_counts_file: str | None

    def run(self):
        """Trains and evaluates; prints what came of it and where everything is."""
        from bert_estimator import tpu

        config, directory, estimator = self.config, self.directory, self.estimator
        if config.export_program:
            estimator.export_training_program(
                self.input_fn(self.train_files, is_training=True), config.export_program
            )
            print(f"Run it: python -m bert_estimator.tpu.run_program {config.export_program}")
            return
        start_step = estimator.global_step()
        if config.do_train:
            directory.forget_metrics_after(start_step)
        if config.do_train and config.do_eval and start_step == 0:
            self._evaluate()
        if config.do_train:
            if start_step >= config.num_train_steps:
                print(
                    f"Nothing left to train: {config.output_dir} is at step {start_step}. Give a "
                    "larger --num_train_steps to go on, or another --output_dir to start anew."
                )
            else:
                start = time.perf_counter()
                estimator.train(
                    self.input_fn(self.train_files, is_training=True),
                    hooks=[tpu.LogListener(directory.add_metrics)],
                    max_steps=config.num_train_steps,
                )
                print(f"Training took {time.perf_counter() - start:.0f} s.")
        if config.do_eval:
            self._evaluate()
            print(_summary(directory.evaluations()))
        print(
            f"Checkpoint: {estimator.latest_checkpoint()}  summaries: {config.output_dir}  "
            f"metrics: {directory.metrics_path}  curves: {directory.write_curves()}"
        )

    def _evaluate(self):
        results = self.estimator.evaluate(
            self.input_fn(self.eval_files, is_training=False), steps=self._eval_steps()
        )
        self.directory.add_evaluation({**results, **self._baseline})

    @functools.cached_property
    def _baseline(self):
        """What the frequencies of the masked tokens alone give, where they are known."""
        from input_pipelines import manifest, unigram

        if not self.token_counts_file:
            return {}
        counts = manifest.read_token_counts(self.token_counts_file)
        max_records = self._eval_steps() * self.config.eval_batch_size
        return {
            "unigram_baseline": unigram.unigram_cross_entropy(
                self.eval_files, counts, max_records=max_records
            )
        }

    def _eval_steps(self):
        batches = -(-self.num_eval_records // self.config.eval_batch_size)
        return min(self.config.max_eval_steps, batches)


def open_run(config):
    """Checks all that a run needs, and returns it as a `Pretraining`.

    Raises:
      flags.FlagError: flags that do not fit its files, its cores, or the run in its directory.
    """
    here = flags.find_hosts()
    directory = RunDirectory(
        # Of several hosts the chief writes the run's own; the others keep theirs apart.
        config.output_dir if here.is_chief else f"{config.output_dir}/host-{here.index}",
        checkpoints_in=config.output_dir,
    )
    settings = config.settings()
    if not config.do_train:
        del settings["input_file"]  # google-research/bert evaluates on the records of this flag
    del settings["vocab_file"]  # a run may get its vocabulary at any time
    directory.check_config(settings)

    _tensorflow()
    from bert_estimator.jobs import script_estimator
    from bert_estimator.tpu.program import hosts
    from input_pipelines import default_data, manifest, pretraining_features, pretraining_input

    bert_config = _bert_config(config)
    master, batches = script_estimator.find_cores(config)
    config = dataclasses.replace(config, **batches)
    train_files, eval_files, data = config.input_file, config.eval_input_file, None
    if config.embedded:
        try:
            with hosts.chief_first():
                data = default_data.make(
                    os.path.join(config.output_dir, "data"),
                    max_seq_length=config.max_seq_length,
                    max_predictions_per_seq=config.max_predictions_per_seq,
                    may_replace=not directory.holds_checkpoint(),
                    **embedded.DATA,
                )
        except ValueError as error:
            raise flags.FlagError(f"--output_dir: {error}") from None
        train_files, eval_files = data.train_files, data.held_out_files

    def opened(name, files):
        try:
            return pretraining_features.open_pretraining_records(
                files,
                config.max_seq_length,
                config.max_predictions_per_seq,
                bert_config.vocab_size,
            )
        except ValueError as error:
            raise flags.FlagError(f"--{name}: {error}") from None

    records = opened("input_file", train_files)
    eval_records = opened("eval_input_file", eval_files) if eval_files else records
    vocabularies = manifest.vocabularies([*records.files, *eval_records.files])
    flags.check(
        len(vocabularies) < 2,
        "eval_input_file",
        config.eval_input_file,
        "its records were made with another vocabulary than those of --input_file",
    )
    if config.do_train:
        digest = manifest.digest(records.files)
        directory.check_config(settings, digest)
        vocab_file = _vocabulary(config, bert_config, records.files)
        task = {
            "kind": "pretraining",
            "do_lower_case": manifest.casing(records.files),
            "max_seq_length": config.max_seq_length,
        }
        directory.write_network(bert_config.to_dict(), vocab_file, task)
        directory.write_config(config.settings(), config.sources, digest)

    def input_fn(files, is_training):
        return pretraining_input.input_fn_builder(
            files,
            config.max_seq_length,
            config.max_predictions_per_seq,
            is_training=is_training,
            seed=config.random_seed,
            precision=config.precision,
            vocab_size=bert_config.vocab_size,
            type_vocab_size=bert_config.type_vocab_size,
        )

    return Pretraining(
        config,
        directory,
        _estimator(config, bert_config, master),
        train_files,
        eval_files or train_files,
        eval_records.num_records,
        input_fn,
        data and data.token_counts_file,
    )


def _vocabulary(config, bert_config, record_files):
    """Returns the path of the vocabulary to keep with the run, or None if it is not known.

    Raises:
      FlagError: the vocabulary beside the records is missing or has changed, or --vocab_file does
        not fit the records or the network.
    """
    from bert_estimator import tokenization
    from input_pipelines import manifest

    if config.vocab_file is None:
        try:
            return manifest.find_vocabulary(record_files)
        except ValueError as error:
            raise flags.FlagError(f"--input_file: {error}") from None
    try:
        size = tokenization.open_tokenizer(config.vocab_file, None).vocab_size
    except ValueError as error:
        raise flags.FlagError(f"--vocab_file: {error}") from None
    flags.check(
        size <= bert_config.vocab_size,
        "vocab_file",
        config.vocab_file,
        f"has {size} tokens, but the network only {bert_config.vocab_size}; give the vocabulary "
        "that the records were made with",
    )
    flags.check(
        manifest.vocabularies(record_files) <= {manifest.sha256_of_file(config.vocab_file)},
        "vocab_file",
        config.vocab_file,
        "is not the vocabulary that the records were made with; give that one, or leave it out",
    )
    return config.vocab_file


def compile_step(config):
    """Compiles the step for a TPU that need not be there; ends the script if it does not fit."""
    _tensorflow()
    from input_pipelines import pretraining_input

    bert_config = _bert_config(config)

    def lower(changed, cores):
        zeros = pretraining_input.shapes_input_fn(
            changed.max_seq_length, changed.max_predictions_per_seq, changed.precision
        )
        return _estimator(changed, bert_config).lower(zeros, cores)

    if not compile_only.run(config, lower):
        raise SystemExit(1)


def _tensorflow():
    """Loads TensorFlow, only now since it takes seconds: wrong flags have been reported by here."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow.compat.v1 as tf

    console.set_up(tf.get_logger())


def _bert_config(config):
    """Returns the network of a configuration, which has positions enough."""
    from bert_estimator.bert_config import BertConfig
    from bert_estimator.jobs import script_estimator

    if config.bert_config is not None:
        bert_config = BertConfig(**config.bert_config)
    else:
        bert_config = script_estimator.read_bert_config(config)
    script_estimator.check_length(config, bert_config)
    return bert_config


def _estimator(config, bert_config, master=""):
    """Returns the estimator of a configuration."""
    from bert_estimator import pretraining
    from bert_estimator.jobs import script_estimator

    return script_estimator.make(
        config,
        pretraining.model_fn_builder(
            bert_config,
            config.optimizer,
            config.learning_rate,
            config.num_train_steps,
            config.num_warmup_steps,
            precision_name=config.precision,
            micro_batch_size=config.micro_batch_size,
            recompute=config.recompute,
            use_one_hot_embeddings=config.use_one_hot_embeddings,
            random_seed=config.random_seed,
            initial_checkpoint=config.init_checkpoint,
            allow_partial_init=config.allow_partial_init,
            summary_dir=config.output_dir,
            decay_power=config.learning_rate_decay_power,
            legacy_schedule_jump=config.legacy_schedule_jump,
            optimizer_options=config.optimizer_options(),
        ),
        master,
    )


def _summary(evaluations):
    """Returns what evaluation found, in words: the held-out loss against start and baseline."""
    first, last = evaluations[0], evaluations[-1]
    loss = last["eval_masked_lm_loss"]
    lines = [
        f"Held-out text at step {last['step']}: masked-LM loss {loss:.3f} nats, accuracy "
        f"{last['eval_masked_lm_accuracy']:.3f}; next-sentence loss "
        f"{last['eval_next_sentence_loss']:.3f}, accuracy "
        f"{last['eval_next_sentence_accuracy']:.3f}."
    ]
    if first["step"] == 0 and last["step"] > 0:
        start = first["eval_masked_lm_loss"]
        lines.append(f"  masked-LM loss at the start: {start:.3f} ({start - loss:.3f} above)")
    if "eval_unigram_baseline" in last:
        baseline = last["eval_unigram_baseline"]
        lines.append(
            f"  unigram baseline of the same tokens: {baseline:.3f} ({baseline - loss:.3f} above)"
        )
    return "\n".join(lines)


def _run_all(stages):
    """Runs the stages one after the other, each from the last weights of the one before it.

    What can be wrong with any of them is found before the first one trains.
    """
    if stages[0].compile_only:
        for config in stages:
            _describe(config)
            compile_step(config)
        if len(stages) > 1:
            compile_only.print_total(stages)
        return
    for stage in [open_run(config) for config in stages]:
        _describe(stage.config)
        stage.run()


def _describe(config):
    if config.recipe:
        print(f"{config.recipe}, stage {config.stage}:\n{config.described()}", flush=True)


def main(argv):
    """Runs the script; returns its exit code: 0, 2 for flags or files that cannot work, 1 for any
    other failure, or 128 + the signal's number."""
    if any(a in ("--help", "-help", "-h", "--helpfull") for a in argv[1:]):
        print(__doc__, define_flags().get_help(), sep="\n")
        return 0
    return console.exit_code("run_pretraining.py", lambda: _run_all(resolve(argv)))


if __name__ == "__main__":
    console.leave(main(sys.argv))
