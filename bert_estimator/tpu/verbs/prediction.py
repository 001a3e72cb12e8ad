"""Prediction: yields a model's predictions for each example, in the order of the input.

Under TPU rules all batches must have the same shape, but the last batch is usually smaller. So
batches are padded with rows of zeros. A mask says which rows are real: the step gets it in place of
the labels, and returns it with the predictions.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk
from bert_estimator.tpu import call
from bert_estimator.tpu.spec import EstimatorSpec, TPUEstimatorSpec
from bert_estimator.tpu.step.feeds import EndOfInput
from bert_estimator.tpu.step.inputs import named_leaves
from bert_estimator.tpu.verbs import checkpoints, interrupts
from bert_estimator.tpu.verbs.opened_run import opened_run

_IS_REAL = "_is_real_row"


def predict(
    job,
    step_class: type,
    input_fn: Callable,
    predict_keys: list[str] | None,
    hooks: list[tf.train.SessionRunHook],
    checkpoint_path: str | None,
    yield_single_examples: bool,
) -> Iterator:
    """Returns a generator of the predictions of a job's model (arrays, usually a dict), by example
    or by batch, with the names in `predict_keys` (None or empty: all); it may be closed early."""
    # This is raised at the call, not when the first prediction is asked for.
    checkpoints.check_given(checkpoint_path)
    predictions = _predictions(
        job, step_class, input_fn, predict_keys, hooks, checkpoint_path, yield_single_examples
    )
    # A generator that is left open is closed when the process ends.
    interrupts.close(predictions)
    return predictions


def _predictions(
    job, step_class, input_fn, predict_keys, hooks, checkpoint_path, yield_single_examples
):
    path = checkpoints.given_or_newest(job.config.model_dir, checkpoint_path)
    job = dataclasses.replace(job, model_fn=_predicting(job, predict_keys))
    input_fn = _padded(job, input_fn) if job.tpu_rules else _warning_of_endless(job, input_fn)

    def make_hooks(step):
        checkpoints.warn_if_untrained(path, job, step, "predicting with")
        return [*hooks, *step.spec.prediction_hooks]

    with contextlib.ExitStack() as stack:
        with checkpoints.explaining_loss(path):
            run = stack.enter_context(opened_run(job, step_class, input_fn, path, make_hooks))
        with run.graph.as_default():
            # Between two yields the caller may use other graphs, so the graph is only the default
            # one around each use.
            run.step.start(run.session)
        while not (run.driver.stop_requested or interrupts.began()):
            with run.graph.as_default():
                predictions = _next_batch(run)
            if predictions is None:
                break
            if job.tpu_rules:  # without the rows of the padding, and without the mask
                is_real = predictions.pop(_IS_REAL).astype(bool)
                predictions = {key: value[is_real] for key, value in predictions.items()}
            if yield_single_examples:
                yield from _examples(predictions)
            else:
                yield predictions
        with run.graph.as_default():
            run.step.finish(run.session)
            run.end()


def _next_batch(run):
    """Returns the predictions of the next batch; None at the end of the data, or if a hook stopped
    the prediction before it."""
    step = run.step
    try:
        result = run.driver.around(
            run.session,
            step.spec.predictions,
            lambda hook_run: step.run_loop(1, hook_run, lambda so_far: False),
        )
    except EndOfInput:
        return None
    if result is None:
        return None
    # The prediction comes by a host function, on another thread.
    step.finish(run.session)
    return step.predicted.popleft()


def _predicting(job, predict_keys):
    """Returns a model_fn that calls the job's without labels, and returns chosen predictions; under
    TPU rules, with the mask of `_padded`, which it gets as labels."""

    def model_fn(features, labels, mode, params, config):
        spec = call.call_model_fn(
            job.model_fn, features, None, mode, params, config, job.tpu_params
        )
        # The step says what is wrong with it.
        if not isinstance(spec, EstimatorSpec | TPUEstimatorSpec):
            return spec
        predictions = spec.predictions
        if job.tpu_rules:
            _check_device_predictions(predictions, job.replica_batch_size)
        if predict_keys:
            predictions = _chosen(predictions, predict_keys)
        if job.tpu_rules:
            predictions = {**predictions, _IS_REAL: labels}
        # Every step reports a loss, but a prediction does not have one.
        return spec._replace(predictions=predictions, loss=tf.zeros([]))

    return model_fn


def _chosen(predictions, predict_keys):
    if not isinstance(predictions, dict):
        raise ValueError(
            f"predict_keys={predict_keys!r}: the model's predictions are not a dict, but "
            f"{predictions!r}"
        )
    chosen = {key: value for key, value in predictions.items() if key in predict_keys}
    if not chosen:
        raise ValueError(
            f"predict_keys={predict_keys!r}: none of them is a prediction of the model, which "
            f"gives {sorted(predictions)}"
        )
    return chosen


def _check_device_predictions(predictions, batch_size):
    if not isinstance(predictions, dict):
        raise TypeError(
            "TPUEstimatorSpec.predictions must be a dict of tensors with use_tpu=True, not "
            f"{predictions!r}"
        )
    for key, value in predictions.items():
        shape = tf.convert_to_tensor(value).shape
        # This compares ints, because TF1's Dimension(None) is neither equal to a number nor
        # different from it.
        if not shape.rank or shape.as_list()[0] != batch_size:
            raise ValueError(
                f"predictions[{key!r}] has shape {shape}: with use_tpu=True its first dimension "
                f"must be known, and equal to the batch of one core ({batch_size})"
            )


def _padded(job, input_fn):
    """Returns an input_fn that gives (features, mask), padded to the full batch size; the mask,
    int32 [batch], is 1 for a row of the data, and 0 for a row of padding."""

    def padded_input_fn(mode, params, config):
        data = call.call_input_fn(input_fn, mode, params, config)
        if not call.is_dataset(data):
            raise TypeError(
                "predict needs an input_fn that returns a tf.data.Dataset with use_tpu=True, not "
                f"{type(data).__name__}"
            )
        size = job.input_batch_size

        def pad(*element):
            features, _ = call.split_features_and_labels(
                element[0] if len(element) == 1 else element
            )
            leaves = tf.nest.flatten(features)
            for path, leaf in named_leaves("features", features):
                if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
                    raise ValueError(
                        f"{path}, which input_fn gives, is {leaf}: with use_tpu=True every feature "
                        "must be a dense tensor whose first dimension is the batch"
                    )
            if any(leaf.shape.as_list()[0] == size for leaf in leaves):
                # The batch is whole, and what has other rows is not of its examples.
                return features, tf.ones([size], tf.int32)
            rows = tf.shape(leaves[0])[0]
            too_many = tf.debugging.assert_less_equal(
                rows, size, message=f"input_fn gave a batch of more than {size} rows"
            )
            with tf.control_dependencies([too_many]):
                missing = size - rows

            def pad_rows(tensor):
                filled = tf.pad(tensor, [[0, missing]] + [[0, 0]] * (tensor.shape.rank - 1))
                filled.set_shape([size, *tensor.shape[1:]])
                return filled

            return tf.nest.map_structure(pad_rows, features), pad_rows(tf.ones([rows], tf.int32))

        # AutoGraph would rewrite the function's conditions, which are Python's own.
        data = data.map(tf.autograph.experimental.do_not_convert(pad))
        if job.draws_per_step > 1:
            # The last step takes as many batches as the others. The missing ones are padding.
            empty = tf.nest.map_structure(
                lambda spec: tf.zeros(spec.shape, spec.dtype), data.element_spec
            )
            data = data.concatenate(
                tf.data.Dataset.from_tensors(empty).repeat(job.draws_per_step - 1)
            )
        return data

    return padded_input_fn


def _warning_of_endless(job, input_fn):
    """Returns an input_fn that warns if its data is endless."""

    def warning_input_fn(mode, params, config):
        returned = call.call_input_fn(input_fn, mode, params, config, job.tpu_params)
        if call.is_dataset(returned):
            return returned
        operations = graph_walk.all_before(graph_walk.operations_of(returned))
        # What is read from an iterator, a queue or Python may end.
        if not any(k in o.type for o in operations for k in ("Iterator", "Queue", "PyFunc")):
            tf.logging.warning(
                "Input graph does not use tf.data.Dataset or contain a QueueRunner. That means "
                "predict yields forever: the same batch again and again. Return a Dataset"
            )
        return returned

    return warning_input_fn


def _examples(predictions):
    """Yields the examples of a batch of predictions, a dict or an array."""
    if not isinstance(predictions, dict):
        yield from predictions
        return
    # An array that is a scalar does not have a length.
    lengths = {key: len(value) if np.ndim(value) else None for key, value in predictions.items()}
    if len(set(lengths.values())) > 1 or None in lengths.values():
        raise ValueError(
            "The predictions must have the same batch length to be yielded as examples, but have "
            f"{lengths}: use yield_single_examples=False"
        )
    for row in range(next(iter(lengths.values()), 0)):
        yield {key: value[row] for key, value in predictions.items()}
