"""Tests what the saver writes: durably, only finite weights, and without leftovers."""

import os
import re
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy
from google.protobuf import text_format
from kills import Killed
from tensorflow.python.lib.io import file_io
from toy import checkpoint_steps, input_fn, make_estimator, make_model_fn, weight_at

from bert_estimator import tpu
from bert_estimator.tpu.verbs import checkpoint_saver, checkpoints
from tests.tpu.verbs.test_snapshot import Naming

DATA = ".data-00000-of-00001"


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_number_kept_holds_over_restarts(tmp_path, keep):
    written = [0]
    for _ in range(3):
        make_estimator(tmp_path, save_checkpoints_steps=2, keep_checkpoint_max=keep).train(
            input_fn, steps=4
        )
        written += [written[-1] + 2, written[-1] + 4]
        assert checkpoint_steps(tmp_path) == written[-keep:]
        listed = tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths
        assert [int(path.rsplit("-", 1)[1]) for path in listed] == written[-keep:]


def test_the_number_kept_holds_over_restarts_with_a_saver_of_the_caller(tmp_path):
    """Its first save comes before the first step, and names only that in the state file."""
    for _ in range(3):
        saver = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=2)
        make_estimator(tmp_path, keep_checkpoint_max=2).train(input_fn, steps=4, hooks=[saver])
    assert checkpoint_steps(tmp_path) == [10, 12]


def test_0_keeps_all_over_restarts(tmp_path):
    for _ in range(2):
        make_estimator(tmp_path, save_checkpoints_steps=1, keep_checkpoint_max=0).train(
            input_fn, steps=4
        )
    assert checkpoint_steps(tmp_path) == [0, 2, 4, 6, 8]
    os.truncate(tmp_path / f"model.ckpt-8{DATA}", 1)
    assert checkpoints.newest_whole(str(tmp_path)) == f"{tmp_path}/model.ckpt-6"


def test_a_weight_that_is_not_finite_never_replaces_a_good_checkpoint(tmp_path):
    def w_after(weight, features):
        return tf.where(features["x"][0] > 4, np.inf, weight + 1)

    estimator = make_estimator(tmp_path, make_model_fn(w_after=w_after), save_checkpoints_steps=2)
    message = (
        r"At step 6 these .* not finite: w\. No checkpoint of this step was written\. The last "
        rf"checkpoint, {tmp_path}/model\.ckpt-4, was written before\. Lower"
    )
    with pytest.raises(tpu.NonFiniteWeightsError, match=message):
        estimator.train(input_fn, steps=10)
    assert checkpoint_steps(tmp_path) == [0, 2, 4]
    assert weight_at(tmp_path, 4) == 4.0
    assert estimator.latest_checkpoint() == f"{tmp_path}/model.ckpt-4"


def test_weights_that_are_not_finite_from_the_start(tmp_path):
    def fields(features, loss):
        tf.get_variable("bad", initializer=np.float32(np.nan))
        return {}

    estimator = make_estimator(tmp_path, make_model_fn(fields), save_checkpoints_steps=2)
    message = rf"At step 0 these .*: bad\. .* There is no checkpoint in {tmp_path} to go on from\."
    with pytest.raises(tpu.NonFiniteWeightsError, match=message):
        estimator.train(input_fn, steps=2)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_running_minimum_may_start_at_infinity(tmp_path, rules, is_resumed):
    """What a model_fn does not train may start so, and may stay so; a weight may not."""

    def w_after(weight, features):
        return tf.where(features["x"][0] > 4, np.inf, weight + 1)

    def fields(features, loss):
        for name in ("smallest", "of_the_optimizer"):
            initial = np.float32(np.inf)
            tf.get_variable(f"bounds/{name}", initializer=initial, trainable=False)
        return {}

    estimator = make_estimator(
        tmp_path, make_model_fn(fields, w_after=w_after), save_checkpoints_steps=2, **rules
    )
    if is_resumed:
        estimator.train(input_fn, steps=2)
    with pytest.raises(tpu.NonFiniteWeightsError, match=r"At step \d these .* not finite: w\. No"):
        estimator.train(input_fn, steps=10)
    assert estimator.get_variable_value("bounds/smallest") == np.inf


def test_variables_that_are_not_finite_are_named():
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("step", initializer=1)
        for n in range(15):
            value = [1.0, np.nan if n % 2 else np.inf] if n < 3 else [1.0, -1e38]
            tf.get_variable(f"v{n:02}", initializer=tf.constant(value))
        check = checkpoint_saver.FiniteCheck()
        session.run(tf.global_variables_initializer())
        assert check.names_of_bad(session) == ["v00", "v01", "v02"]


# Durably.


@pytest.fixture
def traced(monkeypatch):
    """A list of what is brought to the disk, by name, and of contents of state files."""
    calls = []
    fsync, write = os.fsync, file_io.atomic_write_string_to_file

    def noted_fsync(descriptor):
        calls.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def noted_write(filename, contents, *args, **kwargs):
        calls.append(contents)
        write(filename, contents, *args, **kwargs)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(file_io, "atomic_write_string_to_file", noted_write)
    return calls


@pytest.mark.parametrize("saver", [tf.train.Saver, Naming])
def test_a_checkpoint_is_on_the_disk_before_the_state_file_names_it(tmp_path, cores, traced, saver):
    def fields(features, loss):
        return {"scaffold_fn": lambda: tf.train.Scaffold(saver=saver())}

    config = {"save_checkpoints_steps": 2}
    make_estimator(tmp_path, make_model_fn(fields), **config).train(input_fn, steps=4)
    for step in (0, 2, 4):
        name = f"model.ckpt-{step}"
        first = re.compile(rf'model_checkpoint_path: "(.*/)?{name}"')
        named = next(i for i, call in enumerate(traced) if first.match(call))
        synced = {name + DATA, f"{name}.index", tmp_path.name}
        assert synced <= set(traced[:named])
        traced = traced[named + 1 :]


@pytest.mark.parametrize("name", ["graph.pbtxt", "model.ckpt-0.meta", "checkpoint"])
def test_a_full_disk_keeps_nothing_of_a_file_that_it_cuts(tmp_path, monkeypatch, name):
    write = file_io.atomic_write_string_to_file

    def cut(path, contents, *args, **kwargs):
        if os.path.basename(path) == name:
            file_io.write_string_to_file(f"{path}.tmp0123abcd", str(contents)[:9])
            raise tf.errors.ResourceExhaustedError(None, None, f"{path}; No space left on device")
        write(path, contents, *args, **kwargs)

    monkeypatch.setattr(file_io, "atomic_write_string_to_file", cut)
    estimator = make_estimator(tmp_path, save_checkpoints_steps=2, checkpoint_save_graph_def=True)
    with pytest.raises(tf.errors.ResourceExhaustedError, match=name):
        estimator.train(input_fn, steps=2)
    assert not list(tmp_path.glob("*tmp*"))
    # Without the state file, the checkpoint is complete all the same.
    assert checkpoint_steps(tmp_path) == ([0] if name == "checkpoint" else [])


def test_a_complete_checkpoint_has_its_graph(tmp_path, monkeypatch):
    """A kill in any place leaves a complete checkpoint with its .meta file, or not complete."""

    def sync(prefix):
        if prefix.endswith("-2"):
            raise Killed

    monkeypatch.setattr(checkpoint_saver, "sync", sync)
    estimator = make_estimator(tmp_path, save_checkpoints_steps=2, checkpoint_save_graph_def=True)
    with pytest.raises(Killed):
        estimator.train(input_fn, steps=4)
    assert checkpoint_steps(tmp_path) == [0, 2]
    for step in (0, 2):
        with tf.Graph().as_default():
            tf.train.import_meta_graph(f"{tmp_path}/model.ckpt-{step}.meta")


@pytest.mark.parametrize("use_tpu", [False, True])
def test_the_graph_is_written_as_a_file_and_for_tensorboard(tmp_path, use_tpu):
    make_estimator(
        tmp_path, use_tpu=use_tpu, save_checkpoints_steps=2, checkpoint_save_graph_def=True
    ).train(input_fn, steps=2)
    tf.summary.FileWriterCache.clear()
    as_file, meta_graph = tf.GraphDef(), tf.MetaGraphDef()
    text_format.Parse((tmp_path / "graph.pbtxt").read_text(), as_file)
    files = tmp_path.glob("events.out.tfevents.*")
    written = [event for file in files for event in tf.train.summary_iterator(str(file))]
    # `tf.summary.FileWriterCache` writes a graph of its own first, without operations.
    first, for_tensorboard = [event.graph_def for event in written if event.graph_def]
    assert not tf.GraphDef.FromString(first).node
    assert tf.GraphDef.FromString(for_tensorboard) == as_file
    *_, meta = [event.meta_graph_def for event in written if event.meta_graph_def]
    meta_graph.ParseFromString(meta)
    assert meta_graph.graph_def == as_file
    assert meta_graph.saver_def.filename_tensor_name
    assert {node.op for node in as_file.node} > {"VarHandleOp", "AssignAddVariableOp"}
    assert any("_output_shapes" in node.attr for node in as_file.node)


TRAINING = """
import sys, toy
toy.MASTER = sys.argv[2]
toy.make_estimator(sys.argv[1], save_checkpoints_steps=2).train(toy.input_fn, steps=4)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("master", ["", "rehearse:2"])
def test_the_kernel_sees_that_order(request, tmp_path, master):
    if master:
        request.getfixturevalue("xla_runtime")
    log, folder = tmp_path / "log", tmp_path / "run"
    calls = "trace=fsync,rename,renameat,renameat2,write,unlink,unlinkat"
    command = ["strace", "-f", "-y", "-s", "64", "-e", calls, "-o", log]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-c", TRAINING, folder, master]
    subprocess.run([*command, *program], env=environment, check=True, capture_output=True)
    lines = log.read_text(errors="replace").splitlines()
    for step in (0, 2, 4):
        name = f"model.ckpt-{step}"
        named = at(lines, "write(", f'model_checkpoint_path: \\"{name}\\"')
        written = at(lines, "rename", f'/{name}{DATA}"'), at(lines, "write(", f"/{name}.index>")
        synced = at(lines, "fsync(", f"/{name}{DATA}>"), at(lines, "fsync(", f"/{name}.index>")
        assert max(written) < min(synced)
        after = max(synced)
        assert after < after + at(lines[after:], "fsync(", f"{folder}>") < named


def at(lines, call, text):
    return next(i for i, line in enumerate(lines) if call in line and text in line)


# Without leftovers.


@pytest.fixture
def no_large_files():
    """Makes writing more than a few kB into a file fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def large_model_fn(features, mode, params):
    tf.get_variable("large", [200_000], initializer=tf.zeros_initializer())
    return make_model_fn()(features, mode, params)


def test_a_disk_that_becomes_full_while_a_checkpoint_is_written(tmp_path, cores, no_large_files):
    class Fills(tf.train.CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            if global_step_value == 4:
                no_large_files(500_000)

    estimator = make_estimator(tmp_path, large_model_fn, save_checkpoints_steps=2)
    with pytest.raises(tf.errors.OpError, match=r"(?s)model\.ckpt-4.*File too large"):
        estimator.train(input_fn, steps=6, saving_listeners=[Fills()])
    assert not [name for name in os.listdir(tmp_path) if "ckpt-4" in name or "tmp" in name]
    assert estimator.latest_checkpoint() == f"{tmp_path}/model.ckpt-2"
    no_large_files(resource.RLIM_INFINITY)
    make_estimator(tmp_path, large_model_fn, save_checkpoints_steps=2).train(input_fn, max_steps=6)
    assert checkpoint_steps(tmp_path) == [0, 2, 4, 6]
    assert weight_at(tmp_path, 6) == 6.0


@pytest.mark.parametrize("failing", ["the data", "the state file"])
def test_a_checkpoint_that_cannot_be_brought_to_the_disk(tmp_path, monkeypatch, failing):
    def fail(path):
        raise OSError(5, "Input/output error", path)

    def write_failing(
        saver, session, step, *args, write=checkpoint_saver.CheckpointSaver._write_files
    ):
        with monkeypatch.context() as patched:
            if step == 4 and failing == "the data":
                patched.setattr(checkpoint_saver.disk_files, "sync", fail)
            elif step == 4:
                patched.setattr(file_io, "atomic_write_string_to_file", lambda path, _: fail(path))
            return write(saver, session, step, *args)

    monkeypatch.setattr(checkpoint_saver.CheckpointSaver, "_write_files", write_failing)
    estimator = make_estimator(tmp_path, save_checkpoints_steps=2)
    with pytest.raises(OSError, match="Input/output error"):
        estimator.train(input_fn, steps=6)
    newest = checkpoints.newest_whole(str(tmp_path))
    assert newest == f"{tmp_path}/model.ckpt-{2 if failing == 'the data' else 4}"
    assert toy.weight_at(tmp_path, int(newest[-1])) == float(newest[-1])
