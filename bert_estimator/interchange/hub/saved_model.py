"""A network as TF Hub has it: a SavedModel of TensorFlow 2 that is called with dicts of ids.

It has the names and shapes of the TensorFlow Model Garden, and the interface of
bert_en_uncased_L-12_H-768_A-12: it is loaded by `tf.saved_model.load` or `hub.KerasLayer`, and can
be trained further.

    encoder = tf.saved_model.load("my_bert")
    outputs = encoder(
        {"input_word_ids": ids, "input_mask": mask, "input_type_ids": segment_ids}, training=False
    )
    outputs["pooled_output"], outputs["sequence_output"], outputs["encoder_outputs"]

The inputs are int32 [B, F]. With the head of masked words, `encoder.mlm` takes
`masked_lm_positions`, int32 [B, P], besides, and gives `mlm_logits` [B, P, V].

Letters: B examples, F sequence length, P positions, V tokens of the vocabulary, H hidden size.
"""

import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator import heads, modeling
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_files, network_variables
from bert_estimator.interchange.source import BERT, Source
from bert_estimator.interchange.weights import fixed_batch, logits_of
from bert_estimator.layers import primitives
from bert_estimator.tokenization import Tokenizer

# The graph is another than the comparison's: sums may be in another order.
_TOLERANCE = 1e-5

_INPUTS = {
    "input_word_ids": "input_ids",
    "input_mask": "input_mask",
    "input_type_ids": "token_type_ids",
}

# From our names to the Model Garden's: one pattern after the other.
_NAMES = (
    (r"^bert/encoder/", "transformer/"),
    (r"^bert/pooler/dense/", "pooler_transform/"),
    (r"^bert/embeddings/word_embeddings$", "word_embeddings/embeddings"),
    (r"^bert/embeddings/position_embeddings$", "position_embedding/embeddings"),
    (r"^bert/embeddings/token_type_embeddings$", "type_embeddings/embeddings"),
    (r"^bert/embeddings/LayerNorm/", "embeddings/layer_norm/"),
    (r"/attention/self/", "/self_attention/"),
    (r"/attention/output/dense/", "/self_attention/attention_output/"),
    (r"/attention/output/LayerNorm/", "/self_attention_layer_norm/"),
    (r"/(intermediate|output)/dense/", r"/\1/"),
    (r"/output/LayerNorm/", "/output_layer_norm/"),
    (r"^cls/predictions/output_bias$", "cls/predictions/output_bias/bias"),
)


def names_left_out(source: Source) -> list[str]:
    """Returns the names of the weights that a module does not hold: the next sentence's."""
    return [name for name in source.shapes if name.startswith(network_variables.NEXT_SENTENCE)]


def write(
    folder: str, source: Source, weights: Mapping[str, np.ndarray], tokenizer: Tokenizer
) -> None:
    """Writes a module into an empty directory, and compares its outputs with the network's.

    Args:
      folder: the directory.
      source: `Source` of the model, with its configuration and its vocabulary.
      weights: name -> float32 array: an encoder with its pooler, and the head of masked
        words or none.
      tokenizer: the tokenizer of the vocabulary; it says the casing if the source does not.

    Raises:
      ValueError: the network is not BERT or has heads that modules do not have; or the outputs of
        what was written differ.
    """
    architecture = network_variables.architecture_of(source)
    if architecture != BERT:
        raise ValueError(
            f"{source.path}: is an {architecture.upper()}, and TF Hub's layout here is BERT's; "
            "--to=tf1 writes it"
        )
    shapes = {name: list(value.shape) for name, value in weights.items()}
    own_heads = network_variables.check(source.config, shapes, source.path)
    if not set(own_heads) <= {network_variables.MASKED_LM}:
        raise ValueError(
            f"{source.path}: has the head of a task, and TF Hub's modules of BERT hold what comes "
            "before it; --do_export of the run writes a SavedModel with it, and --to=hf or "
            "--to=tf1 keeps it"
        )
    if not any(name.startswith(network_variables.POOLER) for name in weights):
        raise ValueError(f"{source.path}: does not have a pooler, whose output a module gives")
    casing = source.casing or tokenizer.casing
    with tf.init_scope(), tempfile.TemporaryDirectory() as beside:
        network_files.write(beside, dataclasses.replace(source, **casing._asdict()))
        module = _Encoder(source.config, weights)
        files = {name: os.path.join(beside, name) for name in os.listdir(beside)}
        module.files = [tf.saved_model.Asset(path) for path in files.values()]
        vocabularies = (network_files.VOCABULARY, network_files.SENTENCE_PIECE)
        module.vocab_file = next(
            asset for name, asset in zip(files, module.files, strict=True) if name in vocabularies
        )
        module.do_lower_case = tf.Variable(
            casing.do_lower_case, trainable=False, name="do_lower_case"
        )
        tf.saved_model.save(module, folder, signatures={"serving_default": module.serve})
        _check(tf.saved_model.load_v2(folder), source.config, weights)


class _Encoder(tf.Module):
    """The object that is saved; the names of its public attributes are TF Hub's."""

    variables = trainable_variables = None  # properties of tf.Module, which would not be saved

    def __init__(self, config: BertConfig, weights: Mapping[str, np.ndarray]):
        super().__init__()
        self._config, self._names = config, tuple(weights)
        self.variables = [
            tf.Variable(_with_heads(name, value, config), name=_theirs(name), use_resource=True)
            for name, value in weights.items()
        ]
        # What comes out of a call does not depend on the head of masked words.
        self.trainable_variables = [
            variable
            for name, variable in zip(weights, self.variables, strict=True)
            if not name.startswith(network_variables.MASKED_LM)
        ]
        self.regularization_losses = []
        ids = {name: tf.TensorSpec([None, None], tf.int32, name) for name in _INPUTS}
        _trace(self.__call__, ids)
        self.serve = tf.function(self._serve, [ids], autograph=False)
        if f"{network_variables.MASKED_LM}/output_bias" in weights:
            positions = tf.TensorSpec([None, None], tf.int32, "masked_lm_positions")
            self.mlm = tf.function(self._masked_lm, autograph=False)
            _trace(self.mlm, {**ids, "masked_lm_positions": positions})

    @tf.function(autograph=False)
    def __call__(self, inputs, training=False, mask=None):
        del mask  # Keras may pass it; input_mask says what is padding
        with self._weights():
            return _outputs(self._network(inputs, training))

    def _serve(self, inputs):
        outputs = self(inputs)
        del outputs["encoder_outputs"]  # a signature's outputs are tensors, not lists
        return outputs

    def _masked_lm(self, inputs, training=False, mask=None):
        del mask
        positions = inputs["masked_lm_positions"]
        with self._weights():
            network = self._network(inputs, training)
            scores = heads.masked_lm_logits(network, positions)
        shape = [-1, tf.shape(positions)[1], self._config.vocab_size]
        return {**_outputs(network), "mlm_logits": tf.reshape(scores, shape)}

    def _network(self, inputs, training):
        return modeling.BertModel(
            self._config,
            is_training=training,
            **{ours: inputs[theirs] for theirs, ours in _INPUTS.items()},
            dropout=lambda x, rate: tf.nn.dropout(x, rate=rate),
        )

    @contextlib.contextmanager
    def _weights(self):
        """Lets the network find the module's variables, in the shapes that it has for them."""
        by_name = dict(zip(self._names, self.variables, strict=True))

        def stored(getter, name, shape, **_):
            del getter
            return tf.reshape(by_name[name], shape)

        scope = tf.variable_scope(tf.get_variable_scope(), custom_getter=stored)
        with scope, primitives.portable(is_trained=True):
            yield


def _trace(function, inputs):
    """Traces a function for both values of a keyword that TF Hub's callers give."""
    for training in (True, False):
        function.get_concrete_function(inputs, training=training)


def _outputs(network):
    pooled = network.get_pooled_output()
    return {
        "default": pooled,
        "pooled_output": pooled,
        "sequence_output": network.get_sequence_output(),
        "encoder_outputs": network.get_all_encoder_layers(),
    }


def _theirs(name):
    """Returns the Model Garden's name of one of our weights."""
    for pattern, theirs in _NAMES:
        name = re.sub(pattern, theirs, name)
    return name


def _with_heads(name, value, config):
    """Returns a weight in the shape that the Model Garden has for it; see `hub`."""
    heads_and_size = [config.num_attention_heads, -1]
    if "/attention/self/" in name:
        return np.reshape(value, [*value.shape[:-1], *heads_and_size])
    if name.endswith("/attention/output/dense/kernel"):
        return np.reshape(
            value, [config.num_attention_heads, value.shape[0] // config.num_attention_heads, -1]
        )
    return value


def _check(module, config, weights):
    """Raises ValueError if the outputs of a module are not what its weights give."""
    batch = fixed_batch(config)
    expected = logits_of(config, weights)
    ids = {**_INPUTS, "input_type_ids": "segment_ids"}
    inputs = {theirs: tf.constant(batch[name]) for theirs, name in ids.items()}
    outputs = module(inputs, training=False)
    for name in ("sequence_output", "pooled_output"):
        difference = float(np.max(np.abs(outputs[name].numpy() - expected[name])))
        if not difference <= _TOLERANCE:  # a NaN does not agree
            raise ValueError(f"{name} of the written module differs by {difference:g}")
