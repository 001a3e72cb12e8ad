"""The scripts told of input that cannot work: what is wrong, where, before step 0 if they can."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from scripts import CLASSIFIER, PRETRAINING, SCRIPTS, SQUAD, TAGGER, examples_of_step
from tiny_run import bert_config, copy_records, pretraining_flags, steps_of

from bert_estimator.tokenization import open_tokenizer
from bert_estimator.tpu.verbs import checkpoints
from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.records.record_reader import record_offsets


@pytest.fixture(scope="module", params=SCRIPTS)
def script(request):
    return SCRIPTS[request.param]


@pytest.fixture
def own_data(data, tmp_path):
    """Returns a function of a script that copies the script's data, for a test to damage."""
    return lambda script: shutil.copytree(data[script.name], tmp_path / "data")


def test_a_process_of_its_own_ends_with_2_and_a_sentence(script, tmp_path):
    """It is the script itself: nothing is loaded that it does not load."""
    ended = subprocess.run(
        [sys.executable, script.module.__file__, "--precision=half"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    sentence = f"{script.name}: --precision=half: must be one of float32, bfloat16"
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (2, "", sentence)


def small_vocabulary(path, name="bert_config.json"):
    (path / name).write_text(json.dumps({**bert_config(40), "vocab_size": 20}))


def one_segment(path):
    (path / "bert_config.json").write_text(json.dumps(bert_config(40, type_vocab_size=1)))


def without_manifest(path):
    os.remove(path / "manifest.train.tfrecord.json")


def cut_records(path):
    records = path / "train.tfrecord"
    offset = int(record_offsets(str(records))[-2])
    without_manifest(path)
    os.truncate(records, os.path.getsize(records) - 5)
    return {"offset": offset}


def appends(name, row):
    """Returns damage that adds a row to a file of a header and 64 or 21 rows."""

    def append(path):
        with open(path / name, "ab") as file:
            file.write(row)

    return append


def without_id(path):
    content = json.loads((path / "train.json").read_text())
    del content["data"][0]["paragraphs"][1]["qas"][0]["id"]
    (path / "train.json").write_text(json.dumps(content))


def no_questions(path):
    (path / "dev.json").write_text('{"data": []}')


def with_foreign_held_out_records(path):
    """Lets the manifest of the training records name held-out records that others belong to."""
    manifest_file = path / "manifest.train.tfrecord.json"
    manifest = json.loads(manifest_file.read_text())
    manifest["corpus"]["held_out"] = {"file": "heldout.train.tfrecord", "sha256": "0" * 64}
    manifest_file.write_text(json.dumps(manifest))
    shutil.copyfile(path / "train.tfrecord", path / "heldout.train.tfrecord")


def with_other_counts(path):
    with open(path / "token_counts.train.tfrecord.npy", "ab") as file:
        file.write(b"0")


def no_damage(path):
    pass


def with_unmasked_records(path):
    """Writes records of dynamic masks beside the records that have masks."""
    vocab_file = str(path / "vocab.txt")
    write_pretraining_records(
        [["w1 w2 w3", "w4 w5 w6"]] * 9,
        open_tokenizer(vocab_file, do_lower_case=True),
        vocab_file,
        [str(path / "unmasked.tfrecord")],
        CreationSettings(max_seq_length=16, max_predictions_per_seq=4, dupe_factor=1),
        masking="dynamic",
    )


BAD_INPUT = [
    # name, script, damage, changed flags, messages
    ("length", PRETRAINING, no_damage, {"max_seq_length": 12},
     ["--input_file: {data}/train.tfrecord: max_seq_length is 16", "but 12 was given. Use 16"]),
    ("cut", PRETRAINING, cut_records, {},
     ["--input_file: {data}/train.tfrecord: record 78 (byte {offset}) goes on beyond the end"]),
    ("cut_to_evaluate", PRETRAINING, cut_records,
     {"input_file": "{whole}/train.tfrecord", "eval_input_file": "{data}/train.tfrecord"},
     ["--eval_input_file: {data}/train.tfrecord: record 78 (byte {offset}) goes on beyond"]),
    ("two_maskings", PRETRAINING, with_unmasked_records,
     {"input_file": "{data}/train.tfrecord:0.5,{data}/unmasked.tfrecord:0.5"},
     ["--input_file: {data}/train.tfrecord and {data}/unmasked.tfrecord do not agree in --mask"]),
    ("held_out", PRETRAINING, with_foreign_held_out_records, {},
     ["--input_file: {data}/heldout.train.tfrecord: is missing, but "]),
    ("counts", PRETRAINING, with_other_counts, {},
     ["--input_file: {data}/token_counts.train.tfrecord.npy: has changed since the records were"]),
    ("vocabulary", PRETRAINING, small_vocabulary, {},
     ["--input_file: {data}/train.tfrecord: vocab_size is 45", "but 20 was given"]),
    ("segments", CLASSIFIER, one_segment, {},
     ["--bert_config_file={data}/bert_config.json: has type_vocab_size 1, but pairs of texts have "
      "2 segments; give a network that was made for pairs"]),
    ("label", CLASSIFIER, appends("dev.tsv", b"a\tb\tmiddle\n"), {},
     ["--eval_file: {data}/dev.tsv:23: the label is 'middle'; it must be one of high, low"]),
    ("no_utf_8_to_predict_for", CLASSIFIER, appends("dev.tsv", b"\xff\tb\tlow\n"),
     {"eval_file": None, "do_train": True, "do_predict": True, "predict_file": "{data}/dev.tsv"},
     ["--predict_file: {data}/dev.tsv:23: is not UTF-8 at byte 1 of the line"]),
    ("empty", CLASSIFIER, lambda path: os.truncate(path / "dev.tsv", 0), {},
     ["--eval_file: {data}/dev.tsv: has 0 examples"]),
    ("tags_cut", TAGGER, lambda path: os.truncate(path / "train.conll", 9), {},
     ["--train_file: {data}/train.conll:1: the tag is "]),
    ("tags_tag", TAGGER, appends("dev.conll", b"w1 NN B-HIGH\n"), {},
     ["--eval_file: {data}/dev.conll:", ": the tag is 'B-HIGH'; it must be one of O, B-LOW, I-L"]),
    ("tags_empty", TAGGER, lambda path: os.truncate(path / "dev.conll", 0), {},
     ["--eval_file: {data}/dev.conll: has 0 sentences; give a file with at least one"]),
    ("segments", SQUAD, one_segment, {},
     ["--bert_config_file={data}/bert_config.json: has type_vocab_size 1, but a question and it"]),
    ("no_id", SQUAD, without_id, {},
     ["--train_file: {data}/train.json: data[0].paragraphs[1].qas[0]: the key 'id' is missing"]),
    ("no_questions", SQUAD, no_questions,
     {"do_train": True, "do_predict": True, "predict_file": "{data}/dev.json"},
     ["--predict_file: {data}/dev.json: has 0 questions"]),
]  # fmt: skip


def assert_fails_before_step_0(capsys, script, flags, output_dir, *messages):
    assert script.main(flags) == 2
    err = capsys.readouterr().err
    assert f"\n{script.name}: --" in f"\n{err}"  # what was read may be told before
    for message in messages:
        assert message in err
    # Nothing stands in the way of the right command.
    assert os.listdir(output_dir) == []


@pytest.mark.parametrize(
    ("script", "damage", "changes", "messages"),
    [pytest.param(*case, id=f"{case[0].module.__name__}-{name}") for name, *case in BAD_INPUT],
)
def test_wrong_input(data, own_data, tmp_path, capsys, script, damage, changes, messages):
    names = {"data": own_data(script), "whole": data[script.name]}
    names.update(damage(names["data"]) or {})
    changes = {k: v.format(**names) if isinstance(v, str) else v for k, v in changes.items()}
    flags = script.flags(names["data"], tmp_path / "run", **changes)
    messages = [message.format(**names) for message in messages]
    assert_fails_before_step_0(capsys, script, flags, tmp_path / "run", *messages)


# Input that fails on the way: only pretraining reads as it trains


def train(data, output_dir, **changes):
    """Trains with the optimizer of the smallest graph; returns the exit code."""
    flags = pretraining_flags(data, output_dir, optimizer="lars", do_train=True, **changes)
    return PRETRAINING.main(flags)


def wrapping_segment(features):
    """In 32 bits this is 1, a good segment."""
    features["segment_ids"].int64_list.value[3] = 2**32 + 1


def test_a_bad_record_among_good_ones(own_data, tmp_path, capsys):
    path = own_data(PRETRAINING)
    record = examples_of_step(7, 79)[3]
    copy_records(path / "train.tfrecord", path / "bad.tfrecord", {record: wrapping_segment})
    offset = int(record_offsets(str(path / "bad.tfrecord"))[record])
    assert train(path, tmp_path / "run", input_file=path / "bad.tfrecord") == 1
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith(
        f"run_pretraining.py: error: {path}/bad.tfrecord: record {record} (byte {offset}): "
        "segment_ids holds 4294967297; it must be from 0 to 1, since the network's"
    )
    assert checkpoints.damage(str(tmp_path / "run" / "model.ckpt-4")) is None


@pytest.mark.parametrize("use_tpu", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_damaged_record(own_data, tmp_path, capsys, use_tpu):
    path = own_data(PRETRAINING)
    records = path / "train.tfrecord"
    without_manifest(path)
    record = examples_of_step(7, 79)[3]
    offset = int(record_offsets(str(records))[record])
    content = bytearray(records.read_bytes())
    content[offset + 50] ^= 4
    records.write_bytes(content)
    assert train(path, tmp_path / "run", use_tpu=use_tpu) == 1
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line == (
        f"run_pretraining.py: error: {records}: record {record} (byte {offset}) is damaged: its "
        "checksum does not match its data. Create the file again."
    )
    assert steps_of(tmp_path / "run") == [0, 4]
    assert checkpoints.damage(str(tmp_path / "run" / "model.ckpt-4")) is None
