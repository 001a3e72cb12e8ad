"""Runs for each objective of pretraining: masked words alone, with next sentence or sentence order.

Records say what they were made for. A run takes that, or masked words alone of any records.
"""

import json
import shutil

import fixtures
import numpy as np
import pytest
import scripts
import tensorflow.compat.v1 as tf
from scripts import CLASSIFIER, PRETRAINING
from tiny_run import (
    bert_config,
    copy_records,
    go_back,
    metrics_of,
    sorted_metrics,
    training_metrics,
    variables_of,
    words,
)

from bert_estimator.interchange import __main__ as interchange
from bert_estimator.interchange import open_source
from bert_estimator.tokenization import SPECIAL_TOKENS, FullTokenizer, write_vocab
from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings

LENGTH = 32
MADE = {
    "mlm": {"objective": "mlm"},
    "across": {"objective": "mlm", "across_documents": True},
    "static mlm": {"objective": "mlm"},
    "mlm_nsp": {},
    "mlm_sop": {"objective": "mlm_sop"},
    "static": {},
}
WAYS = {
    **scripts.WAYS,
    "a model on 2 cores": {
        "use_tpu": True, "tpu_name": "rehearse:4", "num_cores_per_replica": 2
    },
    "bfloat16": {"use_tpu": True, "precision": "bfloat16"},
}  # fmt: skip
WAYS_AS_CASES = [w if w == "2 cores" else pytest.param(w, marks=pytest.mark.slow) for w in WAYS]

pytestmark = pytest.mark.usefixtures("ways_on_cores")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns a directory with records of every kind, a directory each, and a network."""
    path = tmp_path_factory.mktemp("data")
    vocabulary, generator = words(40), np.random.default_rng(3)
    write_vocab([*SPECIAL_TOKENS, *vocabulary], str(path / "vocab.txt"))
    documents = [
        [" ".join(generator.choice(vocabulary, generator.integers(2, 9))) for _ in range(6)]
        for _ in range(40)
    ]
    for kind, made in MADE.items():
        (path / kind).mkdir()
        write_pretraining_records(
            documents,
            FullTokenizer(str(path / "vocab.txt")),
            str(path / "vocab.txt"),
            [str(path / kind / "train.tfrecord")],
            CreationSettings(max_seq_length=LENGTH, max_predictions_per_seq=6, **made),
            masking="static" if "static" in kind else "dynamic",
        )
    static = path / "static" / "train.tfrecord"
    changes = {"foreign": {}, "unlabelled": dict.fromkeys(range(10**4), without_label)}
    for kind, change in changes.items():
        (path / kind).mkdir()
        copy_records(static, path / kind / "train.tfrecord", change)
    config = bert_config(40, max_position_embeddings=LENGTH)
    (path / "bert_config.json").write_text(json.dumps(config))
    config["hidden_dropout_prob"] = config["attention_probs_dropout_prob"] = 0.0
    (path / "without_dropout.json").write_text(json.dumps(config))
    return path


def without_label(features):
    del features["next_sentence_labels"]


def flags_of(data, folder, kind, **changes):
    # LAMB would make much of rounding in weights whose gradient is nearly 0.
    own = {"optimizer": "lars", "learning_rate": 0.05, "num_train_steps": 4, "do_train": True}
    own |= {"input_file": data / kind, "do_eval": True, "save_checkpoints_steps": 2}
    own |= {"max_seq_length": LENGTH, "max_predictions_per_seq": 6}
    return PRETRAINING.flags(data, folder, **(own | changes))


def run(data, folder, kind, **changes):
    """Trains 4 steps and evaluates; returns the directory."""
    assert PRETRAINING.main(flags_of(data, folder, kind, **changes)) == 0
    tf.summary.FileWriterCache.clear()
    return folder


def refusal(capsys, *arguments, **changes):
    capsys.readouterr()
    assert PRETRAINING.main(flags_of(*arguments, **changes)) == 2
    return capsys.readouterr().err


def recorded(folder):
    return json.loads((folder / "config.json").read_text())["flags"]["objective"]


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """Returns a function of a kind of records that returns the directory of a run on them."""
    paths = {}

    def of(kind):
        if kind not in paths:
            paths[kind] = run(data, tmp_path_factory.mktemp("finished") / "run", kind)
        return paths[kind]

    return of


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("kind", "flag", "objective"),
    [
        ("mlm", None, "mlm"),
        slow("across", None, "mlm"),
        slow("static mlm", None, "mlm"),
        slow("mlm_nsp", None, "mlm_nsp"),
        slow("mlm_nsp", "mlm_nsp", "mlm_nsp"),
        ("mlm_sop", None, "mlm_sop"),
        slow("mlm_nsp", "mlm", "mlm"),
        slow("mlm_sop", "mlm", "mlm"),
        slow("static mlm", "mlm", "mlm"),
        slow("foreign", None, "mlm_nsp"),
        slow("foreign", "mlm_sop", "mlm_sop"),
        ("unlabelled", "mlm", "mlm"),
    ],
)
def test_what_is_trained(kind, flag, objective, data, tmp_path, capsys):
    folder = run(data, tmp_path / "run", kind, objective=flag)
    assert recorded(folder) == {"value": objective, "from": "flag" if flag else "default"}
    line = next(x for x in capsys.readouterr().out.splitlines() if "text at step 4" in x)
    sentences = {"mlm": None, "mlm_nsp": "next-sentence", "mlm_sop": "sentence-order"}[objective]
    assert (f"; {sentences} loss " in line) == ("sentence" in line) == (sentences is not None)
    records = metrics_of(folder)
    assert records and all(
        any("next_sentence" in name for name in record) == (objective != "mlm")
        for record in records
    )
    for record in training_metrics(folder):
        parts = [record["masked_lm_loss"], record.get("next_sentence_loss", 0)]
        assert record["loss"] == pytest.approx(sum(parts), rel=1e-5)
    is_baseline_known = kind not in ("foreign", "unlabelled")
    assert ("eval_unigram_baseline" in records[-1]) == is_baseline_known
    weights = variables_of(folder, 4)
    assert any("seq_relationship" in name for name in weights) == (objective != "mlm")
    first = variables_of(folder, 0)
    # The pooler stays as it was at the start, without slots.
    trained = not np.array_equal(*(w["bert/pooler/dense/kernel"] for w in (first, weights)))
    assert trained == (objective != "mlm") == any("pooler/dense/kernel/" in n for n in weights)


def test_masked_words_start_alike_with_and_without_sentences(data, tmp_path, finished):
    """They are predicted from the same weights, and so have the same loss before training."""
    alone = run(data, tmp_path / "run", "mlm_nsp", objective="mlm")
    (before, *_), (expected, *_) = metrics_of(alone), metrics_of(finished("mlm_nsp"))
    for name in ("eval_masked_lm_loss", "eval_masked_lm_accuracy", "eval_unigram_baseline"):
        assert before[name] == expected[name]
    # The mean over batches, and over words.
    assert before["eval_loss"] == pytest.approx(before["eval_masked_lm_loss"], abs=0.01)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("mlm", {"objective": "mlm_nsp"}, "--objective=mlm_nsp: the records of --input_file were "
         "made for mlm; give --objective=mlm, for which any records do, or make all by create_pre"
         "training_data --objective=mlm_nsp"),
        ("mlm_nsp", {"objective": "mlm_sop"}, "were made for mlm_nsp; give --objective=mlm, for"),
        ("mlm_sop", {"objective": "mlm_nsp"}, "were made for mlm_sop; give --objective=mlm, for"),
        ("mlm_nsp", {"eval_input_file": "mlm"}, "the records of --eval_input_file were made for m"),
        ("mlm_nsp", {"input_file": "mlm,mlm_nsp"}, "--objective: the records of --input_file were "
         "made for mlm and mlm_nsp; give --objective=mlm, for which"),
        ("unlabelled", {}, "has no feature 'next_sentence_labels'; "),
        ("unlabelled", {}, "--objective=mlm does without it."),
    ],
)  # fmt: skip
def test_records_without_the_sentences_that_are_asked_for(
    kind, changes, message, data, tmp_path, capsys
):
    for name in ("input_file", "eval_input_file"):
        if name in changes:
            files = changes[name].split(",")
            changes |= {name: ",".join(str(data / file / "train.tfrecord") for file in files)}
    assert message in refusal(capsys, data, tmp_path / "run", kind, **changes)
    assert not [*(tmp_path / "run").glob("model.ckpt*")]


def test_records_of_several_objectives_are_mixed_for_masked_words(data, tmp_path):
    files = ",".join(f"{data / kind}/train.tfrecord:0.5" for kind in ("mlm", "mlm_nsp"))
    folder = run(data, tmp_path / "run", "mlm", input_file=files, objective="mlm")
    assert recorded(folder)["value"] == "mlm"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("way", WAYS_AS_CASES)
@pytest.mark.parametrize("kind", ["across", slow("mlm"), slow("static mlm")])
def test_it_is_the_same_in_any_way(way, kind, packed, data, tmp_path):
    network = {"bert_config_file": data / "without_dropout.json"}
    expected = run(data, tmp_path / "expected", kind, **network)
    other = run(data, tmp_path / "other", kind, pack=packed, **network, **WAYS[way])
    weights, tolerance = variables_of(expected, 4), 0.05 if "precision" in WAYS[way] else 1e-5
    for name, value in variables_of(other, 4).items():
        np.testing.assert_allclose(weights[name], value, atol=tolerance, err_msg=name)
    last, others = metrics_of(expected)[-1], metrics_of(other)[-1]
    for name in last:
        if "loss" in name:
            assert others[name] == pytest.approx(last[name], abs=tolerance)


@pytest.mark.parametrize("flag", [None, "mlm"])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("mlm", {}),
        slow("mlm_nsp", {}),
        slow("across", {"pack": True, "optimizer": "lamb", "precision": "bfloat16"}),
        slow("static mlm", {"micro_batch_size": 2, "use_tpu": False}),
    ],
)
def test_a_killed_run_goes_on_without_the_flag(kind, changes, flag, data, tmp_path, capsys):
    """A run is what it began as; with another objective it is refused."""
    flag = "mlm" if kind == "mlm_nsp" else flag
    changes = {"do_eval": None, **changes}
    expected = run(data, tmp_path / "whole", kind, objective=flag, **changes)
    shutil.copytree(expected, tmp_path / "run")
    go_back(tmp_path / "run")
    error = refusal(capsys, data, tmp_path / "run", kind, objective="mlm_sop", **changes)
    assert f"--objective=mlm_sop: {tmp_path}/run holds a run with --objective=mlm. " in error
    run(data, tmp_path / "run", kind, **changes)
    np.testing.assert_equal(variables_of(tmp_path / "run", 4), variables_of(expected, 4))
    assert sorted_metrics(tmp_path / "run") == sorted_metrics(expected)
    assert recorded(tmp_path / "run")["value"] == "mlm"


@pytest.mark.parametrize("kind", ["mlm_sop", slow("mlm_nsp"), slow("foreign")])
def test_a_run_that_was_begun_before_there_were_objectives_goes_on(kind, data, tmp_path, finished):
    shutil.copytree(finished(kind), tmp_path / "run")
    go_back(tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["flags"]["objective"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    run(data, tmp_path / "run", kind)
    np.testing.assert_equal(variables_of(tmp_path / "run", 4), variables_of(finished(kind), 4))


def test_an_evaluation_alone_takes_the_objective_of_its_run(data, tmp_path, finished, capsys):
    whole, alone = tmp_path / "whole", tmp_path / "alone"
    shutil.copytree(finished("mlm_nsp"), whole)
    shutil.copytree(finished("mlm"), alone)

    def evaluate(folder, *flags):
        capsys.readouterr()
        code = PRETRAINING.main([f"--output_dir={folder}", "--do_eval", *flags])
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    of_pairs, of_words = (f"--eval_input_file={data / kind}" for kind in ("mlm_nsp", "mlm"))
    assert "next-sentence loss" in evaluate(whole)
    # The curves are of what the run learns.
    kept = metrics_of(whole)
    assert "sentence" not in evaluate(whole, "--objective=mlm")
    assert metrics_of(whole) == kept and "eval_next_sentence_accuracy" in kept[-1]
    path = whole / "config.json"  # of an earlier version
    config = json.loads(path.read_text())
    objective = config["flags"].pop("objective")
    path.write_text(json.dumps(config))
    assert "sentence" not in evaluate(whole, "--objective=mlm")
    assert metrics_of(whole) == kept
    config["flags"]["objective"] = objective
    path.write_text(json.dumps(config))
    (whole / "metrics.jsonl").unlink()
    assert "masked-LM loss" in evaluate(whole, "--objective=mlm")
    assert not (whole / "metrics.jsonl").exists()
    error = evaluate(whole, of_words)
    assert "--objective=mlm_nsp: the records of --eval_input_file were made for mlm; " in error
    assert "sentence" not in evaluate(whole, of_words, "--objective=mlm")
    assert "sentence" not in evaluate(alone)
    assert "sentence" not in evaluate(alone, of_pairs)
    pairs = [f"--input_file={data / 'mlm_nsp'}", f"--bert_config_file={alone}/bert_config.json"]
    error = evaluate(alone, *pairs, "--objective=mlm_nsp")
    assert f"--objective=mlm_nsp: {alone} holds a run for masked words alone; leave the" in error
    # The same network, named as the start of a directory without a run.
    start = [f"--init_checkpoint={alone}", *pairs]
    assert "sentence" not in evaluate(tmp_path / "new", *start)  # the run has recorded it
    error = evaluate(tmp_path / "new", *start, "--objective=mlm_nsp")
    assert "lacks the next-sentence head (cls/seq_relationship), so it cannot be evalua" in error
    assert "add --do_train, or --objective=mlm" in error


def test_an_evaluation_knows_its_run_s_records_alone(data, tmp_path, finished, capsys):
    """Other records without a manifest have labels of next sentences, unless a flag says more."""
    folder = shutil.copytree(finished("mlm_sop"), tmp_path / "run")
    network = f"--bert_config_file={folder}/bert_config.json"
    foreign = data / "foreign" / "train.tfrecord"
    for flags in ([f"--eval_input_file={foreign}"], [f"--input_file={foreign}", network]):
        flags = [f"--output_dir={folder}", "--do_eval", *flags]
        assert PRETRAINING.main(flags) == 2
        flag = flags[2].partition("=")[0]
        said = f"--objective=mlm_sop: the records of {flag} were made for mlm_nsp (files without"
        assert said in capsys.readouterr().err
        assert PRETRAINING.main([*flags, "--objective=mlm_sop"]) == 0
        assert "sentence-order loss" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_s_own_records_are_what_it_was_told(data, tmp_path, capsys):
    folder = run(data, tmp_path / "run", "foreign", objective="mlm_sop")
    capsys.readouterr()
    assert PRETRAINING.main([f"--output_dir={folder}", "--do_eval"]) == 0
    assert "sentence-order loss" in capsys.readouterr().out


def test_objectives_follow_each_other(data, tmp_path, finished, logged):
    """A run starts from a network of another objective: it leaves out a head, or adds a new one."""
    shorter = {"num_train_steps": 2, "num_warmup_steps": 0, "do_eval": None}
    alone = run(data, tmp_path / "a", "mlm", init_checkpoint=finished("mlm_nsp"), **shorter)
    start, weights = variables_of(finished("mlm_nsp"), 4), variables_of(alone, 2)
    for name in ("bert/pooler/dense/kernel", "bert/pooler/dense/bias"):
        np.testing.assert_array_equal(weights[name], start[name])
    assert not any(" starts from new weights" in text for _, text in logged)
    run(data, tmp_path / "b", "mlm_nsp", init_checkpoint=alone, **shorter)
    said = [text for _, text in logged if " starts from new weights" in text]
    assert len(said) == 1 and "has no next-sentence head (cls/seq_relationship): " in said[0]


@pytest.mark.parametrize("flag", [None, slow("mlm")])
def test_a_masked_language_model_of_others_is_trained_and_evaluated(flag, tmp_path, logged):
    """It does not have a pooler, and does not need one."""
    start = fixtures.DATA / "hf_masked_lm"
    vocabulary = (start / "vocab.txt").read_text().split()
    write_pretraining_records(
        [[" ".join(vocabulary[n : n + 4]) for n in range(5, 30)] for _ in range(3)],
        FullTokenizer(str(start / "vocab.txt")),
        str(start / "vocab.txt"),
        [str(tmp_path / "train.tfrecord")],
        CreationSettings(max_seq_length=16, max_predictions_per_seq=4, objective="mlm"),
        masking="dynamic",
    )
    changes = {"init_checkpoint": start, "bert_config_file": None, "num_train_steps": 2}
    changes |= {"num_warmup_steps": 0, "optimizer": "lars", "objective": flag}
    for verb in ("do_eval", "do_train"):
        flags = PRETRAINING.flags(tmp_path, tmp_path / "run", **changes, **{verb: True})
        assert PRETRAINING.main(flags) == 0
    assert not any(" starts from new weights" in text for _, text in logged)


@pytest.fixture(scope="module")
def converted(finished, tmp_path_factory):
    """Returns the directory of a run for masked words alone, and of Hugging Face's copy of it."""
    folder = tmp_path_factory.mktemp("converted") / "hf"
    assert interchange.main(["interchange", str(finished("mlm")), str(folder)]) == 0
    return finished("mlm"), folder


def test_a_network_of_masked_words_goes_there_and_back(converted, tmp_path):
    run_directory, folder = converted
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    back = tmp_path / "back"
    assert interchange.main(["interchange", str(folder), str(back)]) == 0
    expected, found = (
        fixtures.weights_of(open_source(str(path))) for path in (run_directory, back)
    )
    np.testing.assert_equal(found, expected)
    assert "bert/pooler/dense/kernel" in found
    assert not any("seq_relationship" in name for name in found)


@pytest.mark.slow
@fixtures.needs_transformers
def test_transformers_predicts_the_same_words(converted, tmp_path):
    from bert_estimator.interchange.weights import fixed_batch, logits_of

    run_directory, folder = converted
    source = open_source(str(run_directory))
    batch = fixed_batch(source.config)
    np.savez(tmp_path / "batch.npz", **batch)
    fixtures.transformers("logits", folder, tmp_path / "batch.npz", tmp_path / "out.npz")
    expected = logits_of(source.config, fixtures.weights_of(source), batch)["masked_lm_logits"]
    with np.load(tmp_path / "out.npz") as found:
        is_real = batch["input_mask"].astype(bool)
        np.testing.assert_allclose(found["masked_lm_logits"][is_real], expected[is_real], atol=1e-5)


@pytest.mark.parametrize("place", [0, slow(1)])
def test_fine_tuning_starts_from_a_network_of_masked_words(converted, place, tmp_path):
    """Its pooler is trained then, from where it was."""
    own = tmp_path / "data"
    own.mkdir()
    CLASSIFIER.write_data(own)
    start = converted[place]
    changes = {"init_checkpoint": start, "bert_config_file": None, "do_train": True}
    changes |= {"vocab_file": None, "do_eval": True, "learning_rate": 1e-4}
    assert CLASSIFIER.main(CLASSIFIER.flags(own, tmp_path / "run", **changes)) == 0
    pooler = "bert/pooler/dense/kernel"
    before = open_source(str(start)).read(pooler)
    after = variables_of(tmp_path / "run", 8)[pooler]
    assert 0 < np.abs(after - before).max() < 0.005 < np.abs(before).mean()


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm", "mlm_sop"])
def test_the_embedded_corpus_for_another_objective(objective, tmp_path, capsys):
    flags = [f"--output_dir={tmp_path}", "--num_warmup_steps=2", "--max_eval_steps=2"]
    flags += ["--use_tpu", "--save_checkpoints_steps=10"]
    main = PRETRAINING.main
    assert main([*flags, "--num_train_steps=10", f"--objective={objective}"]) == 0
    manifest = next((tmp_path / "data").glob("manifest.train*"))
    creation = json.loads(manifest.read_text())["creation"]
    assert creation.get("objective", "mlm_sop") == objective
    assert creation["dupe_factor"] == (1 if objective == "mlm" else 5)
    assert main([*flags, "--num_train_steps=20"]) == 0  # goes on as it began
    capsys.readouterr()
    assert main([f"--output_dir={tmp_path}", "--do_eval", "--objective=mlm"]) == 0
    assert "sentence" not in capsys.readouterr().out
