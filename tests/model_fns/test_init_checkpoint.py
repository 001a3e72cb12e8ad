"""Starting from another model's weights."""

import contextlib
import re
import shutil

import fixtures
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import heads, modeling
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import Source, network_variables
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.interchange.hugging_face import weight_files
from bert_estimator.model_fns import init_checkpoint
from bert_estimator.system.errors import ArgumentError
from bert_estimator.tokenization import SPECIAL_TOKENS, open_tokenizer, write_vocab


@pytest.fixture
def checkpoint(tmp_path):
    """A trained model with a variable of the new one, a head of its own, slots and a step."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("bert/kernel", initializer=np.full([2, 3], 7.0, np.float32))
        tf.get_variable("bert/kernel/adam_m", initializer=np.ones([2, 3], np.float32))
        tf.get_variable("head/bias", initializer=np.ones([3], np.float32))
        tf.train.create_global_step()
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(tmp_path / "model.ckpt"), write_meta_graph=False)


def model(kernel_shape=(2, 3), name="bert/kernel"):
    """Variables of a new model: a kernel, a bias, a slot and a step."""
    tf.get_variable(name, kernel_shape, initializer=tf.zeros_initializer())
    tf.get_variable("output_bias", [3], initializer=tf.zeros_initializer())
    tf.get_variable(
        "bert/kernel/adam_m", [2, 3], initializer=tf.zeros_initializer(), trainable=False
    )
    return tf.train.create_global_step()


def values_after(scaffold, own=None):
    """What an opened session has in its variables, with a checkpoint of its own or none."""
    reads = {v.op.name: tf.identity(v) for v in tf.global_variables()}
    creator = tf.train.ChiefSessionCreator(scaffold, checkpoint_filename_with_path=own)
    with tf.train.MonitoredSession(creator) as session:
        return session.run(reads)


def match(checkpoint, shapes, **options):
    return init_checkpoint.match(init_checkpoint.open_source(checkpoint), shapes, **options)


def test_without_a_checkpoint_there_is_nothing_to_do():
    assert init_checkpoint.scaffold_fn(None) is None


@pytest.mark.parametrize("is_resource", [True, False])
def test_weights_alone_are_initialized_and_the_table_says_which(checkpoint, is_resource):
    lines = []

    def log(text, *args):
        lines.extend((text % args).splitlines())

    with tf.Graph().as_default(), tf.variable_scope("", use_resource=is_resource):
        model()
        values = values_after(init_checkpoint.scaffold_fn(checkpoint, log=log)())
    assert values["global_step"] == 0
    np.testing.assert_array_equal(values["bert/kernel"], np.full([2, 3], 7.0))
    np.testing.assert_array_equal(values["output_bias"], np.zeros(3))
    np.testing.assert_array_equal(values["bert/kernel/adam_m"], np.zeros([2, 3]))
    assert [line.rstrip() for line in lines] == [
        f"Initial weights from {checkpoint}: 1 restored, 1 new, 1 initialized, 3 unused",
        "  restored     bert/kernel                        [2, 3]",
        "  new          output_bias                        [3]",
        "  initialized  optimizer's slots and counters: 2",
        "  unused       global_step",
        "  unused       head/bias                          [3]",
        "  unused       optimizer's slots: 1",
    ]


def test_a_checkpoint_of_the_models_own_outranks_it_and_no_table_is_printed(checkpoint, tmp_path):
    own = str(tmp_path / "own.ckpt")
    with tf.Graph().as_default(), tf.Session() as session:
        model()
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, own)
    lines = []
    with tf.Graph().as_default():
        model()
        options = {"allow_partial_init": True, "log": lines.append}
        scaffold = init_checkpoint.scaffold_fn(checkpoint, **options)()
        values = values_after(scaffold, own)
    np.testing.assert_array_equal(values["bert/kernel"], np.zeros([2, 3]))
    assert lines == []


def test_another_shape_is_an_error(checkpoint):
    message = (
        f"init_checkpoint={checkpoint}: does not fit the configuration of the network:\n"
        "  bert/kernel: [2, 4] in the model, [2, 3] in the checkpoint\n"
        "Use the configuration that the checkpoint was made with; or allow_partial_init, to"
    )
    with tf.Graph().as_default():
        model(kernel_shape=(2, 4))
        with pytest.raises(ArgumentError, match=f"^{re.escape(message)}"):
            init_checkpoint.scaffold_fn(checkpoint)()
        values = values_after(init_checkpoint.scaffold_fn(checkpoint, allow_partial_init=True)())
    np.testing.assert_array_equal(values["bert/kernel"], np.zeros([2, 4]))


def test_a_head_of_another_shape_is_no_new_head(checkpoint):
    shapes = {"bert/kernel": [2, 3], "head/bias": [4]}
    message = r"head/bias: \[4\] in the model, \[3\] in the checkpoint"
    with pytest.raises(ArgumentError, match=message):
        match(checkpoint, shapes)


@pytest.mark.parametrize(
    ("name", "may_be_new"),
    [
        ("output_bias", True),
        ("bert/pooler/dense/kernel", True),
        ("cls/predictions/output_bias", True),
        ("cls/squad/output_bias", True),
        ("bert/encoder/layer_7/output/dense/bias", False),
        ("bert/embeddings/word_embeddings", False),
        ("head/weights", False),  # the checkpoint has another part of this head
    ],
)
def test_a_new_variable_is_an_error_in_what_the_checkpoint_has(checkpoint, name, may_be_new):
    shapes = {"bert/kernel": [2, 3], "head/bias": [3], name: [3]}
    message = rf"of the network:\n  {name}: \[3\] in the model, not in the checkpoint\n"
    with contextlib.nullcontext() if may_be_new else pytest.raises(ArgumentError, match=message):
        match(checkpoint, shapes)
    assert (name, [3], "new") in match(checkpoint, shapes, allow_partial_init=True)


def test_weights_of_a_part_that_the_model_has_must_be_used(checkpoint):
    shapes = {"bert/kernel": [2, 3], "head/weights": [3, 3]}
    message = r"  head/bias: \[3\] in the checkpoint, not in the model\nUse"
    with pytest.raises(ArgumentError, match=message):
        match(checkpoint, shapes)
    rows = match(checkpoint, shapes, allow_partial_init=True)
    assert ("head/bias", [3], "unused") in rows


def test_a_checkpoint_of_something_else_is_an_error(checkpoint):
    message = (
        rf"init_checkpoint={checkpoint}: does not hold any of the model's 1 variables. The model's "
        r"begin with \['other/kernel'\], the checkpoint's with \['bert/kernel', 'head/bias'\]"
    )
    for allow_partial_init in (False, True):
        with pytest.raises(ArgumentError, match=message):
            match(checkpoint, {"other/kernel": [2, 3]}, allow_partial_init=allow_partial_init)


def test_what_cannot_be_opened_is_an_error_of_the_flag(tmp_path):
    with (
        tf.Graph().as_default(),
        pytest.raises(ArgumentError, match=r"^init_checkpoint: .*holds neit"),
    ):
        init_checkpoint.scaffold_fn(str(tmp_path))()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 4}, "num_attention_heads=12, but the configuration of .* has 4"),
        ({"hidden_act": "relu"}, "hidden_act='gelu', but the configuration of .* has 'relu'"),
    ],
)
def test_a_network_that_differs_in_what_no_shape_shows(checkpoint, tmp_path, change, message):
    (tmp_path / "bert_config.json").write_text('{"vocab_size": 9}')
    with tf.Graph().as_default():
        model()
        init_checkpoint.scaffold_fn(checkpoint, BertConfig(9), allow_partial_init=True)()
        with pytest.raises(ArgumentError, match=f"{checkpoint}: is of a network with {message}"):
            init_checkpoint.scaffold_fn(checkpoint, BertConfig(9, **change))()


BERT = "bert/embeddings/LayerNorm/"


def spoiled(tmp_path, form, bad):
    """A small model in one of the formats, with values at the start of its last dimension."""
    config = BertConfig(
        9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4
    )
    generator = np.random.default_rng(0)
    shapes = network_variables.encoder_shapes(config)
    weights = {n: generator.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    for name, value in bad.items():
        weights[name][..., 0] = value
    vocab_file = str(tmp_path / "words.txt")
    write_vocab([*SPECIAL_TOKENS, "a", "b"], vocab_file)
    source = Source("here", form, {}, weights.get, config=config, vocab_file=vocab_file)
    writer = {"tf1": tf1_checkpoint, "hf": weight_files}[form]
    writer.write(str(tmp_path), source, weights, open_tokenizer(vocab_file))
    return str(tmp_path), weights


@pytest.mark.parametrize("form", ["tf1", "hf"])
def test_weights_that_are_not_finite_are_named_before_the_first_step(tmp_path, form):
    """Only weights that the model uses are named; the others may hold anything."""
    bad = {f"{BERT}gamma": np.nan, "bert/pooler/dense/kernel": -np.inf, f"{BERT}beta": np.inf}
    path, weights = spoiled(tmp_path, form, bad)
    names = [f"{BERT}gamma", f"{BERT}beta", "bert/pooler/dense/bias"]

    def values(chosen):
        with tf.Graph().as_default():
            for name in chosen:
                tf.get_variable(name, weights[name].shape)
            return values_after(init_checkpoint.scaffold_fn(path, allow_partial_init=True)())

    with pytest.raises(ArgumentError) as raised:
        values(names)
    assert str(raised.value) == (
        f"init_checkpoint={path}: these weights are not finite: {BERT}gamma, {BERT}beta. "
        "Training cannot start from them; use an earlier checkpoint"
    )
    (found,) = values(["bert/pooler/dense/bias"]).values()
    np.testing.assert_array_equal(found, weights["bert/pooler/dense/bias"])


# What transformers' networks lack for pretraining.
LACKING = {
    "hf_pretraining": "",
    "hf_albert": "",
    "hf_masked_lm": "pooler (bert/pooler) and no next-sentence head (cls/seq_relationship)",
    "hf_encoder": "masked-word head (cls/predictions) and no next-sentence head "
    "(cls/seq_relationship)",
    "hf_classifier": "masked-word head (cls/predictions) and no next-sentence head "
    "(cls/seq_relationship)",
    "hf_electra": "pooler (bert/pooler) and no masked-word head (cls/predictions) and no "
    "next-sentence head (cls/seq_relationship)",
}


@pytest.mark.parametrize("job", ["pretraining", "classification", "tagging"])
@pytest.mark.parametrize("name", LACKING)
def test_every_network_of_transformers_starts_every_job(tmp_path, logged, name, job):
    """What the file has computes what transformers computed; one line says what else is needed."""
    path = str(shutil.copytree(fixtures.DATA / name, tmp_path / name))
    expected = dict(np.load(f"{path}/logits.npz"))
    with tf.Graph().as_default():
        config = init_checkpoint.open_source(path).config
        batch = {name: tf.constant(value) for name, value in np.load(f"{path}/batch.npz").items()}
        batch["token_type_ids"] = batch.pop("segment_ids")
        model = modeling.BertModel(config, is_training=False, **batch)
        outputs = {"sequence_output": model.get_sequence_output()}
        outputs["pooled_output"] = model.get_pooled_output()
        size, length = batch["input_ids"].shape
        if job == "pretraining":
            logits = heads.masked_lm_logits(model, tf.tile([tf.range(length)], [size, 1]))
            outputs["masked_lm_logits"] = tf.reshape(logits, [size, length, -1])
            outputs["next_sentence_logits"] = heads.next_sentence_logits(model)
        else:
            for end, shape in (("weights", [3, config.hidden_size]), ("bias", [3])):
                tf.get_variable(f"output_{end}", shape)
        tf.train.create_global_step()
        scaffold = init_checkpoint.scaffold_fn(path, config, uses_pooler=job != "tagging")()
        for _ in range(2):  # as an evaluation and then the training do
            with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold)) as session:
                values = session.run(outputs)
    compared = values.keys() & expected.keys()
    assert "sequence_output" in compared
    for key in compared:
        np.testing.assert_allclose(values[key], expected[key], atol=1e-5)
    lacks = LACKING[name]
    if job != "pretraining":
        lacks = "pooler (bert/pooler)" * ("pooler" in lacks and job != "tagging")
    tied = ", but for the masked-word head's output weights, which are the word embeddings"
    tied *= "masked-word" in lacks
    said = [f"{path} has no {lacks}: what it lacks starts from new weights{tied}."] * bool(lacks)
    assert [text for _, text in logged if " has no " in text] == said
