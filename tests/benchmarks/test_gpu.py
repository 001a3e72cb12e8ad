"""Tests the GPU benchmark: rows, table, resuming and errors, and a whole run on a CPU."""

import csv
import json
import math
import os
import subprocess
import sys
import types

import numpy as np
import pytest

from benchmarks import gpu, torch_bert

RESULT = {"device": "GPU X", "versions": "jax 1", "secs": 0.25, "first_loss": 11, "last_loss": 9.5}
COMMAND = ["gpu", "--networks", "base", "--lengths", "128", "512", "--tokens", "1024"]

# This counts the floating-point operations of all of torch's steps.
COUNT_FLOPS = """
import sys
from benchmarks import torch_bert
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    torch_bert.time_step(sys.argv[1], 1, "rehearse:1")
print(counter.get_total_flops() / (torch_bert._WARMUP + 1))
"""


def row(side, network="base", length="128", **results):
    key = ("GPU X", network, length, "32", side)
    return gpu.row_of(key, {**RESULT, **results}, flops=1e12, peak=1e13, steps=10)


def test_a_row_has_the_share_of_the_peak_where_both_are_known():
    given = row("exported")
    assert list(given) == gpu.COLUMNS
    assert (given["secs"], given["sequences_per_sec"]) == ("0.25", "128")
    assert given["share_of_peak"] == "0.4000"
    for flops, peak in ((None, 1e13), (1e12, None)):
        given = gpu.row_of(("GPU X", "base", "128", "32", "torch"), RESULT, flops, peak, 10)
        assert given["share_of_peak"] == ""


def test_the_table_has_a_column_for_each_side():
    rows = [
        row("exported"),
        row("torch.compile", secs=0.5),
        row("exported", "large", "512", secs=gpu.OUT_OF_MEMORY),
        {**row("torch", "large", "512"), "share_of_peak": ""},
    ]
    assert gpu.table(rows).splitlines()[2:] == [
        "| GPU X | base, 128, 32 | 128 (40.0%) | not measured | 64 (20.0%) |",
        "| GPU X | large, 512, 32 | out of memory | 128 | not measured |",
    ]


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Records the calls of other processes; torch.compile runs out of memory."""
    questions = []

    def ask(python, what, hide_gpus=False, directory=None, compiled=False, **arguments):
        questions.append((what, compiled, directory and os.path.basename(directory)))
        if what == "export":
            os.makedirs(directory)
            with open(os.path.join(directory, "benchmark.json"), "w", encoding="utf-8") as writer:
                json.dump({"flops": 1e12}, writer)
        return {**RESULT, "secs": gpu.OUT_OF_MEMORY} if compiled else RESULT

    monkeypatch.setattr(gpu, "ask", ask)
    paths = [f"--programs={tmp_path / 'programs'}", f"--results={tmp_path / 'gpu.csv'}"]
    monkeypatch.setattr(sys, "argv", [*COMMAND, *paths])
    return questions


def test_the_devices_first_then_programs_then_every_side_once(asked, tmp_path, capsys):
    gpu.main()
    sides = [("exported", False), ("torch", False), ("torch", True)]
    cells = ["base_128_8", "base_512_2"]
    assert asked == [
        *[(*side, None) for side in sides],
        *[("export", False, cell) for cell in cells],
        *[(*side, cell) for cell in cells for side in sides],
    ]
    table = capsys.readouterr().out
    assert "| GPU X | base, 512, 2 | 8 | 8 | out of memory |" in table
    with open(tmp_path / "gpu.csv", newline="", encoding="utf-8") as reader:
        rows = list(csv.DictReader(reader))
    assert [(r["length"], r["side"]) for r in rows] == [
        (length, side) for length in ("128", "512") for side in gpu.SIDES
    ]


def test_rows_in_the_file_are_not_measured_again(asked, tmp_path, capsys):
    gpu.main()
    path = tmp_path / "gpu.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    del asked[:]
    gpu.main()
    assert asked[3:] == [("torch", True, "base_512_2")]
    assert path.read_text() == "".join(lines)


def test_missing_programs_are_told_before_anything_is_timed(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="lacks the programs base_128_8, base_512_2, and Tensor"):
        gpu.main()
    assert {directory for *_, directory in asked} == {None}


def test_running_out_of_memory_is_an_answer_and_other_failures_are_not(monkeypatch, capsys):
    def fail(directory, message):
        raise RuntimeError(message)

    monkeypatch.setattr(gpu, "VERBS", {"torch": fail, "export": fail})
    no_memory = {"directory": "d", "message": "CUDA out of memory. Tried to allocate 2 GiB"}
    gpu.answer("torch", no_memory)
    assert json.loads(capsys.readouterr().out) == {"secs": gpu.OUT_OF_MEMORY}
    with pytest.raises(RuntimeError, match="out of memory"):
        gpu.answer("export", no_memory)
    with pytest.raises(RuntimeError, match="illegal"):
        gpu.answer("torch", {"directory": "d", "message": "illegal memory access"})


def test_no_torch_and_no_gpu_say_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(__version__="5"))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeError, match=r"Name a Python that has torch .* with --torch_python"):
        torch_bert.time_step(None, 1, "gpu")
    cuda = types.SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2", cuda=cuda))
    with pytest.raises(
        RuntimeError, match=r"torch 2 of .* does not find a CUDA GPU: run this on a"
    ):
        torch_bert.time_step(None, 1, "gpu")


def test_an_error_of_another_process_ends_this_one():
    arguments = {"steps": 1, "tpu_name": "nowhere"}
    with pytest.raises(SystemExit, match="nowhere") as given:
        gpu.ask(sys.executable, "exported", directory=None, **arguments)
    assert "Traceback" not in str(given.value)
    with pytest.raises(SystemExit, match="ended with 1"):
        gpu.ask(sys.executable, "exported", directory="no such program", **arguments)


def test_the_state_is_drawn_as_bert_draws_it():
    weights = {"dense/kernel": [100, 100], "dense/bias": [3], "LayerNorm/gamma": [3]}
    shapes = {"global_step": [], **weights, **{f"{n}/adam_m": s for n, s in weights.items()}}
    variables = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    variables["global_step"] = np.int64(7)
    state = gpu.drawn(variables)
    assert {name: (value.shape, value.dtype) for name, value in state.items()} == {
        name: (value.shape, value.dtype) for name, value in variables.items()
    }
    assert state.pop("dense/kernel").std() == pytest.approx(0.02, rel=0.05)
    assert state.pop("LayerNorm/gamma").tolist() == [1, 1, 1]
    assert not any(array.any() for array in state.values())


@pytest.mark.slow
@pytest.mark.usefixtures("xla_runtime")
def test_an_export_leaves_the_program_alone(tmp_path):
    gpu.export(str(tmp_path / "programs" / "tiny"), "tiny", 32, 4)
    assert os.listdir(tmp_path / "programs") == ["tiny"]
    names = os.listdir(tmp_path / "programs" / "tiny")
    assert {"step.stablehlo", "program.json", "benchmark.json"} <= set(names)
    assert "state.npz" not in names


@pytest.mark.slow
@pytest.mark.usefixtures("xla_runtime")
@pytest.mark.skipif(
    not os.environ.get("TRANSFORMERS_PYTHON"),
    reason="TRANSFORMERS_PYTHON names no Python with torch and transformers",
)
def test_both_do_the_same_work_on_a_cpu(tmp_path):
    python = os.environ["TRANSFORMERS_PYTHON"]
    command = [sys.executable, "-m", "benchmarks.gpu", "--networks", "tiny", "--lengths", "32"]
    command += ["--tokens=128", "--steps=2", "--tpu_name=rehearse:1", f"--torch_python={python}"]
    command += [f"--programs={tmp_path}", f"--results={tmp_path / 'gpu.csv'}"]
    subprocess.run(command, check=True, cwd=gpu.ROOT)
    with open(tmp_path / "gpu.csv", newline="", encoding="utf-8") as reader:
        rows = list(csv.DictReader(reader))
    assert [r["side"] for r in rows] == gpu.SIDES
    for each in rows:
        assert (each["device"], each["batch"], each["share_of_peak"]) == ("cpu", "4", "")
        assert float(each["secs"]) > 0
        # An untrained network gives the same probability to all words, and to both labels.
        assert float(each["first_loss"]) == pytest.approx(math.log(30522 * 2), abs=0.2)
    program = tmp_path / "tiny_32_4"
    command = [python, "-c", COUNT_FLOPS, program]
    counted = subprocess.run(command, check=True, cwd=gpu.ROOT, stdout=subprocess.PIPE, text=True)
    exported = json.loads((program / "benchmark.json").read_text())["flops"]
    assert float(counted.stdout) == exported
