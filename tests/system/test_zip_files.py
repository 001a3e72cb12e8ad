"""Archives from strangers: what is refused before it is unpacked, and damages."""

import os
import random
import shutil
import stat
import zipfile

import pytest
from fixtures import DATA

from bert_estimator.interchange import open_source, opening
from bert_estimator.system import zip_files


def zipped(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as writer:
        for name, content in members.items():
            writer.writestr(name, content)
    return str(path)


def model(folder="", **others):
    """Returns the members of a model's archive: name -> bytes."""
    names = os.listdir(DATA / "tf1")
    return {**{folder + name: (DATA / "tf1" / name).read_bytes() for name in names}, **others}


@pytest.mark.parametrize(
    "name",
    ["/x/bert_model.ckpt.index", "../bert_model.ckpt.index", "a/../../vocab.txt", "..\\a.json",
     "C:/vocab.txt", "//a.txt"],
)  # fmt: skip
def test_names_that_lead_out_are_refused(tmp_path, name):
    path = zipped(tmp_path / "a.zip", model(**{name: b"x"}))
    with pytest.raises(ValueError, match=f"^{path}: holds .* a name that leads out of the"):
        open_source(path)


def test_links_and_names_that_occur_twice_are_refused(tmp_path):
    path = zipped(tmp_path / "a.zip", model())
    with zipfile.ZipFile(path, "a") as writer:
        link = zipfile.ZipInfo("task.json")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        writer.writestr(link, "/etc/passwd")
    with pytest.raises(ValueError, match=r"'task\.json' is a symbolic link, not a file"):
        open_source(path)
    path = zipped(tmp_path / "b.zip", model())
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as writer:
        writer.writestr("vocab.txt", "other")
    with pytest.raises(ValueError, match=r"b\.zip: holds 'vocab.txt' twice"):
        open_source(path)


TOO_LONG = r"holds '(x|é|a/).*'\.\.\., a name of {} bytes\. Allowed are 1000 bytes, and 255"
SAME = r"holds 'm.*config\.json' and 'm/config\.json', the same file"
WITHIN = r"holds '{0}' as a file, and '{0}/x\.json' within it"
NAMES = [
    (["x" * 251 + ".json"], TOO_LONG.format(256)),
    (["é" * 125 + "x.json"], TOO_LONG.format(256)),
    (["x" * 256 + "/a.json"], TOO_LONG.format(263)),
    (["a/" * 498 + "a.json"], TOO_LONG.format(1002)),
    (["a/" * 30_000 + "a.json"], TOO_LONG.format(60_006)),  # zipfile would recurse for each "/"
    (["m/config.json", "./m/config.json"], r"holds '\./m/config\.json' and 'm/config\.json', the"),
    (["m/config.json", "m//config.json"], SAME),
    (["m/config.json", "m/./config.json"], SAME),
    (["m/a.json", "m/a.json/x.json"], WITHIN.format("m/a\\.json")),
    (["m/a.json/x.json", "m/a.json"], WITHIN.format("m/a\\.json")),
    (["a.json", "a.json/b/x.json"], r"holds 'a\.json' as a file, and 'a\.json/b/x\.json' within"),
    (["./m/config.json"], None),
    (["x" * 250 + ".json", "a/" * 490 + "a.json", "m\na.json", "ü.json", " .json"], None),
    (["v.data-1/", "v.data-1/a.json", "a.json/"], None),  # directories
]


@pytest.mark.parametrize(("names", "message"), NAMES, ids=lambda value: ascii(value)[:40])
def test_names_of_members(tmp_path, names, message):
    path = zipped(tmp_path / "a.zip", model("uncased/", **dict.fromkeys(names, b"{}")))
    if message is None:
        assert open_source(path).config.hidden_size == 8
    else:
        with pytest.raises(ValueError, match=rf"^{path}: {message}"):
            open_source(path)


def test_a_model_below_a_point_is_opened(tmp_path):
    members = {f"{'./' * number}m/{k}": v for number, (k, v) in enumerate(model().items())}
    assert open_source(zipped(tmp_path / "a.zip", members)).config.hidden_size == 8


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(zip_files, "_ALWAYS_ALLOWED_BYTES", 1 << 20)
    path = zipped(tmp_path / "a.zip", model(**{"b.json": b" " * (64 << 20)}))
    made = []
    monkeypatch.setattr(opening.staging, "temporary_folder", lambda: made.append(1))
    with pytest.raises(ValueError, match=r"unpacks to \d+ bytes, more than 100 times its size"):
        open_source(path)
    assert not made


def test_what_the_disk_has_no_room_for_is_not_unpacked(tmp_path, monkeypatch):
    path = zipped(tmp_path / "a.zip", model())
    usage = shutil.disk_usage(tmp_path)._replace(free=9999)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(ValueError, match=r"has 9999 bytes of free space; make space, or set TMPDI"):
        open_source(path)


@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_damaged_archives(tmp_path, monkeypatch, compression):
    """Each is a model, or an error that names the file; nothing is left of what was unpacked."""
    zipped(tmp_path / "whole.zip", model(), compression)
    content = (tmp_path / "whole.zip").read_bytes()
    generator = random.Random(1)
    folder = tmp_path / "unpacked"
    monkeypatch.setattr(opening.tempfile, "tempdir", str(folder))
    errors = 0
    for number in range(100):
        damaged = bytearray(content)
        if number % 4 == 0:
            del damaged[generator.randrange(len(damaged)) :]
        for _ in range(generator.randrange(1, 9)):
            if damaged:
                # The places of the names and sizes, at the end, are hit as often as the others.
                start = max(0, len(damaged) - 700) if number % 2 else 0
                damaged[generator.randrange(start, len(damaged))] = generator.randrange(256)
        path = tmp_path / f"{number}.zip"
        path.write_bytes(damaged)
        folder.mkdir()
        try:
            open_source(str(path))
        except ValueError as error:
            assert str(error).startswith(str(path)) or str(folder) in str(error)
            errors += 1
        shutil.rmtree(folder)
    assert errors > 60


def test_an_error_beside_the_reading_is_not_called_damage(tmp_path):
    path = str(tmp_path / "model.zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "text")
    with pytest.raises(LookupError, match="of the caller"), zip_files.opened(path) as archive:
        assert archive.read("a") == b"text"
        raise LookupError("of the caller")
