"""Scenarios of `predict`: what it yields, in which form, from which weights; refusals."""

import os

import numpy as np
import tensorflow.compat.v1 as tf
from harness import (
    Told,
    dataset,
    make_estimator,
    make_input_fn,
    make_model_fn,
    outcome,
    plain,
    scenario,
    table,
    warnings_of_tensorflow,
)


def by_name(graph):
    both = tf.stack([graph.predictions, -graph.predictions], axis=1)
    return {"predictions": {"y": graph.predictions, "both": both}}


def by_tensor(graph):
    return {"predictions": graph.predictions}


def uneven(graph):
    return {"predictions": {"y": graph.predictions, "one": graph.weight[None]}}


def scalar(graph):
    return {"predictions": {"y": graph.predictions, "w": tf.identity(graph.weight)}}


def make(api, folder, fields=by_name, log=None, **keywords):
    model_fn = make_model_fn(api, log, fields)
    return make_estimator(api, folder, model_fn, predict_batch_size=4, **keywords)


def values(prediction):
    if isinstance(prediction, dict):
        return {key: np.asarray(value).tolist() for key, value in sorted(prediction.items())}
    return np.asarray(prediction).tolist()


@table(
    full_batches={"examples": 8},
    partial_last_batch={"examples": 6},
    partial_only_batch={"examples": 3},
    no_example={"examples": 0},
    tensor={"examples": 6, "fields": by_tensor},
    batches={"examples": 6, "yield_single_examples": False},
    tensor_in_batches={"examples": 6, "fields": by_tensor, "yield_single_examples": False},
    uneven_batches={"examples": 6, "fields": uneven, "yield_single_examples": False},
    scalar_batches={"examples": 6, "fields": scalar, "yield_single_examples": False},
    one_key={"examples": 6, "predict_keys": ["y"]},
    one_key_as_text={"examples": 6, "predict_keys": "y"},
    a_key_of_several_is_there={"examples": 6, "predict_keys": ["y", "z"]},
    no_keys={"examples": 6, "predict_keys": []},
)
def yields(api, folder, examples, fields=by_name, **arguments):
    calls, params = [], []
    estimator = make(api, folder, fields, calls)
    found = []
    result = outcome(
        lambda: found.extend(
            values(each) for each in estimator.predict(make_input_fn(examples, params), **arguments)
        )
    )
    for each in params:
        each.pop("context", None)
    return {**result, "found": found, "model_fn": calls, "input_fn": params}


@table(
    lengths_differ={"fields": uneven},
    scalar={"fields": scalar},
    keys_of_no_dict={"fields": by_tensor, "predict_keys": ["y"]},
    keys_not_there={"predict_keys": ["z"], "says": ["z"]},
    no_predictions={"fields": lambda graph: {"predictions": None}},
)
def refuses(api, folder, fields=by_name, says=(), **arguments):
    estimator = make(api, folder, fields)
    return outcome(lambda: list(estimator.predict(make_input_fn(6), **arguments)), says)


@table(
    hook={"arguments": {"hooks": ["a hook"]}},
    checkpoint={"arguments": {"checkpoint_path": "nowhere"}},
    input_without_params={"input_fn": lambda: dataset(4, 4)},
)
def refuses_arguments(api, folder, arguments=(), input_fn=None):
    estimator = make(api, folder)
    return outcome(lambda: list(estimator.predict(input_fn or make_input_fn(4), **dict(arguments))))


@table(
    features_alone={"labels": False},
    features_and_labels={"labels": True},
)
def labels_are_dropped(api, folder, labels):
    seen = []

    def model_fn(features, labels, mode, params):
        seen.append([plain(labels), params.get("batch_size")])
        return api.TPUEstimatorSpec(mode, predictions={"x": features["x"]})

    estimator = make_estimator(api, folder, model_fn, predict_batch_size=4)
    found = estimator.predict(lambda params: dataset(2, 4, labels))
    return {"found": [values(each) for each in found], "seen": seen}


@scenario
def tensors_as_input(api, folder):
    def input_fn(params):
        return {"x": tf.constant([1.0, 2.0])}

    predictions = make(api, folder).predict(input_fn)
    return [values(next(predictions))["y"] for _ in range(5)]


@table(
    tensors={"input_fn": lambda: tf.constant([1.0, 2.0])},
    dataset={"input_fn": lambda: tf.data.Dataset.from_tensors(tf.constant([1.0, 2.0])).repeat()},
)
def endless(api, folder, input_fn):
    """Only an input_fn that returns tensors makes Estimator warn."""

    def model_fn(features, mode):
        return api.EstimatorSpec(mode, predictions=features * tf.get_variable("w", initializer=2.0))

    predictions = api.Estimator(model_fn, config=api.RunConfig(model_dir=folder)).predict(input_fn)
    with warnings_of_tensorflow() as texts:
        found = [float(next(predictions)) for _ in range(3)]
    phrase = "Input graph does not use tf.data.Dataset or contain a QueueRunner"
    return {"found": found, "warned": any(phrase in text for text in texts)}


@table(newest={"steps": None}, earlier={"steps": 2})
def from_checkpoint(api, folder, steps):
    estimator = make(api, folder, config={"save_checkpoints_steps": 2})
    estimator.train(make_input_fn(), steps=4)
    path = steps and os.path.join(folder, f"model.ckpt-{steps}")
    found = estimator.predict(make_input_fn(2), checkpoint_path=path)
    return [values(each)["y"] for each in found]


@table(to_the_end={"taken": None}, closed_early={"taken": 2})
def hooks(api, folder, taken):
    log = []

    def fields(graph):
        return {**by_name(graph), "prediction_hooks": [Told("of_spec", log)]}

    estimator = make(api, folder, fields)
    predictions = estimator.predict(make_input_fn(6), hooks=[Told("of_call", log)])
    for _ in predictions if taken is None else range(taken):
        next(predictions, None)
    predictions.close()
    return log


@scenario
def a_hook_stops_it(api, folder):
    class Stops(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            run_context.request_stop()

    return len(list(make(api, folder).predict(make_input_fn(16), hooks=[Stops()])))


@scenario
def plain_spec(api, folder):
    def model_fn(features, mode, params):
        return api.EstimatorSpec(mode, predictions={"x": features["x"]})

    estimator = make_estimator(api, folder, model_fn)
    return [values(each) for each in estimator.predict(lambda params: dataset(3, 2, labels=False))]


@scenario
def files_left(api, folder):
    list(make(api, folder).predict(make_input_fn(4)))
    return sorted(os.listdir(folder))
