"""Scenarios of what `train` saves and starts from: checkpoints, listeners, scaffolds."""

import os

import tensorflow.compat.v1 as tf
from harness import (
    Recorder,
    Told,
    checkpoint_steps,
    make_estimator,
    make_input_fn,
    make_model_fn,
    outcome,
    scenario,
    table,
    weight,
)

# Checkpoints.


@table(
    every_3={"config": {"save_checkpoints_steps": 3}, "steps": 10},
    every_step={"config": {"save_checkpoints_steps": 1}, "steps": 4},
    every_5_of_10={"config": {"save_checkpoints_steps": 5}, "steps": 10},
    beyond_the_end={"config": {"save_checkpoints_steps": 100}, "steps": 4},
    by_default={"config": {}, "steps": 4},
    every_hour={"config": {"save_checkpoints_secs": 3600}, "steps": 4},
    never={"config": {"save_checkpoints_steps": None, "save_checkpoints_secs": None}, "steps": 4},
    keep_2={"config": {"save_checkpoints_steps": 2, "keep_checkpoint_max": 2}, "steps": 9},
    keep_1={"config": {"save_checkpoints_steps": 2, "keep_checkpoint_max": 1}, "steps": 5},
    keep_all={"config": {"save_checkpoints_steps": 1, "keep_checkpoint_max": 0}, "steps": 7},
    keep_5={"config": {"save_checkpoints_steps": 1}, "steps": 7},
    loop_does_not_divide={"config": {"save_checkpoints_steps": 3}, "steps": 10, "loop": 4},
)
def checkpoints(api, folder, config, steps, loop=2):
    estimator = make_estimator(api, folder, config=config, tpu_config={"iterations_per_loop": loop})
    estimator.train(make_input_fn(), steps=steps)
    newest = estimator.latest_checkpoint()
    return {
        "steps": checkpoint_steps(folder),
        "latest": newest and os.path.relpath(newest, folder),
    }


@scenario
def checkpoints_of_two_trainings(api, folder):
    estimator = make_estimator(api, folder, config={"save_checkpoints_steps": 4})
    estimator.train(make_input_fn(), steps=5)
    estimator.train(make_input_fn(), steps=5)
    return {"steps": checkpoint_steps(folder)}


@table(by_default={"config": {}}, without_graph={"config": {"checkpoint_save_graph_def": False}})
def checkpoint_folder(api, folder, config):
    # Made here: make_estimator's config leaves the graph out.
    run_config = api.RunConfig(model_dir=folder, **config)
    api.TPUEstimator(
        make_model_fn(api), config=run_config, use_tpu=False, train_batch_size=4
    ).train(make_input_fn(), steps=2)
    with open(os.path.join(folder, "checkpoint"), encoding="utf-8") as state:
        lines = state.read().splitlines()
    reader = tf.train.load_checkpoint(os.path.join(folder, "model.ckpt-2"))
    return {
        "state": lines,
        "files": sorted(name for name in os.listdir(folder) if "tfevents" not in name),
        "shapes": reader.get_variable_to_shape_map(),
        "dtypes": {name: dtype.name for name, dtype in reader.get_variable_to_dtype_map().items()},
    }


@table(given_to_train={"by_spec": False}, given_by_spec={"by_spec": True})
def own_saver_hook(api, folder, by_spec):
    def saver():
        return tf.train.CheckpointSaverHook(folder, save_steps=2)

    fields = (lambda graph: {"training_hooks": [saver()]}) if by_spec else None
    estimator = make_estimator(
        api, folder, make_model_fn(api, fields=fields), config={"save_checkpoints_steps": 3}
    )
    estimator.train(make_input_fn(), steps=5, hooks=None if by_spec else [saver()])
    return {"steps": checkpoint_steps(folder)}


class Listener(tf.train.CheckpointSaverListener):
    def __init__(self, name, log, stop_at=None):
        self._name, self._log, self._stop_at = name, log, stop_at

    def begin(self):
        self._log.append(f"{self._name}.begin")

    def before_save(self, session, global_step_value):
        self._log.append(f"{self._name}.before_save {global_step_value}")

    def after_save(self, session, global_step_value):
        self._log.append(f"{self._name}.after_save {global_step_value}")
        return self._stop_at is not None and global_step_value >= self._stop_at

    def end(self, session, global_step_value):
        self._log.append(f"{self._name}.end {global_step_value}")


@scenario
def saving_listeners(api, folder):
    log = []
    make_estimator(api, folder, config={"save_checkpoints_steps": 2}).train(
        make_input_fn(), steps=5, saving_listeners=[Listener("a", log), Listener("b", log)]
    )
    return {"log": log}


@scenario
def saving_listener_asks_to_stop(api, folder):
    log = []
    make_estimator(api, folder, config={"save_checkpoints_steps": 2}).train(
        make_input_fn(), steps=9, saving_listeners=[Listener("a", log, stop_at=4)]
    )
    return {"log": log, "steps": checkpoint_steps(folder)}


@scenario
def saving_listeners_with_own_saver_hook(api, folder):
    log = []
    make_estimator(api, folder).train(
        make_input_fn(),
        steps=3,
        hooks=[tf.train.CheckpointSaverHook(folder, save_steps=2)],
        saving_listeners=[Listener("a", log)],
    )
    return {"log": log}


@scenario
def order_of_saving_and_hooks(api, folder):
    """Whether a hook's call comes before or after what is saved at the same step."""
    log = []
    make_estimator(api, folder, config={"save_checkpoints_steps": 1}).train(
        make_input_fn(),
        steps=2,
        hooks=[Told("hook", log)],
        saving_listeners=[Listener("listener", log)],
    )
    return {"log": log}


@scenario
def saving_listeners_without_saving(api, folder):
    estimator = make_estimator(
        api, folder, config={"save_checkpoints_steps": None, "save_checkpoints_secs": None}
    )
    return outcome(
        lambda: estimator.train(make_input_fn(), steps=3, saving_listeners=[Listener("a", [])]),
        says=["listener"],
    )


# Scaffolds.


@scenario
def scaffold_fn(api, folder):
    """`init_fn` runs on a fresh start alone; `scaffold_fn` runs whenever a graph is built."""
    log = []

    def make_scaffold():
        log.append("scaffold_fn")
        assign = tf.assign(tf.global_variables("w")[0], 2.0)

        def init_fn(scaffold, session):
            log.append("init_fn")
            session.run(assign)

        return tf.train.Scaffold(init_fn=init_fn)

    estimator = make_estimator(
        api, folder, make_model_fn(api, fields=lambda graph: {"scaffold_fn": make_scaffold})
    )
    weights = []
    for _ in range(2):
        estimator.train(make_input_fn(), steps=1)
        weights.append(weight(estimator))
    estimator.evaluate(make_input_fn(), steps=1)
    return {"log": log, "weights": weights}


@scenario
def scaffold_fn_returns_none(api, folder):
    result = outcome(
        lambda: make_estimator(
            api, folder, make_model_fn(api, fields=lambda graph: {"scaffold_fn": lambda: None})
        ).train(make_input_fn(), steps=2)
    )
    return {**result, "checkpoints": checkpoint_steps(folder)}


@scenario
def scaffold_with_own_saver(api, folder):
    """A saver that leaves the weight out."""

    def make_scaffold():
        return tf.train.Scaffold(saver=tf.train.Saver([tf.train.get_global_step()]))

    estimator = make_estimator(
        api, folder, make_model_fn(api, fields=lambda graph: {"scaffold_fn": make_scaffold})
    )
    estimator.train(make_input_fn(), steps=2)
    return {"variables": estimator.get_variable_names()}


@scenario
def init_from_checkpoint(api, folder):
    """`tf.train.init_from_checkpoint`, in the model_fn and in the scaffold_fn."""
    first = make_estimator(api, os.path.join(folder, "first"))
    first.train(make_input_fn(), steps=3)
    newest = first.latest_checkpoint()

    def in_model_fn(graph):
        tf.train.init_from_checkpoint(newest, {"w": "w"})
        return {}

    def in_scaffold_fn(graph):
        def make_scaffold():
            tf.train.init_from_checkpoint(newest, {"w": "w"})
            return tf.train.Scaffold()

        return {"scaffold_fn": make_scaffold}

    losses = {}
    for name, fields in [("model_fn", in_model_fn), ("scaffold_fn", in_scaffold_fn)]:
        recorder = Recorder()
        make_estimator(api, os.path.join(folder, name), make_model_fn(api, fields=fields)).train(
            make_input_fn(), steps=1, hooks=[recorder]
        )
        losses[name] = recorder.losses
    return losses
