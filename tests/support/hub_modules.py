"""Modules in TF Hub's two layouts, as other projects write them: without a bert_config.json."""

import math
import pathlib
import re

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

# tfhub_module.pb of a module in TF Hub's format 3: field 1 is 3.
FORMAT_3 = b"\x08\x03"

# The Model Garden's names of its later encoders, and what differs in the names of its first.
_LATER = {
    r"bert/embeddings/word_embeddings": "word_embeddings/embeddings",
    r"bert/embeddings/position_embeddings": "position_embedding/embeddings",
    r"bert/embeddings/token_type_embeddings": "type_embeddings/embeddings",
    r"bert/embeddings/LayerNorm/(\w+)": r"embeddings/layer_norm/\1",
    r"bert/encoder/(layer_\d+)/attention/self/(\w+/\w+)": r"transformer/\1/self_attention/\2",
    r"bert/encoder/(layer_\d+)/attention/output/dense/(\w+)": (
        r"transformer/\1/self_attention/attention_output/\2"
    ),
    r"bert/encoder/(layer_\d+)/attention/output/LayerNorm/(\w+)": (
        r"transformer/\1/self_attention_layer_norm/\2"
    ),
    r"bert/encoder/(layer_\d+)/(intermediate|output)/dense/(\w+)": r"transformer/\1/\2/\3",
    r"bert/encoder/(layer_\d+)/output/LayerNorm/(\w+)": r"transformer/\1/output_layer_norm/\2",
    r"bert/pooler/dense/(\w+)": r"pooler_transform/\1",
    r"cls/predictions/transform/(\w+/\w+)": r"cls/predictions/transform/\1",
    r"cls/predictions/output_bias": "cls/predictions/output_bias/bias",
}
_FIRST = {
    "position_embedding/embeddings": "embedding_postprocessor/position_embeddings",
    "type_embeddings/embeddings": "embedding_postprocessor/type_embeddings",
    "embeddings/layer_norm": "embedding_postprocessor/layer_norm",
    "transformer/layer": "encoder/layer",
    "self_attention/attention_output": "self_attention_output",
}


def write_tf2(folder, config, weights, vocab_file, do_lower_case, first=False, exact_gelu=False):
    """Writes a module of TensorFlow 2, with the Model Garden's first or later names."""
    module = tf2.Module()
    module.weights = [
        tf2.Variable(_with_heads(name, value, config.num_attention_heads), name=_name(name, first))
        for name, value in weights.items()
        if "seq_relationship" not in name
    ]
    module.vocab_file = tf2.saved_model.Asset(str(vocab_file))
    module.do_lower_case = tf2.Variable(do_lower_case, trainable=False, name="do_lower_case")

    def call(x):
        return tf2.nn.gelu(x, approximate=not exact_gelu)

    module.__call__ = tf2.function(call, [tf2.TensorSpec([None], tf2.float32)])
    tf2.saved_model.save(module, str(folder))
    return pathlib.Path(folder)


def _name(name, first):
    (theirs,) = (
        re.sub(pattern, later, name)
        for pattern, later in _LATER.items()
        if re.fullmatch(pattern, name)
    )
    for later, earlier in _FIRST.items() if first else ():
        theirs = theirs.replace(later, earlier)
    return f"bert_model/{theirs}" if first else theirs


def _with_heads(name, value, heads):
    if "/attention/self/" in name:
        return value.reshape(*value.shape[:-1], heads, -1)
    if name.endswith("/attention/output/dense/kernel"):
        return value.reshape(heads, -1, value.shape[-1])
    return value


def write_tf1(folder, config, weights, vocab_file, do_lower_case):
    """Writes a module of TensorFlow 1, as tensorflow_hub 0.12 did, with heads and a GELU."""
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.placeholder(tf.int32, [None, None], "input_ids")
        variables = {
            name: tf.get_variable(name, value.shape, use_resource=True)
            for name, value in weights.items()
        }
        with tf.name_scope("bert/encoder/layer_0/attention/self"):
            hidden = tf.gather(variables["bert/embeddings/word_embeddings"], ids)
            shape = tf.shape(ids)
            size = config.hidden_size // config.num_attention_heads
            query = tf.reshape(hidden, [shape[0], shape[1], config.num_attention_heads, size])
        with tf.name_scope("bert/encoder/layer_0/intermediate/dense"):
            cube = query + 0.044715 * tf.pow(query, 3)
            output = query * 0.5 * (1.0 + tf.tanh(math.sqrt(2 / math.pi) * cube))
        vocabulary = tf.constant(str(vocab_file), name="vocab_file")
        lower = tf.identity(tf.constant(do_lower_case, name="lower"), name="do_lower_case")
        info = tf.saved_model.utils.build_tensor_info
        signature = tf.saved_model.build_signature_def
        tf.add_to_collection(tf.GraphKeys.ASSET_FILEPATHS, vocabulary)
        builder = tf.saved_model.Builder(str(folder))
        session.run([variable.initializer for variable in variables.values()])
        for name, variable in variables.items():
            variable.load(np.float32(weights[name]), session)
        builder.add_meta_graph_and_variables(
            session,
            [],
            {
                "tokens": signature({"input_ids": info(ids)}, {"default": info(output)}),
                "tokenization_info": signature(
                    {}, {"vocab_file": info(vocabulary), "do_lower_case": info(lower)}
                ),
            },
            assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
        )
        builder.save()
    (pathlib.Path(folder) / "tfhub_module.pb").write_bytes(FORMAT_3)
    return pathlib.Path(folder)
