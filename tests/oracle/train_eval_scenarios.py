"""Scenarios of `train_and_evaluate`: which checkpoints are evaluated and exported; specs."""

import os

import tensorflow.compat.v1 as tf
from harness import (
    Told,
    checkpoint_steps,
    event_tags,
    make_estimator,
    make_input_fn,
    make_model_fn,
    numbers,
    outcome,
    plain,
    scenario,
    table,
)


def exporter(api, log, name="told"):
    """An exporter that exports nothing and notes what it was asked."""

    class Notes(api.Exporter):
        @property
        def name(self):
            return name

        def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
            place = os.path.relpath(export_path, estimator.model_dir)
            checkpoint = os.path.basename(checkpoint_path)
            log.append(
                [place, checkpoint, int(eval_result["global_step"]), bool(is_the_final_export)]
            )
            return len(log)

    return Notes()


def run(api, folder, max_steps=6, log=None, examples=None, config=(), **of_eval):
    config = {"save_checkpoints_steps": 2, **dict(config)}
    train_calls, eval_calls = [], []
    estimator = make_estimator(api, folder, config=config)
    results, exports = api.train_and_evaluate(
        estimator,
        api.TrainSpec(make_input_fn(examples, train_calls), max_steps=max_steps),
        api.EvalSpec(
            make_input_fn(8, eval_calls),
            **{
                "steps": None,
                "throttle_secs": 0,
                "exporters": exporter(api, [] if log is None else log),
                **of_eval,
            },
        ),
    )
    return {
        "results": results and numbers(results),
        "exports": plain(exports),
        "calls": [len(train_calls), len(eval_calls)],
        "checkpoints": checkpoint_steps(folder),
    }


@table(
    each_checkpoint={},
    throttled={"throttle_secs": 600},
    one_checkpoint={"config": {"save_checkpoints_steps": 100}},
    uneven={"config": {"save_checkpoints_steps": 4}},
    data_ends={"max_steps": None, "examples": 20},
    data_ends_before_max_steps={"max_steps": 50, "examples": 20},
    some_batches={"steps": 1},
)
def runs(api, folder, **arguments):
    log = []
    return {**run(api, folder, log=log, **arguments), "asked": log}


@scenario
def restart(api, folder):
    run(api, folder, max_steps=4)
    log = []
    return {**run(api, folder, max_steps=8, log=log), "asked": log}


@scenario
def nothing_left(api, folder):
    run(api, folder, max_steps=4)
    log = []
    return {**run(api, folder, max_steps=4, log=log), "asked": log}


@scenario
def named(api, folder):
    run(api, folder, max_steps=4, name="dev")
    return event_tags(os.path.join(folder, "eval_dev"))


@scenario
def hooks(api, folder):
    log = []
    api.train_and_evaluate(
        make_estimator(api, folder, config={"save_checkpoints_steps": 2}),
        api.TrainSpec(make_input_fn(), max_steps=2, hooks=[Told("train", log)]),
        api.EvalSpec(make_input_fn(), steps=1, hooks=[Told("eval", log)]),
    )
    return log


@scenario
def listeners_come_first(api, folder):
    log = []

    class Listens(tf.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            log.append(int(global_step_value))

    api.train_and_evaluate(
        make_estimator(api, folder, config={"save_checkpoints_steps": 2}),
        api.TrainSpec(make_input_fn(), max_steps=4, saving_listeners=[Listens()]),
        api.EvalSpec(make_input_fn(), steps=1, hooks=[Told("eval", log)], throttle_secs=0),
    )
    return [each for each in log if each != "eval.before_run"]


@table(
    no_checkpoints={"config": {"save_checkpoints_steps": None, "save_checkpoints_secs": None}},
    no_evaluation_data={"examples": 0},
)
def refuses(api, folder, config=(), examples=8):
    estimator = make_estimator(api, folder, config={"save_checkpoints_steps": 2, **dict(config)})
    train_spec = api.TrainSpec(make_input_fn(), max_steps=2)
    eval_spec = api.EvalSpec(make_input_fn(examples), steps=None)
    return outcome(lambda: api.train_and_evaluate(estimator, train_spec, eval_spec))


@table(
    estimator={"which": 0},
    train_spec={"which": 1},
    eval_spec={"which": 2},
    no_eval_spec={"which": 2, "value": None},
)
def refuses_types(api, folder, which, value="another"):
    arguments = [
        make_estimator(api, folder),
        api.TrainSpec(make_input_fn(), max_steps=1),
        api.EvalSpec(make_input_fn()),
    ]
    arguments[which] = value
    return outcome(lambda: api.train_and_evaluate(*arguments))


@table(
    nothing={},
    max_steps_0={"max_steps": 0, "says": ["max_steps"]},
    max_steps_negative={"max_steps": -1, "says": ["max_steps"]},
    input_fn={"input_fn": 3, "says": ["input_fn"]},
    hook={"hooks": ["a hook"], "says": ["hook"]},
    hooks_no_list={"hooks": 3},
    listener={"saving_listeners": ["one"], "says": ["listener"]},
)
def train_spec(api, folder, says=(), **arguments):
    return outcome(lambda: api.TrainSpec(**{"input_fn": print, **arguments}), says)


@table(
    nothing={},
    steps_0={"steps": 0, "says": ["steps"]},
    steps_none={"steps": None},
    name={"name": 3, "says": ["name"]},
    input_fn={"input_fn": 3, "says": ["input_fn"]},
    hook={"hooks": ["a hook"], "says": ["hook"]},
    exporter={"exporters": ["one"], "says": ["exporter"]},
    exporters_no_list={"exporters": 3, "says": ["exporter"]},
    start_delay={"start_delay_secs": -1, "says": ["start_delay_secs"]},
    throttle={"throttle_secs": -1, "says": ["throttle_secs"]},
)
def eval_spec(api, folder, says=(), **arguments):
    return outcome(lambda: api.EvalSpec(**{"input_fn": print, **arguments}), says)


@table(same={"names": ["a", "a"]}, none={"names": [None]}, distinct={"names": ["a", "b"]})
def exporter_names(api, folder, names):
    exporters = [exporter(api, [], name) for name in names]
    return outcome(lambda: api.EvalSpec(print, exporters=exporters), ["name"])


@scenario
def defaults(api, folder):
    return {
        "train": plain(dict(api.TrainSpec(print)._asdict(), input_fn=None)),
        "eval": plain(dict(api.EvalSpec(print)._asdict(), input_fn=None)),
    }


def in_memory(
    api, folder, every_n_iter=3, steps=2, train_steps=7, name="memory", hooks=None, model_fn=None
):
    """Trains with a hook that evaluates; returns the losses that it wrote, by step."""
    estimator = make_estimator(api, folder, model_fn)
    hook = api.InMemoryEvaluatorHook(
        estimator, make_input_fn(8), steps=steps, hooks=hooks, name=name, every_n_iter=every_n_iter
    )
    estimator.train(make_input_fn(), steps=train_steps, hooks=[hook])
    losses = {}
    evaluations = os.path.join(folder, f"eval_{name}")
    for events in os.listdir(evaluations):
        for event in tf.train.summary_iterator(os.path.join(evaluations, events)):
            for value in event.summary.value:
                if value.tag == "loss":
                    losses[str(event.step)] = float(value.simple_value)
    return {"losses": losses, "checkpoints": checkpoint_steps(folder)}


@table(
    every_third={},
    every_step={"every_n_iter": 1, "train_steps": 2},
    rarely={"every_n_iter": 100, "steps": None},
    at_the_end_again={"train_steps": 6},
)
def in_memory_evaluator(api, folder, **row):
    return in_memory(api, folder, **row)


@table(
    no_iterations={"every_n_iter": 0},
    iterations_below_0={"every_n_iter": -1},
    no_steps={"steps": 0},
    not_a_hook={"hooks": [3]},
)
def in_memory_evaluator_refuses(api, folder, **row):
    says = {"every_n_iter": ["invalid every_n_iter"], "steps": ["Must specify steps > 0"]}
    (argument,) = row
    return outcome(lambda: in_memory(api, folder, **row), says.get(argument, ["SessionRunHook"]))


@table(
    saver={"make": lambda: {"saver": tf.train.Saver()}},
    init_fn={"make": lambda: {"init_fn": lambda scaffold, session: None}},
)
def in_memory_evaluator_of_a_scaffold(api, folder, make):
    def fields(graph):
        return {"scaffold_fn": lambda: tf.train.Scaffold(**make())}

    model_fn = make_model_fn(api, fields=fields)
    return outcome(lambda: in_memory(api, folder, model_fn=model_fn), ["custom"])
