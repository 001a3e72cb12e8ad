"""Programs that a process keeps, programs that jax keeps on disk, and chunks of steps."""

import os
import threading

import filelock
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.tpu.program import devices, lowered_step
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.program.lowered_step import DeviceLoop
from bert_estimator.tpu.step.xla.step_graph import StepGraph

pytestmark = pytest.mark.usefixtures("xla_runtime")


def test_the_programs_that_were_used_last_are_kept(monkeypatch):
    monkeypatch.setattr(lowered_step, "_MOST_PROGRAMS", 2)
    kept = lowered_step.KeptPrograms()
    made = [kept.get(key, lambda key=key: [key]) for key in "abacab"]
    assert [program[0] for program in made] == list("abacab")
    assert kept.num_made == 4  # a, b, c, and b again
    assert made[0] is made[2] is made[4]


def test_a_program_that_cannot_be_made_is_not_kept():
    kept = lowered_step.KeptPrograms()
    with pytest.raises(ZeroDivisionError):
        kept.get("a", lambda: 1 / 0)
    assert kept.get("a", lambda: 1) == 1


def test_a_digest_tells_parts_apart():
    digests = {lowered_step.digest(*parts) for parts in [("ab",), ("a", "b"), ("b", "a"), ()]}
    assert len(digests) == 4
    assert lowered_step.digest("a") == lowered_step.digest(b"a")


@pytest.fixture
def on_disk(xla_runtime, tmp_path, monkeypatch):
    """Returns a function that compiles a program as a new process does; it gives the events."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    events = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    settings = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": None,
        "jax_compilation_cache_max_size": -1,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in settings}

    def compiled(factor=3):
        compilation_cache.reset_cache()
        jax.config.update("jax_compilation_cache_dir", None)
        lowered_step.keep_on_disk()
        events.clear()
        cores = devices.find("rehearse:1")
        function = jax.jit(lambda x: np.float32(factor) * x + 1)
        assert function(jax.device_put(np.float32(2), cores[0])) == 2 * factor + 1
        return [event.rpartition("/")[2] for event in events]

    for name, value in settings.items():
        jax.config.update(name, value)
    yield compiled
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def files(folder):
    """Returns the paths below a folder -> their sizes, without jax's lock."""
    paths = [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]
    return {path: os.path.getsize(path) for path in paths if not path.endswith(".lockfile")}


def programs(folder):
    return {path: size for path, size in files(folder).items() if path.endswith("-cache")}


def test_another_process_finds_a_program_on_disk(on_disk, tmp_path):
    assert "cache_hits" not in on_disk()
    kept = files(tmp_path)
    assert programs(tmp_path)
    assert all(path.startswith(lowered_step.default_directory()) for path in kept)
    assert "cache_hits" in on_disk()
    assert files(tmp_path) == kept


def test_what_a_killed_process_left_is_made_again_and_replaced(on_disk, tmp_path):
    """It has written a part of a program, and not yet when the program was used."""
    on_disk()
    kept = files(tmp_path)
    for path in programs(tmp_path):
        with open(path, "wb") as file:
            file.write(b"a part")
        os.remove(f"{path.removesuffix('-cache')}-atime")
    assert "cache_hits" not in on_disk()
    assert files(tmp_path).keys() == kept.keys()
    assert "cache_hits" in on_disk()


def test_what_is_removed_waits_for_another_process_that_writes(tmp_path, monkeypatch):
    """A program that a kill cut a moment ago is removed, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = lowered_step.default_directory()
    os.makedirs(directory)
    path = os.path.join(directory, "new-cache")
    with open(path, "wb"):
        pass
    remover = threading.Thread(target=lowered_step._remove_unfinished, args=(directory,))
    with filelock.FileLock(os.path.join(directory, ".lockfile")):
        remover.start()
        remover.join(0.3)
        assert remover.is_alive() and os.path.exists(path)
    remover.join(10)
    assert not os.path.exists(path)


def test_a_damaged_program_is_made_again(on_disk, tmp_path):
    on_disk()
    for path in programs(tmp_path):
        with open(path, "wb") as file:
            file.write(b"a part")
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache"):
        assert "cache_hits" not in on_disk()


def test_what_was_not_used_for_longest_is_removed(on_disk, tmp_path, monkeypatch):
    on_disk(3)
    monkeypatch.setattr(
        lowered_step, "_MOST_BYTES_ON_DISK", int(2.5 * sum(programs(tmp_path).values()))
    )
    on_disk(4)
    assert "cache_hits" in on_disk(3)
    on_disk(5)  # in place of 4
    assert "cache_hits" in on_disk(3) and "cache_hits" in on_disk(5)
    assert "cache_hits" not in on_disk(4)


def test_a_directory_that_cannot_be_made(on_disk, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "cache_hits" not in on_disk()
    assert "cache_hits" not in on_disk()


def test_the_user_s_directory_cannot_be_made(on_disk, tmp_path, logged):
    import jax

    (tmp_path / "file").write_text("")
    directory = str(tmp_path / "file" / "programs")
    jax.config.update("jax_compilation_cache_dir", directory)
    lowered_step.keep_on_disk()
    (line,) = [line for _, line in logged if "JAX_COMPILATION_CACHE_DIR" in line]
    assert line.startswith(
        f"JAX_COMPILATION_CACHE_DIR={directory} cannot be used (Not a directory)"
    )
    assert on_disk() == ["task_disabled_cache"]
    assert files(tmp_path) == {str(tmp_path / "file"): 0}


def test_it_can_be_turned_off(on_disk, tmp_path):
    import jax

    jax.config.update("jax_enable_compilation_cache", False)
    on_disk()
    assert not files(tmp_path)


CORES, ROWS = 2, 2


@pytest.fixture(scope="module")
def lowered():
    """Lowers a step that adds up rows and counts; it gives loss, rows and the core's number."""
    with tf.Graph().as_default():
        program = StepGraph(CORES)
        rows = program.placeholder(tf.float32, [ROWS])
        with program.building():
            total = tf.get_variable("total", initializer=0.0)
            count = tf.get_variable("count", dtype=tf.int64, initializer=np.int64(0))
            loss = tf.reshape(tf.reduce_mean(rows), [1])
            sent = rows * tf.cast(count, tf.float32)
            with tf.control_dependencies([sent]):
                added = total.assign_add(tpu.cross_replica_sum(tf.reduce_sum(rows)))
                update = tf.group(added, count.assign_add(1))
            number = tf.reshape(tpu.replica_id(), [1])
        return program.lower([loss, sent, number], update)


def start(lowered, loop_length, ends_at_nan=True, **keywords):
    """Returns a loop, its state, and a function that makes a batch of given rows."""
    cores = devices.find(f"rehearse:{CORES}")
    loop = DeviceLoop(lowered, CoreMesh(cores), loop_length, ends_at_nan, **keywords)
    zeros = [np.zeros(variable.shape, variable.dtype) for variable in lowered.state]
    state = list(loop.put_state(dict(enumerate(zeros))).values())
    return loop, state, lambda *rows: loop.put_batch([np.float32(rows)])


def values(lowered, state):
    return {v.name: np.asarray(s).item() for v, s in zip(lowered.state, state, strict=True)}


@pytest.mark.parametrize("lengths", [[5], [1, 4], [3, 2], [1] * 5])
def test_chunks_of_any_length_equal_single_steps(lowered, lengths):
    loop, state, batch = start(lowered, 5)
    assert loop.most_steps == 5
    outputs, step = [], 0
    for length in lengths:
        batches = [batch(1, 2, 3, step + i) for i in range(length)]
        state, chunk = loop.run(state, batches)
        assert int(chunk.count) == length
        outputs += zip(*(np.asarray(o)[:length].tolist() for o in chunk.outputs), strict=True)
        step += length
    assert outputs == [
        ([1.5, (3 + k) / 2], [1.0 * k, 2.0 * k, 3.0 * k, 1.0 * k * k], [0, 1]) for k in range(5)
    ]
    assert values(lowered, state) == {"total": 5 * 6.0 + 10, "count": 5}


def test_outputs_that_only_the_last_step_gives(lowered):
    loop, state, batch = start(lowered, 4, num_last=2)
    _, chunk = loop.run(state, [batch(1, 2, 3, 4), batch(5, 6, 7, 8), batch(1, 1, 2, 2)])
    assert np.asarray(chunk.outputs[0])[:3].tolist() == [[1.5, 3.5], [5.5, 7.5], [1, 2]]
    assert [value.tolist() for value in map(np.asarray, chunk.last)] == [[2, 2, 4, 4], [0, 1]]
    assert len(chunk.outputs) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_on_one_core_ends_all(lowered, bad):
    loop, state, batch = start(lowered, 4)
    batches = [batch(1, 1, 1, 1), batch(1, 1, 1, bad), batch(1, 1, 1, 1)]
    state, chunk = loop.run(state, batches)
    state, after = loop.run(state, batches[:1])
    assert (int(chunk.count), int(after.count)) == (2, 0)
    np.testing.assert_array_equal(np.asarray(chunk.outputs[0])[:2], [[1, 1], [1, bad]])
    assert values(lowered, state)["count"] == 2


def test_where_nothing_is_trained_it_goes_on(lowered):
    loop, state, batch = start(lowered, 4, ends_at_nan=False)
    state, chunk = loop.run(state, [batch(1, 1, 1, 1), batch(1, 1, 1, np.nan), batch(1, 1, 1, 1)])
    assert int(chunk.count) == 3
    assert values(lowered, state)["count"] == 3


def test_the_same_batch_for_every_core(lowered):
    loop, state, batch = start(lowered, 1, same_batch=True)
    _, chunk = loop.run(state, [batch(1, 2)])
    assert np.asarray(chunk.outputs[0]).tolist() == [[1.5, 1.5]]


def test_a_chunk_is_bounded_in_steps_and_in_bytes(lowered, monkeypatch):
    assert start(lowered, 10**6)[0].most_steps == lowered_step._MOST_STEPS
    assert start(lowered, float("inf"))[0].most_steps == lowered_step._MOST_STEPS
    monkeypatch.setattr(lowered_step, "_MOST_BYTES", 40)  # The rows have 8 bytes, and the number 4.
    assert start(lowered, 10**6)[0].most_steps == 3
    monkeypatch.setattr(lowered_step, "_MOST_BYTES", 1)
    assert start(lowered, 10**6)[0].most_steps == 1
