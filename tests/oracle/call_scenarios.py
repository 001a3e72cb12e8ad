"""Scenarios of how the framework calls model_fn and input_fn, and what they may return."""

import functools

import tensorflow.compat.v1 as tf
from harness import (
    Recorder,
    build,
    dataset,
    make_estimator,
    make_input_fn,
    make_model_fn,
    numbers,
    outcome,
    plain,
    scenario,
    table,
)

# model_fn: its parameters, and what it gets.


class Reached(LookupError):
    """Is raised by a function when it is called, in scenarios that only look at the call."""


def reached(*args, **keywords):
    raise Reached("the function was called")


class CallableModel:
    def __call__(self, features, labels, mode, params):
        reached()

    def method(self, features, labels, mode, params):
        reached()


@table(
    features_labels_mode_params={"model_fn": lambda features, labels, mode, params: reached()},
    other_order={"model_fn": lambda params, mode, labels, features: reached()},
    with_config={"model_fn": lambda features, labels, mode, params, config: reached()},
    without_mode={"model_fn": lambda features, labels, params: reached()},
    without_params={"model_fn": lambda features, labels, mode: reached()},
    without_params_but_given={
        "model_fn": lambda features, labels, mode: reached(),
        "params": {"depth": 1},
    },
    without_labels={"model_fn": lambda features, mode, params: reached()},
    without_labels_and_none_given={
        "model_fn": lambda features, mode, params: reached(),
        "labels": False,
    },
    labels_taken_and_none_given={
        "model_fn": lambda features, labels, mode, params: reached(),
        "labels": False,
    },
    without_features={"model_fn": lambda labels, mode, params: reached()},
    with_unknown={"model_fn": lambda features, labels, mode, params, more: reached()},
    with_unknown_default={"model_fn": lambda features, labels, mode, params, more=1: reached()},
    with_kwargs={"model_fn": lambda features, labels, mode, params, **more: reached()},
    kwargs_alone={"model_fn": reached},
    partial={
        "model_fn": functools.partial(lambda rate, features, labels, mode, params: reached(), 1)
    },
    partial_by_keyword={
        "model_fn": functools.partial(
            lambda features, labels, mode, params, rate: reached(), rate=1
        )
    },
    callable_object={"model_fn": CallableModel()},
    method={"model_fn": CallableModel().method},
    none={"model_fn": None},
    not_callable={"model_fn": "model_fn"},
)
def model_fn_signature(api, folder, model_fn, params=None, labels=True):
    """A LookupError means that the function was called; otherwise it was refused."""

    def call():
        # Made here, not by make_estimator: a model_fn of None must arrive as None.
        config = api.RunConfig(model_dir=folder)
        estimator = api.TPUEstimator(
            model_fn=model_fn, config=config, params=params, use_tpu=False, train_batch_size=4
        )
        estimator.train(lambda params: dataset(4, params["batch_size"], labels))

    return outcome(call)


@table(
    none={"make": lambda api, graph: None},
    a_tuple={"make": lambda api, graph: (graph.loss, graph.train_op)},
    plain_spec={
        "make": lambda api, graph: api.EstimatorSpec(
            mode=graph.mode, loss=graph.loss, train_op=graph.train_op
        )
    },
    no_loss={"make": lambda api, graph: api.TPUEstimatorSpec("train", train_op=graph.train_op)},
    no_train_op={"make": lambda api, graph: api.TPUEstimatorSpec("train", loss=graph.loss)},
    loss_of_shape_1={
        "make": lambda api, graph: api.TPUEstimatorSpec(
            "train", loss=tf.reshape(graph.loss, [1]), train_op=graph.train_op
        )
    },
    loss_of_shape_2={
        "make": lambda api, graph: api.TPUEstimatorSpec(
            "train", loss=tf.stack([graph.loss, graph.loss]), train_op=graph.train_op
        )
    },
    loss_is_a_number={
        "make": lambda api, graph: api.TPUEstimatorSpec("train", loss=1.0, train_op=graph.train_op)
    },
    train_op_is_a_tensor={
        "make": lambda api, graph: api.TPUEstimatorSpec(
            "train",
            loss=graph.loss,
            train_op=tf.assign_add(tf.train.get_or_create_global_step(), 1),
        )
    },
    train_op_is_a_number={
        "make": lambda api, graph: api.TPUEstimatorSpec("train", loss=graph.loss, train_op=3)
    },
    unknown_mode={
        "make": lambda api, graph: api.TPUEstimatorSpec(
            "tune", loss=graph.loss, train_op=graph.train_op
        )
    },
    another_mode={"make": lambda api, graph: api.TPUEstimatorSpec("eval", loss=graph.loss)},
    loss_of_another_graph={
        "make": lambda api, graph: api.TPUEstimatorSpec(
            "train", loss=elsewhere(), train_op=graph.train_op
        )
    },
    predictions_in_training={
        "make": lambda api, graph: api.TPUEstimatorSpec(
            "train", loss=graph.loss, train_op=graph.train_op, predictions=graph.predictions
        )
    },
)
def model_fn_returns(api, folder, make):
    estimator = make_estimator(
        api,
        folder,
        lambda features, labels, mode, params: make(api, build(features, labels, mode)),
    )
    return outcome(lambda: estimator.train(make_input_fn(4)))


def elsewhere():
    with tf.Graph().as_default():
        return tf.constant(1.0)


@table(
    loss_of_shape_1={"make": lambda graph: {"loss": tf.reshape(graph.loss, [1])}},
    no_loss={"make": lambda graph: {"loss": None}},
    integer_loss={"make": lambda graph: {"loss": tf.constant(2)}},
    predictions_beside={"make": lambda graph: {"predictions": {"p": graph.predictions}}},
)
def model_fn_returns_in_evaluation(api, folder, make):
    estimator = make_estimator(api, folder, make_model_fn(api, fields=make))
    results = {}
    failure = outcome(lambda: results.update(estimator.evaluate(make_input_fn(), steps=1)))
    return {**failure, "results": numbers(results)}


@scenario
def plain_spec_in_evaluation(api, folder):
    def model_fn(features, labels, mode, params):
        graph = build(features, labels, mode)
        metrics = {"mean": tf.metrics.mean(graph.labels)}
        return api.EstimatorSpec(mode, loss=graph.loss, eval_metric_ops=metrics)

    estimator = make_estimator(api, folder, model_fn)
    return numbers(estimator.evaluate(make_input_fn(), steps=2))


@scenario
def as_estimator_spec(api, folder):
    """Shows the spec that a TPUEstimatorSpec becomes without a TPU."""
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        loss = tf.constant(1.0)
        spec = api.TPUEstimatorSpec(
            "eval",
            loss=loss,
            eval_metrics=(lambda value: {"mean": tf.metrics.mean(value)}, [loss]),
            evaluation_hooks=[Recorder()],
        ).as_estimator_spec()
        return {
            "mode": spec.mode,
            "same_loss": spec.loss is loss,
            "metrics": sorted(spec.eval_metric_ops),
            "evaluation_hooks": len(spec.evaluation_hooks),
        }


# params.


@table(
    none={"params": None},
    empty={"params": {}},
    some={"params": {"depth": 2, "name": "toy"}},
    use_tpu_is_not_reserved={"params": {"use_tpu": "mine"}},
    batch_sizes_differ={"params": None, "train_batch_size": 8, "eval_batch_size": 2},
    no_eval_batch_size={"params": None, "eval_batch_size": None},
    no_batch_sizes={"params": None, "eval_batch_size": None, "train_batch_size": None},
)
def params(api, folder, params, **keywords):
    """What model_fn and input_fn find in params, in each mode."""
    model_calls, input_calls = [], []

    def input_fn(params):
        input_calls.append(plain(params))
        return dataset(8, 2)

    estimator = make_estimator(
        api, folder, make_model_fn(api, model_calls, reached), params=params, **keywords
    )
    outcomes = [
        outcome(lambda: estimator.train(input_fn, steps=1)),
        outcome(lambda: estimator.evaluate(input_fn, steps=1)),
    ]
    return {
        "outcomes": outcomes,
        "model_fn": model_calls,
        "input_fn": input_calls,
        "property": dict(estimator.params),
    }


@scenario
def params_are_copied(api, folder):
    """Neither the caller's dict nor the estimator's is changed by what a model_fn does to its."""
    given = {"list": [1]}

    def model_fn(features, labels, mode, params):
        params["list"].append(2)
        params["new"] = 1
        reached()

    estimator = make_estimator(api, folder, model_fn, params=given)
    given["late"] = True
    failure = outcome(lambda: estimator.train(make_input_fn(), steps=1))
    estimator.params["list"].append(3)
    return {**failure, "given": given, "property": dict(estimator.params)}


@scenario
def input_fn_changes_params(api, folder):
    model_calls = []

    def input_fn(params):
        params["new"] = 1
        return dataset(8, 2)

    estimator = make_estimator(api, folder, make_model_fn(api, model_calls, reached))
    failure = outcome(lambda: estimator.train(input_fn, steps=1))
    return {**failure, "model_fn_sees": sorted(model_calls[0]["params"])}


@scenario
def config_in_model_fn(api, folder):
    seen = {}

    def model_fn(features, labels, mode, params, config):
        seen["model_dir_is_ours"] = config.model_dir == folder
        seen["loop"] = config.tpu_config.iterations_per_loop
        seen["same_object"] = config is given
        reached()

    given = api.RunConfig(model_dir=folder, tpu_config=api.TPUConfig(iterations_per_loop=7))
    estimator = api.TPUEstimator(model_fn, config=given, use_tpu=False, train_batch_size=4)
    return {**outcome(lambda: estimator.train(make_input_fn(), steps=1)), **seen}


# input_fn: its parameters, and what it may return.


class CallableInput:
    def __call__(self, params):
        reached()


@table(
    params={"input_fn": lambda params: reached()},
    params_mode={"input_fn": lambda params, mode: reached()},
    params_mode_config={"input_fn": lambda params, mode, config: reached()},
    no_params={"input_fn": lambda: reached()},
    mode_alone={"input_fn": lambda mode: reached()},
    kwargs={"input_fn": reached},
    params_and_unknown={"input_fn": lambda params, more: reached()},
    params_and_default={"input_fn": lambda params, more=1: reached()},
    input_context={"input_fn": lambda params, input_context: reached()},
    partial={"input_fn": functools.partial(lambda more, params: reached(), 1)},
    callable_object={"input_fn": CallableInput()},
    none={"input_fn": None},
    not_callable={"input_fn": 3},
)
def input_fn_signature(api, folder, input_fn):
    """A LookupError means that the function was called; otherwise it was refused."""
    estimator = make_estimator(api, folder)
    return outcome(lambda: estimator.train(input_fn))


@scenario
def mode_and_config_in_input_fn(api, folder):
    seen = []

    def input_fn(params, mode, config):
        seen.append([mode, config.model_dir == folder])
        reached()

    estimator = make_estimator(api, folder)
    outcomes = [
        outcome(lambda: estimator.train(input_fn)),
        outcome(lambda: estimator.evaluate(input_fn)),
    ]
    return {"outcomes": outcomes, "seen": seen}


def tensors(examples=4, labels=True):
    iterator = tf.data.make_one_shot_iterator(dataset(examples, 2, labels))
    return iterator.get_next()


def initializable():
    iterator = tf.data.make_initializable_iterator(dataset(4, 2))
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def constants():
    return {"x": tf.constant([0.5, 1.0])}, tf.constant([1.5, 3.0])


@table(
    dataset={"make": lambda: dataset(4, 2)},
    dataset_of_features={"make": lambda: dataset(4, 2, labels=False)},
    tensors={"make": tensors},
    tensors_of_features={"make": lambda: tensors(labels=False)},
    tensors_of_initializable_iterator={"make": initializable},
    constants={"make": constants, "steps": 2},
    a_list={"make": lambda: list(constants()), "steps": 2},
    three={"make": lambda: (*constants(), tf.constant(1)), "steps": 2},
    one_in_a_tuple={"make": lambda: constants()[:1], "steps": 2},
    nothing={"make": lambda: None, "steps": 2},
    dataset_of_three={
        "make": lambda: dataset(4, 2).map(lambda features, labels: (features, labels, labels))
    },
    nested_features={
        "make": lambda: dataset(4, 2).map(
            lambda features, labels: ({**features, "more": {"y": labels}}, labels)
        )
    },
)
def input_fn_returns(api, folder, make, steps=None):
    recorder = Recorder()
    estimator = make_estimator(api, folder)
    failure = outcome(lambda: estimator.train(lambda params: make(), steps=steps, hooks=[recorder]))
    return {**failure, "steps": recorder.steps, "losses": recorder.losses}


@scenario
def queue_runners_of_input_fn(api, folder):
    """Queues of before tf.data are filled by threads which the session starts."""

    def input_fn(params):
        x = tf.train.batch([tf.constant(0.5)], batch_size=2)
        return {"x": x}

    recorder = Recorder()
    no_hang = tf.ConfigProto(operation_timeout_in_ms=5_000)
    estimator = make_estimator(api, folder, config={"session_config": no_hang})
    failure = outcome(lambda: estimator.train(input_fn, steps=2, hooks=[recorder]))
    return {**failure, "losses": recorder.losses}


@scenario
def input_fn_is_called_in_the_graph(api, folder):
    """Tables of the input_fn are initialised, and its dataset is on the model's graph."""

    def input_fn(params):
        keys = tf.constant([0, 1], tf.int64)
        names = tf.lookup.KeyValueTensorInitializer(keys, tf.constant([0.5, 1.0]))
        lookup = tf.lookup.StaticHashTable(names, -1.0)
        data = tf.data.Dataset.range(2).batch(2)
        return data.map(lambda value: {"x": lookup.lookup(value)})

    recorder = Recorder()
    make_estimator(api, folder).train(input_fn, hooks=[recorder])
    return {"losses": recorder.losses}


@scenario
def random_seed_of_the_graph(api, folder):
    seen = {}

    def fields(graph):
        seen[graph.mode] = tf.get_default_graph().seed
        reached()

    estimator = make_estimator(
        api, folder, make_model_fn(api, fields=fields), config={"tf_random_seed": 5}
    )
    outcomes = [
        outcome(lambda: estimator.train(make_input_fn(), steps=1)),
        outcome(lambda: estimator.evaluate(make_input_fn(), steps=1)),
    ]
    return {"outcomes": outcomes, **seen}


@scenario
def graph_of_the_caller_is_left_alone(api, folder):
    with tf.Graph().as_default() as graph:
        make_estimator(api, folder).train(make_input_fn(), steps=1)
        return {"operations": len(graph.get_operations())}


@scenario
def collections_of_the_graph(api, folder):
    """The global step exists before the input_fn is called; later it is a global variable."""
    seen = {}

    def input_fn(params):
        step = tf.train.get_global_step()
        seen["global_step_in_input_fn"] = step is not None and step.dtype.base_dtype.name
        return dataset(4, 2)

    def fields(graph):
        seen["global_variables"] = sorted(value.op.name for value in tf.global_variables())
        seen["trainable_variables"] = sorted(value.op.name for value in tf.trainable_variables())
        reached()

    estimator = make_estimator(api, folder, make_model_fn(api, fields=fields))
    return {**outcome(lambda: estimator.train(input_fn, steps=1)), **seen}
