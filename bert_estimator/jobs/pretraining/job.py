"""Pretraining: the runs of run_pretraining.py, each stage of a recipe in a directory of its own."""

import contextlib
import functools
import os
from collections.abc import Sequence

from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line.provenance import Origin
from bert_estimator.command_line.run_directory import evaluation_record
from bert_estimator.jobs import compile_only, estimator, vocabulary
from bert_estimator.jobs.best_checkpoint import BestCheckpoint
from bert_estimator.jobs.pretraining import data
from bert_estimator.jobs.pretraining.config import PretrainingConfig
from bert_estimator.jobs.run import Run, locked
from bert_estimator.model_fns import pretraining, update
from bert_estimator.tokenization import Casing
from input_pipelines.records import pretraining_input


def run(configs: Sequence[PretrainingConfig]) -> None:
    """Runs the stages one after the other, each from the last weights of the stage before it.

    Flags and files of all stages are checked before the first stage trains.

    Args:
      configs: list of `PretrainingConfig`.

    Raises:
      FlagError: a configuration does not fit its files, its cores, or the run in its directory.
      lock.InUseError: another process trains in a directory of these.
      SystemExit: --compile_only, and a step does not fit the TPU's memory.
    """
    with locked(configs):
        if configs[0].compile_only:
            for config in configs:
                _describe(config)
                if not compile_step(config):
                    raise SystemExit(1)
            if len(configs) > 1:
                compile_only.print_total(configs)
            return
        stages = [Pretraining(config) for config in configs]
        data.check_stages([(stage.config, stage.data) for stage in stages])
        for stage in stages:
            _describe(stage.config)
            stage.run()


class Pretraining:
    """Runs a pretraining or a stage of a recipe, once its flags and files have been checked.

    Args:
      config: its `PretrainingConfig`.

    Attributes:
      config: the configuration, completed for the cores.
      data: its `PretrainingData`.

    Raises:
      FlagError: flags that do not fit its files, its cores, or the run in its directory.
    """

    def __init__(self, config: PretrainingConfig):
        directory = config.open_directory()
        bert_config = _bert_config(config)
        estimator.check_network(directory, bert_config, config.do_train)
        self.config, master = estimator.find_cores(config)
        config = self.config
        self.data = data.find(
            config, bert_config.vocab_size, may_replace=not directory.holds_checkpoint()
        )
        contents = {
            "bert_config_file": bert_config,
            "input_file": self.data.digest,
            "eval_input_file": (self.data.eval_digest, self.data.num_eval_records),
        }
        estimator.check_hosts_have_same_files(config, contents)
        self._run = Run(config, directory, _estimator(config, bert_config, master))
        if config.do_train:
            directory.check_config(config.settings_to_go_on(), self.data.digest)
            starts = config.init_checkpoint and not directory.holds_checkpoint()
            is_of_stage = config.sources["init_checkpoint"].origin is Origin.STAGE
            if is_of_stage and not os.path.exists(f"{config.init_checkpoint}.index"):
                starts = False  # the stage before it will make it; `run` compares their records
            if starts:
                vocabulary.check_start(config, self.data.vocab_file, self.data.casing, "input_file")
            task = {
                "kind": "pretraining",
                **(
                    self.data.casing._asdict()
                    if self.data.casing
                    else dict.fromkeys(Casing._fields)
                ),
                "max_seq_length": config.max_seq_length,
            }
            vocabulary.check_kept(directory, self.data.vocab_file)
            if not (config.export_program and directory.holds_checkpoint()):
                directory.write_network(bert_config.to_dict(), self.data.vocab_file, task)
                corners = _update_rule(config).corners()
                directory.write_config(config.settings(), config.sources, self.data.digest, corners)
        elif directory.holds_checkpoint():
            data.check_evaluated(config, self.data)
        elif config.init_checkpoint:
            given = "eval_input_file" if config.eval_input_file else "input_file"
            read = self.data.vocab_file, self.data.casing
            vocabulary.check_start(config, *read, given)
        self._bert_config = bert_config

    def run(self) -> None:
        """Trains and evaluates, as the flags say; prints the results and where the files are."""
        config, run = self.config, self._run
        with contextlib.closing(run):
            if config.export_program:
                run.estimator.export_training_program(self._input_fn(True), config.export_program)
                print(f"Run it: python -m bert_estimator.tpu.run_program {config.export_program}")
                return
            if config.do_eval:
                print(self.data.evaluated(), flush=True)
            start_step = run.estimator.global_step()
            if config.do_train:
                run.directory.forget_metrics_after(start_step)
                if config.do_eval and start_step == 0:
                    self._evaluate_and_log()
                input_fn = functools.partial(self._input_fn, True)
                best_checkpoint = None
                if config.evaluates_while_training():
                    best_checkpoint = BestCheckpoint(
                        config,
                        config.num_train_steps,
                        self._evaluate_newest,
                        self._evaluation_digest(),
                    )
                run.train(input_fn, config.num_train_steps, "num_train_steps", best_checkpoint)
            if config.do_eval:
                results = self._evaluate(run.best())
                run.log_rest(printed_step=int(results["global_step"]))
                what = "Held-out text" if self.data.is_held_out else "Training text"
                # The directory may have evaluations of other networks if it has no checkpoint.
                is_own = run.only_reads_elsewhere() is None
                first = run.directory.evaluations()[0] if is_own else None
                print(_scores(what, evaluation_record({**results, **self._baseline}), first))
            print(run.summary())

    def _input_fn(self, is_training, skipped=()):
        config = self.config
        return pretraining_input.input_fn_builder(
            self.data.train_files if is_training else self.data.eval_files,
            config.max_seq_length,
            config.max_predictions_per_seq,
            is_training=is_training,
            random_seed=config.random_seed,
            precision=config.precision,
            vocab_size=self._bert_config.vocab_size,
            type_vocab_size=self._bert_config.type_vocab_size,
            skipped=skipped,
            max_bad_records=config.max_bad_records,
        )

    def _evaluate(self, checkpoint=None):
        """Evaluates a checkpoint, by default the newest; returns the metrics."""
        results = self._run.evaluate(self._input_fn(False), self._eval_steps(), checkpoint)
        self._run.directory.add_evaluation({**results, **self._baseline})
        return results

    def _evaluate_and_log(self):
        """Evaluates the newest checkpoint, and logs what was found."""
        results = self._evaluate()
        values = {name: value for name, value in results.items() if name != "global_step"}
        self._run.log_evaluation(int(results["global_step"]), values)
        return results

    def _evaluate_newest(self):
        """Returns (the negative loss, the newest checkpoint), for `BestCheckpoint`."""
        loss = float(self._evaluate_and_log()["loss"])
        return -loss, self._run.estimator.latest_checkpoint()

    def _evaluation_digest(self):
        """Returns a digest of the records of an evaluation."""
        number = min(self._eval_steps() * self.config.eval_batch_size, self.data.num_eval_records)
        return f"{number} of {self.data.eval_digest}"

    @functools.cached_property
    def _baseline(self):
        config = self.config
        return self.data.baseline(
            self._eval_steps() * config.eval_batch_size, config.max_bad_records
        )

    def _eval_steps(self):
        batches = -(-self.data.num_eval_records // self.config.eval_batch_size)
        return min(self.config.max_eval_steps, batches)


def compile_step(config: PretrainingConfig) -> bool:
    """Compiles the training step for a TPU that need not be there.

    Returns:
      Whether it fits the memory of a core.
    """
    bert_config = _bert_config(config)

    def lower(changed, cores, hosts):
        zeros = pretraining_input.shapes_input_fn(
            changed.max_seq_length, changed.max_predictions_per_seq, changed.precision
        )
        return _estimator(changed, bert_config).lower(zeros, cores, hosts)

    input_secs = pretraining_input.core_secs(config.max_seq_length)
    return compile_only.run(config, lower, config.num_train_steps, input_secs)


def _bert_config(config):
    """Returns the network of a configuration, which has enough positions."""
    if config.bert_config is not None:
        bert_config = BertConfig(**config.bert_config)
    else:
        bert_config = estimator.read_bert_config(config)
    estimator.check_sizes(config, bert_config)
    return bert_config


def _update_rule(config):
    return update.UpdateRule(
        config.optimizer,
        config.learning_rate,
        config.num_train_steps,
        config.num_warmup_steps,
        micro_batch_size=config.micro_batch_size,
        learning_rate_decay_power=config.learning_rate_decay_power,
        legacy_schedule_jump=config.legacy_schedule_jump,
        optimizer_options=config.optimizer_options(),
        summary_dir=config.output_dir,
    )


def _estimator(config, bert_config, master=""):
    model_fn = pretraining.model_fn_builder(
        bert_config,
        _update_rule(config),
        precision=config.precision,
        recompute=config.recompute,
        use_one_hot_embeddings=config.use_one_hot_embeddings,
        random_seed=config.random_seed,
        init_checkpoint=config.init_checkpoint,
        allow_partial_init=config.allow_partial_init,
    )
    return estimator.make(config, model_fn, master, config.num_train_steps)


def _describe(config):
    if config.recipe:
        print(f"{config.recipe}, stage {config.stage}:\n{config.described()}", flush=True)


def _scores(what, last, first):
    """Returns an evaluation in words, compared with the baseline and, if it is of step 0, with the
    run's first evaluation."""
    loss = last["eval_masked_lm_loss"]
    lines = [
        f"{what} at step {last['step']}: masked-LM loss {loss:.3f} nats, accuracy "
        f"{last['eval_masked_lm_accuracy']:.3f}; next-sentence loss "
        f"{last['eval_next_sentence_loss']:.3f}, accuracy "
        f"{last['eval_next_sentence_accuracy']:.3f}."
    ]
    # Other text has another baseline, and losses of different texts are not compared.
    of_text = "eval_unigram_baseline"
    is_start = first is not None and first["step"] == 0 and last["step"] > 0
    if is_start and of_text in first and first[of_text] == last.get(of_text):
        start = first["eval_masked_lm_loss"]
        lines.append(f"  masked-LM loss at the start: {start:.3f} ({_apart(start, loss)})")
    if "eval_unigram_baseline" in last:
        baseline = last["eval_unigram_baseline"]
        lines.append(
            f"  unigram baseline of the same tokens: {baseline:.3f} ({_apart(baseline, loss)})"
        )
    return "\n".join(lines)


def _apart(value, loss):
    """Returns in words how far a value is above or below a loss."""
    return f"{abs(value - loss):.3f} {'above' if value > loss else 'below'}"
