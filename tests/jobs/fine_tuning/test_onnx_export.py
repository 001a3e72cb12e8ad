"""Runs that export ONNX models: what is written, what is equal, and what is refused."""

import json
import os
import re
import shutil
import sys

import numpy as np
import pytest
import task_runs
from tiny_run import bert_config, pairs

from bert_estimator.interchange import open_source
from bert_estimator.interchange.onnx import model_directory, runtime
from bert_estimator.interchange.weights import logits_of
from bert_estimator.jobs.fine_tuning import onnx_export
from bert_estimator.serving.exported_model import find
from bert_estimator.serving.predictor import Predictor

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

FILES = [
    "bert_config.json", "config.json", "model.onnx", "task.json", "tokenizer.json",
    "tokenizer_config.json", "vocab.txt",
]  # fmt: skip
KINDS = [
    "classification",
    pytest.param("multi_label", marks=pytest.mark.slow),
    pytest.param("regression", marks=pytest.mark.slow),
    "tagging",
    "question_answering",
]


def write_files(path, kind, **changes):
    """Writes a task of a kind with its vocabulary and network; returns its flags."""
    task_runs.write_data(path)
    network = bert_config(30, initializer_range=0.3, **changes)
    (path / "bert_config.json").write_text(json.dumps(network))
    flags = task_runs.KINDS[kind][1](path, path / "run")
    flags += [flag.replace("eval", "predict") for flag in flags if flag.startswith("--eval_file")]
    flags += ["--nouse_tpu", "--do_export", "--export_format=onnx", "--do_predict"]
    return [*flags, "--learning_rate=2e-3"]  # higher rates give all texts about one number


def main(kind, flags):
    script = task_runs.KINDS[kind][0]
    return script.main([f"{script.__name__}.py", *flags])


def exports(path):
    folder = path / "run" / "export" / "onnx"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def texts_of(kind):
    if kind == "classification":
        return [(a, b) for a, b, _ in pairs(16, 2)]
    return [a for a, _, _ in pairs(16, 2)]


def features_of_answers(export_dir):
    network = open_source(str(export_dir.parent.parent.parent))
    generator = np.random.default_rng(5)
    ids = generator.integers(5, 35, size=(3, 16))
    lengths = np.array([[16], [9], [3]])
    mask = (np.arange(16) < lengths).astype(np.int32)
    batch = {"input_ids": ids.astype(np.int32), "input_mask": mask, "segment_ids": mask * 0}
    weights = {name: network.read(name) for name in network.shapes}
    return batch, logits_of(network.config, weights, batch)["answer_logits"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_task_becomes_a_model_with_the_same_answers(tmp_path, capsys, kind):
    flags = write_files(tmp_path, kind)
    assert main(kind, [*flags, "--do_train"]) == 0
    out = capsys.readouterr().out
    (export_dir,) = exports(tmp_path)
    assert sorted(os.listdir(export_dir)) == FILES
    assert f"ONNX model: {export_dir}\n" in out
    compared = re.search(r"differences between ONNX and TensorFlow on (\d+) examples .*: (.*)", out)
    num_compared = int(compared[1])
    # Long sentences are several examples.
    assert num_compared > 32 if kind == "tagging" else num_compared == 32
    differences = dict(part.split(" ") for part in compared[2].split(", "))
    assert max(map(float, differences.values())) < 1e-4
    task = json.loads((export_dir / "task.json").read_text())
    assert task["vocab_file"] == "vocab.txt"
    if kind == "question_answering":
        assert (task["kind"], task["doc_stride"]) == ("question_answering", 4)
        batch, logits = features_of_answers(export_dir)
        found = runtime.Model(str(export_dir)).run(batch)
        for place, name in enumerate(("start_logits", "end_logits")):
            is_token = batch["input_mask"] > 0
            np.testing.assert_allclose(
                found[name], np.where(is_token, logits[..., place], -10000), rtol=0, atol=1e-5
            )
        return
    assert find(str(tmp_path / "run")) == str(export_dir)
    predictor = Predictor(str(tmp_path / "run"), batch_size=3)
    if kind == "tagging":
        predicted = (tmp_path / "run" / "test_results.conll").read_text().strip().split("\n\n")
        sentences = [[line.split() for line in sentence.split("\n")] for sentence in predicted]
        answers = predictor([[word for word, *_ in sentence] for sentence in sentences])
        assert [a["tags"] for a in answers] == [[line[-1] for line in s] for s in sentences]
        return
    name = "logits" if kind == "regression" else "probabilities"
    expected = np.loadtxt(tmp_path / "run" / "test_results.tsv", delimiter="\t", ndmin=2)
    found = predictor.predict(texts_of(kind))[name]
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=0, atol=1e-5)
    predictor.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_int8_is_measured(tmp_path, capsys, kind):
    flags = write_files(tmp_path, kind, hidden_size=64, intermediate_size=128)
    flags = [flag for flag in flags if not flag.startswith(("--do_predict", "--export_format"))]
    flags += ["--do_train", "--do_eval", "--export_format=onnx_int8"]
    assert main(kind, flags) == 0
    out = capsys.readouterr().out
    metric, rounded, exact, loss = re.search(
        r"(\w+) of the model with int8: (\S+) \(with float32: (\S+); the loss: (\S+)\)", out
    ).groups()
    # The float32 model's metric is what the run's own evaluation finds.
    evaluated = re.search(rf"Evaluation at step \d: {metric} ([-.\d]+)", out)[1]
    assert float(exact) == pytest.approx(float(evaluated), abs=1.01e-4)
    assert float(exact) - float(rounded) == pytest.approx(float(loss), abs=1.01e-4)
    (export_dir,) = exports(tmp_path)
    assert sorted(os.listdir(export_dir)) == FILES
    model = runtime.load("onnx").load(str(export_dir / "model.onnx"))
    operations = {node.op_type for node in model.graph.node}
    assert {"MatMulInteger", "QAttention"} <= operations and "MatMul" not in operations
    assert {opset.domain for opset in model.opset_import} == {"", "com.microsoft"}
    if kind == "classification":
        assert Predictor(str(export_dir))([("w1 w2", "w3")])[0]["label"] in ("low", "high")


def test_a_model_with_other_outputs_is_not_delivered(tmp_path, capsys, monkeypatch):
    flags = write_files(tmp_path, "classification")
    assert main("classification", [*flags, "--do_train", "--nodo_export"]) == 0
    make = model_directory.network_graph.make

    def spoiled(config, weights):
        return make(config, {**weights, "output_bias": weights["output_bias"] + 3e-4})

    monkeypatch.setattr(model_directory.network_graph, "make", spoiled)
    assert main("classification", flags) == 2
    assert re.search(
        r"--export_format=onnx: logits of the ONNX model differs from what TensorFlow computes by "
        r"0\.000\d+, which is more than 0\.0001\. Nothing was kept",
        capsys.readouterr().err,
    )
    assert exports(tmp_path) == []


def test_what_a_killed_export_left_is_removed(tmp_path):
    flags = write_files(tmp_path, "classification")
    leftover = tmp_path / "run" / "export" / "onnx" / "temp-1795362936"
    leftover.mkdir(parents=True)
    (leftover / "model.onnx").write_bytes(b"half")
    assert main("classification", [*flags, "--do_train"]) == 0
    (export_dir,) = exports(tmp_path)
    assert export_dir.name.isdecimal()


def test_a_network_of_transformers_is_exported_without_files(tmp_path, capsys):
    """There are no examples to compare, and no label but its own."""
    from fixtures import DATA

    shutil.copytree(DATA / "hf_classifier", tmp_path / "hf")
    flags = ["--do_export", f"--init_checkpoint={tmp_path}/hf", f"--output_dir={tmp_path}/run"]
    assert main("classification", [*flags, "--export_format=onnx"]) == 0
    assert "on 3 random texts: logits" in capsys.readouterr().out
    (export_dir,) = exports(tmp_path)
    config = json.loads((export_dir / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert list(Predictor(str(export_dir))(["a"])[0]["probabilities"]) == list(
        config["id2label"].values()
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--do_export", "--export_format=tflite"], "--export_format=tflite: must be one of saved"),
        (["--export_format=onnx"], "--export_format=onnx: is for --do_export; add it, or leave"),
        (
            ["--do_export", "--export_format=onnx", "--export_inputs=ids"],
            "--export_inputs=ids: is for SavedModels; with --export_format=onnx, which takes ids",
        ),
        (
            ["--do_export", "--do_train", "--export_format=onnx_int8"],
            "--eval_file: is needed for --export_format=onnx_int8; or turn it off",
        ),
    ],
)
@pytest.mark.parametrize("script", ["classification", "question_answering"])
def test_flags_that_do_not_fit_are_refused(tmp_path, capsys, script, flags, message):
    given = write_files(tmp_path, script)
    meant = ("--export", "--do_", "--eval_file", "--predict_file")
    given = [flag for flag in given if not flag.startswith(meant)]
    assert main(script, [*given, *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_package_is_named_before_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main("classification", [*write_files(tmp_path, "classification"), "--do_train"]) == 2
    message = (
        "--export_format=onnx: an ONNX model needs the package onnx, which cannot be loaded "
        "(import of onnx halted; None in sys.modules). Install it: pip install "
        "'bert-estimator[onnx]'"
    )
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "run").glob("model.ckpt*"))


def test_an_export_has_a_number_of_its_own(tmp_path, monkeypatch):
    """`find` takes the greatest number, and of two with one number the SavedModel."""
    monkeypatch.setattr(onnx_export.time, "time", lambda: 7.5)
    (tmp_path / "7").mkdir()
    for number in ("8", "9"):
        with onnx_export._new_directory(str(tmp_path / "onnx")) as (_, path):
            pass
        assert path == str(tmp_path / "onnx" / number)
