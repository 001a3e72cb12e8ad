"""Tests training programs that are exported, loaded, and run without TensorFlow."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.cluster import hosts
from bert_estimator.tpu import run_program
from bert_estimator.tpu.program import devices, exported_program
from bert_estimator.tpu.verbs import exporting

pytestmark = pytest.mark.usefixtures("xla_runtime")

BATCH, WIDTH = 4, 3

# This runs a module while importing TensorFlow fails, as if it were not installed.
WITHOUT_TENSORFLOW = """
import runpy, sys
sys.modules["tensorflow"] = None
sys.argv[0] = "run_program"
runpy.run_module("bert_estimator.tpu.run_program", run_name="__main__")
"""


def model_fn(features, labels, mode, params):
    """Trains a weight from zero by gradient descent; a slot in bfloat16 counts the steps."""
    weight = tf.get_variable("w", [WIDTH, 1], initializer=tf.zeros_initializer())
    slot = tf.get_variable("slot", [2], tf.bfloat16, tf.zeros_initializer(), trainable=False)
    prediction = tf.matmul(tf.cast(features["x"], tf.float32), weight)
    loss = tf.reduce_mean((prediction - labels) ** 2)
    optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.1))
    update = optimizer.minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(update, slot.assign_add([1, 1])))


def input_fn(params):
    """Returns data in which step k gets batch k, whenever training starts."""
    start = params["context"].global_step

    def batch(number):
        x = tf.random.stateless_normal([params["batch_size"], WIDTH], seed=[7, number])
        return {"x": tf.cast(x, tf.bfloat16)}, tf.reduce_sum(x, axis=1, keepdims=True)

    return tf.data.Dataset.range(start, start + 10).map(batch)


def estimator(folder, master, function=model_fn, warm_start_from=None, **of_tpu):
    config = tpu.RunConfig(
        master=master,
        model_dir=str(folder),
        tf_random_seed=1,
        log_step_count_steps=1,
        tpu_config=tpu.TPUConfig(iterations_per_loop=1, **of_tpu),
    )
    return tpu.TPUEstimator(
        function,
        config=config,
        train_batch_size=BATCH,
        warm_start_from=warm_start_from,
        sharding=[("slot", 0)],
    )


def losses_of_training(estimator, data, steps):
    losses = []
    listener = tpu.LogListener(lambda record: losses.append(record["loss"]))
    estimator.train(data, hooks=[listener], steps=steps)
    return losses


@pytest.fixture(scope="module", params=["", "rehearse:2"])
def exported(request, tmp_path_factory):
    """Returns (directory of a program exported at step 2, training's losses of steps 3 to 6)."""
    folder = tmp_path_factory.mktemp("export")
    trained = estimator(folder / "model", request.param)
    trained.train(input_fn, steps=2)
    trained.export_training_program(input_fn, str(folder / "program"), num_batches=4)
    resumed = estimator(folder / "model", request.param)
    return folder / "program", losses_of_training(resumed, input_fn, 4)


def run_without_tensorflow(*arguments):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def test_it_resumes_from_the_checkpoint_as_training_does(exported):
    directory, losses = exported
    program = exported_program.load(str(directory))
    assert set(program.batches[0]) == {"x", "labels"}
    cores = devices.find(f"rehearse:{program.num_cores}")
    program_losses, secs, compile_secs = run_program.run(program, cores, len(losses))
    np.testing.assert_allclose(program_losses, losses, rtol=1e-6)
    assert secs > 0
    assert compile_secs > 0


def test_it_runs_if_tensorflow_is_not_installed(exported):
    directory, losses = exported
    done = run_without_tensorflow(directory, "--steps=4")
    assert done.returncode == 0, done.stderr
    cores, flops = re.search(
        rf"([12]) x cpu; {BATCH} examples and (\d+) FLOP", done.stdout
    ).groups()
    assert int(flops) == 2 * 2 * WIDTH * BATCH // int(cores)  # the product and its gradient
    assert re.search(r"others: \S+ s each, \S+ sequences/s, share of peak: not known", done.stdout)
    first, last = re.search(r"loss: (\S+) at .* (\S+) at step 4", done.stdout).groups()
    assert (float(first), float(last)) == pytest.approx((losses[0], losses[3]), abs=1e-5)


def assert_runs_as_training_does(trained, data, directory):
    trained.export_training_program(data, directory, num_batches=3)
    program = exported_program.load(directory)
    cores = devices.find(f"rehearse:{program.num_cores}")
    losses, *_ = run_program.run(program, cores, 3)
    np.testing.assert_allclose(losses, losses_of_training(trained, data, 3), rtol=1e-6)


def test_a_batch_drawn_core_by_core(tmp_path):
    mode = tpu.InputPipelineConfig.PER_HOST_V2
    trained = estimator(tmp_path / "model", "rehearse:2", per_host_input_for_training=mode)
    assert_runs_as_training_does(trained, input_fn, str(tmp_path / "program"))


def test_a_warm_start(tmp_path):
    source = estimator(tmp_path / "source", "").train(input_fn, steps=2).model_dir
    trained = estimator(tmp_path / "model", "", warm_start_from=source)
    assert_runs_as_training_does(trained, input_fn, str(tmp_path / "program"))
    program = exported_program.load(str(tmp_path / "program"))
    assert program.state["w"].any()  # the initial values are zeros
    np.testing.assert_array_equal(program.state["w"], tf.train.load_variable(source, "w"))


def test_cores_that_share_one_model_are_exported_as_one(tmp_path):
    trained = estimator(tmp_path / "model", "rehearse:2", num_cores_per_replica=2)
    assert_runs_as_training_does(trained, input_fn, str(tmp_path / "program"))


@pytest.mark.parametrize(
    ("of_tpu", "message"),
    [
        (
            {"per_host_input_for_training": tpu.InputPipelineConfig.BROADCAST},
            "BROADCAST gives 4 cores the same batch, but an exported program splits it",
        ),
        (
            {"num_cores_per_replica": 2},
            "num_cores_per_replica=2 splits the model of each of the 2 replicas",
        ),
    ],
)
def test_cores_whose_program_cannot_be_exported(tmp_path, of_tpu, message):
    trained = estimator(tmp_path / "model", "rehearse:4", **of_tpu)
    with pytest.raises(ValueError, match=f"export_training_program: .*{message}"):
        trained.export_training_program(input_fn, str(tmp_path / "program"))
    assert not (tmp_path / "program").exists()


def test_cores_of_several_hosts_cannot_be_exported_either(tmp_path):
    job = estimator(tmp_path, "rehearse:2")._job(tpu.ModeKeys.TRAIN)
    job = dataclasses.replace(job, hosts=hosts.Hosts(("here:1", "there:1")))
    with pytest.raises(ValueError, match=r"TF_CONFIG names 2 hosts.*: unset TF_CONFIG"):
        exporting.export_program(job, input_fn, 1)


def test_the_state_s_dtypes_survive(exported):
    program = exported_program.load(str(exported[0]))
    state = program.state
    assert state["slot"].dtype.name == "bfloat16"
    assert state["slot"].tolist() == [2, 2]
    assert (state["global_step"].dtype, int(state["global_step"])) == (np.int64, 2)
    assert program.batches[0]["x"].dtype.name == "bfloat16"


def test_other_batches(exported, tmp_path):
    directory, _ = exported
    batches = str(tmp_path / "batches.npz")
    x = np.zeros([1, BATCH, WIDTH], np.float32)
    np.savez(batches, x=x, labels=np.full([1, BATCH, 1], 2, np.float32))
    program = exported_program.load(str(directory), batches)
    found, *_ = run_program.run(program, devices.find(f"rehearse:{program.num_cores}"), 3)
    assert found == [4, 4, 4]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": (1, BATCH, WIDTH)}, r"holds \['x'\]; the program's inputs are \['labels', 'x'\]"),
        (
            {"x": (1, BATCH + 2, WIDTH), "labels": (1, BATCH, 1)},
            r"x has shape \(1, 6, 3\); it must be \[batches, 4, 3\]",
        ),
        (
            {"x": (2, BATCH, WIDTH), "labels": (1, BATCH, 1)},
            r"number of batches: \{'labels': 1, 'x': 2\}",
        ),
    ],
)
def test_batches_of_another_program(exported, tmp_path, arrays, message):
    path = str(tmp_path / "batches.npz")
    np.savez(path, **{name: np.zeros(shape, np.float32) for name, shape in arrays.items()})
    with pytest.raises(ValueError, match=message):
        exported_program.load(str(exported[0]), path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-30]),
        lambda path: path.write_bytes(path.read_bytes()[:10]),
        lambda path: path.write_bytes(path.read_bytes().replace(b"NUMPY", b"numpy")),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("no arrays"),
    ],
    ids=["its end", "most of it", "a byte", "all of it", "a text"],
)
@pytest.mark.parametrize("name", ["state.npz", "batches.npz"])
def test_a_damaged_file_is_named(exported, tmp_path, capsys, damage, name):
    directory = shutil.copytree(exported[0], tmp_path / "program")
    damage(directory / name)
    assert run_program.main(["run_program", str(directory)]) == 2
    error = capsys.readouterr().err
    message = f"{directory}/{name} is not an npz file, or is truncated or damaged ("
    assert f"run_program: {message}" in error


@pytest.mark.parametrize("content", [b"", b"\0" * 99, b"ML\xefR", None])
def test_a_damaged_step_is_named(exported, tmp_path, capsys, content):
    """If the content is None, the file is cut in half."""
    directory = shutil.copytree(exported[0], tmp_path / "program")
    path = directory / "step.stablehlo"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    assert run_program.main(["run_program", str(directory)]) == 2
    error = capsys.readouterr().err
    assert f"run_program: {path} is truncated or damaged, or {directory}/program.json bel" in error


def test_a_program_json_of_another_program_is_named(exported, tmp_path, capsys):
    directory = shutil.copytree(exported[0], tmp_path / "program")
    values = json.loads((directory / "program.json").read_text())
    for changes, message in (
        ({"step_sha256": "0" * 64}, "program.json belongs to another program: export it again"),
        ({"num_shards": 0}, "does not describe the program beside it"),
        ({"num_shards": 3}, "does not describe the program beside it"),
    ):
        (directory / "program.json").write_text(json.dumps({**values, **changes}))
        assert run_program.main(["run_program", str(directory)]) == 2
        assert message in capsys.readouterr().err


def test_a_full_disk_does_not_matter(exported, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    exported_program.load(str(exported[0]))


def test_too_little_memory_is_not_called_damage(exported, monkeypatch, capsys):
    def short(reader):
        raise MemoryError

    monkeypatch.setattr(np, "load", short)
    assert run_program.main(["run_program", str(exported[0])]) == 2
    error = capsys.readouterr().err
    assert re.search(r"state.npz: There is too little memory for its \d+ bytes", error)
    assert "damaged" not in error


def test_a_file_of_one_array_is_no_npz_file(exported, tmp_path):
    np.save(tmp_path / "batches.npy", np.zeros([1, BATCH, WIDTH]))
    with pytest.raises(ValueError, match=r"batches\.npy is not an npz file"):
        exported_program.load(str(exported[0]), str(tmp_path / "batches.npy"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda state: {"w": state["w"]}, r"state\.npz lacks \[.*'slot'.*\]"),
        (
            lambda state: {**state, "w": np.full_like(state["w"], np.nan)},
            r"state\.npz: these variables are not finite: w",
        ),
    ],
    ids=["lacks", "not finite"],
)
def test_a_state_that_cannot_be_trained_on_is_named(exported, tmp_path, capsys, changed, message):
    directory = shutil.copytree(exported[0], tmp_path / "program")
    np.savez(directory / "state.npz", **changed(dict(np.load(directory / "state.npz"))))
    assert run_program.main(["run_program", str(directory)]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_save_that_is_cut_short_leaves_no_program(exported, tmp_path, monkeypatch):
    directory = str(shutil.copytree(exported[0], tmp_path / "program"))
    program = exported_program.load(directory)

    def full(path, batches):
        raise OSError("No space left on device")

    monkeypatch.setattr(exported_program, "save_batches", full)
    with pytest.raises(OSError, match="No space left"):
        program.save(directory)
    with pytest.raises(ValueError, match=r"program\.json, which is written last, is missing"):
        exported_program.load(directory)
    monkeypatch.undo()
    program.save(directory)
    assert sorted(os.listdir(directory)) == sorted(os.listdir(exported[0]))
    assert exported_program.load(directory).state.keys() == program.state.keys()


def test_a_command_that_cannot_work(exported, tmp_path, capsys):
    assert run_program.main(["run_program", str(tmp_path)]) == 2
    assert f"{tmp_path} does not hold a complete exported program" in capsys.readouterr().err
    assert run_program.main(["run_program", str(exported[0]), "--tpu_name=nowhere"]) == 2
    assert "'nowhere' does not name a TPU" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_program.main(["run_program", str(exported[0]), "--steps=1"])
    assert "must be from 2 to 1000000" in capsys.readouterr().err


def test_fewer_cores_than_the_program_is_for(exported, tmp_path, capsys):
    cores = exported_program.load(str(exported[0])).num_cores
    message = f"exported for {cores + 1} cores, but there are {cores}"
    with pytest.raises(RuntimeError, match=message):
        run_program.find_cores(f"rehearse:{cores}", cores + 1)


def test_peaks():
    class Device:
        def __init__(self, kind):
            self.device_kind = kind

    assert run_program.peak_of(Device("NVIDIA H200")) == 989e12
    assert run_program.peak_of(Device("NVIDIA H100 PCIe")) is None  # a different board
    assert run_program.peak_of(Device("TPU v3")) == 61.5e12
    assert run_program.peak_of(Device("cpu")) is None
