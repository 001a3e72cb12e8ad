"""One fine-tuning run in its directory: train, evaluate, predict, and what is left on disk."""

import itertools
import json
import os
import time

import tensorflow.compat.v1 as tf

from bert_estimator import classification, tpu, update
from bert_estimator.command_line import flags
from bert_estimator.command_line.run_directory import RunDirectory, delivered_best
from bert_estimator.jobs import script_estimator
from bert_estimator.jobs.best_checkpoint import BestCheckpoint

_IDS = ("input_ids", "input_mask", "segment_ids")


class FineTuning:
    """A run of `run_classifier.py`.

    Args:
      config: the script's resolved flags as attributes; `settings` are the same as a dict, and
        `sources` says where each came from.
      master: what to run on, as of `script_estimator.find_cores`.
      bert_config: the network.
      data: the task's features, as of `input_pipelines.task_data.TaskData`.
      input_fn_builder: function of (features, is_training, seed) that returns an `input_fn`.

    Raises:
      FlagError: flags that do not fit the data, the network, or the run in the directory.
    """

    def __init__(self, config, master, bert_config, data, input_fn_builder):
        self._config = config
        self._bert_config = bert_config
        self._data = data
        self._input_fn_builder = input_fn_builder
        self._directory = RunDirectory(config.output_dir)
        rule = None
        if config.do_train:
            flag = next((f for f in ("data_dir", "train_file") if getattr(config, f)), "task_name")
            self._directory.check_config(config.settings, data.digest(), flag)
            rule = self._update_rule()
        flags.check(
            not data.is_pair or bert_config.type_vocab_size > 1,
            "bert_config_file",
            config.bert_config_file,
            "has type_vocab_size 1, but pairs of texts have 2 segments; give a network that was "
            "made for pairs",
        )
        num_labels = len(data.labels) or 1
        weights = config.class_weights and tuple(map(float, config.class_weights.split(",")))
        flags.check(
            not weights or (len(weights) == num_labels and data.kind == "classification"),
            "class_weights",
            config.class_weights,
            f"must be a number for each of the labels {', '.join(data.labels)}",
        )
        self._estimator = script_estimator.make(
            config,
            classification.model_fn_builder(
                bert_config,
                classification.Head(data.kind, num_labels, data.metrics, weights or None),
                rule,
                precision_name=config.precision,
                recompute=config.recompute,
                use_one_hot_embeddings=config.use_one_hot_embeddings,
                random_seed=config.random_seed,
                initial_checkpoint=config.init_checkpoint,
                allow_partial_init=config.allow_partial_init,
            ),
            master,
        )
        if not config.do_train:
            flags.check(
                self._estimator.latest_checkpoint(),
                "output_dir",
                config.output_dir,
                "holds no checkpoint of a fine-tuned network; train first",
            )

    def train(self):
        """Trains to the end, or until patience ends; from the newest checkpoint if there is one."""
        config, directory = self._config, self._directory
        listeners = []
        if config.keep_best_checkpoint or config.early_stopping_patience:
            listeners.append(
                BestCheckpoint(
                    config.output_dir, self._evaluate_newest, config.early_stopping_patience
                )
            )
        start_step = self._estimator.global_step()
        directory.write_network(self._bert_config.to_dict(), self._data.vocab_file, self._task())
        directory.write_config(config.settings, config.sources, self._data.digest())
        directory.forget_metrics_after(start_step)
        ended_by = None
        if start_step >= self._num_train_steps():
            ended_by = "num_train_epochs"
        elif any(each.exhausted for each in listeners):
            ended_by = "early_stopping_patience"
        if ended_by:
            print(
                f"Nothing left to train: {config.output_dir} is at step {start_step}. Give a "
                f"larger --{ended_by} to go on, or another --output_dir to start anew."
            )
            return
        start = time.perf_counter()
        self._estimator.train(
            self._input_fn(self._data.train, is_training=True),
            hooks=[tpu.LogListener(directory.add_metrics)],
            max_steps=self._num_train_steps(),
            saving_listeners=listeners,
        )
        print(f"Training took {time.perf_counter() - start:.0f} s.")

    def evaluate(self, baselines):
        """Evaluates the best checkpoint if one was kept, else the newest; prints what it found.

        Args:
          baselines: dict of name -> accuracy, to be printed beside it.

        Returns:
          A dict of metric -> float.
        """
        found = self._evaluate(self._best())
        self._directory.add_evaluation({**found, **_as_metrics(baselines)})
        _write_lines(
            os.path.join(self._config.output_dir, "eval_results.txt"),
            (f"{name} = {value}" for name, value in sorted(found.items())),
        )
        results = {k: float(v) for k, v in found.items() if k not in ("loss", "global_step")}
        measured = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
        print(f"Evaluation at step {found['global_step']}: {measured}")
        for name, value in baselines.items():
            print(f"  accuracy of {name}: {value:.4f} ({results['accuracy'] - value:+.4f} above)")
        return results

    def predict(self):
        """Writes test_results.tsv: a line for each example, in order; what is predicted in tabs."""
        best = self._best()
        for name, features in self._data.predict.items():
            predictions = self._estimator.predict(self._input_fn(features), checkpoint_path=best)
            path = os.path.join(self._config.output_dir, f"test_results{name and '_' + name}.tsv")
            # The last batch is filled up with examples that are none.
            _write_lines(path, map(_as_line, itertools.islice(predictions, len(features))))
            predictions.close()
            what = "the number"
            if self._data.labels:
                what = f"probabilities of {', '.join(self._data.labels)}"
            print(f"Predictions: {path} ({len(features)} lines: {what})")

    def export(self):
        """Writes a SavedModel with the signature `serving_default`: ids in, predictions out.

        Its inputs are `input_ids`, `input_mask` and `segment_ids`, int32 [any, max_seq_length]; its
        outputs those of `classification.model_fn_builder`. TensorFlow's graphs have no operation
        for Unicode's normal forms, so text is tokenized outside of it. What that needs goes along,
        in `assets.extra`, and `serving.predictor` reads it there: the vocabulary, and `task.json`,
        as `_task` makes it.
        """
        config, data = self._config, self._data
        shape = [None, config.max_seq_length]

        def receiver():
            ids = {name: tf.placeholder(tf.int32, shape, name) for name in _IDS}
            return tpu.serving.ServingInputReceiver(ids, ids)

        task = self._task()
        task_file = os.path.join(config.output_dir, "task.json")
        _write_lines(task_file, [json.dumps(task, indent=2)])
        path = self._estimator.export_saved_model(
            os.path.join(config.output_dir, "export"),
            receiver,
            assets_extra={task["vocab_file"]: data.vocab_file, "task.json": task_file},
            checkpoint_path=self._best(),
        )
        print(f"SavedModel: {path.decode()}")

    def summary(self):
        """Returns where everything is, in words."""
        output_dir = self._config.output_dir
        checkpoint = self._best() or self._estimator.latest_checkpoint()
        return (
            f"Checkpoint: {checkpoint}  summaries: {output_dir}  metrics: "
            f"{self._directory.metrics_path}  curves: {self._directory.write_curves()}"
        )

    def _task(self):
        """Returns the contents of task.json, by which a reader of the weights knows their task:

        kind            one of `classification.KINDS`
        labels          in the order of the outputs' columns
        is_pair         whether an example is a pair of texts
        vocab_file      name of the vocabulary beside it; vocab.model is a SentencePiece model
        do_lower_case   whether text is lower-cased
        max_seq_length  the length in tokens to which examples are cut
        """
        data = self._data
        return {
            "kind": data.kind,
            "labels": data.labels,
            "is_pair": data.is_pair,
            "vocab_file": "vocab.model" if data.vocab_file.endswith(".model") else "vocab.txt",
            "do_lower_case": data.do_lower_case,
            "max_seq_length": self._config.max_seq_length,
        }

    def _best(self):
        """Returns the path of the best checkpoint if the run is to deliver it, else None."""
        return delivered_best(self._config.output_dir)

    def _num_train_steps(self):
        """As google-research/bert counts them: a last part of a batch is no step."""
        config = self._config
        return int(len(self._data.train) / config.train_batch_size * config.num_train_epochs)

    def _update_rule(self):
        config, num_train_steps = self._config, self._num_train_steps()
        flags.check(
            num_train_steps > 0,
            "num_train_epochs",
            config.num_train_epochs,
            f"the {len(self._data.train)} examples make no step of --train_batch_size="
            f"{config.train_batch_size}",
        )
        return update.UpdateRule(
            config.optimizer,
            config.learning_rate,
            num_train_steps,
            min(int(num_train_steps * config.warmup_proportion), num_train_steps - 1),
            micro_batch_size=config.micro_batch_size,
            rate_scale=classification.layerwise_rate_scale(
                config.layerwise_lr_decay, self._bert_config.num_hidden_layers
            ),
            summary_dir=config.output_dir,
        )

    def _input_fn(self, features, is_training=False):
        return self._input_fn_builder(features, is_training, self._config.random_seed)

    def _evaluate(self, checkpoint=None):
        """Results over all files: the first ones by their own names, the others with a prefix."""
        results = {}
        for name, features in self._data.evaluate.items():
            steps = -(-len(features) // self._config.eval_batch_size)
            found = self._estimator.evaluate(
                self._input_fn(features),
                steps=steps,
                checkpoint_path=checkpoint,
                name=name or None,
            )
            if results:
                # The spec's own, a mean over batches, and the step are the first file's.
                del found["loss"], found["global_step"]
                found = {f"{name}_{key}": value for key, value in found.items()}
            results.update(found)
        return results

    def _evaluate_newest(self):
        """For `BestCheckpoint`: (the task's first metric, the newest checkpoint)."""
        results = self._evaluate()
        self._directory.add_evaluation(results)
        return float(results[self._data.metrics[0]]), self._estimator.latest_checkpoint()


def _as_metrics(baselines):
    return {name.replace(" ", "_") + "_baseline": value for name, value in baselines.items()}


def _as_line(prediction):
    values = prediction.get("probabilities", prediction["logits"])
    return "\t".join(str(float(value)) for value in values)


def _write_lines(path, lines):
    """Writes the lines, all of them or none."""
    with open(path + ".tmp", "w", encoding="utf-8") as writer:
        writer.writelines(line + "\n" for line in lines)
    os.replace(path + ".tmp", path)
