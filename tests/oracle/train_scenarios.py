"""Scenarios of `train`: how long it trains, hooks, host calls, summaries."""

import tensorflow.compat.v1 as tf
from harness import (
    INITIAL_WEIGHT,
    LEARNING_RATE,
    Recorder,
    Told,
    checkpoint_steps,
    event_tags,
    global_step,
    make_estimator,
    make_input_fn,
    make_model_fn,
    outcome,
    scenario,
    table,
    weight,
)

# How long it trains.


@table(
    loop_divides={"loop": 5, "steps": 10},
    loop_does_not_divide={"loop": 4, "steps": 10},
    loop_exceeds={"loop": 100, "steps": 3},
    loop_equals={"loop": 3, "steps": 3},
    loop_of_one={"loop": 1, "steps": 4},
    one_step={"loop": 2, "steps": 1},
    max_steps={"loop": 4, "max_steps": 10},
    max_steps_below_loop={"loop": 100, "max_steps": 3},
    data_ends_first={"loop": 4, "steps": 10, "examples": 20},
    data_ends_first_max_steps={"loop": 2, "max_steps": 10, "examples": 20},
    data_ends_within_batch={"loop": 2, "steps": 10, "examples": 10},
    data_ends_with_steps={"loop": 2, "steps": 3, "examples": 12},
    until_data_ends={"loop": 2, "examples": 10},
    until_data_ends_one_batch={"loop": 2, "examples": 3},
    no_data={"loop": 2, "examples": 0},
)
def length(api, folder, loop, examples=None, **limits):
    calls, recorder = [], Recorder()
    estimator = make_estimator(
        api, folder, make_model_fn(api, calls), tpu_config={"iterations_per_loop": loop}
    )
    estimator.train(make_input_fn(examples), hooks=[recorder], **limits)
    return {
        "hook": recorder.observed(),
        "checkpoints": checkpoint_steps(folder),
        "weight": weight(estimator),
        "global_step": global_step(estimator),
        "model_fn_calls": len(calls),
    }


@table(
    steps_add_up={"calls": [{"steps": 3}, {"steps": 4}]},
    max_steps_reached={"calls": [{"max_steps": 3}, {"max_steps": 3}]},
    max_steps_below={"calls": [{"max_steps": 3}, {"max_steps": 2}]},
    max_steps_beyond={"calls": [{"max_steps": 3}, {"max_steps": 5}]},
    steps_then_max_steps={"calls": [{"steps": 3}, {"max_steps": 5}]},
    max_steps_then_steps={"calls": [{"max_steps": 3}, {"steps": 1}]},
    until_data_ends_twice={"calls": [{}, {}], "examples": 8},
)
def train_again(api, folder, calls, examples=None):
    model_fn_calls, input_fn_calls, seen = [], [], []
    estimator = make_estimator(api, folder, make_model_fn(api, model_fn_calls))
    for limits in calls:
        recorder = Recorder()
        result = estimator.train(
            make_input_fn(examples, input_fn_calls), hooks=[recorder], **limits
        )
        seen.append(
            {
                "returns_itself": result is estimator,
                "hook": recorder.observed(),
                "checkpoints": checkpoint_steps(folder),
                "weight": weight(estimator),
                "model_fn_calls": len(model_fn_calls),
                "input_fn_calls": len(input_fn_calls),
            }
        )
    return {"trainings": seen}


@scenario
def resume_with_another_estimator(api, folder):
    make_estimator(api, folder).train(make_input_fn(), steps=3)
    recorder = Recorder()
    estimator = make_estimator(api, folder)
    estimator.train(make_input_fn(), steps=3, hooks=[recorder])
    return {"hook": recorder.observed(), "weight": weight(estimator)}


@scenario
def hook_asks_to_stop(api, folder):
    class Stop(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            run_context.request_stop()

    recorder = Recorder()
    make_estimator(api, folder).train(make_input_fn(), steps=5, hooks=[Stop(), recorder])
    return {"hook": recorder.observed(), "checkpoints": checkpoint_steps(folder)}


@table(
    at_step={"hook": lambda: tf.train.StopAtStepHook(last_step=4)},
    num_steps={"hook": lambda: tf.train.StopAtStepHook(num_steps=4)},
)
def user_stop_hook(api, folder, hook):
    recorder = Recorder()
    make_estimator(api, folder).train(make_input_fn(), max_steps=6, hooks=[hook(), recorder])
    return {"hook": recorder.observed(), "checkpoints": checkpoint_steps(folder)}


# Hooks.


@scenario
def order_of_hooks(api, folder):
    log = []
    model_fn = make_model_fn(
        api, fields=lambda graph: {"training_hooks": [Told("spec_a", log), Told("spec_b", log)]}
    )
    make_estimator(api, folder, model_fn).train(
        make_input_fn(), steps=1, hooks=[Told("user_a", log), Told("user_b", log)]
    )
    return {"log": log}


@scenario
def training_hooks_of_spec(api, folder):
    recorder = Recorder()
    make_estimator(
        api, folder, make_model_fn(api, fields=lambda graph: {"training_hooks": [recorder]})
    ).train(make_input_fn(), steps=3)
    return recorder.observed()


@scenario
def evaluation_hooks_do_not_see_training(api, folder):
    recorder = Recorder()
    make_estimator(
        api, folder, make_model_fn(api, fields=lambda graph: {"evaluation_hooks": [recorder]})
    ).train(make_input_fn(), steps=3)
    return recorder.observed()


@scenario
def hook_sees_variables_initialised(api, folder):
    seen = {}

    class Reader(tf.train.SessionRunHook):
        def begin(self):
            seen["finalized_in_begin"] = tf.get_default_graph().finalized
            self.weight = tf.global_variables("w")[0]
            self.double = 2.0 * self.weight

        def after_create_session(self, session, coord):
            seen["finalized_later"] = tf.get_default_graph().finalized
            seen["weight_at_start"] = float(session.run(self.weight))

        def end(self, session):
            seen["double_at_end"] = float(session.run(self.double))

    make_estimator(api, folder).train(make_input_fn(), steps=2, hooks=[Reader()])
    return seen


@scenario
def hook_surroundings(api, folder):
    """What a hook finds around it: graph, session, coordinator, the fetches of the step."""
    seen = {}

    class Look(tf.train.SessionRunHook):
        def begin(self):
            self.graph = tf.get_default_graph()

        def after_create_session(self, session, coord):
            seen["coordinator_stops"] = coord.should_stop()
            seen["graph_of_session"] = session.graph is self.graph
            seen["default_graph"] = tf.get_default_graph() is self.graph

        def before_run(self, run_context):
            seen["fetched_by_the_step"] = len(run_context.original_args.fetches)

        def after_run(self, run_context, run_values):
            seen["stop_requested"] = run_context.stop_requested
            seen["default_session"] = tf.get_default_session() is not None
            seen["values_of_no_fetches"] = run_values.results

    make_estimator(api, folder).train(make_input_fn(), steps=1, hooks=[Look()])
    return seen


@table(
    one={"fetches": "rate:0"},
    a_list={"fetches": ["rate:0", "toy_loss:0"]},
    a_dict={"fetches": {"a": "rate:0", "b": ["toy_loss:0", {"c": "rate:0"}]}},
    operation={"fetches": ["rate"]},
    none={"fetches": None},
)
def hook_fetches(api, folder, fetches):
    values = []

    class Fetch(tf.train.SessionRunHook):
        def before_run(self, run_context):
            return tf.train.SessionRunArgs(fetches)

        def after_run(self, run_context, run_values):
            values.append(tf.nest.map_structure(plain_number, run_values.results))

    def fields(graph):
        tf.constant(0.25, name="rate")
        return {}

    make_estimator(api, folder, make_model_fn(api, fields=fields)).train(
        make_input_fn(), steps=2, hooks=[Fetch()]
    )
    return {"values": values}


def plain_number(value):
    return None if value is None else float(value)


@scenario
def hook_asks_for_a_trace(api, folder):
    traced = []

    class Trace(tf.train.SessionRunHook):
        def before_run(self, run_context):
            options = tf.RunOptions(trace_level=tf.RunOptions.SOFTWARE_TRACE)
            return tf.train.SessionRunArgs(None, options=options)

        def after_run(self, run_context, run_values):
            traced.append(len(run_values.run_metadata.step_stats.dev_stats) > 0)

    make_estimator(api, folder).train(make_input_fn(), steps=2, hooks=[Trace()])
    return {"traced": traced}


@scenario
def hook_feeds(api, folder):
    """A value which a hook feeds in place of a tensor is what the step computes with."""

    class Feed(tf.train.SessionRunHook):
        def before_run(self, run_context):
            return tf.train.SessionRunArgs(None, feed_dict={"rate:0": 0.0})

    def model_fn(features, labels, mode, params):
        rate = tf.placeholder_with_default(LEARNING_RATE, [], name="rate")
        value = tf.get_variable("w", initializer=INITIAL_WEIGHT)
        loss = tf.reduce_mean(tf.square(value * features["x"] - labels), name="toy_loss")
        train_op = tf.train.GradientDescentOptimizer(rate).minimize(
            loss, tf.train.get_or_create_global_step()
        )
        return api.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)

    estimator = make_estimator(api, folder, model_fn)
    estimator.train(make_input_fn(), steps=2, hooks=[Feed()])
    fed = weight(estimator)
    estimator.train(make_input_fn(), steps=1)
    return {"fed": fed, "not_fed": weight(estimator)}


@scenario
def hook_runs_the_session_itself(api, folder):
    """A hook runs two steps between two steps of the loop; the step limit counts them too."""

    class Extra(tf.train.SessionRunHook):
        def begin(self):
            self.step = tf.train.get_global_step()
            self.advance = tf.assign_add(self.step, 2)

        def after_run(self, run_context, run_values):
            if run_context.session.run(self.step) == 2:
                run_context.session.run(self.advance)

    recorder = Recorder()
    make_estimator(api, folder, tpu_config={"iterations_per_loop": 1}).train(
        make_input_fn(), steps=6, hooks=[Extra(), recorder]
    )
    return {"hook": recorder.observed(), "checkpoints": checkpoint_steps(folder)}


# Host calls.


def host_call_log(log):
    def host_fn(step, loss):
        def note(step, loss):
            log.append([step.tolist(), loss.tolist()])
            return step

        return tf.py_func(note, [step, loss], step.dtype)

    return host_fn


def host_call_tensors(graph):
    return [
        tf.reshape(tf.train.get_or_create_global_step(), [1]),
        tf.reshape(graph.loss, [1]),
    ]


@table(
    a_list={"loop": 2, "pack": list},
    a_tuple={"loop": 2, "pack": tuple},
    a_dict={"loop": 2, "pack": lambda pair: dict(zip(["step", "loss"], pair, strict=True))},
    loop_exceeds={"loop": 100, "pack": list},
)
def host_call(api, folder, loop, pack):
    log = []

    def fields(graph):
        return {"host_call": (host_call_log(log), pack(host_call_tensors(graph)))}

    make_estimator(
        api, folder, make_model_fn(api, fields=fields), tpu_config={"iterations_per_loop": loop}
    ).train(make_input_fn(), steps=5)
    return {"calls": len(log), "losses": [loss for _, loss in log]}


@scenario
def host_call_every_2(api, folder):
    log = []
    make_estimator(
        api,
        folder,
        make_model_fn(
            api,
            fields=lambda graph: {"host_call": (host_call_log(log), host_call_tensors(graph))},
        ),
        tpu_config={"iterations_per_loop": 3, "experimental_host_call_every_n_steps": 2},
    ).train(make_input_fn(), steps=6)
    return {"calls": len(log), "losses": [loss for _, loss in log]}


@scenario
def host_call_sees_step(api, folder):
    """The step as most models pass it: made first, then the train_op after it."""
    log = []

    def model_fn(features, labels, mode, params):
        value = tf.get_variable("w", initializer=INITIAL_WEIGHT)
        loss = tf.reduce_mean(tf.square(value * features["x"] - labels), name="toy_loss")
        step = tf.identity(tf.train.get_or_create_global_step())
        with tf.control_dependencies([step]):
            train_op = tf.train.GradientDescentOptimizer(LEARNING_RATE).minimize(
                loss, tf.train.get_global_step()
            )
        tensors = [tf.reshape(step, [1]), tf.reshape(loss, [1])]
        return api.TPUEstimatorSpec(
            mode=mode, loss=loss, train_op=train_op, host_call=(host_call_log(log), tensors)
        )

    make_estimator(api, folder, model_fn).train(make_input_fn(), steps=5)
    return {"log": log}


@scenario
def host_call_gets_tensors_as_they_are(api, folder):
    """Dtypes and shapes, partial batch included: nothing is reshaped, nothing is cut."""
    seen = []

    def host_fn(predictions, labels):
        def note(predictions, labels):
            seen.append(
                [
                    list(predictions.shape),
                    predictions.dtype.name,
                    list(labels.shape),
                    labels.dtype.name,
                ]
            )
            return labels

        return tf.py_func(note, [predictions, labels], labels.dtype)

    def fields(graph):
        tensors = [graph.predictions, tf.cast(graph.labels, tf.int32)]
        return {"host_call": (host_fn, tensors)}

    make_estimator(api, folder, make_model_fn(api, fields=fields)).train(make_input_fn(6))
    return {"seen": seen}


@scenario
def host_call_with_no_tensors(api, folder):
    calls = []

    def host_fn():
        calls.append(1)
        return tf.no_op()

    result = outcome(
        lambda: make_estimator(
            api, folder, make_model_fn(api, fields=lambda graph: {"host_call": (host_fn, [])})
        ).train(make_input_fn(), steps=2)
    )
    return {**result, "calls": len(calls)}


# Summaries.


@table(
    by_default={"config": {}, "steps": 3},
    every_2={"config": {"save_summary_steps": 2}, "steps": 5},
    off={"config": {"save_summary_steps": None}, "steps": 3},
)
def summaries(api, folder, config, steps):
    """A v1 summary of the model beside the loss that the framework writes itself."""

    def fields(graph):
        tf.summary.scalar("of_model", graph.loss)
        return {}

    make_estimator(
        api,
        folder,
        make_model_fn(api, fields=fields),
        config={"log_step_count_steps": None, **config},
    ).train(make_input_fn(), steps=steps)
    return {"tags": event_tags(folder)}


@table(
    each_step={"log_every": 1, "loop": 1},
    every_2={"log_every": 2, "loop": 1},
    divided_by_loop={"log_every": 4, "loop": 2},
    below_loop={"log_every": 2, "loop": 100},
    by_default={"log_every": 100, "loop": 2},
)
def rate_summaries(api, folder, log_every, loop):
    make_estimator(
        api,
        folder,
        config={"log_step_count_steps": log_every},
        tpu_config={"iterations_per_loop": loop},
    ).train(make_input_fn(), steps=7)
    return {"tags": event_tags(folder)}
