"""The runs of fine-tuning, whatever the task: train, evaluate, predict, export, compile."""

import abc
import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import interchange, tpu
from bert_estimator.command_line import flags
from bert_estimator.command_line.choices import SAVED_MODEL
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs import compile_only, facts, job_estimator
from bert_estimator.jobs.fine_tuning import onnx_export
from bert_estimator.jobs.fine_tuning.export import TextInput, rounded
from bert_estimator.jobs.fine_tuning.fine_tuning_config import FineTuningConfig
from bert_estimator.jobs.job_estimator import print_filling
from bert_estimator.jobs.run import Run, evaluation_line
from bert_estimator.layers import primitives
from bert_estimator.model_fns import fine_tuning, update
from bert_estimator.storage import staging
from bert_estimator.system import disk_files
from bert_estimator.tokenization import Casing
from input_pipelines.records.packed_rows import TOKEN_FEATURES, Filling, Packs
from input_pipelines.tasks import features_input
from input_pipelines.tasks.features import Batches
from input_pipelines.tasks.features_input import ReorderedBatches


@dataclasses.dataclass(frozen=True)
class FineTuning(abc.ABC):
    """Holds a fine-tuning: its data, and its flags, completed for the cores."""

    config: Any
    data: Any  # what `load` returns
    directory: RunDirectory | None = None  # None if the step is only compiled
    master: str = ""

    # Whether the results are the same if examples have less padding.
    IGNORES_PADDING = True

    @staticmethod
    @abc.abstractmethod
    def load(config: Any) -> Any:
        """Reads the network and the data that a configuration names: `bert_config`, `vocab_file`,
        the batches `train` (None without training), `baselines` (a function that returns name ->
        value of `baseline_metric`), `deciding_metric` and `digest()`, a hash of the training data
        and of what its labels mean ("" without the data)."""

    @classmethod
    def completed(cls, config: Any) -> Any:
        """Returns the configuration of a run, which without training has the network's own
        length."""
        if config.is_given("max_seq_length") or (used := network_in_use(config)) is None:
            return config
        _, source = used
        # A network that does not record a length gets the default, but never more than its
        # positions.
        length = source.max_seq_length or config.data.max_seq_length
        if source.config is not None:
            length = min(length, source.config.max_position_embeddings)
        return config.of_length(length)

    @abc.abstractmethod
    def model_fn(
        self, network: fine_tuning.NetworkBuilder, rule: update.UpdateRule | None
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
    def text_input(self) -> TextInput | None:
        """Returns, before step 0, what makes the SavedModel take text, or None if it takes ids
        alone; prints which; raises FlagError if it cannot do as asked."""

    @abc.abstractmethod
    def examples(self) -> Sequence[Batches]:
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
        config = self.config
        network = fine_tuning.NetworkBuilder(
            self.data.bert_config,
            random_seed=config.training.random_seed,
            max_seq_length=config.data.max_seq_length,
            **config.network.options(),
        )
        model_fn = wrap(self.model_fn(network, self._rule()))
        steps = self.num_train_steps() if config.do_train else None
        return job_estimator.make(config, model_fn, self.master, steps, self._tokens_per_example())

    def _tokens_per_example(self):
        """Returns how many tokens an example has, for the log; None if lengths differ."""
        # Packed rows count tokens in the mean, without padding; by the rules of TPUs, padding
        # counts.
        if self.config.do_train and self.config.data.pack:
            return float(self.data.train.lengths.mean())
        return None if self._pads_to_longest() else self.config.data.max_seq_length

    @functools.cached_property
    def run(self) -> Run:
        """Returns the `Run` of the estimator in the directory, always the same."""
        return Run(self.config, self.directory, self.estimator())

    @functools.cached_property
    def _text_input(self):
        """Is None also if there is no SavedModel to write."""
        is_written = self.config.do_export and not self._exports_onnx()
        return self.text_input() if is_written else None

    def _exports_onnx(self):
        return self.config.do_export and self.config.evaluation.export_format != SAVED_MODEL

    def check(self) -> None:
        """Checks that data, network, directory and checkpoints fit, before step 0."""
        config, data, start = self.config, self.data, self.config.network
        facts.check_network(self.directory, data.bert_config, config.do_train)
        if config.do_train:
            values = flags.values_of(config)
            flag = next((name for name in config.DATA_FLAGS if values[name]), "output_dir")
            # Text that is cased otherwise makes other examples, too.
            casing = Casing(*map(self.task().get, Casing._fields))
            facts.check_kept(self.directory, data.vocab_file, casing)
            self.directory.check_config(config.settings_to_go_on(), data.digest(), flag)
            # A run that goes on does not read --init_checkpoint again.
            if start.init_checkpoint and not self.directory.holds_checkpoint():
                asked = facts.of_task(self.task(), data.vocab_file)
                facts.check_start(start, asked, "vocab_file", self.head()[0])
            self.run.check_restorable()
        else:
            self._check_is_trained()
        _ = self._text_input  # it is said now what the SavedModel takes
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
        facts.check_used(source, *asked, flag)

    def compile_step(self) -> bool:
        """Compiles the training step for a TPU that need not be there; returns whether it fits."""

        def lower(cores, hosts):
            fillings = []
            input_fn = self.make_training_input_fn(report=fillings.append)
            lowered = self.estimator().lower(input_fn, cores, hosts)
            share = self.data.train.lengths.mean() / self.config.data.max_seq_length
            return lowered, fillings[0].token_share if fillings else float(share)

        return compile_only.run(self.config, lower, self.num_train_steps())

    def train(self) -> None:
        """Trains from the newest checkpoint or step 0, until the last step or early stopping."""
        data, steps, rule = self.data, self.num_train_steps(), self._rule()
        self.run.describe(
            steps, data.digest(), rule, data.bert_config, data.vocab_file, self.task()
        )
        self.directory.forget_metrics_after(self.run.estimator.global_step())
        self.run.train(
            self.make_training_input_fn,
            steps,
            "num_train_epochs",
            self._evaluate_to_compare,
            self.evaluation_digest,
        )

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
        input_fn = self._make_reading_input_fn(self._sorted(batches, batch_size))
        return self.run.evaluate(input_fn, -(-len(batches) // batch_size), checkpoint, name)

    def make_training_input_fn(
        self,
        skipped: Sequence[tuple[int, int]] = (),
        report: Callable[[Filling], None] = print_filling,
    ) -> Callable[..., Any]:
        """Returns the `input_fn` of the training, which skips batches as `order.BatchOrder` does;
        `report` gets how full packed rows are."""
        training, packs = self.config.training, None
        if self.config.data.pack:
            packs = job_estimator.packs(self.config, self.num_train_steps(), report)
        return features_input.input_fn_builder(
            self.data.train,
            True,
            training.random_seed,
            skipped,
            pads_to_longest=self._pads_to_longest() and not packs,
            packs=packs,
        )

    def _make_reading_input_fn(self, batches):
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
        return self.config.data.pack and self.config.devices.use_tpu

    def _pads_to_longest(self):
        """Returns whether batches are as long as their longest examples, and so take less time."""
        # By the rules of TPUs all batches have one shape.
        return self.IGNORES_PADDING and not self.config.devices.use_tpu

    def predictions_of(self, batches: Batches) -> Iterator[dict[str, Any]]:
        """Yields the prediction of each example, in order; reading all closes the session."""
        read = self._sorted(batches, self.config.evaluation.predict_batch_size)
        predictions = self.run.estimator.predict(
            self._make_reading_input_fn(read), checkpoint_path=self.run.best()
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
        """Writes a SavedModel whose `serving_default` takes text or ids, `input_ids`, `input_mask`
        and `segment_ids`, int32 [any, any], with the vocabulary and task.json in assets.extra."""
        task = self.task()
        # Not the run's own file, which has the length of its training.
        task_file = os.path.join(staging.temporary_folder(), "task.json")
        write_lines(task_file, [json.dumps(task, indent=2)])
        assets_extra = {task["vocab_file"]: self.data.vocab_file, "task.json": task_file}
        receiver, with_text = self._text_input or (_receive_ids, lambda model_fn: model_fn)
        # XLA would compile each shape by itself, and requests have any number of examples of any
        # length. So the graph consists of TensorFlow's own operations.
        with primitives.portable():
            exporting = self.estimator(lambda model_fn: rounded(with_text(model_fn)))
            self.run.export(exporting, receiver, assets_extra)

    def num_train_steps(self) -> int:
        """Returns the steps of the training."""
        return self.config.training.num_train_steps(len(self.data.train))

    def _rule(self):
        """Returns how weights are updated; None without training."""
        config = self.config
        if not (config.do_train or config.plan.compile_only):
            return None
        schedule = config.training.schedule(len(self.data.train))
        return config.training.update_rule(schedule, config.output_dir, self.data.bert_config)


def network_in_use(config: FineTuningConfig) -> tuple[str, interchange.Source] | None:
    """Returns (its flag, the network that a run uses without training it), or None."""
    # A run's own network counts, whatever the run started from.
    is_run = RunDirectory(config.output_dir).holds_checkpoint()
    path = config.output_dir if is_run else config.network.init_checkpoint
    if config.do_train or not path:
        return None
    flag = "output_dir" if is_run else "init_checkpoint"
    with flags.named(flag):
        return flag, interchange.open_source(path)


def write_lines(path: str, lines: Iterable[str]) -> None:
    """Writes a file of lines, all of them or nothing."""
    with disk_files.writer(path) as writer:
        writer.writelines(line + "\n" for line in lines)


def _receive_ids():
    """Is the `serving_input_receiver_fn` of an export that takes ids."""
    ids = {name: tf.placeholder(tf.int32, [None, None], name) for name in TOKEN_FEATURES}
    return tpu.serving.ServingInputReceiver(ids, ids)


def _scores(metrics):
    """Returns what is printed of an evaluation: the loss is a mean over batches, and says less."""
    return {k: float(v) for k, v in metrics.items() if k not in ("loss", "global_step")}
