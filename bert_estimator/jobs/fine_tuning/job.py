"""The runs of fine-tuning, whatever the task: train, evaluate, predict, export, compile."""

import abc
import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import tensorflow.compat.v1 as tf

from bert_estimator import interchange, tpu
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.jobs import compile_only, estimator, fine_tuned, vocabulary
from bert_estimator.jobs.best_checkpoint import BestCheckpoint
from bert_estimator.jobs.fine_tuning.config import FineTuningConfig
from bert_estimator.jobs.fine_tuning.rounded_weights import rounded
from bert_estimator.jobs.fine_tuning.text_export import TextParts
from bert_estimator.jobs.run import Run, evaluation_line
from bert_estimator.layers import primitives
from bert_estimator.model_fns import fine_tuning, update
from bert_estimator.system import disk_files
from bert_estimator.system.errors import GREATEST
from bert_estimator.tokenization import Casing
from input_pipelines.tasks import features_input
from input_pipelines.tasks.features_input import Batches, Packs, ReorderedBatches

_IDS = ("input_ids", "input_mask", "segment_ids")


class Data(Protocol):
    """What a fine-tuning reads.

    Attributes:
      bert_config: the network.
      vocab_file: the vocabulary.
      train: what to train on, or None.
      baselines: function without arguments that returns a dict of name -> value of the metric.
      baseline_metric: the metric that the baselines have values of.
    """

    bert_config: BertConfig
    baselines: Callable[[], dict[str, float]]
    baseline_metric: str

    @property
    def vocab_file(self) -> str: ...

    @property
    def train(self) -> Batches | None: ...

    def digest(self) -> str:
        """Returns a hash of the training data and what its labels mean; "" without the data."""


class FineTuning(abc.ABC):
    """Runs a fine-tuning, once its flags and files have been checked; each script has a subclass.

    Args:
      config: its `FineTuningConfig`.

    Attributes:
      ignores_padding: whether the results are the same if examples have less padding; the data is
        `BatchesOfLength` then.

    Raises:
      FlagError: flags that do not fit the data, the network, the cores, or the run in the
        directory.
    """

    ignores_padding: bool

    def __init__(self, config: Any):
        directory = config.open_directory()
        self._config, self._master = estimator.find_cores(config)
        config = self._config
        self._data = self.load(config)
        estimator.check_network(directory, self._data.bert_config, config.do_train)
        if config.do_train:
            flag = next((name for name in config.DATA_FLAGS if getattr(config, name)), "output_dir")
            directory.check_config(config.settings_to_go_on(), self._data.digest(), flag)
            if config.init_checkpoint and not directory.holds_checkpoint():
                casing = Casing(*(self.task()[name] for name in Casing._fields))
                vocabulary.check_start(config, self._data.vocab_file, casing, "vocab_file")
                source = interchange.open_source(config.init_checkpoint)
                fine_tuned.warn_of_another_task(source, self.head(), self.task())
        self._run = Run(config, directory, self._estimator(config, self._data, self._master))
        if not config.do_train:
            self._check_is_trained()
        self._export_takes_text = config.do_export and self.takes_text()

    @staticmethod
    @abc.abstractmethod
    def load(config: Any) -> Any:
        """Reads the `Data` of a configuration; raises FlagError if a file is wrong."""

    @staticmethod
    @abc.abstractmethod
    def model_fn(
        config: Any, data: Any, network: fine_tuning.Network, rule: update.UpdateRule | None
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
        """Returns, before step 0, whether the export is to take text; `text_export.takes_text`."""

    @abc.abstractmethod
    def text_parts(self) -> TextParts:
        """Returns what makes the export take text, if it is to take text."""

    @abc.abstractmethod
    def evaluate_once(self, checkpoint: str | None) -> dict[str, Any]:
        """Evaluates a checkpoint, or the newest; returns metric -> value, best metric first."""

    @abc.abstractmethod
    def evaluation_digest(self) -> str:
        """Returns a digest of the data and settings that the scores of evaluations depend on."""

    @abc.abstractmethod
    def predict(self) -> None:
        """Writes the predictions."""

    @classmethod
    def compile_step(cls, config: Any) -> bool:
        """Compiles the training step for a TPU that need not be there.

        The data is read for what the network depends on, and for the number of its examples.

        Returns:
          Whether it fits the memory of a core.
        """
        data = cls.load(config)

        def lower(changed, cores, hosts):
            input_fn = cls._training_input_fn(changed, data.train)
            return cls._estimator(changed, data).lower(input_fn, cores, hosts)

        return compile_only.run(config, lower, num_train_steps(config, data.train))

    @classmethod
    def _estimator(cls, config, data, master="", wrap=lambda model_fn: model_fn):
        network = fine_tuning.Network(
            data.bert_config,
            precision=config.precision,
            recompute=config.recompute,
            use_one_hot_embeddings=config.use_one_hot_embeddings,
            random_seed=config.random_seed,
            max_seq_length=config.max_seq_length,
            init_checkpoint=config.init_checkpoint,
            allow_partial_init=config.allow_partial_init,
        )
        rule = _update_rule(config, data) if config.do_train or config.compile_only else None
        model_fn = wrap(cls.model_fn(config, data, network, rule))
        steps = num_train_steps(config, data.train) if config.do_train else None
        return estimator.make(config, model_fn, master, steps, not cls._pads_to_longest(config))

    def _check_is_trained(self):
        """Checks that a network was fine-tuned for this task, here or in --init_checkpoint."""
        config, source = self._config, self._run.only_reads_elsewhere()
        flag = "output_dir" if source is None else "init_checkpoint"
        if (source := source or self._run.network_of_another_program) is None:
            checkpoint = self._run.best() or self._run.estimator.latest_checkpoint()
            flags.check(
                checkpoint,
                "output_dir",
                config.output_dir,
                "does not hold a checkpoint of a fine-tuned network; train first, or name the "
                "fine-tuned network with --init_checkpoint",
            )
            with flags.named(flag):
                source = interchange.open_source(checkpoint)
        asked = self.head(), self.task(), self._data.vocab_file, self._data.bert_config
        fine_tuned.check(source, *asked, flag)

    def run(self) -> dict[str, float]:
        """Trains, evaluates, predicts and exports, as the flags say; prints the results.

        Returns:
          What evaluation found, as a dict of metric -> float; empty without --do_eval.
        """
        config = self._config
        with contextlib.closing(self._run):
            if config.do_train:
                self.train()
            results = self.evaluate() if config.do_eval else {}
            if config.do_predict:
                self.predict()
            if config.do_export:
                self.export()
            print(self._run.summary())
            return results

    def train(self) -> None:
        """Trains from the newest checkpoint or step 0, until the last step or early stopping."""
        config, directory = self._config, self._run.directory
        corners = _update_rule(config, self._data).corners()
        directory.write_network(
            self._data.bert_config.to_dict(), self._data.vocab_file, self.task()
        )
        directory.write_config(config.settings(), config.sources, self._data.digest(), corners)
        directory.forget_metrics_after(self._run.estimator.global_step())
        best_checkpoint = None
        if config.evaluates_while_training():
            steps = num_train_steps(config, self._data.train)
            of = self.evaluation_digest()
            best_checkpoint = BestCheckpoint(config, steps, self._evaluate_newest, of)
        self._run.train(
            functools.partial(self._training_input_fn, config, self._data.train),
            num_train_steps(config, self._data.train),
            "num_train_epochs",
            best_checkpoint,
        )

    def evaluate(self) -> dict[str, float]:
        """Evaluates the best checkpoint if the run kept it, else the newest; prints the results.

        Returns:
          A dict of metric -> float.
        """
        metrics, baselines = self.evaluate_once(self._run.best()), self._data.baselines()
        metric = self._data.baseline_metric
        self._run.directory.add_evaluation({**metrics, **_as_metrics(baselines)})
        write_lines(
            os.path.join(self._config.output_dir, "eval_results.txt"),
            (f"{name} = {value}" for name, value in sorted(metrics.items())),
        )
        results, step = _scores(metrics), int(metrics["global_step"])
        self._run.log_rest(printed_step=step)
        print(evaluation_line(step, results))
        for name, value in baselines.items():
            ahead = results[metric] - value
            place = "above" if ahead >= 0 else "below"
            print(f"  {metric} of {name}: {value:.4f} (the network: {abs(ahead):.4f} {place} it)")
        return results

    def _evaluate_newest(self):
        """Returns (the best metric, the newest checkpoint), for `BestCheckpoint`."""
        results = self.evaluate_once(None)
        self._run.directory.add_evaluation(results)
        self._run.log_evaluation(int(results["global_step"]), _scores(results))
        newest = self._run.estimator.latest_checkpoint()
        return float(next(iter(results.values()))), newest

    def evaluate_on(
        self, batches: Batches, checkpoint: str | None, name: str | None = None
    ) -> dict[str, Any]:
        """Evaluates the set of examples of a name; returns what `TPUEstimator.evaluate` does."""
        batch_size = self._config.eval_batch_size
        return self._run.evaluate(
            self._reading_once(self._sorted(batches, batch_size)),
            -(-len(batches) // batch_size),
            checkpoint,
            name,
        )

    @classmethod
    def _training_input_fn(cls, config, batches, skipped=()):
        packs = None
        if config.pack:
            steps = num_train_steps(config, batches)
            packs = Packs(steps, config.micro_batch_size, config.use_tpu, print)
        return features_input.input_fn_builder(
            batches,
            True,
            config.random_seed,
            skipped,
            pads_to_longest=cls._pads_to_longest(config) and not packs,
            packs=packs,
        )

    def _reading_once(self, batches):
        """Returns the `input_fn` of an evaluation or a prediction."""
        pads_to_longest = self._pads_to_longest(self._config)
        packs = Packs() if self._packs_once(self._config) else None
        return features_input.input_fn_builder(
            batches, False, pads_to_longest=pads_to_longest, packs=packs
        )

    def _sorted(self, batches, batch_size):
        """Returns the examples in another order, or as they are if this does not save time."""
        is_packed = self._packs_once(self._config)
        if is_packed or self._pads_to_longest(self._config):
            return ReorderedBatches(batches, batch_size, is_balanced=is_packed)
        return batches

    @classmethod
    def _packs_once(cls, config):
        """Returns whether evaluations and predictions pack rows.

        Without --use_tpu, batches of examples of one length have as little padding.
        """
        return config.pack and config.use_tpu

    @classmethod
    def _pads_to_longest(cls, config):
        """Returns whether batches are as long as their longest examples, and so take less time.

        By the rules of TPUs all batches have one shape.
        """
        return cls.ignores_padding and not config.use_tpu

    def predictions_of(self, batches: Batches) -> Iterator[dict[str, Any]]:
        """Yields the prediction of each example of a set, in order.

        All of them must be read: only then the session is closed.
        """
        read = self._sorted(batches, self._config.predict_batch_size)
        predictions = self._run.estimator.predict(
            self._reading_once(read), checkpoint_path=self._run.best()
        )
        with contextlib.closing(predictions):
            yield from features_input.in_order(predictions)

    def export(self) -> None:
        """Writes a SavedModel whose `serving_default` takes text, or ids and gives predictions.

        Ids are `input_ids`, `input_mask` and `segment_ids`, int32 [any, any]. A reader finds what
        it needs in `assets.extra`: the vocabulary, and `task.json`.

        The graph consists of TensorFlow's own operations. XLA compiles none of them: requests have
        any number of examples of any length, and each shape would be compiled by itself.
        """
        task = self.task()
        task_file = os.path.join(self._config.output_dir, "task.json")
        write_lines(task_file, [json.dumps(task, indent=2)])
        assets_extra = {task["vocab_file"]: self._data.vocab_file, "task.json": task_file}
        receiver, wrap = _receive_ids, rounded
        if self._export_takes_text:
            receiver, with_text = self.text_parts()

            def wrap(model_fn):
                return rounded(with_text(model_fn))

        exported = self._estimator(self._config, self._data, self._master, wrap)
        with primitives.portable():
            self._run.export(exported, receiver, assets_extra)


def num_train_steps(config: FineTuningConfig, train: Batches) -> int:
    """Returns the steps of the training, as google-research/bert counts them.

    The number is rounded down.
    """
    steps = len(train) / config.train_batch_size * config.num_train_epochs
    epochs = config.num_train_epochs
    rule = f"gives {steps:g} steps, more than {GREATEST}"
    flags.check(steps <= GREATEST, "num_train_epochs", epochs, rule)
    return int(steps)


def write_lines(path: str, lines: Iterable[str]) -> None:
    """Writes a file of lines, all of them or nothing."""
    with disk_files.writer(path) as writer:
        writer.writelines(line + "\n" for line in lines)


def _receive_ids():
    """Is the `serving_input_receiver_fn` of an export that takes ids."""
    ids = {name: tf.placeholder(tf.int32, [None, None], name) for name in _IDS}
    return tpu.serving.ServingInputReceiver(ids, ids)


def _update_rule(config, data):
    steps = num_train_steps(config, data.train)
    flags.check(
        steps > 0,
        "num_train_epochs",
        config.num_train_epochs,
        f"the {len(data.train)} examples make no step of --train_batch_size="
        f"{config.train_batch_size}; give a smaller batch, more epochs or more examples",
    )
    return update.UpdateRule(
        config.optimizer,
        config.learning_rate,
        steps,
        min(int(steps * config.warmup_proportion), steps - 1),
        micro_batch_size=config.micro_batch_size,
        rate_scale=fine_tuning.layerwise_rate_scale(
            config.layerwise_lr_decay,
            data.bert_config.num_hidden_layers,
            data.bert_config.num_hidden_groups,
        ),
        summary_dir=config.output_dir,
    )


def _scores(metrics):
    """Returns what is printed of an evaluation: the loss is a mean over batches, and says less."""
    return {k: float(v) for k, v in metrics.items() if k not in ("loss", "global_step")}


def _as_metrics(baselines):
    return {name.replace(" ", "_") + "_baseline": value for name, value in baselines.items()}
