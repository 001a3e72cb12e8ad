import contextlib
import errno
import itertools
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile

import bucket
import fixtures
import forked
import kills
import locked
import pytest
import tensorflow.compat.v1 as tf
from commands import MAINS

from bert_estimator.storage import remote, staging
from bert_estimator.system import paths
from input_pipelines import create_pretraining_data, create_text, create_vocabulary
from input_pipelines.creation import pools, pretraining_records, stages
from input_pipelines.records.pretraining_features import open_pretraining_records
from input_pipelines.text import segmenters


@pytest.fixture(autouse=True)
def no_power_is_lost(monkeypatch):
    """Spares these tests two thirds of their time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


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
    remote.upload(text_file, f"{url}/text.txt")
    argv = [name, f"--input_file={url}/text.txt", f"--{flag}={output.format(url=url)}"]
    assert MAINS[name](argv) == 2
    printed = capsys.readouterr().err
    assert f"--{flag}" in printed and message.format(url=url) in printed
    assert remote.files(url).keys() == {"text.txt"}


COMMANDS = {
    "text": ("text", "output_file", "corpus.txt", []),
    "vocabulary": ("vocabulary", "vocab_file", "vocab.txt", ["--vocab_size=40"]),
    "static": (
        "records",
        "output_file",
        "a.tfrecord",
        ["--masking=static", "--eval_fraction=0.5", "--dupe_factor=2"],
    ),
    "dynamic": ("records", "output_file", "a.tfrecord", ["--num_shards=3", "--num_workers=1"]),
}
MAKERS = {
    "text": (create_text, "_write"),
    "vocabulary": (create_vocabulary, "count_words"),
    "records": (create_pretraining_data, "_write"),
}


@pytest.fixture
def arguments(text_file, vocab_file):
    """Returns a function that gives the arguments of one of `COMMANDS` for a directory."""

    def of(kind, directory, name=None):
        main, flag, file, given = COMMANDS[kind]
        if main == "records":
            given = [f"--vocab_file={vocab_file}", "--max_seq_length=16", *given]
            given.append("--max_predictions_per_seq=4")
        return [f"--input_file={text_file}", f"--{flag}={directory}/{name or file}", *given]

    return of


@pytest.fixture
def command(arguments):
    """Returns a function that calls one of `COMMANDS` for a remote directory."""

    def call(kind, directory, *others, name=None):
        main = COMMANDS[kind][0]
        return MAINS[main]([main, *arguments(kind, directory, name), *others])

    return call


def call_number(number):
    """Returns a function of a call that says whether it is the one of a number, from 1."""
    calls = itertools.count(1)
    return lambda *_: next(calls) == number


@pytest.fixture
def fails_to_make(monkeypatch):
    """Returns a context in which a command cannot make its files, only upload them."""

    @contextlib.contextmanager
    def patched(kind):
        with monkeypatch.context() as patch:
            kills.kill_before(patch, *MAKERS[COMMANDS[kind][0]], lambda *_: True)
            yield

    return patched


def contents(url):
    """Returns the files of a remote directory, but for the checksums' times in their manifests."""
    return {name: remote.read(f"{url}/{name}") for name in remote.files(url)}


@pytest.fixture
def whole(url, command):
    """Returns a function that gives what a command makes that is not killed."""

    def made(kind):
        assert command(kind, f"{url}/whole") == 0
        return contents(f"{url}/whole")

    return made


@pytest.mark.parametrize("kind", COMMANDS)
def test_remote_files_are_those_of_this_machine(
    url, command, text_file, vocab_file, kind, monkeypatch, tmp_path, capsys
):
    """What is read may be remote, too. Manifests are uploaded after what they name."""
    (tmp_path / "here").mkdir()
    assert command(kind, tmp_path / "here") == 0
    read = {"--input_file": text_file}
    if "a.tfrecord" in COMMANDS[kind]:
        read["--vocab_file"] = vocab_file
    for path in read.values():
        remote.upload(path, f"{url}/in/{os.path.basename(path)}")
    upload, uploaded = remote.upload, []
    monkeypatch.setattr(
        remote, "upload", lambda *paths: uploaded.append(paths[1]) or upload(*paths)
    )
    capsys.readouterr()
    flags = [f"{flag}={url}/in/{os.path.basename(path)}" for flag, path in read.items()]
    assert command(kind, f"{url}/data", *flags) == 0
    assert f" in {url}/data/" in capsys.readouterr().out or kind == "dynamic"
    names = [name.removeprefix(f"{url}/data/") for name in uploaded]
    assert sorted(names) == sorted(os.listdir(tmp_path / "here"))
    are_manifests = [name.startswith("manifest.") for name in names]
    assert are_manifests == sorted(are_manifests)
    for name in names[: are_manifests.count(False)]:
        assert remote.read(f"{url}/data/{name}") == (tmp_path / "here" / name).read_bytes()
    if kind in ("static", "dynamic"):
        assert kind == "dynamic" or names[-1] == "manifest.a.tfrecord.json"
        assert open_pretraining_records(f"{url}/data/a*", 16, 4).num_records > 0


@pytest.mark.parametrize("kind", COMMANDS)
def test_files_that_are_complete_are_not_made_again_after_a_kill(
    url, command, whole, fails_to_make, kind, monkeypatch, tmp_path, capsys
):
    """The kill is before the first, another and the last file of the upload."""
    expected = whole(kind)
    printed = capsys.readouterr().out
    for number in sorted({0, len(expected) // 2, len(expected) - 1}):
        target = f"{url}/killed-{number}"
        with monkeypatch.context() as patch, pytest.raises(kills.Killed):
            kills.kill_before(patch, remote, "upload", call_number(number + 1))
            command(kind, target)
        assert len(remote.files(target)) == number and left(tmp_path)
        with fails_to_make(kind):
            assert command(kind, target) == 0
        assert contents(target) == expected
        assert not os.listdir(tmp_path / "tmp")
        captured = capsys.readouterr()
        assert captured.out == printed.replace(f"{url}/whole", target)
        assert "are complete: they are uploaded as they are." in captured.err


@pytest.mark.parametrize("kind", COMMANDS)
def test_an_upload_without_the_right_to_it_keeps_the_files_and_says_where(
    url, command, whole, fails_to_make, kind, monkeypatch, tmp_path, capsys
):
    expected, target, copy = whole(kind), f"{url}/refused", tf.io.gfile.copy

    def refuse(source, to, **options):
        if paths.is_remote(to):
            raise tf.errors.PermissionDeniedError(None, None, "no rights")
        copy(source, to, **options)

    with monkeypatch.context() as patch:
        patch.setattr(tf.io.gfile, "copy", refuse)
        for _ in range(2):
            assert command(kind, target) == 2
            (folder,) = os.listdir(tmp_path / "tmp")
            error = capsys.readouterr().err.splitlines()[-1]
            assert f": {target}/" in error and ": access is denied (no rights)" in error
            assert error.endswith(
                f"The files are complete, and kept on this machine in {tmp_path}/tmp/{folder}: the "
                "same command uploads them without making them again"
            )
    with fails_to_make(kind):
        assert command(kind, target) == 0
    assert contents(target) == expected and not os.listdir(tmp_path / "tmp")


@pytest.mark.parametrize("when", ["while it is made", "before its upload"])
@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_command_that_cannot_work_leaves_the_work_of_a_killed_one(
    url, command, whole, kind, when, monkeypatch, tmp_path, vocab_file, capsys
):
    expected, target = whole(kind), f"{url}/killed"
    place = (remote, "upload") if when == "before its upload" else (stages, "join_pieces")
    with monkeypatch.context() as patch, pytest.raises(kills.Killed):
        kills.kill_before(patch, *place, lambda *_: True)
        command(kind, target)
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "other.txt").write_text("[UNK]\n")
    wrong = {
        f"--input_file={tmp_path}/missing*.txt": "no file matches",
        f"--input_file={tmp_path}/empty.txt": "documents"
        if kind == "static"
        else "every line is empty",
        f"--vocab_file={tmp_path}/missing.txt": "missing.txt",
        f"--vocab_file={tmp_path}/other.txt": "other.txt",
        "--eval_fraction=2": "must be 0 or more, and less than 1",
        "--eval_fraction=0.999999": "Give less, or more text",
        "--max_seq_length=2": "max_seq_length",
        "--masked_lm_prob=7": "masked_lm_prob",
    }
    before = left(tmp_path)
    for flag, message in wrong.items():
        assert command(kind, target, flag) == 2
        printed = capsys.readouterr().err
        assert message in printed
        # What a flag alone says is known before the work is looked for.
        is_of_flag = flag.startswith(("--eval_fraction=2", "--max_seq_length", "--masked_lm_prob"))
        assert is_of_flag or f"Unfinished work for {target}/a.tfrecord is kept" in printed
        assert set(before) - set(left(tmp_path)) == set()
    pieces = []
    with monkeypatch.context() as patch:
        kills.kill_before(patch, stages, "serializer", lambda *args: pieces.append(args))
        assert command(kind, target) == 0
    # The kill was before the held-out records were joined.
    assert len(pieces) == (kind == "static" and when == "while it is made")
    assert contents(target) == expected


@pytest.mark.parametrize("second", ["static", "dynamic"])
@pytest.mark.parametrize("place", ["upload", "join_pieces", "tokenize"])
def test_nothing_of_a_killed_command_with_other_flags_is_uploaded(
    url, command, place, second, monkeypatch, tmp_path, capsys
):
    """The killed command has held documents out, which the second command trains on."""
    without = "--eval_fraction=0"
    assert command(second, f"{url}/fresh", without) == 0
    target = f"{url}/second"
    with monkeypatch.context() as patch, pytest.raises(kills.Killed):
        # Of the creation, the first call makes the held-out records, the second does the others.
        module, number = (remote, 1) if place == "upload" else (stages, 2)
        kills.kill_before(patch, module, place, call_number(number))
        command("static", target, *COMMANDS[second][3], "--masking=static", "--eval_fraction=0.5")
    assert any("heldout" in name for name in left(tmp_path)) and not remote.files(target)
    assert command(second, target, without) == 0
    assert not os.listdir(tmp_path / "tmp")
    assert contents(target) == contents(f"{url}/fresh")
    assert "belongs to other records" not in capsys.readouterr().out


def test_held_out_records_of_other_training_records_are_named(
    url, command, monkeypatch, tmp_path, capsys
):
    """They reached the bucket before the kill, or are of an earlier command."""
    with monkeypatch.context() as patch, pytest.raises(kills.Killed):
        kills.kill_before(patch, remote, "upload", call_number(3))
        command("static", url)
    assert "heldout.a.tfrecord" in remote.files(url)
    capsys.readouterr()
    (tmp_path / "here").mkdir()
    assert command("static", tmp_path / "here") == 0
    for directory in (url, tmp_path / "here"):
        assert command("static", directory) == 0
        assert "belongs to other records" not in capsys.readouterr().out
        assert command("static", directory, "--eval_fraction=0") == 0
        said = f"{directory}/heldout.a.tfrecord belongs to other records. Its text may be in these"
        assert said in capsys.readouterr().out


def test_a_change_of_what_is_read_is_noticed(
    url, command, monkeypatch, text_file, tmp_path, vocab_file
):
    """It changes between the kill in the upload and the second command."""
    for kind, change in (("text", "text"), ("static", "text"), ("static", "vocabulary")):
        given = [f"--vocab_file={tmp_path}/own.txt"] if kind == "static" else []
        shutil.copyfile(vocab_file, tmp_path / "own.txt")
        target = f"{url}/{kind}-{change}"
        kill_before_the_upload(command, monkeypatch, kind, target, *given)
        if change == "text":
            with open(text_file, "a") as writer:
                writer.write("\n\nw1 w2 w3 w4\nw5 w6 w7 w8\n")
        else:
            with open(tmp_path / "own.txt", "a") as writer:
                writer.write("new\n")
        assert command(kind, target, *given) == 0
        assert command(kind, f"{target}-fresh", *given) == 0
        assert contents(target) == contents(f"{target}-fresh")


@pytest.mark.parametrize("way", ["directory", "checkpoint", "archive"])
def test_the_vocabulary_of_a_remote_network(url, command, tmp_path, vocab_file, way):
    network = tmp_path / "network"
    shutil.copytree(fixtures.TF1, network)
    shutil.copyfile(vocab_file, network / "vocab.txt")
    path = {"directory": url, "archive": f"{url}/network.zip"}.get(way)
    if way == "archive":
        shutil.make_archive(str(tmp_path / "network"), "zip", network)
        remote.upload(str(tmp_path / "network.zip"), path)
    else:
        for file in network.iterdir():
            remote.upload(str(file), f"{url}/{file.name}")
        (index,) = network.glob("*.index")
        path = path or f"{url}/{index.name.removesuffix('.index')}"
    made = [tmp_path / name for name in ("remote", "here")]
    for folder, given in zip(made, (path, network), strict=True):
        folder.mkdir()
        assert command("static", folder, f"--vocab_file={given}") == 0
    files = [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in made]
    assert files[0] == files[1]


def test_a_change_of_the_segmenter_or_of_the_casing_is_noticed(
    url, command, monkeypatch, tmp_path, vocab_file
):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    cutter, network = tmp_path / "cutter_for_a_bucket.py", tmp_path / "network"
    shutil.copytree(fixtures.TF1, network)
    shutil.copyfile(vocab_file, network / "vocab.txt")
    task, of_words = network / "task.json", ["--masking_unit=word"]
    of_words.append("--word_segmenter=cutter_for_a_bucket:cut")
    changes = {
        cutter: (
            of_words,
            "cut = str.split\n",
            "cut = __import__('re').compile(r'\\S+ *\\S*').findall\n",
        ),
        task: ([f"--vocab_file={network}"], '{"do_lower_case": true}', '{"do_lower_case": false}'),
    }
    for path, (given, before, after) in changes.items():
        path.write_text(before)
        kill_before_the_upload(command, monkeypatch, "static", f"{url}/{path.name}", *given)
        path.write_text(after)
        # The same command is another process.
        sys.modules.pop("cutter_for_a_bucket", None)
        segmenters.open_segmenter.cache_clear()
        for name in (path.name, f"{path.name}-fresh"):
            assert command("static", f"{url}/{name}", *given) == 0
        assert contents(f"{url}/{path.name}") == contents(f"{url}/{path.name}-fresh")


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.usefixtures("url")
def test_an_output_that_is_only_a_bucket_is_refused(command, kind, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command(kind, "gs:/", name="bucket") == 2
    flag = COMMANDS[kind][1]
    assert capsys.readouterr().err.endswith(
        f": --{flag}: gs://bucket: is not a file's name; give gs://bucket/name\n"
    )
    assert not (tmp_path / "gs:").exists() and not os.listdir(tmp_path / "tmp")


def kill_before_the_upload(command, monkeypatch, kind, url, *others, **given):
    with monkeypatch.context() as patch, pytest.raises(kills.Killed):
        kills.kill_before(patch, remote, "upload", lambda *_: True)
        command(kind, url, *others, **given)


def test_an_error_leaves_nothing_behind(url, command, tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n")
    assert command("dynamic", url, f"--input_file={tmp_path}/empty.txt") == 2
    assert "empty.txt: every line is empty" in capsys.readouterr().err
    assert not os.listdir(tmp_path / "tmp") and not remote.files(url)


def test_two_processes_of_a_machine(url, command, monkeypatch, tmp_path, capsys):
    kill_before_the_upload(command, monkeypatch, "dynamic", url)
    (folder,) = os.listdir(tmp_path / "tmp")
    for others in ([], ["--num_shards=2"]):  # another set of the same name
        with locked.by_another(tmp_path / "tmp" / folder / ".lock"):
            assert command("dynamic", url, *others) == 2
        assert f"{url}/a.tfrecord {locked.WHO}" in capsys.readouterr().err


def test_two_users_of_a_machine_do_not_meet(url, command, monkeypatch, tmp_path, capsys):
    kill_before_the_upload(command, monkeypatch, "text", url)
    (of_first,) = os.listdir(tmp_path / "tmp")
    user = os.getuid() + 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: user)
        # A directory with the second user's name that somebody else has made is not used.
        of_second = tmp_path / "tmp" / of_first.replace(f"_{user - 1}_", f"_{user}_")
        of_second.mkdir()
        assert command("text", url) == 2
        message = f"{of_second} belongs to another user; set TMPDIR to a directory of your own"
        assert message in capsys.readouterr().err
        of_second.rmdir()
        lstat = os.lstat

        def as_user(path, **others):
            status = lstat(path, **others)
            own = str(path) == str(of_second)
            return os.stat_result([*status[:4], user, *status[5:]]) if own else status

        patch.setattr(os, "lstat", as_user)
        assert command("text", url) == 0
    assert "is left of a command" not in capsys.readouterr().err
    assert os.listdir(tmp_path / "tmp") == [of_first]


@pytest.mark.parametrize("make", [os.symlink, shutil.copyfile])
def test_what_lies_in_the_place_of_the_directory_is_not_followed(
    url, command, monkeypatch, tmp_path, capsys, make
):
    kill_before_the_upload(command, monkeypatch, "text", url)
    (name,) = os.listdir(tmp_path / "tmp")
    folder = tmp_path / "tmp" / name
    shutil.rmtree(folder)
    (tmp_path / "elsewhere").mkdir()
    source = tmp_path / "elsewhere" if make is os.symlink else __file__
    make(source, folder)
    assert command("text", url) == 2
    assert f"{folder} is not a directory; remove it, or set TMPDIR" in capsys.readouterr().err
    assert not os.listdir(tmp_path / "elsewhere")


def test_the_directory_is_for_this_user_alone(url, command, monkeypatch, tmp_path):
    kill_before_the_upload(command, monkeypatch, "text", url)
    (name,) = os.listdir(tmp_path / "tmp")
    os.chmod(tmp_path / "tmp" / name, 0o777)
    kill_before_the_upload(command, monkeypatch, "text", url)
    assert stat.S_IMODE(os.stat(tmp_path / "tmp" / name).st_mode) == 0o700


def test_a_temporary_directory_that_cannot_be_written_is_named(url, command, monkeypatch, capsys):
    def refuse(path, *_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with monkeypatch.context() as patch:
        patch.setattr(staging.os, "makedirs", refuse)
        assert command("text", url) == 2
    assert (
        f"--output_file: {tempfile.gettempdir()}/bert_estimator_output_" in capsys.readouterr().err
    )


def test_what_killed_commands_have_left_is_named(url, command, monkeypatch, tmp_path, capsys):
    kill_before_the_upload(command, monkeypatch, "text", url, name="first.txt")
    kill_before_the_upload(command, monkeypatch, "text", url, name="second.txt")
    folders = {}
    for name in os.listdir(tmp_path / "tmp"):
        output = (tmp_path / "tmp" / name / "output").read_text()
        folders[output.removeprefix(f"{url}/")] = tmp_path / "tmp" / name
    capsys.readouterr()
    with locked.by_another(folders["first.txt"] / ".lock"):
        assert command("text", url) == 0
        printed = capsys.readouterr().err
    assert f"{folders['second.txt']} (0.0 MB) is left of a command for {url}/second.txt." in printed
    assert str(folders["first.txt"]) not in printed
    assert command("text", url, name="second.txt") == 0
    assert not folders["second.txt"].exists() and folders["first.txt"].exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "FILE"), 1),
        (pools.WorkerError("a worker was killed"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_whatever_ends_a_creation_its_work_is_kept(
    url, command, whole, error, code, monkeypatch, tmp_path, capsys
):
    expected = whole("static")

    def fail(task):
        if isinstance(error, OSError):
            error.filename = task[0].output_files[0]
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(stages, "write_piece", fail)
        assert command("static", f"{url}/failed") == code
    printed = capsys.readouterr().err
    assert f"Unfinished work for {url}/failed/a.tfrecord is kept on this machine, in" in printed
    if isinstance(error, OSError):  # The disk that is full is this machine's.
        assert f"create_pretraining_data: error: {tmp_path}/tmp/bert_estimator_output_" in printed
    assert command("static", f"{url}/failed") == 0
    assert contents(f"{url}/failed") == expected


def test_workers_make_the_same_remote_files(
    url, command, whole, fails_to_make, monkeypatch, tmp_path
):
    expected = whole("static")
    monkeypatch.setattr(create_pretraining_data, "_BYTES_OF_A_WORKER", 1)
    with monkeypatch.context() as patch, pytest.raises(kills.Killed):
        # The pool and the progress are the first arguments.
        kills.kill_before(
            patch, pretraining_records, "_run", lambda *args: args[2] is stages.join_pieces
        )
        command("static", f"{url}/killed", "--num_workers=2")
    kill_before_the_upload(command, monkeypatch, "static", f"{url}/killed", "--num_workers=1")
    with fails_to_make("static"):
        assert command("static", f"{url}/killed", "--num_workers=2") == 0
    assert contents(f"{url}/killed") == expected and not os.listdir(tmp_path / "tmp")


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMMANDS)
def test_processes_that_are_killed_at_their_uploads_to_a_service(
    tmp_path, arguments, command, kind
):
    """Each process but the last is ended by `kill -9` in its second upload, or its first one."""
    if shutil.which("openssl") is None:
        pytest.skip("the stand-in for Google Cloud Storage needs openssl")
    (tmp_path / "here").mkdir()
    assert command(kind, tmp_path / "here") == 0
    expected = {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    module = MAKERS[COMMANDS[kind][0]][0].__name__
    with contextlib.closing(bucket.Bucket(tmp_path)) as service:
        (tmp_path / "machine").mkdir()
        environment = {**os.environ, **service.environment, "TMPDIR": str(tmp_path / "machine")}
        for last in (1, 2, None) if len(expected) > 1 else (1, None):
            process = forked.start(
                [sys.executable, "-m", module, *arguments(kind, "gs://bucket/data")],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            writes = itertools.count(1)

            def kill(name, process=process, writes=writes, last=last):
                if next(writes) == last:
                    os.kill(process.pid, signal.SIGKILL)

            service.before_write = kill
            try:
                _, error = process.communicate(timeout=240)
            finally:
                process.kill()
            assert process.returncode == (-signal.SIGKILL if last else 0), error
            assert ("they are uploaded as they are" in error) == (last != 1)
        assert {name: service.objects[f"bucket/data/{name}"] for name in expected} == expected
        assert service.names("bucket/data/") == set(expected)
        # TensorFlow's client leaves a file of its own when it is killed.
        assert not list((tmp_path / "machine").glob("bert_estimator_*"))
