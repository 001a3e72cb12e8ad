"""What an exported model tells of raw texts: the same as `--do_predict`, from its directory."""

import concurrent.futures
import io
import json
import os
import re
import shutil
import subprocess
import sys

import fixtures
import forked
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import saved_model_pb2
from tiny_run import bert_config, words

import run_classifier
from bert_estimator.interchange import __main__ as interchange
from bert_estimator.serving import commands, embed, exported_model
from bert_estimator.serving import predictor as predictor_module
from bert_estimator.serving.exported_model import find
from bert_estimator.serving.predictor import Predictor, answer_lines
from bert_estimator.storage import remote
from bert_estimator.system import memory
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
    """Makes a run for classification of pairs, with WordPiece. The exported model takes ids."""
    path = tmp_path_factory.mktemp("pairs")
    vocab_file = path / "vocab.txt"
    write_vocab([*SPECIAL_TOKENS, *words(20)], str(vocab_file))

    def label(place):
        return ("low", "high")[place % 2]

    return run(path, label, True, vocab_file, 25, export_inputs="ids")


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
    """Makes a run for a number of a text, cased, whose exported model takes text and ids."""
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


def test_texts_of_like_lengths_are_computed_together(cased):
    predictor, shapes = Predictor(str(cased), batch_size=2), []
    run = predictor._model.session.run

    def watched(outputs, feeds):
        shapes.append({values.shape for values in feeds.values()})
        return run(outputs, feeds)

    given = ["w1 " * number for number in (1, 7, 2, 4, 20)]
    expected = [predictor.predict([text])["logits"][0] for text in given]
    predictor._model.session.run = watched
    np.testing.assert_allclose(predictor.predict(given)["logits"], expected, atol=1e-5)
    assert shapes == [{(2, 12)}, {(2, 6)}, {(1, 3)}]


def test_a_model_of_sequences_of_one_length(pairs, tmp_path):
    # Earlier versions exported such models.
    copy = tmp_path / "copy"
    shutil.copytree(find(str(pairs)), copy)
    model = saved_model_pb2.SavedModel.FromString((copy / GRAPH).read_bytes())
    for fed in model.meta_graphs[0].signature_def["serving_default"].inputs.values():
        assert fed.tensor_shape.dim[1].size == -1
        fed.tensor_shape.dim[1].size = 12
    (copy / GRAPH).write_bytes(model.SerializeToString())
    found = Predictor(str(copy)).predict(texts(NUMBER, 2, True))
    np.testing.assert_allclose(found["probabilities"], results_of(pairs), rtol=0, atol=1e-6)
    task_with(max_seq_length=11)(copy / TASK)
    with pytest.raises(ValueError, match=r"its sequences have 12 tokens, and task\.json's 11"):
        Predictor(str(copy))


def test_no_part_of_the_model_is_compiled(cased):
    """Each shape of a request would be compiled by itself."""
    with open(os.path.join(find(str(cased)), GRAPH), "rb") as file:
        assert b"_XlaMustCompile" not in file.read()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a text", "texts is a single string; give a list of texts"),
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


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("Op type not registered 'TFText>FastSentencepieceTokenize'", "its graph splits text by S"),
        ("Op type not registered 'SentencepieceOp' in a binary", "its graph splits text by Senten"),
        ("a damaged file", "a damaged file"),
    ],
)
def test_a_model_that_an_earlier_version_exported_with_sentencepiece(monkeypatch, found, expected):
    """It needs operations of tensorflow-text."""

    def load(*_):
        raise tf.errors.NotFoundError(None, None, found)

    monkeypatch.setattr(tf.saved_model, "load", load)
    task = exported_model.TextTask("regression", (), False, "vocab.model", True, 12)
    message = re.escape(f"run: the exported model cannot be used: {expected}")
    with pytest.raises(ValueError, match=rf"^{message}.*Export it again$"):
        exported_model.open_session("run", task, 32)


def test_the_newest_exported_model_is_found_whatever_its_format(tmp_path):
    export = tmp_path / "export"
    saved, onnx = "saved_model.pb", "model.onnx"
    files = {"9": saved, "10": saved, "temp-12": saved, "onnx/11": onnx, "onnx/temp-12": onnx}
    for name, file in {**files, "13": "x"}.items():
        (export / name).mkdir(parents=True)
        (export / name / file).write_text("")
    newest = str(export / "onnx" / "11")
    assert find(str(tmp_path)) == find(str(export)) == find(str(export / "onnx")) == newest
    assert find(newest) == newest and find(str(export / "9")) == str(export / "9")
    shutil.rmtree(newest)
    assert find(str(tmp_path)) == find(str(export)) == str(export / "10")


def test_the_newest_remote_model_is_copied(tmp_path):
    for name in (
        "export/7/saved_model.pb",
        "export/7/assets.extra/task.json",
        "export/5/model.onnx",
    ):
        remote.write(b"x", f"ram:/{tmp_path}/{name}")
    copy = find(f"ram:/{tmp_path}")
    assert copy.endswith("/export/7") and os.listdir(os.path.dirname(copy)) == ["7"]
    assert sorted(os.listdir(copy)) == ["assets.extra", "saved_model.pb"]
    assert os.listdir(find(f"ram:/{tmp_path}/export/5")) == ["model.onnx"]
    assert find(f"ram:/{tmp_path}/export/7/assets.extra") is None


def test_directories_that_cannot_work(pairs, tmp_path):
    def refuses(path, message):
        with pytest.raises(ValueError, match=message):
            Predictor(str(path))

    for path in (tmp_path, tmp_path / "no"):
        refuses(path, rf"^{path} does not hold an exported model: .* saved_model\.pb.* --do_export")
    copy = tmp_path / "copy"
    shutil.copytree(find(str(pairs)), copy)
    (copy / "assets.extra" / "task.json").unlink()
    refuses(copy, r"assets\.extra/task\.json is missing, which says how text becomes ids")


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


def scrambled(path):
    path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))


def task_with(**changes):
    def change(path):
        values = json.loads(path.read_text())
        path.write_text(json.dumps({**values, **changes}))

    return change


TASK, GRAPH = "assets.extra/task.json", "saved_model.pb"
WEIGHTS = "variables/variables.data-00000-of-00001"


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (GRAPH, cut, "the exported model cannot be used: "),
        (GRAPH, scrambled, "the exported model cannot be used: "),
        (GRAPH, lambda path: path.write_bytes(b""), "the exported model cannot be used: "),
        (WEIGHTS, cut, "the exported model cannot be used: "),
        (WEIGHTS, scrambled, "the exported model cannot be used: "),
        ("variables/variables.index", cut, "the exported model cannot be used: "),
        ("assets.extra/vocab.txt", scrambled, "vocab.txt:1: byte "),
        (TASK, cut, "task.json: is not JSON: "),
        (TASK, task_with(kind=3), "task.json: kind: must be a string, not 3"),
        (TASK, task_with(kind="x"), "task.json: kind must be one of classification, multi_l"),
        (TASK, task_with(labels=["a"]), "the shape .* does not fit task.json's labels"),
        (TASK, task_with(labels=["a", "a"]), "task.json: labels: a label occurs twice"),
        (TASK, task_with(labels=[]), r"\[\] cannot be the labels of a task of classification"),
        (TASK, task_with(is_pair="no"), 'is_pair: must be true or false, not "no"'),
        (TASK, task_with(max_seq_length=3), "max_seq_length must be at least 5, not 3"),
        (TASK, task_with(long_texts="all"), "long_texts must be one of cut, head_tail, windows, "),
        (TASK, task_with(long_texts=2), "long_texts: must be a string, not 2"),
        (TASK, task_with(long_texts="windows", doc_stride=0), "doc_stride must be positive, not 0"),
        (TASK, task_with(vocab_file="../vocab.txt"), "vocab_file: the name '../vocab.txt' is not"),
        (TASK, task_with(vocab_file="none"), "assets.extra/none: the vocabulary is missing. Ex"),
    ],
)
def test_a_damaged_directory(pairs, tmp_path, capsys, name, damage, message):
    copy = tmp_path / "copy"
    shutil.copytree(find(str(pairs)), copy)
    damage(copy / name)
    assert main(copy) == 2
    err = capsys.readouterr().err
    assert re.search(rf"^predictor: {copy}.*{message}", err, re.MULTILINE)
    assert "Traceback" not in err


def test_a_vocabulary_elsewhere(pairs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(find(str(pairs)), copy)
    (copy / "assets.extra" / "vocab.txt").rename(tmp_path / "vocab.txt")
    (copy / "assets.extra" / "vocab.txt").symlink_to(tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match=r"task\.json: vocab_file: the name 'vocab.txt' is a link"):
        Predictor(str(copy))


# The command


def main(*args):
    return predictor_module.main(["predictor", *map(str, args)])


def test_a_file_of_lines(pairs, tmp_path, capsys):
    commands = ["\t".join(pair) for pair in texts(NUMBER, 2, True)]
    (tmp_path / "texts.tsv").write_bytes("\r\n".join([*commands, "w1 " * 20 + "\t"]).encode())
    assert main(pairs, tmp_path / "texts.tsv", "--batch_size=3") == 0
    out, err = capsys.readouterr()
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == NUMBER + 1
    found = [[answer["probabilities"][label] for label in ("high", "low")] for answer in answers]
    np.testing.assert_allclose(found[:NUMBER], results_of(pairs), atol=1e-6)
    assert err.splitlines()[-1] == "1 of the texts were cut to 12 tokens."


GOOD = b"w1 w2\tw3"
PAIRS = "tabs, but the model's task is about pairs: two texts per line, with one tab between"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"c", f"has 0 {PAIRS}"),
        (b"", f"has 0 {PAIRS}"),
        (b"a\tb\tc", f"has 2 {PAIRS}"),
        (b"c\t\xff", "byte 2 is not UTF-8"),
        (b"c\t\xed\xa0\x80", "byte 2 is not UTF-8"),
        (b"w1\t" + b"a" * commands.LONGEST_LINE, "is longer than 1048576 bytes; shorten the text"),
        (b"w1\t" + b"w " * (3 << 20), "is longer than 1048576 bytes; shorten the text"),
    ],
)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_line_that_cannot_be_answered(pairs, tmp_path, capsys, batch_size, line, message):
    """The lines around it get their answers."""
    (tmp_path / "texts").write_bytes(b"\n".join([GOOD, line, GOOD]))
    assert main(pairs, tmp_path / "texts", f"--batch_size={batch_size}") == 1
    out, err = capsys.readouterr()
    first, wrong, last = map(json.loads, out.splitlines())
    assert wrong == {"error": f"line 2: {message}"}
    assert first["label"] == last["label"]
    assert "1 line was answered with an error." in err


@pytest.mark.parametrize(
    "line",
    [
        b"\t",
        b"w1\t",
        b"\0\t\0",
        b"w1\0w2\tw1",
        b" \t\xe2\x80\x8b",
        b"w1\t" + b"a" * (commands.LONGEST_LINE - 3),
        b"w1\t" + "\u4e00".encode() * 300_000,
    ],
)
def test_strange_lines_are_answered(pairs, several, line):
    for run, text in ((pairs, line), (several, line.partition(b"\t")[2])):
        writer = io.StringIO()
        assert answer_lines(Predictor(str(run)), io.BytesIO(text + b"\n"), writer) == 0
        assert set(json.loads(writer.getvalue())["probabilities"]) <= set("abc") | {"high", "low"}


@pytest.mark.parametrize("chunk", [1, 1 << 16])
def test_a_byte_order_mark_is_not_part_of_the_first_text(chunk):
    class Slow(io.BytesIO):
        def read1(self, size):
            return super().read1(min(size, chunk))

    texts = []
    for content in (b"\xef\xbb\xbfone\r\n\xef\xbb\xbftwo\n", b"\xef\xbb\xbf\n", b"\nthree"):
        for _ in commands.answered(Slow(content), 4, None, lambda part: texts.extend(part) or part):
            pass
    assert texts == ["one", "\ufefftwo", "", "", "three"]


def test_a_pair_in_a_line_where_the_task_has_single_texts(cased):
    writer = io.StringIO()
    assert answer_lines(Predictor(str(cased)), io.BytesIO(b"a\tb\n"), writer) == 1
    message = "line 1: has 1 tabs, but the model's task is about single texts: no tabs"
    assert json.loads(writer.getvalue()) == {"error": message}


def test_a_text_that_the_network_fails_on_costs_its_own_line_only(cased, monkeypatch):
    """As a text may that takes all the memory."""
    predictor = Predictor(str(cased))
    encode = predictor._tokenizer.encode

    def fails(text):
        if text == "W3":
            raise MemoryError
        return encode(text)

    monkeypatch.setattr(predictor._tokenizer, "encode", fails)
    writer = io.StringIO()
    assert answer_lines(predictor, io.BytesIO(b"W1\nW2\nW3\n\xff\nW5\n"), writer) == 2
    answers = [json.loads(line) for line in writer.getvalue().splitlines()]
    assert [sorted(answer) for answer in answers] == [
        *[["number"]] * 2,
        *[["error"]] * 2,
        ["number"],
    ]
    assert answers[2] == {"error": "line 3: MemoryError()"}


def test_an_output_that_is_not_finite_is_an_error_of_its_line(cased, monkeypatch):
    """JSON does not have NaN; and a text is counted once if its line is answered again."""
    predictor = Predictor(str(cased))
    run, outputs = predictor._model.session.run, []

    def spoils(fetches, feeds):
        results = run(fetches, feeds)
        if not outputs:
            results["logits"][1] = np.nan
        outputs.append(results)
        return results

    long = b"W1 " * 100
    monkeypatch.setattr(predictor._model.session, "run", spoils)
    writer = io.StringIO()
    assert answer_lines(predictor, io.BytesIO(b"W1\n" + long + b"\n"), writer) == 0
    assert len(outputs) == 3 and predictor.num_cut == 1
    outputs.clear()
    with pytest.raises(ValueError, match=r"^the model's output is not finite: \[nan\]$"):
        predictor(["W1", "W2"])


def test_several_threads_ask_at_once(pairs):
    given = [texts(NUMBER, seed, True) + [("w1 " * 20, "w2")] for seed in range(8)]
    predictor = Predictor(str(pairs), batch_size=4)
    expected = [predictor.predict(of_one)["logits"] for of_one in given]
    alone = predictor.num_cut
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for found, wanted in zip(
            threads.map(predictor.predict, given * 4), expected * 4, strict=True
        ):
            np.testing.assert_allclose(found["logits"], wanted, atol=1e-6)
    assert predictor.num_cut == 5 * alone


@pytest.fixture(params=[subprocess.Popen])
def process(request, pairs):
    """Starts the command, which waits for lines. The parameter is what starts a process."""
    with request.param(
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


@pytest.mark.parametrize("process", [forked.start], indirect=True)
def test_nobody_reads_the_answers(process):
    process.stdout.close()
    process.stdin.write(b"w1\tw2\n")
    process.stdin.close()
    assert process.wait() == 1
    assert b"Traceback" not in process.stderr.read()


def test_models_that_cannot_fit_the_machine_are_refused(cased, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory, "machine_bytes", lambda: 1 << 20)
    source = str(fixtures.TF1)
    for main, name, path, arguments in (
        (predictor_module.main, "predictor", find(str(cased)), []),
        (embed.main, "embed", source, []),
        (interchange.main, "interchange", source, [str(tmp_path / "target")]),
    ):
        model = str(cased) if name == "predictor" else path
        assert main(["command", model, *arguments]) == 2
        said = rf"^{name}: {re.escape(path)}: needs about 0\.\d GiB of this machine's 0\.0 GiB"
        assert re.search(said, capsys.readouterr().err, re.MULTILINE)
    assert os.listdir(tmp_path) == []
