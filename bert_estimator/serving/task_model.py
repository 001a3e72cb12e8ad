"""A model with a task that a path means: an exported model, or else the checkpoint of its run."""

from bert_estimator.serving import exported_model
from bert_estimator.serving.exported_model import OpenModel, TextTask


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


def open_session(model: str, task: TextTask, batch_size: int) -> OpenModel:
    """Opens what `find` returns; see `exported_model.open_session`."""
    if exported_model.is_checkpoint(model):
        from bert_estimator.serving import checkpoint_model

        return checkpoint_model.open_session(model, task, batch_size)
    return exported_model.open_session(model, task, batch_size)
