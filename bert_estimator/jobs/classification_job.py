"""Fine-tuning: the runs of run_classifier.py, which train, evaluate, predict and export."""

import functools
import itertools
import json
import os
import statistics
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from bert_estimator import atomic_file, classification, tagging, tpu, update
from bert_estimator.command_line import flags
from bert_estimator.errors import GREATEST
from bert_estimator.jobs import classification_data, compile_only, estimator
from bert_estimator.jobs.best_checkpoint import BestCheckpoint
from bert_estimator.jobs.classification_config import ClassificationConfig
from bert_estimator.jobs.run import Run, locked
from input_pipelines import features_input
from input_pipelines.task_data import TaskData

_IDS = ("input_ids", "input_mask", "segment_ids")


def run(configs: Sequence[ClassificationConfig]) -> None:
    """Runs one seed after the other, and prints how far the results of several seeds spread.

    Args:
      configs: list of `ClassificationConfig`.

    Raises:
      FlagError: a configuration does not fit its data, its cores, or the run in its directory.
      lock.InUseError: another process trains in a directory of these.
      SystemExit: --compile_only, and the step does not fit the TPU's memory.
    """
    if configs[0].compile_only:
        if not compile_step(configs[0]):
            raise SystemExit(1)
        return
    with locked(configs):
        results = [FineTuning(config).run() for config in configs]
    for name in results[0] if len(results) > 1 else ():
        values = [result[name] for result in results]
        print(
            f"{name} of {len(values)} seeds: median {statistics.median(values):.4f} "
            f"({min(values):.4f} to {max(values):.4f})"
        )


class FineTuning:
    """Runs a fine-tuning, once its flags and files have been checked.

    Args:
      config: its `ClassificationConfig`.

    Raises:
      FlagError: flags that do not fit the data, the network, the cores, or the run in the
        directory.
    """

    def __init__(self, config: ClassificationConfig):
        directory = config.open_directory()
        self._config, master = estimator.find_cores(config)
        config = self._config
        self._data = classification_data.load(config)
        self._task = self._data.task
        if config.do_train:
            names = ("data_dir", "train_file")
            flag = next((name for name in names if getattr(config, name)), "task_name")
            directory.check_config(config.settings_to_go_on(), self._task.digest(), flag)
        self._run = Run(config, directory, _estimator(config, self._data, master))
        if not config.do_train:
            self._check_is_trained()

    def _check_is_trained(self):
        """Checks that there is a fine-tuned network to evaluate, here or in --init_checkpoint."""
        config, elsewhere = self._config, self._run.only_reads_elsewhere()
        if elsewhere:
            flags.check(
                tf.train.load_checkpoint(elsewhere).has_tensor("output_weights"),
                "init_checkpoint",
                config.init_checkpoint,
                "holds a network that was not fine-tuned; add --do_train",
            )
            return
        flags.check(
            self._run.estimator.latest_checkpoint(),
            "output_dir",
            config.output_dir,
            "holds no checkpoint of a fine-tuned network; train first, or name the fine-tuned "
            "network with --init_checkpoint",
        )

    def run(self) -> dict[str, float]:
        """Trains, evaluates, predicts and exports, as the flags say; prints the results.

        Returns:
          What evaluation found, as a dict of metric -> float; empty without --do_eval.
        """
        config = self._config
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
        """Trains from the newest checkpoint, or from step 0, to the end or until patience ends."""
        config, directory = self._config, self._run.directory
        directory.write_network(
            self._data.bert_config.to_dict(), self._task.vocab_file, _task_of(config, self._task)
        )
        corners = _update_rule(config, self._data).corners()
        directory.write_config(config.settings(), config.sources, self._task.digest(), corners)
        directory.forget_metrics_after(self._run.estimator.global_step())
        best_checkpoint = None
        if config.evaluates_while_training():
            best_checkpoint = BestCheckpoint(config, self._evaluate_newest)
        self._run.train(
            functools.partial(_input_fn, config, self._task.train, True),
            num_train_steps(config, self._task),
            "num_train_epochs",
            best_checkpoint,
        )

    def evaluate(self) -> dict[str, float]:
        """Evaluates the best checkpoint if the run kept it, else the newest; prints the results.

        Returns:
          A dict of metric -> float.
        """
        found, baselines = self._evaluate(self._run.best()), self._data.baselines()
        self._run.directory.add_evaluation({**found, **_as_metrics(baselines)})
        _write_lines(
            os.path.join(self._config.output_dir, "eval_results.txt"),
            (f"{name} = {value}" for name, value in sorted(found.items())),
        )
        results = {k: float(v) for k, v in found.items() if k not in ("loss", "global_step")}
        measured = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
        print(f"Evaluation at step {found['global_step']}: {measured}")
        for name, value in baselines.items():
            metric = self._data.baseline_metric
            print(f"  {metric} of {name}: {value:.4f} ({results[metric] - value:+.4f} above)")
        return results

    def predict(self) -> None:
        """Writes test_results.tsv, which has a line for each example, in order.

        A line has the probabilities of the labels with tabs between them, or the number. Predicted
        tags go into a file in the format of the sentences, as `tag_files.tagged_lines` says.
        """
        best = self._run.best()
        for name, features in self._task.predict.items():
            predictions = self._run.estimator.predict(
                self._input_fn(features), checkpoint_path=best
            )
            # The last batch is padded with rows that are not examples.
            rows = itertools.islice(predictions, len(features))
            path = os.path.join(self._config.output_dir, f"test_results{name and '_' + name}")
            if self._task.write_tags:
                path += self._task.tags_extension
                _write_lines(path, self._task.write_tags(_tags(self._task, features, rows)))
                what = f"{features.num_sentences} sentences with their tags"
            else:
                path += ".tsv"
                _write_lines(path, map(_as_line, rows))
                labels = self._task.labels
                probabilities = f"probabilities of {', '.join(labels)}"
                what = f"{len(features)} lines: {probabilities if labels else 'the number'}"
            predictions.close()
            print(f"Predictions: {path} ({what})")

    def export(self) -> None:
        """Writes a SavedModel with the signature `serving_default`: ids in, predictions out.

        Its inputs are `input_ids`, `input_mask` and `segment_ids`, int32 [any, max_seq_length]; its
        outputs are the predictions of `classification.model_fn_builder`. TensorFlow's graphs do not
        have an operation for Unicode's normal forms, so text is tokenized outside of the model. The
        tokenizer of `serving.predictor` finds what it needs in `assets.extra`: the vocabulary, and
        `task.json`, which `_task_of` makes.
        """
        config = self._config
        shape = [None, config.max_seq_length]

        def receiver():
            ids = {name: tf.placeholder(tf.int32, shape, name) for name in _IDS}
            return tpu.serving.ServingInputReceiver(ids, ids)

        task = _task_of(config, self._task)
        task_file = os.path.join(config.output_dir, "task.json")
        _write_lines(task_file, [json.dumps(task, indent=2)])
        self._run.export(
            receiver,
            assets_extra={task["vocab_file"]: self._task.vocab_file, "task.json": task_file},
        )

    def _input_fn(self, features):
        return _input_fn(self._config, features, is_training=False)

    def _evaluate(self, checkpoint=None):
        """Evaluates on all files of the task.

        Returns:
          A dict of metric -> value. Metrics of the first file have their own names; before names
          of metrics of the other files stands the name of the file.
        """
        results = {}
        for name, features in self._task.evaluate.items():
            steps = -(-len(features) // self._config.eval_batch_size)
            found = self._run.estimator.evaluate(
                self._input_fn(features),
                steps=steps,
                checkpoint_path=checkpoint,
                name=name or None,
            )
            if results:
                # The spec's loss, a mean over batches, and the step are reported once.
                del found["loss"], found["global_step"]
                found = {f"{name}_{key}": value for key, value in found.items()}
            results.update(found)
        return results

    def _evaluate_newest(self):
        """Returns (the task's first metric, the newest checkpoint), for `BestCheckpoint`."""
        results = self._evaluate()
        self._run.directory.add_evaluation(results)
        newest = self._run.estimator.latest_checkpoint()
        return float(results[self._task.metrics[0]]), newest


def compile_step(config: ClassificationConfig) -> bool:
    """Compiles the training step for a TPU that need not be there.

    The task is read for its labels and for the number of its examples.

    Returns:
      Whether it fits the memory of a core.
    """
    data = classification_data.load(config)

    def lower(changed, cores):
        input_fn = _input_fn(changed, data.task.train, is_training=True)
        return _estimator(changed, data).lower(input_fn, cores)

    return compile_only.run(config, lower, num_train_steps(config, data.task))


def num_train_steps(config: ClassificationConfig, task: TaskData) -> int:
    """Returns the steps of the training, as google-research/bert counts them.

    Examples that do not fill a last batch do not make a step.
    """
    steps = len(task.train) / config.train_batch_size * config.num_train_epochs
    epochs = config.num_train_epochs
    rule = f"gives {steps:g} steps, more than {GREATEST}"
    flags.check(steps <= GREATEST, "num_train_epochs", epochs, rule)
    return int(steps)


def _task_of(config, task):
    """Returns the contents of task.json, which tells a reader of the weights what their task is:

    kind            one of `choices.TASK_KINDS`
    labels          in the order of the outputs' columns
    is_pair         whether an example is a pair of texts
    vocab_file      name of the vocabulary beside it; vocab.model is a SentencePiece model
    do_lower_case   whether text is lower-cased
    max_seq_length  the length in tokens to which examples are cut
    """
    return {
        "kind": task.kind,
        "labels": task.labels,
        "is_pair": task.is_pair,
        "vocab_file": "vocab.model" if task.vocab_file.endswith(".model") else "vocab.txt",
        "do_lower_case": task.do_lower_case,
        "max_seq_length": config.max_seq_length,
    }


def _input_fn(config, features, is_training, skipped=()):
    seed = config.random_seed
    return features_input.input_fn_builder(features, is_training, seed, skipped)


def _estimator(config, data, master=""):
    task = data.task
    flags.check(
        not task.is_pair or data.bert_config.type_vocab_size > 1,
        "bert_config_file",
        config.bert_config_file,
        "has type_vocab_size 1, but pairs of texts have 2 segments; give a network that was made "
        "for pairs",
    )
    num_labels = len(task.labels) or 1
    weights = config.class_weights and tuple(map(float, config.class_weights.split(",")))
    flags.check(
        not weights or (len(weights) == num_labels and task.kind in ("classification", "tagging")),
        "class_weights",
        config.class_weights,
        f"must be a number for each of the labels {', '.join(task.labels)}",
    )
    head = (task.kind, num_labels, task.metrics, weights or None)
    is_tagging = task.kind == "tagging"
    model_fn = classification.model_fn_builder(
        data.bert_config,
        tagging.TaggingHead(*head, task.labels) if is_tagging else classification.Head(*head),
        _update_rule(config, data) if config.do_train or config.compile_only else None,
        precision=config.precision,
        recompute=config.recompute,
        use_one_hot_embeddings=config.use_one_hot_embeddings,
        random_seed=config.random_seed,
        init_checkpoint=config.init_checkpoint,
        allow_partial_init=config.allow_partial_init,
    )
    return estimator.make(config, model_fn, master)


def _update_rule(config, data):
    steps = num_train_steps(config, data.task)
    flags.check(
        steps > 0,
        "num_train_epochs",
        config.num_train_epochs,
        f"the {len(data.task.train)} examples make no step of --train_batch_size="
        f"{config.train_batch_size}",
    )
    return update.UpdateRule(
        config.optimizer,
        config.learning_rate,
        steps,
        min(int(steps * config.warmup_proportion), steps - 1),
        micro_batch_size=config.micro_batch_size,
        rate_scale=classification.layerwise_rate_scale(
            config.layerwise_lr_decay, data.bert_config.num_hidden_layers
        ),
        summary_dir=config.output_dir,
    )


def _as_metrics(baselines):
    return {name.replace(" ", "_") + "_baseline": value for name, value in baselines.items()}


def _tags(task, features, predictions):
    """Returns the predicted tags of the words of each sentence."""
    numbers = features.by_sentence([row["logits"].argmax(axis=-1) for row in predictions])
    return [[task.labels[number] for number in sentence] for sentence in numbers]


def _as_line(prediction):
    values = prediction.get("probabilities", prediction["logits"])
    return "\t".join(str(float(value)) for value in values)


def _write_lines(path, lines):
    with atomic_file.writer(path) as writer:
        writer.writelines(line + "\n" for line in lines)
