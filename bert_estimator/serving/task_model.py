"""A model with a task that a path means: an exported model, or else the checkpoint of its run."""

import threading

from bert_estimator.serving import exported_model
from bert_estimator.serving.commands import BATCH_SIZE, check_batch_size


def find(path: str) -> str:
    """Returns the directory of an exported model, or else a run's checkpoint; see `Predictor`."""
    model = exported_model.find(path)
    if model is None:
        # It loads the network's code, which exported models do without.
        from bert_estimator.serving import checkpoint_model

        model = checkpoint_model.find(path)
    if model is None:
        raise ValueError(
            f"{path} does not hold an exported model: neither it nor its export/ has a "
            "saved_model.pb or model.onnx, or a numbered directory with one of them. Nor is it a "
            "run that was fine-tuned for a task. Export a model: run_classifier.py --do_export"
        )
    return model


class TaskPredictor:
    """Opens a model for texts: what `Predictor` and `AnswerPredictor`, which say more, share."""

    answers_questions = False

    def __init__(self, path: str, batch_size: int = BATCH_SIZE):
        check_batch_size(batch_size)
        self.batch_size = batch_size
        self.export_dir = find(path)
        self._task = exported_model.read_task(self.export_dir)
        if (self._task.reading is not None) != self.answers_questions:
            raise ValueError(
                f"{self.export_dir}: the model's task is {self._task.kind}, which is not for "
                f"{type(self).__name__}; predictor.open_predictor opens models of any task"
            )
        self._tokenizer = self._task.open_tokenizer()
        self.max_seq_length: int = self._task.max_seq_length
        opener = exported_model
        if exported_model.is_checkpoint(self.export_dir):
            from bert_estimator.serving import checkpoint_model as opener
        self._model = opener.open_session(self.export_dir, self._task, batch_size)
        self.most_windows: int | None = None  # of a call; a server sets it
        self.num_cut = 0
        # `+=` of several threads would lose counts.
        self._counting = threading.Lock()

    def close(self) -> None:
        """Closes the model; it cannot be called after that."""
        self._model.session.close()

    def _count(self, num_cut):
        with self._counting:
            self.num_cut += num_cut
