"""The parsers of models, runs and records, fed with what nobody meant: a result or their own error.

In the suite each parser gets a few examples, always the same. FUZZ_EXAMPLES=100000 makes as many
for each, anew each time:

    FUZZ_EXAMPLES=100000 python -m pytest tests/robustness -k fuzz
"""

import io
import json

import numpy as np
import pytest
from fixtures import DATA
from fuzzing import NUMBERS, VALUES, bytes_of, damaged, fuzzed
from hypothesis import configuration
from hypothesis import strategies as st
from tiny_run import words, write_records

from bert_estimator.bert_config import BertConfig
from bert_estimator.cluster import cluster_task
from bert_estimator.command_line import flags, run_directory
from bert_estimator.command_line.provenance import read_command_line
from bert_estimator.interchange import network_files, open_source
from bert_estimator.interchange.hugging_face import config_json, tokenizer_files
from bert_estimator.jobs.fine_tuning import classification_config
from bert_estimator.jobs.pretraining import pretraining_config
from bert_estimator.serving import commands, exported_model
from bert_estimator.system import json_files
from bert_estimator.tokenization.wordpiece import load_vocab
from bert_estimator.tpu.program import exported_program
from input_pipelines.records import manifest, pretraining_features
from input_pipelines.records.record_reader import RecordFiles
from input_pipelines.tasks import examples, table_files, task_table


@pytest.fixture(scope="module", autouse=True)
def nothing_in_the_working_directory(tmp_path_factory):
    configuration.set_hypothesis_home_dir(tmp_path_factory.mktemp("hypothesis"))


@fuzzed(bytes_of({"a": [1, 2.5, {"b": "é\ud83d\ude00"}], "c": None}))
def test_json(data):
    for kind in (dict, list, object):
        try:
            value = json_files.parse(data, "here", kind)
        except json_files.JsonError as error:
            assert str(error).startswith("here: ")
        else:
            json_files.shown(value).encode()


def check(path, data, is_good):
    """Checks that a file is good, or refused by an error that names it."""
    path.write_bytes(data)
    try:
        assert is_good(str(path))
    except ValueError as error:
        assert str(error).startswith(str(path))


@fuzzed(
    damaged("".join(f"{t}\n" for t in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "é"]).encode())
)
def test_a_vocabulary(tmp_path, data):
    check(tmp_path / "vocab.txt", data, lambda path: load_vocab(path)["[PAD]"] >= 0)


TABLE = b'text,label\n"a, ""b""",1\nc\td,2\n{"text": "a", "label": ["b"]}\n'


@fuzzed(damaged(TABLE))
def test_tables(tmp_path, data):
    for extension in table_files.FORMATS:
        path = tmp_path / f"a{extension}"
        path.write_bytes(data)
        for has_header in (True, False):
            try:
                for line, row in table_files.read_rows(str(path), has_header):
                    assert line > 0
                    assert isinstance(row, dict)
            except table_files.TableError as error:
                assert str(error).startswith(str(path))


LABELS = st.one_of(VALUES, st.sampled_from(["true", True, "1", 1, 1.0, "01", "-1", "", ["a", "b"]]))


@fuzzed(st.lists(st.tuples(st.one_of(st.text(), VALUES), LABELS), max_size=6))
def test_labels(tmp_path, data):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": t, "label": label}) + "\n" for t, label in data))
    for kind in ("classification", "multi_label", "regression"):
        try:
            task = task_table.own_task(kind, str(path), None, None)
            labels = () if kind == "regression" else examples.discover_labels(task)
            read = examples.training_examples(
                task_table.own_task(kind, str(path), None, None, labels=labels)
            )
            assert len(read) == len(data)
            assert all(isinstance(example.text_a, str) for example in read)
        except table_files.TableError as error:
            assert str(error).startswith(str(path))


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    path = tmp_path_factory.mktemp("records")
    write_records(path, "a.tfrecord", words(40))
    return path


RECORD_BYTES = st.tuples(st.integers(0, 10**6), st.integers(0, 255), st.booleans())


@fuzzed(st.lists(RECORD_BYTES, min_size=1, max_size=3))
def test_records(records, tmp_path, data):
    """A changed byte is never read: checksums, or the checks of features, name the file."""
    content = bytearray((records / "a.tfrecord").read_bytes())
    original = bytes(content)
    for place, byte, is_cut in data:
        if content:
            content[place % len(content)] = byte
        if is_cut:
            del content[place % (len(content) + 1) :]
    path = tmp_path / "b.tfrecord"
    path.write_bytes(content)
    try:
        files = pretraining_features.open_pretraining_records(str(path), 16, 4, 45)
        read = files.read_all(np.arange(files.num_records))
    except ValueError as error:
        assert str(path) in str(error)
        return
    whole = RecordFiles([str(records / "a.tfrecord")]).read_all(np.arange(len(read)))
    assert original.startswith(bytes(content)) and read == whole


MANIFEST = {
    "max_seq_length": 16, "max_predictions_per_seq": 4, "vocab_size": 45, "vocab_sha256": "a",
    "do_lower_case": True, "num_records": 1, "token_counts": "t.npy", "token_counts_sha256": "a",
    "files": [{"name": "a", "num_records": 1, "num_bytes": 3, "sha256": "b"}], "corpus": {},
    "creation": {}, "vocab_file": "vocab.txt", "format_version": 1,
}  # fmt: skip


@fuzzed(bytes_of(MANIFEST))
def test_a_manifest(tmp_path, data):
    def names_are_safe(path):
        names = [file.name for file in manifest.read_manifest(path).files]
        return all(isinstance(name, str) and ".." not in name for name in names)

    check(tmp_path / "manifest.a.json", data, names_are_safe)


HF_CONFIG = json.loads((DATA / "hf_classifier" / "config.json").read_text())


@fuzzed(bytes_of({**HF_CONFIG, "id2label": {"0": "a"}, "problem_type": "regression"}))
def test_a_network(tmp_path, data):
    def fits(path):
        values = config_json.read_json(path)
        config_json.task_of(values, path, 1, None)
        config_json.kind_of(values, path, 1)
        config = config_json.config_of(values, path)
        return config.hidden_size % config.num_attention_heads == 0

    check(tmp_path / "config.json", data, fits)


@fuzzed(bytes_of(BertConfig(9).to_dict()))
def test_a_bert_config(tmp_path, data):
    path = tmp_path / "bert_config.json"
    check(path, data, lambda path: BertConfig.from_json_file(path).vocab_size > 0)


TOKENIZER = {
    "model": {"type": "WordPiece", "vocab": {"a": 0, "b": 1}},
    "added_tokens": [{"content": "[CLS]", "id": 2}],
    "normalizer": {"type": "BertNormalizer", "lowercase": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]},
}
TASK = {
    "kind": "classification", "labels": ["a", "b"], "do_lower_case": True, "max_seq_length": 9,
    "is_pair": False, "vocab_file": "vocab.txt",
}  # fmt: skip


@fuzzed(st.tuples(bytes_of(TOKENIZER), bytes_of(TASK)))
def test_files_beside_weights(tmp_path, data):
    extra = tmp_path / "assets.extra"
    extra.mkdir(exist_ok=True)
    for name, content in (("tokenizer.json", data[0]), ("assets.extra/task.json", data[1]),
                          ("task.json", data[1]), ("tokenizer_config.json", data[1])):  # fmt: skip
        (tmp_path / name).write_bytes(content)
    for read in (
        tokenizer_files.find_vocabulary,
        tokenizer_files.read_settings,
        network_files.read,
        exported_model.read_task,
    ):
        try:
            read(str(tmp_path))
        except ValueError as error:
            assert str(error).startswith(str(tmp_path))


@fuzzed(damaged((DATA / "hf_classifier" / "model.safetensors").read_bytes()))
def test_safetensors(tmp_path, data):
    (tmp_path / "config.json").write_bytes((DATA / "hf_classifier" / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(data)
    try:
        source = open_source(str(tmp_path))
        assert [list(source.read(name).shape) for name in source.shapes] == [
            *source.shapes.values()
        ]
    except ValueError as error:
        assert str(tmp_path) in str(error)


RUN = {"flags": {"learning_rate": {"value": 1.0, "from": "default"}}, "records": "a"}
BEST = {"evaluations": [{"step": 3, "value": 0.5}, {"step": 4, "value": None}]}


@fuzzed(st.tuples(bytes_of(RUN), bytes_of({"step": 1, "loss": 2.0}), bytes_of(BEST)))
def test_a_run(tmp_path, data):
    for name, content in zip(("config.json", "metrics.jsonl", "best.json"), data, strict=True):
        (tmp_path / name).write_bytes(content + b"\n")
    (tmp_path / "model.ckpt-4.index").write_bytes(b"")
    run = run_directory.RunDirectory(str(tmp_path))
    for read in (
        lambda: run.check_config({"learning_rate": 1.0}, "a"),
        lambda: sorted(record["step"] for record in run.metrics()),
        run.evaluations,
        lambda: run_directory.best_kept_step(
            str(tmp_path), run_directory.read_evaluations(str(tmp_path))
        ),
    ):
        try:
            read()
        except flags.FlagError as error:
            assert str(tmp_path) in str(error)


PROGRAM = {"batch_size": 2, "num_shards": 1, "step_sha256": "0" * 64}


@fuzzed(st.tuples(bytes_of(PROGRAM), st.binary(max_size=40)))
def test_an_exported_program(tmp_path, xla_runtime, data):
    (tmp_path / "program.json").write_bytes(data[0])
    (tmp_path / "step.stablehlo").write_bytes(data[1])
    with pytest.raises(ValueError, match=str(tmp_path)):
        exported_program.load(str(tmp_path))


CLUSTER = {
    "cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "evaluator": {"0": "d:1"}},
    "task": {"type": "worker", "index": 1},
    "model_dir": "a", "session_master": "", "service": {},
}  # fmt: skip


@fuzzed(bytes_of(CLUSTER).map(lambda data: data.decode("utf-8", "ignore").replace("\0", "")))
def test_tf_config(data):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TF_CONFIG", data.encode("utf-8", "ignore").decode())
        try:
            task = cluster_task.of_tf_config()
            assert task.index >= 0
            assert isinstance(task.is_chief, bool) and task.num_ps_replicas >= 0
            assert task.global_id is None or task.global_id >= 0
            task.hosts()
        except (TypeError, ValueError) as error:
            assert "TF_CONFIG" in str(error)


@pytest.mark.parametrize(
    "config", [pretraining_config.PretrainingConfig, classification_config.ClassificationConfig]
)
@fuzzed(
    st.lists(
        st.tuples(
            st.integers(0, 10**6), st.one_of(NUMBERS.map(str), st.text(max_size=20), st.just(""))
        ),
        max_size=4,
    )
)
def test_flags(config, data):
    names = [field.name for field in flags.of(config)]
    argv = [f"--{names[number % len(names)]}={value}" for number, value in data]
    try:
        values, _ = read_command_line(config, ["script", *argv])
    except flags.FlagError as error:
        assert str(error)
    else:
        for value in values.values():
            assert not isinstance(value, int | float) or abs(value) <= 1.8e308


@fuzzed(st.tuples(damaged(b"a\tb\nc\xc3\xa9\td\r\n\n\0\te" * 9), st.integers(1, 50)))
def test_lines(data):
    class Slow(io.BytesIO):
        """Gives a few bytes at a time, as a pipe may."""

        def read1(self, size):
            return super().read1(min(size, data[1]))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commands, "LONGEST_LINE", 25)
        found = [line for part in commands.arriving(Slow(data[0])) for line in part]
    expected = data[0].split(b"\n")
    expected = expected if expected[-1] else expected[:-1]
    assert found == [line if len(line) <= 25 else None for line in expected]
    for line in found:
        for is_pair in (True, False):
            try:
                assert commands.text_of(line, is_pair)[0] is not None or line == b""
            except (commands.LineError, IndexError) as error:
                assert isinstance(error, commands.LineError) or line in (b"", b"\r")
