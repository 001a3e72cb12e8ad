"""Micro-batches: a core's batch in parts, inside one step, with the gradients of the whole."""

import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2

from bert_estimator.optimization.gradients import to_dense_float32


def accumulate(loss_fn, features, micro_batch_size=None, variables=None):
    """The loss of a batch and its gradients, computed micro-batch after micro-batch.

        num_masked = tf.reduce_sum(features["masked_lm_weights"])     # of the whole batch

        def loss_fn(micro_features, first_row):
            ...
            return tf.reduce_sum(weights * losses) / num_masked, {"correct": num_correct}

        loss, outputs, grads_and_vars = accumulate(loss_fn, features, micro_batch_size=32)

    Everything is summed, nothing averaged: `loss_fn` returns the micro-batch's *share* of the
    batch's loss, divided by what the whole batch is divided by. The result then equals that of the
    undivided batch, up to float rounding, and depends on no state between steps.

    One micro-batch is the plain graph. More are one `tf.while_loop` around one micro-batch: neither
    the graph nor the memory for activations grows with their number. Initializers without a seed of
    their own draw other values then, because TF1 derives their seeds from the place in the graph.

    Args:
        loss_fn: callable (micro_features, first_row) -> (loss share, outputs). micro_features has
            the keys of `features`, with [M, ...] tensors; first_row is the index in the batch of
            their first row, an int32 scalar tensor. The loss share is a float scalar; outputs is a
            dict of tensors of static shapes which are to be summed over the micro-batches. With
            more than one micro-batch it is called twice, both times to build the same graph: it
            must carry no state from call to call, and make its variables with `tf.get_variable`.
        features: dict of [B, ...] tensors.
        micro_batch_size: M, a Python int which divides B; None, or more than B, is B.
        variables: list of the variables to differentiate by; None is `tf.trainable_variables()`
            after the network is built.

    Returns:
        (loss, outputs, grads_and_vars): float32 scalar; dict as of `loss_fn`, summed; list of
        (float32 gradient of the variable's shape, variable), the gradient being None if the loss
        does not depend on the variable.

    Raises:
        ValueError: M is below 1 or does not divide B; B or an output's shape is not static; or
            features disagree about B.
    """
    num_micro_batches = _count(features, micro_batch_size)
    if num_micro_batches == 1:
        return _differentiate(loss_fn, features, tf.constant(0), variables)

    # The loop needs to know its sums' shapes, and which gradients are None, before its body is
    # built; and the variables have to exist outside of it. So the step is built once into a graph
    # that never runs. A FuncGraph captures tensors from the graph around it, shares its variable
    # scopes and collections, and creates variables outside of itself. (A tf.function around
    # loss_fn would be one as well, but replaces variables by a class of its own while tracing. A
    # first micro-batch in front of the loop would need no such graph; its cost is the network
    # compiled twice.)
    with tf2.__internal__.FuncGraph("micro_batch").as_default(), _same_scope():
        first = _differentiate(
            loss_fn, _rows(features, 0, micro_batch_size), tf.constant(0), variables
        )
        _, first_outputs, first_gradients = first
        sums = {name: _spec(name, tensor) for name, tensor in first_outputs.items()}
    variables = [variable for _, variable in first_gradients]
    used = [variable for gradient, variable in first_gradients if gradient is not None]

    def add_micro_batch(index, loss, outputs, gradients):
        first_row = index * micro_batch_size
        with _same_scope(reuse=True):
            share, more_outputs, more_gradients = _differentiate(
                loss_fn, _rows(features, first_row, micro_batch_size), first_row, used
            )
        return (
            index + 1,
            loss + share,
            {name: outputs[name] + more_outputs[name] for name in outputs},
            [total + more for total, (more, _) in zip(gradients, more_gradients, strict=True)],
        )

    _, loss, outputs, gradients = tf.while_loop(
        lambda index, *_: index < num_micro_batches,
        add_micro_batch,
        (
            tf.constant(0),
            tf.constant(0.0),
            {name: tf.zeros(shape, dtype) for name, (shape, dtype) in sums.items()},
            [tf.zeros(variable.shape) for variable in used],
        ),
        # More would keep the activations of as many micro-batches.
        parallel_iterations=1,
        name="micro_batches",
    )
    by_variable = {
        variable.ref(): gradient for variable, gradient in zip(used, gradients, strict=True)
    }
    return loss, outputs, [(by_variable.get(each.ref()), each) for each in variables]


def _differentiate(loss_fn, features, first_row, variables):
    """(float32 loss share, outputs, [(float32 gradient or None, variable)]) of one micro-batch."""
    loss, outputs = loss_fn(features, first_row)
    if variables is None:
        variables = tf.trainable_variables()
    gradients = [to_dense_float32(gradient) for gradient in tf.gradients(loss, variables)]
    return tf.cast(loss, tf.float32), outputs, list(zip(gradients, variables, strict=True))


def _same_scope(reuse=None):
    """The current variable scope, opened anew.

    Opened by object, it counts the names of unnamed layers from where the scope stood, and forgets
    them at its end: both builds give "dense", not "dense" and "dense_1".
    """
    return tf.variable_scope(tf.get_variable_scope(), reuse=reuse, auxiliary_name_scope=False)


def _count(features, micro_batch_size):
    """How many micro-batches there are."""
    if micro_batch_size is None:
        return 1
    if micro_batch_size < 1:
        raise ValueError(
            f"--micro_batch_size={micro_batch_size}: must be at least 1; leave it out to take a "
            "core's batch in one piece."
        )
    batch_sizes = {name: tensor.shape.as_list()[0] for name, tensor in features.items()}
    for name, batch_size in batch_sizes.items():
        if batch_size is None:
            raise ValueError(
                f"--micro_batch_size={micro_batch_size} needs a static batch size, but feature "
                f"{name!r} has shape {features[name].shape}; batch with drop_remainder=True."
            )
    if len(set(batch_sizes.values())) > 1:
        raise ValueError(
            "Features must have the same number of rows to be split by --micro_batch_size, but "
            f"have {batch_sizes}."
        )
    batch_size = next(iter(batch_sizes.values()))
    if micro_batch_size >= batch_size:
        return 1
    if batch_size % micro_batch_size:
        divisors = [size for size in range(1, batch_size + 1) if batch_size % size == 0]
        raise ValueError(
            f"--micro_batch_size={micro_batch_size} does not divide a core's batch of "
            f"{batch_size}; choose one of {divisors}, or another --train_batch_size."
        )
    return batch_size // micro_batch_size


def _rows(features, first_row, num_rows):
    """Dict of the [num_rows, ...] parts of [B, ...] tensors from `first_row` on."""
    return {
        name: tf.slice(
            tensor,
            [first_row] + [0] * (tensor.shape.rank - 1),
            [num_rows] + [-1] * (tensor.shape.rank - 1),
        )
        for name, tensor in features.items()
    }


def _spec(name, tensor):
    """(shape, dtype) of an output, which must be static."""
    if not tensor.shape.is_fully_defined():
        raise ValueError(
            f"Output {name!r} of loss_fn has shape {tensor.shape}; sums over micro-batches need a "
            "static one. Return a sum over its rows."
        )
    return tensor.shape, tensor.dtype
