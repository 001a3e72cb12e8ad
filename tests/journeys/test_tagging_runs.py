"""Tagging from its command line: whole runs, on both runtimes, and what they leave behind."""

import itertools
import json
import re
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tiny_run import bert_config, reports_of, tagging_flags, words, write_tagged

import run_classifier
from bert_estimator.jobs.fine_tuning import classification_config
from bert_estimator.serving import predictor as predictor_module
from bert_estimator.serving.predictor import Predictor
from bert_estimator.serving.server import models
from bert_estimator.tokenization import (
    SPECIAL_TOKENS,
    entities,
    train_sentencepiece,
    write_vocab,
)
from input_pipelines.tasks import tag_files

COLUMNS = tag_files.Columns()
TAGS = ("O", "B-LOW", "I-LOW")


def test_the_help_names_the_formats_that_are_read():
    assert classification_config.TAG_FORMATS == tag_files.FORMATS


def main(flags):
    """Runs the script in this process."""
    return run_classifier.main(["run_classifier.py", *flags])


def write_data(path):
    write_vocab([*SPECIAL_TOKENS, *words(30)], str(path / "vocab.txt"))
    config = bert_config(30, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    (path / "bert_config.json").write_text(json.dumps({**config, "initializer_range": 0.1}))
    for name, number, seed in (("train", 64, 1), ("dev", 21, 2), ("test", 13, 3)):
        write_tagged(path / f"{name}.conll", number, seed)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_data(path)
    return path


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Makes a run that trains until it tags well, evaluates on the way, predicts and exports."""
    output_dir = tmp_path_factory.mktemp("tagging") / "run"
    flags = tagging_flags(
        data, output_dir, num_train_epochs=2, predict_file=data / "test.conll",
        save_checkpoints_steps=16,
    )  # fmt: skip
    flags += ["--do_train", "--do_eval", "--do_predict", "--do_export", "--keep_best_checkpoint"]
    assert main(flags) == 0
    return output_dir


def tags_of(path, number=None):
    """Returns the tags in a column of a CoNLL file, sentence by sentence."""
    sentences = tag_files.read_sentences(str(path), tag_files.Columns(tags=number), TAGS)
    return [[TAGS[tag] for tag in sentence.tags] for sentence in sentences]


def test_predictions_are_in_the_inputs_format(data, trained):
    """Sentences have up to 19 words, windows up to 8."""
    given = (data / "test.conll").read_text().splitlines()
    found = (trained / "test_results.conll").read_text().splitlines()
    assert [line.rpartition(" ")[0] if line else "" for line in found] == given
    score = entities.scores(
        tags_of(data / "test.conll"), tags_of(trained / "test_results.conll", 3)
    )
    assert score[2] > 0.6  # easy enough to tell a right order of the windows from a wrong order
    results = dict(
        line.split(" = ") for line in (trained / "eval_results.txt").read_text().splitlines()
    )
    names = {"entity_f1", "entity_precision", "entity_recall", "accuracy", "mean_loss"}
    assert set(results) == {*names, "loss", "global_step"}
    assert float(results["entity_f1"]) > 0.6 < float(results["accuracy"])


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_comments_and_further_columns_do_not_change_predictions(data, trained, tmp_path, separator):
    lines = ["-DOCSTART-", "", "# newdoc id = 1"]
    for number, line in enumerate((data / "test.conll").read_text().splitlines()):
        lines.append(separator.join([*line.split()[:2], "_", "_", "O"] if line else []))
        lines += [] if line else [f"# sent_id = {number}"]
    path = tmp_path / "test.conll"
    path.write_bytes("\r\n".join(lines).encode("utf-16"))
    flags = [f"--init_checkpoint={trained}", f"--predict_file={path}", "--do_predict"]
    flags += ["--encoding=utf-16"]  # the kind and the length are the network's
    assert main([*flags, f"--output_dir={tmp_path}/run"]) == 0
    tagged = (tmp_path / "run" / "test_results.conll").read_text().splitlines()
    assert len(tagged) == len(lines) and tagged[0] == f"-DOCSTART-{separator}O"
    words = [line.split(separator) for line in tagged if separator + "_" in line]
    expected = itertools.chain.from_iterable(tags_of(trained / "test_results.conll", 3))
    assert [cells[-1] for cells in words] == list(expected)


def test_tags_of_bilou_are_answered_in_bilou(data, tmp_path):
    for name in ("train", "dev", "test"):
        lines = (data / f"{name}.conll").read_text().splitlines() + [""]
        goes_on = ["I-" in line for line in lines[1:]] + [False]
        for number, (line, following) in enumerate(zip(lines, goes_on, strict=True)):
            if not following:
                lines[number] = line.replace("B-", "U-").replace("I-", "L-")
        (tmp_path / f"{name}.conll").write_text("\n".join(lines) + "\n")
    for name in ("vocab.txt", "bert_config.json"):
        shutil.copy(data / name, tmp_path)
    files = {"predict_file": tmp_path / "test.conll", "num_train_epochs": 2}
    flags = tagging_flags(tmp_path, tmp_path / "run", save_checkpoints_steps=100, **files)
    assert main([*flags, "--do_train", "--do_eval", "--do_predict", "--do_export"]) == 0
    lines = (tmp_path / "run" / "test_results.conll").read_text().splitlines()
    predicted = [line.split()[-1] for line in lines if line]
    assert set(predicted) == {"O", "B-LOW", "L-LOW"}  # the names of the data have two words
    assert "entity_f1 = " in (tmp_path / "run" / "eval_results.txt").read_text()
    words = [line.split()[0] for line in lines[: lines.index("")]]
    (answer,) = Predictor(str(tmp_path / "run"))([words])
    assert answer["tags"] == predicted[: len(words)] and "L-LOW" in answer["tags"]
    assert all(len(entity["words"]) == 2 for entity in answer["entities"])


def test_the_best_checkpoint_is_the_one_with_the_best_entities(trained):
    best = json.loads((trained / "best" / "best.json").read_text())
    values = {each["step"]: each["value"] for each in best["evaluations"]}
    assert len(values) > 1
    step = int(max(values, key=values.get))
    found = next((trained / "best").glob("*.index")).name
    assert found == f"model.ckpt-{step}.index"


def test_the_predictor_tags_as_the_run_did(data, trained):
    sentences = [
        list(s.words) for s in tag_files.read_sentences(str(data / "test.conll"), COLUMNS, None)
    ]
    expected = tags_of(trained / "test_results.conll", 3)
    for batch_size in (1, 32):
        predictor = Predictor(str(trained), batch_size)
        answers = predictor([" ".join(sentence) for sentence in sentences])
        assert [answer["tags"] for answer in answers] == expected
        assert [answer["words"] for answer in answers] == sentences
        assert answers == predictor(sentences)
    for answer in answers:
        assert all(1 / 3 < p <= 1 for p in answer["probabilities"])
        assert [
            (e["type"], e["first"], e["first"] + len(e["words"])) for e in answer["entities"]
        ] == entities.entities(answer["tags"])
    assert predictor([]) == []
    (nothing,) = predictor([""])
    assert nothing == {"words": [], "tags": [], "probabilities": [], "entities": []}
    found = predictor.predict([["w1", "w2"]])
    assert found["logits"][0].shape == found["probabilities"][0].shape == (2, 3)
    for wrong in (7, ["a", 7], ["a", ""], [["a"]]):
        with pytest.raises(
            ValueError, match=r"^texts\[0\] is .*; it must be a string or a list of"
        ):
            predictor([wrong])


def test_text_in_the_graph_is_refused_before_the_training(data, tmp_path, capsys):
    flags = tagging_flags(data, tmp_path / "run", export_inputs="text")
    assert main([*flags, "--do_train", "--do_export"]) == 2
    said = capsys.readouterr().err
    assert "--export_inputs=text: a SavedModel takes text for classes and numbers, and not" in said
    assert not list(tmp_path.glob("run/model.ckpt*"))


def test_training_and_evaluation_share_charts(trained):
    tags = [
        {
            value.tag
            for path in folder.glob("events.*")
            for event in tf.train.summary_iterator(str(path))
            for value in event.summary.value
        }
        for folder in (trained, trained / "eval")
    ]
    assert tags[0] & tags[1] == {"loss", "accuracy"}
    assert {"learning_rate", "gradient_norm"} <= tags[0]
    assert {"entity_f1", "mean_loss"} <= tags[1]


def test_each_evaluation_shows_what_words_were_taken_for(trained):
    """There is one at each checkpoint, and the best checkpoint's once more."""
    best = json.loads((trained / "best" / "best.json").read_text())
    found = reports_of(trained / "eval")
    steps = [each["step"] for each in best["evaluations"]]
    assert [step for step, _ in found[:-1]] == steps and found[-1][0] in steps
    table = (trained / "eval_report.tsv").read_text().split("\n\n")[1]
    cells = [line.split("\t")[1:] for line in table.split("\n")[1:]]
    _, last = found[-1]
    assert last["report/confusion"][1:, 1:].astype(str).tolist() == cells
    matrix = np.array(cells, float)
    results = (trained / "eval_results.txt").read_text()
    accuracy = re.search(r"^accuracy = (.*)$", results, re.MULTILINE)[1]
    assert np.trace(matrix) / matrix.sum() == pytest.approx(float(accuracy), abs=1e-6)
    number = {last[f"precision_recall/{tag}"][:2, 0].sum() for tag in TAGS}
    assert number == {matrix.sum()}


def test_the_command_tags_lines(trained, tmp_path, capsys):
    (tmp_path / "texts").write_text("w1 w2 w20\n\nw9\tw9\n")
    assert predictor_module.main(["predictor", str(trained), str(tmp_path / "texts")]) == 1
    first, empty, wrong = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["words"] == ["w1", "w2", "w20"] and len(first["tags"]) == 3
    assert empty["words"] == []
    assert wrong["error"].startswith("line 3: has 1 tabs")


@pytest.mark.parametrize(
    ("kind", "casing"),
    [
        ("sentencepiece", "cased"),
        pytest.param("sentencepiece", "uncased", marks=pytest.mark.slow),
        pytest.param("wordpiece", "cased", marks=pytest.mark.slow),
        pytest.param("wordpiece", "uncased", marks=pytest.mark.slow),
    ],
)
def test_every_tokenizer_and_casing(tmp_path, kind, casing):
    """JSONL comes in and goes out; these classes of words are not entities."""
    vocabulary = [*words(20), *(word.upper() for word in words(20))]
    rows = [
        {"tokens": [w, "!", w.upper()], "ner_tags": ["NOUN", "PUNCT", "NAME"], "id": number}
        for number, w in enumerate(words(16))
    ]
    for name in ("train", "dev", "test"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    vocab_file = tmp_path / ("vocab.txt" if kind == "wordpiece" else "vocab.model")
    size = 60
    if kind == "wordpiece":
        pieces = vocabulary if casing == "cased" else words(20)
        write_vocab([*SPECIAL_TOKENS, *pieces, "!"], str(vocab_file))
    else:
        texts = [" ".join(row["tokens"]) for row in rows] * 5
        train_sentencepiece(texts, str(vocab_file), 22, do_lower_case=casing == "uncased")
    (tmp_path / "bert_config.json").write_text(json.dumps({**bert_config(0), "vocab_size": size}))
    flags = tagging_flags(
        tmp_path, tmp_path / "run", num_train_epochs=0.5, vocab_file=vocab_file,
        do_lower_case=casing == "uncased",
        **{f"{key}_file": tmp_path / f"{name}.jsonl"
           for key, name in (("train", "train"), ("eval", "dev"), ("predict", "test"))},
    )  # fmt: skip
    assert main([*flags, "--do_train", "--do_eval", "--do_predict", "--do_export"]) == 0
    lines = (tmp_path / "run" / "test_results.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    predicted = [row.pop("predicted_tags") for row in found]
    assert found == rows
    answers = Predictor(str(tmp_path / "run"))([row["tokens"] for row in rows])
    assert [answer["tags"] for answer in answers] == predicted
    assert "entities" not in answers[0]
    results = (tmp_path / "run" / "eval_results.txt").read_text()
    assert "macro_f1 = " in results and "entity_f1" not in results


def test_a_file_of_words_alone_is_tagged(data, trained, tmp_path):
    """Although --label_column is the column of the other files."""
    words_alone = tmp_path / "words.conll"
    lines = (data / "test.conll").read_text().splitlines()
    words_alone.write_text("".join(line.partition(" ")[0] + "\n" for line in lines))
    changes = {"predict_file": words_alone, "init_checkpoint": trained / "model.ckpt-16"}
    flags = tagging_flags(data, tmp_path / "run", label_column=3, **changes)
    assert main([*flags, "--do_predict"]) == 0
    tags = tags_of(tmp_path / "run" / "test_results.conll", 1)
    assert [len(sentence) for sentence in tags] == [len(s) for s in tags_of(data / "test.conll")]


@pytest.mark.parametrize("joined", ["", " "])
def test_a_tagger_of_characters_splits_text_into_characters(data, tmp_path, joined):
    """Predictor, server and another export of the run, whose task.json says what words are."""
    characters = [chr(code) for code in range(0x4E00, 0x4E14)]
    write_vocab([*SPECIAL_TOKENS, *characters, *words(5)], str(tmp_path / "vocab.txt"))
    shutil.copy(data / "bert_config.json", tmp_path)
    for name in ("train", "dev"):
        lines = [f"{c} {'B-LOW' if c < characters[8] else 'O'}\n" for c in characters]
        text = (
            "\n".join("".join(lines[n : n + 5]) for n in range(12)) + "\n" + "w1 O\n" * (not joined)
        )
        (tmp_path / f"{name}.conll").write_text(text, encoding="utf-8")
    flags = tagging_flags(tmp_path, tmp_path / "run", num_train_epochs=1)
    assert main([*flags, "--do_train", "--do_export"]) == 0
    form = json.loads((tmp_path / "run" / "task.json").read_text())["words"]
    assert form == ("characters" if joined else "ideographs")
    sentence = characters[3:9]
    texts = ["".join(sentence), joined.join(sentence[:3]) + " w1", ""]
    of_w1 = list("w1") if joined else ["w1"]
    answers = Predictor(str(tmp_path / "run"))(texts)
    assert [a["words"] for a in answers] == [sentence, [*sentence[:3], *of_w1], []]
    assert all(len(a["tags"]) == len(a["words"]) for a in answers)
    of_words = Predictor(str(tmp_path / "run"))([sentence])[0]
    assert (of_words["words"], of_words["tags"]) == (sentence, answers[0]["tags"])
    model = models.open_model(str(tmp_path / "run"), 4)
    assert [a["words"] for a in model.answer(texts)] == [a["words"] for a in answers]
    model.close()
    # Without the sentences of the training, the run says what words are.
    shutil.rmtree(tmp_path / "run" / "export")
    flags = [flag for flag in flags if not flag.startswith("--train_file")]
    assert main([*flags, "--do_export"]) == 0
    assert [a["words"] for a in Predictor(str(tmp_path / "run"))(texts)] == [
        a["words"] for a in answers
    ]
