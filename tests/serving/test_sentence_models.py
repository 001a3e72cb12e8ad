"""Vectors of networks that come with sentence-transformers' files: as these files ask for them."""

import json
import pathlib
import shutil
import zipfile

import fixtures
import numpy as np
import pytest

from bert_estimator import interchange
from bert_estimator.interchange import conversion, opening
from bert_estimator.serving import embed
from bert_estimator.serving.embedder import Embedder
from bert_estimator.serving.server import models
from bert_estimator.storage import remote

ENCODER = fixtures.DATA / "hf_encoder"
TEXTS = ["word1 word2", ("word5 word6", "word7"), " ".join(f"word{i % 35}" for i in range(40))]
TYPE = "sentence_transformers.models."


def model(tmp_path, pooling, *further, settings=None, prompts=None, first="Transformer"):
    """Writes a directory as the package writes it; returns its path."""
    path = tmp_path / "model"
    shutil.copytree(ENCODER, path)
    steps = [("", first), ("1_Pooling", "Pooling"), *((f"2_{name}", name) for name in further)]
    modules = [
        {"idx": i, "name": str(i), "path": step, "type": TYPE + name}
        for i, (step, name) in enumerate(steps)
    ]
    (path / "1_Pooling").mkdir()
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": 16, **pooling},
        "sentence_bert_config.json": settings,
        "config_sentence_transformers.json": prompts,
    }
    for name, values in files.items():
        if values is not None:
            (path / name).write_text(json.dumps(values))
    return str(path)


def modes(*names):
    every = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    return {f"pooling_mode_{name}": name in names for name in every}


def normalized(vectors):
    return vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("pooling", "expected", "is_normalized"),
    [
        (modes("cls_token"), "cls", True),
        (modes("mean_tokens"), "mean", False),
        ({**modes("max_tokens"), "include_prompt": True}, "max", True),
        ({"pooling_mode": "cls"}, "cls", False),
        ({"pooling_mode": "mean", "include_prompt": False}, "mean", True),
    ],
)
def test_vectors_are_as_the_files_ask(tmp_path, pooling, expected, is_normalized):
    path = model(tmp_path, pooling, *["Normalize"] * is_normalized)
    embedder = Embedder(path)
    assert (embedder.pooling, embedder.is_normalized) == (expected, is_normalized)
    plain = Embedder(str(ENCODER), expected)(TEXTS)
    np.testing.assert_array_equal(Embedder(path, expected)(TEXTS), plain)  # a flag says more
    np.testing.assert_allclose(
        embedder(TEXTS), normalized(plain) if is_normalized else plain, rtol=0, atol=1e-6
    )


def test_windows_are_averaged_before_they_are_scaled(tmp_path):
    path = model(tmp_path, modes("cls_token"), "Normalize")
    windows = {"long_texts": "windows", "max_seq_length": 8}
    long = " ".join(f"word{i}" for i in range(30))
    plain = Embedder(str(ENCODER), "cls", **windows)([long, "word1"])
    found = Embedder(path, **windows)([long, "word1"])
    np.testing.assert_allclose(found, normalized(plain), rtol=0, atol=1e-6)


def test_length_and_case_of_texts(tmp_path):
    settings = {"max_seq_length": 8, "do_lower_case": True}
    path = model(tmp_path, modes("mean_tokens"), settings=settings, first="BERT")
    embedder = Embedder(path)
    assert embedder.max_seq_length == 8
    expected = Embedder(str(ENCODER), max_seq_length=8, do_lower_case=True)
    texts = [*TEXTS, "WORD1 Word2"]
    np.testing.assert_array_equal(embedder(texts), expected(texts))
    assert embedder.num_cut == expected.num_cut == 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (dict(pooling=modes("mean_sqrt_len_tokens")), "mean_sqrt_len_tokens"),
        (dict(pooling={"pooling_mode": "lasttoken"}), "lasttoken"),
        (dict(pooling=modes("cls_token", "max_tokens")), "cls and max"),
        (dict(further=["Dense", "Normalize"]), "Pooling and Dense"),
        (dict(first="CLIPModel"), "CLIPModel and Pooling"),
        (
            dict(prompts={"prompts": {"query": "query: "}, "default_prompt_name": "query"}),
            'the prompt "query: "',
        ),
    ],
)
def test_what_is_not_computed_here_is_named(tmp_path, capsys, arguments, what):
    further = arguments.pop("further", ())
    pooling = arguments.pop("pooling", modes("mean_tokens"))
    path = model(tmp_path, pooling, *further, **arguments)
    message = (
        f"{path}: sentence-transformers' files beside the weights ask for {what}, which is not "
        "computed here. For vectors of another kind, give the pooling (--pooling): mean, cls"
    )
    with pytest.raises(ValueError) as caught:
        Embedder(path)
    assert str(caught.value).startswith(message)
    with pytest.raises(ValueError) as caught:
        models.open_model(path, 2)
    assert message in str(caught.value)
    (tmp_path / "texts.txt").write_text("word1 word2\n")
    assert embed.main(["embed", path, str(tmp_path / "texts.txt")]) == 2
    assert what in capsys.readouterr().err


def test_a_pooling_and_lines_of_json_need_no_files(tmp_path):
    path = model(tmp_path, modes("mean_sqrt_len_tokens"), "Dense")
    np.testing.assert_array_equal(Embedder(path, "mean")(TEXTS), Embedder(str(ENCODER))(TEXTS))
    (tmp_path / "texts.txt").write_text("word1 word2\n")
    assert embed.main(["embed", path, str(tmp_path / "texts.txt"), "--format=jsonl"]) == 0


@pytest.mark.parametrize(
    "prompts", [{}, {"prompts": {"query": ""}, "default_prompt_name": "query"}]
)
def test_prompts_that_are_not_used(tmp_path, prompts):
    path = model(tmp_path, modes("mean_tokens"), prompts={"__version__": {}, **prompts})
    assert Embedder(path).pooling == "mean"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules.json", "{}", "modules.json: must be a list, not {}"),
        ("modules.json", '[{"path": ""}]', "modules.json: the key 'type' is missing"),
        ("1_Pooling/config.json", "{}", "config.json: does not name a pooling"),
        ("1_Pooling/config.json", '{"pooling_mode": 1}', "pooling_mode: must be a string, not 1"),
        (
            "config_sentence_transformers.json",
            '{"default_prompt_name": ["query"]}',
            "model/config_sentence_transformers.json: default_prompt_name: must be a string, not",
        ),
    ],
)
def test_damaged_files(tmp_path, name, content, message):
    path = model(tmp_path, modes("mean_tokens"))
    (tmp_path / "model" / name).write_text(content)
    with pytest.raises(ValueError) as caught:
        Embedder(path)
    assert message in str(caught.value)


@pytest.mark.parametrize("to", ["tf1", "hf", "onnx"])
@pytest.mark.parametrize("is_normalized", [False, True])
def test_a_converted_network_gives_the_same_vectors(tmp_path, to, is_normalized):
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    path = model(
        tmp_path,
        modes("cls_token"),
        *["Normalize"] * is_normalized,
        settings={"max_seq_length": 16, "do_lower_case": False},
    )
    target = str(tmp_path / "converted")
    conversion.convert(interchange.open_source(path), target, to)
    copy, source = Embedder(target), Embedder(path)
    assert (copy.pooling, copy.is_normalized) == ("cls", is_normalized)
    assert copy.max_seq_length == source.max_seq_length == 16
    np.testing.assert_allclose(copy(TEXTS), source(TEXTS), rtol=0, atol=1e-5)


def test_a_converted_network_without_its_other_steps_says_so(tmp_path, caplog):
    path = model(tmp_path, modes("mean_tokens"), "Dense")
    target = tmp_path / "converted"
    conversion.convert(interchange.open_source(path), str(target), "hf")
    assert not (target / "modules.json").exists()
    assert "ask for, Pooling and Dense, is not converted: only the network is." in caplog.text


def test_the_files_are_copied_from_remote_storage():
    read = ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config.json"]
    assert all(map(opening._is_read, read))
    assert not any(map(opening._is_read, ["1_Pooling/a.bin", "onnx/model.onnx", "a/b/config.json"]))


def early(tmp_path, pooling, *further):
    """Writes a directory as early versions of the package did, with the network within."""
    path = pathlib.Path(model(tmp_path, pooling, *further))
    inner = path / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (path / name).rename(inner / name)
    modules = json.loads((path / "modules.json").read_text())
    modules[0]["path"] = inner.name
    (path / "modules.json").write_text(json.dumps(modules))
    return path


@pytest.mark.parametrize("way", ["directory", "zip", "zip of the directory", "remote"])
def test_a_network_in_a_directory_within_keeps_its_pooling(tmp_path, way):
    folder = early(tmp_path, modes("cls_token"), "Normalize")
    path = str(folder)
    if way.startswith("zip"):
        at = tmp_path if way == "zip of the directory" else folder
        inner = {tmp_path: folder.name, folder: "."}[at]
        path = shutil.make_archive(str(tmp_path / "archive"), "zip", at, inner)
    if way == "remote":
        path = f"ram:/{tmp_path}/model"
        for file in filter(pathlib.Path.is_file, folder.rglob("*")):
            remote.upload(str(file), f"{path}/{file.relative_to(folder)}")
    embedder = Embedder(path)
    assert (embedder.pooling, embedder.is_normalized) == ("cls", True)
    expected = normalized(Embedder(str(ENCODER), "cls")(TEXTS))
    np.testing.assert_allclose(embedder(TEXTS), expected, rtol=0, atol=1e-6)


def test_such_a_network_is_not_a_run_with_checkpoints_to_choose_from(tmp_path):
    folder = early(tmp_path, modes("cls_token"))
    with pytest.raises(ValueError, match="so that there is no newest checkpoint to choose"):
        Embedder(str(folder), checkpoint="newest")


def test_the_network_may_be_in_the_directory_by_name(tmp_path):
    folder = early(tmp_path, modes("cls_token"))
    for file in (folder / "0_Transformer").iterdir():
        file.rename(folder / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "."
    (folder / "modules.json").write_text(json.dumps(modules))
    assert Embedder(str(folder)).pooling == "cls"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("within", ["0_Transformer", ""])
def test_a_step_with_weights_is_not_another_model_of_an_archive(tmp_path, name, within):
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as writer:
        for file in ("modules.json", f"{within}/{name}".lstrip("/"), f"2_Dense/{name}"):
            writer.writestr(f"m/{file}", "")
    assert opening.unpacked(str(archive)).endswith("/m")


@pytest.mark.parametrize("further", [[], ["Normalize"]])
def test_the_network_may_be_left_out_of_the_steps(tmp_path, further):
    path = model(tmp_path, modes("max_tokens"), *further)
    steps = json.loads((tmp_path / "model/modules.json").read_text())[1:]
    (tmp_path / "model/modules.json").write_text(json.dumps(steps))
    embedder = Embedder(path)
    assert (embedder.pooling, embedder.is_normalized) == ("max", bool(further))
