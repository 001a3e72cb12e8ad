"""Scenarios of `warm_start_from`: from what, which variables, and what is refused."""

import os

import tensorflow.compat.v1 as tf
from harness import make_estimator, make_input_fn, make_model_fn, outcome, scenario, table, weight


def trained(api, folder):
    """Makes a model_dir with the checkpoints 0, 2 and 4."""
    path = os.path.join(folder, "source")
    make_estimator(api, path, config={"save_checkpoints_steps": 2}).train(make_input_fn(), steps=4)
    return path


def first_weight(api, folder, **keywords):
    """Returns the weight in the checkpoint of step 0."""
    folder = os.path.join(folder, "model")
    make_estimator(api, folder, **keywords).train(make_input_fn(), steps=1)
    return float(tf.train.load_variable(os.path.join(folder, "model.ckpt-0"), "w"))


@table(
    directory={"source": lambda api, path: path},
    checkpoint={"source": lambda api, path: os.path.join(path, "model.ckpt-2")},
    settings={"source": lambda api, path: api.WarmStartSettings(path)},
    matching={"source": lambda api, path: api.WarmStartSettings(path, "w")},
    not_matching={"source": lambda api, path: api.WarmStartSettings(path, "v")},
    no_variables={"source": lambda api, path: api.WarmStartSettings(path, None)},
    a_list={"source": lambda api, path: api.WarmStartSettings(path, ["w"])},
    nothing={"source": lambda api, path: None},
)
def starts(api, folder, source):
    return first_weight(api, folder, warm_start_from=source(api, trained(api, folder)))


@scenario
def renamed(api, folder):
    settings = api.WarmStartSettings(trained(api, folder), var_name_to_prev_var_name={"v": "w"})

    def fields(graph):
        tf.get_variable("v", initializer=9.0)
        return {}

    path = os.path.join(folder, "model")
    estimator = make_estimator(
        api, path, make_model_fn(api, fields=fields), warm_start_from=settings
    )
    estimator.train(make_input_fn(), steps=1)
    return float(estimator.get_variable_value("v"))


@scenario
def its_own_checkpoint_wins(api, folder):
    source, path = trained(api, folder), os.path.join(folder, "model")
    make_estimator(api, path).train(make_input_fn(), steps=1)
    estimator = make_estimator(api, path, warm_start_from=source)
    return weight(estimator.train(make_input_fn(), steps=1))


@table(
    evaluate={"call": lambda e: float(e.evaluate(make_input_fn(4))["loss"])},
    predict={"call": lambda e: float(next(e.predict(make_input_fn(4)))["y"])},
)
def without_training(api, folder, call):
    def fields(graph):
        return {"predictions": {"y": graph.predictions}}

    path, source = os.path.join(folder, "model"), trained(api, folder)
    model_fn = make_model_fn(api, fields=fields)
    return call(make_estimator(api, path, model_fn, warm_start_from=source, predict_batch_size=4))


@table(number={"given": 3}, tuple={"given": ("a",)})
def refuses(api, folder, given):
    return outcome(lambda: make_estimator(api, folder, warm_start_from=given), ["warm_start_from"])


@table(empty={"path": ""}, none={"path": None})
def settings_refuse(api, folder, path):
    return outcome(lambda: api.WarmStartSettings(path))


@scenario
def no_such_checkpoint(api, folder):
    return outcome(lambda: first_weight(api, folder, warm_start_from="nowhere"))
