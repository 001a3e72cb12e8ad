"""Runs that train the last layers or the head alone, or with smoothed labels; on every runtime."""

import json
import re
import zlib

import numpy as np
import pytest
from scripts import CLASSIFIER, PRETRAINING, SQUAD, TAGGER, WAYS, write_data
from tiny_run import go_back, metrics_of, training_metrics, variables_of

from bert_estimator.interchange import open_source
from bert_estimator.interchange.__main__ import main as convert
from bert_estimator.serving.predictor import Predictor

SLOTS = re.compile("(.*)/(adam_m|adam_v|momentum|adafactor_(?:row|column|v))")
HEAD = "bert/pooler/|cls/|output_"
TRAINED = {"head": HEAD, "last:1": f"{HEAD}|bert/encoder/layer_1/"}
NETWORK = {"num_hidden_layers": 2}
LAMB, BFLOAT16 = {"optimizer": "lamb"}, {"precision": "bfloat16"}
# Script, what is trained, how it is computed, other flags.
CASES = [
    (PRETRAINING, "head", "session", {"pack": True, **LAMB}),
    (CLASSIFIER, "last:1", "2 cores", {"layerwise_lr_decay": 0.5, "label_smoothing": 0.1}),
    (PRETRAINING, "last:1", "2 cores", {"pack": True, **LAMB, **BFLOAT16}),
    (PRETRAINING, "last:1", "micro-batches", {"optimizer": "adafactor"}),
    (PRETRAINING, "head", "4 cores, micro-batches", {"optimizer": "adafactor", "pack": True}),
    (PRETRAINING, "head", "recompute", {"optimizer": "adamw", "bfloat16_first_moments": True}),
    (CLASSIFIER, "head", "session", {"optimizer": "lars", **BFLOAT16}),
    (CLASSIFIER, "head", "micro-batches", {"optimizer": "lamb", "weight_decay": 0.3}),
    (CLASSIFIER, "last:1", "micro-batches without TPU rules", {"pack": False}),
    (CLASSIFIER, "head", "4 cores, micro-batches", {"label_smoothing": 0.2, **BFLOAT16}),
    (CLASSIFIER, "last:1", "recompute", {"learning_rate": 1e-3}),
    (TAGGER, "head", "TPU rules", {"label_smoothing": 0.1, **BFLOAT16}),
    (TAGGER, "last:1", "session", {"class_weights": "1,2,3", "label_smoothing": 0.1}),
    (TAGGER, "last:1", "2 cores", {"weight_decay": 0}),
    (SQUAD, "last:1", "session", {"layerwise_lr_decay": 0.8}),
    (SQUAD, "head", "4 cores, micro-batches", {"pack": False, "optimizer": "lars"}),
    (SQUAD, "last:1", "micro-batches", {"optimizer": "adafactor", **BFLOAT16}),
]
QUICK = 1
SCRIPTS = [PRETRAINING, CLASSIFIER, TAGGER, SQUAD]

pytestmark = pytest.mark.usefixtures("ways_on_cores")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    made = write_data(tmp_path_factory)
    for path in made.values():
        config = json.loads((path / "bert_config.json").read_text())
        (path / "bert_config.json").write_text(json.dumps({**config, **NETWORK}))
    return made


def flags_of(script, data, folder, steps=4, **changes):
    own = {"num_warmup_steps": 0} if script is PRETRAINING else {"optimizer": "adamw"}
    verbs = {"do_train": True, "do_eval": False, "save_checkpoints_steps": 2}
    return script.flags(
        data[script.name], folder, **{**own, **verbs, **script.steps(steps), **changes}
    )


def start_of(script, data, **network):
    """Returns a checkpoint of a script's network that has learned for a step."""
    config = network.get("bert_config_file", data[script.name] / "bert_config.json").read_bytes()
    folder = data[script.name] / f"start of {SCRIPTS.index(script)} {zlib.crc32(config)}"
    if not folder.exists():
        assert script.main(flags_of(script, data, folder, 1, use_tpu=False, **network)) == 0
    return folder


def trained(script, data, folder, steps=4, **changes):
    """Trains, from a start if not all is trained; returns the variables of the last checkpoint."""
    if "trainable" in changes:
        network = {n: v for n, v in changes.items() if n == "bert_config_file"}
        changes = {"init_checkpoint": start_of(script, data, **network), **changes}
    assert script.main(flags_of(script, data, folder, steps, **changes)) == 0
    return variables_of(folder, steps)


def weights_of(variables):
    return {n: v for n, v in variables.items() if n != "global_step" and not SLOTS.fullmatch(n)}


def check_what_is_trained(script, trainable, before, after):
    """Checks that only what is trained has changed, and has slots."""
    # Tags and answers do not come from the pooler, which has no gradient.
    unused = "bert/pooler/|" if script in (TAGGER, SQUAD) else "^$"
    is_trained = re.compile(TRAINED[trainable].replace(unused, ""))
    expected = {name for name in weights_of(after) if is_trained.match(name)}
    assert {match[1] for match in map(SLOTS.fullmatch, after) if match} == expected
    assert weights_of(before).keys() == weights_of(after).keys()
    assert any("layer_0" in name for name in before) and any("embeddings" in n for n in before)
    changed = {n for n in weights_of(after) if not np.array_equal(before[n], after[n])}
    assert changed <= expected
    assert {name for name in expected if "kernel" in name or "weights" in name} <= changed


@pytest.mark.parametrize(
    ("script", "trainable", "way", "changes"),
    [
        pytest.param(*case, id=f"{i}-{case[2]}", marks=pytest.mark.slow if i > QUICK else ())
        for i, case in enumerate(CASES)
    ],
)
def test_the_rest_stays_as_it_was(script, trainable, way, changes, data, tmp_path):
    changes = {"trainable": trainable, **WAYS[way], **changes}
    expected = trained(script, data, tmp_path, **changes)
    check_what_is_trained(script, trainable, variables_of(tmp_path, 0), expected)
    reported = training_metrics(tmp_path)
    go_back(tmp_path)  # as if it had been killed
    found = trained(script, data, tmp_path, **changes)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert training_metrics(tmp_path) == reported


@pytest.mark.slow
@pytest.mark.usefixtures("xla_runtime")
@pytest.mark.parametrize("trainable", TRAINED)
@pytest.mark.parametrize("script", [CLASSIFIER, PRETRAINING, SQUAD], ids=lambda script: script.name)
def test_every_way_computes_the_same(script, trainable, data, tmp_path):
    """With dropout, which what is not trained has, too."""
    # AdamW would make much of rounding in weights whose gradient is nearly 0.
    changes = {"trainable": trainable, "optimizer": "lars", "learning_rate": 0.05}
    found = {
        way: trained(script, data, tmp_path / way, **changes, **WAYS[way])
        for way in ("session", "2 cores", "4 cores, micro-batches", "recompute")
    }
    losses = {
        way: {r["step"]: r["loss"] for r in training_metrics(tmp_path / way)} for way in found
    }
    for way, variables in found.items():
        for name, value in found["session"].items():
            np.testing.assert_allclose(variables[name], value, atol=1e-5, err_msg=f"{way} {name}")
        # A session logs steps within a loop, too.
        expected = {step: losses["session"][step] for step in losses[way]}
        assert losses[way] == pytest.approx(expected, rel=1e-4)


SHARED = {"num_hidden_groups": 1, "embedding_size": 8}
SPLIT = {"use_tpu": True, "tpu_name": "rehearse:2", "num_cores_per_replica": 2}


@pytest.mark.usefixtures("xla_runtime")
@pytest.mark.parametrize(
    ("script", "network", "trainable"),
    [
        (PRETRAINING, SHARED, "head"),
        pytest.param(CLASSIFIER, SHARED, "head", marks=pytest.mark.slow),
        pytest.param(PRETRAINING, {}, "last:1", marks=pytest.mark.slow),
        pytest.param(CLASSIFIER, {}, "head", marks=pytest.mark.slow),
        pytest.param(SQUAD, {}, "last:1", marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_shared_layers_and_cores_that_share_a_network(script, network, trainable, data, tmp_path):
    path = tmp_path / "bert_config.json"
    config = json.loads((data[script.name] / "bert_config.json").read_text())
    path.write_text(json.dumps({**config, **network}))
    changes = {"bert_config_file": path, "trainable": trainable, "optimizer": "lars"}
    changes["learning_rate"] = 0.05
    one = trained(script, data, tmp_path / "one", **changes)
    check_what_is_trained(script, trainable, variables_of(tmp_path / "one", 0), one)
    two = trained(script, data, tmp_path / "two", **changes, **SPLIT)
    check_what_is_trained(script, trainable, variables_of(tmp_path / "two", 0), two)
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.usefixtures("xla_runtime")
def test_an_exported_program_trains_the_same(data, tmp_path, capsys):
    from bert_estimator.tpu import run_program

    changes = {"trainable": "head", "optimizer": "lars", "learning_rate": 0.05}
    changes["init_checkpoint"] = start_of(PRETRAINING, data)
    trained(PRETRAINING, data, tmp_path / "run", **changes, use_tpu=False)
    program = {"export_program": tmp_path / "program", **SPLIT, "num_cores_per_replica": 1}
    flags = flags_of(PRETRAINING, data, tmp_path / "out", **changes, **program, do_train=None)
    assert PRETRAINING.main(flags) == 0
    capsys.readouterr()
    argv = ["run_program", str(tmp_path / "program"), "--steps=2", "--tpu_name=rehearse:2"]
    assert run_program.main(argv) == 0
    first = float(re.search(r"loss: (\S+) at the first step", capsys.readouterr().out)[1])
    assert first == pytest.approx(training_metrics(tmp_path / "run")[0]["loss"], rel=1e-5)


def test_head_first_and_then_all(data, tmp_path, capsys):
    head, both = tmp_path / "head", tmp_path / "all"
    first = trained(CLASSIFIER, data, head, trainable="head")
    # The same directory holds slots of the head alone.
    capsys.readouterr()
    start = start_of(CLASSIFIER, data)
    assert CLASSIFIER.main(flags_of(CLASSIFIER, data, head, 8, init_checkpoint=start)) == 2
    assert f"--trainable=all: {head} holds a run with --trainable=head. Use that value to go" in (
        capsys.readouterr().err
    )
    second = trained(CLASSIFIER, data, both, init_checkpoint=head)
    begun = weights_of(variables_of(both, 0))
    assert all(np.array_equal(first[name], value) for name, value in begun.items())
    changed = {n for n in begun if not np.array_equal(begun[n], second[n])}
    assert any("embeddings" in name for name in changed) and any("layer_0" in n for n in changed)


OTHERS_STAY = "would leave the other weights as random as they begin; give --init_checkpoint"


@pytest.mark.parametrize("trainable", TRAINED)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_weights_that_stay_must_come_from_somewhere(script, trainable, data, tmp_path, capsys):
    assert script.main(flags_of(script, data, tmp_path / "run", trainable=trainable)) == 2
    assert f"--trainable={trainable}: {OTHERS_STAY}" in capsys.readouterr().err
    # A layer more than the start has.
    path, start = tmp_path / "bert_config.json", start_of(script, data)
    config = json.loads((data[script.name] / "bert_config.json").read_text())
    path.write_text(json.dumps({**config, "num_hidden_layers": 3}))
    changes = {"bert_config_file": path, "init_checkpoint": start, "allow_partial_init": True}
    flags = flags_of(script, data, tmp_path / "run", trainable=trainable, **changes)
    if trainable == "last:1":  # the new layer is the last, and is trained
        assert script.main(flags) == 0
        return
    assert script.main(flags) == 2
    said = capsys.readouterr().err
    assert f"--init_checkpoint={start}: does not have these weights, which would stay" in said
    assert "bert/encoder/layer_2/attention/output/LayerNorm/beta" in said
    assert not any(path.suffix == ".index" for path in (tmp_path / "run").glob("*"))


def test_an_earlier_run_trained_all(data, tmp_path, capsys):
    """Its config.json does not have the flags."""
    expected = trained(CLASSIFIER, data, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    names = {"trainable": "head", "weight_decay": 0.5, "label_smoothing": 0.5}
    for name in names:
        del config["flags"][name]
    for name, value in names.items():
        go_back(tmp_path)
        path.write_text(json.dumps(config))
        assert CLASSIFIER.main(flags_of(CLASSIFIER, data, tmp_path, **{name: value})) == 2
        assert f"--{name}={value}: {tmp_path} holds a run with --{name}=" in capsys.readouterr().err
    found = trained(CLASSIFIER, data, tmp_path)
    assert all(np.array_equal(found[name], value) for name, value in expected.items())


def test_checkpoints_are_whole(data, tmp_path):
    """They are evaluated, converted there and back, exported and read without the flag."""
    run, folder = tmp_path / "run", data[CLASSIFIER.name]
    (tmp_path / "flags.txt").write_text("--trainable=last:1\n--label_smoothing=0.1\n")
    start = start_of(CLASSIFIER, data)
    flags = flags_of(CLASSIFIER, data, run, do_eval=True, do_export=True, init_checkpoint=start)
    assert CLASSIFIER.main([*flags, f"--flagfile={tmp_path / 'flags.txt'}"]) == 0
    first = metrics_of(run)[-1]
    assert CLASSIFIER.main([f"--output_dir={run}", "--do_eval"]) == 0
    assert metrics_of(run)[-1].items() <= first.items()  # a baseline needs the training's file
    expected = weights_of(variables_of(run, 4))
    assert convert(["convert", str(run), str(tmp_path / "hf"), "--to=hf"]) == 0
    assert convert(["convert", str(tmp_path / "hf"), str(tmp_path / "tf1"), "--to=tf1"]) == 0
    source = open_source(str(tmp_path / "tf1"))
    assert source.shapes.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(source.read(name), value)
    lines = (folder / "dev.tsv").read_text().splitlines()[1:5]
    texts = [tuple(line.split("\t")[:2]) for line in lines]
    (export,) = (run / "export").iterdir()
    logits = [Predictor(str(path)).predict(texts)["logits"] for path in (run, export)]
    np.testing.assert_allclose(*logits, atol=1e-5)


@pytest.mark.parametrize("kind", ["regression", "multi_label"])
def test_label_smoothing_is_for_one_label_of_several(kind, data, tmp_path, capsys):
    text = (data[CLASSIFIER.name] / "train.tsv").read_text()
    (tmp_path / "train.tsv").write_text(text.replace("high", "1").replace("low", "0"))
    changes = {"train_file": tmp_path / "train.tsv", "task_kind": kind, "label_smoothing": 0.1}
    assert CLASSIFIER.main(flags_of(CLASSIFIER, data, tmp_path / "run", **changes)) == 2
    rule = f"is for one label of several, and not for a task of the kind {kind}"
    assert f"--label_smoothing=0.1: {rule}" in capsys.readouterr().err
