"""Tests TF1 checkpoints against a checkpoint that TensorFlow 1.15 wrote."""

import json
import shutil

import fixtures
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import conversion, open_source
from bert_estimator.interchange.google import tf1_checkpoint

PREFIX = str(fixtures.TF1 / "bert_model.ckpt")


def published():
    """name -> shape of the fixture's weights, as a model is published: without slots and step."""
    return {
        name: shape
        for name, shape in tf.train.list_variables(PREFIX)
        if name != "global_step" and not name.endswith(("adam_m", "adam_v"))
    }


def test_a_checkpoint_of_tensorflow_1_is_read_without_its_slots():
    source = tf1_checkpoint.open_prefix(PREFIX, "here")
    assert (source.path, source.format) == ("here", "tf1")
    assert source.shapes == published()
    assert len(source.left_out) == 2 * len(source.shapes) + 1
    assert source.config == BertConfig.from_json_file(str(fixtures.TF1 / "bert_config.json"))
    assert source.vocab_file == str(fixtures.TF1 / "vocab.txt")
    gamma = source.read("bert/embeddings/LayerNorm/gamma")
    assert gamma.dtype == np.float32
    assert 0.5 < gamma.mean() < 1.5


def test_from_tf1_to_hugging_face_and_back_names_shapes_and_values_are_the_same(tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "tf1").mkdir()
    source = open_source(str(fixtures.TF1))
    fixtures.write_hugging_face(tmp_path / "hf", source)
    between = open_source(str(tmp_path / "hf"))
    tf1_checkpoint.write(str(tmp_path / "tf1"), between, fixtures.weights_of(between))
    back = str(tmp_path / "tf1" / "bert_model.ckpt")
    assert dict(tf.train.list_variables(back)) == published()
    for name in published():
        expected = tf.train.load_variable(PREFIX, name)
        np.testing.assert_array_equal(tf.train.load_variable(back, name), expected, err_msg=name)
    config, expected = (
        json.loads((folder / "bert_config.json").read_text())
        for folder in (tmp_path / "tf1", fixtures.TF1)
    )
    assert config == {**expected, "classifier_dropout": 0.1}  # google-research/bert's rate
    assert (tmp_path / "tf1" / "vocab.txt").read_text() == (fixtures.TF1 / "vocab.txt").read_text()


def test_of_several_checkpoints_one_must_be_named(tmp_path):
    for path in fixtures.TF1.glob("bert_model*"):
        shutil.copy(path, tmp_path)
        shutil.copy(path, tmp_path / path.name.replace("bert_model", "other"))
    message = "holds several checkpoints; give the path of one of bert_model.ckpt, other.ckpt"
    with pytest.raises(ValueError, match=message):
        tf1_checkpoint.find(str(tmp_path))


def test_of_a_run_the_newest_whole_checkpoint_is_found(tmp_path):
    for path in fixtures.TF1.glob("bert_model*"):
        for step in (3, 20):
            shutil.copy(path, tmp_path / path.name.replace("bert_model.ckpt", f"model.ckpt-{step}"))
    assert tf1_checkpoint.find(str(tmp_path)) == str(tmp_path / "model.ckpt-20")


def of_type(folder, dtype):
    """A copy of the fixture whose weights have another type."""
    shutil.copytree(fixtures.TF1, folder)
    source = open_source(str(fixtures.TF1))
    weights = {name: source.read(name).astype(dtype) for name in source.shapes}
    tf1_checkpoint.save(str(folder / "bert_model.ckpt"), weights)
    return weights


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_of_half_the_bytes_become_float32(tmp_path, dtype):
    weights = of_type(tmp_path / "half", tf.as_dtype(dtype).as_numpy_dtype)
    source = open_source(str(tmp_path / "half"))
    for name, value in weights.items():
        found = source.read(name)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, value.astype(np.float32), err_msg=name)
    conversion.convert(source, str(tmp_path / "hf"), "hf")


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_weights_that_float32_does_not_hold_are_refused(tmp_path, dtype):
    of_type(tmp_path / "other", dtype)
    source = open_source(str(tmp_path / "other"))
    message = (
        f"^{tmp_path}/other: bert/pooler/dense/bias is {dtype}; allowed are float32, float16, "
        "bfloat16. Save the checkpoint with one of these types$"
    )
    with pytest.raises(ValueError, match=message):
        source.read("bert/pooler/dense/bias")


@pytest.mark.parametrize("eps", [1e-12, 1e-5])
def test_a_layer_norm_that_google_s_code_does_not_compute_is_said(tmp_path, caplog, eps):
    source = fixtures.changed(tmp_path, "hf_encoder")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "layer_norm_eps": eps}))
    conversion.convert(open_source(str(source)), str(tmp_path / "tf1"), "tf1")
    said = "the code of google-research does not read layer_norm_eps=1e-05, and computes another"
    assert (said in caplog.text) == (eps != 1e-12)
