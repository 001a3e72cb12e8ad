"""BERT: the network of Devlin et al. (2018), with google-research/bert's variables and numerics.

Letters of the shapes:
    B  examples in the batch (may be unknown when the graph is built)
    F  positions attended from: the sequence length (may be unknown, too, but not on TPUs)
    T  positions attended to: equal to F here
    N  attention heads
    D  size of a head
    H  hidden size, N * D
    E  width of the embeddings: H in BERT, less in ALBERT and ELECTRA

The network computes in the dtype of the variable scope (see `precision.scope`); layer norm, softmax
and the sum of the embeddings are always float32. Between layers the activations are matrices
[B * F, H], so every dense layer is one matrix product.
"""

import functools
import math
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from bert_estimator import precision
from bert_estimator.bert_config import BertConfig as BertConfig  # models use modeling.BertConfig
from bert_estimator.layers import activations, embeddings, primitives
from bert_estimator.layers import recompute as recompute_lib
from bert_estimator.layers.attention import attend
from bert_estimator.layers.embeddings import gather_lookup as gather_lookup
from bert_estimator.layers.embeddings import one_hot_lookup as one_hot_lookup
from bert_estimator.layers.initializers import weight as weight
from bert_estimator.layers.normalization import layer_norm as layer_norm
from bert_estimator.xla_context import in_xla_program

# A function (x, rate) -> tensor of x's shape and dtype, such as a `dropout.Dropout`.
DropoutFn = Callable[[tf.Tensor, float], tf.Tensor]


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
        dropout: DropoutFn | None = None,
        recompute: bool = False,
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
          dropout: function (x, rate) -> tensor like x, such as a `dropout.Dropout`. It is called
            with x of shape [B, ...], and multiplies each element by a factor that does not depend
            on x. It is needed if `is_training` and a dropout probability is above 0.
          recompute: Python bool; if True, training keeps only the input of each layer, and computes
            the layer again for its gradient, which takes less memory and a third more work. It
            needs a `dropout.Dropout`, which can draw the same masks again.

        Raises:
          ValueError: a shape does not fit the configuration, or `dropout` is needed and missing.
        """
        hidden_rate = config.hidden_dropout_prob if is_training else 0.0
        attention_rate = config.attention_probs_dropout_prob if is_training else 0.0
        if dropout is None:
            _check_no_dropout(hidden_rate, attention_rate)
        input_ids = tf.convert_to_tensor(input_ids)
        sequence_length = _check_inputs(config, input_ids, input_mask, token_type_ids)
        if input_mask is None:
            input_mask = tf.ones_like(input_ids)
        if token_type_ids is None:
            token_type_ids = tf.zeros_like(input_ids)

        # A default name would be made unique in each call; with a given name, calls under reuse
        # open the same scope.
        with tf.variable_scope(scope or "bert", use_resource=True):
            with tf.variable_scope("embeddings"):
                hidden, self._embedding_table = embed(
                    config, input_ids, token_type_ids, use_one_hot_embeddings
                )
                if hidden_rate:
                    hidden = dropout(hidden, hidden_rate)
                # Because of this cast the encoder runs in the compute dtype.
                hidden = tf.cast(hidden, precision.compute_dtype())
                self._embedding_output = hidden
                hidden = tf.reshape(hidden, [-1, config.embedding_width()])
            layer = _layer_fn(config, input_mask, hidden_rate, attention_rate)
            if recompute and is_training:
                layer = functools.partial(recompute_lib.recompute, layer)
            with tf.variable_scope("encoder"):
                if config.embedding_width() != config.hidden_size:
                    hidden, self._embedding_output = _widened(config, hidden, sequence_length)
                layers = _stack(layer, config, hidden, dropout)
            shape = [-1, sequence_length, config.hidden_size]
            self._all_encoder_layers = [tf.reshape(layer, shape) for layer in layers]
            with tf.variable_scope("pooler"):
                self._pooled_output = _pooled(config, self.get_sequence_output())
        self.config = config

    def get_pooled_output(self) -> tf.Tensor:
        """Returns [B, H] in the compute dtype: tanh of a dense layer on the first token."""
        return self._pooled_output

    def get_sequence_output(self) -> tf.Tensor:
        """Returns the output of the last layer, [B, F, H] in the compute dtype."""
        return self._all_encoder_layers[-1]

    def get_all_encoder_layers(self) -> list[tf.Tensor]:
        """Returns the outputs of all layers in order, each [B, F, H] in the compute dtype."""
        return self._all_encoder_layers

    def get_embedding_output(self) -> tf.Tensor:
        """Returns the input of the first layer, [B, F, H] in the compute dtype."""
        return self._embedding_output

    def get_embedding_table(self) -> tf.Variable:
        """Returns the word embeddings, a float32 variable [vocab_size, E]."""
        return self._embedding_table


def embed(
    config: BertConfig,
    input_ids: tf.Tensor,
    token_type_ids: tf.Tensor,
    use_one_hot_embeddings: bool,
) -> tuple[tf.Tensor, tf.Variable]:
    """Sums the embeddings as `embeddings.embed` does, and applies layer norm to the sum."""
    total, word_table = embeddings.embed(config, input_ids, token_type_ids, use_one_hot_embeddings)
    return layer_norm(total), word_table


def transformer_layer(
    config: BertConfig,
    x: tf.Tensor,
    input_mask: tf.Tensor,
    hidden_rate: float,
    attention_rate: float,
    dropout: DropoutFn | None,
) -> tf.Tensor:
    """Builds one encoder layer, attention and feed-forward, on x [B * F, H].

    Returns:
      A tensor of x's shape and dtype.
    """
    sequence_length = embeddings.length_of(input_mask)

    def project_and_add(values, residual):
        values = dense(values, config.hidden_size, config.initializer_range, "dense")
        if hidden_rate:
            examples = tf.reshape(values, [-1, sequence_length, config.hidden_size])
            values = tf.reshape(dropout(examples, hidden_rate), [-1, config.hidden_size])
        return layer_norm(values, residual)

    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            context = self_attention(config, x, input_mask, attention_rate, dropout)
        with tf.variable_scope("output"):
            attention = project_and_add(context, x)
    with tf.variable_scope("intermediate"):
        intermediate = dense(attention, config.intermediate_size, config.initializer_range, "dense")
        intermediate = activations.ACTIVATIONS[config.hidden_act](intermediate)
    with tf.variable_scope("output"):
        return project_and_add(intermediate, attention)


def self_attention(
    config: BertConfig,
    x: tf.Tensor,
    input_mask: tf.Tensor,
    attention_rate: float,
    dropout: DropoutFn | None,
) -> tf.Tensor:
    """Builds multi-head self-attention (Vaswani et al., 2017, section 3.2).

    Args:
      config: the network's sizes.
      x: [B * F, H] in the compute dtype.
      input_mask: int32 [B, T], 1 for positions that may be attended to.
      attention_rate: dropout rate of the probabilities.
      dropout: function (x, rate) -> tensor like x.

    Returns:
      [B * F, H] in the compute dtype, the heads side by side.
    """
    sequence_length = embeddings.length_of(input_mask)
    num_heads = config.num_attention_heads
    head_size = config.hidden_size // num_heads
    # A TPU stores tensors in tiles of 8 by 128 elements. Tiles whose last dimension is D, which is
    # 64, would be half empty, and to avoid them the compiler moves whole tensors to and fro. So in
    # programs for XLA the positions come last, where the product itself puts them. In a session,
    # a product with [B * F, H] is fastest.
    columns = in_xla_program()

    def heads(name, scale=None):
        arguments = (config.hidden_size, config.initializer_range, name)
        if columns:
            values = _dense_columns(tf.reshape(x, [-1, sequence_length, x.shape[1]]), *arguments)
            return tf.reshape(values, [-1, num_heads, head_size, sequence_length])
        values = dense(x, *arguments, scale)
        values = tf.reshape(values, [-1, sequence_length, num_heads, head_size])
        return tf.transpose(values, [0, 2, 1, 3])

    # `query` = [B, N, F, D]; `key`, `value` = [B, N, T, D]; with columns D comes before F and T.
    # In a session, the factor 1 / sqrt(D) of the scores is applied to the query's weights, which
    # takes H * H products instead of B * N * F * T. `attend` applies it in a program for XLA, where
    # its products cost nothing and weights that are only cast are gathered from the cores in the
    # compute dtype; and in a portable graph, whose requests may have fewer scores than weights.
    scale, scale_of_scores = 1.0 / math.sqrt(head_size), None
    if columns or primitives.is_portable():
        scale, scale_of_scores = None, scale
    query = heads("query", scale)
    key = heads("key")
    value = heads("value")

    context = attend(
        query, key, value, input_mask, dropout, attention_rate, columns, scale_of_scores
    )
    return tf.reshape(context, [-1, config.hidden_size])


def dense(
    x: tf.Tensor, units: int, initializer_range: float, name: str, scale: float | None = None
) -> tf.Tensor:
    """Multiplies x [rows, n] by `name`/kernel [n, units] and adds `name`/bias [units].

    Args:
      x: [rows, n] in the compute dtype.
      units: columns of the output.
      initializer_range: standard deviation of the initial kernel.
      name: name of the variable scope.
      scale: a factor of the output; it is applied to the weights, in float32.

    Returns:
      [rows, units] in the compute dtype.
    """
    with tf.variable_scope(name):
        kernel, bias = _kernel_and_bias(x, units, initializer_range, scale)
        return primitives.bias_add(tf.matmul(x, kernel), bias)


def _dense_columns(x, units, initializer_range, name):
    """Does what `dense` does, for x [B, F, n]; returns [B, units, F]."""
    with tf.variable_scope(name):
        kernel, bias = _kernel_and_bias(x, units, initializer_range)
        # The product wants its kernel in another layout than its gradient. Without the barrier, the
        # compiler would choose this layout for the variable and all that is updated with it, and
        # move all of these in float32.
        kernel = primitives.barrier(kernel)
        return tf.einsum("nu,bfn->buf", kernel, x) + bias[:, tf.newaxis]


def _kernel_and_bias(x, units, initializer_range, scale=None):
    """Returns the weights of a dense layer on x [..., n], in the compute dtype."""
    dtype = precision.compute_dtype()
    stored = None if scale is None else tf.float32
    kernel = weight("kernel", [x.shape.as_list()[-1], units], initializer_range, stored)
    bias = tf.get_variable("bias", [units], dtype=stored, initializer=tf.zeros_initializer())
    if scale is None:
        return kernel, bias
    return tf.cast(kernel * scale, dtype), tf.cast(bias * scale, dtype)


def _widened(config, x, sequence_length):
    """Maps embeddings x [B * F, E] to the hidden size; returns them as [B * F, H] and [B, F, H]."""
    name = "embedding_hidden_mapping_in"  # ALBERT's; ELECTRA calls it embeddings_project
    x = dense(x, config.hidden_size, config.initializer_range, name)
    return x, tf.reshape(x, [-1, sequence_length, config.hidden_size])


def _layer_fn(config, input_mask, hidden_rate, attention_rate):
    """Returns a layer as a function of its input and the dropout."""

    def layer(x, dropout):
        return transformer_layer(config, x, input_mask, hidden_rate, attention_rate, dropout)

    return layer


def _pooled(config, sequence_output):
    """Returns tanh of a dense layer on the first token of a layer [B, F, H]: [B, H]."""
    if in_xla_program():
        # The gradient of a slice is a tensor with zeros for all other tokens. A TPU writes it in
        # another layout than sequence_output's, and moves it. The gradient of a gather is added in
        # place.
        positions = tf.zeros_like(sequence_output[:, :1, 0], tf.int32)
        first = tf.gather(sequence_output, positions, batch_dims=1)[:, 0, :]
    else:
        first = sequence_output[:, 0, :]
    return tf.tanh(dense(first, config.hidden_size, config.initializer_range, "dense"))


def _stack(layer, config, hidden, dropout):
    """Applies layers to `hidden`; returns all their outputs. Layers of a group share a scope."""
    outputs, groups = [], set()
    for index in range(config.num_hidden_layers):
        group = config.group_of(index)
        with tf.variable_scope(f"layer_{group}", reuse=group in groups or None):
            hidden = layer(hidden, dropout)
        groups.add(group)
        outputs.append(hidden)
    return outputs


def _check_no_dropout(hidden_rate, attention_rate):
    """Raises ValueError if a rate is above 0: there is no function that draws the masks."""
    if max(hidden_rate, attention_rate) > 0:
        raise ValueError(
            f"BertModel(is_training=True) with hidden_dropout_prob={hidden_rate} and "
            f"attention_probs_dropout_prob={attention_rate} needs its random numbers: pass "
            "dropout=bert_estimator.layers.dropout.Dropout(seed, step), or set both to 0."
        )


def _check_inputs(config, input_ids, input_mask, token_type_ids):
    """Returns the sequence length; raises ValueError if a shape does not fit."""
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
    for name, other in (("input_mask", input_mask), ("token_type_ids", token_type_ids)):
        if other is not None and not other.shape.is_compatible_with(shape):
            raise ValueError(
                f"{name} has shape {other.shape}; it must have input_ids' shape {shape}."
            )
    return embeddings.length_of(input_ids)
