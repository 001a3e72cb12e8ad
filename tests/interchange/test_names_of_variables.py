"""Which project's names the weights of a network get."""

import dataclasses
import json

import fixtures
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_variables, open_source
from bert_estimator.interchange.__main__ import main
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.interchange.network_variables import ANSWER, CLASSIFIER, MASKED_LM
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab

CONFIG = BertConfig(
    vocab_size=len(SPECIAL_TOKENS),
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=8,
    embedding_size=4,
)


def convert(source, target, *flags):
    return main(["interchange", str(source), str(target), *flags])


def names_of(folder):
    return [name for name, _ in tf.train.list_variables(str(folder / "bert_model.ckpt"))]


def write_run(folder, config, head):
    """Writes the checkpoint of a network with the names that a run gives its weights."""
    folder.mkdir()
    heads = network_variables.head_shapes(config, 2)
    shapes = {**network_variables.encoder_shapes(config), **heads[head]}
    weights = {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
    tf1_checkpoint.save(str(folder / "bert_model.ckpt"), weights)
    write_vocab(SPECIAL_TOKENS, str(folder / "vocab.txt"))
    (folder / "bert_config.json").write_text(config.to_json_string())


@pytest.mark.parametrize(
    ("hidden_act", "head"),
    [("gelu", ANSWER), ("gelu", MASKED_LM), ("gelu_erf", MASKED_LM), ("relu", CLASSIFIER)],
)
def test_narrow_embeddings_alone_do_not_make_an_electra(tmp_path, hidden_act, head):
    write_run(tmp_path / "run", dataclasses.replace(CONFIG, hidden_act=hidden_act), head)
    assert convert(tmp_path / "run", tmp_path / "tf1", "--to=tf1") == 0
    assert names_of(tmp_path / "tf1") == names_of(tmp_path / "run")
    source = open_source(str(tmp_path / "tf1"))
    assert source.config.hidden_act == hidden_act
    source.check_network(source.config)
    assert convert(tmp_path / "tf1", tmp_path / "again", "--to=tf1") == 0
    assert names_of(tmp_path / "again") == names_of(tmp_path / "run")


def test_a_run_that_may_have_begun_as_an_electra_is_given_back_as_one(tmp_path):
    write_run(tmp_path / "run", dataclasses.replace(CONFIG, hidden_act="gelu_erf"), ANSWER)
    assert convert(tmp_path / "run", tmp_path / "tf1", "--to=tf1") == 0
    names = [name for name in names_of(tmp_path / "tf1") if not name.startswith(ANSWER)]
    assert all(name.startswith("electra/") for name in names)
    source = open_source(str(tmp_path / "tf1"))
    source.check_network(source.config)


@pytest.mark.parametrize("hidden_act", ["gelu_new", "gelu"])
def test_an_electra_with_the_tanh_form_keeps_it(tmp_path, hidden_act):
    """Names of ELECTRA would say that it is the exact form."""
    electra = fixtures.changed(tmp_path, "hf_electra", hidden_act=hidden_act)
    assert convert(electra, tmp_path / "tf1") == 0
    scope = "bert/" if hidden_act == "gelu_new" else "electra/"
    assert all(name.startswith(scope) for name in names_of(tmp_path / "tf1"))
    assert convert(tmp_path / "tf1", tmp_path / "hf") == 0
    values = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (values["model_type"], values["hidden_act"]) == ("electra", hidden_act)
    before, after = (fixtures.tensors_of(folder) for folder in (electra, tmp_path / "hf"))
    np.testing.assert_equal(after, before)


def test_a_copy_that_would_be_refused_is_not_made(tmp_path, capsys, monkeypatch):
    write_run(tmp_path / "run", CONFIG, ANSWER)
    monkeypatch.setattr(
        network_variables, "architecture_of_tf1_names", network_variables.architecture_of
    )
    assert convert(tmp_path / "run", tmp_path / "tf1", "--to=tf1") == 2
    error = capsys.readouterr().err
    assert f'interchange: {tmp_path}/tf1: is an ELECTRA, whose hidden_act is "gelu_erf"' in error
    assert not (tmp_path / "tf1").exists()
