"""What operations of a graph depend on, and what depends on them."""

import tensorflow.compat.v1 as tf


def all_before(operations):
    """Yields operations, and all that they depend on."""
    return _reached(operations, lambda o: [*(t.op for t in o.inputs), *o.control_inputs])


def all_after(operations):
    """Yields operations, and all that depend on them."""
    return _reached(
        operations, lambda o: [*(c for t in o.outputs for c in t.consumers()), *o._control_outputs]
    )


def is_computed_from(value, placeholders):
    """Returns whether a tensor or operation depends on one of the placeholders."""
    if not isinstance(value, tf.Tensor | tf.Operation):
        return False
    sources = {holder.op for holder in placeholders}
    start = value if isinstance(value, tf.Operation) else value.op
    return any(operation in sources for operation in all_before([start]))


def _reached(operations, next_to):
    """Yields operations, those next to them, those next to these, and so on, each once."""
    seen, waiting = set(), list(operations)
    while waiting:
        operation = waiting.pop()
        if operation not in seen:
            seen.add(operation)
            yield operation
            waiting += next_to(operation)
