"""Converting, from the command line: what is made, what is printed, and the exit codes."""

import json
import os
import shutil
import subprocess
import sys

import fixtures
import numpy as np
import pytest
import safetensors.numpy

from bert_estimator.interchange import __main__ as command
from bert_estimator.interchange import conversion, hugging_face, open_source, tf1_checkpoint
from bert_estimator.tokenization import is_cased

MODEL = fixtures.HERE.parent / "tokenization" / "goldens" / "unigram.model"


def main(*args):
    return command.main(["interchange", *(str(arg) for arg in args)])


def test_from_tf1_to_hugging_face(tmp_path):
    """In a process of its own, as users run it."""
    result = subprocess.run(
        [sys.executable, "-m", "bert_estimator.interchange", fixtures.TF1, tmp_path / "hf"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    title = f"{fixtures.TF1} (tf1) -> {tmp_path}/hf (hf): 46 restored, 93 unused"
    assert result.stdout.splitlines()[0] == title
    for line in ("masked_lm_logits     0", "next_sentence_logits 0", "pooled_output        0"):
        assert f"  {line}\n" in result.stdout
    assert os.listdir(tmp_path) == ["hf"]
    assert sorted(os.listdir(tmp_path / "hf")) == [
        "config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt",
    ]  # fmt: skip
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["hidden_act"] == "gelu_new"


@pytest.mark.parametrize("model", fixtures.HUGGING_FACE)
def test_from_hugging_face_to_tf1_and_back(tmp_path, capsys, model):
    assert main(fixtures.DATA / model, tmp_path / "tf1") == 0
    assert main(tmp_path / "tf1", tmp_path / "hf") == 0
    assert f"{tmp_path}/tf1 (tf1) -> {tmp_path}/hf (hf): " in capsys.readouterr().out
    before = fixtures.tensors_of(fixtures.DATA / model)
    after = fixtures.tensors_of(tmp_path / "hf")
    assert set(before) == set(after)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    configs = [
        hugging_face.read_config(str(folder / "config.json"))
        for folder in (fixtures.DATA / model, tmp_path / "hf")
    ]
    assert configs[0] == configs[1]


def test_the_same_format_without_what_training_left(tmp_path):
    assert main(fixtures.TF1, tmp_path / "tf1", "--to=tf1") == 0
    source = open_source(str(tmp_path / "tf1"))
    assert (source.format, len(source.shapes), source.left_out) == ("tf1", 46, ())


def test_a_target_in_use_is_refused(tmp_path, capsys):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "mine").write_text("")
    assert main(fixtures.TF1, tmp_path / "hf") == 2
    assert f"interchange: {tmp_path}/hf: exists already; choose" in capsys.readouterr().err
    assert os.listdir(tmp_path / "hf") == ["mine"]


def test_what_lies_elsewhere_is_given_by_flags(tmp_path, capsys):
    for path in fixtures.TF1.glob("bert_model*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    prefix = tmp_path / "bert_model.ckpt"
    assert main(prefix, tmp_path / "hf") == 2
    message = f"interchange: {prefix}: there is no bert_config.json beside it; give --bert_config"
    assert message in capsys.readouterr().err
    config = f"--bert_config_file={fixtures.TF1}/bert_config.json"
    assert main(prefix, tmp_path / "hf", config) == 0
    assert "There is no vocab.txt beside the source" in capsys.readouterr().out
    assert sorted(os.listdir(tmp_path / "hf")) == ["config.json", "model.safetensors"]
    vocabulary = f"--vocab_file={fixtures.TF1}/vocab.txt"
    assert main(prefix, tmp_path / "hf2", config, vocabulary) == 0
    assert (tmp_path / "hf2" / "vocab.txt").read_text() == (fixtures.TF1 / "vocab.txt").read_text()


def test_a_source_of_another_network_is_refused_and_nothing_is_left(tmp_path, capsys):
    config = json.loads((fixtures.TF1 / "bert_config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    flag = f"--bert_config_file={tmp_path}/config.json"
    assert main(fixtures.TF1, tmp_path / "hf", flag) == 2
    error = capsys.readouterr().err
    assert f"interchange: {fixtures.TF1} does not hold a BERT of its configuration:" in error
    assert "  bert/encoder/layer_2/attention/self/query/kernel [8, 8]: missing\n" in error
    assert os.listdir(tmp_path) == ["config.json"]


def test_there_is_no_such_source(tmp_path, capsys):
    assert main(tmp_path / "no", tmp_path / "target") == 2
    assert f"{tmp_path}/no: there is no such checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("weight", "written, but read back otherwise: bert/encoder/layer_1/output/dense/kernel"),
        ("activation", "sequence_output differs from the source's by "),
    ],
)
def test_a_writer_that_errs_is_found_out(tmp_path, capsys, monkeypatch, spoil, message):
    def write(folder, *args):
        hugging_face.write(folder, *args)
        if spoil == "weight":
            path = os.path.join(folder, "model.safetensors")
            tensors = safetensors.numpy.load_file(path)
            tensors["bert.encoder.layer.1.output.dense.weight"][0, 0] += 1e-6
            safetensors.numpy.save_file(tensors, path, {"format": "pt"})
        else:
            path = os.path.join(folder, "config.json")
            with open(path, encoding="utf-8") as reader:
                values = {**json.load(reader), "hidden_act": "relu"}
            with open(path, "w", encoding="utf-8") as writer:
                json.dump(values, writer)

    monkeypatch.setitem(conversion.WRITERS, "hf", write)
    assert main(fixtures.TF1, tmp_path / "hf") == 2
    assert f"{tmp_path}/hf: {message}" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_weights_of_another_type_are_refused(tmp_path):
    source = open_source(str(fixtures.TF1))
    weights = fixtures.weights_of(source)
    source.__dict__["read"] = lambda name: np.float64(weights[name])
    with pytest.raises(ValueError, match="bert/embeddings/LayerNorm/beta is float64, not float32"):
        conversion.convert(source, source.config, None, str(tmp_path / "tf1"), "tf1")


def test_help_says_how(capsys):
    with pytest.raises(SystemExit) as end:
        main("--help")
    assert end.value.code == 0
    command = "python -m bert_estimator.interchange uncased_L-12_H-768_A-12.zip bert-base-uncased\n"
    assert command in capsys.readouterr().out


def test_a_conversion_that_is_stopped_starts_anew(tmp_path, capsys, monkeypatch):
    def write(*_):
        raise KeyboardInterrupt

    monkeypatch.setitem(conversion.WRITERS, "hf", write)
    assert main(fixtures.TF1, tmp_path / "hf") == 130
    assert capsys.readouterr().err == "interchange: stopped. No target was made.\n"
    assert os.listdir(tmp_path) == []


def test_a_directory_called_partial_is_left_alone(tmp_path):
    """The source itself, too."""
    shutil.copytree(fixtures.TF1, tmp_path / "bert.partial")
    before = sorted(os.listdir(tmp_path / "bert.partial"))
    assert main(tmp_path / "bert.partial", tmp_path / "bert") == 0
    assert sorted(os.listdir(tmp_path)) == ["bert", "bert.partial"]
    assert sorted(os.listdir(tmp_path / "bert.partial")) == before
    (tmp_path / "made").mkdir()
    assert (tmp_path / "bert").stat().st_mode == (tmp_path / "made").stat().st_mode


def make_run(folder, vocabulary=None, **flags):
    """A run's directory: a checkpoint of a step, its network, vocabulary and config.json."""
    source = open_source(str(fixtures.TF1))
    folder.mkdir(parents=True)
    tf1_checkpoint.write(str(folder), source.config, None, fixtures.weights_of(source))
    for path in folder.glob("bert_model.ckpt*"):
        path.rename(folder / path.name.replace("bert_model.ckpt", "model.ckpt-7"))
    if vocabulary is not None:
        shutil.copy(vocabulary, folder / ("vocab" + vocabulary.suffix))
    values = {name: {"value": value, "from": "flag"} for name, value in flags.items()}
    (folder / "config.json").write_text(json.dumps({"flags": values}))


def casing(folder):
    return json.loads((folder / "tokenizer_config.json").read_text())["do_lower_case"]


def test_a_run_of_this_project_converts(tmp_path):
    """Its directory holds checkpoints of steps."""
    make_run(tmp_path / "run")
    assert main(tmp_path / "run", tmp_path / "hf") == 0


@pytest.mark.parametrize("lower", [True, False])
def test_the_casing_is_that_of_the_run(tmp_path, lower):
    """And of the run's best checkpoint; not what the vocabulary would have one think."""
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("[PAD]\n1\n2\n")
    make_run(tmp_path / "run", vocabulary, do_lower_case=lower)
    make_run(tmp_path / "run" / "best", vocabulary)
    (tmp_path / "run" / "best" / "config.json").unlink()
    (tmp_path / "run" / "best" / "best.json").write_text("{}")
    assert main(tmp_path / "run", tmp_path / "hf") == 0
    assert main(tmp_path / "run" / "best", tmp_path / "hf_of_best") == 0
    assert main(tmp_path / "hf", tmp_path / "hf_again", "--to=hf") == 0
    for name in ("hf", "hf_of_best", "hf_again"):
        assert casing(tmp_path / name) is lower, name


@pytest.mark.parametrize(
    "config", ["[]", "{", '{"flags": {}}', '{"flags": {"do_lower_case": {"value": "no"}}}']
)
def test_a_config_json_that_says_nothing_of_casing(tmp_path, config):
    make_run(tmp_path / "run", fixtures.TF1 / "vocab.txt")
    (tmp_path / "run" / "config.json").write_text(config)
    assert main(tmp_path / "run", tmp_path / "hf") == 0
    assert casing(tmp_path / "hf") is casing_of_words(tmp_path / "run" / "vocab.txt")


def casing_of_words(vocab_file):
    return not is_cased(vocab_file.read_text().splitlines())


def test_a_sentencepiece_vocabulary_stays_in_tf1_and_is_refused_elsewhere(tmp_path, capsys):
    make_run(tmp_path / "run", MODEL)
    message = "is SentencePiece's, and a BERT of transformers takes a WordPiece vocabulary"
    assert main(tmp_path / "run", tmp_path / "hf") == 2
    assert f"interchange: {tmp_path}/run/vocab.model: {message}" in capsys.readouterr().err
    assert main(fixtures.TF1, tmp_path / "hf", f"--vocab_file={MODEL}") == 2
    assert f"interchange: {MODEL}: {message}" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["run"]
    assert main(tmp_path / "run", tmp_path / "tf1", "--to=tf1") == 0
    assert (tmp_path / "tf1" / "vocab.model").read_bytes() == MODEL.read_bytes()
    assert not (tmp_path / "tf1" / "vocab.txt").exists()
    shutil.make_archive(str(tmp_path / "tf1"), "zip", tmp_path, "tf1")
    assert open_source(str(tmp_path / "tf1.zip")).vocab_file.endswith("/tf1/vocab.model")


def test_a_vocabulary_that_is_no_text_is_refused(tmp_path, capsys):
    (tmp_path / "vocab.bin").write_bytes(b"\xff\xfe")
    assert main(fixtures.TF1, tmp_path / "hf", f"--vocab_file={tmp_path}/vocab.bin") == 2
    message = f"interchange: {tmp_path}/vocab.bin: is no vocabulary, a UTF-8 text file with one"
    assert message in capsys.readouterr().err
