"""Input files that cannot be read, for every command: exit code 2, before anything is begun."""

import os
import shutil

import capabilities
import commands
import pytest

# Files, and flags that name them besides the command's own arguments.
FILES = [
    ("pretraining", "run_pretraining/bert_config.json", ()),
    ("pretraining", "run_pretraining/train.tfrecord", ()),
    ("pretraining", "run_pretraining/manifest.train.tfrecord.json", ()),
    ("pretraining", "run_pretraining/vocab.txt", ("vocab_file=run_pretraining/vocab.txt",)),
    ("pretraining", "tf1", ("init_checkpoint=tf1",)),
    ("pretraining", "tf1/bert_model.ckpt.index", ("init_checkpoint=tf1/bert_model.ckpt",)),
    (
        "pretraining",
        "tf1/bert_model.ckpt.data-00000-of-00001",
        ("init_checkpoint=tf1/bert_model.ckpt",),
    ),
    ("classifier", "run_classifier/bert_config.json", ()),
    ("classifier", "run_classifier/vocab.txt", ()),
    ("classifier", "run_classifier/train.tsv", ()),
    ("classifier", "run_classifier/dev.tsv", ()),
    ("classifier", "tf1", ("init_checkpoint=tf1",)),
    ("classifier", "hf_classifier/model.safetensors", ("init_checkpoint=hf_classifier",)),
    ("squad", "run_squad/bert_config.json", ()),
    ("squad", "run_squad/vocab.txt", ()),
    ("squad", "run_squad/train.json", ()),
    ("squad", "run_squad/dev.json", ()),
    ("squad", "config.txt", ("config=config.txt",)),
    ("pretraining", "tf1/task.json", ("init_checkpoint=tf1",)),
    ("classifier", "tf1/task.json", ("init_checkpoint=tf1",)),
    ("squad", "tf1/bert_config.json", ("init_checkpoint=tf1",)),
    ("classifier", "hf_classifier/tokenizer_config.json", ("init_checkpoint=hf_classifier",)),
    ("convert", "tokenizer.json", ("bert_config_file=tokenizer.json",)),
    ("convert", "words.txt", ("vocab_file=words.txt",)),
    ("embed", "tokenizer.json", ("bert_config_file=tokenizer.json",)),
    ("embed", "words.txt", ("vocab_file=words.txt",)),
    ("embed", "hf_classifier/tokenizer_config.json", ()),
    ("serve", "hf_classifier/config.json", ()),
    ("text", "text.txt", ()),
    ("vocabulary", "text.txt", ()),
    ("records", "text.txt", ()),
    ("records", "vocab.txt", ()),
    ("convert", "hf_classifier", ()),
    ("convert", "hf_classifier/config.json", ()),
    ("convert", "hf_classifier/model.safetensors", ()),
    ("convert", "hf_classifier/vocab.txt", ()),
    ("embed", "text.txt", ()),
    ("embed", "hf_classifier", ()),
    ("embed", "hf_classifier/model.safetensors", ()),
    ("embed", "hf_classifier/vocab.txt", ()),
    ("fill", "tf1/vocab.txt", ()),
    ("predict", "exported", ()),
    ("serve", "text.txt", ("token_file=text.txt",)),
    ("serve", "hf_classifier", ()),
    ("serve", "hf_classifier/model.safetensors", ()),
    ("serve", "hf_classifier/vocab.txt", ()),
    ("legacy", "script.py", ()),
    ("run_program", "program", ()),
    ("run_program", "program/program.json", ()),
]


def no_mode(path):
    path.chmod(0)


def directory(path):
    remove(path)
    path.mkdir()


def dangling_link(path):
    remove(path)
    path.symlink_to("absent")


def link_loop(path):
    remove(path)
    path.symlink_to(path.name)


def fifo(path):
    remove(path)
    os.mkfifo(path)


def empty(path):
    remove(path)
    path.write_bytes(b"")


def io_error(path):
    """A file whose reading fails: nothing is mapped at the first byte of a process."""
    remove(path)
    path.symlink_to("/proc/self/mem")


def remove(path):
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


KINDS = (no_mode, directory, dangling_link, link_loop, fifo, empty, io_error)
# a text without lines, and a program that does nothing
EMPTY_IS_FINE = (("embed", "text.txt"), ("legacy", "script.py"))
FOLDERS = ("tf1", "hf_classifier", "exported", "program")


def cases():
    for command, name, extra in FILES:
        for kind in KINDS:
            if name in FOLDERS and kind in (directory, empty, fifo, io_error):
                continue  # what other tests have, or the same
            if kind is empty and (command, name) in EMPTY_IS_FINE:
                continue
            if name.endswith(("script.py", "text.txt")) and kind is fifo:
                continue  # It can be read, when somebody writes to it.
            if (command, name) == ("text", "text.txt") and kind is directory:
                continue
            yield pytest.param(command, name, extra, kind, id=f"{command}-{name}-{kind.__name__}")


@pytest.fixture(scope="module")
def original(inputs):
    for name in ("exported", "program"):
        (inputs / name).mkdir()
    (inputs / "program" / "program.json").write_text("{}")
    (inputs / "exported" / "saved_model.pb").write_text("")
    for name in ("config.txt", "words.txt", "tokenizer.json"):
        (inputs / name).write_text("")
    (inputs / "tf1" / "task.json").write_text("{}")
    (inputs / "hf_classifier" / "tokenizer_config.json").write_text("{}")
    return inputs


@pytest.mark.parametrize(("command", "name", "extra", "make"), list(cases()))
def test_an_input_that_cannot_be_read(original, tmp_path, monkeypatch, command, name, extra, make):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "inputs"
    shutil.copytree(original, folder)
    make(folder / name)
    argv = [*commands.arguments(command, folder, tmp_path / "output")]
    flags = [(flag, folder / value) for flag, value in (each.split("=") for each in extra)]
    argv += [f"--{flag}={path}" for flag, path in flags]
    try:
        with capabilities.modes_hold():
            code, err = commands.call(command, argv)
    finally:
        if make is no_mode:
            (folder / name).chmod(0o755)
    assert (code, "Traceback" in err, "resumes" in err) == (2, False, False), err
    last = err.splitlines()[-1]
    assert "[Errno" not in err
    assert str(folder / name.partition("/")[0]) in last or "--" in last, err
    assert not list(tmp_path.glob("output/model.ckpt*"))
