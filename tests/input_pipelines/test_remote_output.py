import os
import tempfile

import kills
import locked
import pytest
from commands import MAINS

from bert_estimator import storage
from bert_estimator.tokenization import load_vocab
from input_pipelines import creation, remote_output


@pytest.fixture
def url(tmp_path, monkeypatch):
    """Gives a remote directory, and has temporary directories made in the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return f"ram:/{tmp_path}"


def left(tmp_path):
    """Returns the directories of this machine that are left, and what is in them."""
    return sorted(
        os.path.relpath(os.path.join(folder, name), tmp_path / "tmp")
        for folder, _, names in os.walk(tmp_path / "tmp")
        for name in names
    )


def test_a_text_and_a_vocabulary_are_those_of_this_machine(url, text_file, tmp_path, capsys):
    for folder in (str(tmp_path), url):
        text = f"{folder}/corpus.txt"
        assert MAINS["text"](["text", f"--input_file={text_file}", f"--output_file={text}"]) == 0
        assert f"words) in {text}." in capsys.readouterr().out
        made = [f"--input_file={text}", f"--vocab_file={folder}/vocab.txt", "--vocab_size=40"]
        assert MAINS["vocabulary"](["vocabulary", *made]) == 0
        assert capsys.readouterr().out.startswith(f"40 tokens in {folder}/vocab.txt")
    for name in ("corpus.txt", "vocab.txt"):
        assert storage.read(f"{url}/{name}") == (tmp_path / name).read_bytes()
    assert len(load_vocab(str(tmp_path / "vocab.txt"))) == 40
    assert not os.listdir(tmp_path / "tmp")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("abc://a/b.txt", "abc://a: this TensorFlow does not know abc://"),
        ("{url}/", "={url}/: is not a file's name"),
        ("{url}/text.txt", "={url}/text.txt: would replace {url}/text.txt, which this command"),
    ],
)
@pytest.mark.parametrize(("name", "flag"), [("text", "output_file"), ("vocabulary", "vocab_file")])
def test_wrong_names(url, text_file, capsys, name, flag, output, message):
    storage.upload(text_file, f"{url}/text.txt")
    argv = [name, f"--input_file={url}/text.txt", f"--{flag}={output.format(url=url)}"]
    assert MAINS[name](argv) == 2
    printed = capsys.readouterr().err
    assert f"--{flag}" in printed and message.format(url=url) in printed
    assert storage.files(url).keys() == {"text.txt"}


def creation_argv(url, text_file, vocab_file, *others):
    return [
        "data", f"--input_file={text_file}", f"--vocab_file={vocab_file}",
        f"--output_file={url}/out-0.tfrecord,{url}/out-1.tfrecord", "--max_seq_length=16",
        "--max_predictions_per_seq=4", "--num_workers=1", *others,
    ]  # fmt: skip


def test_a_killed_creation_resumes_on_the_same_machine(
    url, text_file, vocab_file, tmp_path, monkeypatch, capsys
):
    main, pieces = MAINS["records"], []
    serializer = creation.serializer

    def counted(*args, **kwargs):
        pieces.append(args)
        return serializer(*args, **kwargs)

    monkeypatch.setattr(creation, "serializer", counted)
    assert main(creation_argv(f"{url}/whole", text_file, vocab_file)) == 0
    assert not os.listdir(tmp_path / "tmp")
    whole = len(pieces)
    with monkeypatch.context() as patch, pytest.raises(kills.Killed):
        kills.kill_before(patch, creation, "serializer", lambda *_: len(pieces) == 2 * whole - 1)
        main(creation_argv(f"{url}/killed", text_file, vocab_file))
    assert len(pieces) == 2 * whole - 1 and left(tmp_path)
    assert not storage.files(f"{url}/killed")
    assert main(creation_argv(f"{url}/killed", text_file, vocab_file)) == 0
    assert len(pieces) == 2 * whole
    assert not os.listdir(tmp_path / "tmp")
    for name in (whole_files := storage.files(f"{url}/whole")):
        if not name.startswith("manifest."):
            assert storage.read(f"{url}/killed/{name}") == storage.read(f"{url}/whole/{name}")
    assert whole_files.keys() == storage.files(f"{url}/killed").keys()


def test_an_error_leaves_nothing_behind(url, vocab_file, tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n")
    assert MAINS["records"](creation_argv(url, tmp_path / "empty.txt", vocab_file)) == 2
    assert "empty.txt: every line is empty" in capsys.readouterr().err
    assert not os.listdir(tmp_path / "tmp") and not storage.files(url)


def test_two_processes_of_a_machine(url, text_file, vocab_file, tmp_path, capsys):
    with remote_output.records_written_here(f"{url}/a.tfrecord", None) as (path, _):
        folder = os.path.dirname(path)
    argv = [*creation_argv(url, text_file, vocab_file), f"--output_file={url}/a.tfrecord"]
    os.makedirs(folder)
    with locked.by_another(os.path.join(folder, ".lock")):
        assert MAINS["records"](argv) == 2
    assert f"{url} {locked.WHO}" in capsys.readouterr().err
