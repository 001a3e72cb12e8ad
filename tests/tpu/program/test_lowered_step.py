"""Programs that a process keeps, and programs that jax keeps on disk."""

import os

import numpy as np
import pytest

from bert_estimator.tpu.program import devices, lowered_step


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
    """Returns a function that compiles a program, as a new process does; it returns the events.

    The cache is at its default place, in a home directory that is empty at first.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    events = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    settings = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": None,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in settings}

    def compiled():
        compilation_cache.reset_cache()
        jax.config.update("jax_compilation_cache_dir", None)
        lowered_step.keep_on_disk()
        events.clear()
        cores = devices.find("rehearse:1")
        function = jax.jit(lambda x: np.float32(3) * x + 1)
        assert function(jax.device_put(np.float32(2), cores[0])) == 7
        return [event.rpartition("/")[2] for event in events]

    for name, value in settings.items():
        jax.config.update(name, value)
    yield compiled
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def files(folder):
    paths = [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]
    return {path: os.path.getsize(path) for path in paths}


def test_another_process_finds_a_program_on_disk(on_disk, tmp_path):
    assert "cache_hits" not in on_disk()
    kept = files(tmp_path)
    assert list(kept) and all(path.endswith("-cache") for path in kept)
    assert all(path.startswith(lowered_step.default_directory()) for path in kept)
    assert "cache_hits" in on_disk()
    assert files(tmp_path) == kept


def test_a_damaged_program_is_made_again_and_replaced(on_disk, tmp_path):
    on_disk()
    kept = files(tmp_path)
    for path in kept:
        with open(path, "wb") as file:
            file.write(b"a part")
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache"):
        assert "cache_hits" not in on_disk()
    assert files(tmp_path).keys() == kept.keys()
    assert "cache_hits" in on_disk()


def test_the_oldest_programs_are_removed(on_disk, tmp_path, monkeypatch):
    directory = lowered_step.default_directory()
    os.makedirs(directory)
    for age, name in enumerate(["newest", "older", "oldest"]):
        path = os.path.join(directory, name)
        with open(path, "wb") as file:
            file.write(bytes(100))
        os.utime(path, (1000 - age, 1000 - age))
    monkeypatch.setattr(lowered_step, "_MOST_BYTES_ON_DISK", 250)
    on_disk()
    names = [os.path.basename(path) for path in files(tmp_path)]
    assert {"newest", "older"} < set(names) and "oldest" not in names


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
