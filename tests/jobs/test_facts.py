"""Weights that are used without training belong to the task of the flags, or it is an error."""

import dataclasses
import json
import os
import shutil

import fixtures
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from scripts import PRETRAINING, SQUAD, TAGGER
from tiny_run import bert_config, words, write_pairs
from tiny_run import classifier_flags as command

import run_classifier
from bert_estimator import interchange
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line.flags import FlagError
from bert_estimator.interchange import __main__ as convert
from bert_estimator.interchange import network_variables
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.jobs import facts
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab

TASK = {"kind": "classification", "labels": ["a", "b"], "is_pair": False, "do_lower_case": True}
ANSWERS = {"kind": "question_answering", "do_lower_case": True, "doc_stride": 128}
HEAD = ("output_weights", "bert/pooler/dense/kernel")
WORDS = words(30)
CONFIG = bert_config(len(WORDS), initializer_range=0.5)


def write_network(folder, task, head=network_variables.CLASSIFIER, num_labels=2):
    """Writes a checkpoint without a global step, with the files beside it."""
    folder.mkdir()
    write_vocab([*SPECIAL_TOKENS, *WORDS], str(folder / "vocab.txt"))
    config = BertConfig(**CONFIG)
    weights = fixtures.random_weights(config, (head,), num_labels, scale=0.5)
    fixtures.write_tf1(folder, config, weights)
    (folder / "task.json").write_text(json.dumps(task))
    return interchange.open_source(str(folder))


def check(source, asked, vocab_file=None, head=HEAD):
    files = vocab_file or source.vocab_file, BertConfig(**CONFIG)
    facts.check_used(source, head, asked, *files, "output_dir")


@pytest.mark.parametrize(
    ("trained", "asked"),
    [
        (TASK, TASK),
        ({"kind": "classification", "labels": ["a", "b"], "do_lower_case": None}, TASK),
        ({**TASK, "labels": []}, TASK),  # They are not known.
        ({}, TASK),
    ],
)
def test_the_same_task(tmp_path, trained, asked):
    check(write_network(tmp_path / "model", trained), asked)


def test_the_same_questions(tmp_path):
    source = write_network(tmp_path / "model", ANSWERS, network_variables.ANSWER)
    head = ("cls/squad/output_weights",)
    check(source, {**ANSWERS, "doc_stride": 64}, head=head)
    with pytest.raises(FlagError, match="model: holds a network that was not fine-tuned for a tas"):
        check(source, TASK)


def test_a_network_for_questions_without_answers(tmp_path):
    """Without the flag, it would answer all questions."""
    learned = {**ANSWERS, "version_2_with_negative": True}
    source = write_network(tmp_path / "model", learned, network_variables.ANSWER)
    head = ("cls/squad/output_weights",)
    check(source, learned, head=head)
    message = "trained with --version_2_with_negative, to leave questions without an answer. Add"
    with pytest.raises(FlagError, match=message):
        check(source, {**learned, "version_2_with_negative": False}, head=head)
    # A network of SQuAD 1.1 is measured on questions of 2.0: it answers all of them.
    source = write_network(
        tmp_path / "other", {**ANSWERS, "version_2_with_negative": False}, network_variables.ANSWER
    )
    check(source, learned, head=head)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "tagging"}, 'trained for kind "tagging", but the flags and files ask for "class'),
        ({"labels": ["b", "a"]}, r'labels \["b", "a"\], but the flags and files ask for \["a"'),
        ({"is_pair": True}, "is_pair true, but the flags and files ask for false"),
        ({"do_lower_case": False}, "do_lower_case false, but"),
    ],
)
def test_another_task(tmp_path, change, message):
    source = write_network(tmp_path / "model", {**TASK, **change})
    with pytest.raises(
        FlagError, match=f"^--output_dir: {tmp_path}/model: the network .*{message}"
    ):
        check(source, TASK)


def test_another_number_of_labels(tmp_path):
    source = write_network(tmp_path / "model", {}, num_labels=3)
    with pytest.raises(FlagError, match="has 3 outputs, but the flags and files ask for 2"):
        check(source, TASK)


# Networks from elsewhere, without training.

LABELS = ["high", "low"]


@pytest.fixture
def model(tmp_path):
    """Returns the directory of a classifier in google-research/bert's format, and files."""
    task = {"kind": "classification", "labels": LABELS, "is_pair": True, "do_lower_case": True}
    source = write_network(tmp_path / "tf1", task)
    write_pairs(tmp_path / "dev.tsv", [("w1 w2", "w3", "high"), ("w4", "w5 w6", "low")] * 5)
    shutil.copy(tmp_path / "dev.tsv", tmp_path / "train.tsv")
    shutil.copy(source.vocab_file, tmp_path / "vocab.txt")
    (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG))
    return source


def run(folder, name, **changes):
    changes = {"predict_file": folder / "dev.tsv", **changes}
    flags = command(folder, folder / f"run_{name}", **changes)
    code = run_classifier.main(["run_classifier.py", *flags, "--do_eval", "--do_predict"])
    tf.summary.FileWriterCache.clear()
    return code


def test_a_network_from_elsewhere_is_evaluated_and_exported(model, tmp_path, capsys):
    """Neither has a global step, and Hugging Face's files are not a checkpoint."""
    (tmp_path / "hf").mkdir()
    fixtures.write_hugging_face(tmp_path / "hf", model)
    found = {}
    for name in ("tf1", "hf"):
        export = {"do_export": True, "export_inputs": "ids"} if name == "hf" else {}
        assert run(tmp_path, name, init_checkpoint=tmp_path / name, **export) == 0
        results = (tmp_path / f"run_{name}" / "eval_results.txt").read_text()
        assert "global_step = 0\n" in results
        rows = np.loadtxt(tmp_path / f"run_{name}" / "test_results.tsv")
        found[name] = results, rows
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith(f"Checkpoint: {tmp_path / name}  summaries: ")  # not its copy
    assert found["tf1"][0] == found["hf"][0]
    np.testing.assert_array_equal(found["tf1"][1], found["hf"][1])
    (export,) = (tmp_path / "run_hf" / "export").iterdir()
    assert (export / "saved_model.pb").exists()
    assert np.ptp(found["tf1"][1]) > 0.01  # an initializer's weights would be smaller


def test_a_prediction_names_no_files_that_it_does_not_write(model, tmp_path, capsys):
    changes = {"init_checkpoint": tmp_path / "tf1", "predict_file": tmp_path / "dev.tsv"}
    flags = command(tmp_path, tmp_path / "out", **changes)
    assert run_classifier.main(["run_classifier.py", *flags, "--do_predict"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Checkpoint: {tmp_path / 'tf1'}"
    assert not {"metrics.jsonl", "curves.svg"} & set(os.listdir(tmp_path / "out"))


def write_model_dir(folder, source, name_of=lambda name: name, dtype=np.float32):
    """Writes what another program's training leaves: a network at step 7, without files of ours."""
    folder.mkdir()
    values = {name_of(name): source.read(name).astype(dtype) for name in source.shapes}
    tf1_checkpoint.save(str(folder / "model.ckpt-7"), {**values, "global_step": np.int64(7)})
    tf.train.update_checkpoint_state(str(folder), "model.ckpt-7")


def of_albert(name):
    return network_variables.to_tf1(name, "albert")


@pytest.mark.parametrize(("name_of", "dtype"), [(of_albert, np.float32), (str, np.float16)])
def test_a_model_dir_with_other_names_or_types_is_evaluated_in_place(
    tmp_path, capsys, model, name_of, dtype
):
    config = {**CONFIG, "num_hidden_groups": 1} if name_of is of_albert else CONFIG
    (tmp_path / "bert_config.json").write_text(json.dumps(config))
    weights = fixtures.random_weights(BertConfig(**config), (network_variables.CLASSIFIER,))
    weights = {name: np.float32(np.float16(value)) for name, value in weights.items()}
    source = dataclasses.replace(model, shapes=weights, read=weights.get)
    write_model_dir(tmp_path / "run_x", source, name_of, dtype)
    write_model_dir(tmp_path / "other", source, name_of, np.float32)
    assert run(tmp_path, "y", init_checkpoint=tmp_path / "other") == 0
    assert run(tmp_path, "x") == 0
    found = [tmp_path / f"run_{name}" / "eval_results.txt" for name in "xy"]
    assert "global_step = 7\n" in found[0].read_text()
    assert found[0].read_text() == found[1].read_text()

    capsys.readouterr()
    before = sorted(path.name for path in (tmp_path / "run_x").iterdir())
    assert run(tmp_path, "x", do_train=True) == 2
    message = f"--output_dir={tmp_path}/run_x: holds {tmp_path}/run_x/model.ckpt-7, which training"
    assert (
        message + " cannot go on from: it lacks global_step, or its variables have other"
        in capsys.readouterr().err
    )
    assert before == sorted(path.name for path in (tmp_path / "run_x").iterdir())


def test_a_model_dir_is_compared_with_what_lies_beside_its_checkpoint(tmp_path, capsys, model):
    """Its network is evaluated from a copy, which lies elsewhere."""
    write_model_dir(tmp_path / "run_x", model, dtype=np.float16)
    write_vocab([*SPECIAL_TOKENS, *reversed(WORDS)], str(tmp_path / "run_x" / "vocab.txt"))
    assert run(tmp_path, "x") == 2
    message = f"the network was trained with the vocabulary {tmp_path}/run_x/vocab.txt"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("tokens", [WORDS[:-5], [*WORDS[:-1], "other"], [*WORDS, "further"]])
def test_a_vocabulary_that_begins_alike_is_another_one(tmp_path, tokens):
    source = write_network(tmp_path / "x", TASK)
    write_vocab([*SPECIAL_TOKENS, *tokens], str(tmp_path / "vocab.txt"))
    with pytest.raises(
        FlagError, match=r"was trained with the vocabulary .* is another one\. Give"
    ):
        check(source, TASK, str(tmp_path / "vocab.txt"))


PLACES = [*SPECIAL_TOKENS, "[unused0]", "[unused1]", "a"]
EXTENDED = [*SPECIAL_TOKENS, "[whole_words:6]", "foo", "a"]
TWICE = [*SPECIAL_TOKENS, "[whole_words:6,8]", "foo", "a", "more"]


@pytest.mark.parametrize(
    ("theirs", "ours", "difference"),
    [
        (PLACES, EXTENDED, (5, "[unused0]", "[whole_words:6]")),
        (PLACES, [*PLACES, "foo", "[whole_words:8]"], (9, "[unused]", "[whole_words:8]")),
        (EXTENDED, TWICE, (5, "[whole_words:6]", "[whole_words:6,8]")),
        (EXTENDED, PLACES, (5, "[whole_words:6]", "[unused0]")),
        (EXTENDED, EXTENDED, None),
        ([*PLACES, "foo", "[whole_words:8]"], PLACES, (9, "[whole_words:8]", "[unused]")),
        ([*PLACES, "foo"], PLACES, None),
        (PLACES, [*SPECIAL_TOKENS, "foo", "[unused1]", "a"], None),
        (PLACES, [*PLACES, "foo"], None),
        (PLACES, PLACES[:-1], None),
        (PLACES, [*PLACES[:-1], "b"], (7, "a", "b")),
    ],
)
def test_words_that_extend_a_vocabulary_are_those_of_the_extended_network(
    tmp_path, theirs, ours, difference
):
    files = [str(tmp_path / "theirs.txt"), str(tmp_path / "ours.txt")]
    for file, tokens in zip(files, (theirs, ours), strict=True):
        write_vocab(tokens, file)
    assert facts.first_difference(*files) == difference


def test_pretraining_leaves_a_model_dir_that_it_refuses_as_it_was(tmp_path, capsys, model):
    PRETRAINING.write_data(tmp_path)
    for _ in range(2):
        shutil.rmtree(tmp_path / "run_x", ignore_errors=True)
        write_model_dir(tmp_path / "run_x", model, dtype=np.float16)
        before = sorted(path.name for path in (tmp_path / "run_x").iterdir())
        flags = PRETRAINING.flags(tmp_path, tmp_path / "run_x", do_train=True)
        assert PRETRAINING.main(flags) == 2
        assert "have other names or types than here" in capsys.readouterr().err
        assert before == sorted(path.name for path in (tmp_path / "run_x").iterdir())


def test_a_training_that_does_not_fit_a_model_dir_leaves_it_as_it_was(tmp_path, capsys, model):
    """Its task.json would say what labels the network has learned."""
    write_model_dir(tmp_path / "run_x", model)

    def own_files():
        return {path.name for path in (tmp_path / "run_x").iterdir()} & {
            *("task.json", "config.json", "vocab.txt", "bert_config.json")
        }

    assert run(tmp_path, "x", do_train=True, num_train_epochs=30) == 1
    assert "adam_m: not in the checkpoint" in capsys.readouterr().err
    assert not own_files()
    assert run(tmp_path, "x", do_train=True) == 0  # nothing is left to train
    assert not own_files()
    assert run(tmp_path, "x") == 0


def test_training_says_that_it_goes_on_from_a_head_of_other_labels(model, tmp_path, logged):
    (tmp_path / "train.tsv").write_text((tmp_path / "train.tsv").read_text().replace("low", "odd"))
    task = {"kind": "classification", "labels": LABELS, "is_pair": True, "do_lower_case": True}
    for trained, is_warned in ((task, True), ({**task, "labels": ["high", "odd"]}, False)):
        (tmp_path / "tf1" / "task.json").write_text(json.dumps(trained))
        flags = command(tmp_path, tmp_path / f"run_{is_warned}", init_checkpoint=tmp_path / "tf1")
        assert run_classifier.main(["run_classifier.py", *flags, "--do_train"]) == 0
        said = f"--init_checkpoint: the head of {tmp_path}/tf1 has learned the labels "
        said += '["high", "low"]; training goes on from it with the labels ["high", "odd"].'
        assert (("WARNING", said) in logged) == is_warned
        logged.clear()


@pytest.mark.parametrize("script", [TAGGER, SQUAD], ids=lambda script: script.name)
def test_networks_without_a_pooler_are_evaluated(script, tmp_path):
    """Hugging Face's networks for tags and answers do not have one."""
    script.write_data(tmp_path)

    def results(name, **flags):
        flags = script.flags(tmp_path, tmp_path / name, do_eval=True, **flags)
        assert script.module.main([script.name, *flags]) == 0
        text = (tmp_path / name / "eval_results.txt").read_text()
        return dict(line.split(" = ") for line in text.splitlines())

    trained = results("run", do_train=True)
    assert convert.main(["interchange", str(tmp_path / "run"), str(tmp_path / "hf")]) == 0
    assert not [n for n in interchange.open_source(str(tmp_path / "hf")).shapes if "pooler" in n]
    found = results("elsewhere", do_train=False, init_checkpoint=tmp_path / "hf")
    assert {**found, "global_step": ""} == {**trained, "global_step": ""}
    # A run's directory has all that its network needs.
    alone = {"train_file": None, "vocab_file": None, "bert_config_file": None}
    assert results("run", do_train=False, **alone) == trained
    assert float(trained["mean_loss"]) > 0
