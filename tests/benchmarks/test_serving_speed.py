"""Tests that the benchmark of served requests measures what it says, on a tiny network."""

import importlib.util
import json

import pytest

import run_classifier
from benchmarks import serving_speed


def made_run(tmp_path):
    """Trains and exports a tiny network for single texts; returns the run's directory."""
    texts = serving_speed.texts_of(40)
    rows = [json.dumps({"text": text, "label": "it" if " it " in text else "no"}) for text in texts]
    (tmp_path / "train.jsonl").write_text("\n".join([*rows, '{"text": "it", "label": "it"}']))
    from tiny_run import bert_config

    from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab

    words = sorted({word for text in texts for word in text.lower().split() if word.isalpha()})
    write_vocab([*SPECIAL_TOKENS, *words], str(tmp_path / "vocab.txt"))
    config = {**bert_config(0), "vocab_size": 5 + len(words), "max_position_embeddings": 64}
    (tmp_path / "bert_config.json").write_text(json.dumps(config))
    flags = [
        f"--{name}={tmp_path / path}"
        for name, path in (
            ("train_file", "train.jsonl"), ("vocab_file", "vocab.txt"),
            ("bert_config_file", "bert_config.json"), ("output_dir", "run"),
        )
    ]  # fmt: skip
    flags += ["--do_train", "--do_export", "--max_seq_length=64", "--train_batch_size=8"]
    assert run_classifier.main(["run_classifier.py", *flags]) == 0
    return str(tmp_path / "run")


@pytest.mark.slow
def test_every_figure_is_there(tmp_path, capsys, monkeypatch):
    run = made_run(tmp_path)
    capsys.readouterr()
    serving_speed.main([run, "--passes=1"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["tensorflow"]["1"]["requests"] == 640
    assert result["tensorflow"]["32"]["requests"] == 20
    assert len(result["tensorflow"]["1"]["megabytes"]) == 10
    assert all(megabytes > 50 for megabytes in result["tensorflow"]["1"]["megabytes"])
    if all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime", "tokenizers")):
        for name in ("onnx", "onnx_int8"):
            assert result[name]["1"]["requests"] == 640
    with pytest.raises(SystemExit, match=r"transformers answers differently, by up to 0\.5"):
        serving_speed._check_equal(
            "transformers",
            {"labels": ["a"], "probabilities": [0.5]},
            {"labels": ["a"], "probabilities": [1.0]},
        )
