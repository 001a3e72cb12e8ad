"""Accents that are kept, from a text through every command to the answers and the converted files.

The words are German and lower-cased: with default flags, their vocabulary is refused. Tokens with
accents, and without, must come out of each command for the same text.
"""

import json
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from commands import MAINS
from tiny_run import bert_config

import run_classifier
import run_pretraining
import run_squad
from bert_estimator.interchange import __main__ as convert
from bert_estimator.interchange import open_source
from bert_estimator.serving.embedder import Embedder
from bert_estimator.serving.predictor import Predictor
from bert_estimator.tokenization import load_vocab, open_tokenizer
from input_pipelines.records import manifest as manifests

WORDS = "für über größe mäuse häuser bäume schön töne fuer ueber grosse maus haus baum schon ton"
TEXTS = [
    " ".join(np.random.default_rng(seed).choice(WORDS.split(), 6).tolist()) for seed in range(60)
]
SIZE = 80
LENGTHS = {"max_seq_length": 16, "max_predictions_per_seq": 4}
LOST = "have accents or other combining marks"


def run(main, *argv, **flags):
    """Runs a command; returns its exit code."""
    values = [f"--{name}={value}" for name, value in flags.items()]
    return main(["command", *argv, *values])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Makes a vocabulary, records, a pretrained network, and files to fine-tune on."""
    path = tmp_path_factory.mktemp("accents")
    (path / "text.txt").write_text(
        "\n".join(text + "\n" * (number % 3 == 0) for number, text in enumerate(TEXTS)) + "\n",
        encoding="utf-8",
    )
    (path / "bert_config.json").write_text(json.dumps({**bert_config(0), "vocab_size": SIZE}))
    rows = [
        {"text": f"{text.title()}.", "label": "mit" if "ü" in text else "ohne"} for text in TEXTS
    ]
    (path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = {"input_file": path / "text.txt", "vocab_file": path / "vocab.txt"}
    made = run(MAINS["vocabulary"], "--nostrip_accents", vocab_size=SIZE, **texts)
    assert made == 0
    records = {"output_file": path / "train.tfrecord", **LENGTHS}
    assert run(MAINS["records"], **texts, **records) == 0
    trained = run(
        run_pretraining.main,
        "--do_train",
        input_file=path / "train.tfrecord",
        bert_config_file=path / "bert_config.json",
        output_dir=path / "pretrained",
        **LENGTHS,
        train_batch_size=8,
        num_train_steps=2,
    )
    assert trained == 0
    return path


@pytest.fixture(scope="module")
def classifier(data):
    """Fine-tunes the pretrained network, whose files say how text is cased, and exports it."""
    assert run(run_classifier.main, "--do_train", "--do_export", "--do_predict", **files(data)) == 0
    return data / "classifier"


def files(data, **changes):
    return {
        "train_file": data / "train.jsonl",
        "predict_file": data / "train.jsonl",
        "text_a_column": "text",
        "label_column": "label",
        "bert_config_file": data / "bert_config.json",
        "init_checkpoint": data / "pretrained",
        "output_dir": data / "classifier",
        "max_seq_length": 16,
        "train_batch_size": 8,
        "num_train_epochs": 1,
        **changes,
    }


def test_a_vocabulary_and_records_keep_accents(data):
    assert {"ü", "ß", "##ö"} <= set(load_vocab(str(data / "vocab.txt")))
    manifest = manifests.read_manifest(str(data / "manifest.train.tfrecord.json"))
    assert manifest.casing == (True, False)
    assert manifests.read_token_counts(str(data / manifest.token_counts))[1] == 0  # no [UNK]
    task = json.loads((data / "pretrained" / "task.json").read_text())
    assert (task["do_lower_case"], task["strip_accents"]) == (True, False)


def test_records_lose_accents_if_a_flag_says_so(data, tmp_path, caplog):
    flags = {"input_file": data / "text.txt", "vocab_file": data / "vocab.txt"}
    output = {"output_file": tmp_path / "a.tfrecord", **LENGTHS}
    assert run(MAINS["records"], "--strip_accents", **flags, **output) == 0
    assert LOST in caplog.text
    path = tmp_path / "manifest.a.tfrecord.json"
    assert "strip_accents" not in json.loads(path.read_text())  # earlier versions read it
    assert manifests.read_manifest(str(path)).casing == (True, None)


@pytest.mark.parametrize("vocab_file", ["vocab.txt", None])
def test_another_casing_than_the_start_learned_is_refused(data, tmp_path, capsys, vocab_file):
    flags = files(data, output_dir=tmp_path / "run")
    flags |= {"vocab_file": data / vocab_file} if vocab_file else {}
    assert run(run_classifier.main, "--do_train", "--strip_accents", **flags) == 2
    assert "trained with False for --strip_accents, not the default" in capsys.readouterr().err


def test_the_export_the_predictor_and_prediction_agree(classifier):
    """The export takes text, and splits every text of the task as training does."""
    rows = [text.title() + "." for text in TEXTS]
    expected = np.loadtxt(classifier / "test_results.tsv", ndmin=2)
    predictor = Predictor(str(classifier))
    answers = predictor(rows)
    found = [list(answer["probabilities"].values()) for answer in answers]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with tf.Session(graph=tf.Graph()) as session:
        graph = tf.saved_model.load(session, ["serve"], predictor.export_dir)
        signature = graph.signature_def["serving_default"]
        (fed,) = signature.inputs.values()
        got = session.run(signature.outputs["probabilities"].name, {fed.name: rows})
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_converted_files_keep_accents(data, classifier, tmp_path):
    hf, back = tmp_path / "hf", tmp_path / "tf1"
    assert run(convert.main, str(classifier), str(hf), "--to=hf") == 0
    settings = json.loads((hf / "tokenizer_config.json").read_text())
    assert (settings["do_lower_case"], settings["strip_accents"]) == (True, False)
    assert run(convert.main, str(hf), str(back), "--to=tf1") == 0
    assert open_source(str(hf)).casing == open_source(str(back)).casing == (True, False)
    vectors = [Embedder(str(path))(["Für Größe"]) for path in (classifier, hf, back)]
    np.testing.assert_array_equal(vectors[0], vectors[1])
    np.testing.assert_array_equal(vectors[0], vectors[2])
    stripped = Embedder(str(hf), strip_accents=True)(["Für Größe"])
    assert np.abs(stripped - vectors[0]).max() > 1e-3


def test_a_foreign_model_that_loses_accents(data, classifier, tmp_path, caplog):
    """Its files ask for it, as half of the published Indic models do, and a warning says so."""
    assert run(convert.main, str(classifier), str(tmp_path / "hf"), "--to=hf") == 0
    (tmp_path / "hf" / "tokenizer.json").unlink()
    path = tmp_path / "hf" / "tokenizer_config.json"
    path.write_text('{"do_lower_case": true}')
    kept, stripped = (Embedder(str(tmp_path / "hf"), strip_accents=s) for s in (False, None))
    assert LOST in caplog.text and f"correct strip_accents in {path}, if" in caplog.text
    assert np.abs(kept(["für"]) - stripped(["für"])).max() > 1e-3
    np.testing.assert_array_equal(kept(["für"]), Embedder(str(classifier))(["für"]))
    flags = files(data, init_checkpoint=tmp_path / "hf", output_dir=tmp_path / "run")
    del flags["bert_config_file"]
    assert run(run_classifier.main, "--do_train", **flags) == 0
    task = json.loads((tmp_path / "run" / "task.json").read_text())
    assert (task["do_lower_case"], task["strip_accents"]) == (True, None)


def test_tags_and_answers_keep_accents(data, tmp_path):
    words = [text.split() for text in TEXTS[:8]]
    lines = "".join("".join(f"{w} {'B' if 'ü' in w else 'O'}\n" for w in s) + "\n" for s in words)
    (tmp_path / "train.conll").write_text(lines)
    flags = files(data, train_file=tmp_path / "train.conll", output_dir=tmp_path / "tags")
    for name in ("text_a_column", "label_column"):
        del flags[name]
    flags |= {"predict_file": tmp_path / "train.conll", "task_kind": "tagging"}
    assert run(run_classifier.main, "--do_train", "--do_export", **flags) == 0
    assert Predictor(str(tmp_path / "tags"))(["Für häuser"])[0]["words"] == ["Für", "häuser"]
    context = "Die Größe über alles"
    answers = [{"text": "Größe", "answer_start": 4}]
    qas = [{"id": "a", "question": "Größe für", "answers": answers}]
    paragraphs = [{"context": context, "qas": qas}]
    (tmp_path / "train.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    answered = {
        "train_file": tmp_path / "train.json",
        "bert_config_file": data / "bert_config.json",
        "init_checkpoint": data / "pretrained",
        "output_dir": tmp_path / "answers",
        "max_seq_length": 16,
        "max_query_length": 6,
        "doc_stride": 4,
        "train_batch_size": 1,
        "num_train_epochs": 1,
    }
    assert run(run_squad.main, "--do_train", "--do_export", **answered) == 0
    task = json.loads((tmp_path / "answers" / "task.json").read_text())
    assert (task["do_lower_case"], task["strip_accents"]) == (True, False)


def test_a_run_that_lost_accents_is_opened_and_resumed(data, tmp_path, capsys, caplog):
    """Earlier versions do not write the key into task.json and config.json."""
    flags = files(data, vocab_file=data / "vocab.txt", output_dir=tmp_path / "run")
    del flags["init_checkpoint"]
    argv = ["--do_train", "--do_export"]
    assert run(run_classifier.main, *argv, "--strip_accents", **flags) == 0
    for name in ("task.json", "config.json"):
        path = tmp_path / "run" / name
        values = json.loads(path.read_text())
        values.pop("strip_accents", None)
        values.get("flags", {}).pop("strip_accents", None)
        path.write_text(json.dumps(values))
    capsys.readouterr()
    caplog.clear()
    for repeated in ([], ["--strip_accents"]):
        assert run(run_classifier.main, *argv, *repeated, **{**flags, "num_train_epochs": 2}) == 0
        assert LOST not in caplog.text
    export = sorted(os.listdir(tmp_path / "run" / "export"))[-1]
    task_file = tmp_path / "run" / "export" / export / "assets.extra" / "task.json"
    values = json.loads(task_file.read_text())
    assert values.pop("strip_accents") is None
    task_file.write_text(json.dumps(values))
    assert "label" in Predictor(str(tmp_path / "run"))(["Für"])[0]
    # Another casing would give other tokens.
    flags["num_train_epochs"] = 3
    assert run(run_classifier.main, *argv, "--nostrip_accents", **flags) == 2
    message = "--strip_accents=False: the run began with True; leave the flag out to go on with it"
    assert message in capsys.readouterr().err
    assert open_tokenizer(str(tmp_path / "run" / "vocab.txt")).casing == (True, False)
