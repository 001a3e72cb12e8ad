"""Scenarios of `evaluate`: what it returns, how long it runs, from what, and what it leaves."""

import os

import tensorflow.compat.v1 as tf
from harness import (
    Recorder,
    Told,
    build,
    dataset,
    event_tags,
    make_estimator,
    make_input_fn,
    make_model_fn,
    numbers,
    outcome,
    scenario,
    table,
)


def metric_fn(predictions, labels):
    return {
        "mean_prediction": tf.metrics.mean(predictions),
        "squared_error": tf.metrics.mean_squared_error(labels, predictions),
    }


def by_list(graph):
    return {"eval_metrics": (metric_fn, [graph.predictions, graph.labels])}


def by_tuple(graph):
    return {"eval_metrics": (metric_fn, (graph.predictions, graph.labels))}


def by_dict(graph):
    return {"eval_metrics": (metric_fn, {"labels": graph.labels, "predictions": graph.predictions})}


def by_other_names(graph):
    return {"eval_metrics": (metric_fn, {"truth": graph.labels, "guess": graph.predictions})}


def without(graph):
    return {}


@table(
    list={"fields": by_list},
    tuple={"fields": by_tuple},
    dict={"fields": by_dict},
    none={"fields": without},
    partial_last_batch={"fields": by_list, "examples": 10},
    partial_only_batch={"fields": by_list, "examples": 3},
    data_ends_before_steps={"fields": by_list, "examples": 6, "steps": 5},
    steps_end_before_data={"fields": by_list, "examples": 40, "steps": 2},
    until_data_ends={"fields": by_list, "examples": 16, "steps": None},
    one_step={"fields": by_list, "steps": 1},
)
def results(api, folder, fields, examples=None, steps="unset"):
    if steps == "unset":
        steps = 3 if examples is None else None
    calls, recorder = [], Recorder()
    estimator = make_estimator(api, folder, make_model_fn(api, calls, fields))
    results = estimator.evaluate(make_input_fn(examples), steps=steps, hooks=[recorder])
    return {
        "results": numbers(results),
        "hook": recorder.observed(),
        "modes": [call["mode"] for call in calls],
    }


@scenario
def metric_arguments_of_other_names(api, folder):
    estimator = make_estimator(api, folder, make_model_fn(api, fields=by_other_names))
    return outcome(lambda: estimator.evaluate(make_input_fn(), steps=1))


@table(loss={"name": "loss"}, global_step={"name": "global_step"})
def metric_of_a_taken_name(api, folder, name):
    def fields(graph):
        return {
            "eval_metrics": (
                lambda predictions: {name: tf.metrics.mean(predictions)},
                [graph.predictions],
            )
        }

    estimator = make_estimator(api, folder, make_model_fn(api, fields=fields))
    return outcome(lambda: estimator.evaluate(make_input_fn(), steps=1), says=[name])


@scenario
def metric_fn_returns_a_tensor(api, folder):
    def fields(graph):
        return {"eval_metrics": (lambda labels: {"mean": tf.reduce_mean(labels)}, [graph.labels])}

    estimator = make_estimator(api, folder, make_model_fn(api, fields=fields))
    return outcome(lambda: estimator.evaluate(make_input_fn(), steps=1), says=["mean"])


@scenario
def vector_metric(api, folder):
    def fields(graph):
        return {
            "eval_metrics": (
                lambda low, high: {"both": tf.metrics.mean_tensor(tf.stack([low, high]))},
                [tf.reduce_min(graph.labels), tf.reduce_max(graph.labels)],
            )
        }

    estimator = make_estimator(api, folder, make_model_fn(api, fields=fields))
    results = estimator.evaluate(make_input_fn(), steps=2)
    return {"both": results["both"].tolist(), "tags": event_tags(os.path.join(folder, "eval"))}


def keras():
    """Keras's metrics of the TF1 style: a package of its own since TensorFlow 2.16."""
    try:
        import tf_keras
    except ImportError:
        return tf.keras
    return tf_keras


def keras_metric_fn(predictions, labels):
    metrics = {"mean": keras().metrics.Mean(), "sum": keras().metrics.Sum(name="total")}
    for metric in metrics.values():
        metric.update_state(predictions)
    metrics["error"] = keras().metrics.RootMeanSquaredError()
    metrics["error"].update_state(labels, predictions)
    return {**metrics, "pair": tf.metrics.mean(predictions)}


def with_estimator_spec(api, metrics):
    """A model_fn that returns an EstimatorSpec with metrics, made by a function of the graph."""

    def model_fn(features, labels, mode, params):
        graph = build(features, labels, mode)
        ops = metrics(graph)
        return api.EstimatorSpec(mode, loss=graph.loss, eval_metric_ops=ops)

    return model_fn


@table(tpu_spec={}, estimator_spec={"of_estimator": True})
def keras_metrics(api, folder, of_estimator=False):
    """Evaluates before and after a training: checkpoints do not have the metrics' variables."""

    def fields(graph):
        return {"eval_metrics": (keras_metric_fn, [graph.predictions, graph.labels])}

    def of(graph):
        return keras_metric_fn(graph.predictions, graph.labels)

    model_fn = with_estimator_spec(api, of) if of_estimator else make_model_fn(api, fields=fields)
    estimator = make_estimator(api, folder, model_fn)
    collections = Collections()
    first = estimator.evaluate(make_input_fn(), steps=3, hooks=[collections])
    make_estimator(api, folder).train(make_input_fn(), steps=1)
    second = estimator.evaluate(make_input_fn(), steps=3)
    return {
        "results": [numbers(first), numbers(second)],
        "variables": collections.observed,
        "tags": event_tags(os.path.join(folder, "eval")),
    }


class Collections(tf.train.SessionRunHook):
    """Notes how many variables there are, by collection."""

    def begin(self):
        names = [tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.TRAINABLE_VARIABLES]
        self.observed = {name: len(tf.get_collection(name)) for name in names}


@table(
    not_updated={"make": lambda x: keras().metrics.Mean(name="average")},
    number={"make": lambda x: 1.0},
    list={"make": lambda x: [x, x]},
    triple={"make": lambda x: (x, x, x)},
)
def metric_refused(api, folder, make):
    model_fn = with_estimator_spec(api, lambda graph: {"m": make(graph.loss)})
    estimator = make_estimator(api, folder, model_fn)
    phrases = [
        'Please call update_state(...) on the "average" metric',
        "Values of eval_metric_ops must be (metric_value, update_op) tuples",
    ]
    return outcome(lambda: estimator.evaluate(make_input_fn(), steps=1), phrases)


def plainly(value):
    """Returns a result as JSON values."""
    if isinstance(value, dict):
        return {key: plainly(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [type(value).__name__, *(plainly(each) for each in value)]
    return value.tolist()


@table(
    dict={"nest": lambda a, b: {"a": a, "b": b}},
    tuple={"nest": lambda a, b: (a, b)},
    deep={"nest": lambda a, b: {"a": [a, {"b": b}]}},
)
def nested_metric(api, folder, nest):
    def metric(graph):
        first = tf.metrics.mean(graph.predictions)
        second = tf.metrics.mean(graph.labels)
        return {"nested": (nest(first[0], second[0]), (first[1], second[1]))}

    estimator = make_estimator(api, folder, with_estimator_spec(api, metric))
    results = estimator.evaluate(make_input_fn(), steps=2)
    return {
        "results": {key: plainly(results[key]) for key in ("loss", "nested")},
        "tags": event_tags(os.path.join(folder, "eval")),
    }


class EvalSteps(tf.train.SessionRunHook):
    """Notes the eval step after each run."""

    def __init__(self):
        self.seen = []

    def begin(self):
        (self._step,) = tf.get_collection(tf.GraphKeys.EVAL_STEP)

    def after_run(self, run_context, run_values):
        self.seen.append(int(run_context.session.run(self._step)))


@table(of_spec={"of_spec": True}, of_call={"of_spec": False})
def eval_step(api, folder, of_spec):
    """Counted from 1, and given to TensorFlow's own hook, which ends the evaluation."""
    steps = EvalSteps()
    hooks = [steps, stop_after_n_evals(3)]
    fields = (lambda graph: {"evaluation_hooks": hooks}) if of_spec else None
    estimator = make_estimator(api, folder, make_model_fn(api, fields=fields))
    results = estimator.evaluate(make_input_fn(), steps=8, hooks=None if of_spec else hooks)
    return {"seen": steps.seen, "results": numbers(results)}


def stop_after_n_evals(number):
    from tensorflow.python.training import evaluation

    return evaluation._StopAfterNEvalsHook(number)


@scenario
def no_checkpoint(api, folder):
    """Initial values are evaluated, at step 0, and no checkpoint is written."""
    estimator = make_estimator(api, folder)
    results = estimator.evaluate(make_input_fn(), steps=2)
    return {"results": numbers(results), "files": sorted(os.listdir(folder))}


@scenario
def no_data(api, folder):
    estimator = make_estimator(api, folder)
    results = {}
    failure = outcome(lambda: results.update(estimator.evaluate(make_input_fn(0))))
    return {**failure, "results": numbers(results)}


@scenario
def does_not_train(api, folder):
    estimator = make_estimator(api, folder)
    estimator.train(make_input_fn(), steps=2)
    before = sorted(os.listdir(folder))
    first = estimator.evaluate(make_input_fn(), steps=3)
    second = estimator.evaluate(make_input_fn(), steps=3)
    return {
        "same": numbers(first) == numbers(second),
        "new_files": sorted(set(os.listdir(folder)) - set(before)),
    }


@scenario
def between_trainings(api, folder):
    estimator = make_estimator(api, folder)
    losses = []
    for _ in range(2):
        estimator.train(make_input_fn(), steps=1)
        losses.append(numbers(estimator.evaluate(make_input_fn(), steps=2)))
    return {"results": losses}


@scenario
def checkpoint_path(api, folder):
    """Evaluates an older checkpoint, and a checkpoint in another directory."""
    estimator = make_estimator(api, folder, config={"save_checkpoints_steps": 2})
    estimator.train(make_input_fn(), steps=4)
    path = os.path.join(folder, "model.ckpt-2")
    other = make_estimator(api, os.path.join(folder, "other"))
    return {
        "older": numbers(estimator.evaluate(make_input_fn(), steps=1, checkpoint_path=path)),
        "elsewhere": numbers(other.evaluate(make_input_fn(), steps=1, checkpoint_path=path)),
    }


@scenario
def checkpoint_path_does_not_exist(api, folder):
    estimator = make_estimator(api, folder)
    estimator.train(make_input_fn(), steps=1)
    path = os.path.join(folder, "model.ckpt-7")
    return outcome(
        lambda: estimator.evaluate(make_input_fn(), steps=1, checkpoint_path=path),
        says=["model.ckpt-7"],
    )


@scenario
def checkpoint_does_not_fit(api, folder):
    make_estimator(api, folder).train(make_input_fn(), steps=1)

    def fields(graph):
        tf.get_variable("more", shape=[2])
        return {}

    estimator = make_estimator(api, folder, make_model_fn(api, fields=fields))
    return outcome(lambda: estimator.evaluate(make_input_fn(), steps=1), says=["more"])


@table(
    unnamed={"name": None, "directory": "eval"},
    named={"name": "x", "directory": "eval_x"},
    empty_name={"name": "", "directory": "eval"},
)
def directory(api, folder, name, directory):
    estimator = make_estimator(api, folder, make_model_fn(api, fields=by_list))
    estimator.train(make_input_fn(), steps=3)
    estimator.evaluate(make_input_fn(), steps=2, name=name)
    return {
        "eval_dir": os.path.relpath(estimator.eval_dir(name), folder),
        "directories": sorted(
            entry for entry in os.listdir(folder) if os.path.isdir(os.path.join(folder, entry))
        ),
        "tags": event_tags(os.path.join(folder, directory)),
    }


@scenario
def summaries_of_the_model(api, folder):
    """v1 summaries which the model makes: are they written when it is evaluated?"""

    def fields(graph):
        tf.summary.scalar("of_model", graph.loss)
        return {}

    estimator = make_estimator(api, folder, make_model_fn(api, fields=fields))
    estimator.evaluate(make_input_fn(), steps=2)
    return {"tags": event_tags(os.path.join(folder, "eval"))}


@scenario
def evaluation_hooks_of_spec(api, folder):
    """In EVAL the spec's training hooks are not called."""
    evaluating, training = Recorder(), Recorder()
    hooks = {"evaluation_hooks": [evaluating], "training_hooks": [training]}
    estimator = make_estimator(api, folder, make_model_fn(api, fields=lambda graph: hooks))
    estimator.evaluate(make_input_fn(), steps=2)
    return {"evaluation": evaluating.observed(), "training": training.observed()}


@scenario
def order_of_evaluation_hooks(api, folder):
    log = []
    hooks = [Told("spec_a", log), Told("spec_b", log)]
    estimator = make_estimator(
        api, folder, make_model_fn(api, fields=lambda graph: {"evaluation_hooks": hooks})
    )
    estimator.evaluate(make_input_fn(), steps=1, hooks=[Told("user_a", log), Told("user_b", log)])
    return {"log": log}


@scenario
def evaluation_hook_asks_to_stop(api, folder):
    class Stop(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            run_context.request_stop()

    estimator = make_estimator(api, folder)
    results = estimator.evaluate(make_input_fn(), steps=5, hooks=[Stop()])
    return {"results": numbers(results)}


@scenario
def host_call_in_evaluation(api, folder):
    log = []

    def host_fn(loss):
        return tf.py_func(lambda value: log.append(value.tolist()) or value, [loss], tf.float32)

    def fields(graph):
        return {"host_call": (host_fn, [tf.reshape(graph.loss, [1])])}

    estimator = make_estimator(api, folder, make_model_fn(api, fields=fields))
    estimator.evaluate(make_input_fn(), steps=3)
    return {"calls": len(log)}


@scenario
def local_variables_start_afresh(api, folder):
    """Metrics of one evaluation do not leak into the next."""
    estimator = make_estimator(api, folder, make_model_fn(api, fields=by_list))
    return {
        "first": numbers(estimator.evaluate(make_input_fn(4))),
        "second": numbers(estimator.evaluate(make_input_fn(8))),
    }


@scenario
def nan_loss_in_evaluation(api, folder):
    def fields(graph):
        return {"loss": graph.loss * float("nan")}

    estimator = make_estimator(api, folder, make_model_fn(api, fields=fields))
    results = {}
    failure = outcome(lambda: results.update(estimator.evaluate(make_input_fn(), steps=2)))
    return {**failure, "results": {key: str(value) for key, value in results.items()}}


@scenario
def data_raises_in_evaluation(api, folder):
    def broken(params):
        data = dataset(12, params["batch_size"])
        return data.map(lambda features, labels: (features, labels / 0.0)).map(
            lambda features, labels: (features, tf.debugging.check_numerics(labels, "bad record"))
        )

    estimator = make_estimator(api, folder)
    return outcome(lambda: estimator.evaluate(broken), says=["bad record"])


@scenario
def input_fn_raises_in_evaluation(api, folder):
    def broken(params):
        raise OSError("the disk of the toy is on fire")

    estimator = make_estimator(api, folder)
    return outcome(lambda: estimator.evaluate(broken, steps=1), says=["on fire"])


@scenario
def types_and_order(api, folder):
    """What kind of number each value is, and in which order they come."""
    estimator = make_estimator(api, folder, make_model_fn(api, fields=by_list))
    results = estimator.evaluate(make_input_fn(), steps=1)
    return {
        "order": list(results),
        "types": {key: type(value).__name__ for key, value in results.items()},
    }


@scenario
def eval_batch_size_differs(api, folder):
    shapes = []

    def fields(graph):
        loss = tf.py_func(
            lambda labels, loss: shapes.append(list(labels.shape)) or loss,
            [graph.labels, graph.loss],
            tf.float32,
        )
        loss.set_shape([])
        return {"loss": loss}

    estimator = make_estimator(
        api, folder, make_model_fn(api, fields=fields), train_batch_size=8, eval_batch_size=3
    )
    results = estimator.evaluate(make_input_fn(7))
    return {"shapes": shapes, "results": numbers(results)}
