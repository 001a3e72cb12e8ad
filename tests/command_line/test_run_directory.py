"""What a run leaves behind besides checkpoints."""

import json
import math
import os
import sys

import matplotlib.figure
import pytest

from bert_estimator.command_line import charts, provenance, run_directory
from bert_estimator.command_line.flags import FlagError
from bert_estimator.command_line.provenance import Origin, Provenance
from bert_estimator.command_line.run_directory import RunDirectory, versions
from tests.support.pictures import words

SETTINGS = {"learning_rate": 0.1, "num_train_steps": 10, "input_file": None, "use_tpu": True}
SOURCES = dict.fromkeys(SETTINGS, provenance.DEFAULT)


def directory(path, step=None):
    """Returns a run directory; if a step is given, the directory holds its checkpoint."""
    path.mkdir(parents=True, exist_ok=True)
    made = RunDirectory(str(path))
    if step is not None:
        (path / f"model.ckpt-{step}.index").write_text("")
    return made


def test_config_holds_values_sources_versions_and_command(tmp_path):
    run = directory(tmp_path / "new" / "run")
    run.write_config(SETTINGS, {**SOURCES, "learning_rate": provenance.FLAG}, "abc")
    with open(tmp_path / "new" / "run" / "config.json", encoding="utf-8") as reader:
        config = json.load(reader)
    assert config["flags"]["learning_rate"] == {"value": 0.1, "from": "flag"}
    assert config["flags"]["input_file"] == {"value": None, "from": "default"}
    assert config["versions"] == versions()
    assert config["versions"]["tensorflow"].startswith("2.")
    assert config["records"] == "abc"
    assert config["cores"] == os.cpu_count()
    assert len(config["command"]) >= 2
    assert os.listdir(run.path) == ["config.json"]


def test_the_same_run_goes_on(tmp_path):
    run = directory(tmp_path, step=5)
    run.check_config(SETTINGS)  # no config.json: checkpoints of another program
    run.write_config(SETTINGS, SOURCES, "abc")
    run.check_config(SETTINGS)
    run.check_config({**SETTINGS, "a_flag_of_a_later_version": 1})


def test_another_run_is_refused_naming_the_flag(tmp_path):
    run = directory(tmp_path, step=5)
    run.write_config(SETTINGS, SOURCES, "abc")
    message = (
        rf"--learning_rate=0.2: {tmp_path} holds a run with --learning_rate=0.1. Use that value to "
        "go on with it, or another --output_dir"
    )
    with pytest.raises(FlagError, match=message):
        run.check_config({**SETTINGS, "learning_rate": 0.2})


def test_what_was_not_given_can_be_had_again(tmp_path):
    """The default of a flag may have changed since: another checkpoint of the main job."""
    run = directory(tmp_path, step=5)
    run.write_config(
        {"init_checkpoint": None, "micro_batch_size": None},
        {"init_checkpoint": provenance.EMBEDDED, "micro_batch_size": provenance.DEFAULT},
        "abc",
    )
    message = (
        r"--init_checkpoint=ckpt: .* holds a run without it\. Give "
        r"--init_checkpoint= with nothing after it to go on with it, or another --output_dir"
    )
    with pytest.raises(FlagError, match=message):
        run.check_config({"init_checkpoint": "ckpt", "micro_batch_size": None})
    message = "--micro_batch_size=4: .* holds a run without it. Leave the flag out"
    with pytest.raises(FlagError, match=message):
        run.check_config({"init_checkpoint": None, "micro_batch_size": 4})


def test_a_path_may_be_written_otherwise(tmp_path, monkeypatch):
    run = directory(tmp_path / "stage_2", step=5)
    path = "../stage_1/model.ckpt-7"
    sources = {"init_checkpoint": Provenance(Origin.STAGE, "lamb_76min", stage=1)}
    run.write_config({"init_checkpoint": path}, sources, "abc")
    monkeypatch.chdir(tmp_path)
    for same in (path, "stage_1/model.ckpt-7", f"{tmp_path}/stage_1/model.ckpt-7"):
        run.check_config({"init_checkpoint": same})
    for other in ("stage_1/model.ckpt-8", None):
        message = f"--init_checkpoint={other}: .*/model.ckpt-7. Leave the flag out to go on"
        with pytest.raises(FlagError, match=message):
            run.check_config({"init_checkpoint": other})


def test_the_vocabulary_of_an_attempt_that_failed_is_not_kept(tmp_path):
    own, left = tmp_path / "vocab.txt", tmp_path / "run" / "vocab.txt"
    own.write_text("[PAD]\n")
    (tmp_path / "run").mkdir()
    run = directory(tmp_path / "run")
    run.write_network({}, str(own))
    assert left.exists()
    run.write_network({}, str(left))
    assert left.exists()
    run.write_network({}, None)
    assert not left.exists()
    run = directory(tmp_path / "run", step=5)
    run.write_network({}, str(own))
    run.write_network({}, None)
    assert left.exists()


def test_of_several_hosts_one_has_the_checkpoints_and_each_its_own_metrics(tmp_path):
    directory(tmp_path, step=5)
    (tmp_path / "host-1").mkdir()
    worker = RunDirectory(str(tmp_path / "host-1"), checkpoints_in=str(tmp_path))
    worker.write_config(SETTINGS, SOURCES, "abc")
    for step in (4, 6):
        worker.add_metrics({"step": step, "loss": 1.0})
    worker.forget_metrics_after(5)
    assert [record["step"] for record in worker.metrics()] == [4]
    with pytest.raises(FlagError, match=r"holds a run with --learning_rate=0\.1"):
        worker.check_config({**SETTINGS, "learning_rate": 0.2})


def test_a_run_that_never_began_stands_in_nobodys_way(tmp_path):
    run = directory(tmp_path)
    run.write_config(SETTINGS, SOURCES, "abc")
    run.add_metrics({"step": 0, "eval_loss": 3.0})
    run.check_config({**SETTINGS, "learning_rate": 0.2})
    run.forget_metrics_after(0)
    assert run.metrics() == []


def test_an_unreadable_config_is_refused(tmp_path):
    run = directory(tmp_path, step=5)
    (tmp_path / "config.json").write_text('{"flags": {"x": {"value": 1}}}')
    with pytest.raises(FlagError, match=r"config\.json cannot be read .* another directory"):
        run.check_config(SETTINGS)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[" * 100_000 + "}", "is not JSON of at most 64 levels"),
        ("[1, {}", "is not JSON: Expecting"),
        ("{}", "the key 'step' is missing"),
        ('{"step": "1"}', 'step: must be a whole number, not "1"'),
        ('{"step": 1, "loss": "low"}', 'loss: must be a finite number, not "low"'),
        ('{"step": 1, "loss": {}}', "loss: must be a finite number, not {}"),
    ],
)
def test_a_line_of_metrics_that_is_not_a_record_is_named(tmp_path, line, message):
    run = directory(tmp_path, step=5)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN}\n' + line + "\n")
    with pytest.raises(FlagError) as caught:
        run.metrics()
    assert f"--output_dir: {tmp_path}/metrics.jsonl:2: {message}" in str(caught.value)


def test_the_network_lies_beside_the_checkpoints(tmp_path):
    run = directory(tmp_path / "run")
    (tmp_path / "words").write_text("a\n")
    run.write_network({"vocab_size": 9, "hidden_size": 8}, str(tmp_path / "words"))
    assert json.loads((tmp_path / "run/bert_config.json").read_text()) == {
        "vocab_size": 9,
        "hidden_size": 8,
    }
    assert (tmp_path / "run/vocab.txt").read_text() == "a\n"
    run.write_network({"vocab_size": 7}, f"{run.path}/vocab.txt")  # its own copy; a new network
    (tmp_path / "pieces.model").write_text("b")
    pieces = str(tmp_path / "pieces.model")
    run.write_network({"vocab_size": 7}, pieces, task={"labels": ["é\n"]})
    assert {*os.listdir(run.path), "vocab.txt"} == {*run_directory.NETWORK_FILES}
    assert not (tmp_path / "run/vocab.txt").exists()
    assert json.loads((tmp_path / "run/task.json").read_text()) == {"labels": ["é\n"]}
    assert json.loads((tmp_path / "run/bert_config.json").read_text()) == {"vocab_size": 7}


def test_the_network_of_a_run_that_can_be_resumed(tmp_path):
    run = directory(tmp_path)
    run.write_network({"vocab_size": 9})
    assert run.network_file() is None
    assert directory(tmp_path, step=5).network_file() == f"{tmp_path}/bert_config.json"


def test_metrics_after_the_checkpoint_are_forgotten(tmp_path):
    run = directory(tmp_path, step=4)
    assert run.metrics() == []
    for step in (2, 4, 6):
        run.add_metrics({"step": step, "loss": step / 2})
    with open(run.metrics_path, "a", encoding="utf-8") as writer:
        writer.write('{"step": 8, "lo')  # a kill while writing
    assert [record["step"] for record in run.metrics()] == [2, 4, 6]
    run.add_metrics({"step": 7, "loss": 3.5})
    assert [record["step"] for record in run.metrics()] == [2, 4, 6, 7]
    run.forget_metrics_after(4)
    run.add_metrics({"step": 6, "loss": 7.0})
    assert run.metrics() == [
        {"step": 2, "loss": 1.0},
        {"step": 4, "loss": 2.0},
        {"step": 6, "loss": 7.0},
    ]


def test_an_evaluation_that_is_done_again_has_one_record(tmp_path):
    run = RunDirectory(str(tmp_path))
    run.add_metrics({"step": 4, "loss": 1.5})
    for _ in range(2):
        run.add_evaluation({"loss": 1.25, "global_step": 4})
        run.add_evaluation({"loss": 1.25, "baseline": 3.0, "global_step": 4})
    run.add_evaluation({"loss": 1.0, "global_step": 4})
    records = [
        {"step": 4, "loss": 1.5},
        {"step": 4, "eval_loss": 1.25},
        {"step": 4, "eval_loss": 1.25, "eval_baseline": 3.0},
        {"step": 4, "eval_loss": 1.0},
    ]
    assert run.metrics() == records
    # Another text was evaluated meanwhile: the latest record is to be the latest evaluation.
    for results in ({"loss": 1.25}, {"loss": math.nan}, {"loss": math.nan}, {"loss": 1.0}):
        run.add_evaluation({**results, "global_step": 4})
    run.add_evaluation({"loss": 1.25, "baseline": 3.0, "global_step": 4})
    losses = [record["eval_loss"] for record in run.metrics()[len(records) :]]
    assert str(losses) == "[1.25, nan, 1.0, 1.25]"


@pytest.mark.parametrize("resumed_from", [2, 4, None])
def test_a_run_that_goes_back_from_its_end_has_its_records_in_the_order_of_a_whole_run(
    tmp_path, resumed_from
):
    def go_on(after=0):
        for step in range(after + 1, 7):
            run.add_metrics({"step": step, "loss": 10.0 - step})
            run.add_evaluation({"loss": 0.5 * step, "global_step": step})
        # At the end of a run its best checkpoint is evaluated, here step 2, perhaps with more.
        run.add_evaluation({"loss": 1.0, "baseline": 3.0, "global_step": 2})

    run = directory(tmp_path, step=6)
    go_on()
    whole, others = run.metrics(), []
    assert whole[-1] == {"step": 2, "eval_loss": 1.0, "eval_baseline": 3.0}
    if resumed_from is None:
        go_on(6)  # The same command again does not change anything.
    else:
        # Meanwhile the best checkpoint was evaluated on other data, which nothing repeats.
        run.add_evaluation({"loss": 7.0, "global_step": 2})
        run.forget_metrics_after(resumed_from)
        others = [{"step": 2, "eval_loss": 7.0}]
        go_on(resumed_from)
    assert [record for record in run.metrics() if record not in others] == whole
    assert [record for record in run.metrics() if record in others] == others


def test_curves_are_a_picture_of_the_metrics(tmp_path):
    run = directory(tmp_path, step=4)
    corners = [{"step": 1, "learning_rate": 0.0}, {"step": 3, "learning_rate": 0.75}]
    run.write_config(SETTINGS, SOURCES, "abc", corners)
    for step in (2, 4):
        run.add_metrics({"step": step, "loss": 5.0 - step, "learning_rate": step / 8})
    run.add_evaluation({"global_step": 4, "loss": 2.0, "mean_loss": 1.5})
    assert run.write_curves() == str(tmp_path / "curves.svg")
    picture = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert {"loss", "training", "held-out", "learning rate"} <= {*words(picture)}
    # The picture has the corners of the learning rate, which are not in metrics.jsonl.
    assert picture.startswith(charts.of_run(run.metrics()[:2], run.evaluations(), corners))
    assert not picture.startswith(charts.of_run(run.metrics()[:2], run.evaluations()))


def test_curves_are_drawn_again_if_they_show_something_else(tmp_path, monkeypatch):
    drawn = []
    draw = charts.of_run
    monkeypatch.setattr(charts, "of_run", lambda *args: drawn.append(args) or draw(*args))
    run = directory(tmp_path, step=4)
    run.write_config(SETTINGS, SOURCES, "abc", [{"step": 1, "learning_rate": 0.5}])
    path = tmp_path / "curves.svg"

    def draws():
        drawn.clear()
        assert run.write_curves() == str(path)
        return len(drawn)

    run.add_metrics({"step": 4, "loss": 1.0, "learning_rate": 0.25})
    assert draws() == 1
    picture = path.read_bytes()
    assert draws() == 0
    run.add_evaluation({"global_step": 4, "loss": 2.0})
    assert draws() == 1
    run.add_evaluation({"global_step": 4, "loss": 2.0})
    assert draws() == 0
    run.write_config(SETTINGS, SOURCES, "abc", [{"step": 2, "learning_rate": 0.5}])
    assert draws() == 1
    path.write_bytes(b"\xff" + picture)  # an earlier one
    assert draws() == 1
    path.write_bytes(path.read_bytes()[:-9])
    assert draws() == 1
    path.unlink()
    assert draws() == 1
    # What another program put there is replaced, and not waited for.
    path.unlink()
    os.mkfifo(path)
    assert draws() == 1
    path.unlink()
    path.symlink_to("/proc/self/mem")  # whose reading fails
    monkeypatch.setattr(run_directory, "_write", lambda *_: None)  # a link is written through
    assert draws() == 1


@pytest.mark.parametrize("is_there", [False, True])
def test_without_a_working_matplotlib_a_run_ends_without_a_picture(tmp_path, monkeypatch, is_there):
    def fail(*_, **__):
        raise ValueError("numpy.dtype size changed")

    run = directory(tmp_path, step=4)
    run.add_metrics({"step": 4, "loss": 1.0})
    if is_there:
        monkeypatch.setattr(matplotlib.figure.Figure, "savefig", fail)
        reason = "ValueError: numpy.dtype size changed"
    else:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        reason = "ModuleNotFoundError: "
    assert run.write_curves().startswith(f"not drawn, as matplotlib failed ({reason}")
    assert not (tmp_path / "curves.svg").exists()


@pytest.mark.parametrize("corners", ["0.1", [1], [{"step": 1}], [{"step": 1.5}]])
def test_damaged_corners_are_refused(tmp_path, corners):
    run = directory(tmp_path, step=4)
    run.write_config(SETTINGS, SOURCES, "abc")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "learning_rates": corners}))
    with pytest.raises(FlagError, match=r"config\.json cannot be read .*learning_rates"):
        run.write_curves()
