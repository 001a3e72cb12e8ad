"""A vocabulary that was cut short, or has a token too many, in every command that has a network."""

import shutil

import commands
import pytest
import tensorflow.compat.v1 as tf


@pytest.fixture(scope="module")
def original(inputs):
    flags = commands.arguments("classifier", inputs, inputs / "exported")
    code, err = commands.call("classifier", [*flags, "--do_train", "--do_export"])
    assert code == 0, err
    tf.summary.FileWriterCache.clear()
    return inputs


VOCABULARIES = {
    "classifier": "run_classifier/vocab.txt",
    "squad": "run_squad/vocab.txt",
    "embed": "hf_classifier/vocab.txt",
    "fill": "tf1/vocab.txt",
    "convert": "hf_classifier/vocab.txt",
    "predict": "exported/export/*/assets.extra/vocab.txt",
}


@pytest.mark.parametrize("command", VOCABULARIES)
@pytest.mark.parametrize("change", [-2, 1])
def test_its_size_is_compared_with_the_network(original, tmp_path, monkeypatch, command, change):
    folder = shutil.copytree(original, tmp_path / "inputs")
    (vocab,) = folder.glob(VOCABULARIES[command])
    tokens = vocab.read_text().splitlines()
    size = len(tokens)
    tokens = tokens[:change] if change < 0 else [*tokens, "more"]
    vocab.write_text("\n".join(tokens) + "\n")
    flags = commands.arguments(command, folder, tmp_path / "output")
    if command == "predict":
        flags.append(str(folder / "text.txt"))
    code, err = commands.call(command, flags)
    if change > 0:
        assert code == 2, err
        assert f"has {size + 1} tokens, but the network" in err.splitlines()[-1]
        return
    assert code == (command == "predict"), err  # The lines of the text are not pairs.
    said = [line for line in err.splitlines() if "rows of embeddings" in line]
    assert said == [
        f"{vocab} has {size - 2} tokens, so that 2 of the network's {size} rows of embeddings are "
        "of no use. If they are not padding, the file is not complete."
    ]
