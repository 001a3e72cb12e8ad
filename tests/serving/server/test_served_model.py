"""A served model follows its directory: copies that take long, switches, directories that go."""

import asyncio
import collections
import contextlib
import json
import os
import shutil
import threading
import time

import http_served
import pytest

from bert_estimator.serving.server import models

PARTS = ("saved_model.pb", "variables/variables.index", "variables/variables.data", "vocab.txt")


def write(export, names=PARTS, text="x"):
    """Writes files of an exported model, the task first."""
    for name in ("assets.extra/task.json", *names):
        path = export / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return export


class Models:
    """Opens exported models that answer a text with their version, once its gate is open."""

    def __init__(self):
        self.opened, self.closed, self.gates, self.fill = [], [], {}, None

    def __call__(self, path):
        path = models._with_task(path)
        version = os.path.basename(path)
        if missing := [name for name in PARTS if not os.path.exists(os.path.join(path, name))]:
            raise ValueError(f"{path}: lacks {missing[0]}")
        with open(os.path.join(path, "vocab.txt")) as reader:
            words = reader.read()

        number = len(self.opened)

        def answer(texts):
            assert number >= len(self.closed)  # they are closed in this order
            assert self.gates.get(version, OPEN).wait(20)
            return [f"{version} {words}" for _ in texts]

        self.opened.append(version)
        return http_served.opened(answer=lambda text: {"label": version}, directory=path)._replace(
            answer=answer, close=lambda: self.closed.append(version), fill=self.fill
        )


OPEN = threading.Event()
OPEN.set()


def serving(directory, body):
    """Runs a coroutine function of a served model and its `Models`; returns its result."""

    async def main():
        opens = Models()
        model = models.ServedModel("m", str(directory), opens, batch_size=4, queue_size=100)
        try:
            return await asyncio.wait_for(body(model, opens), 30)
        finally:
            await model.close()

    return asyncio.run(main())


def test_a_newer_export_is_served_as_soon_as_its_copy_is_whole(tmp_path, capsys):
    write(tmp_path / "export" / "5")

    async def body(model, opens):
        for number in range(len(PARTS)):
            assert await model.batcher(["a"]) == ["5 x"]
            write(tmp_path / "export" / "6", PARTS[: number + 1])
            await model.look()
        assert await model.batcher(["a"]) == ["6 x"]
        assert (opens.opened, opens.closed) == (["5", "6"], ["5"])
        assert capsys.readouterr().err == "serve: m: version 6 is served now.\n"

    serving(tmp_path, body)


def test_a_newer_model_may_fill_in_words(tmp_path):
    """An ONNX model of a network without a task may come after a classifier."""
    write(tmp_path / "export" / "5")

    async def body(model, opens):
        assert model.filler is None
        write(tmp_path / "export" / "6")
        opens.fill = lambda texts: [f"filled {text}" for text in texts]
        await model.look()
        assert await model.filler(["a"]) == ["filled a"]
        assert len(model.batchers) == 2

    serving(tmp_path, body)


@pytest.mark.parametrize(
    ("lacking", "why"),
    [
        (PARTS[2], f"{{folder}}/export/6: lacks {PARTS[2]}. "),
        ("assets.extra/task.json", "{folder}: the newest exported model lacks its task.json. "),
    ],
)
def test_a_copy_that_stays_damaged_is_said_once(tmp_path, capsys, lacking, why):
    write(tmp_path / "export" / "5")

    async def body(model, opens):
        newer = write(tmp_path / "export" / "6")
        (newer / lacking).unlink()
        for _ in range(4):
            await model.look()
        said = f"serve: m: {why.format(folder=tmp_path)}Version 5 is still served.\n"
        assert capsys.readouterr().err == said
        write(newer)
        await model.look()
        assert await model.batcher(["a"]) == ["6 x"]

    serving(tmp_path, body)


def test_what_is_copied_while_it_is_opened_is_opened_again(tmp_path):
    write(tmp_path / "export" / "5")

    async def body(model, opens):
        write(tmp_path / "export" / "6", text="half")
        await model.look()
        assert await model.batcher(["a"]) == ["6 half"]
        write(tmp_path / "export" / "6", text="whole")
        await model.look()
        assert await model.batcher(["a"]) == ["6 whole"]
        await model.look()
        assert opens.opened == ["5", "6", "6"]

    serving(tmp_path, body)


def test_what_a_version_has_accepted_it_answers(tmp_path):
    write(tmp_path / "export" / "5")

    async def body(model, opens):
        opens.gates["5"] = threading.Event()
        accepted = [model.batcher(["a"]) for _ in range(20)]
        write(tmp_path / "export" / "6")
        look = asyncio.ensure_future(model.look())
        while model.opened.version == "5":
            await asyncio.sleep(0.001)
        assert await model.batcher(["a"]) == ["6 x"]
        drains = asyncio.ensure_future(model.drain())
        await asyncio.sleep(0.01)
        assert not look.done() and not drains.done() and not opens.closed
        opens.gates["5"].set()
        assert await asyncio.gather(*accepted) == [["5 x"]] * 20
        await drains
        await look
        assert opens.closed == ["5"]

    serving(tmp_path, body)


def of_version(version):
    """Returns a model that answers with its version, after a while."""

    def answer(texts):
        time.sleep(0.002)
        return [{"label": version} for _ in texts]

    opened = http_served.opened(answer=lambda text: {"label": ""}, directory=f"/exports/{version}")
    return opened._replace(answer=answer)


def test_a_request_for_a_version_is_answered_by_it_or_refused():
    answers, stopped = collections.defaultdict(set), threading.Event()

    def ask(client, version):
        while not stopped.is_set():
            path = f"/v1/models/m/versions/{version}:predict"
            status, values = client.post(path, {"instances": ["a text"]})
            answers[version].add((status, json.dumps(values)))

    with http_served.server({"m": of_version("7")}, queue_size=100) as client:
        model = client.service.models["m"]
        assert client.post("/v1/models/m:predict", {"instances": ["a"]})[0] == 200
        loop = model.batcher._runs.get_loop()
        threads = [threading.Thread(target=ask, args=[client, v]) for v in "78" * 4]
        for thread in threads:
            thread.start()
        for version in "87" * 30:
            switch = model._replace(of_version(version))
            asyncio.run_coroutine_threadsafe(switch, loop).result(20)
        stopped.set()
        for thread in threads:
            thread.join()
    for version, other in ("78", "87"):
        refused = {"error": f"m: version '{version}' is not served, but {other}"}
        assert answers[version] == {
            (200, json.dumps({"predictions": [version]})),
            (404, json.dumps(refused)),
        }


def remove(path):
    shutil.rmtree(path)


def replace_with_a_file(path):
    shutil.rmtree(path)
    path.write_text("not a directory")


def replace_with_a_link_to_itself(path):
    shutil.rmtree(path)
    path.symlink_to(path)


@pytest.mark.parametrize("part", ["", "export", "export/5"])
@pytest.mark.parametrize("damage", [remove, replace_with_a_file, replace_with_a_link_to_itself])
def test_a_directory_that_goes_is_said_once(tmp_path, capsys, damage, part):
    export = write(tmp_path / "run" / "export" / "5")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")

    async def body(model, opens):
        damage(tmp_path / "run" / part)
        for _ in range(4):
            await model.look()
        said = f"serve: m: {export} is gone; it is served from memory.\n"
        assert capsys.readouterr().err == said
        assert await model.batcher(["a"]) == ["5 x"]
        with contextlib.suppress(FileNotFoundError):
            (tmp_path / "run" / part).unlink()

    serving(tmp_path / "run", body)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(5, "I/O")])
def test_a_directory_that_cannot_be_listed_is_said_once(tmp_path, capsys, monkeypatch, error):
    export = write(tmp_path / "export" / "5")
    listdir = os.listdir

    def fails(path):
        raise error

    async def body(model, opens):
        monkeypatch.setattr(os, "listdir", fails)
        for _ in range(4):
            await model.look()
        why = f"{tmp_path}: cannot be read: {error.strerror}. Version 5 is still served."
        assert capsys.readouterr().err == f"serve: m: {why}\n"
        assert await model.batcher(["a"]) == ["5 x"]
        monkeypatch.setattr(os, "listdir", listdir)
        await model.look()
        write(export.parent / "6")
        await model.look()
        assert await model.batcher(["a"]) == ["6 x"]
        assert opens.opened == ["5", "6"]

    serving(tmp_path, body)
