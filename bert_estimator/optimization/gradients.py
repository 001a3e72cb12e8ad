"""The gradients of a step: dense, summed over micro-batches, clipped by their global norm.

Micro-batches are a core's batch in parts, in one step, with the gradients of the whole batch.
Clipping follows Pascanu et al., 2013, "On the difficulty of training RNNs".
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2

from bert_estimator.graph.graph_walk import in_xla_program
from bert_estimator.optimization.parts import Part

# Each operation of an update reads and writes memory for every weight. Compiled by XLA, elementwise
# pieces read and write a variable, its gradient and its slots a few times, and without new memory.
# For fewer weights than this, a computation saves less in a whole training than it takes to compile
# it.
LEAST_ELEMENTS = 1 << 18

Tensors = dict[str, tf.Tensor]


def accumulate(
    loss_fn: Callable[[Tensors, tf.Tensor], tuple[tf.Tensor, Tensors]],
    features: Tensors,
    micro_batch_size: int | None = None,
    variables: Sequence[tf.Variable] | Callable[[str], bool] | None = None,
) -> tuple[tf.Tensor, Tensors, list[tuple[tf.Tensor | None, tf.Variable]]]:
    """Computes the loss of a batch and its gradients, micro-batch after micro-batch.

        num_masked = tf.reduce_sum(features["masked_lm_weights"])     # of the whole batch

        def loss_fn(micro_features, first_row):
            ...
            return tf.reduce_sum(weights * losses) / num_masked, {"correct": num_correct}

        loss, outputs, grads_and_vars = accumulate(loss_fn, features, micro_batch_size=32)

    Everything is summed and nothing is averaged: `loss_fn` returns the micro-batch's *share* of the
    batch's loss, already divided by what the whole batch is divided by. So the result equals the
    result of the undivided batch, up to float rounding, and no state is carried between steps.

    A single micro-batch is the plain graph. Several micro-batches are one `tf.while_loop` around
    the graph of a micro-batch: neither the graph nor the memory for activations grows with their
    number. Initializers without a seed of their own draw other values in the loop, because TF1
    derives their seeds from the place in the graph.

    Args:
      loss_fn: function (micro_features, first_row) -> (loss share, outputs). micro_features has the
        keys of `features`, with [M, ...] tensors. first_row is the index in the batch of their
        first row, an int32 scalar tensor. The loss share is a float scalar. outputs is a dict of
        tensors of static shapes, to be summed over the micro-batches. With several micro-batches
        the function is called twice, both times to build the same graph: it must not carry state
        from call to call, and must make its variables with `tf.get_variable`.
      features: dict of [B, ...] tensors.
      micro_batch_size: M, which divides B; None or a larger number than B means B.
      variables: the variables to differentiate by; None means `tf.trainable_variables()` after the
        network is built, and a function of a variable's name says which of these.

    Returns:
      (loss, outputs, grads_and_vars): a float32 scalar; a dict like `loss_fn`'s outputs, summed;
      and a list of (float32 gradient of the variable's shape, variable). The gradient is None if
      the loss does not depend on the variable.

    Raises:
      ValueError: M is below 1 or does not divide B; B or an output's shape is not static; or the
        features have different numbers of rows.
    """
    num_micro_batches = _count(features, micro_batch_size)
    if num_micro_batches == 1:
        return _differentiate(loss_fn, features, tf.constant(0), variables)
    sums, variables, used = _build_once(loss_fn, features, micro_batch_size, variables)
    loss, outputs, gradients = _loop(
        loss_fn, features, num_micro_batches, micro_batch_size, sums, used
    )
    by_variable = {
        variable.ref(): gradient for variable, gradient in zip(used, gradients, strict=True)
    }
    return (
        loss,
        outputs,
        [(by_variable.get(variable.ref()), variable) for variable in variables],
    )


def _loop(loss_fn, features, num_micro_batches, micro_batch_size, sums, variables):
    """Returns the loss, the outputs and the gradients by `variables`, summed over all
    micro-batches, one after the other; for `sums` see `_build_once`."""

    def add_micro_batch(index, loss, outputs, gradients):
        first_row = index * micro_batch_size
        # `_build_once` has made the variables.
        with _same_scope(reuse=True):
            share, more_outputs, more_gradients = _differentiate(
                loss_fn, _rows(features, first_row, micro_batch_size), first_row, variables
            )
        return (
            index + 1,
            loss + share,
            {name: outputs[name] + more_outputs[name] for name in outputs},
            [total + more for total, (more, _) in zip(gradients, more_gradients, strict=True)],
        )

    _, *summed = tf.while_loop(
        lambda index, *_: index < num_micro_batches,
        add_micro_batch,
        (
            tf.constant(0),
            tf.constant(0.0),
            {name: tf.zeros(shape, dtype) for name, (shape, dtype) in sums.items()},
            [tf.zeros(variable.shape) for variable in variables],
        ),
        # Each further iteration would keep the activations of another micro-batch.
        parallel_iterations=1,
        name="micro_batches",
    )
    return summed


def _build_once(loss_fn, features, micro_batch_size, variables):
    """Builds a micro-batch into a graph that never runs; returns `sums`, the (shape, dtype) of each
    output, all variables to differentiate by, and the variables that have a gradient."""
    # The loop needs the shapes of its sums, and which gradients are None, before its body is built;
    # and the variables have to exist outside of the loop.
    # A FuncGraph captures tensors from the graph around it, shares its variable scopes and
    # collections, and creates variables outside of itself. (A tf.function around loss_fn would do
    # the same, but while it traces it replaces variables by a class of its own. A first micro-batch
    # in front of the loop would not need this graph, but the network would be compiled twice.)
    with tf2.__internal__.FuncGraph("micro_batch").as_default(), _same_scope():
        _, outputs, gradients = _differentiate(
            loss_fn, _rows(features, 0, micro_batch_size), tf.constant(0), variables
        )
        sums = {name: _spec(name, tensor) for name, tensor in outputs.items()}
    variables = [variable for _, variable in gradients]
    used = [variable for gradient, variable in gradients if gradient is not None]
    return sums, variables, used


def _differentiate(loss_fn, features, first_row, variables):
    """Returns a micro-batch's float32 loss share, outputs, [(float32 gradient, variable)]."""
    loss, outputs = loss_fn(features, first_row)
    if variables is None or callable(variables):
        chosen = variables or (lambda name: True)
        variables = [v for v in tf.trainable_variables() if chosen(name_of(v))]
    gradients = [to_dense_float32(gradient) for gradient in tf.gradients(loss, variables)]
    return tf.cast(loss, tf.float32), outputs, list(zip(gradients, variables, strict=True))


def _same_scope(reuse=None):
    """Returns the current variable scope, opened anew."""
    # A scope that is opened by object counts the names of unnamed layers from where the scope
    # stood, and forgets them at its end: both builds give "dense", not "dense" and "dense_1".
    return tf.variable_scope(tf.get_variable_scope(), reuse=reuse, auxiliary_name_scope=False)


def _count(features, micro_batch_size):
    """Returns the number of micro-batches; raises ValueError if the batch cannot be divided."""
    if micro_batch_size is None:
        return 1
    if micro_batch_size < 1:
        raise ValueError(
            f"micro_batch_size={micro_batch_size}: must be at least 1, or None to compute a core's "
            "batch in one piece."
        )
    # A loop has slices of one size, which must be known before it is built.
    batch_sizes = {name: tensor.shape.as_list()[0] for name, tensor in features.items()}
    for name, batch_size in batch_sizes.items():
        if batch_size is None:
            raise ValueError(
                f"micro_batch_size={micro_batch_size} needs a static batch size, but feature "
                f"{name!r} has shape {features[name].shape}; batch with drop_remainder=True."
            )
    if len(set(batch_sizes.values())) > 1:
        raise ValueError(
            f"micro_batch_size={micro_batch_size} needs features with the same number of rows, but "
            f"they have {batch_sizes}."
        )
    batch_size = next(iter(batch_sizes.values()))
    if micro_batch_size >= batch_size:
        return 1
    if batch_size % micro_batch_size:
        divisors = [size for size in range(1, batch_size + 1) if batch_size % size == 0]
        raise ValueError(
            f"micro_batch_size={micro_batch_size} does not divide a core's batch of {batch_size}; "
            f"choose one of {divisors}, or another batch size."
        )
    return batch_size // micro_batch_size


def _rows(features, first_row, num_rows):
    """Returns the rows [first_row, first_row + num_rows) of each [B, ...] tensor of a dict."""
    return {
        name: tf.slice(
            tensor,
            [first_row] + [0] * (tensor.shape.rank - 1),
            [num_rows] + [-1] * (tensor.shape.rank - 1),
        )
        for name, tensor in features.items()
    }


def _spec(name, tensor):
    """Returns (shape, dtype) of an output; raises ValueError if its shape is not static."""
    if not tensor.shape.is_fully_defined():
        raise ValueError(
            f"Output {name!r} of loss_fn has shape {tensor.shape}, but sums over micro-batches "
            "need a static shape. Return a sum over the output's rows."
        )
    return tensor.shape, tensor.dtype


def name_of(variable: tf.Variable) -> str:
    """Returns the variable's name as checkpoints have it: without the ":0" of its tensor."""
    return variable.name.rsplit(":", 1)[0]


def to_dense_float32(gradient: tf.Tensor | tf.IndexedSlices | None) -> tf.Tensor | None:
    """Makes a gradient dense and float32. No other function turns sparse gradients into dense ones.

    The gradient of an embedding lookup is an `IndexedSlices` with a row for each looked-up id. Rows
    of the same id are summed here, in float32, because what follows needs the sum: the norm of a
    sum differs from the norm of its parts.

    Args:
      gradient: float tensor of any shape, a `tf.IndexedSlices` with a dense shape, or None.

    Returns:
      A float32 tensor of the variable's shape; None if `gradient` is None.

    Raises:
      ValueError: an `IndexedSlices` does not know its dense shape.
    """
    if gradient is None:
        return None
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.cast(gradient, tf.float32)
    if gradient.dense_shape is None:
        raise ValueError(
            f"Sparse gradient {gradient.values.name} has no dense_shape, so its duplicate rows "
            "cannot be summed; build the IndexedSlices with dense_shape=tf.shape(variable)."
        )
    return tf.math.unsorted_segment_sum(
        tf.cast(gradient.values, tf.float32), gradient.indices, gradient.dense_shape[0]
    )


def before_cast(gradient: tf.Tensor) -> tf.Tensor:
    """Returns the bfloat16 tensor that a float32 gradient is a cast of, else the gradient.

    A weight that is computed with in bfloat16 has such a gradient. What reads it casts it again
    while it reads, so that a step does not write and read it in float32.
    """
    if tf.executing_eagerly() or gradient.op.type != "Cast":
        return gradient
    (source,) = gradient.op.inputs
    return source if source.dtype == tf.bfloat16 else gradient


def clip_by_global_norm(
    gradients: Sequence[tf.Tensor | tf.IndexedSlices | Part | None], max_norm: float
) -> tuple[list[tf.Tensor | Part | None], tf.Tensor]:
    """Multiplies gradients by `clipping_scale`, whose arguments and errors it has.

    Returns:
      (clipped, global_norm): a list of dense float32 tensors of the gradients' shapes, with None in
      the places of None, and `Part`s in the places of `Part`s; and the norm before clipping.
    """
    dense = [g if isinstance(g, Part) else to_dense_float32(g) for g in gradients]
    scale, norm = clipping_scale(dense, max_norm)
    return [_scaled(gradient, scale) for gradient in dense], norm


def clipping_scale(
    gradients: Sequence[tf.Tensor | tf.IndexedSlices | Part | None], max_norm: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the factor by which gradients have a joint L2 norm of at most `max_norm`.

    The joint norm is the float32 norm of all gradients as one long vector. If it is infinite or
    NaN, the factor is NaN, as in `tf.clip_by_global_norm`, so that the failure is seen. (max_norm /
    infinity is 0, which would turn an overflow into a step without gradients.) Unlike in
    `tf.clip_by_global_norm`, duplicate rows of a sparse gradient count as their sum.

    Args:
      gradients: float tensors, `tf.IndexedSlices`, `Part`s and None, of any shapes. Each gradient
        must be the sum over the whole batch: clipping addends before adding them is another
        algorithm.
      max_norm: number > 0.

    Returns:
      (scale, global_norm): float32 scalars; `ChainOptimizer.apply_gradients` takes the first.

    Raises:
      ValueError: `max_norm` is not a finite number > 0, or every gradient is None.
    """
    if not (math.isfinite(max_norm) and max_norm > 0.0):
        raise ValueError(
            f"clip_by_global_norm: max_norm={max_norm} must be finite and > 0; BERT clips to 1.0. "
            "To train without clipping, do not call it."
        )
    with tf.name_scope("clip_by_global_norm"):
        parts = [gradient for gradient in gradients if isinstance(gradient, Part)]
        whole = [g for g in gradients if g is not None and not isinstance(g, Part)]
        halves = [_half_square(before_cast(to_dense_float32(gradient))) for gradient in whole]
        if parts:
            half = tf.add_n([tf.nn.l2_loss(part.value) for part in parts])
            halves.append(parts[0].shards.sum(half))
        if not halves:
            raise ValueError(
                "clip_by_global_norm: every gradient is None: the loss does not depend on any of "
                "the variables."
            )
        norm = tf.sqrt(2.0 * tf.add_n(halves), name="global_norm")
        scale = tf.where(tf.math.is_finite(norm), max_norm / tf.maximum(norm, max_norm), math.nan)
        return scale, norm


def _half_square(gradient):
    """Returns half the sum of squares of a float32 or bfloat16 tensor, a float32 scalar."""
    size = gradient.shape.num_elements() or 0
    if gradient.dtype == tf.float32 or in_xla_program() or size < LEAST_ELEMENTS:
        return tf.nn.l2_loss(tf.cast(gradient, tf.float32))
    # TensorFlow would write what it casts.
    return tf.reduce_sum(_compiled_addends(gradient.shape, gradient.dtype)(gradient))


@functools.cache
def _compiled_addends(*spec):
    with tf.Graph().as_default():
        function = tf.function(addends_of_squares, jit_compile=True, autograph=False)
        return function.get_concrete_function(tf.TensorSpec(*spec))


def addends_of_squares(x: tf.Tensor) -> tf.Tensor:
    """Returns an eighth as many numbers, whose sum is half the sum of a float tensor's squares; for
    computations by XLA on a CPU, of a static shape."""
    # There XLA adds what is to become one number in one thread, and number by number. What it adds
    # here are rows that follow each other in memory, in all threads, and several numbers at a time.
    size = x.shape.num_elements()
    rows = math.gcd(size, 8)
    blocks = tf.reshape(tf.cast(x, tf.float32), [-1, rows, math.gcd(size // rows, 64)])
    return 0.5 * tf.add_n([tf.square(row) for row in tf.unstack(blocks, axis=1)])


def _scaled(gradient, scale):
    if isinstance(gradient, Part):
        return dataclasses.replace(gradient, value=gradient.value * scale)
    return None if gradient is None else gradient * scale
