"""What an exported model tells of raw texts: the same as `--do_predict`, from its directory."""

import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from tiny_run import bert_config, words

import run_classifier
from bert_estimator.serving import predictor as predictor_module
from bert_estimator.serving.predictor import Predictor, answer_lines, find
from bert_estimator.tokenization import SPECIAL_TOKENS, train_sentencepiece, write_vocab

ROOT = os.path.dirname(os.path.abspath(run_classifier.__file__))
WORDS = [*words(20), *(word.upper() for word in words(20))]
NUMBER = 13  # texts to predict for, which is not a multiple of a batch


def texts(number, seed, is_pair=False):
    """Returns texts of three words each, w's and W's, or pairs of these texts."""
    generator = np.random.default_rng(seed)

    def text():
        return " ".join(WORDS[word] for word in generator.integers(len(WORDS), size=3))

    return [(text(), text()) if is_pair else text() for _ in range(number)]


def run(path, label_of, is_pair, vocab_file, vocab_size, **flags):
    """Trains for two steps, predicts and exports; returns the run's directory."""
    (path / "bert_config.json").write_text(
        json.dumps({**bert_config(0), "vocab_size": vocab_size, "initializer_range": 0.3})
    )
    for name, number, seed in (("train", 16, 1), ("test", NUMBER, 2)):
        rows = [
            {"text_a": text[0] if is_pair else text, "label": label_of(place)}
            | ({"text_b": text[1]} if is_pair else {})
            for place, text in enumerate(texts(number, seed, is_pair))
        ]
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "train_file": path / "train.jsonl",
        "predict_file": path / "test.jsonl",
        "text_a_column": "text_a",
        "text_b_column": "text_b" if is_pair else None,
        "label_column": "label",
        "vocab_file": vocab_file,
        "bert_config_file": path / "bert_config.json",
        "output_dir": path / "run",
        "max_seq_length": 12,
        "train_batch_size": 8,
        "num_train_epochs": 1,
        **flags,
    }
    argv = [f"--{name}={value}" for name, value in values.items() if value is not None]
    argv += ["--do_train", "--do_predict", "--do_export", "--use_tpu"]
    assert run_classifier.main(["run_classifier.py", *argv]) == 0
    return path / "run"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Makes a run for classification of pairs, with WordPiece."""
    path = tmp_path_factory.mktemp("pairs")
    vocab_file = path / "vocab.txt"
    write_vocab([*SPECIAL_TOKENS, *words(20)], str(vocab_file))
    return run(path, lambda place: ("low", "high")[place % 2], True, vocab_file, 25)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Makes a run for several labels of a text, with SentencePiece."""
    path = tmp_path_factory.mktemp("several")
    vocab_file = path / "pieces.model"
    train_sentencepiece(texts(200, 3), str(vocab_file), 24)

    def label(place):
        return ["a", "b", "c"][: place % 4]

    return run(path, label, False, vocab_file, 24, task_kind="multi_label")


@pytest.fixture(scope="module")
def cased(tmp_path_factory):
    """Makes a run for a number of a text, in which W1 and w1 are different words."""
    path = tmp_path_factory.mktemp("cased")
    vocab_file = path / "cased_words.txt"
    write_vocab([*SPECIAL_TOKENS, *WORDS], str(vocab_file))
    flags = {"task_kind": "regression", "do_lower_case": "false"}
    return run(path, float, False, vocab_file, 45, **flags)


@pytest.fixture(scope="module")
def of_pairs(pairs):
    return Predictor(str(pairs))


def results_of(run):
    return np.loadtxt(run / "test_results.tsv", delimiter="\t", ndmin=2)


@pytest.mark.parametrize("name", ["pairs", "several", "cased"])
def test_it_tells_what_the_run_predicted(request, name):
    run = request.getfixturevalue(name)
    predictor = Predictor(str(run))
    found = predictor.predict(texts(NUMBER, 2, predictor.is_pair))
    expected = results_of(run)
    assert len(np.unique(expected, axis=0)) == NUMBER  # no two texts have the same answer
    output = "logits" if name == "cased" else "probabilities"
    np.testing.assert_allclose(found[output], expected, rtol=0, atol=1e-6)
    assert {rows.dtype for rows in found.values()} == {np.dtype(np.float32)}
    assert sorted(found) == sorted({"logits", output})


def test_answers_are_by_label(pairs, several, cased, of_pairs):
    assert (of_pairs.kind, of_pairs.labels, of_pairs.max_seq_length) == (
        "classification",
        ("high", "low"),
        12,
    )
    for answer, row in zip(of_pairs(texts(NUMBER, 2, True)), results_of(pairs), strict=True):
        assert answer["probabilities"] == pytest.approx({"high": row[0], "low": row[1]}, abs=1e-6)
        assert answer["label"] == ("high" if row[0] > row[1] else "low")
    answers = Predictor(str(several))(texts(NUMBER, 2))
    for answer, row in zip(answers, results_of(several), strict=True):
        assert list(answer["probabilities"].values()) == pytest.approx(row, abs=1e-6)
        assert answer["labels"] == [label for label, p in zip("abc", row, strict=True) if p > 0.5]
    answers = Predictor(str(cased))(texts(NUMBER, 2))
    np.testing.assert_allclose([a["number"] for a in answers], results_of(cased)[:, 0], atol=1e-6)


@pytest.mark.parametrize(("number", "batch_size"), [(0, 4), (1, 4), (8, 4), (13, 4), (13, 1)])
def test_any_number_of_texts_in_their_order(pairs, number, batch_size):
    predictor = Predictor(str(pairs), batch_size)
    given = texts(NUMBER, 2, True)[:number]
    for _ in range(2):  # it stays
        found = predictor.predict(iter(given))
        assert found["logits"].shape == found["probabilities"].shape == (number, 2)
        np.testing.assert_allclose(found["probabilities"], results_of(pairs)[:number], atol=1e-6)
    predictor.close()
    with pytest.raises(RuntimeError, match="closed"):
        predictor.predict(texts(1, 2, True))


def test_longer_texts_are_cut_and_counted(of_pairs):
    before = of_pairs.num_cut
    longer = [("w1 " * 20, "w2"), ("w1", "w2")]
    cut = [("w1 " * 8, "w2"), ("w1", "w2")]
    np.testing.assert_array_equal(
        of_pairs.predict(longer)["logits"], of_pairs.predict(cut)["logits"]
    )
    assert of_pairs.num_cut == before + 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a text", "texts must be a list of texts, not the one text 'a text'"),
        ([("a", "b"), "c"], r"texts\[1\] is 'c'; it must be a pair of strings, like the texts"),
        ([("a", None)], r"texts\[0\] is \('a', None\); it must be a pair of strings"),
        ([("a", "b", "c")], r"texts\[0\] is \('a', 'b', 'c'\); it must be a pair"),
    ],
)
def test_texts_that_are_not_pairs(of_pairs, given, message):
    with pytest.raises(ValueError, match=message):
        of_pairs(given)


def test_a_pair_where_the_task_has_single_texts(cased):
    with pytest.raises(ValueError, match=r"texts\[1\] is \('a', 'b'\); it must be a string"):
        Predictor(str(cased)).predict(["a", ("a", "b")])


# Directories


def test_the_newest_exported_model_is_found(tmp_path):
    for number in ("9", "10", "temp-11"):
        (tmp_path / "export" / number).mkdir(parents=True)
        (tmp_path / "export" / number / "saved_model.pb").write_text("")
    (tmp_path / "export" / "12").mkdir()  # nothing in it
    newest = str(tmp_path / "export" / "10")
    assert find(str(tmp_path)) == find(str(tmp_path / "export")) == find(newest) == newest
    assert find(str(tmp_path / "export" / "9")) == str(tmp_path / "export" / "9")


def test_directories_that_cannot_work(pairs, tmp_path):
    def refuses(path, message):
        with pytest.raises(ValueError, match=message):
            Predictor(str(path))

    for path in (tmp_path, tmp_path / "no"):
        refuses(path, rf"^{path} does not hold an exported model: .* saved_model\.pb.* --do_export")
    copy = tmp_path / "copy"
    shutil.copytree(find(str(pairs)), copy)
    (copy / "assets.extra" / "vocab.txt").rename(tmp_path / "vocab.txt")
    refuses(copy, r"assets\.extra/vocab\.txt: the vocabulary is missing. Export the model again")
    (copy / "assets.extra" / "task.json").unlink()
    refuses(copy, r"assets\.extra/task\.json is missing, which says how text becomes ids")
    with pytest.raises(ValueError, match="batch_size=0: must be positive"):
        Predictor(str(pairs), 0)


# The command


def main(*args):
    return predictor_module.main(["predictor", *map(str, args)])


def test_a_file_of_lines(pairs, tmp_path, capsys):
    lines = ["\t".join(pair) for pair in texts(NUMBER, 2, True)]
    (tmp_path / "texts.tsv").write_bytes("\r\n".join([*lines, "w1 " * 20 + "\t"]).encode())
    assert main(pairs, tmp_path / "texts.tsv", "--batch_size=3") == 0
    out, err = capsys.readouterr()
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == NUMBER + 1
    found = [[answer["probabilities"][label] for label in ("high", "low")] for answer in answers]
    np.testing.assert_allclose(found[:NUMBER], results_of(pairs), atol=1e-6)
    assert err.splitlines()[-1] == "1 of the texts were cut to 12 tokens."


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (b"a\tb\nc\n", "line 2 has 0 tabs, but the model's task is about pairs: two texts"),
        (b"a\tb\tc\n", "line 1 has 2 tabs, but the model's task is about pairs"),
        (b"a\tb\nc\t\xff\n", "line 2: byte 2 is not UTF-8"),
    ],
)
def test_lines_that_cannot_work(pairs, tmp_path, capsys, lines, message):
    (tmp_path / "texts").write_bytes(lines)
    assert main(pairs, tmp_path / "texts") == 2
    assert f"predictor: {message}" in capsys.readouterr().err


def test_a_pair_in_a_line_where_the_task_has_single_texts(cased):
    with pytest.raises(
        ValueError, match="line 1 has 1 tabs, but the model's task is about single t"
    ):
        answer_lines(Predictor(str(cased)), io.BytesIO(b"a\tb\n"), io.StringIO())


def test_a_command_that_cannot_work(pairs, tmp_path, capsys):
    assert main(tmp_path) == 2
    assert f"predictor: {tmp_path} does not hold an exported model" in capsys.readouterr().err
    assert main(pairs, tmp_path / "no") == 2
    assert f"predictor: [Errno 2] No such file or directory: '{tmp_path}/no'" in (
        capsys.readouterr().err
    )


@pytest.fixture
def process(pairs):
    """Starts the command, which waits for lines."""
    with subprocess.Popen(
        [sys.executable, "-m", "bert_estimator.serving.predictor", str(pairs)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()


def test_a_line_is_answered_before_the_next_is_written(pairs, process):
    for pair, row in zip(texts(NUMBER, 2, True), results_of(pairs), strict=True):
        process.stdin.write("\t".join(pair).encode() + b"\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        assert list(answer["probabilities"].values()) == pytest.approx(row, abs=1e-6)
    out, err = process.communicate(b"w1\tw2")  # the last line may lack its end
    assert len(out.splitlines()) == 1
    assert process.returncode == 0
    assert b"deprecated" not in err


def test_nobody_reads_the_answers(process):
    process.stdout.close()
    process.stdin.write(b"w1\tw2\n")
    process.stdin.close()
    assert process.wait() == 1
    assert b"Traceback" not in process.stderr.read()
