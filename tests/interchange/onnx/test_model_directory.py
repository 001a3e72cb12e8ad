"""Directories with ONNX models: what bert-convert writes, and who reads it."""

import dataclasses
import json
import os

import fixtures
import numpy as np
import pytest

from bert_estimator import tokenization
from bert_estimator.interchange import __main__ as command
from bert_estimator.interchange import open_source
from bert_estimator.interchange.onnx import model_directory, runtime
from bert_estimator.interchange.weights import fixed_batch
from bert_estimator.tokenization import train_sentencepiece

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def main(*args):
    return command.main(["interchange", *(str(arg) for arg in args)])


@pytest.mark.parametrize("model", ["hf_classifier", "hf_albert", "hf_electra", "tf1"])
def test_every_network_becomes_onnx(tmp_path, capsys, model):
    assert main(fixtures.DATA / model, tmp_path / "onnx", "--to=onnx") == 0
    out = capsys.readouterr().out
    assert f"-> {tmp_path}/onnx (onnx): " in out
    assert "\nGreatest difference on a fixed batch:\n" in out and "bit for bit" not in out
    assert os.listdir(tmp_path) == ["onnx"]
    assert sorted(os.listdir(tmp_path / "onnx")) == [
        "bert_config.json", "config.json", "model.onnx", "task.json", "tokenizer.json",
        "tokenizer_config.json", "vocab.txt",
    ]  # fmt: skip
    source = open_source(str(fixtures.DATA / model))
    weights = fixtures.weights_of(source)
    batches = [fixed_batch(source.config)]
    found = model_directory.check(str(tmp_path / "onnx"), source.config, weights, batches)
    assert ("logits" in found) == (model == "hf_classifier")
    assert ("masked_logits" in found) == (model in ("hf_albert", "tf1"))
    config = json.loads((tmp_path / "onnx" / "config.json").read_text())
    classes = {"hf_albert": "AlbertModel", "hf_electra": "ElectraModel", "tf1": "BertModel"}
    assert config["architectures"] == [classes.get(model, "BertForSequenceClassification")]
    # Of the heads of pretraining, that for masked words stays.
    assert "  unused    cls/predictions/" not in out
    assert ("  unused    cls/seq_relationship/" in out) == (model in ("hf_albert", "tf1"))


def test_a_model_without_a_task_gets_what_transformers_would_say(tmp_path, caplog):
    source = open_source(str(fixtures.DATA / "hf_classifier"))
    weights, tokenizer = fixtures.weights_of(source), source.open_tokenizer()
    model_directory.write(str(tmp_path), source, weights, tokenizer)
    assert "says whether it reads pairs of texts; the ONNX" in caplog.text
    task = json.loads((tmp_path / "task.json").read_text())
    expected = {
        "kind": "classification", "labels": ["LABEL_0", "LABEL_1", "LABEL_2"], "is_pair": False,
        "do_lower_case": True, "max_seq_length": 24, "vocab_file": "vocab.txt",
    }  # fmt: skip
    assert {name: task[name] for name in expected} == expected


def test_the_package_tokenizers_gives_the_same_ids(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    assert main(fixtures.DATA / "hf_classifier", tmp_path / "onnx", "--to=onnx") == 0
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "onnx" / "tokenizer.json"))
    ours = tokenization.open_tokenizer(str(tmp_path / "onnx" / "vocab.txt"), True)
    for text in ("word1 word2", "WORD3, unknown!", "", "wörd4 中 word5"):
        assert theirs.encode(text).ids == [ours.cls_id, *ours.encode(text), ours.sep_id]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architecture": "electra"}, "transformers does not have an ELECTRA with a pooler"),
        ({}, "is a SentencePiece model, and transformers would cut text into other pieces"),
    ],
)
def test_what_transformers_cannot_read_is_left_out(tmp_path, caplog, changes, reason):
    source = open_source(str(fixtures.DATA / "hf_encoder"))
    if not changes:
        texts = ["word1 word2 word3", "a b c d e f g h"] * 20
        train_sentencepiece(texts, str(tmp_path / "pieces.model"), 20)
        changes = {"vocab_file": str(tmp_path / "pieces.model")}
    source = dataclasses.replace(source, **changes)
    (tmp_path / "onnx").mkdir()
    weights = fixtures.weights_of(source)
    model_directory.write(str(tmp_path / "onnx"), source, weights, source.open_tokenizer())
    warning = caplog.text
    assert "transformers cannot read the ONNX model's directory: " in warning
    assert reason in warning and "--to=tf1" not in warning
    vocabulary = "vocab.model" if "vocab_file" in changes else "vocab.txt"
    files = ["bert_config.json", "model.onnx", "task.json", vocabulary]
    assert sorted(os.listdir(tmp_path / "onnx")) == files
    model_directory.check(
        str(tmp_path / "onnx"), source.config, weights, [fixed_batch(source.config)]
    )


@pytest.mark.parametrize("difference", [2e-4, np.nan])
def test_other_outputs_are_an_error_and_nothing_is_left(tmp_path, capsys, monkeypatch, difference):
    run = runtime.Model.run

    def changed(self, *args):
        return {name: value + np.float32(difference) for name, value in run(self, *args).items()}

    monkeypatch.setattr(runtime.Model, "run", changed)
    assert main(fixtures.DATA / "hf_encoder", tmp_path / "onnx", "--to=onnx") == 2
    assert " of the ONNX model differs from what TensorFlow computes by " in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_weights_are_not_read_from_it(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(ValueError, match="is an ONNX model, whose weights are not read here"):
        open_source(str(tmp_path))
