"""Training programs that leave TensorFlow behind: exported, loaded, run."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.tpu import devices, exported_program, run_program

pytestmark = pytest.mark.usefixtures("xla_runtime")

BATCH, WIDTH = 4, 3

# Runs a module where importing TensorFlow fails, as where it is not installed.
WITHOUT_TENSORFLOW = """
import runpy, sys
sys.modules["tensorflow"] = None
sys.argv[0] = "run_program"
runpy.run_module("bert_estimator.tpu.run_program", run_name="__main__")
"""


def model_fn(features, labels, mode, params):
    """Stochastic gradient descent from zero, with a slot in bfloat16 that counts."""
    weight = tf.get_variable("w", [WIDTH, 1], initializer=tf.zeros_initializer())
    slot = tf.get_variable("slot", [2], tf.bfloat16, tf.zeros_initializer(), trainable=False)
    prediction = tf.matmul(tf.cast(features["x"], tf.float32), weight)
    loss = tf.reduce_mean((prediction - labels) ** 2)
    optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.1))
    update = optimizer.minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(update, slot.assign_add([1, 1])))


def input_fn(params):
    """Batch k is the one of step k: another for each of the first ten."""
    start = params["context"].global_step

    def batch(number):
        x = tf.random.stateless_normal([params["batch_size"], WIDTH], seed=[7, number])
        return {"x": tf.cast(x, tf.bfloat16)}, tf.reduce_sum(x, axis=1, keepdims=True)

    return tf.data.Dataset.range(start, start + 10).map(batch)


def estimator(folder, master):
    config = tpu.RunConfig(
        master=master,
        model_dir=str(folder),
        tf_random_seed=1,
        tpu_config=tpu.TPUConfig(iterations_per_loop=1),
    )
    return tpu.TPUEstimator(model_fn, config=config, train_batch_size=BATCH)


@pytest.fixture(scope="module", params=["", "rehearse:2"])
def exported(request, tmp_path_factory):
    """(directory of a program exported at step 2, losses of training's steps 3 to 6)."""
    folder = tmp_path_factory.mktemp("export")
    trained = estimator(folder / "model", request.param)
    trained.train(input_fn, steps=2)
    trained.export_training_program(input_fn, str(folder / "program"), num_batches=4)
    losses = []
    listener = tpu.LogListener(lambda record: losses.append(record["loss"]))
    going_on = estimator(folder / "model", request.param)
    going_on = tpu.TPUEstimator(
        model_fn,
        config=going_on.config.replace(log_step_count_steps=1),
        train_batch_size=BATCH,
    )
    going_on.train(input_fn, hooks=[listener], steps=4)
    return folder / "program", losses


def run_without_tensorflow(*arguments):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def test_it_goes_on_from_the_checkpoint_as_training_does(exported):
    directory, losses = exported
    program = exported_program.load(str(directory))
    assert program.inputs == ["x", "labels"]
    cores = devices.find(f"rehearse:{program.num_cores}")
    found, secs, compile_secs = run_program.run(program, cores, len(losses))
    np.testing.assert_allclose(found, losses, rtol=1e-6)
    assert secs > 0
    assert compile_secs > 0


def test_it_runs_where_tensorflow_is_not_installed(exported):
    directory, losses = exported
    done = run_without_tensorflow(directory, "--steps=4")
    assert done.returncode == 0, done.stderr
    assert re.search(rf"[12] x cpu; {BATCH} examples and \d+ FLOP", done.stdout)
    assert re.search(r"others: \S+ s each, \S+ sequences/s, share of peak: not known", done.stdout)
    first, last = re.search(r"loss: (\S+) at .* (\S+) at step 4", done.stdout).groups()
    assert (float(first), float(last)) == pytest.approx((losses[0], losses[3]), abs=1e-5)


def test_the_state_s_dtypes_survive(exported):
    program = exported_program.load(str(exported[0]))
    state = dict(zip([v.name for v in program.lowered.state], program.state, strict=True))
    assert state["slot"].dtype.name == "bfloat16"
    assert state["slot"].tolist() == [2, 2]
    assert (state["global_step"].dtype, int(state["global_step"])) == (np.int64, 2)
    assert program.batches[0][0].dtype.name == "bfloat16"


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
        ({"x": (2, BATCH, WIDTH), "labels": (1, BATCH, 1)}, r"\{'x': 2, 'labels': 1\} batches"),
    ],
)
def test_batches_of_another_program(exported, tmp_path, arrays, message):
    path = str(tmp_path / "batches.npz")
    np.savez(path, **{name: np.zeros(shape, np.float32) for name, shape in arrays.items()})
    with pytest.raises(ValueError, match=message):
        exported_program.load(str(exported[0]), path)


def test_a_command_that_cannot_work(exported, tmp_path, capsys):
    assert run_program.main([str(tmp_path)]) == 2
    assert f"{tmp_path} holds no exported program" in capsys.readouterr().err
    assert run_program.main([str(exported[0]), "--tpu_name=nowhere"]) == 2
    assert "'nowhere' names no TPU" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_program.main([str(exported[0]), "--steps=1"])
    assert "must be at least 2" in capsys.readouterr().err


def test_fewer_cores_than_the_program_is_for(exported, tmp_path, capsys):
    described = json.loads((exported[0] / "program.json").read_text())
    program = exported_program.load(str(exported[0]))
    cores = program.num_cores
    assert described["num_cores"] == cores
    with pytest.raises(RuntimeError, match=f"exported for {cores + 1} cores, and here are {cores}"):
        run_program.find_cores(f"rehearse:{cores}", cores + 1)


def test_peaks():
    class Device:
        def __init__(self, kind):
            self.device_kind = kind

    assert run_program.peak_of(Device("NVIDIA H200")) == 989e12
    assert run_program.peak_of(Device("NVIDIA H100 PCIe")) is None  # another board
    assert run_program.peak_of(Device("TPU v3")) == 61.5e12
    assert run_program.peak_of(Device("cpu")) is None
