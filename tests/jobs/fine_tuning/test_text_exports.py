"""Exported models that take text: features, signatures, and answers without this project."""

import dataclasses
import json
import re
import sys

import forked
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from task_runs import write_data
from tiny_run import classifier_flags, pairs

import run_classifier
from bert_estimator.command_line.flags import FlagError
from bert_estimator.jobs.fine_tuning import export
from bert_estimator.serving.predictor import Predictor
from bert_estimator.tokenization import SPECIAL_TOKENS, FullTokenizer, write_vocab
from input_pipelines.tasks.examples import Example
from input_pipelines.tasks.features import Features
from input_pipelines.tasks.long_texts import LongTexts
from tests.serving.test_graph_wordpiece import NASTY


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    vocab_file = str(tmp_path_factory.mktemp("vocabulary") / "vocab.txt")
    write_vocab(NASTY["vocab"], vocab_file)
    return FullTokenizer(vocab_file)


@pytest.mark.parametrize(
    ("is_pair", "length"),
    [
        (True, 6),
        (False, 7),
        (True, 13),
        *(pytest.param(True, length, marks=pytest.mark.slow) for length in (5, 7, 8, 40)),
        *(pytest.param(False, length, marks=pytest.mark.slow) for length in (5, 40)),
    ],
)
def test_features_are_those_of_training(tokenizer, is_pair, length):
    strings = NASTY["strings"]
    others = [strings[(7 * i + 3) % len(strings)] if is_pair else None for i in range(len(strings))]
    examples = [Example(*texts, None) for texts in zip(strings, others, strict=True)]
    expected = Features(examples, tokenizer, length).batch(np.arange(len(examples)))
    columns = [strings, others] if is_pair else [strings]
    with tf.Graph().as_default(), tf.Session() as session:
        texts = [tf.constant([text.encode() for text in column]) for column in columns]
        found = session.run(export.features_of(tokenizer, texts, length))
    assert set(found) == {"input_ids", "input_mask", "segment_ids"}
    longest = expected["input_mask"].sum(axis=1).max()
    for name, value in found.items():
        assert value.dtype == np.int32
        np.testing.assert_array_equal(value, expected[name][:, :longest], err_msg=name)


def test_a_text_whose_tokens_differ_is_shown(tokenizer, monkeypatch):
    texts = [f"text {number}" for number in range(300)]
    assert export.check_texts(tokenizer, texts) == 300
    assert export.check_texts(tokenizer, []) == 0
    monkeypatch.setattr(tokenizer, "encode", lambda text: [7] if text == "text 299" else None)
    monkeypatch.setattr(export, "_BATCH", 299)
    with pytest.raises(FlagError, match=r": the graph .* the text 'text 0' into"):
        export.check_texts(tokenizer, texts)


# Exported by the script

LOADS_A_SAVED_MODEL = """
import json, sys
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
signature = model.signatures["serving_default"]
texts = json.load(open(sys.argv[2]))
found = signature(**{name: tf.constant(column) for name, column in texts.items()})
def example(values):
    lists = {name: tf.train.BytesList(value=[value.encode()]) for name, value in values.items()}
    features = {name: tf.train.Feature(bytes_list=values) for name, values in lists.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
for name in {"classify", "regress"} & set(model.signatures):
    examples = [example(dict(zip(texts, row))) for row in zip(*texts.values())]
    answers = model.signatures[name](inputs=tf.constant(examples))
    found |= {f"{name} {key}": value for key, value in answers.items()}

def as_json(value):
    value = value.numpy().tolist() if hasattr(value, "numpy") else value
    if isinstance(value, list):
        return [as_json(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value
json.dump({name: as_json(value) for name, value in found.items()}, open(sys.argv[3], "w"))
assert not [name for name in sys.modules if name.startswith("bert_estimator")]
"""


def answers_of(path, model, texts):
    """Returns the outputs of a process that knows TensorFlow alone."""
    (path / "texts.json").write_text(json.dumps(texts))
    arguments = [model, str(path / "texts.json"), str(path / "found.json")]
    forked.run([sys.executable, "-c", LOADS_A_SAVED_MODEL, *arguments], check=True)
    return json.loads((path / "found.json").read_text())


def exported(path, capsys, **changes):
    """Trains and exports; returns (the directory of the SavedModel, what was printed)."""
    flags = classifier_flags(path, path / "run", do_train=True, do_export=True, **changes)
    assert run_classifier.main(["run_classifier.py", *flags]) == 0
    out = capsys.readouterr().out
    return re.search("SavedModel: (.*)", out)[1], out


def test_pairs(tmp_path, capsys):
    write_data(tmp_path)
    model, out = exported(tmp_path, capsys)
    assert "The SavedModel takes text, and splits all 64 texts of the task as training does." in out
    texts = [(a, b) for a, b, _ in pairs(9, 5)]
    texts += [("W1 w2,w3", "Ω w4 " * 30), ("", "")]
    first, second = zip(*texts, strict=True)
    found = answers_of(tmp_path, model, {"text_a": first, "text_b": second})
    predictor = Predictor(str(tmp_path / "run"))
    expected = predictor.predict(texts)
    np.testing.assert_allclose(found["probabilities"], expected["probabilities"], atol=1e-6)
    np.testing.assert_allclose(found["logits"], expected["logits"], atol=1e-5)
    assert found["label"] == [answer["label"] for answer in predictor(texts)]
    assert found["labels"] == [["high", "low"]] * len(texts)
    assert found["classify classes"] == found["labels"]
    assert found["classify scores"] == found["probabilities"]
    check_signatures(model, {"classify": ("inputs", {"classes", "scores"})})
    assert len(np.unique(np.round(expected["logits"], 4), axis=0)) > 5


def check_signatures(model, of_examples):
    """Checks signatures, name -> (input, outputs), against TensorFlow Serving's conventions."""
    with tf.Graph().as_default(), tf.Session() as session:
        signatures = tf.saved_model.load(session, ["serve"], model).signature_def
    assert set(signatures) - {"__saved_model_init_op"} == {
        "serving_default",
        "ids:serving_default",
        *of_examples,
    }
    for name, (fed, outputs) in of_examples.items():
        signature = signatures[name]
        assert signature.method_name == f"tensorflow/serving/{name}"
        assert list(signature.inputs) == [fed] and set(signature.outputs) == outputs
        assert tf.as_dtype(signature.inputs[fed].dtype) == tf.string
        assert tf.saved_model.is_valid_signature(signature)
        for output in signature.outputs.values():  # as the server checks
            sizes = [dim.size for dim in output.tensor_shape.dim]
            assert sizes[0] == -1 and len(sizes) == (2 if name == "classify" else 1)
    assert signatures["serving_default"].method_name == "tensorflow/serving/predict"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "multi_label", "regression"])
def test_single_texts(tmp_path, capsys, kind):
    write_data(tmp_path)
    label = {
        "classification": lambda text: text[:2],
        "multi_label": lambda text: text.split()[:2],
        "regression": len,
    }[kind]
    texts = [f"{a} {b}" for a, b, _ in pairs(16, 5)]
    rows = [{"text": text, "label": label(text)} for text in texts]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {f"{f}_file": tmp_path / f"{n}.jsonl" for f, n in (("train", "train"), ("eval", "dev"))}
    model, out = exported(tmp_path, capsys, task_kind=kind, **files)
    assert "The SavedModel takes text" in out
    found = answers_of(tmp_path, model, {"text_a": texts})
    predictor = Predictor(str(tmp_path / "run"))
    expected = predictor.predict(texts)
    np.testing.assert_allclose(found["logits"], expected["logits"], atol=1e-5)
    if kind == "regression":
        np.testing.assert_allclose(found["number"], expected["logits"][:, 0], atol=1e-5)
        assert found["regress outputs"] == found["number"]
        check_signatures(model, {"regress": ("inputs", {"outputs"})})
    else:
        assert found["classify classes"] == found["labels"]
        assert found["classify scores"] == found["probabilities"]
        check_signatures(model, {"classify": ("inputs", {"classes", "scores"})})
        np.testing.assert_allclose(found["probabilities"], expected["probabilities"], atol=1e-6)
        assert found["labels"][0] == list(predictor.labels)
    assert ("label" in found) == (kind == "classification")


_CUT = LongTexts()


@dataclasses.dataclass
class _Task:
    vocab_file: str
    kind: str = "classification"
    casing: tuple = (True, None)
    long_texts: LongTexts = _CUT

    def texts(self):
        return ["a b"]


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (
            _Task("vocab.txt", "tagging"),
            "a SavedModel takes text for classes and numbers, and not f",
        ),
        (
            _Task("a/vocab.model"),
            "a SavedModel splits text by WordPiece, and a/vocab.model is Sent",
        ),
        (
            _Task("vocab.txt", "regression", long_texts=LongTexts("head_tail")),
            "a SavedModel that takes text cuts it, which is not --long_texts=head_tail",
        ),
    ],
)
def test_what_cannot_take_text_takes_ids(capsys, task, why):
    with pytest.raises(FlagError, match=rf"^--export_inputs=text: {why}.*; give --export_inputs=i"):
        export.text_input("text", task, 16)
    assert export.text_input(None, task, 16) is None
    assert capsys.readouterr().out.startswith(f"The SavedModel takes ids: {why}")
    assert export.text_input("ids", task, 16) is None
    assert capsys.readouterr().out == "The SavedModel takes ids.\n"  # why it must does not matter


@pytest.mark.parametrize("kind", ["classification", "multi_label", "regression"])
def test_wordpiece_takes_text(tmp_path, capsys, kind):
    vocab_file = str(tmp_path / "vocab.txt")
    write_vocab([*SPECIAL_TOKENS, "a", "b"], vocab_file)
    for asked in (None, "text"):
        assert export.text_input(asked, _Task(vocab_file, kind), 16) is not None
        assert "splits all 1 texts of the task as training does" in capsys.readouterr().out
    assert export.text_input("ids", _Task(vocab_file, kind), 16) is None
