"""Scenarios of what an estimator tells of itself: properties, directories, variables."""

import os
import tempfile
from unittest import mock

from harness import (
    make_estimator,
    make_input_fn,
    make_model_fn,
    outcome,
    scenario,
    table,
    weight,
)


@scenario
def properties(api, folder):
    estimator = make_estimator(api, folder, params={"depth": 2})
    return {
        "model_dir_is_ours": estimator.model_dir == folder,
        "params": dict(estimator.params),
        "params_are_a_copy": estimator.params is not estimator.params,
        "config_is_a_copy": estimator.config is not estimator.config,
        "config_model_dir_is_ours": estimator.config.model_dir == folder,
        "eval_dir": os.path.relpath(estimator.eval_dir(), folder),
        "eval_dir_named": os.path.relpath(estimator.eval_dir("a"), folder),
        "model_fn_is_callable": callable(estimator.model_fn),
        "latest_checkpoint": estimator.latest_checkpoint(),
    }


@scenario
def variables(api, folder):
    estimator = make_estimator(api, folder)
    estimator.train(make_input_fn(), steps=2)
    step = estimator.get_variable_value("global_step")
    return {
        "names": sorted(estimator.get_variable_names()),
        "w": weight(estimator),
        "global_step": int(step),
        "dtypes": [step.dtype.name, estimator.get_variable_value("w").dtype.name],
        "latest": os.path.relpath(estimator.latest_checkpoint(), folder),
    }


@table(
    names={"call": lambda estimator: estimator.get_variable_names()},
    value={"call": lambda estimator: estimator.get_variable_value("w")},
)
def variables_without_checkpoint(api, folder, call):
    estimator = make_estimator(api, folder)
    return outcome(lambda: call(estimator))


@scenario
def unknown_variable(api, folder):
    estimator = make_estimator(api, folder)
    estimator.train(make_input_fn(), steps=1)
    return outcome(lambda: estimator.get_variable_value("nothing"), says=["nothing"])


@table(
    both_the_same={"of_estimator": "a", "of_config": "a"},
    of_estimator_alone={"of_estimator": "a", "of_config": None},
    of_config_alone={"of_estimator": None, "of_config": "a"},
    they_differ={"of_estimator": "a", "of_config": "b"},
    neither={"of_estimator": None, "of_config": None},
)
def model_dir(api, folder, of_estimator, of_config):
    """With no directory at all, a temporary one is made."""
    seen = {}

    def path(name):
        return name and os.path.join(folder, name)

    def make():
        estimator = api.TPUEstimator(
            make_model_fn(api),
            model_dir=path(of_estimator),
            config=api.RunConfig(model_dir=path(of_config)),
            use_tpu=False,
            train_batch_size=4,
        )
        seen["exists"] = os.path.isdir(estimator.model_dir)
        seen["in_folder"] = os.path.dirname(estimator.model_dir) == folder
        seen["as_given"] = estimator.model_dir == path(of_estimator or of_config)
        seen["config_agrees"] = estimator.config.model_dir == estimator.model_dir

    with mock.patch.object(tempfile, "tempdir", folder):
        return {**outcome(make, says=["model_dir"]), **seen}


@scenario
def constructor_touches_nothing(api, folder):
    make_estimator(api, os.path.join(folder, "model"))
    return {"files": os.listdir(folder)}
