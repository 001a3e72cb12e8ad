"""The runs of fine-tuning, whatever the task: train, evaluate, predict, export, compile."""

import abc
import contextlib
import dataclasses
import functools
import json
import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import tensorflow.compat.v1 as tf

from bert_estimator import interchange, optimization, tpu
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.command_line.choices import SAVED_MODEL
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs import compile_only, estimator, fine_tuned, vocabulary
from bert_estimator.jobs.best_checkpoint import BestCheckpoint
from bert_estimator.jobs.estimator import print_filling
from bert_estimator.jobs.fine_tuning import onnx_export
from bert_estimator.jobs.fine_tuning.export import TextParts, rounded
from bert_estimator.jobs.fine_tuning.fine_tuning_config import FineTuningConfig
from bert_estimator.jobs.run import Run, evaluation_line, locked
from bert_estimator.layers import primitives
from bert_estimator.model_fns import fine_tuning, update
from bert_estimator.storage import staging
from bert_estimator.system import disk_files
from bert_estimator.system.errors import GREATEST
from bert_estimator.tokenization import Casing
from input_pipelines.records.packed_rows import Filling, Packs
from input_pipelines.tasks import features_input
from input_pipelines.tasks.features import Batches, BatchesOfLength
from input_pipelines.tasks.features_input import ReorderedBatches

_IDS = ("input_ids", "input_mask", "segment_ids")


class Data(Protocol):
    """Says what a fine-tuning reads."""

    bert_config: BertConfig
    # Without arguments: name -> value of the baseline metric.
    baselines: Callable[[], dict[str, float]]
    baseline_metric: str

    @property
    def deciding_metric(self) -> str: ...

    @property
    def vocab_file(self) -> str: ...

    @property
    def train(self) -> Batches | None: ...

    def digest(self) -> str:
        """Returns a hash of the training data and what its labels mean; "" without the data."""


def run_seeds(
    configs: Sequence[FineTuningConfig],
    fine_tune: Callable[[Any], dict[str, float]],
    compile_step: Callable[[Any], bool],
) -> None:
    """Runs one seed after the other, and prints how far the results of several seeds spread.

    Args:
      fine_tune: function of a configuration that returns what evaluation found, by metric.
      compile_step: function of a configuration that does what --compile_only asks for, and
        returns whether the step fits.
    """
    with locked(configs):
        if configs[0].plan.compile_only:
            if not compile_step(configs[0]):
                raise SystemExit(1)
            return
        results = [fine_tune(config) for config in configs]
    for name in results[0] if len(results) > 1 else ():
        # A correlation with constant predictions is NaN, which would leave the median to chance.
        known = [result[name] for result in results if not math.isnan(result[name])]
        lost = f", {len(results) - len(known)} not a number" if len(known) < len(results) else ""
        known = known or [math.nan]
        print(
            f"{name} of {len(results)} seeds{lost}: median {statistics.median(known):.4f} "
            f"({min(known):.4f} to {max(known):.4f})"
        )


@dataclasses.dataclass(frozen=True)
class FineTuning(abc.ABC):
    """Holds a fine-tuning: its data, and its flags, completed for the cores."""

    config: Any
    data: Any
    directory: RunDirectory | None = None  # None if the step is only compiled
    master: str = ""

    # Whether the results are the same if examples have less padding; the data is `BatchesOfLength`
    # then.
    IGNORES_PADDING = True

    @abc.abstractmethod
    def model_fn(
        self, network: fine_tuning.Network, rule: update.UpdateRule | None
    ) -> Callable[..., tpu.TPUEstimatorSpec]:
        """Returns the `model_fn`; raises FlagError if the flags do not fit the data."""

    @abc.abstractmethod
    def task(self) -> dict[str, Any]:
        """Returns the contents of task.json, which tells a reader of the weights their task."""

    @abc.abstractmethod
    def head(self) -> tuple[str, ...]:
        """Returns the variables of a fine-tuned network that pretraining does not train for the
        task; the first of them is [number of outputs, hidden]."""

    @abc.abstractmethod
    def takes_text(self) -> bool:
        """Returns, before step 0, whether the export is to take text; `export.takes_text`."""

    @abc.abstractmethod
    def text_parts(self) -> TextParts:
        """Returns what makes the export take text, if it is to take text."""

    @abc.abstractmethod
    def examples(self) -> Sequence[BatchesOfLength]:
        """Returns all that was read of the task's files."""

    @abc.abstractmethod
    def score(self, answer: onnx_export.Answer) -> tuple[str, float]:
        """Returns the deciding metric and its value, if a model answers the evaluation's file."""

    @abc.abstractmethod
    def evaluate_once(self, checkpoint: str | None) -> dict[str, Any]:
        """Evaluates a checkpoint, or the newest; returns metric -> value, the deciding metric
        first, since it is printed first."""

    @abc.abstractmethod
    def evaluation_digest(self) -> str:
        """Returns a digest of the data and settings that the scores of evaluations depend on."""

    @abc.abstractmethod
    def predict(self) -> None:
        """Writes the predictions."""

    def estimator(
        self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda model_fn: model_fn
    ) -> tpu.TPUEstimator:
        """Returns the estimator of the network; `wrap` may change its model_fn."""
        config, trains = self.config, self.config.do_train
        network = fine_tuning.Network(
            self.data.bert_config,
            random_seed=config.training.random_seed,
            max_seq_length=config.data.max_seq_length,
            **config.network.options(),
        )
        rule = self._update_rule() if trains or config.plan.compile_only else None
        model_fn = wrap(self.model_fn(network, rule))
        steps = self.num_train_steps() if trains else None
        return estimator.make(config, model_fn, self.master, steps, self._tokens_per_example())

    def _tokens_per_example(self):
        """Returns how many tokens an example has, for the log; None if lengths differ."""
        # Packed rows count tokens in the mean, without padding; by the rules of TPUs, padding
        # counts.
        if self.config.do_train and self.config.training.pack:
            return float(self.data.train.lengths.mean())
        return None if self._pads_to_longest() else self.config.data.max_seq_length

    @functools.cached_property
    def run(self) -> Run:
        """Returns the `Run` of the estimator in the directory, always the same."""
        return Run(self.config, self.directory, self.estimator())

    @functools.cached_property
    def _export_takes_text(self):
        return self.config.do_export and not self._exports_onnx() and self.takes_text()

    def _exports_onnx(self):
        return self.config.do_export and self.config.evaluation.export_format != SAVED_MODEL

    def check(self) -> None:
        """Checks that data, network, directory and checkpoints fit, before step 0."""
        config, data, start = self.config, self.data, self.config.network
        estimator.check_network(self.directory, data.bert_config, config.do_train)
        if config.do_train:
            values = flags.values_of(config)
            flag = next((name for name in config.DATA_FLAGS if values[name]), "output_dir")
            self.directory.check_config(config.settings_to_go_on(), data.digest(), flag)
            vocabulary.check_kept(self.directory, data.vocab_file)
            # A run that goes on does not read --init_checkpoint again.
            if start.init_checkpoint and not self.directory.holds_checkpoint():
                casing = Casing(*(self.task()[name] for name in Casing._fields))
                vocabulary.check_start(start, data.vocab_file, casing, "vocab_file")
                source = interchange.open_source(start.init_checkpoint)
                fine_tuned.warn_of_another_task(source, self.head(), self.task())
            self.run.check_restorable()
        else:
            self._check_is_trained()
        _ = self._export_takes_text  # it says so now
        if self._exports_onnx():
            with flags.named(f"export_format={config.evaluation.export_format}"):
                onnx_export.check(data.bert_config)

    def _check_is_trained(self):
        """Checks that a network was fine-tuned for this task, here or in --init_checkpoint."""
        source = self.run.network_read_alone()
        flag = "output_dir" if source is None else "init_checkpoint"
        if (source := source or self.run.network_of_another_program) is None:
            checkpoint = self.run.best() or self.run.estimator.latest_checkpoint()
            flags.check(
                checkpoint,
                "output_dir",
                self.config.output_dir,
                "does not hold a checkpoint of a fine-tuned network; train first, or name the "
                "fine-tuned network with --init_checkpoint",
            )
            with flags.named(flag):
                source = interchange.open_source(checkpoint)
        asked = self.head(), self.task(), self.data.vocab_file, self.data.bert_config
        fine_tuned.check(source, *asked, flag)

    def compile_step(self) -> bool:
        """Compiles the training step for a TPU that need not be there; returns whether it fits."""

        def lower(config, cores, hosts):
            changed, fillings = dataclasses.replace(self, config=config), []
            input_fn = changed.training_input_fn(report=fillings.append)
            lowered = changed.estimator().lower(input_fn, cores, hosts)
            share = self.data.train.lengths.mean() / config.data.max_seq_length
            return lowered, fillings[0].token_share if fillings else float(share)

        return compile_only.run(self.config, lower, self.num_train_steps())

    def train(self) -> None:
        """Trains from the newest checkpoint or step 0, until the last step or early stopping."""
        config, directory, steps = self.config, self.directory, self.num_train_steps()
        corners = self._update_rule().corners()
        # What decides on the best checkpoint of a complete run is how it was trained.
        if self.run.estimator.global_step() < steps:
            directory.write_config(config.settings(), config.sources, self.data.digest(), corners)
        directory.write_network(self.data.bert_config.to_dict(), self.data.vocab_file, self.task())
        directory.forget_metrics_after(self.run.estimator.global_step())
        best_checkpoint = None
        if config.evaluates_while_training():
            best_checkpoint = BestCheckpoint(
                config.output_dir,
                config.evaluation,
                steps,
                self._evaluate_to_compare,
                self.evaluation_digest(),
            )
        self.run.train(self.training_input_fn, steps, "num_train_epochs", best_checkpoint)

    def evaluate(self) -> dict[str, float]:
        """Evaluates the best checkpoint if the run kept it, else the newest; prints and returns the
        results, metric -> float."""
        metrics, baselines = self.evaluate_once(self.run.best()), self.data.baselines()
        metric = self.data.baseline_metric
        as_metrics = {n.replace(" ", "_") + "_baseline": v for n, v in baselines.items()}
        self.directory.add_evaluation({**metrics, **as_metrics})
        write_lines(
            os.path.join(self.config.output_dir, "eval_results.txt"),
            (f"{name} = {value}" for name, value in sorted(metrics.items())),
        )
        results, step = _scores(metrics), int(metrics["global_step"])
        self.run.log_rest(printed_step=step)
        print(evaluation_line(step, results))
        for name, value in baselines.items():
            ahead = results[metric] - value
            place = "above" if ahead >= 0 else "below"
            print(f"  {metric} of {name}: {value:.4f} (the network: {abs(ahead):.4f} {place} it)")
        return results

    def _evaluate_to_compare(self, checkpoint):
        """Returns (the deciding metric, the checkpoint or the newest), for `BestCheckpoint`."""
        results = self.evaluate_once(checkpoint)
        # The best checkpoint is evaluated anew only to be compared; its step has records already.
        if checkpoint is None:
            self.directory.add_evaluation(results)
            self.run.log_evaluation(int(results["global_step"]), _scores(results))
            checkpoint = self.run.estimator.latest_checkpoint()
        return float(results[self.data.deciding_metric]), checkpoint

    def evaluate_on(
        self, batches: Batches, checkpoint: str | None, name: str | None = None
    ) -> dict[str, Any]:
        """Evaluates the set of examples of a name; returns what `TPUEstimator.evaluate` does."""
        batch_size = self.config.evaluation.eval_batch_size
        input_fn = self._reading_once(self._sorted(batches, batch_size))
        return self.run.evaluate(input_fn, -(-len(batches) // batch_size), checkpoint, name)

    def training_input_fn(
        self,
        skipped: Sequence[tuple[int, int]] = (),
        report: Callable[[Filling], None] = print_filling,
    ) -> Callable[..., Any]:
        """Returns the `input_fn` of the training, which skips batches as `order.BatchOrder` does;
        `report` gets how full packed rows are."""
        training, packs = self.config.training, None
        if training.pack:
            packs = estimator.packs(self.config, self.num_train_steps(), report)
        return features_input.input_fn_builder(
            self.data.train,
            True,
            training.random_seed,
            skipped,
            pads_to_longest=self._pads_to_longest() and not packs,
            packs=packs,
        )

    def _reading_once(self, batches):
        """Returns the `input_fn` of an evaluation or a prediction."""
        pads_to_longest, packs = self._pads_to_longest(), Packs() if self._packs_once() else None
        return features_input.input_fn_builder(
            batches, False, pads_to_longest=pads_to_longest, packs=packs
        )

    def _sorted(self, batches, batch_size):
        """Returns the examples in another order, or as they are if this does not save time."""
        is_packed = self._packs_once()
        if is_packed or self._pads_to_longest():
            return ReorderedBatches(batches, batch_size, is_balanced=is_packed)
        return batches

    def _packs_once(self):
        """Returns whether evaluations and predictions pack rows."""
        # Without --use_tpu, batches of examples of one length have as little padding.
        return self.config.training.pack and self.config.devices.use_tpu

    def _pads_to_longest(self):
        """Returns whether batches are as long as their longest examples, and so take less time."""
        # By the rules of TPUs all batches have one shape.
        return self.IGNORES_PADDING and not self.config.devices.use_tpu

    def predictions_of(self, batches: Batches) -> Iterator[dict[str, Any]]:
        """Yields the prediction of each example, in order; reading all closes the session."""
        read = self._sorted(batches, self.config.evaluation.predict_batch_size)
        predictions = self.run.estimator.predict(
            self._reading_once(read), checkpoint_path=self.run.best()
        )
        with contextlib.closing(predictions):
            yield from features_input.in_order(predictions)

    def export(self) -> None:
        """Writes the best checkpoint's model, or else the newest's, as --export_format says."""
        if self._exports_onnx():
            self._export_onnx()
        else:
            self._export_saved_model()

    def _export_onnx(self):
        """Writes an ONNX model, below export/onnx/."""
        checkpoint, task = self.run.best() or self.run.estimator.latest_checkpoint(), self.task()
        source = onnx_export.fine_tuned(
            checkpoint, self.data.bert_config, self.data.vocab_file, task
        )
        base = os.path.join(self.config.output_dir, "export", "onnx")
        score = self.score if self.config.exports_int8() else None
        with flags.named(f"export_format={self.config.evaluation.export_format}"):
            onnx_export.write(base, source, task, self.examples(), score)

    def _export_saved_model(self):
        """Writes a SavedModel whose `serving_default` takes text, or ids and gives predictions.

        Ids are `input_ids`, `input_mask` and `segment_ids`, int32 [any, any]. A reader finds what
        it needs in `assets.extra`: the vocabulary, and `task.json`.
        """
        task = self.task()
        # Not the run's own file, which has the length of its training.
        task_file = os.path.join(staging.temporary_folder(), "task.json")
        write_lines(task_file, [json.dumps(task, indent=2)])
        assets_extra = {task["vocab_file"]: self.data.vocab_file, "task.json": task_file}
        receiver, wrap = _receive_ids, rounded
        if self._export_takes_text:
            receiver, with_text = self.text_parts()

            def wrap(model_fn):
                return rounded(with_text(model_fn))

        # XLA would compile each shape by itself, and requests have any number of examples of any
        # length. So the graph consists of TensorFlow's own operations.
        with primitives.portable():
            self.run.export(self.estimator(wrap), receiver, assets_extra)

    def num_train_steps(self) -> int:
        """Returns the steps of the training, as google-research/bert counts them: rounded down."""
        training = self.config.training
        steps = len(self.data.train) / training.train_batch_size * training.num_train_epochs
        rule = f"gives {steps:g} steps, more than {GREATEST}"
        flags.check(steps <= GREATEST, "num_train_epochs", training.num_train_epochs, rule)
        return int(steps)

    def _update_rule(self):
        training, network, steps = (
            self.config.training,
            self.data.bert_config,
            self.num_train_steps(),
        )
        flags.check(
            steps > 0,
            "num_train_epochs",
            training.num_train_epochs,
            f"the {len(self.data.train)} examples do not make a step of --train_batch_size="
            f"{training.train_batch_size}; give a smaller batch, more epochs or more examples",
        )
        # A step must be left after the warm-up, even if all of the training is to be warm-up.
        num_warmup_steps = min(int(steps * training.warmup_proportion), steps - 1)
        return update.UpdateRule(
            training.optimizer,
            optimization.WarmupPolynomialDecay(training.learning_rate, steps, num_warmup_steps),
            micro_batch_size=training.micro_batch_size,
            optimizer_options=training.optimizer_options(),
            rate_scale=fine_tuning.layerwise_rate_scale(
                training.layerwise_lr_decay, network.num_hidden_layers, network.num_hidden_groups
            ),
            summary_dir=self.config.output_dir,
        )


def write_lines(path: str, lines: Iterable[str]) -> None:
    """Writes a file of lines, all of them or nothing."""
    with disk_files.writer(path) as writer:
        writer.writelines(line + "\n" for line in lines)


def _receive_ids():
    """Is the `serving_input_receiver_fn` of an export that takes ids."""
    ids = {name: tf.placeholder(tf.int32, [None, None], name) for name in _IDS}
    return tpu.serving.ServingInputReceiver(ids, ids)


def _scores(metrics):
    """Returns what is printed of an evaluation: the loss is a mean over batches, and says less."""
    return {k: float(v) for k, v in metrics.items() if k not in ("loss", "global_step")}
