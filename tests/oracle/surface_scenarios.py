"""Scenarios of the public surface: members, arguments and defaults of what callers use."""

import inspect
import os

import tensorflow.compat.v1 as tf
from harness import make_estimator, make_input_fn, make_model_fn, outcome, plain, scenario, table

CLASSES = [
    *["BestExporter", "Estimator", "EstimatorSpec", "EvalSpec", "Exporter", "FinalExporter"],
    *["InMemoryEvaluatorHook", "InputPipelineConfig", "LatestExporter", "ModeKeys", "RunConfig"],
    *["TPUConfig", "TPUEstimator", "TPUEstimatorSpec", "TrainSpec"],
    *["WarmStartSettings", "serving.ClassificationOutput", "serving.EvalOutput"],
    *["serving.ExportOutput", "serving.PredictOutput", "serving.RegressionOutput"],
    *["serving.ServingInputReceiver", "serving.TensorServingInputReceiver"],
]
FUNCTIONS = [
    "train_and_evaluate",
    *["serving.build_parsing_serving_input_receiver_fn"],
    *["serving.build_raw_serving_input_receiver_fn"],
    *["serving.build_raw_supervised_input_receiver_fn"],
    *["early_stopping.make_early_stopping_hook", "early_stopping.stop_if_higher_hook"],
    *["early_stopping.stop_if_lower_hook", "early_stopping.stop_if_no_increase_hook"],
    *["early_stopping.stop_if_no_decrease_hook"],
    *["early_stopping.make_stop_at_checkpoint_step_hook"],
]


def member_of(api, path):
    for name in path.split("."):
        api = getattr(api, name)
    return api


def call_of(name, function):
    """Returns a call as text: `name(a, b=None)`. Defaults other than plain values are `...`."""

    def described(parameter):
        value = parameter.default
        if value is parameter.empty:
            return parameter.name
        is_plain = value is None or type(value) in (tuple, str, int, float, bool)
        return f"{parameter.name}={value!r}" if is_plain else f"{parameter.name}=..."

    parameters = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return f"{name}({', '.join(map(described, parameters))})"


def member_text(kind, name):
    """Returns a public member as text, with its arguments if it is a function."""
    value = inspect.getattr_static(kind, name)
    if isinstance(value, staticmethod | classmethod) or inspect.isfunction(value):
        return call_of(name, getattr(kind, name))
    return name


@table(**{path.replace(".", "_"): {"path": path} for path in CLASSES})
def class_members(api, folder, path):
    kind = member_of(api, path)
    of_tuples = dir(tuple) if issubclass(kind, tuple) else []
    names = [name for name in dir(kind) if name[0] != "_" and name not in of_tuples]
    return [member_text(kind, name) for name in names]


@table(
    **{
        path.replace(".", "_"): {"path": path}
        for path in [*CLASSES, *FUNCTIONS]
        if path != "RunConfig"
    }
)
def call_arguments(api, folder, path):
    return call_of(path.split(".")[-1], member_of(api, path))


# What the constructors of exporters, hooks and outputs refuse.


@table(
    text={"name": "a"},
    none={"name": None},
    empty={"name": ""},
    number={"name": 3},
    keeps_0={"exports_to_keep": 0},
    keeps_negative={"exports_to_keep": -1},
)
def latest_exporter_refuses(api, folder, name="n", **arguments):
    return outcome(lambda: api.LatestExporter(name, print, **arguments), ["exports_to_keep"])


@table(none={"result": None}, empty={"result": {}}, no_loss={"result": {"other": 1.0}})
def best_exporter_without_a_loss(api, folder, result):
    estimator = make_estimator(api, folder)
    estimator.train(make_input_fn(), steps=1)
    serving = api.serving.build_raw_serving_input_receiver_fn({"x": tf.zeros([1])})
    exporter = api.BestExporter("n", serving)
    path = estimator.latest_checkpoint()

    def export(result):
        exporter.export(estimator, os.path.join(folder, "n"), path, result, False)

    first = outcome(lambda: export({"loss": 1.0}), ["loss"])
    return [first, outcome(lambda: export(result), ["loss", "empty", "no loss"])]


@table(
    estimator={"estimator": 3},
    should_stop={"should_stop_fn": 3},
    both={"run_every_secs": 1, "run_every_steps": 1},
    neither={"run_every_secs": None, "run_every_steps": None},
    steps={"run_every_secs": None, "run_every_steps": 1},
)
def early_stopping_refuses(api, folder, **row):
    keywords = {"estimator": make_estimator(api, folder), "should_stop_fn": lambda: False, **row}
    return outcome(
        lambda: api.early_stopping.make_early_stopping_hook(**keywords),
        ["should_stop_fn", "run_every_secs", "run_every_steps"],
    )


@table(
    number={"arguments": lambda x: (3,)},
    tensor={"arguments": lambda x: (x,)},
    dict={"arguments": lambda x: ({"a": x},)},
    empty={"arguments": lambda x: ({},)},
    dict_of_numbers={"arguments": lambda x: ({"a": 3},)},
    number_as_key={"arguments": lambda x: ({3: x},)},
    tuple_as_key={"arguments": lambda x: ({("a", "b"): x},)},
    nothing={"arguments": lambda x: ()},
)
def predict_output_refuses(api, folder, arguments):
    with tf.Graph().as_default():
        return outcome(lambda: api.serving.PredictOutput(*arguments(tf.zeros([1]))))


@table(
    nothing={"arguments": lambda x: {}},
    scores={"arguments": lambda x: {"scores": x}},
    classes={"arguments": lambda x: {"classes": tf.as_string(x)}},
    scores_of_text={"arguments": lambda x: {"scores": tf.as_string(x)}},
    classes_of_numbers={"arguments": lambda x: {"classes": x}},
    scores_of_integers={"arguments": lambda x: {"scores": tf.cast(x, tf.int32)}},
    scores_as_numbers={"arguments": lambda x: {"scores": [1.0]}},
)
def classification_output_refuses(api, folder, arguments):
    with tf.Graph().as_default():
        return outcome(lambda: api.serving.ClassificationOutput(**arguments(tf.zeros([1]))))


@table(
    tensor={"value": lambda x: x},
    text={"value": tf.as_string},
    integers={"value": lambda x: tf.cast(x, tf.int32)},
    number={"value": lambda x: 1.0},
)
def regression_output_refuses(api, folder, value):
    with tf.Graph().as_default():
        return outcome(lambda: api.serving.RegressionOutput(value(tf.zeros([1]))))


# What plain Estimator takes.


@table(
    nothing={},
    no_model_fn={"model_fn": None},
    model_fn_number={"model_fn": 3},
    config_dict={"config": {"save_summary_steps": 3}},
    config_number={"config": 3},
    params_list={"params": [1]},
    params_dict={"params": {"batch_size": 3, "use_tpu": False}},
    warm_start_number={"warm_start_from": 3},
)
def estimator_refuses(api, folder, **row):
    keywords = {"model_fn": make_model_fn(api), "model_dir": folder, "params": {}, **row}
    return outcome(lambda: api.Estimator(**keywords), ["model_fn", "config", "params"])


@table(
    text={"value": "a"}, settings={"value": "settings"}, number={"value": 3}, list={"value": ["a"]}
)
def warm_start_from(api, folder, value):
    if value == "settings":
        value = api.WarmStartSettings("a")
    return outcome(lambda: make_estimator(api, folder, warm_start_from=value))


@scenario
def warm_start_settings_defaults(api, folder):
    return plain(dict(api.WarmStartSettings("a")._asdict()))
