"""Labels are the network's own, in its own order, wherever it says them, in every command."""

import json
import shutil

import fixtures
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tiny_run import bert_config, classifier_flags, words

import run_classifier
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.interchange.source import Source
from bert_estimator.jobs.fine_tuning import model_labels
from bert_estimator.jobs.fine_tuning.model_labels import LabelsOfFiles
from bert_estimator.serving.predictor import Predictor
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab

WORDS = words(30)
CONFIG = BertConfig(**bert_config(len(WORDS)))
NLI = ("entailment", "neutral", "contradiction")
SORTED = tuple(sorted(NLI))
NER = ("O", "B-MISC", "I-MISC", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
LABELS = ("entailment", "neutral", "entailment", "contradiction", "entailment")


def write_model(folder, labels, answer, kind="classification", is_pair=None, named_in="task.json"):
    """Writes a network that always answers one label; the file `named_in` names the labels."""
    folder.mkdir()
    vocab_file = f"{folder}.vocab.txt"
    write_vocab([*SPECIAL_TOKENS, *WORDS], vocab_file)
    weights = fixtures.random_weights(CONFIG, scale=0.1)
    weights["output_weights"] = np.zeros([len(labels), CONFIG.hidden_size], np.float32)
    weights["output_bias"] = np.float32([9 if i == answer else 0 for i in range(len(labels))])
    if named_in == "config.json" and kind == "tagging":
        weights = {name: value for name, value in weights.items() if "pooler" not in name}
    shapes = {name: value.shape for name, value in weights.items()}
    task = {"kind": kind, "is_pair": is_pair, "do_lower_case": True}
    files = {"config": CONFIG, "vocab_file": vocab_file}
    source = Source("", "tf1", shapes, weights.get, **files, **task)
    if named_in == "config.json":
        fixtures.write_hugging_face(folder, source, weights)
        config = json.loads((folder / "config.json").read_text())
        config.pop("bert_estimator", None)
        config |= {"id2label": dict(enumerate(labels)) if any(labels) else {}, "label2id": {}}
        (folder / "config.json").write_text(json.dumps(config))
        return folder
    tf1_checkpoint.write(str(folder), source, weights)
    (folder / "task.json").write_text(json.dumps({**task, "labels": labels}))
    return folder


def write_rows(path, labels, header="sentence1\tsentence2\tlabel"):
    rows = [f"w{i} w2\tw{i + 3}\t{label}" for i, label in enumerate(labels)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def write_sentences(path, tags):
    path.write_text("\n".join(f"w{i} {tag}" for i, tag in enumerate(tags)) + "\n\n")
    return path


def run(output_dir, *verbs, **flags):
    """Runs with flags, and without the files that `flags` does not name."""
    left_out = ("train_file", "eval_file", "vocab_file", "bert_config_file")
    given = dict.fromkeys(left_out) | flags
    flags = classifier_flags(output_dir, output_dir, **given)
    code = run_classifier.main(["run_classifier.py", *flags, *(f"--{verb}" for verb in verbs)])
    tf.summary.FileWriterCache.clear()
    return code


def results_of(output_dir):
    lines = (output_dir / "eval_results.txt").read_text().splitlines()
    return {name: float(value) for name, value in (line.split(" = ") for line in lines)}


def check_answers(output_dir, order, answer):
    """Checks the files of --do_eval --do_predict --do_export."""
    label = order[answer]
    share = LABELS.count(label) / len(LABELS)
    assert results_of(output_dir)["accuracy"] == pytest.approx(share)
    report = (output_dir / "eval_report.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in report[1:4]] == list(order)
    (recalled,) = [line.split("\t") for line in report[1:4] if line.startswith(label)]
    assert float(recalled[2]) == 1
    rows = (output_dir / "test_results.tsv").read_text().splitlines()
    assert {int(np.argmax([*map(float, row.split("\t"))])) for row in rows} == {answer}
    found = Predictor(str(output_dir))([("w1 w2", "w3")])
    assert found[0]["label"] == label
    assert tuple(found[0]["probabilities"]) == order


ALL = ("do_eval", "do_predict", "do_export")


@pytest.mark.parametrize(
    ("named_in", "trained_on"),
    [("task.json", None), ("config.json", None), ("config.json", ["neutral", "contradiction"])],
)
def test_a_model_says_its_labels(tmp_path, named_in, trained_on):
    """No other file is needed, and a file to train on that lacks a label, or has them in another
    order, does not change them."""
    answer = NLI.index("neutral")
    model = write_model(tmp_path / "model", NLI, answer, named_in=named_in)
    dev = write_rows(tmp_path / "dev.tsv", LABELS)
    flags = {"eval_file": dev, "predict_file": dev, "export_inputs": "ids"}
    if trained_on:
        flags["train_file"] = write_rows(tmp_path / "train.tsv", trained_on)
    assert run(tmp_path / "out", *ALL, init_checkpoint=model, **flags) == 0
    check_answers(tmp_path / "out", NLI, answer)


@pytest.mark.parametrize(
    "with_best", [pytest.param(False, marks=pytest.mark.slow), True], ids=["newest", "best"]
)
def test_own_runs_keep_the_order_that_they_began_with(tmp_path, with_best):
    """A run that starts from a head, goes on, and is used: in place and from elsewhere."""
    model = write_model(tmp_path / "model", NLI, 0)
    train = write_rows(tmp_path / "train.tsv", [*SORTED, *SORTED, *SORTED])
    dev, run_dir = write_rows(tmp_path / "dev.tsv", LABELS), tmp_path / "run"
    best = {"keep_best_checkpoint": True} if with_best else {}
    trained = {"init_checkpoint": model, "train_file": train, "eval_file": dev, **best}
    trained |= {"learning_rate": 1e-9, "train_batch_size": 3, "save_checkpoints_steps": 2}
    assert run(run_dir, "do_train", num_train_epochs=1, **trained) == 0
    assert json.loads((run_dir / "task.json").read_text())["labels"] == list(NLI)
    assert run(run_dir, "do_train", "do_eval", num_train_epochs=2, **trained) == 0
    assert results_of(run_dir)["accuracy"] == pytest.approx(0.6)
    flags = {"eval_file": dev, "predict_file": dev, "export_inputs": "ids"}
    elsewhere = run_dir / "best" / "model.ckpt-2" if with_best else run_dir
    assert run(tmp_path / "out", *ALL, init_checkpoint=elsewhere, **flags) == 0
    check_answers(tmp_path / "out", NLI, 0)
    shutil.rmtree(tmp_path / "model")
    best |= {"learning_rate": 1e-9, "train_batch_size": 3}
    in_place = {**flags, **best, "save_checkpoints_steps": 2}
    assert run(run_dir, *ALL, **in_place) == 0
    check_answers(run_dir, NLI, 0)
    shutil.rmtree(run_dir / "export")
    del in_place["eval_file"], in_place["predict_file"]
    assert run(run_dir, "do_export", **in_place) == 0
    assert Predictor(str(run_dir)).labels == NLI


@pytest.mark.parametrize("verb", ["do_eval", "do_train"])
def test_another_spelling_is_an_error_that_names_both(tmp_path, capsys, verb):
    model = write_model(tmp_path / "model", [name.upper() for name in NLI], 0)
    flag = "train_file" if verb == "do_train" else "eval_file"
    file = write_rows(tmp_path / "rows.tsv", LABELS)
    assert run(tmp_path / "out", verb, init_checkpoint=model, **{flag: file}) == 2
    message = f'--{flag}: {file}: has the labels ["contradiction", "entailment", "neutral"], but '
    message += (
        f'{model} has learned ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"]. If they mean the same'
    )
    assert message in capsys.readouterr().err


def test_tasks_of_glue_take_the_order_of_the_network(tmp_path):
    answer = NLI.index("entailment")
    model = write_model(tmp_path / "model", NLI, answer, is_pair=True, named_in="config.json")
    (tmp_path / "MNLI").mkdir()
    for name in ("matched", "mismatched"):
        write_rows(
            tmp_path / "MNLI" / f"dev_{name}.tsv", LABELS, "sentence1\tsentence2\tgold_label"
        )
    flags = {"task_name": "mnli", "data_dir": tmp_path / "MNLI", "init_checkpoint": model}
    assert run(tmp_path / "out", "do_eval", **flags) == 0
    assert results_of(tmp_path / "out")["accuracy"] == pytest.approx(0.6)
    assert results_of(tmp_path / "out")["mismatched_accuracy"] == pytest.approx(0.6)


@pytest.mark.parametrize("order", [("0", "1"), ("1", "0")])
def test_f1_of_mrpc_is_of_its_label_1(tmp_path, order):
    model = write_model(tmp_path / "model", order, order.index("1"), is_pair=True)
    header = "Quality\t#1 String\t#2 String"
    rows = [f"{label}\tw{i}\tw5" for i, label in enumerate("01110")]
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "MRPC" / "dev.tsv").write_text("\n".join([header, *rows]) + "\n")
    flags = {"task_name": "mrpc", "data_dir": tmp_path / "MRPC", "init_checkpoint": model}
    assert run(tmp_path / "out", "do_eval", **flags) == 0
    assert results_of(tmp_path / "out")["f1"] == pytest.approx(0.75)
    assert results_of(tmp_path / "out")["accuracy"] == pytest.approx(0.6)


def test_several_labels(tmp_path):
    order = ("toxic", "insult", "threat")
    model = write_model(tmp_path / "model", order, 1, kind="multi_label", named_in="config.json")
    dev = write_rows(tmp_path / "dev.tsv", ["insult", "insult,toxic", "threat", "insult"])
    flags = {"eval_file": dev, "predict_file": dev, "export_inputs": "ids"}
    assert run(tmp_path / "out", *ALL, init_checkpoint=model, **flags) == 0
    report = (tmp_path / "out" / "eval_report.tsv").read_text().splitlines()
    assert report[2].split("\t")[:3] == ["insult", "0.7500", "1.0000"]
    assert Predictor(str(tmp_path / "out"))([("w1", "w2")])[0]["labels"] == ["insult"]


def test_tags(tmp_path):
    """The tags are ordered as in dslim's networks; the file to evaluate on has three of nine."""
    model = write_model(tmp_path / "model", NER, 7, kind="tagging", named_in="config.json")
    dev = write_sentences(tmp_path / "dev.conll", ["B-LOC", "O", "B-PER", "B-LOC"])
    flags = {"eval_file": dev, "predict_file": dev, "export_inputs": "ids"}
    verbs = ("do_eval", "do_predict", "do_export")
    assert run(tmp_path / "out", *verbs, init_checkpoint=model, **flags) == 0
    assert results_of(tmp_path / "out")["accuracy"] == pytest.approx(0.5)
    lines = (tmp_path / "out" / "test_results.conll").read_text().splitlines()
    assert [line.split(" ")[-1] for line in lines if line] == ["B-LOC"] * 4
    predictor = Predictor(str(tmp_path / "out"))
    assert predictor.labels == NER
    assert predictor(["w1 w2"])[0]["tags"] == ["B-LOC", "B-LOC"]


@pytest.mark.parametrize("is_pair", [False, True])
def test_the_export_needs_no_file(tmp_path, is_pair):
    model = write_model(tmp_path / "model", NLI, 1, is_pair=is_pair)
    assert run(tmp_path / "out", "do_export", init_checkpoint=model, export_inputs="ids") == 0
    predictor = Predictor(str(tmp_path / "out"))
    assert predictor.labels == NLI and predictor.is_pair == is_pair
    assert predictor([("w1", "w2") if is_pair else "w1 w2"])[0]["label"] == "neutral"


def test_a_number_needs_no_labels(tmp_path):
    model = write_model(tmp_path / "model", ["score"], 0, kind="regression", named_in="config.json")
    dev = write_rows(tmp_path / "dev.tsv", ["1", "2"])
    assert run(tmp_path / "out", "do_predict", init_checkpoint=model, predict_file=dev) == 0
    assert (tmp_path / "out" / "test_results.tsv").read_text() == "9.0\n9.0\n"


# Outputs without names.


def test_outputs_without_names_are_warned_of(tmp_path, logged):
    """The warning names the order that is assumed: the labels of the file, sorted."""
    model = write_model(tmp_path / "model", [""] * 3, 2, named_in="config.json")
    dev = write_rows(tmp_path / "dev.tsv", LABELS)
    assert run(tmp_path / "out", "do_eval", init_checkpoint=model, eval_file=dev) == 0
    assert results_of(tmp_path / "out")["accuracy"] == pytest.approx(0.2)  # neutral
    warning = f"The outputs of {model} do not have names; they are taken for "
    warning += '["contradiction", "entailment", "neutral"], in this order. If that is wrong, name'
    assert any(text.startswith(warning) for level, text in logged if level == "WARNING")


def source_of(labels, number, kind=None):
    return Source(
        "model", "tf1", {"output_weights": [number, 4]}, None, labels=tuple(labels), kind=kind
    )


@pytest.mark.parametrize(
    ("used", "are_all", "found", "is_warned"),
    [
        ("", False, "LABEL_0 LABEL_1 LABEL_2", True),
        ("LABEL_0 LABEL_1 LABEL_2", True, "LABEL_0 LABEL_1 LABEL_2", False),
        ("LABEL_2", False, "LABEL_0 LABEL_1 LABEL_2", False),
        ("1 2", False, "0 1 2", True),
        ("0 1 2", True, "0 1 2", True),
        ("1 2 3", True, "1 2 3", True),
        ("a b c", False, "a b c", True),
        ("a b", True, "a b", False),  # that the numbers of outputs differ is an error later
    ],
)
@pytest.mark.parametrize("trains", [False, True])
def test_the_labels_of_outputs_without_names(logged, used, are_all, found, is_warned, trains):
    source, used = source_of("", 3), LabelsOfFiles(used.split(), "here", are_all)
    names = model_labels.of_task(source, "classification", used, trains, False)
    assert names == tuple(found.split())
    assert [level for level, _ in logged] == ["WARNING"] * is_warned


def test_outputs_without_names_and_too_few_labels():
    used = LabelsOfFiles(["a", "b"], "dev.tsv", False)
    with pytest.raises(ValueError, match=r'^dev.tsv: has the labels \["a", "b"\], but model has 3'):
        model_labels.of_task(source_of("", 3), "classification", used, False, False)


@pytest.mark.parametrize(
    ("learned", "used", "partial", "found"),
    [
        ("b a", "a b", False, "b a"),
        ("c b a", "a b", False, "c b a"),  # the network keeps what it knows
        ("c b a", "a b", True, "a b"),  # a new head was allowed
        ("low high", "high odd", False, "odd high"),  # what was learned keeps its row
        ("x y", "p q", False, "p q"),
        ("x y", "p q r", False, "p q r"),
    ],
)
def test_training_goes_on_with_the_rows_of_a_head(learned, used, partial, found):
    used = LabelsOfFiles(used.split(), "here", True)
    source = source_of(learned.split(), len(learned.split()))
    names = model_labels.of_task(source, "classification", used, True, partial)
    assert names == tuple(found.split())


@pytest.mark.parametrize("other", ["Positive", "positive ", "pos-itive", "\uff50ositive"])
def test_spellings_that_training_refuses(other):
    used = LabelsOfFiles(["negative", other], "here", True)
    with pytest.raises(ValueError, match="If they mean the same, spell"):
        model_labels.of_task(
            source_of(["negative", "positive"], 2), "classification", used, True, False
        )


def test_labels_of_another_kind_keep_their_rows():
    used = LabelsOfFiles(["a", "b"], "here", True)
    for learned, found in (("ba", ("b", "a")), ("cba", ("a", "b"))):
        source = source_of(learned, len(learned), "multi_label")
        assert model_labels.of_task(source, "classification", used, True, False) == found
    assert model_labels.of_task(None, "classification", used, True, False) == ("a", "b")


def test_a_network_of_another_kind_is_refused(tmp_path, capsys):
    model = write_model(tmp_path / "model", ("b", "a"), 0, kind="multi_label")
    dev = write_rows(tmp_path / "dev.tsv", ["a", "b"])
    flags = {"init_checkpoint": model, "eval_file": dev, "task_kind": "classification"}
    assert run(tmp_path / "out", "do_eval", **flags) == 2
    assert 'was trained for kind "multi_label", but the flags and' in capsys.readouterr().err
