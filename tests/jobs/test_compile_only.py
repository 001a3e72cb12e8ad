"""`--compile_only` of both scripts: its flags, its report, and what it suggests."""

import contextlib
import io
import json
import math
import os
import re

import log_lines
import pytest
from scripts import PRETRAINING
from tiny_run import write_pairs

import run_classifier
import run_pretraining
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_variables
from bert_estimator.jobs import compile_only
from bert_estimator.jobs.pretraining import pretraining_config
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab
from input_pipelines.records import pretraining_input, record_lengths
from input_pipelines.records.order import BatchOrder
from input_pipelines.records.packed_rows import Packs

pytestmark = pytest.mark.usefixtures("tpu_compiler")

NETWORK = {
    "vocab_size": 64,
    "hidden_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 256,
    "hidden_act": "relu",
}


def command(tmp_path, **changes):
    """Flags of compiling a small network; a change to None leaves the flag out."""
    network = tmp_path / "bert_config.json"
    network.write_text(json.dumps(NETWORK))
    values = {
        "bert_config_file": network,
        "output_dir": tmp_path / "out",
        "use_tpu": True,
        "compile_only": True,
        "tpu_topology": "v3:1x1",
        "train_batch_size": 4,
        "max_seq_length": 16,
        "max_predictions_per_seq": 4,
        "num_train_steps": 100,
        "num_warmup_steps": 10,
        "optimizer": "adamw",  # LAMB has more to compile
        "precision": "bfloat16",
        **changes,
    }
    given = {name: value for name, value in values.items() if value is not None}
    return ["run_pretraining.py", *(f"--{name}={value}" for name, value in given.items())]


def flops_of_training(examples, length, predictions, has_sentences=True):
    """Counts the products of the network on paper: each forward product has two backward."""
    hidden, inner = NETWORK["hidden_size"], NETWORK["intermediate_size"]
    tokens, words = examples * length, examples * predictions
    dense = tokens * (4 * hidden * hidden + 2 * hidden * inner)
    attention = 2 * examples * length * length * hidden
    masked = words * (hidden * hidden + hidden * NETWORK["vocab_size"])
    next_sentence = has_sentences * examples * (hidden * hidden + 2 * hidden)
    return 3 * 2 * (dense + attention + masked + next_sentence)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compiles the network of `command`: (its directory, what was printed, what was logged)."""
    path, printed = tmp_path_factory.mktemp("compiled"), io.StringIO()
    with log_lines.collected() as logged, contextlib.redirect_stdout(printed):
        assert run_pretraining.main(command(path, log_every_secs=0.05)) == 0
    return path, printed.getvalue(), logged


def report_of(path, output_dir=None, **changes):
    out = output_dir or path / "out"
    assert run_pretraining.main(command(path, output_dir=out, **changes)) == 0
    return json.loads((out / "compile_report.json").read_text())


def test_the_report(compiled):
    tmp_path, printed, logged = compiled
    waiting = "Compiling for v3:1x1, which takes a minute for a small network and many minutes"
    assert any(line.startswith(waiting) for _, line in logged)  # a compilation is not silent
    assert "v3:1x1: 2 cores of TPU v3, 2 of 4 examples each" in printed
    assert "training: 100 steps, at least" in printed
    assert os.listdir(tmp_path / "out") == ["compile_report.json"]
    report = json.loads((tmp_path / "out" / "compile_report.json").read_text())
    assert report["fits"]
    assert report["least_total_secs"] == 100 * report["least_step_secs"]
    assert report["flops"] == flops_of_training(examples=2, length=16, predictions=4)
    # The arithmetic of so small a network is not what takes long.
    peak_secs = 100 * report["flops"] / report["peak"]
    assert report["least_total_secs"] > peak_secs / 0.283
    assert report["total_secs_at_share_of_the_paper"] == report["least_total_secs"]
    assert report["hosts"] == 1
    rate = 4 / report["least_step_secs"]
    assert report["input_examples_per_sec_per_host"] == rate
    cores = rate * pretraining_input.core_secs(16)
    assert report["input_cores_per_host"] == cores
    line = (
        f"input: each host (1) reads at most {rate:,.0f} examples a second, which keeps {cores:.2g}"
    )
    assert line in printed


@pytest.mark.slow  # it compiles once more
def test_masked_words_alone_need_neither_pooler_nor_head(tmp_path):
    """What the records were made for counts, unless a flag says otherwise."""
    (tmp_path / "data").mkdir()
    PRETRAINING.write_data(tmp_path / "data")
    of_pairs = tmp_path / "data" / "train.tfrecord"
    report = report_of(tmp_path, objective="mlm", input_file=of_pairs)
    expected = {"examples": 2, "length": 16, "predictions": 4}
    assert report["flops"] == flops_of_training(**expected, has_sentences=False)
    assert report["flops"] < flops_of_training(**expected)
    path = next((tmp_path / "data").glob("manifest*"))
    made = json.loads(path.read_text())
    made["creation"]["objective"] = "mlm"
    path.write_text(json.dumps(made))
    report = report_of(tmp_path, input_file=of_pairs)
    assert report["flops"] == flops_of_training(**expected, has_sentences=False)


@pytest.mark.slow
def test_packed_rows_of_records_of_a_given_fill(tmp_path, capsys):
    batch = {"train_batch_size": 64, "max_seq_length": 32, "max_predictions_per_seq": 5}
    report = report_of(tmp_path, pack=True, fill=0.5, **batch)
    lengths = record_lengths.evenly_spread(0.5, 32, 5)
    order = BatchOrder(len(lengths.tokens), 64, seed=0)
    packing = pretraining_input._slot_order(Packs(100), order, lengths, 32, 2).packing
    rows = packing.rows_of_part
    assert 16 < rows < 22  # a core has 32 examples
    hidden, inner = NETWORK["hidden_size"], NETWORK["intermediate_size"]
    dense = rows * 32 * (4 * hidden * hidden + 2 * hidden * inner)
    attention = 2 * rows * 32 * 32 * hidden
    words = packing.predictions_of_part * (hidden * hidden + hidden * NETWORK["vocab_size"])
    next_sentence = packing.slots_of_part * (hidden * hidden + 2 * hidden)
    assert report["flops"] == 3 * 2 * (dense + attention + words + next_sentence)
    assert report["token_share"] == pytest.approx(32 * lengths.token_share / rows, rel=0.02)
    printed = capsys.readouterr().out
    assert f"Packed: sequences share rows of 32 tokens, {2 * rows} a batch" in printed
    assert re.search(r"if each had a row of its own, 5\d\.\d% would be", printed)
    assert "positions: 7" in printed or "positions: 8" in printed


@pytest.mark.slow  # it compiles twice more; tests/tpu/step has what a split model computes
def test_a_model_split_over_two_cores_takes_half_the_memory_of_each(tmp_path, capsys):
    whole = report_of(tmp_path, tpu_topology="v5e:1x1", output_dir=tmp_path / "whole")
    half = report_of(tmp_path, tpu_topology="v5e:1x2", num_cores_per_replica=2)
    assert "2 cores of TPU v5e, 4 of 4 examples for each 2" in capsys.readouterr().out
    for kind in ("weights", "optimizer_state"):
        # The embeddings of positions, the pooler and the transform of the words are whole.
        assert 0.5 < half["memory"][kind] / whole["memory"][kind] < 0.8
    assert half["memory"]["total"] < whole["memory"]["total"]
    assert half["flops"] == whole["flops"] / 2


def test_cores_that_share_the_update_hold_half_of_the_state_each(compiled):
    half = json.loads((compiled[0] / "out" / "compile_report.json").read_text())
    hidden = NETWORK["hidden_size"]
    encoder = network_variables.encoder_shapes(BertConfig(**NETWORK)).values()
    heads = (hidden + 3) * hidden + NETWORK["vocab_size"] + 2 * hidden + 2
    whole = 4 * (sum(map(math.prod, encoder)) + heads)
    # Small variables are whole.
    assert 0.5 < half["memory"]["weights"] / whole < 0.6
    assert 0.5 < half["memory"]["optimizer_state"] / (2 * whole) < 0.6


def test_the_total_of_stages_has_their_times(tmp_path, capsys):
    """The compiler's part is tested elsewhere."""
    from bert_estimator.tpu.program.compile_report import CompileReport

    def totals(*flags):
        configs = pretraining_config.resolve(
            ["", "--recipe=lamb_76min", "--use_tpu", "--compile_only", "--tpu_topology=v3:32x32",
             f"--output_dir={tmp_path}", *flags]
        )  # fmt: skip
        for config, bound in zip(configs, (0.2, 1.0), strict=True):
            report = CompileReport(
                topology="v3:32x32", tpu="v3", cores=2048, compiler="", hbm=16, usable_hbm=15,
                train_batch_size=1, batch_per_core=1, fits=True, memory={}, flops=100, peak=1000,
                chips=1024, compiler_secs=bound,
            )  # fmt: skip
            times = compile_only._times(report, 3600)
            os.makedirs(config.output_dir, exist_ok=True)
            with open(os.path.join(config.output_dir, "compile_report.json"), "w") as writer:
                json.dump(times, writer)
        compile_only.print_total(configs)
        return capsys.readouterr().out

    # 28.3 % of peak is 0.353 s a step; the bound of the second stage is above it.
    least, likely = "72 min", "81 min"
    line = f"all 2 stages: {least} at least; at 28.3% of peak {likely}"
    assert totals() == f"{line}. The paper's lamb_76min took 76.19 minutes on v3:32x32\n"
    assert totals("--scale=smoke") == f"{line}\n"  # That is another network.


@pytest.mark.parametrize(("secs", "text"), [(0.0234, "0.023 s"), (11.4, "11 s"), (7000, "117 min")])
def test_small_times_have_digits(secs, text):
    assert compile_only._duration(secs) == text


def test_a_report_has_a_directory_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = command(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text('{"flags": {}}')
    assert run_pretraining.main(flags) == 2
    assert "has a run; give another directory for the report" in capsys.readouterr().err
    without = [flag for flag in flags if not flag.startswith("--output_dir")]
    (config,) = pretraining_config.resolve(without)
    assert config.output_dir == "runs/pretraining_plan"


def test_what_does_not_fit(tmp_path, capsys):
    changes = {"train_batch_size": 2**21, "precision": "float32", "micro_batch_size": 2**20}
    assert run_pretraining.main(command(tmp_path, **changes)) == 1
    printed = capsys.readouterr().out
    assert "IT DOES NOT FIT" in printed
    for remedy in ("--precision=bfloat16", "--recompute", "--optimizer=adafactor"):
        assert f"\n  {remedy}\n" in printed
    (size,) = re.findall(r"\n  --micro_batch_size=(\d+)\n", printed)
    assert int(size) < 2**19  # it is more than twice too big
    (number,) = re.findall(r"\n  (\d+) cores\n", printed)
    assert int(number) > 2
    report = json.loads((tmp_path / "out" / "compile_report.json").read_text())
    assert not report["fits"]
    assert {"flags": "--precision=bfloat16"} in report["remedies"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_tpu": None}, "--use_tpu is not given"),
        ({"tpu_name": "rehearse:2"}, "--tpu_name=rehearse:2: names cores to run on"),
        ({"tpu_topology": "v3:banana"}, "--tpu_topology=v3:banana: "),
        (
            {"train_batch_size": 3},
            "--train_batch_size=3: must be a multiple of the 2 cores of --tpu_topology=v3:1x1",
        ),
        (
            {"num_tpu_cores": 4},
            "--num_tpu_cores=4: is not the number of cores of --tpu_topology=v3:1x1, 2; leave it",
        ),
        ({"fill": 0.5, "compile_only": None, "tpu_topology": None}, "--fill=0.5: goes with"),
        ({"fill": 1.5}, "--fill=1.5: must be above 0 and at most 1"),
        ({"pack": True}, "--pack=True: needs --fill or --input_file"),
    ],
)
def test_flags_that_cannot_work(tmp_path, capsys, changes, message):
    assert run_pretraining.main(command(tmp_path, **changes)) == 2
    assert message in capsys.readouterr().err


# Fine-tuning


@pytest.fixture
def task(tmp_path):
    """Flags of a small fine-tuning on one's own file, of 40 rows with three labels."""
    words = [f"w{i}" for i in range(NETWORK["vocab_size"] - len(SPECIAL_TOKENS))]
    write_vocab([*SPECIAL_TOKENS, *words], str(tmp_path / "vocab.txt"))
    rows = [(f"w{i}", f"w{i + 1}", f"label{i % 3}") for i in range(40)]
    write_pairs(tmp_path / "train.tsv", rows)
    return {"vocab_file": tmp_path / "vocab.txt", "train_file": tmp_path / "train.tsv"}


def classifier_command(tmp_path, **changes):
    """Returns the flags of `command` for run_classifier.py."""
    pretraining = ("max_predictions_per_seq", "num_train_steps", "num_warmup_steps")
    left_out = {**dict.fromkeys(pretraining), "num_train_epochs": 2}
    return ["run_classifier.py", *command(tmp_path, **left_out, **changes)[1:]]


@pytest.mark.parametrize("pack", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_report_of_a_fine_tuning(tmp_path, task, capsys, pack):
    """Only the training file is read, for its labels and the lengths of its rows; the step is
    compiled once, whatever else is asked for."""
    others = {"do_eval": True, "do_predict": True, "num_seeds": 3, "pack": pack}
    assert run_classifier.main(classifier_command(tmp_path, **task, **others)) == 0
    printed = capsys.readouterr().out
    assert printed.count("training: 20 steps, at least") == 1
    assert "v3:1x1: 2 cores of TPU v3, 2 of 4 examples each" in printed
    assert os.listdir(tmp_path / "out") == ["compile_report.json"]
    report = json.loads((tmp_path / "out" / "compile_report.json").read_text())
    assert report["fits"] and report["num_train_steps"] == 20
    # Of 4 examples of 5 tokens, 3 share a row, and a core has a row of 3 slots. The head computes
    # what an empty slot gives, too.
    rows, slots, share = (1, 3, 20 / 32) if pack else (2, 2, 5 / 16)
    hidden, inner, length = 128, 256, 16
    dense = rows * length * (4 * hidden * hidden + 2 * hidden * inner)
    attention = 2 * rows * length * length * hidden
    head = slots * (hidden * hidden + hidden * 3)
    assert report["flops"] == 3 * 2 * (dense + attention + head)
    assert report["token_share"] == share
    assert f"positions: {share:.1%} of what a step computes are tokens" in printed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_file": None}, "--train_file: is needed for --compile_only; or turn it off"),
        (
            {"train_batch_size": 128},
            "--num_train_epochs=2.0: the 40 examples do not make a step of --train_batch_size=128",
        ),
    ],
)
def test_flags_of_a_fine_tuning_that_cannot_work(tmp_path, task, capsys, changes, message):
    own = {"eval_file": task["train_file"]}
    assert run_classifier.main(classifier_command(tmp_path, **{**task, **own, **changes})) == 2
    assert message in capsys.readouterr().err
