"""All pairs of features together: a killed run ends as if it had not been killed."""

import itertools
import json
import threading

import numpy as np
import pairwise
import pytest
import tensorflow.compat.v1 as tf
from kills import Killed, copy_at, kill_before
from scripts import CLASSIFIER, PRETRAINING, SQUAD, TAGGER
from tiny_run import (
    bert_config,
    pairs,
    sorted_metrics,
    variables_of,
    write_pairs,
    write_questions,
)

from bert_estimator.command_line.choices import OPTIMIZER_NAMES
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.storage import remote
from bert_estimator.tokenization import (
    SPECIAL_TOKENS,
    open_tokenizer,
    train_sentencepiece,
    write_vocab,
)
from bert_estimator.tpu.verbs import snapshot
from bert_estimator.tpu.verbs.checkpoint_saver import CheckpointSaver
from bert_estimator.tpu.verbs.evaluation import KeptEvaluation
from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.records import manifest, record_names

LAST, SAVED_EVERY = 8, 2

FEATURES = {
    "script": {
        "pretraining": PRETRAINING,
        "dynamic masks": PRETRAINING,
        "fine-tuning": CLASSIFIER,
        "tagging": TAGGER,
        "answers": SQUAD,
    },
    "runtime": {
        "local": {"use_tpu": False},
        "session": {"use_tpu": True},
        "cores": {"use_tpu": True, "tpu_name": "rehearse:2"},
    },
    "precision": {"float32": {}, "bfloat16": {"precision": "bfloat16"}},
    "optimizer": {name: {"optimizer": name} for name in OPTIMIZER_NAMES},
    "batch": {
        "whole": {},
        "micro-batches": {"micro_batch_size": 2},
        "recomputed": {"recompute": True},
        "both": {"micro_batch_size": 2, "recompute": True},
    },
    "vocabulary": {"uncased": {}, "cased": {"do_lower_case": False}, "sentencepiece": {}},
    "on the way": {
        "nothing": {},
        "best": {"keep_best_checkpoint": True},
        "every 4": {"eval_steps": 4, "early_stopping_patience": 9},
    },
    "layers": {"own": {}, "shared": {}},
    "trained": {"all": {}, "head": {"trainable": "head"}},
    "checkpoints": dict.fromkeys(["waiting", "in background"]),
    "storage": {"here": {}, "remote": {}},
    "export": {"nothing": {}, "text": {"do_export": True}},
    "killed": dict.fromkeys(["while logging", "while saving", "in an evaluation"]),
}


TABLE = pairwise.table(FEATURES)
LENGTHS = ("max_seq_length", "max_query_length")
# The other rows take minutes together.
QUICK = [5]


def test_every_pair_of_features_is_in_the_table():
    pairwise.check_table(TABLE, FEATURES)
    assert len(TABLE) < 35


@pytest.fixture(scope="module")
def data_of(tmp_path_factory):
    """Makes the data of a vocabulary, once: records, tables and a network in a directory."""
    made = {}

    def of(vocabulary):
        if vocabulary not in made:
            made[vocabulary] = tmp_path_factory.mktemp(vocabulary)
            write_data(made[vocabulary], vocabulary)
        return made[vocabulary]

    return of


def write_data(path, vocabulary):
    """Writes the same text for each vocabulary, but cased text is partly in capitals."""

    def text(words):
        return words.upper() if vocabulary == "cased" and words[-1] in "13579" else words

    tables = {
        name: [(text(a), text(b), label) for a, b, label in pairs(number, seed)]
        for name, number, seed in (("train", 64, 1), ("dev", 21, 2))
    }
    for name, rows in tables.items():
        write_pairs(path / f"{name}.tsv", rows)
        write_tagged(path / f"{name}.conll", rows)
        asked = [
            {"id": f"q{i}", "question": b, "answers": [{"text": a.split()[0], "answer_start": 0}]}
            for i, (a, b, _) in enumerate(rows)
        ]
        write_questions(path / f"{name}.json", zip([a for a, _, _ in rows], asked, strict=True))
    sentences = [sentence for row in tables["train"] for sentence in row[:2]]
    vocab_file = str(path / ("spm.model" if vocabulary == "sentencepiece" else "vocab.txt"))
    if vocabulary == "sentencepiece":
        train_sentencepiece(sentences, vocab_file, 36)
    else:
        write_vocab([*SPECIAL_TOKENS, *sorted(set(" ".join(sentences).split()))], vocab_file)
    tokenizer = open_tokenizer(vocab_file, do_lower_case=vocabulary != "cased")
    documents = [sentences[i : i + 4] for i in range(0, len(sentences), 4)]
    for masking in ("static", "dynamic"):
        write_records(path / f"{masking}.tfrecord", documents, tokenizer, vocab_file, masking)
    network = {**bert_config(0), "vocab_size": tokenizer.vocab_size, "max_position_embeddings": 32}
    (path / "bert_config.json").write_text(json.dumps(network))
    shared = {"embedding_size": 8, "num_hidden_layers": 2, "num_hidden_groups": 1}
    (path / "shared.json").write_text(json.dumps({**network, **shared}))


def write_records(path, documents, tokenizer, vocab_file, masking):
    """Writes records, with held-out records beside them, which pretraining evaluates on."""
    settings = CreationSettings(max_seq_length=16, max_predictions_per_seq=4, dupe_factor=2)
    of_held_out = write_pretraining_records(
        documents[:6],
        tokenizer,
        vocab_file,
        [record_names.held_out_path(str(path))],
        settings,
        masking=masking,
    )
    write_pretraining_records(
        documents[6:],
        tokenizer,
        vocab_file,
        [str(path)],
        settings,
        {"held_out": manifest.held_out_description(6 / len(documents), of_held_out)},
        masking=masking,
    )


def write_tagged(path, rows):
    """Writes the first texts of rows as sentences, with an entity of one word in each."""
    sentences = []
    for text, _, label in rows:
        first, *others = text.split()
        lines = [f"{first} B-{label}", *(f"{word} O" for word in others)]
        sentences.append("\n".join(lines) + "\n")
    path.write_text("\n".join(sentences))


def flags_of(row, data, output_dir):
    script = FEATURES["script"][row["script"]]
    changes = {}
    names = ("runtime", "precision", "optimizer", "batch", "vocabulary", "on the way", "trained")
    for name in names:
        changes |= FEATURES[name][row[name]]
    if row["layers"] == "shared":
        changes["bert_config_file"] = data / "shared.json"
    if script is PRETRAINING:
        changes.pop("do_lower_case", None)  # the records know
        masking = "dynamic" if row["script"] == "dynamic masks" else "static"
        changes["input_file"] = data / f"{masking}.tfrecord"
    else:
        changes["vocab_file"] = next(data.glob("spm.model"), data / "vocab.txt")
        changes |= FEATURES["export"][row["export"]]
        # So long that each example has one window, whatever the vocabulary.
        changes["max_seq_length"] = 32
        if script is SQUAD:
            changes["max_query_length"] = 12
    if row["trained"] == "head":
        names = ("bert_config_file", "input_file", "vocab_file", "do_lower_case", *LENGTHS)
        start = data / f"start of {row['script']}, {row['layers']}"
        if not start.exists():
            own = {name: changes[name] for name in names if name in changes}
            own |= {"num_warmup_steps": 0} if script is PRETRAINING else {}
            assert run(script, script.flags(data, start, **script.steps(1), **own)) == 0
        changes["init_checkpoint"] = start
    return script.flags(
        data,
        output_dir,
        **script.steps(LAST),
        save_checkpoints_steps=SAVED_EVERY,
        do_train=True,
        do_eval=True,
        **changes,
    )


def call_of(place):
    """Returns the call, half way, at which a run ends, as `kill_before` and `copy_at` take it."""
    counts = itertools.count(1)
    if place == "while logging":
        return RunDirectory, "add_metrics", lambda _, record: record["step"] == 6
    if place == "while saving":
        # The saves before it are of steps 0, 2 and 4.
        return CheckpointSaver, "_save_with", lambda *_: next(counts) == 4
    return KeptEvaluation, "evaluate", lambda *_, **__: next(counts) == 2


def run(script, flags):
    tf.summary.FileWriterCache.clear()
    code = script.main(flags)
    tf.summary.FileWriterCache.clear()
    return code


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id="-".join(row.values()), marks=() if i in QUICK else pytest.mark.slow)
        for i, row in enumerate(TABLE)
    ],
)
def test_a_killed_run_ends_as_one_that_was_not(data_of, tmp_path, monkeypatch, request, row):
    if row["runtime"] == "cores":
        request.getfixturevalue("xla_runtime")
    if row["checkpoints"] == "in background":
        monkeypatch.setattr(snapshot, "LEAST_BYTES", 0)
    script, data = FEATURES["script"][row["script"]], data_of(row["vocabulary"])
    is_remote = row["storage"] == "remote"
    output_dir = f"ram:/{tmp_path}/killed" if is_remote else tmp_path / "killed"
    # A checkpoint that is written in the background, or an upload, may be at any place at a kill.
    is_copied = not is_remote and row["checkpoints"] == "waiting"
    with monkeypatch.context() as patched:
        if is_copied:
            copy_at(patched, *call_of(row["killed"]), tmp_path / "whole", output_dir)
        assert run(script, flags_of(row, data, tmp_path / "whole")) == 0
    if not (is_copied and output_dir.exists()):
        with monkeypatch.context() as patched:
            kill_before(patched, *call_of(row["killed"]))
            try:
                run(script, flags_of(row, data, output_dir))
            except Killed:
                for thread in threading.enumerate():
                    if thread.name == "storage":
                        thread.join()
            else:  # fine-tuning that evaluates at its end alone has no second evaluation
                assert (row["killed"], row["on the way"]) == ("in an evaluation", "nothing")
                assert script is not PRETRAINING
    # This process still runs, and so it may still be the remote directory's owner.
    again = [*flags_of(row, data, output_dir), *["--take_over"] * is_remote]
    assert run(script, again) == 0
    for name in remote.files(output_dir) if is_remote else ():
        remote.download(f"{output_dir}/{name}", str(tmp_path / "killed" / name))

    expected = variables_of(tmp_path / "whole", LAST)
    found = variables_of(tmp_path / "killed", LAST)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert np.isfinite(np.float32(value)).all()
    metrics = {name: sorted_metrics(tmp_path / name) for name in ("whole", "killed")}
    assert metrics["killed"] == metrics["whole"]
    if script is PRETRAINING:  # it is on held-out text, by default
        assert any("eval_unigram_baseline" in dict(record) for record in metrics["whole"])
    if row["on the way"] != "nothing":
        files = [(tmp_path / each / "best" / "best.json").read_text() for each in metrics]
        assert files[0] == files[1]
    if row["export"] == "text" and script is not PRETRAINING:
        inputs, of_killed = (exported_inputs(tmp_path / each / "export") for each in metrics)
        assert inputs == of_killed
        takes_text = script is CLASSIFIER and row["vocabulary"] != "sentencepiece"
        dtype = tf.string if takes_text else tf.int32
        assert set(inputs.values()) == {dtype.as_datatype_enum}


def exported_inputs(directory):
    """Returns the inputs of the newest model's signature `serving_default`: name -> type."""
    path = max(directory.iterdir(), key=lambda export: int(export.name))
    with tf.Graph().as_default(), tf.Session() as session:
        signatures = tf.saved_model.load(session, ["serve"], str(path)).signature_def
    return {name: info.dtype for name, info in signatures["serving_default"].inputs.items()}
