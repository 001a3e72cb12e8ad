"""Converting, from the command line: what is made, what is printed, and the exit codes."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import fixtures
import numpy as np
import pytest
import safetensors.numpy

from bert_estimator.command_line import run_directory
from bert_estimator.interchange import __main__ as command
from bert_estimator.interchange import conversion, open_source
from bert_estimator.interchange.hugging_face import config_json, weight_files
from bert_estimator.tokenization import is_cased, train_sentencepiece


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
    title = f"{fixtures.TF1}/bert_model.ckpt (tf1) -> {tmp_path}/hf (hf): 46 restored, 2 unused"
    assert "  unused    optimizer's slots: 92 " in result.stdout  # in one line
    assert result.stdout.splitlines()[0] == title
    for line in ("masked_lm_logits     0", "next_sentence_logits 0", "pooled_output        0"):
        assert f"  {line}\n" in result.stdout
    assert os.listdir(tmp_path) == ["hf"]
    assert sorted(os.listdir(tmp_path / "hf")) == [
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt",
    ]  # fmt: skip
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["hidden_act"] == "gelu_new"


@pytest.mark.parametrize("model", fixtures.HUGGING_FACE)
def test_from_hugging_face_to_tf1_and_back(tmp_path, capsys, model):
    assert main(fixtures.DATA / model, tmp_path / "tf1") == 0
    assert main(tmp_path / "tf1", tmp_path / "hf") == 0
    title = f"{tmp_path}/tf1/bert_model.ckpt (tf1) -> {tmp_path}/hf (hf): "
    assert title in capsys.readouterr().out
    before = fixtures.tensors_of(fixtures.DATA / model)
    after = fixtures.tensors_of(tmp_path / "hf")
    np.testing.assert_equal(after, before)
    configs = [
        config_json.read_config(str(folder / "config.json"))
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
    for to in ("hf", "tf1"):
        assert main(prefix, tmp_path / "new", config, f"--to={to}") == 2
        message = f"interchange: {prefix}: there is no vocabulary (vocab.txt, or vocab.model for "
        error = capsys.readouterr().err
        assert message in error and "give --vocab_file" in error
        assert not (tmp_path / "new").exists()
    vocabulary = f"--vocab_file={fixtures.TF1}/vocab.txt"
    assert main(prefix, tmp_path / "hf", config, vocabulary) == 0
    assert (tmp_path / "hf" / "vocab.txt").read_text() == (fixtures.TF1 / "vocab.txt").read_text()


def test_a_source_of_another_network_is_refused_and_nothing_is_left(tmp_path, capsys):
    config = json.loads((fixtures.TF1 / "bert_config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    flag = f"--bert_config_file={tmp_path}/config.json"
    assert main(fixtures.TF1, tmp_path / "hf", flag) == 2
    error = capsys.readouterr().err
    assert f"interchange: {fixtures.TF1} does not hold a BERT of its configuration, with " in error
    assert "  bert/encoder/layer_2/attention/self/query/kernel [8, 8]: missing\n" in error
    assert error.splitlines()[-1] == "  and 6 more"
    assert os.listdir(tmp_path) == ["config.json"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_attention_heads": 4},
            "is a network with num_attention_heads=2, but --bert_config_file has 4, with which the "
            "weights would compute something else. Leave the flag out; or, if the configuration "
            "beside the weights is wrong, correct it there",
        ),
        ({"hidden_act": "relu"}, "is a network with hidden_act='gelu', but --bert_config_file has"),
        ({"hidden_dropout_prob": 0.0, "initializer_range": 0.1}, None),
    ],
)
def test_another_configuration_of_the_same_weights_is_refused(tmp_path, capsys, changes, message):
    config = json.loads((fixtures.TF1 / "bert_config.json").read_text())
    assert (config["num_attention_heads"], config["hidden_act"]) == (2, "gelu")
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    flag = f"--bert_config_file={tmp_path}/config.json"
    assert main(fixtures.TF1, tmp_path / "hf", flag) == (0 if message is None else 2)
    if message is not None:
        assert f"interchange: {fixtures.TF1}: {message}" in capsys.readouterr().err
        assert os.listdir(tmp_path) == ["config.json"]
        return
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert changes.items() <= written.items()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            "weight",
            "these weights differ from the source's when they are read back: bert/encoder/la",
        ),
        ("activation", "sequence_output differs from the source's by "),
    ],
)
def test_a_writer_that_errs_is_found_out(tmp_path, capsys, monkeypatch, spoil, message):
    def write(folder, *args):
        weight_files.write(folder, *args)
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
    source = dataclasses.replace(source, read=lambda name: np.float64(weights[name]))
    with pytest.raises(ValueError, match="bert/embeddings/LayerNorm/beta is float64, not float32"):
        conversion.convert(source, str(tmp_path / "tf1"), "tf1")


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_named(tmp_path, capsys, value):
    def spoiled(tensors):
        for name in ("embeddings.LayerNorm.bias", "pooler.dense.weight"):
            tensors[name].flat[3] = value
        return tensors

    folder = fixtures.changed(tmp_path, "hf_encoder", spoiled)
    assert main(folder, tmp_path / "tf1") == 2
    message = (
        f"interchange: {folder}: these weights are not finite: bert/embeddings/LayerNorm/beta, "
        "bert/pooler/dense/kernel. Nothing was written; convert a checkpoint or a model whose"
    )
    assert message in capsys.readouterr().err
    assert not (tmp_path / "tf1").exists()


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
    assert capsys.readouterr().err.endswith("\ninterchange: stopped. No target was made.\n")
    assert os.listdir(tmp_path) == []


def test_a_directory_called_partial_is_left_alone(tmp_path):
    """It is left alone even if it is the source itself."""
    shutil.copytree(fixtures.TF1, tmp_path / "bert.partial")
    before = sorted(os.listdir(tmp_path / "bert.partial"))
    assert main(tmp_path / "bert.partial", tmp_path / "bert") == 0
    assert sorted(os.listdir(tmp_path)) == ["bert", "bert.partial"]
    assert sorted(os.listdir(tmp_path / "bert.partial")) == before
    (tmp_path / "made").mkdir()
    assert (tmp_path / "bert").stat().st_mode == (tmp_path / "made").stat().st_mode


def make_run(folder, vocabulary=None, step=7, **flags):
    """A run's directory: a checkpoint of a step, whose weights are as many times the fixture's, its
    network, vocabulary, task.json and config.json."""
    source = open_source(str(fixtures.TF1))
    folder.mkdir(parents=True)
    weights = {name: step * value for name, value in fixtures.weights_of(source).items()}
    fixtures.write_tf1(folder, source.config, weights)
    task = {name: value for name, value in flags.items() if name == "do_lower_case"}
    (folder / "task.json").write_text(json.dumps(task))
    for path in folder.glob("bert_model.ckpt*"):
        path.rename(folder / path.name.replace("bert_model.ckpt", f"model.ckpt-{step}"))
    if vocabulary is not None:
        shutil.copy(vocabulary, folder / ("vocab" + vocabulary.suffix))
    values = {name: {"value": value, "from": "flag"} for name, value in flags.items()}
    (folder / "config.json").write_text(json.dumps({"flags": values}))


def make_best(run, vocabulary):
    """The best checkpoint of that run: of step 3."""
    make_run(run / "best", vocabulary, step=3)
    (run / "best" / "config.json").unlink()
    shutil.copy(run / "task.json", run / "best" / "task.json")
    run_directory.write_evaluations(str(run / "best"), {3: 0.5, 7: 0.4})


def step_of(converted):
    """The step of the checkpoint that a directory was converted from."""
    name = "bert/embeddings/word_embeddings"
    ratio = open_source(str(converted)).read(name) / open_source(str(fixtures.TF1)).read(name)
    return round(float(np.median(ratio)))


@pytest.mark.parametrize(
    ("flags", "choice", "step"),
    [
        ({}, None, 7),  # a later training was not told to keep the best
        ({"keep_best_checkpoint": True}, None, 3),
        ({"early_stopping_patience": 2}, None, 3),
        ({"keep_best_checkpoint": True}, "newest", 7),
        ({}, "best", 3),
    ],
)
def test_of_a_run_the_checkpoint_that_it_delivers_is_converted(
    tmp_path, capsys, flags, choice, step
):
    vocabulary = fixtures.TF1 / "vocab.txt"
    make_run(tmp_path / "run", vocabulary, **flags)
    make_best(tmp_path / "run", vocabulary)
    chosen = () if choice is None else (f"--checkpoint={choice}",)
    assert main(tmp_path / "run", tmp_path / "hf", *chosen) == 0
    assert step_of(tmp_path / "hf") == step
    path = tmp_path / "run" / ("best/model.ckpt-3" if step == 3 else "model.ckpt-7")
    assert capsys.readouterr().out.startswith(f"{path} (tf1) -> ")


def test_a_choice_where_there_is_nothing_to_choose_is_refused(tmp_path, capsys):
    make_run(tmp_path / "run", fixtures.TF1 / "vocab.txt")
    assert main(tmp_path / "run", tmp_path / "new", "--checkpoint=best") == 2
    message = f"interchange: {tmp_path}/run: does not hold a best checkpoint (best/best.json). run"
    assert message in capsys.readouterr().err
    for source in (fixtures.DATA / "hf_encoder", tmp_path / "run" / "model.ckpt-7"):
        assert main(source, tmp_path / "new", "--checkpoint=newest") == 2
        assert f"interchange: {source}: is not the directory of a run" in capsys.readouterr().err
    assert main(tmp_path / "none", tmp_path / "new", "--checkpoint=newest") == 2
    assert f"{tmp_path}/none: there is no such checkpoint" in capsys.readouterr().err


def casing(folder):
    return json.loads((folder / "tokenizer_config.json").read_text())["do_lower_case"]


@pytest.mark.parametrize("lower", [True, False])
def test_the_casing_is_that_of_the_run(tmp_path, lower):
    """And of the run's best checkpoint; not what the vocabulary would have one think."""
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n1\n2\n")
    make_run(tmp_path / "run", vocabulary, do_lower_case=lower)
    make_best(tmp_path / "run", vocabulary)
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
    model = tmp_path / "pieces.model"
    train_sentencepiece(["some words of few letters"] * 9, str(model), vocab_size=17)
    make_run(tmp_path / "run", model)
    message = "is a SentencePiece model, and transformers would cut text into other pieces"
    assert main(tmp_path / "run", tmp_path / "hf") == 2
    assert f"interchange: {tmp_path}/run/vocab.model: {message}" in capsys.readouterr().err
    assert main(fixtures.TF1, tmp_path / "hf", f"--vocab_file={model}") == 2
    assert f"interchange: {model}: {message}" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["pieces.model", "run"]
    assert main(tmp_path / "run", tmp_path / "tf1", "--to=tf1") == 0
    assert (tmp_path / "tf1" / "vocab.model").read_bytes() == model.read_bytes()
    assert not (tmp_path / "tf1" / "vocab.txt").exists()
    shutil.make_archive(str(tmp_path / "tf1"), "zip", tmp_path, "tf1")
    assert open_source(str(tmp_path / "tf1.zip")).vocab_file.endswith("/tf1/vocab.model")


def test_a_vocabulary_larger_than_the_network_is_refused(tmp_path, capsys):
    words = (fixtures.TF1 / "vocab.txt").read_text() + "one\nmore\n"
    (tmp_path / "words.txt").write_text(words)
    assert main(fixtures.TF1, tmp_path / "hf", f"--vocab_file={tmp_path}/words.txt") == 2
    message = f"{tmp_path}/words.txt: has 42 tokens, but the network only 40; give the vocab"
    assert message in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["words.txt"]
