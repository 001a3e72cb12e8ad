"""Exporters, which decide after each evaluation of `train_and_evaluate` whether to export."""

import abc
import os
import re

import tensorflow.compat.v1 as tf

from bert_estimator.tpu import summary
from bert_estimator.tpu.call import argument_names
from bert_estimator.tpu.verbs import checkpoints

_COMPARED = {"best_eval_result", "current_eval_result"}


class Exporter(abc.ABC):
    """Exports a model after the evaluations of an `EvalSpec`."""

    @property
    @abc.abstractmethod
    def name(self):
        """The name of the directory below `<model_dir>/export`."""

    @abc.abstractmethod
    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        """Exports a checkpoint, or decides against it.

        Args:
          estimator: the `Estimator`.
          export_path: the directory to export to.
          checkpoint_path: the checkpoint that was evaluated.
          eval_result: the dict that `evaluate` returned for it.
          is_the_final_export: whether training has ended.

        Returns:
          The directory of the SavedModel, or None if nothing was exported.
        """


class _SavedModelExporter(Exporter):
    """Writes SavedModels to `<model_dir>/export/<name>`, and keeps the newest `exports_to_keep`
    (None: all)."""

    def __init__(
        self,
        name,
        serving_input_receiver_fn,
        assets_extra=None,
        as_text=False,
        exports_to_keep=None,
    ):
        if exports_to_keep is not None and exports_to_keep <= 0:
            raise ValueError(
                f"exports_to_keep must be a positive number or None, not {exports_to_keep}"
            )
        self._name = name
        self._serving_input_receiver_fn = serving_input_receiver_fn
        self._assets_extra = assets_extra
        self._as_text = as_text
        self._exports_to_keep = exports_to_keep

    @property
    def name(self):
        return self._name

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        exported = estimator.export_saved_model(
            export_path,
            self._serving_input_receiver_fn,
            assets_extra=self._assets_extra,
            as_text=self._as_text,
            checkpoint_path=checkpoint_path,
        )
        if self._exports_to_keep is not None:
            for name in _exports(export_path)[: -self._exports_to_keep]:
                tf.io.gfile.rmtree(os.path.join(export_path, name))
        return exported


def _exports(export_path):
    """Returns the names of the exports in a directory, the oldest first."""
    # export_saved_model names its directories by the time, in seconds.
    return [n for n in checkpoints.names_in(export_path) if re.fullmatch(r"\d{10}", n)]


class LatestExporter(_SavedModelExporter):
    """Exports after every evaluation, and keeps the newest exports."""

    def __init__(
        self, name, serving_input_receiver_fn, assets_extra=None, as_text=False, exports_to_keep=5
    ):
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)


class FinalExporter(_SavedModelExporter):
    """Exports once, at the end of training."""

    def __init__(self, name, serving_input_receiver_fn, assets_extra=None, as_text=False):
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        if not is_the_final_export:
            return None
        return super().export(
            estimator, export_path, checkpoint_path, eval_result, is_the_final_export
        )


def _loss_smaller(best_eval_result, current_eval_result):
    for name, result in (
        ("best_eval_result", best_eval_result),
        ("current_eval_result", current_eval_result),
    ):
        if not result or "loss" not in result:
            raise ValueError(f"{name} does not have a loss to compare: {result!r}")
    return best_eval_result["loss"] > current_eval_result["loss"]


class BestExporter(_SavedModelExporter):
    """Exports after the first evaluation, and after each evaluation that is the best so far.

    Args:
      event_file_pattern: pattern of event files, relative to model_dir, from which a resumed
        training reads the results of evaluations of earlier steps. None means that they are not
        read. As in upstream, an exporter that has not exported anything yet exports its first
        evaluation anyway, which counts as the best from then on.
      compare_fn: function of `best_eval_result` and `current_eval_result`, which are dicts as
        `evaluate` returns them. It returns whether the second one is better. By default the
        smaller loss is better.

    Raises:
      ValueError: compare_fn has other arguments, or exports_to_keep is not positive.
    """

    def __init__(
        self,
        name="best_exporter",
        serving_input_receiver_fn=None,
        event_file_pattern="eval/*.tfevents.*",
        compare_fn=_loss_smaller,
        assets_extra=None,
        as_text=False,
        exports_to_keep=5,
    ):
        if compare_fn is None:
            raise ValueError("compare_fn must be given")
        arguments = set(argument_names(compare_fn))
        if arguments != _COMPARED:
            raise ValueError(
                f"compare_fn must take {sorted(_COMPARED)}, but takes {sorted(arguments)}"
            )
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        self._event_file_pattern = event_file_pattern
        self._compare_fn = compare_fn
        self._best, self._model_dir, self._has_exported = None, None, False

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        if self._event_file_pattern and self._model_dir != estimator.model_dir:
            self._model_dir = estimator.model_dir
            # The evaluation of this step is among the events, perhaps of a killed process too.
            self._best = self._best_of_events((eval_result or {}).get(tf.GraphKeys.GLOBAL_STEP))
            # As in upstream, the first evaluation of an exporter that has not exported is exported.
            self._has_exported = self._best is not None and bool(_exports(export_path))
        results = {"best_eval_result": self._best, "current_eval_result": eval_result}
        if self._best is not None and self._has_exported and not self._compare_fn(**results):
            return None
        self._best, self._has_exported = eval_result, True
        return super().export(
            estimator, export_path, checkpoint_path, eval_result, is_the_final_export
        )

    def _best_of_events(self, before_step):
        """Returns the best of the evaluations of earlier steps, or None."""
        pattern = os.path.join(self._model_dir, self._event_file_pattern)
        best = None
        for step, result in summary.read_events(pattern).items():
            if before_step is not None and step >= before_step:
                # The events are in the order of the steps.
                break
            if best is None or self._compare_fn(best_eval_result=best, current_eval_result=result):
                best = result
        return best
