"""Files that cannot work, for every command: what is said of each.

A row is the content of a file that a command reads, and what the message says; a message that
begins with ":" comes after the file's name.
"""

import gzip
import json
import shutil

import commands
import pytest
from fixtures import DATA


def hf_config(**changes):
    values = json.loads((DATA / "hf_classifier" / "config.json").read_text())
    return json.dumps({**values, **changes}).encode()


# Every file of JSON is damaged in all of these ways. A file below output/ is of an earlier run.
JSON_FILES = [
    ("pretraining", "run_pretraining/bert_config.json"),
    ("pretraining", "run_pretraining/manifest.train.tfrecord.json"),
    ("pretraining", "output/config.json"),
    ("classifier", "run_classifier/bert_config.json"),
    ("classifier", "output/config.json"),
    ("squad", "run_squad/bert_config.json"),
    ("squad", "run_squad/train.json"),
    ("squad", "run_squad/dev.json"),
    ("convert", "hf_classifier/config.json"),
    ("convert", "sharded/model.safetensors.index.json"),
    ("convert", "no_vocab/tokenizer.json"),
    ("convert", "hf_classifier/tokenizer_config.json"),
    ("convert", "tf1/task.json"),
    ("pretraining", "tf1/task.json"),
    ("classifier", "tf1/task.json"),
    ("squad", "tf1/task.json"),
    ("run_program", "program/program.json"),
]

BAD_JSON = [
    (b"", ": is not JSON: Expecting value"),
    (b"{", ": is not JSON: Expecting property name"),
    (b'["a"]', "ust be an object, not "),  # a file of questions may be an array, but not of strings
    (b"3", ": must be an object, not 3"),
    (b"null", ": must be an object, not null"),
    (b"[" * 100_000, ": is not JSON of at most 64 levels: it is nested deeper"),
    (b'{"a":' * 100_000, ": is not JSON of at most 64 levels: it is nested deeper"),
    (b"\x80\x02}q\0.", ": is not JSON: byte 0 is not UTF-8 (invalid start byte)"),
    ("{}".encode("utf-16"), ": is not JSON: byte 0 is not UTF-8 (invalid start byte)"),
    (b'{"vocab_size": 1' + b"0" * 5000 + b"}", ": is not JSON: Exceeds the limit"),
]

BAD_FILES = {
    ("pretraining", "run_pretraining/bert_config.json"): [
        (b"{}", ": the key 'vocab_size' is missing"),
        (b'{"vocab_size": "45"}', ": vocab_size='45' must be a positive integer."),
        (b'{"vocab_size": 1e400}', ": vocab_size=inf must be a positive integer."),
        (b'{"vocab_size": 45, "hidden_act": ["gelu"]}', ": hidden_act=['gelu'] is not known; ch"),
        (b'{"vocab_size": 45, "num_hidden_layers": 5000}', ": num_hidden_layers=5000 must be at"),
        (b'{"vocab_size": 45, "hidden_dropout_prob": NaN}', ": hidden_dropout_prob=nan must be"),
        (b'{"vocab_size": 45, "initializer_range": Infinity}', ": initializer_range=inf must be"),
        (b'{"vocab_size": 45, "more": 1}', ": unknown key 'more'; did you mean 'layer_norm_eps'?"),
        (b'{"vocab_size": 45, "max_position_embeddings": 2}', "--max_seq_length=16: cannot be m"),
    ],
    ("pretraining", "run_pretraining/manifest.train.tfrecord.json"): [
        (b'{"format_version": "1"}', ': format_version: must be a whole number, not "1"). Creat'),
        (b'{"format_version": 2}', ": the key 'files' is missing"),
        (b'{"format_version": 4}', ": the format version is 4, but this program reads 1 to 3. "),
        (b'{"format_version": 1, "files": 3}', ": files: must be a list, not 3). Create the dat"),
        (b'{"format_version": 1, "files": []}', ": the key 'max_seq_length' is missing"),
        (b'{"format_version": 1, "files": [{"more": 3}]}', ": files: the key 'more' is unknown)"),
    ],
    ("pretraining", "run_pretraining/train.tfrecord"): [
        (b"", ": 0 records in 0 bytes, but {folder}/run_pretraining/manifest.train.tfrecord.jso"),
        (b"x" * 9, ": record 0 (byte 0) goes on beyond the end of the file (9 bytes): the file"),
        (b"\xff" * 999, ": record 0 (byte 0): the record's length is damaged, or this is not a"),
        (b"\0" * 999, ": record 0 (byte 0): the record's length is damaged, or this is not a TF"),
        (gzip.compress(b"a" * 999, mtime=0), ": is compressed (GZIP), but records are read in a"),
    ],
    ("pretraining", "output/config.json"): [
        (b'{"flags": 3}', ": flags: must be an object, not 3"),
        (b'{"flags": {"x": 1}}', ": x: must be an object, not 1"),
        (b'{"flags": {"x": {"value": 1}}}', ": x: the key 'from' is missing; it must be a strin"),
    ],
    ("classifier", "run_classifier/vocab.txt"): [
        (b"", ": its 0 lines lack [PAD], [UNK], [CLS], [SEP], [MASK]. A BERT vocabulary must ha"),
        (b"[PAD]", ": its 1 lines lack [UNK], [CLS], [SEP], [MASK]. A BERT vocabulary must have"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n\na", ":6: the line is empty. Each line must hol"),
        (b"[PAD]\n[PAD]", ":2: the token '[PAD]' is on line 1 too. Each token must occur once."),
        (b"\xff\xfe", ":1: byte 0 of the file is not UTF-8 (invalid start byte). A vocabulary i"),
        (b"\xef\xbb\xbf[PAD]", ":1: the file starts with a byte order mark, which would become"),
        (b"\0" * 99, ":1: the token '\\x00\\x00"),
        (b"[PAD]\na\0b", ":2: the token 'a\\x00b' has a NUL, which no text has. Is the"),
    ],
    ("classifier", "run_classifier/spm.model"): [
        (b"", "--vocab_file: {folder}/run_classifier/spm.model: is not a SentencePiece model ("),
        (b"\xff" * 99, ": is not a SentencePiece model ("),
        (b"[PAD]\n[UNK]\n", ": is not a SentencePiece model ("),
    ],
    ("classifier", "run_classifier/train.tsv"): [
        (b"", ": has 0 rows; give a file with at least one"),
        (
            b"sentence1\tsentence2\tlabel\na\tb\n",
            ":2: has no column 'label'; it has sentence1, sentence2",
        ),
        (b"sentence1\tsentence2\tlabel\na\tb\tc\td\n", ":2: the label is 'c' here and in all ot"),
        (b"sentence1\tsentence2\tlabel\na\tb\t\n", ":2: neither this row nor a later one has a"),
        (b"sentence1\tsentence2\tlabel\na\t\xff\tx\n", ":2: is not UTF-8 at byte 3 of the line"),
        (b"\0\0\0", ":1: is not text: it has a NUL. If the file is UTF-16, give --encoding="),
        (b"a\ta\n", ":1: the header names 'a' twice"),
        ("sentence1\tlabel".encode("utf-16"), ":1: is not UTF-8 at byte 1 of the line (invalid"),
    ],
    ("classifier", "run_classifier/own.jsonl"): [
        (b"[" * 100_000, ": is not JSON of at most 64 levels: it is nested deeper"),
        (b"[]", ": has 0 rows; give a file with at least one"),
        (b"[3]", ":1: is not a JSON object; it must have a key for each column"),
        (b"3", ":1: is not a JSON object; it must have a key for each column"),
        (b"{", ":1: is not JSON: Expecting property name enclosed in double quotes: line 1 colu"),
        (b"\x80\x02}q\0.", ":1: is not UTF-8 at byte 1 of the line (invalid start byte). Give i"),
        (b'{"text": "a"}', ": its columns are text, which does not include any of the usual"),
        (b'{"text": "a", "label": null}', ":1: the label is null; it must be a text, a number,"),
        (b'{"text": "\\ud800", "label": "x"}', ":1: is not JSON: a \\u escape is half of a char"),
    ],
    ("classifier", "run_classifier/own.csv"): [
        (b'a,"b', ":1: is not CSV: "),
        (b'text,label\n"a"b,1\n', ":2: is not CSV: "),
        (b"text,label\n" + b"a" * (1 << 25) + b",1\n", ":2: is not CSV: field larger than field"),
    ],
    ("convert", "hf_classifier/config.json"): [
        (b"{}", "  and 190 more"),  # of a network of the default sizes
        (
            b'{"model_type": 3}',
            ": model_type=3, but the network supports 'bert', 'albert', 'electra' only",
        ),
        (b'{"hidden_act": ["gelu"]}', ': hidden_act: must be a string, not ["gelu"]'),
        (b'{"hidden_act": "none"}', ": hidden_act='none' is not known; known are gelu_new, gelu"),
        (b'{"hidden_size": "8"}', ": hidden_size='8' must be a positive integer."),
        (b'{"is_decoder": true}', ": is_decoder=True, but the network supports False only"),
        (hf_config(problem_type=["x"]), ': problem_type: must be a string, not ["x"]'),
        (hf_config(id2label=[1]), ": id2label: must be an object, not [1]"),
        (
            hf_config(id2label={"0": [], "1": "b", "2": "c"}),
            ": id2label: must be a string, not []",
        ),
    ],
    ("convert", "hf_classifier/model.safetensors"): [
        (b"", ": is not a complete safetensors file: "),
        (b"\0" * 99, ": is not a complete safetensors file: "),
        (b"\xff" * 99, ": is not a complete safetensors file: "),
        ((1 << 60).to_bytes(8, "little") + b"{}", ": is not a complete safetensors file: "),
        ((2).to_bytes(8, "little") + b"{}", "  and 27 more"),
        ((99).to_bytes(8, "little") + b"[" * 99, ": is not a complete safetensors file: "),
    ],
    ("convert", "sharded/model.safetensors.index.json"): [
        (b'{"weight_map": []}', ": weight_map: must be an object, not []"),
        (b'{"weight_map": {"a": []}}', ": weight_map[0]: must be a string, not []"),
        (b'{"weight_map": {"a": "../tf1/vocab.txt"}}', ": the name '../tf1/vocab.txt' is not th"),
        (b'{"weight_map": {"a": "none"}}', ": names none, which is missing"),
    ],
    ("convert", "no_vocab/tokenizer.json"): [
        (b'{"model": []}', ": model: must be an object, not []"),
        (b'{"model": {"type": "WordPiece", "vocab": []}}', ": vocab: must be an object, not []"),
        (b'{"model": {"type": "WordPiece", "vocab": {"a": "0"}}}', ": the id of 'a': must be a"),
        (b'{"model": {"type": "WordPiece", "vocab": {"a": 7}}, "added_tokens": [3]}',
         ": added_tokens[0]: must be an object, not 3"),
    ],
    ("convert", "tf1/task.json"): [
        (b'{"labels": 3}', ": labels: must be a list, not 3"),
        (b'{"labels": ["a", "a"]}', ": labels: a label occurs twice"),
        (b'{"kind": "none"}', ": kind must be one of classification, multi_label, regression, t"),
        (b'{"do_lower_case": 1}', ": do_lower_case: must be true or false, not 1"),
        (b'{"max_seq_length": -1}', ": max_seq_length must be positive, not -1"),
    ],
    ("convert", "tf1/bert_model.ckpt.index"): [
        (b"", ": the checkpoint cannot be read: "),
        (b"\0" * 99, ": the checkpoint cannot be read: "),
        (b"\xff" * 4574, ": the checkpoint cannot be read: "),
    ],
    ("convert", "tf1/bert_model.ckpt.data-00000-of-00001"): [
        (b"", ": bert/embeddings/LayerNorm/beta cannot be read: "),
        (b"\0" * 99, ": bert/embeddings/LayerNorm/beta cannot be read: "),
    ],
    ("convert", "a.zip"): [
        (b"", ": is not a zip archive. Give an archive, a directory, or a checkpoint's path wit"),
        (b"PK", ": is not a zip archive. Give an archive, a directory, or a checkpoint's path w"),
        (b"PK\5\6" + bytes(18), ": holds neither a TF1 checkpoint (*.index) nor Hugging Face's"),
        (b"PK\3\4" * 99, ": is not a zip archive. Give an archive, a directory, or a checkpoint"),
    ],
    ("run_program", "program/program.json"): [
        (b"{}", ": the key 'batch_size' is missing; it must be a whole number"),
        (b'{"batch_size": 1, "num_shards": 1, "step_sha256": 3}',
         ": step_sha256: must be a string, not 3"),
    ],
    ("legacy", "script.py"): [
        (b"\0", ": is not Python: "),
        (b"def (:", ": is not Python: "),
        (b"x = '\xff'", ": is not Python: "),
        (b"(" * 9999, ": is not Python: "),
    ],
    ("text", "text.txt"): [
        (b"", ": every line is empty. Give text with one sentence a line and an empty line betw"),
        (b"\xff", ": byte 0 is not UTF-8 (invalid start byte). Convert the file to UTF-8 (for i"),
        (b'{"text": 1}', ":1: text: must be a string, not 1"),
    ],
    ("vocabulary", "text.txt"): [
        (b'<doc id="1">\nw1\n', ": ends within the document that begins in line 1. Extract the"),
        (b" \n \n", ": every line is empty. Give text with one sentence a line and an empty lin"),
        (b"\0\n", ":1: is not text: byte 0 is NUL. If the file is packed, unpack it first; if it"),
        (b"\1\n", "the text to train a vocabulary from does not have words. Give more text."),
    ],
    ("records", "text.txt"): [
        (b"a", "the text (documents: 1, tokens: 1) gives 0 instances: an instance needs two tok"),
    ],
}  # fmt: skip


CASES = [
    *((c, name, *row) for c, name in JSON_FILES for row in BAD_JSON),
    *((c, name, *row) for (c, name), rows in BAD_FILES.items() for row in rows),
]


@pytest.fixture(scope="module")
def inputs(inputs):
    for name, files in {
        "sharded": ["config.json"],
        "no_vocab": ["config.json", "model.safetensors"],
        "program": [],
        "output": [],
    }.items():
        (inputs / name).mkdir()
        for file in files:
            shutil.copyfile(DATA / "hf_classifier" / file, inputs / name / file)
    return inputs


def arguments(command, inputs, name, output):
    """Returns the arguments of a command that reads a file of the inputs."""
    argv = commands.arguments(command, inputs, output)
    if command == "convert":
        argv[0] = str(inputs / name.partition("/")[0])
    if name == "tf1/task.json" and command != "convert":
        argv.append(f"--init_checkpoint={inputs}/tf1")
    if name.endswith(".model"):
        argv.append(f"--vocab_file={inputs}/{name}")
    if "own" in name:
        argv.append(f"--train_file={inputs}/{name}")
    return argv


def test_there_are_many_cases():
    assert len({(command, name, content) for command, name, content, _ in CASES}) >= 200


@pytest.mark.parametrize(
    ("command", "name", "content", "message"),
    [
        pytest.param(*case, id=ascii(f"{case[0]} {case[1]} {case[2][:30]} {number}"))
        for number, case in enumerate(CASES)
    ],
)
def test_a_bad_file(inputs, tmp_path, monkeypatch, command, name, content, message):
    monkeypatch.chdir(tmp_path)
    path = inputs / name
    output = tmp_path / "output"
    if name.startswith("output"):
        output = inputs / "output"
        (output / "model.ckpt-4.index").write_bytes(b"")
    before = path.read_bytes() if path.exists() else None
    path.write_bytes(content)
    try:
        code, err = commands.call(command, arguments(command, inputs, name, output))
    finally:
        path.unlink() if before is None else path.write_bytes(before)
    assert (code, "Traceback" in err) == (2, False), err
    wanted = message.format(folder=inputs, output=output) if "{folder}" in message else message
    place = path if "/" in name and "ckpt" not in name else inputs / name.partition("/")[0]
    assert (f"{place}{wanted}" if wanted[0] == ":" else wanted) in err.splitlines()[-1]
