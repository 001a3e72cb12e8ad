"""BERT: the network of Devlin et al. (2018), with google-research/bert's variables and numerics.

Letters of the shapes:
    B  examples in the batch (may be unknown when the graph is built)
    F  positions attended from: the sequence length (may be unknown, too, but not on TPUs)
    T  positions attended to: equal to F here
    S  sequences: B, unless rows are packed
    N  attention heads
    D  size of a head
    H  hidden size, N * D
    E  width of the embeddings: H in BERT, less in ALBERT and ELECTRA

The network computes in the dtype of the variable scope (see `precision.scope`); layer norm, softmax
and the sum of the embeddings are always float32. Between layers the activations are matrices
[B * F, H], so every dense layer is one matrix product.

A packed row holds several sequences, so that less padding is computed. A token attends within its
sequence, and each sequence has positions from 0 and a pooled output of its own: the outputs
equal the outputs of sequences in rows of their own, up to rounding (Krell et al., 2021, section
3.2).
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_estimator import precision
from bert_estimator.bert_config import BertConfig as BertConfig  # models use modeling.BertConfig
from bert_estimator.layers import dropout as dropout_lib
from bert_estimator.layers import embeddings, kernels
from bert_estimator.layers import recompute as recompute_lib
from bert_estimator.layers.embeddings import gather_lookup as gather_lookup
from bert_estimator.layers.embeddings import one_hot_lookup as one_hot_lookup
from bert_estimator.layers.embeddings import weight
from bert_estimator.layers.kernels.masks import Mask
from bert_estimator.layers.primitives import length_of


class BertModel:
    """Builds the encoder: embeddings, transformer layers, pooler.

    config = modeling.BertConfig.preset("tiny", vocab_size=30522)
    model = modeling.BertModel(config, is_training=False, input_ids=input_ids)
    logits = tf.matmul(model.get_pooled_output(), weights)
    """

    def __init__(
        self,
        config: BertConfig,
        is_training: bool,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor | None = None,
        token_type_ids: tf.Tensor | None = None,
        use_one_hot_embeddings: bool = False,
        scope: str | None = None,
        dropout: dropout_lib.Dropout | None = None,
        recompute: bool = False,
        position_ids: tf.Tensor | None = None,
        sequence_starts: tf.Tensor | None = None,
    ):
        """Builds the graph of the network.

        Args:
          config: the network's sizes.
          is_training: Python bool; if False, dropout is off.
          input_ids: int32 [B, F], ids in the vocabulary.
          input_mask: int32 [B, F], 1 for tokens and 0 for padding; None means all ones.
          token_type_ids: int32 [B, F], below type_vocab_size; None means all zeros.
          use_one_hot_embeddings: Python bool; if True, embeddings are looked up by a product with
            one-hot rows (faster on TPUs), else by gather.
          scope: name of the variable scope; None means "bert".
          dropout: draws the masks; it is needed if `is_training` and a dropout probability is above
            0.
          recompute: Python bool; if True, training keeps only the input of each layer, and computes
            the layer again for its gradient, which takes less memory and a third more work.
          position_ids: int32 [B, F], below max_position_embeddings; None for 0, 1, 2 and so on.
          sequence_starts: int32 [S]; None if each row is a sequence. If it is given, rows are
            packed: `input_mask` has the number of each token's sequence in its row, from 1, and 0
            for padding; and the first token of sequence s is token sequence_starts[s] of the
            B * F tokens of all rows, one row after the other.

        Raises:
          TypeError: `dropout` is not a `Dropout`.
          ValueError: a shape does not fit the configuration, or `dropout` is needed and missing.
        """
        hidden_rate = config.hidden_dropout_prob if is_training else 0.0
        attention_rate = config.attention_probs_dropout_prob if is_training else 0.0
        _check_dropout(dropout, hidden_rate, attention_rate)
        features = input_mask, token_type_ids, position_ids
        inputs = _checked(config, input_ids, *features, sequence_starts)
        self._position_ids, self._sequence_starts = position_ids, sequence_starts
        is_packed = sequence_starts is not None
        rows = inputs.computed_rows() if is_packed else inputs  # all rows, unless they are packed

        # A default name would be made unique in each call; with a given name, calls under reuse
        # open the same scope.
        with tf.variable_scope(scope or "bert", use_resource=True):
            with tf.variable_scope("embeddings"):
                total, self._embedding_table = embeddings.embed(
                    config,
                    rows.input_ids,
                    rows.token_type_ids,
                    use_one_hot_embeddings,
                    rows.position_ids,
                )
                hidden = layer_norm(total, epsilon=config.layer_norm_eps)
                if hidden_rate:
                    hidden = dropout(hidden, hidden_rate)
                # Because of this cast the encoder runs in the compute dtype.
                hidden = tf.cast(hidden, precision.compute_dtype())
                hidden = tf.reshape(hidden, [-1, config.embedding_width()])
            layer = _layer_fn(config, rows.input_mask, is_packed, hidden_rate, attention_rate)
            if recompute and is_training:
                layer = functools.partial(recompute_lib.recompute, layer)
            with tf.variable_scope("encoder"):
                if config.embedding_width() != config.hidden_size:
                    hidden = _widened(config, hidden)
                self._embedding_output = inputs.with_empty_rows(hidden, rows)
                layers = _stack(layer, config, hidden, dropout)
            self._tokens = layers[-1]  # of the rows that are computed, one after the other
            self._all_encoder_layers = [inputs.with_empty_rows(layer, rows) for layer in layers]
            with tf.variable_scope("pooler"):
                self._pooled_output = _pooled(config, self._first_tokens())
        self.config = config

    def get_pooled_output(self) -> tf.Tensor:
        """Returns [S, H] in the compute dtype: tanh of a dense layer on each first token."""
        return self._pooled_output

    def get_sequence_output(self) -> tf.Tensor:
        """Returns the output of the last layer, [B, F, H] in the compute dtype."""
        return self._all_encoder_layers[-1]

    def tokens_at(self, positions: tf.Tensor) -> tf.Tensor:
        """Returns the last layer's output at int32 positions [S, P] of sequences: [S * P, H].

        Positions [M], as always if rows are packed, are places among the B * F tokens of all rows:
        [M, H].
        """
        if self._sequence_starts is not None or positions.shape.rank == 1:
            return tf.gather(self._tokens, positions)
        tokens = tf.gather(self.get_sequence_output(), positions, batch_dims=1)
        return tf.reshape(tokens, [-1, self.config.hidden_size])

    def by_sequence(self, values: tf.Tensor, padding: float = 0.0) -> tf.Tensor:
        """Turns values of tokens, float [B, F, n], into [S, F, n]: each sequence in its own row.

        If rows are packed, what follows a sequence is `padding`; else the values are returned.
        """
        if self._sequence_starts is None:
            return values
        positions = tf.range(length_of(values))
        places = self._sequence_starts[:, tf.newaxis] + positions
        places = tf.minimum(places, tf.size(self._position_ids) - 1)
        # Positions begin anew with each sequence, and are 0 in padding. So only in the sequence
        # itself is a token as far from its start as its position says.
        position_ids = tf.gather(tf.reshape(self._position_ids, [-1]), places)
        is_own = tf.equal(position_ids, positions)[..., tf.newaxis]
        own = tf.gather(tf.reshape(values, [-1, values.shape.as_list()[-1]]), places)
        return tf.where_v2(is_own, own, tf.constant(padding, values.dtype))

    def _first_tokens(self):
        """Returns the last layer's output at the first token of each sequence, [S, H]."""
        if self._sequence_starts is None:
            return kernels.of_graph().first_token(self.get_sequence_output())
        return tf.gather(self._tokens, self._sequence_starts)  # packed rows only

    def get_all_encoder_layers(self) -> list[tf.Tensor]:
        """Returns the outputs of all layers in order, each [B, F, H] in the compute dtype."""
        return self._all_encoder_layers

    def get_embedding_output(self) -> tf.Tensor:
        """Returns the input of the first layer, [B, F, H] in the compute dtype."""
        return self._embedding_output

    def get_embedding_table(self) -> tf.Variable:
        """Returns the word embeddings, a float32 variable [vocab_size, E]."""
        return self._embedding_table


class _Inputs(NamedTuple):
    """Holds the features of rows, int32 [B, F]; `position_ids` may be None."""

    input_ids: tf.Tensor
    input_mask: tf.Tensor
    token_type_ids: tf.Tensor
    position_ids: tf.Tensor | None

    def computed_rows(self) -> "_Inputs":
        """Returns the features of the packed rows that are to be computed."""
        number = kernels.of_graph().used_rows(self.input_mask)
        return self if number is None else _Inputs(*(feature[:number] for feature in self))

    def with_empty_rows(self, values: tf.Tensor, computed: "_Inputs") -> tf.Tensor:
        """Returns values [computed tokens, n] as [B, F, n]; empty rows, if packed, are zeros."""
        values = tf.reshape(values, [-1, length_of(self.input_ids), values.shape.as_list()[1]])
        if computed is self:
            return values
        missing = tf.shape(self.input_ids)[0] - tf.shape(values)[0]
        values = tf.pad(values, [[0, missing], [0, 0], [0, 0]])
        return tf.ensure_shape(values, self.input_ids.shape.concatenate(values.shape[-1]))


def transformer_layer(
    config: BertConfig,
    x: tf.Tensor,
    input_mask: tf.Tensor,
    is_packed: bool,
    hidden_rate: float,
    attention_rate: float,
    dropout: dropout_lib.Dropout | None,
) -> tf.Tensor:
    """Builds one encoder layer, attention and feed-forward, on x [B * F, H].

    Returns:
      A tensor of x's shape and dtype.
    """
    sequence_length = length_of(input_mask)

    def project_and_add(values, residual):
        values = dense(values, config.hidden_size, config.initializer_range, "dense")
        if hidden_rate:
            examples = tf.reshape(values, [-1, sequence_length, config.hidden_size])
            values = tf.reshape(dropout(examples, hidden_rate), [-1, config.hidden_size])
        return layer_norm(values, residual, epsilon=config.layer_norm_eps)

    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            context = self_attention(config, x, input_mask, is_packed, attention_rate, dropout)
        with tf.variable_scope("output"):
            attention = project_and_add(context, x)
    with tf.variable_scope("intermediate"):
        intermediate = dense(attention, config.intermediate_size, config.initializer_range, "dense")
        intermediate = activate(config, intermediate)
    with tf.variable_scope("output"):
        return project_and_add(intermediate, attention)


def self_attention(
    config: BertConfig,
    x: tf.Tensor,
    input_mask: tf.Tensor,
    is_packed: bool,
    attention_rate: float,
    dropout: dropout_lib.Dropout | None,
) -> tf.Tensor:
    """Builds multi-head self-attention (Vaswani et al., 2017, section 3.2.2).

    Args:
      config: the network's sizes.
      x: [B * F, H] in the compute dtype.
      input_mask: int32 [B, T], 1 for positions that may be attended to; in packed rows, the number
        of each position's sequence.
      is_packed: whether rows are packed.
      attention_rate: dropout rate of the probabilities.
      dropout: draws the masks; it may be None if the rate is 0.

    Returns:
      [B * F, H] in the compute dtype, the heads side by side.
    """
    target, num_heads = kernels.of_graph(), config.num_attention_heads

    def weights(name, factor=None):
        dtype = None if factor is None else tf.float32
        with tf.variable_scope(name):
            stored = _kernel_and_bias(x, config.hidden_size, config.initializer_range, dtype)
        return stored if factor is None else [tf.cast(w * factor, x.dtype) for w in stored]

    # The scores are scaled, or the weights of the query are, in float32.
    scale = 1.0 / math.sqrt(config.hidden_size // num_heads)
    of_weights, of_scores = (scale, None) if target.SCALES_QUERY else (None, scale)
    projections = weights("query", of_weights), weights("key"), weights("value")
    query, key, value = target.heads(x, projections, length_of(input_mask), num_heads)
    drop = functools.partial(dropout.mask, rate=attention_rate) if attention_rate else None
    context = _attend(query, key, value, input_mask, is_packed, of_scores, drop)
    return tf.reshape(context, [-1, config.hidden_size])


def _attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    input_mask: tf.Tensor,
    is_packed: bool,
    scale: float | None,
    drop: Callable[[tf.Tensor], Mask | None] | None,
) -> tf.Tensor:
    """Returns softmax(query key^T * scale) value (section 3.2.1), [B, F, N, D]; the arguments are
    as the target's `heads` lays them out, and `drop` draws the mask of the probabilities."""
    target = kernels.of_graph()
    scores = target.products(query, key)  # [B, N, F, T], like logits, probs and dropped
    if scale is not None:
        scores = tf.cast(scores, tf.float32) * scale
    logits = target.masked_logits(scores, input_mask, is_packed)
    probs = target.softmax(logits)
    mask = drop(probs) if drop else None
    dropped = dropout_lib.masked(probs, mask, value.dtype)
    # The means of the values, weighted by `dropped`; what follows them is for their gradient alone.
    return target.means(dropped, value, scores, logits, probs, mask)


def dense(x: tf.Tensor, units: int, initializer_range: float, name: str) -> tf.Tensor:
    """Multiplies x [rows, n] by `name`/kernel [n, units] and adds `name`/bias [units].

    Args:
      x: [rows, n] in the compute dtype.
      units: columns of the output.
      initializer_range: standard deviation of the initial kernel.
      name: name of the variable scope.

    Returns:
      [rows, units] in the compute dtype.
    """
    with tf.variable_scope(name):
        kernel, bias = _kernel_and_bias(x, units, initializer_range)
        return kernels.of_graph().bias_add(tf.matmul(x, kernel), bias)


def activate(config: BertConfig, x: tf.Tensor) -> tf.Tensor:
    """Applies the activation that the configuration names; returns a tensor of x's shape, dtype.

    "gelu" is the tanh form of the Gaussian Error Linear Unit (Hendrycks & Gimpel, 2016), and
    "gelu_erf" is x * Phi(x), which Hugging Face's transformers calls "gelu". The others have its
    names.
    """
    target = kernels.of_graph()
    functions = {
        "gelu": target.gelu,
        "gelu_erf": target.gelu_erf,
        "relu": tf.nn.relu,
        "tanh": tf.tanh,
        "linear": tf.identity,
        "silu": lambda x: x * tf.sigmoid(x),
        "quick_gelu": lambda x: x * tf.sigmoid(1.702 * x),
        "mish": lambda x: x * tf.tanh(tf.nn.softplus(x)),
        "relu6": tf.nn.relu6,
        "leaky_relu": lambda x: tf.nn.leaky_relu(x, alpha=0.01),
    }
    return functions[config.hidden_act](x)


def layer_norm(*addends: tf.Tensor, epsilon: float = 1e-12) -> tf.Tensor:
    """Normalizes the last dimension of a sum, and scales and shifts it by LayerNorm/gamma and beta.

    This is the layer norm of Ba et al., 2016. The statistics and the gradients are float32.

    Args:
      *addends: tensors of one shape, [..., H] with a static H, and one dtype.
      epsilon: what is added to the variance.

    Returns:
      A tensor of that shape and dtype.
    """
    width = addends[0].shape.as_list()[-1]
    with tf.variable_scope("LayerNorm"):
        beta = tf.get_variable("beta", [width], tf.float32, tf.zeros_initializer())
        gamma = tf.get_variable("gamma", [width], tf.float32, tf.ones_initializer())
        inputs = [tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta), *addends]
        return kernels.of_graph().layer_norm(epsilon, *inputs)


def _kernel_and_bias(x, units, initializer_range, dtype=None):
    """Returns a dense layer's weights on x [..., n], in the compute dtype or the given one."""
    kernel = weight("kernel", [x.shape.as_list()[-1], units], initializer_range, dtype)
    bias = tf.get_variable("bias", [units], dtype=dtype, initializer=tf.zeros_initializer())
    return kernel, bias


def _widened(config, x):
    """Maps embeddings x [B * F, E] to the hidden size: [B * F, H]."""
    name = "embedding_hidden_mapping_in"  # ALBERT's; ELECTRA calls it embeddings_project
    return dense(x, config.hidden_size, config.initializer_range, name)


def _layer_fn(config, input_mask, is_packed, hidden_rate, attention_rate):
    """Returns a layer as a function of its input and the dropout."""

    def layer(x, dropout):
        rates = (hidden_rate, attention_rate)
        return transformer_layer(config, x, input_mask, is_packed, *rates, dropout)

    return layer


def _pooled(config, first):
    """Returns tanh of a dense layer on the first tokens of sequences, [S, H]."""
    return tf.tanh(dense(first, config.hidden_size, config.initializer_range, "dense"))


def _stack(layer, config, hidden, dropout):
    """Applies layers to `hidden`; returns all their outputs."""
    outputs, groups = [], set()
    for index in range(config.num_hidden_layers):
        # Layers of a group share a scope, and so their weights.
        group = config.group_of(index)
        with tf.variable_scope(f"layer_{group}", reuse=group in groups or None):
            hidden = layer(hidden, dropout)
        groups.add(group)
        outputs.append(hidden)
    return outputs


def _check_dropout(dropout, hidden_rate, attention_rate):
    """Raises an error if what draws the masks is not a `Dropout`, or is missing and needed."""
    if dropout is not None and not isinstance(dropout, dropout_lib.Dropout):
        raise TypeError(
            f"BertModel: dropout={dropout!r} must be a bert_estimator.layers.dropout.Dropout."
        )
    if dropout is None and max(hidden_rate, attention_rate) > 0:
        raise ValueError(
            f"BertModel(is_training=True) with hidden_dropout_prob={hidden_rate} and "
            f"attention_probs_dropout_prob={attention_rate} needs its random numbers: pass "
            "dropout=bert_estimator.layers.dropout.Dropout(seed, step), or set both to 0."
        )


def _checked(config, input_ids, input_mask, token_type_ids, position_ids, sequence_starts):
    """Returns the features as `_Inputs`; raises ValueError if one is missing or does not fit."""
    input_ids = tf.convert_to_tensor(input_ids)
    shape = input_ids.shape
    if shape.rank != 2:
        raise ValueError(
            f"input_ids ({input_ids.name}) has shape {shape}, not [batch, sequence length]."
        )
    sequence_length = shape.as_list()[1]
    if (sequence_length or 0) > config.max_position_embeddings:
        raise ValueError(
            f"input_ids ({input_ids.name}): sequences of {sequence_length} tokens, but "
            f"max_position_embeddings={config.max_position_embeddings}; use shorter sequences, "
            "or a configuration with more positions."
        )
    others = {
        "input_mask": input_mask,
        "token_type_ids": token_type_ids,
        "position_ids": position_ids,
    }
    for name, other in others.items():
        if other is not None and not other.shape.is_compatible_with(shape):
            raise ValueError(
                f"{name} has shape {other.shape}; it must have input_ids' shape {shape}."
            )
    # Packed rows have no defaults: ones and positions from 0 would join their sequences.
    _check_packing(input_mask, position_ids, sequence_starts)
    if input_mask is None:
        input_mask = tf.ones_like(input_ids)
    if token_type_ids is None:
        token_type_ids = tf.zeros_like(input_ids)
    return _Inputs(input_ids, input_mask, token_type_ids, position_ids)


def _check_packing(input_mask, position_ids, sequence_starts):
    """Raises ValueError if what packed rows need is missing."""
    if sequence_starts is None:
        return
    if input_mask is None or position_ids is None:
        raise ValueError(
            "sequence_starts says that rows are packed. Packed rows need input_mask, the number of "
            "each token's sequence, and position_ids, too."
        )
    if sequence_starts.shape.rank != 1:
        raise ValueError(
            f"sequence_starts has shape {sequence_starts.shape}; it must be [sequences]."
        )
