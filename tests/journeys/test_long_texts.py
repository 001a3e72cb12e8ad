"""Long texts in whole runs: every way to an answer gives the same, and so does every way to train.

A word of these texts is a token, so that the texts of windows can be written by hand.
"""

import json
import re
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from scripts import WAYS
from tiny_run import bert_config, classifier_flags, go_back, variables_of, words

import run_classifier
from bert_estimator.command_line.choices import LONG_TEXTS
from bert_estimator.interchange import __main__ as interchange
from bert_estimator.interchange import open_source
from bert_estimator.serving.embedder import Embedder
from bert_estimator.serving.predictor import Predictor
from bert_estimator.serving.server import models
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab
from input_pipelines.tasks.long_texts import WINDOWS, LongTexts

LENGTH, STRIDE = 14, 3
# Kind -> (the column of labels, a function of the number of an example and its first word).
KINDS = {
    "classification": ("label", lambda number, word: "low" if word < 15 else "high"),
    "multi_label": ("labels", lambda number, word: ["a", "b"][: number % 3]),
    "regression": ("number", lambda number, word: word / 10),
}
QUICK = ("classification", WINDOWS)
CASES = [(kind, choice) for kind in KINDS for choice in LONG_TEXTS]

pytestmark = pytest.mark.usefixtures("ways_on_cores")


def cases(all_cases, quick):
    return [
        pytest.param(*case, marks=() if case in quick else pytest.mark.slow) for case in all_cases
    ]


def write_rows(path, kind, number, seed):
    """Writes examples of 1 to 30 words, pairs for the classification."""
    generator = np.random.default_rng(seed)
    column, label = KINDS[kind]
    with open(path, "w", encoding="utf-8") as writer:
        for i in range(number):
            texts = [generator.integers(30, size=generator.integers(1, most)) for most in (31, 9)]
            row = {column: label(i, int(texts[0][0]))}
            texts = [" ".join(f"w{word}" for word in text) for text in texts]
            if kind == "classification":
                row["sentence1"], row["sentence2"] = texts[:: 1 - 2 * (i % 2)]
            else:
                row["sentence"] = texts[0]
            writer.write(json.dumps(row) + "\n")


def write_data(path):
    write_vocab([*SPECIAL_TOKENS, *words(30)], str(path / "vocab.txt"))
    config = bert_config(30, initializer_range=0.3, hidden_dropout_prob=0.0)
    config |= {"attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    (path / "bert_config.json").write_text(json.dumps(config))
    for kind in KINDS:
        for name, number, seed in (("train", 24, 1), ("dev", 11, 2)):
            write_rows(path / f"{kind}-{name}.jsonl", kind, number, seed)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def texts_of(data, kind):
    lines = (data / f"{kind}-dev.jsonl").read_text().splitlines()
    if kind == "classification":
        return [(row["sentence1"], row["sentence2"]) for row in map(json.loads, lines)]
    return [row["sentence"] for row in map(json.loads, lines)]


def flags_of(data, folder, kind, choice, **changes):
    dev = data / f"{kind}-dev.jsonl"
    own = {"train_file": data / f"{kind}-train.jsonl", "eval_file": dev, "predict_file": dev}
    own |= {"task_kind": kind, "label_column": KINDS[kind][0], "max_seq_length": LENGTH}
    own |= {"long_texts": choice, "doc_stride": STRIDE if choice == WINDOWS else None}
    # AdamW would make much of rounding in weights whose gradient is nearly 0.
    own |= {"optimizer": "lars", "learning_rate": 0.05, "do_train": True}
    return classifier_flags(data, folder, **(own | changes))


def main(*flags):
    assert run_classifier.main(["run_classifier.py", *map(str, flags)]) == 0


def results(folder):
    return np.loadtxt(folder / "test_results.tsv", ndmin=2)


def reference(path, texts, long):
    """Returns the mean logits of the windows of texts, in float64; None cuts them."""
    predictor = Predictor(path)
    assert long in (None, predictor.long_texts) and predictor.max_seq_length == LENGTH
    predictor.long_texts, long = LongTexts(), long or LongTexts()
    means = []
    for text in texts:
        first, *second = [part.split() for part in (text if predictor.is_pair else [text])]
        room = LENGTH - 2 - predictor.is_pair
        parts = list(long.sequences(first, second[0] if second else [], room))
        pairs = [(" ".join(a), " ".join(b)) for a, b in parts]
        logits = predictor.predict(pairs if second else [a for a, _ in pairs])["logits"]
        lengths = [len(a) + len(b) + LENGTH - room for a, b in parts]
        means.append(np.average(np.float64(logits), axis=0, weights=lengths))
    return np.array(means)


@pytest.fixture(scope="module")
def run_of(data, tmp_path_factory):
    """Returns a function of a kind and a choice that returns a run which has trained, and what it
    has printed and predicted; each trains once."""
    made = {}

    def of(kind, choice, capsys):
        if (kind, choice) not in made:
            folder = tmp_path_factory.mktemp("run") / "run"
            capsys.readouterr()
            main(*flags_of(data, folder, kind, choice, do_eval=True, do_predict=True))
            made[kind, choice] = folder, capsys.readouterr().out, results(folder)
        return made[kind, choice]

    return of


@pytest.mark.parametrize(("kind", "choice"), cases(CASES, [QUICK]))
def test_a_run_says_how_many_texts_are_long_and_predicts_by_the_rule(
    data, run_of, capsys, kind, choice
):
    folder, out, found = run_of(kind, choice, capsys)
    texts, long = texts_of(data, kind), LongTexts(choice, STRIDE if choice == WINDOWS else None)
    fits = [len(" ".join(text if kind == "classification" else [text]).split()) for text in texts]
    number = sum(size > LENGTH - 2 - (kind == "classification") for size in fits)
    said = (
        f"For prediction, {number} of 11 texts ({number / 11:.1%}) are longer than {LENGTH} tokens"
    )
    assert number > 3 and said in out and f"(--long_texts={choice})." in out
    assert "For training, " in out and "For evaluation, " in out
    assert f"({len(texts)} lines: " in out
    task = json.loads((folder / "task.json").read_text())
    recorded = {name: task[name] for name in ("long_texts", "doc_stride") if name in task}
    assert recorded == long.recorded()
    logits = reference(tf.train.latest_checkpoint(folder), texts, long)
    np.testing.assert_allclose(found, expected_results(kind, logits), rtol=0, atol=1e-5)


def expected_results(kind, logits):
    """Returns what test_results.tsv says, computed in float64."""
    if kind == "multi_label":
        return 1 / (1 + np.exp(-logits))
    powers = np.exp(logits)
    return logits if kind == "regression" else powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    "flags", [["--nopack"], pytest.param(["--nouse_tpu"], marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize(("kind", "choice"), cases(CASES, [QUICK]))
def test_a_run_predicts_and_evaluates_again_as_it_did(run_of, capsys, kind, choice, flags):
    folder, _, found = run_of(kind, choice, capsys)
    before = (folder / "eval_results.txt").read_text().splitlines()
    main("--do_eval", "--do_predict", f"--output_dir={folder}", *flags)
    np.testing.assert_allclose(results(folder), found, rtol=0, atol=1e-5)
    after = (folder / "eval_results.txt").read_text().splitlines()
    for line, other in zip(before, after, strict=True):
        (name, value), (other_name, other_value) = line.split(" = "), other.split(" = ")
        assert name == other_name
        if name != "loss":  # depends on which examples are in a batch
            assert float(other_value) == pytest.approx(float(value), abs=1e-5), name


WAYS_TO_ANSWER = {
    "checkpoint": None,
    "saved_model": ["--do_export"],
    "onnx": ["--do_export", "--export_format=onnx"],
}


@pytest.mark.parametrize("way", WAYS_TO_ANSWER)
@pytest.mark.parametrize(("kind", "choice"), cases(CASES, [QUICK]))
def test_every_way_to_an_answer_gives_what_the_run_predicts(
    data, run_of, capsys, kind, choice, way
):
    folder, _, found = run_of(kind, choice, capsys)
    path, texts = tf.train.latest_checkpoint(folder), texts_of(data, kind)
    if way == "onnx":
        pytest.importorskip("onnxruntime")
    if WAYS_TO_ANSWER[way]:
        main(*WAYS_TO_ANSWER[way], f"--output_dir={folder}")
        path = str(folder)
        takes_ids = "The SavedModel takes ids: a SavedModel that takes text cuts it, which is not"
        is_said = way == "saved_model" and choice != "cut"
        assert (takes_ids in capsys.readouterr().out) == is_said
    predictor, served = Predictor(path, batch_size=4), models.open_model(path, 4)
    outputs = predictor.predict(texts)
    name = "logits" if kind == "regression" else "probabilities"
    np.testing.assert_allclose(outputs[name], found, rtol=0, atol=1e-4 if way == "onnx" else 1e-5)
    answers = served.answer(texts)
    np.testing.assert_array_equal([answer[name] for answer in answers], outputs[name])
    np.testing.assert_array_equal([answer["logits"] for answer in answers], outputs["logits"])
    assert predictor.num_cut == served.num_cut() > 3
    # A text that is not long has the same answer whatever the choice, bit for bit.
    short = [("w1 w2", "w3"), ("w20", "")] if kind == "classification" else ["w1 w2", ""]
    expected = predictor.predict(short)
    predictor.long_texts = LongTexts()
    for name, values in predictor.predict(short).items():
        np.testing.assert_array_equal(values, expected[name])
    for model in (predictor, served):
        model.close()


def test_a_rounded_model_is_scored_on_texts(run_of, capsys):
    pytest.importorskip("onnxruntime")
    folder, *_ = run_of(*QUICK, capsys)
    main("--do_export", "--export_format=onnx_int8", f"--output_dir={folder}")
    said = re.search(r"with int8: [\d.]+ \(with float32: ([\d.]+);", capsys.readouterr().out)
    lines = (folder / "eval_results.txt").read_text().splitlines()
    accuracy = float(dict(line.split(" = ") for line in lines)["accuracy"])
    assert float(said[1]) == pytest.approx(accuracy, abs=1e-4)


def test_a_graph_that_takes_text_is_refused(run_of, capsys):
    folder, *_ = run_of(*QUICK, capsys)
    argv = ["run_classifier.py", "--do_export", "--export_inputs=text", f"--output_dir={folder}"]
    assert run_classifier.main(argv) == 2
    message = "--export_inputs=text: a SavedModel that takes text cuts it, which is not --long_te"
    assert message in capsys.readouterr().err


def trained(data, folder, choice, **changes):
    """Returns the weights, the metrics and the predictions of a run."""
    changes = {"do_eval": True, "do_predict": True} | changes
    main(*flags_of(data, folder, "classification", choice, **changes))
    lines = (folder / "eval_results.txt").read_text().splitlines()
    metrics = {name: float(value) for name, value in (line.split(" = ") for line in lines)}
    del metrics["loss"]  # depends on which examples are in a batch
    return variables_of(folder, int(metrics["global_step"])), metrics, results(folder)


@pytest.fixture(scope="module")
def unpacked(data, tmp_path_factory):
    return trained(data, tmp_path_factory.mktemp("unpacked"), WINDOWS, pack=False, use_tpu=False)


QUICK_WAYS = ["2 cores"]


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=() if w in QUICK_WAYS else pytest.mark.slow) for w in WAYS]
)
def test_training_is_the_same_packed_and_unpacked_and_on_any_cores(data, unpacked, tmp_path, way):
    weights, metrics, predictions = trained(data, tmp_path / "run", WINDOWS, **WAYS[way])
    for name, value in unpacked[0].items():
        np.testing.assert_allclose(weights[name], value, atol=1e-5, err_msg=name)
    assert metrics == pytest.approx(unpacked[1], abs=1e-4)
    np.testing.assert_allclose(predictions, unpacked[2], atol=1e-4)


@pytest.mark.parametrize(
    "way", ["TPU rules", *(pytest.param(w, marks=pytest.mark.slow) for w in ("session", "2 cores"))]
)
def test_a_killed_run_goes_on_as_it_would_have_gone_on(data, tmp_path, way):
    changes = {"save_checkpoints_steps": 2, "precision": "bfloat16", **WAYS[way]}
    expected = trained(data, tmp_path, WINDOWS, **changes)
    go_back(tmp_path)
    np.testing.assert_equal(trained(data, tmp_path, WINDOWS, **changes), expected)


def test_another_choice_is_another_run(data, run_of, capsys):
    folder, *_ = run_of(*QUICK, capsys)
    for change, message in (
        ({"long_texts": "cut", "doc_stride": None}, "--long_texts=cut: "),
        ({"doc_stride": 5}, "--doc_stride=5: "),
    ):
        flags = flags_of(data, folder, *QUICK, num_train_epochs=2, **change)
        assert run_classifier.main(["run_classifier.py", *map(str, flags)]) == 2
        assert f"run_classifier.py: {message}{folder} holds a run with" in capsys.readouterr().err


def test_an_evaluation_or_a_prediction_may_have_another_choice(data, run_of, capsys, tmp_path):
    folder, _, found = run_of(*QUICK, capsys)
    flags = ["--do_predict", f"--init_checkpoint={folder}", f"--output_dir={tmp_path}"]
    main(*flags, "--long_texts=cut")  # the stride of the run does not matter then
    logits = reference(tf.train.latest_checkpoint(folder), texts_of(data, QUICK[0]), None)
    np.testing.assert_allclose(results(tmp_path), expected_results(QUICK[0], logits), atol=1e-5)
    assert np.abs(results(tmp_path) - found).max() > 1e-3
    main(*flags)
    np.testing.assert_allclose(results(tmp_path), found, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", [None, "onnx"], ids=["SavedModel", "ONNX"])
def test_an_export_may_have_another_choice(data, run_of, capsys, tmp_path, form):
    folder, *_ = run_of(*QUICK, capsys)
    run = shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("export"))
    flags = [f"--export_format={form}"] if form else ["--export_inputs=ids"]
    main("--do_export", f"--output_dir={run}", "--long_texts=cut", *flags)
    (task_file,) = run.glob("export/**/task.json")
    assert not {"long_texts", "doc_stride"} & json.loads(task_file.read_text()).keys()
    found = Predictor(str(run)).predict(texts_of(data, QUICK[0]))["logits"]
    logits = reference(tf.train.latest_checkpoint(folder), texts_of(data, QUICK[0]), None)
    np.testing.assert_allclose(found, logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("to", ["hf", pytest.param("tf1", marks=pytest.mark.slow)])
def test_a_converted_network_reads_long_texts_as_its_training_did(
    data, run_of, capsys, tmp_path, to, monkeypatch
):
    folder, _, found = run_of(*QUICK, capsys)
    target, said = tmp_path / to, []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *values: said.append(text % values))
    assert interchange.main(["convert", str(folder), str(target), f"--to={to}"]) == 0
    warning = f"{folder} was trained with --long_texts=windows, but transformers cuts longer"
    assert any(warning in each for each in said) == (to == "hf")
    if to == "hf":  # and back
        assert interchange.main(["convert", str(target), str(tmp_path / "back")]) == 0
        back = open_source(str(tmp_path / "back"))
        assert (back.long_texts, back.doc_stride) == (WINDOWS, STRIDE)
    dev = data / "classification-dev.jsonl"
    for flags in ([], ["--long_texts=windows"]):  # of which the network has the stride
        main("--do_predict", f"--init_checkpoint={target}", f"--predict_file={dev}",
             f"--output_dir={tmp_path / 'answers'}", *flags)  # fmt: skip
        np.testing.assert_allclose(results(tmp_path / "answers"), found, rtol=0, atol=1e-5)
    embedders = [Embedder(str(path)) for path in (folder, target)]
    assert {embedder.long_texts for embedder in embedders} == {LongTexts(WINDOWS, STRIDE)}
    vectors = [embedder(texts_of(data, "classification")) for embedder in embedders]
    np.testing.assert_allclose(*vectors, rtol=0, atol=1e-5)
