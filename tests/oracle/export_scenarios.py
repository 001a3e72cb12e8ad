"""Scenarios of SavedModels: signatures, what runs, exporters, receivers and what they refuse."""

import os

import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2
from harness import (
    checkpoint_steps,
    make_estimator,
    make_input_fn,
    make_model_fn,
    numbers,
    outcome,
    plain,
    scenario,
    table,
)


def predictions(graph):
    return {"predictions": {"y": graph.predictions}}


def outputs(api, kinds):
    """Fields of a spec with these kinds of export outputs."""

    def fields(graph):
        scores = tf.stack([graph.predictions, -graph.predictions], axis=1)
        made = {
            "predict": lambda: api.serving.PredictOutput({"y": graph.predictions}),
            "predict_alone": lambda: api.serving.PredictOutput(graph.predictions),
            "classify": lambda: api.serving.ClassificationOutput(scores=scores),
            "regress": lambda: api.serving.RegressionOutput(graph.predictions),
        }
        export_outputs = {name: made[kind]() for name, kind in kinds.items()}
        return {**predictions(graph), "export_outputs": export_outputs}

    return fields


def raw(api):
    return api.serving.build_raw_serving_input_receiver_fn({"x": tf.zeros([1])})


def parsing(api):
    spec = {"x": tf.FixedLenFeature([], tf.float32)}
    return api.serving.build_parsing_serving_input_receiver_fn(spec)


def trained(api, folder, fields=predictions, **keywords):
    model_fn = make_model_fn(api, fields=fields)
    estimator = make_estimator(
        api,
        os.path.join(folder, "model"),
        model_fn,
        config={"save_checkpoints_steps": 2},
        export_to_tpu=False,
        **keywords,
    )
    return estimator.train(make_input_fn(), steps=4)


def described(path, tags=("serve",)):
    """Signatures of a SavedModel: their methods, inputs and outputs."""
    with tf.Graph().as_default(), tf.Session() as session:
        found = tf.saved_model.load(session, list(tags), path).signature_def
    return {
        name: {
            "method": signature.method_name,
            "inputs": sorted(signature.inputs),
            "outputs": sorted(signature.outputs),
        }
        for name, signature in found.items()
        if not name.startswith("__")
    }


def served(path, x=(1.0, 2.0)):
    with tf.Graph().as_default(), tf.Session() as session:
        found = tf.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
        return session.run(found.outputs["y"].name, {found.inputs["x"].name: list(x)}).tolist()


@table(
    predictions={},
    predict={"kinds": {"serving_default": "predict"}},
    predict_alone={"kinds": {"serving_default": "predict_alone"}},
    one_of_another_name={"kinds": {"mine": "predict"}},
    several={"kinds": {"serving_default": "predict", "mine": "predict_alone"}},
    classify_raw={"kinds": {"serving_default": "predict", "rank": "classify"}},
    classify={"kinds": {"serving_default": "classify"}, "receiver": parsing},
    regress={"kinds": {"serving_default": "regress"}, "receiver": parsing},
    all={
        "kinds": {"serving_default": "predict", "rank": "classify", "value": "regress"},
        "receiver": parsing,
    },
)
def signatures(api, folder, kinds=None, receiver=raw):
    fields = outputs(api, kinds) if kinds else predictions
    path = trained(api, folder, fields).export_saved_model(folder, receiver(api))
    return described(path)


@scenario
def several_without_a_default(api, folder):
    """The constructor of the spec refuses it, or the export does."""
    fields = outputs(api, {"a": "predict", "b": "predict"})
    return outcome(lambda: trained(api, folder, fields).export_saved_model(folder, raw(api)))


@table(newest={"step": None}, earlier={"step": 2})
def checkpoint(api, folder, step):
    estimator = trained(api, folder)
    path = step and os.path.join(estimator.model_dir, f"model.ckpt-{step}")
    return served(estimator.export_saved_model(folder, raw(api), checkpoint_path=path))


@table(binary={"as_text": False}, text={"as_text": True})
def files(api, folder, as_text):
    out, note = os.path.join(folder, "out"), os.path.join(folder, "note")
    with open(note, "w") as file:
        file.write("note")
    path = trained(api, folder).export_saved_model(
        out, raw(api), assets_extra={"a/b": note}, as_text=as_text
    )
    return {
        "type": type(path).__name__,
        "in_out": os.path.dirname(path) == out.encode(),
        "digits": len(os.path.basename(path)),
        "alone": os.listdir(out) == [os.path.basename(path).decode()],
        "files": sorted(os.listdir(path.decode())),
        "extra": os.listdir(os.path.join(path.decode(), "assets.extra/a")),
        "variables": len(os.listdir(os.path.join(path.decode(), "variables"))),
    }


@scenario
def old_name(api, folder):
    return served(trained(api, folder).export_savedmodel(folder, raw(api)))


@table(
    soft={"config": {"session_config": None}, "device": "/gpu:0"},
    anywhere={"config": {}, "device": None},
    hard={"config": {}, "device": "/gpu:0"},
)
def devices(api, folder, config, device):
    """Without a session_config, a model that names devices runs where these are missing."""

    def fields(graph):
        if graph.mode != "infer":
            return {}
        with tf.device(device):
            return {"predictions": {"y": tf.identity(graph.predictions, "y")}}

    estimator = make_estimator(
        api,
        os.path.join(folder, "model"),
        make_model_fn(api, fields=fields),
        config=config,
        export_to_tpu=False,
    ).train(make_input_fn(), steps=1)
    paths = []

    def export():
        paths.append(estimator.export_saved_model(folder, raw(api)))

    return {**outcome(export), "exports": len(paths)}


def object_checkpoint(graph):
    """Returns a spec's fields with an object-based checkpoint as the scaffold's saver."""
    made = tf2.train.Checkpoint(w=graph.weight, step=tf.train.get_global_step())
    return {**predictions(graph), "scaffold_fn": lambda: tf.train.Scaffold(saver=made)}


@scenario
def object_checkpoints(api, folder):
    """The verbs with a `tf.train.Checkpoint` as the scaffold's saver, through a resume."""
    estimator = trained(api, folder, object_checkpoint)
    names = estimator.get_variable_names()
    before = {
        "names": [name for name in names if not name.startswith("_CHECKPOINT")],
        "weight": float(estimator.get_variable_value("w/.ATTRIBUTES/VARIABLE_VALUE")),
        "steps": checkpoint_steps(estimator.model_dir),
    }
    second = trained(api, folder, object_checkpoint, predict_batch_size=4)  # in a new estimator
    return {
        **before,
        "weight_after": float(second.get_variable_value("w/.ATTRIBUTES/VARIABLE_VALUE")),
        "steps_after": checkpoint_steps(second.model_dir),
        "evaluation": numbers(second.evaluate(make_input_fn(), steps=1)),
        "predictions": float(next(iter(second.predict(make_input_fn())))["y"]),
        "served": served(second.export_saved_model(folder, raw(api))),
    }


@scenario
def params(api, folder):
    calls = []
    estimator = make_estimator(
        api,
        os.path.join(folder, "model"),
        make_model_fn(api, calls, predictions),
        params={"depth": 2},
        predict_batch_size=4,
        export_to_tpu=False,
    )
    estimator.train(make_input_fn(), steps=1)
    estimator.export_saved_model(folder, raw(api))
    return calls[1:]


@table(
    train={"modes": ["train"]},
    eval={"modes": ["eval"]},
    all={"modes": ["train", "eval", "infer"]},
)
def modes(api, folder, modes):
    supervised = api.serving.build_raw_supervised_input_receiver_fn(
        {"x": tf.zeros([1])}, tf.zeros([1])
    )
    receivers = {mode: raw(api) if mode == "infer" else supervised for mode in modes}
    path = trained(api, folder).experimental_export_all_saved_models(folder, receivers)
    tags = {"train": "train", "eval": "eval", "infer": "serve"}
    return {mode: described(path, [tags[mode]]) for mode in modes}


@table(
    no_receiver={"receiver": lambda api: None},
    no_checkpoint={"train": False},
    no_such_checkpoint={"checkpoint_path": "nowhere"},
    no_outputs={"fields": lambda graph: {"predictions": None}},
    output_of_no_kind={"fields": lambda graph: {**predictions(graph), "export_outputs": {"a": 3}}},
    outputs_no_dict={"fields": lambda graph: {**predictions(graph), "export_outputs": 3}},
    receiver_returns_none={"receiver": lambda api: lambda: None},
)
def refuses(api, folder, receiver=raw, train=True, fields=predictions, checkpoint_path=None):
    def fields_of(graph):  # the spec of training is a good one
        return fields(graph) if graph.mode == "infer" else {}

    make = trained if train else make_estimator
    estimator = make(api, folder, make_model_fn(api, fields=fields_of) if not train else fields_of)
    return outcome(
        lambda: estimator.export_saved_model(folder, receiver(api), checkpoint_path=checkpoint_path)
    )


@table(
    variable={"name": "other"},
)
def checkpoint_lacks(api, folder, name):
    def fields(graph):
        if graph.mode == "infer":
            tf.get_variable(name, initializer=1.0)
        return predictions(graph)

    estimator = trained(api, folder, fields)
    return outcome(lambda: estimator.export_saved_model(folder, raw(api)), [name])


@table(
    features_none={"features": lambda x: None},
    features_number={"features": lambda x: {"a": 3}},
    features_int_key={"features": lambda x: {3: x}},
    features_other_key={"features": lambda x: {(): x}},
    features_alone={"features": lambda x: x},
    receiver_none={"receiver": lambda x: None},
    receiver_int_key={"receiver": lambda x: {3: x}},
    receiver_alone={"receiver": lambda x: x},
    alternatives={"alternatives": lambda x: {"a": x}},
    alternatives_no_dict={"alternatives": lambda x: x},
)
def serving_receiver(
    api,
    folder,
    features=lambda x: {"x": x},
    receiver=lambda x: {"x": x},
    alternatives=lambda x: None,
):
    with tf.Graph().as_default():
        x = tf.zeros([1])
        made = []

        def make():
            made.append(api.serving.ServingInputReceiver(features(x), receiver(x), alternatives(x)))

        return {**outcome(make), "made": plain([each._asdict() for each in made])}


@table(
    tensor={"features": lambda x: x},
    none={"features": lambda x: None},
    dict={"features": lambda x: {"x": x}},
)
def tensor_receiver(api, folder, features):
    with tf.Graph().as_default():
        x = tf.zeros([1])
        return outcome(lambda: api.serving.TensorServingInputReceiver(features(x), x))


@table(latest={"kept": 2}, all={"kept": None}, none={"kept": 0})
def latest_exporter(api, folder, kept):
    estimator = trained(api, folder)
    out = os.path.join(folder, "out")

    def export():
        exporter = api.LatestExporter("n", raw(api), exports_to_keep=kept)
        for _ in range(3):
            exporter.export(estimator, out, estimator.latest_checkpoint(), {"loss": 1.0}, False)

    result = outcome(export)
    return {**result, "kept": len(os.listdir(out)) if os.path.isdir(out) else 0}


@scenario
def final_exporter(api, folder):
    estimator = trained(api, folder)
    exporter = api.FinalExporter("n", raw(api))
    arguments = (estimator, folder, estimator.latest_checkpoint(), {"loss": 1.0})
    return [exporter.export(*arguments, final) is None for final in (False, True)]


@table(
    by_default={"losses": [3.0, 4.0, 2.0, 2.0, 1.0]},
    larger={
        "losses": [3.0, 4.0, 2.0],
        "compare_fn": lambda best_eval_result, current_eval_result: (
            best_eval_result["loss"] < current_eval_result["loss"]
        ),
    },
)
def best_exporter(api, folder, losses, **arguments):
    estimator = trained(api, folder)
    exporter = api.BestExporter("n", raw(api), **arguments)
    path = estimator.latest_checkpoint()
    return [
        exporter.export(estimator, folder, path, {"loss": loss}, False) is not None
        for loss in losses
    ]


@table(default={"name": None}, of_a_named_evaluation={"name": "other"})
def best_exporter_after_a_restart(api, folder, name):
    """A loss of 1 was the best before it."""
    estimator = trained(api, folder)
    value = tf.Summary.Value(tag="loss", simple_value=1.0)
    with tf.Graph().as_default(), tf.summary.FileWriter(estimator.eval_dir(name)) as writer:
        writer.add_summary(tf.Summary(value=[value]), 1)
    exporter = api.BestExporter("n", raw(api))
    path = estimator.latest_checkpoint()
    return [
        exporter.export(estimator, folder, path, {"loss": loss}, False) is not None
        for loss in [3.0, 2.0, 4.0]
    ]


@table(
    none={"compare_fn": None},
    other_names={"compare_fn": lambda a, b: True},
    one_name={"compare_fn": lambda best_eval_result: True},
    keeps_0={"exports_to_keep": 0},
)
def best_exporter_refuses(api, folder, **arguments):
    return outcome(lambda: api.BestExporter("n", raw(api), **arguments))
