"""A pretraining, or a stage of a recipe: what it checks, trains, evaluates and reports."""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from bert_estimator import tpu
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.command_line.choices import MLM, MLM_SOP
from bert_estimator.command_line.run_directory import (
    RunDirectory,
    evaluation_record,
    recorded_settings,
)
from bert_estimator.jobs import compile_only, facts, job_estimator
from bert_estimator.jobs.pretraining import pretraining_data
from bert_estimator.jobs.pretraining.pretraining_config import PretrainingConfig
from bert_estimator.jobs.pretraining.pretraining_data import PretrainingData
from bert_estimator.jobs.run import Run
from bert_estimator.model_fns import init_checkpoint, pretraining, update
from bert_estimator.tokenization import Casing
from input_pipelines.records import pretraining_input


def make_estimator(
    config: PretrainingConfig,
    network: BertConfig,
    rule: update.UpdateRule,
    master: str = "",
    records: PretrainingData | None = None,
) -> tpu.TPUEstimator:
    """Returns the `TPUEstimator` of a network, whose weights a rule updates."""
    model_fn = pretraining.model_fn_builder(
        network,
        rule,
        random_seed=config.training.random_seed,
        unigram_nats=records and records.unigram_nats(),
        **config.network.options(),
    )
    # The log counts the tokens of packed rows by the lengths of the records, without padding.
    lengths = records and records.lengths
    is_packed = config.data.pack and lengths is not None
    tokens = config.data.max_seq_length * (lengths.token_share if is_packed else 1)
    return job_estimator.make(config, model_fn, master, config.training.num_train_steps, tokens)


def compile_steps(stages: Sequence[PretrainingConfig]) -> None:
    """Compiles the training step of each stage for a TPU that need not be there; ends the process
    if one does not fit."""
    for stage in stages:
        stage.announce()
        if not _compile_step(stage):
            raise SystemExit(1)
    if len(stages) > 1:
        compile_only.print_total(stages)


def _compile_step(config):
    """Returns whether the training step of a stage fits."""
    network = config.network.build(config.output_dir, config.bert_config)
    job_estimator.check_sizes(config, network)
    lengths, sets = pretraining_data.lengths_to_compile(config)
    token_share = lengths and lengths.token_share
    config = config.packed(token_share)
    longest = config.data.max_seq_length, config.data.max_predictions_per_seq
    has_sentences = pretraining_data.objective_to_compile(config) != MLM

    def lower(cores, hosts):
        fillings, packs = [], None
        if config.data.pack:
            packs = job_estimator.packs(config, config.training.num_train_steps, fillings.append)
        zeros = pretraining_input.shapes_input_fn(
            *longest, config.network.precision, packs, lengths, sets, has_sentences
        )
        # Building the input packs its rows, and only then says how full they are.
        schedule = config.training.schedule()
        rule = config.training.update_rule(schedule, config.output_dir, network)
        lowered = make_estimator(config, network, rule).lower(zeros, cores, hosts)
        for filling in fillings:
            print(f"Packed: {filling}")
        return lowered, fillings[0].token_share if fillings else token_share

    input_secs = pretraining_input.core_secs(config.data.max_seq_length)
    return compile_only.run(config, lower, config.training.num_train_steps, input_secs)


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """Holds a pretraining, or a stage of a recipe, with the `Run` of its estimator."""

    config: PretrainingConfig  # completed for the cores
    network: BertConfig
    rule: update.UpdateRule
    data: PretrainingData
    run: Run

    @property
    def directory(self) -> RunDirectory:
        return self.run.directory

    def check(self) -> None:
        """Checks that records, vocabularies, hosts and checkpoints fit, before step 0."""
        config, network_flags, records = self.config, self.config.network, self.config.data
        evaluated = self.data.eval_digest, self.data.num_eval_records
        job_estimator.check_hosts_have_same_files(
            {
                "bert_config_file": (network_flags.bert_config_file, self.network),
                "input_file": (records.input_file, self.data.digest),
                "eval_input_file": (records.eval_input_file, evaluated),
            }
        )
        casing = self.data.casing._asdict() if self.data.casing else {}
        asked = facts.of_task(casing, self.data.vocab_file)
        holds_checkpoint = self.directory.holds_checkpoint()
        if config.do_train:
            self.run.check_restorable()
            self.directory.check_config(config.settings_to_go_on(), self.data.digest)
            # The stage before will make its checkpoint; `check_stages` compares their records.
            is_coming = config.starts_from_stage() and not os.path.exists(
                f"{network_flags.init_checkpoint}.index"
            )
            if network_flags.init_checkpoint and not holds_checkpoint and not is_coming:
                facts.check_start(network_flags, asked, "input_file")
            facts.check_kept(self.directory, self.data.vocab_file, None)
        elif network_flags.init_checkpoint and not holds_checkpoint:
            flag = "eval_input_file" if records.eval_input_file else "input_file"
            facts.check_start(network_flags, asked, flag)
            names = init_checkpoint.open_source(network_flags.init_checkpoint).shapes
            for section, what in init_checkpoint.SECTIONS.items():
                has = network_flags.allow_partial_init or any(n.startswith(section) for n in names)
                is_needed = records.has_sentences or section == init_checkpoint.MASKED_LM
                must = f"lacks the {what} ({section}), so it cannot be evaluated; add --do_train"
                if section != init_checkpoint.MASKED_LM:
                    must += f", or --objective={MLM}"
                flags.check(
                    has or not is_needed, "init_checkpoint", network_flags.init_checkpoint, must
                )
        if holds_checkpoint:
            before = recorded_settings(config.output_dir).get("objective")
            rule = f"{config.output_dir} holds a run for masked words alone; leave the flag out"
            is_learnt = before != MLM or not records.has_sentences
            flags.check(is_learnt, "objective", records.objective, rule)
            pretraining_data.check_text(config.output_dir, records, self.data)

    def write_config(self) -> None:
        """Writes what the run is into its directory, if it trains."""
        config, directory = self.config, self.directory
        if not config.do_train or (config.export_program and directory.holds_checkpoint()):
            return
        casing = self.data.casing or Casing(*[None] * len(Casing._fields))
        length = config.data.max_seq_length
        task = {"kind": "pretraining", **casing._asdict(), "max_seq_length": length}
        steps, vocab_file = config.training.num_train_steps, self.data.vocab_file
        self.run.describe(steps, self.data.digest, self.rule, self.network, vocab_file, task)

    def export_program(self) -> None:
        """Writes the training step into --export_program, to run without TensorFlow."""
        path = self.config.export_program
        self.run.estimator.export_training_program(self.make_input_fn(is_training=True), path)
        print(f"Run it: python -m bert_estimator.tpu.run_program {path}")

    def train(self) -> None:
        """Trains from the newest checkpoint, the start, or step 0, and evaluates on the way."""
        config, start_step = self.config, self.run.estimator.global_step()
        self.directory.forget_metrics_after(start_step)
        # Curves begin at the loss before training.
        if config.do_eval and start_step == 0:
            self._evaluate_and_log()
        self.run.train(
            functools.partial(self.make_input_fn, True),
            config.training.num_train_steps,
            "num_train_steps",
            self._evaluate_to_compare,
            self._evaluation_digest,
        )

    def evaluate(self) -> None:
        """Evaluates the best checkpoint if the run kept it, else the newest; prints the results."""
        results = self._evaluate(self.run.best())
        self.run.log_rest(printed_step=int(results["global_step"]))
        what = "Held-out text" if self.data.is_held_out else "Training text"
        # The directory may have evaluations of other networks if it has no checkpoint.
        is_own = self.run.network_read_alone() is None
        first = next(iter(self.directory.evaluations()), None) if is_own else None
        print(_scores(what, self.config.data.objective, evaluation_record(results), first))

    def make_input_fn(
        self, is_training: bool, skipped: Sequence[tuple[int, int]] = ()
    ) -> Callable[..., Any]:
        """Returns the `input_fn` of the training, or of the evaluation."""
        records, packs = self.config.data, None
        if is_training and self.config.data.pack:
            packs = job_estimator.packs(self.config, self.config.training.num_train_steps)
        return pretraining_input.input_fn_builder(
            self.data.train_files if is_training else self.data.eval_files,
            records.max_seq_length,
            records.max_predictions_per_seq,
            is_training=is_training,
            random_seed=self.config.training.random_seed,
            precision=self.config.network.precision,
            vocab_size=self.network.vocab_size,
            type_vocab_size=self.network.type_vocab_size,
            skipped=skipped,
            max_bad_records=records.max_bad_records,
            packs=packs,
            lengths=self.data.lengths,
            num_read=self.most_evaluated(),
            has_sentences=records.has_sentences,
        )

    def _evaluate(self, checkpoint=None):
        """Evaluates a checkpoint, by default the newest; returns the metrics."""
        results = self.run.evaluate(self.make_input_fn(False), self._eval_steps(), checkpoint)
        # The curves are of what the run learns: another objective has other losses.
        settings, data = recorded_settings(self.directory.path), self.config.data
        learnt = settings.get("objective")
        # Earlier versions learned sentences, and did not say it.
        is_own = learnt == data.objective if learnt else not settings or data.has_sentences
        if is_own:
            self.directory.add_evaluation(results)
        return results

    def _evaluate_and_log(self):
        """Evaluates the newest checkpoint, and logs its metrics."""
        results = self._evaluate()
        values = {name: value for name, value in results.items() if name != "global_step"}
        self.run.log_evaluation(int(results["global_step"]), values)
        return results

    def _evaluate_to_compare(self, checkpoint):
        """Returns (the negative loss, the checkpoint or the newest), for `BestCheckpoint`."""
        # The best checkpoint is evaluated anew only to be compared; its step has records already.
        if checkpoint is None:
            loss = self._evaluate_and_log()["loss"]
            return -float(loss), self.run.estimator.latest_checkpoint()
        results = self.run.evaluate(self.make_input_fn(False), self._eval_steps(), checkpoint)
        return -float(results["loss"]), checkpoint

    def _evaluation_digest(self):
        """Returns a digest of the records of an evaluation."""
        number = min(self.most_evaluated(), self.data.num_eval_records)
        # Fewer than all are spread over all files, which was not so before version 0.2.
        spread = "" if number == self.data.num_eval_records else "spread, "
        return f"{spread}{number} of {self.data.eval_digest}"

    def most_evaluated(self) -> int:
        """Returns how many records an evaluation reads at most."""
        return self._eval_steps() * self.config.evaluation.eval_batch_size

    def _eval_steps(self):
        batches = -(-self.data.num_eval_records // self.config.evaluation.eval_batch_size)
        return min(self.config.evaluation.max_eval_steps, batches)


def _scores(what, objective, last, first):
    """Returns an evaluation in words, compared with the baseline and, if it is of step 0, with the
    run's first evaluation."""
    loss = last["eval_masked_lm_loss"]
    line = (
        f"{what} at step {last['step']}: masked-LM loss {loss:.3f} nats, accuracy "
        f"{last['eval_masked_lm_accuracy']:.3f}"
    )
    if objective != MLM:
        sentences = "sentence-order" if objective == MLM_SOP else "next-sentence"
        line += (
            f"; {sentences} loss {last['eval_next_sentence_loss']:.3f}, accuracy "
            f"{last['eval_next_sentence_accuracy']:.3f}"
        )
    lines = [f"{line}."]
    # Other text has another baseline, and losses of different texts are not compared. Batches of
    # another size round the baseline of the same text in another way.
    of_text = "eval_unigram_baseline"
    is_start = first is not None and first["step"] == 0 and last["step"] > 0
    baselines = [record.get(of_text, math.nan) for record in (first or {}, last)]
    if is_start and math.isclose(*baselines, rel_tol=1e-4):
        start = first["eval_masked_lm_loss"]
        lines.append(f"  masked-LM loss at the start: {start:.3f} ({_apart(start, loss)})")
    if of_text in last:
        baseline = last[of_text]
        lines.append(
            f"  unigram baseline of the same tokens: {baseline:.3f} ({_apart(baseline, loss)})"
        )
    return "\n".join(lines)


def _apart(value, loss):
    """Returns in words how far a value is above or below a loss."""
    return f"{abs(value - loss):.3f} {'above' if value > loss else 'below'}"
