"""Narrow embeddings and shared layers (ALBERT, ELECTRA): the network, its gradients, whole runs."""

import dataclasses
import json

import fixtures
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tiny_run import (
    bert_config,
    classifier_flags,
    metrics_of,
    pairs,
    without_timing,
    words,
    write_pairs,
)

import run_classifier
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_variables, open_source
from bert_estimator.interchange.__main__ import main as convert
from bert_estimator.interchange.hugging_face import weight_files
from bert_estimator.interchange.source import ALBERT, ELECTRA
from bert_estimator.layers.dropout import Dropout
from bert_estimator.model_fns import init_checkpoint
from bert_estimator.serving.embedder import Embedder
from bert_estimator.system.errors import ArgumentError
from bert_estimator.tokenization import SPECIAL_TOKENS, train_sentencepiece, write_vocab
from tests import test_modeling
from tests.test_modeling import SHARED

HEADS = (network_variables.MASKED_LM, network_variables.NEXT_SENTENCE)


def test_gradients_of_shared_weights_are_summed_over_the_layers():
    found = test_modeling.gradients_of(SHARED)
    generator = np.random.default_rng(3)
    for scope in ("bert/encoder/layer_0/", "bert/encoder/layer_1/", network_variables.MAPPING, ""):
        direction = {
            name: generator.normal(size=value.shape) * name.startswith(scope)
            for name, value in found.items()
        }
        slope = sum(np.sum(found[name] * direction[name]) for name in found)
        expected = test_modeling.central_difference(direction, SHARED)
        assert slope == pytest.approx(expected, rel=1e-3)


def test_recomputed_layers_that_share_weights_have_the_same_gradients():
    """Each layer draws dropout masks of its own, although their scope is the same."""
    found = [_with_dropout(recompute) for recompute in (False, True)]
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=0, atol=1e-5, err_msg=name)
    without = test_modeling.gradients_of(SHARED)
    assert not np.allclose(found[0]["bert/pooler/dense/bias"], without["bert/pooler/dense/bias"])


def _with_dropout(recompute):
    with tf.Graph().as_default():
        dropout = Dropout(3, tf.constant(2), tf.constant(0))
        _, losses = test_modeling.build(True, config=SHARED, dropout=dropout, recompute=recompute)
        assert {name: n for name, n in dropout._calls.items() if "/layer_" in name} == {
            f"bert/encoder/layer_{group}/attention/{part}": 2
            for group in (0, 1)
            for part in ("self", "output")
        } | {f"bert/encoder/layer_{group}/output": 2 for group in (0, 1)}
        variables = tf.trainable_variables()
        gradients = tf.gradients(sum(losses), variables)
        values = test_modeling.run(gradients, test_modeling.weights(SHARED))
    return {v.op.name: value for v, value in zip(variables, values, strict=True)}


# Checkpoints in the layouts of google-research/albert and google-research/electra


ALBERT_LAYER = "bert/encoder/transformer/group_0/inner_group_0"
# Names in the checkpoints that google-research/albert publishes, and what they are here.
ALBERT_NAMES = {
    "bert/encoder/embedding_hidden_mapping_in/kernel": network_variables.MAPPING + "/kernel",
    f"{ALBERT_LAYER}/attention_1/self/query/kernel": "attention/self/query/kernel",
    f"{ALBERT_LAYER}/attention_1/self/key/bias": "attention/self/key/bias",
    f"{ALBERT_LAYER}/attention_1/output/dense/kernel": "attention/output/dense/kernel",
    f"{ALBERT_LAYER}/LayerNorm/gamma": "attention/output/LayerNorm/gamma",
    f"{ALBERT_LAYER}/ffn_1/intermediate/dense/kernel": "intermediate/dense/kernel",
    f"{ALBERT_LAYER}/ffn_1/intermediate/output/dense/kernel": "output/dense/kernel",
    f"{ALBERT_LAYER}/LayerNorm_1/beta": "output/LayerNorm/beta",
    "bert/pooler/dense/kernel": "bert/pooler/dense/kernel",
    "bert/embeddings/word_embeddings": "bert/embeddings/word_embeddings",
    "cls/predictions/transform/LayerNorm/beta": "cls/predictions/transform/LayerNorm/beta",
}
ELECTRA_NAMES = {
    "electra/embeddings_project/bias": network_variables.MAPPING + "/bias",
    "electra/embeddings/word_embeddings": "bert/embeddings/word_embeddings",
    "electra/encoder/layer_1/output/LayerNorm/gamma": "bert/encoder/layer_1/output/LayerNorm/gamma",
}


def test_names_of_the_other_projects():
    for theirs, ours in ALBERT_NAMES.items():
        if "/" in ours and not ours.startswith(("bert/", "cls/")):
            ours = f"bert/encoder/layer_0/{ours}"
        assert network_variables.from_tf1(theirs) == ours
        assert network_variables.to_tf1(ours, ALBERT) == theirs
    for theirs, ours in ELECTRA_NAMES.items():
        assert network_variables.from_tf1(theirs) == ours
        assert network_variables.to_tf1(ours, ELECTRA) == theirs
    for name in fixtures.random_weights(SHARED, HEADS):
        for architecture in (ALBERT, ELECTRA):
            if architecture == ALBERT or name.startswith("bert/"):
                assert (
                    network_variables.from_tf1(network_variables.to_tf1(name, architecture)) == name
                )
    assert network_variables.from_tf1("generator/encoder/layer_0/output/dense/kernel") is None
    assert network_variables.from_tf1("discriminator_predictions/dense_1/bias") is None


def save(prefix, values):
    """Writes a TF1 checkpoint of arrays by name."""
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = [tf.constant(value) for value in values.values()]
        session.run(tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=list(values), tensors=tensors,
            shape_and_slices=[""] * len(values),
        ))  # fmt: skip


TINY = {"embedding_size": 8, "num_hidden_layers": 3, "max_position_embeddings": 32}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Writes the files of a task; a checkpoint of each project, as it is published."""
    path = tmp_path_factory.mktemp("data")
    rows = {"train": list(pairs(32, 1)), "dev": list(pairs(13, 2))}
    for name, of_file in rows.items():
        write_pairs(path / f"{name}.tsv", of_file)
    albert, electra = path / "albert", path / "electra"
    albert.mkdir()
    electra.mkdir()
    sentences = [text for row in rows["train"] for text in row[:2]]
    train_sentencepiece(sentences, str(albert / "30k-clean.model"), 34)
    config = bert_config(0, **TINY, vocab_size=34, num_hidden_groups=1)
    published = {
        "inner_group_num": 1, "net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0,
        "down_scale_factor": 1,
    }  # fmt: skip
    (albert / "albert_config.json").write_text(json.dumps({**config, **published}))
    values = fixtures.random_weights(BertConfig(**config), HEADS)
    values = {network_variables.to_tf1(n, ALBERT): v for n, v in values.items()}
    save(str(albert / "model.ckpt-best"), {**values, "global_step": np.int64(7)})

    write_vocab([*SPECIAL_TOKENS, *words(30)], str(electra / "vocab.txt"))
    config = bert_config(30, **TINY, hidden_act="gelu_erf")
    (electra / "bert_config.json").write_text(json.dumps(config))
    values = fixtures.random_weights(BertConfig(**config))
    values = {n: v for n, v in values.items() if not n.startswith("bert/pooler/")}
    values = {network_variables.to_tf1(n, ELECTRA): v for n, v in values.items()}
    values["electra/embeddings/word_embeddings/adam_m"] = np.zeros([35, 8], np.float32)
    others = ("generator/encoder/layer_0/output/dense/bias", "discriminator_predictions/dense/bias")
    save(str(electra / "electra_tiny"), {**values, **dict.fromkeys(others, np.zeros(16))})
    return path


def test_an_albert_opens_as_it_is_published(data):
    source = open_source(str(data / "albert"))
    assert network_variables.check(source.config, source.shapes, "") == (
        network_variables.MASKED_LM, network_variables.NEXT_SENTENCE,
    )  # fmt: skip
    assert source.config.num_hidden_groups == 1 and source.config.embedding_size == 8
    assert source.vocab_file == str(data / "albert" / "30k-clean.model")
    expected = fixtures.random_weights(source.config, HEADS)
    np.testing.assert_equal(fixtures.weights_of(source), expected)
    assert source.left_out == ("global_step",)


def test_an_electra_opens_as_it_is_published(data):
    source = open_source(str(data / "electra"))
    assert network_variables.check(source.config, source.shapes, "") == ()
    assert "bert/pooler/dense/kernel" not in source.shapes and source.architecture == ELECTRA
    assert sorted(source.left_out) == [
        "bert/embeddings/word_embeddings/adam_m",
        "discriminator_predictions/dense/bias",
        "generator/encoder/layer_0/output/dense/bias",
    ]


def flags_of(data, project, output_dir, **changes):
    folder = data / project
    vocab_file = {"albert": "30k-clean.model", "electra": "vocab.txt"}[project]
    config = {"albert": "albert_config.json", "electra": "bert_config.json"}[project]
    return classifier_flags(
        data,
        output_dir,
        vocab_file=folder / vocab_file,
        bert_config_file=folder / config,
        init_checkpoint=folder,
        max_seq_length=24,
        log_every_secs=0,
        **changes,
    )


def main(flags):
    return run_classifier.main(["run_classifier.py", *flags, "--do_train", "--do_eval"])


# Hugging Face's files; tests/interchange has what transformers wrote and computed


def electra_with(tmp_path, name):
    """Writes transformers' ELECTRA below a head that has a weight of this name."""

    def changed(tensors):
        whole = {f"electra.{name}": value for name, value in tensors.items()}
        return {**whole, name: np.ones([16, 16], np.float32)}

    return fixtures.changed(tmp_path, "hf_electra", changed)


def test_an_electra_of_transformers_with_its_discriminator(tmp_path):
    name = "discriminator_predictions.dense.weight"
    source = open_source(str(electra_with(tmp_path, name)))
    assert source.left_out == (name,)
    assert source.architecture == ELECTRA and source.config.embedding_size == 8


def test_a_classifier_of_electra_is_not_berts(tmp_path):
    folder = electra_with(tmp_path, "classifier.dense.weight")
    with pytest.raises(ValueError, match=r"unknown here: classifier.dense.weight. They are Elect"):
        open_source(str(folder))
    source = open_source(str(fixtures.DATA / "hf_electra"))
    weights = {name: source.read(name) for name in source.shapes}
    head = {"output_weights": np.ones([2, 16]), "output_bias": np.ones([2])}
    message = "transformers does not have an ELECTRA with the heads output_weights in one model"
    with pytest.raises(ValueError, match=f"^{message}"):
        weight_files.write(str(tmp_path), source, {**weights, **head}, None)


@pytest.mark.parametrize("embedding_size", [None, pytest.param(8, marks=pytest.mark.slow)])
def test_an_electra_stays_one_in_both_formats(tmp_path, embedding_size):
    """The base and the large ELECTRA have a BERT's sizes."""
    config = bert_config(30, **{**TINY, "embedding_size": embedding_size}, hidden_act="gelu_erf")
    config = BertConfig(**config)
    values = fixtures.random_weights(config)
    values = {name: v for name, v in values.items() if not name.startswith("bert/pooler/")}
    values = {network_variables.to_tf1(n, ELECTRA): v for n, v in values.items()}
    folder = tmp_path / "published"
    folder.mkdir()
    write_vocab([*SPECIAL_TOKENS, *words(30)], str(folder / "vocab.txt"))
    (folder / "bert_config.json").write_text(config.to_json_string())
    save(str(folder / "electra_base"), values)
    for source, target in (("published", "hf"), ("hf", "tf1"), ("tf1", "tf1_again")):
        to = "hf" if target == "hf" else "tf1"
        assert convert(["x", str(tmp_path / source), str(tmp_path / target), f"--to={to}"]) == 0
        copy = open_source(str(tmp_path / target))
        assert network_variables.architecture_of(copy) == ELECTRA and copy.config == config
        shapes = network_variables.encoder_shapes(config)
        rows = init_checkpoint.match(copy, shapes)
        assert [name for name, _, what in rows if what == "new"] == [
            "bert/pooler/dense/kernel", "bert/pooler/dense/bias",
        ]  # fmt: skip
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert written["architectures"] == ["ElectraModel"]
    assert written["embedding_size"] == config.embedding_width()
    stored = dict(tf.train.list_variables(str(tmp_path / "tf1_again" / "bert_model.ckpt")))
    assert set(stored) == set(values)


def test_the_other_gelu_is_refused_for_an_electra(data):
    source = open_source(str(data / "electra"))
    init_checkpoint.check_config(source, source.config)
    config = dataclasses.replace(source.config, hidden_act="gelu")
    with pytest.raises(ArgumentError, match='is an ELECTRA, whose hidden_act is "gelu_erf", but '):
        init_checkpoint.check_config(dataclasses.replace(source, config=None), config)
    with pytest.raises(ValueError, match='whose hidden_act is "gelu_erf"'):
        dataclasses.replace(source, config=config).with_files(None, None)


COMBINED = {"optimizer": "lamb", "micro_batch_size": 2, "recompute": True}


@pytest.mark.slow
@pytest.mark.parametrize("project", ["albert", "electra"])
def test_a_fine_tuning_on_both_runtimes(data, tmp_path, xla_runtime, project):
    """LAMB, micro-batches and recomputed layers on two cores equal LAMB alone on one."""
    assert main(flags_of(data, project, tmp_path / "one", optimizer="lamb")) == 0
    cores = flags_of(data, project, tmp_path / "two", tpu_name="rehearse:2", **COMBINED)
    assert main(cores) == 0
    one, two = (
        [without_timing(record) for record in metrics_of(tmp_path / name)]
        for name in ("one", "two")
    )
    assert any("loss" in record for record in one)
    for record, other in zip(one, two, strict=True):
        assert other == pytest.approx(record, rel=1e-3, abs=1e-6)
    check_run(tmp_path / "one", tmp_path, project)


def check_run(run, tmp_path, project):
    """Exports a run's network in every way that it has."""
    target = str(tmp_path / "google")
    assert convert(["interchange", str(run), target, "--to=tf1"]) == 0
    source, copy = open_source(str(run)), open_source(target)
    assert copy.config == source.config
    np.testing.assert_equal(fixtures.weights_of(copy), fixtures.weights_of(source))
    stored = tf.train.load_checkpoint(f"{target}/bert_model.ckpt").get_variable_to_shape_map()
    names = {"albert": ALBERT_NAMES, "electra": ELECTRA_NAMES}[project]
    assert {name for name in names if not name.startswith("cls/")} <= set(stored)
    # transformers' ELECTRA has another classifier.
    code = convert(["interchange", str(run), str(tmp_path / "hf")])
    assert code == {"albert": 0, "electra": 2}[project]
    if project == "albert":
        assert (tmp_path / "hf" / "spiece.model").exists()
        np.testing.assert_allclose(
            Embedder(str(tmp_path / "hf"))(["w1 w2"]), Embedder(str(run))(["w1 w2"]), atol=1e-5
        )
