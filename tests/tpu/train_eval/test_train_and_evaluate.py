"""Evaluations while a training runs: train_and_evaluate, and the hook on every runtime."""

import json
import os
import signal

import pytest
import tensorflow.compat.v1 as tf
import toy
from kills import Killed
from toy import checkpoint_steps, input_fn, make_estimator, make_model_fn

from bert_estimator import tpu
from bert_estimator.tpu import early_stopping
from bert_estimator.tpu.verbs import checkpoint_saver, evaluation


class Told(tpu.Exporter):
    """An exporter that exports nothing, but notes what it was asked."""

    def __init__(self, name="told"):
        self.name_, self.asked = name, []

    @property
    def name(self):
        return self.name_

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        place = os.path.relpath(export_path, estimator.model_dir)
        checkpoint = os.path.basename(checkpoint_path)
        self.asked.append((place, checkpoint, eval_result["global_step"], is_the_final_export))
        return len(self.asked)


def make(folder, model_fn=None, **keywords):
    """Its evaluation's loss is the weight, which is the step."""
    return make_estimator(folder, model_fn, **{"save_checkpoints_steps": 2, **keywords})


def train_and_evaluate(estimator, max_steps=6, log=None, listener=None, **of_eval):
    def counted(params):
        if log is not None:
            log.append(params["context"].global_step)
        return input_fn(params)

    eval_spec = tpu.EvalSpec(input_fn, **{"steps": 2, "throttle_secs": 0, **of_eval})
    train_spec = tpu.TrainSpec(counted, max_steps=max_steps)
    if listener is not None:
        return tpu.train_with_listener(estimator, train_spec, eval_spec, listener)
    return tpu.train_and_evaluate(estimator, train_spec, eval_spec)


def test_every_checkpoint_is_evaluated_and_the_data_goes_on(tmp_path, rules):
    calls, told = [], Told()
    results, exports = train_and_evaluate(make(tmp_path, **rules), log=calls, exporters=told)
    assert calls == [0]
    assert checkpoint_steps(tmp_path) == [0, 2, 4, 6]
    assert told.asked == [
        ("export/told", "model.ckpt-2", 2, False),
        ("export/told", "model.ckpt-4", 4, False),
        ("export/told", "model.ckpt-6", 6, True),
    ]
    # Steps 7 and 8 of the data, after a training whose weight is the number of its steps.
    assert results == {"loss": 7.5, "global_step": 6}
    assert exports == [3]


def test_throttled_the_last_one_is_evaluated_all_the_same(tmp_path, logged):
    told = Told()
    train_and_evaluate(make(tmp_path), exporters=told, throttle_secs=600)
    assert [step for _, _, step, _ in told.asked] == [2, 6]
    assert any("Checkpoint 4 is not evaluated" in text for _, text in logged)


class Ends(tpu.ContinuousEvalListener):
    """Notes what it is told, and ends things at one of the questions, which are counted from 1."""

    def __init__(self, before=None, after=None):
        self._before, self._after = before, after
        self.asked, self.told = 0, []

    def before_eval(self):
        self.asked += 1
        return self.asked != self._before

    def after_eval(self, eval_result):
        self.told.append(eval_result)
        return len(self.told) != self._after


@pytest.mark.parametrize(
    ("ends", "saved", "evaluated"),
    [
        ({}, [0, 2, 4, 6], [2, 4, 6]),
        ({"after": 2}, [0, 2, 4], [2, 4]),
        ({"before": 1}, [0, 2], [2]),
        ({"before": 2}, [0, 2, 4], [2, 4]),
    ],
)
def test_a_listener_ends_training(tmp_path, rules, ends, saved, evaluated):
    """As in TensorFlow 1.15, which asks a second time at the end of training."""
    listener = Ends(**ends)
    results, _ = train_and_evaluate(make(tmp_path, **rules), listener=listener)
    assert checkpoint_steps(tmp_path) == saved
    assert [told.metrics["global_step"] for told in listener.told] == evaluated
    assert {told.status for told in listener.told} == {"evaluated"}
    assert [os.path.basename(told.checkpoint_path) for told in listener.told] == [
        f"model.ckpt-{step}" for step in evaluated
    ]
    assert results == listener.told[-1].metrics


def test_a_listener_is_asked_about_what_a_kill_left(tmp_path):
    train_and_evaluate(make(tmp_path), max_steps=2)
    with open(tmp_path / "eval" / "evaluated.json", "w") as file:
        json.dump({"saved": 2, "done": 0}, file)
    for listener, evaluated in ((Ends(before=1), 0), (Ends(after=1), 1)):
        train_and_evaluate(make(tmp_path), listener=listener)
        assert checkpoint_steps(tmp_path) == [0, 2]
        assert len(listener.told) == evaluated


def test_a_listener_is_asked_of_throttled_checkpoints(tmp_path):
    listener, told = Ends(before=2), Told()
    train_and_evaluate(make(tmp_path), exporters=told, throttle_secs=600, listener=listener)
    assert checkpoint_steps(tmp_path) == [0, 2, 4]
    assert [step for _, _, step, _ in told.asked] == [2, 4]


def test_an_error_in_an_evaluation_is_raised(tmp_path):
    def broken(params):
        raise RuntimeError("no such corpus") if params["context"].global_step else AssertionError

    spec = tpu.EvalSpec(broken, steps=1, throttle_secs=0)
    with pytest.raises(RuntimeError, match="no such corpus"):
        tpu.train_and_evaluate(make(tmp_path), tpu.TrainSpec(input_fn, max_steps=4), spec)
    assert checkpoint_steps(tmp_path) == [0, 2]


class SignalAt(tf.train.SessionRunHook):
    """Sends this process a SIGTERM at its nth visit."""

    def __init__(self, visit):
        self._visit = visit
        self.visits, self.ended = 0, 0

    def after_run(self, run_context, run_values):
        self.visits += 1
        if self.visits == self._visit:
            os.kill(os.getpid(), signal.SIGTERM)

    def end(self, session):
        self.ended += 1


def test_after_a_signal_to_training_nothing_is_evaluated(tmp_path, rules, logged):
    told, hook = Told(), SignalAt(3)
    spec = tpu.EvalSpec(input_fn, steps=2, exporters=told, throttle_secs=0)
    train_spec = tpu.TrainSpec(input_fn, max_steps=6, hooks=[hook])
    with pytest.raises(SystemExit, match="143"):
        tpu.train_and_evaluate(make(tmp_path, iterations_per_loop=1, **rules), train_spec, spec)
    assert checkpoint_steps(tmp_path) == [0, 2, 3]
    assert [step for _, _, step, _ in told.asked] == [2]
    assert hook.ended == 1
    assert [t for _, t in logged if t.startswith("Checkpoint")] == [
        "Checkpoint 3 is not evaluated: a signal ends training."
    ]


def test_a_signal_to_an_evaluation_ends_training(tmp_path, rules):
    told = Told()
    with pytest.raises(SystemExit, match="143"):
        train_and_evaluate(make(tmp_path, **rules), hooks=[SignalAt(1)], exporters=told)
    assert checkpoint_steps(tmp_path) == [0, 2]
    assert told.asked == []
    # What it kept from being evaluated is evaluated first.
    train_and_evaluate(make(tmp_path, **rules), exporters=told)
    assert [step for _, _, step, _ in told.asked] == [2, 4, 6]


def test_a_listener_s_evaluation_after_a_signal_is_not_begun(tmp_path):
    class Evaluates(tf.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            begun.append(int(global_step_value))
            estimator.evaluate(counted, steps=1)

    def counted(params):
        evaluated.append(params["context"].global_step)
        return input_fn(params)

    begun, evaluated, estimator = [], [], make(tmp_path, iterations_per_loop=1)
    with pytest.raises(SystemExit, match="143"):
        estimator.train(input_fn, max_steps=6, hooks=[SignalAt(3)], saving_listeners=[Evaluates()])
    assert begun == checkpoint_steps(tmp_path) == [0, 2, 3]
    assert evaluated == [0, 2]


# Kills.


class LossOfStep(Told):
    """Notes the loss of each evaluation; killed at its first call of a step, if asked to be."""

    def __init__(self, killed_at=None):
        super().__init__()
        self.killed_at = killed_at

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        if eval_result["global_step"] == self.killed_at:
            raise Killed
        super().export(estimator, export_path, checkpoint_path, eval_result, is_the_final_export)
        return float(eval_result["loss"])


def killed_in(place, step, monkeypatch):
    """Has the next train_and_evaluate killed; returns its keywords."""
    saver, event_writer = checkpoint_saver.CheckpointSaver, evaluation._write_events
    if place == "between checkpoint and evaluation":

        class Listens(tf.train.CheckpointSaverListener):
            def after_save(self, session, global_step_value):
                if global_step_value == step:
                    raise Killed

        return {"listeners": [Listens()]}
    if place == "while the checkpoint is written":
        save = saver._save

        def cut(self, session, global_step):
            if global_step != step:
                return save(self, session, global_step)
            for listener in self._listeners:
                listener.before_save(session, global_step)
            raise Killed

        monkeypatch.setattr(saver, "_save", cut)
    if place == "in the evaluation":

        class Hook(tf.train.SessionRunHook):
            def end(self, session):
                if session.run(tf.train.get_global_step()) == step:
                    raise Killed

        return {"hooks": [Hook()]}
    if place == "before its events":

        def write(eval_dir, results, path):
            if results["global_step"] == step:
                raise Killed
            event_writer(eval_dir, results, path)

        monkeypatch.setattr(evaluation, "_write_events", write)
    return {}


PLACES = [
    "while the checkpoint is written",
    "between checkpoint and evaluation",
    "in the evaluation",
    "before its events",
    "in the export",
]


def begin_another_process(folder):
    """The killed one leaves half an event; each process has event files of its own."""
    tf.summary.FileWriterCache.clear()
    for number, path in enumerate(folder.glob("**/events.out.tfevents.*")):
        with open(path, "ab") as file:
            file.write(b"\x18\0\0")
        path.rename(path.parent / f"events.out.tfevents.0{number}.killed")


@pytest.mark.parametrize(("place", "step"), [(place, step) for place in PLACES for step in (2, 6)])
def test_a_kill_anywhere_loses_no_evaluation_and_no_export(tmp_path, monkeypatch, place, step):
    told = LossOfStep(step if place == "in the export" else None)
    with monkeypatch.context() as patched:
        keywords = killed_in(place, step, patched)
        train_spec = tpu.TrainSpec(
            input_fn, max_steps=6, saving_listeners=keywords.pop("listeners", None)
        )
        spec = tpu.EvalSpec(input_fn, steps=2, exporters=told, throttle_secs=0, **keywords)
        with pytest.raises(Killed):
            tpu.train_and_evaluate(make(tmp_path), train_spec, spec)
    begin_another_process(tmp_path)
    again = LossOfStep()
    results, exports = train_and_evaluate(make(tmp_path), exporters=again)
    assert [asked[1:] for asked in told.asked + again.asked] == [
        ("model.ckpt-2", 2, False),
        ("model.ckpt-4", 4, False),
        ("model.ckpt-6", 6, True),
    ]
    assert results == {"loss": 7.5, "global_step": 6}
    assert exports == [7.5]
    metrics = early_stopping.read_eval_metrics(str(tmp_path / "eval"))
    assert metrics == {2: {"loss": 3.5}, 4: {"loss": 5.5}, 6: {"loss": 7.5}}
    assert train_and_evaluate(make(tmp_path), exporters=again) == (None, None)


def test_a_kill_in_the_last_evaluation_on_each_runtime(tmp_path, rules):
    with pytest.raises(Killed):
        train_and_evaluate(make(tmp_path, **rules), exporters=LossOfStep(6))
    results, exports = train_and_evaluate(make(tmp_path, **rules), exporters=LossOfStep())
    assert (results["global_step"], exports) == (6, [7.5])


def test_a_checkpoint_that_was_throttled_is_left_out_also_after_a_kill(tmp_path):
    told = LossOfStep()

    class Listens(tf.train.CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            if global_step_value == 6:
                raise Killed

    train_spec = tpu.TrainSpec(input_fn, max_steps=8, saving_listeners=[Listens()])
    spec = tpu.EvalSpec(input_fn, steps=2, exporters=told, throttle_secs=600)
    with pytest.raises(Killed):
        tpu.train_and_evaluate(make(tmp_path), train_spec, spec)
    train_and_evaluate(make(tmp_path), max_steps=8, exporters=told, throttle_secs=600)
    assert [step for _, _, step, _ in told.asked] == [2, 6, 8]


def test_what_was_trained_without_evaluation_is_not_evaluated_afterwards(tmp_path):
    """Nothing is left to train, so nothing happens, as in upstream."""
    make(tmp_path).train(input_fn, max_steps=6)
    assert train_and_evaluate(make(tmp_path), exporters=Told()) == (None, None)


@pytest.mark.parametrize("content", [b"", b"[3]", b"\xff", b"[" * 100_000])
def test_a_damaged_file_of_what_is_done_costs_an_evaluation(tmp_path, content, warned):
    train_and_evaluate(make(tmp_path))
    (tmp_path / "eval" / "evaluated.json").write_bytes(content)
    assert train_and_evaluate(make(tmp_path))[0]["global_step"] == 6
    assert any("evaluated.json cannot be read and is ignored" in text for text in warned())


@pytest.mark.parametrize("kill_at", [4, 8])
@pytest.mark.parametrize("place", ["in the evaluation", "before its events", "in the export"])
def test_the_best_exporter_exports_what_it_would_have_without_a_kill(
    tmp_path, monkeypatch, place, kill_at
):
    """The losses are 3.5, 1.5, 2.5, 0.5 and 5.5: three exports."""
    exported = []

    class Best(tpu.BestExporter):
        is_killed = False

        def export(self, estimator, export_path, checkpoint_path, eval_result, final):
            if self.is_killed and eval_result["global_step"] == kill_at:
                raise Killed
            path = super().export(estimator, export_path, checkpoint_path, eval_result, final)
            if path is not None:
                exported.append(int(eval_result["global_step"]))
            return path

    def export_saved_model(self, export_dir_base, *args, **kwargs):
        path = os.path.join(export_dir_base, str(10**9 + self.global_step()))
        os.makedirs(path)
        return path.encode()

    def loss(weight, features):
        values = tf.constant([0.0, 3.5, 1.5, 2.5, 0.5, 5.5])
        return tf.gather(values, tf.cast(weight, tf.int32) // 2) + 0 * features["x"][0]

    def run(is_killed, **keywords):
        exporter = Best("best", lambda: None)
        exporter.is_killed = is_killed
        spec = tpu.EvalSpec(input_fn, steps=1, exporters=exporter, throttle_secs=0, **keywords)
        estimator = make(tmp_path, model_fn=make_model_fn(loss=loss), use_tpu=False)
        tpu.train_and_evaluate(estimator, tpu.TrainSpec(input_fn, max_steps=10), spec)

    monkeypatch.setattr(tpu.TPUEstimator, "export_saved_model", export_saved_model)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        run(place == "in the export", **killed_in(place, kill_at, patched))
    begin_another_process(tmp_path)
    run(False)
    assert exported == [2, 4, 8]


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"max_steps": 0}, ValueError, "max_steps must be positive, not 0"),
        ({"input_fn": 3}, TypeError, "input_fn must be a function, not 3"),
        ({"hooks": ["h"]}, TypeError, "All hooks must be SessionRunHook instances, but .* has 'h'"),
        ({"hooks": 3}, TypeError, "hooks must be a list of hooks, not 3"),
        ({"saving_listeners": ["l"]}, TypeError, "All listeners must be CheckpointSaverListener"),
    ],
)
def test_train_spec_is_checked(keywords, error, message):
    with pytest.raises(error, match=message):
        tpu.TrainSpec(**{"input_fn": input_fn, **keywords})


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"name": 3}, TypeError, "name must be a string, not 3"),
        ({"exporters": ["e"]}, TypeError, "All exporters must be Exporter instances"),
        ({"exporters": 3}, TypeError, "exporters must be a list of exporters, not 3"),
        ({"exporters": [Told(), Told()]}, ValueError, r"texts, not \['told', 'told'\]"),
        ({"exporters": [Told(None)]}, ValueError, r"distinct names, which are texts, not \[None\]"),
        ({"exporters": [Told("")]}, ValueError, r"distinct names, which are texts, not \[''\]"),
        ({"start_delay_secs": -1}, ValueError, "start_delay_secs must be 0 or more"),
    ],
)
def test_eval_spec_is_checked(keywords, error, message):
    with pytest.raises(error, match=message):
        tpu.EvalSpec(**{"input_fn": input_fn, **keywords})


def test_arguments_have_their_types(tmp_path):
    train, evaluate = tpu.TrainSpec(input_fn, 1), tpu.EvalSpec(input_fn)
    for arguments in (
        ("e", train, evaluate),
        (make(tmp_path), None, evaluate),
        (make(tmp_path), train, train),
    ):
        with pytest.raises(TypeError, match="train_and_evaluate needs"):
            tpu.train_and_evaluate(*arguments)


def test_a_second_evaluator_is_refused(tmp_path, monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    tf_config = {"cluster": cluster, "task": {"type": "evaluator", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
    with pytest.raises(ValueError, match="there can only be one `evaluator` task"):
        train_and_evaluate(make(tmp_path, use_tpu=False))


def test_a_training_is_evaluated_as_its_checkpoints_are(tmp_path, rules):
    """And it ends as a training without the hook does."""

    def estimator(name):
        return toy.make_estimator(
            tmp_path / name, iterations_per_loop=2, save_checkpoints_steps=2, **rules
        )

    plain, hooked = estimator("plain"), estimator("hooked")
    plain.train(toy.input_fn, steps=6)
    hook = tpu.InMemoryEvaluatorHook(hooked, toy.input_fn, steps=2, every_n_iter=3, name="memory")
    hooked.train(toy.input_fn, steps=6, hooks=[hook])
    # Under the TPU's rules hooks see the ends of loops: steps 2, 4 and 6.
    due = [0, 4, 6] if rules.get("use_tpu", True) else [0, 3, 6]
    found = dict(toy.scalars(tmp_path / "hooked" / "eval_memory", "loss"))
    assert list(found) == due
    for step in due:
        if step % 2 == 0:
            path = str(tmp_path / "plain" / f"model.ckpt-{step}")
            expected = plain.evaluate(toy.input_fn, steps=2, checkpoint_path=path)
            assert found[step] == pytest.approx(expected["loss"], rel=1e-6)
    for name in plain.get_variable_names():
        assert (plain.get_variable_value(name) == hooked.get_variable_value(name)).all(), name
    assert hooked.latest_checkpoint() == str(tmp_path / "hooked" / "model.ckpt-6")


def test_a_saver_and_an_init_fn_of_the_model_are_no_hindrance(tmp_path, rules):
    """Upstream refuses them, since its evaluation does not restore a checkpoint."""

    def fields(features, loss):
        def scaffold_fn():
            return tf.train.Scaffold(saver=tf.train.Saver(), init_fn=lambda scaffold, session: None)

        return {"scaffold_fn": scaffold_fn}

    model_fn = toy.make_model_fn(fields)
    estimator = toy.make_estimator(tmp_path, model_fn, iterations_per_loop=2, **rules)
    hook = tpu.InMemoryEvaluatorHook(estimator, toy.input_fn, steps=1, every_n_iter=2)
    estimator.train(toy.input_fn, steps=4, hooks=[hook])
    # The first batch of an evaluation is the one after the steps that were trained.
    assert toy.scalars(tmp_path / "eval", "loss") == [(0, 1), (2, 3), (4, 5)]


@pytest.mark.parametrize("place", ["in a step", "in an evaluation"])
def test_a_signal_ends_the_training_with_a_checkpoint(tmp_path, rules, place):
    in_training, in_evaluation = SignalAt(5), SignalAt(6)
    is_in_step = place == "in a step"
    estimator = toy.make_estimator(tmp_path, iterations_per_loop=1, **rules)
    hook = tpu.InMemoryEvaluatorHook(
        estimator,
        toy.input_fn,
        steps=2,
        hooks=[] if is_in_step else [in_evaluation],
        every_n_iter=2,
    )
    hooks = [in_training, hook] if is_in_step else [hook]
    with pytest.raises(SystemExit) as ended:
        estimator.train(toy.input_fn, steps=50, hooks=hooks)
    assert ended.value.code == 128 + signal.SIGTERM
    # Hooks of an evaluation see each of its two steps in local mode, and else its end alone.
    in_evaluation_of = 10 if rules.get("use_tpu", True) else 4
    assert toy.checkpoint_steps(tmp_path) == [0, 5 if is_in_step else in_evaluation_of]


def test_data_that_ends_early_does_not_just_end_the_training(tmp_path):
    estimator = toy.make_estimator(tmp_path)
    hook = tpu.InMemoryEvaluatorHook(estimator, toy.ending_at(8), steps=5)
    with pytest.raises(tf.errors.OutOfRangeError, match="input_fn's data ended before the 5"):
        estimator.train(toy.input_fn, steps=4, hooks=[hook])


def test_it_is_refused_with_several_processes(tmp_path, monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    estimator = toy.make_estimator(tmp_path)
    message = (
        r"^InMemoryEvaluator supports only single machine .* Unset TF_CONFIG, or use train_and"
    )
    with pytest.raises(ValueError, match=message):
        tpu.InMemoryEvaluatorHook(estimator, toy.input_fn, steps=1)
