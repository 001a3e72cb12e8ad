"""Weights that are NaN or infinite, in every command that reads them: the variable is named."""

import shutil

import commands
import fixtures
import log_lines
import numpy as np
import pytest
import safetensors.numpy
import tensorflow.compat.v1 as tf

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_variables
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.tpu.verbs import checkpoints

WORDS = "bert/embeddings/word_embeddings"
BAD = {"nan": np.nan, "inf": np.inf}
LAST = "model.ckpt-8"


def spoil(prefix, value):
    reader = tf.train.load_checkpoint(str(prefix))
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    values[WORDS][-1, 0] = value
    tf1_checkpoint.save(str(prefix), values)


@pytest.fixture(scope="module")
def inputs(inputs):
    """Returns a directory with inputs, and with a run that has trained and exported."""
    folder = inputs
    # No text has the last token of the vocabulary.
    vocab = folder / "run_classifier" / "vocab.txt"
    config = folder / "run_classifier" / "bert_config.json"
    size = len(vocab.read_text().splitlines())
    vocab.write_text(vocab.read_text() + "[unused0]\n")
    text = config.read_text().replace(f'"vocab_size": {size}', f'"vocab_size": {size + 1}')
    config.write_text(text)
    (folder / "encoder").mkdir()
    network = BertConfig.from_json_file(str(folder / "run_pretraining" / "bert_config.json"))
    shapes = network_variables.encoder_shapes(network)
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    fixtures.write_tf1(folder / "encoder", network, weights)
    code, err = commands.call("classifier", [*classifier(folder, folder / "run"), *TRAIN, EXPORT])
    assert code == 0, err
    tf.summary.FileWriterCache.clear()
    return folder


TRAIN, EVAL, PREDICT, EXPORT = ["--do_train", "--do_eval=False"], "--do_eval", "--do_predict", (
    "--do_export"
)  # fmt: skip


def classifier(folder, output):
    flags = commands.arguments("classifier", folder, output)
    return [*flags, f"--predict_file={folder}/run_classifier/dev.tsv"]


@pytest.fixture(params=["nan", pytest.param("inf", marks=pytest.mark.slow)])
def spoiled(inputs, tmp_path, request):
    """Returns a directory like `inputs`, with a bad weight in each model."""
    folder, value = tmp_path / "spoiled", BAD[request.param]
    shutil.copytree(inputs, folder)
    for model in ("tf1", "encoder"):
        spoil(folder / model / "bert_model.ckpt", value)
    spoil(folder / "run" / LAST, value)
    (export,) = (folder / "run" / "export").iterdir()
    spoil(export / "variables" / "variables", value)
    tensors = fixtures.tensors_of(folder / "hf_classifier")
    tensors["bert.embeddings.word_embeddings.weight"][-1, 0] = value
    safetensors.numpy.save_file(
        tensors, folder / "hf_classifier" / "model.safetensors", {"format": "pt"}
    )
    return folder


MODELS = ("tf1", "hf_classifier", "run")
REFUSED = [
    *(("convert", [model, "output"]) for model in MODELS),
    *(("embed", [model, "text.txt"]) for model in MODELS),
    ("fill", ["tf1", "[MASK]"]),
    ("predict", ["run"]),
    ("serve", ["run", "--port=0"]),
    ("serve", ["hf_classifier", "--port=0"]),
    ("pretraining", ["--init_checkpoint=encoder", *TRAIN]),
    ("classifier", ["--init_checkpoint=run", *TRAIN]),
    ("squad", ["--init_checkpoint=run", "--bert_config_file=run/bert_config.json", *TRAIN]),
]


@pytest.mark.parametrize(("command", "arguments"), REFUSED, ids=str)
def test_it_is_refused(spoiled, tmp_path, monkeypatch, command, arguments):
    monkeypatch.chdir(spoiled)
    flags = [*arguments]
    if arguments[0].startswith("--"):
        own = commands.arguments(command, spoiled, tmp_path / "output")
        flags = [*own, *arguments, "--allow_partial_init"]
    code, err = commands.call(command, flags)
    assert code == 2, err
    assert f"these weights are not finite: {WORDS}" in err.splitlines()[-1]
    assert not list(tmp_path.glob("output/model.ckpt*"))
    assert not (spoiled / "output").exists()


@pytest.mark.parametrize("where", ["its own", "another's"])
@pytest.mark.parametrize("does", [EVAL, PREDICT, EXPORT])
def test_a_run_that_reads_a_checkpoint_warns_once(spoiled, tmp_path, where, does):
    prefix = spoiled / "run" / LAST
    if where == "its own":
        flags = [*classifier(spoiled, spoiled / "run"), does, "--do_train=False"]
    else:
        flags = [*classifier(spoiled, tmp_path / "other"), f"--init_checkpoint={prefix}", does]
    with log_lines.collected() as lines:
        code, err = commands.call("classifier", flags)
    assert code == 0, err
    (warning,) = [text for level, text in lines if "not finite" in text and level == "WARNING"]
    assert warning.startswith(f"Checkpoint {prefix} has values that are not finite: {WORDS}. ")


def test_training_that_goes_on_from_it_warns(inputs, spoiled):
    flags = classifier(inputs, spoiled / "run")
    flags = [flag for flag in flags if "epochs" not in flag] + ["--num_train_epochs=2", *TRAIN]
    with log_lines.collected() as lines:
        code, err = commands.call("classifier", flags)
    assert code == 1, err
    assert any(f"has values that are not finite: {WORDS}. " in text for _, text in lines), lines
    assert f"At step 12 these variables are not finite: {WORDS}" in err.splitlines()[-1]
    assert checkpoints.newest_whole(str(spoiled / "run")).endswith(LAST)
