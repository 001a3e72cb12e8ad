"""The operations of an update that need no sum over the weights, as one XLA computation.

Each operation of an update reads and writes memory for every weight. Of LAMB's 15 operations on
tensors of a variable's shape, 12 come before the two norms of its trust ratio: as one computation
they read the gradient, the variable and its two moments once, and write two moments and the update.
"""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from bert_estimator.xla_context import in_xla_program

# One computation for fewer weights saves less in a whole training than it takes to compile it.
_LEAST_ELEMENTS = 1 << 18

# fmt: off
_ELEMENTWISE = {
    "AddV2", "Cast", "Maximum", "Minimum", "Mul", "Neg", "RealDiv", "Rsqrt", "Select", "SelectV2",
    "Sqrt", "Square", "Sub",
}
# fmt: on


class CompiledStart:
    """Computes the first operations of an update, for any parameter of the same kind.

    Attributes:
      operations: the operations that it replaces; empty if compiling them is not worth it.
      results: the outputs of these operations that the rest of the update reads.
    """

    def __init__(
        self,
        operations: Sequence[tf.Operation],
        inputs: Sequence[tf.Tensor],
        outputs: Sequence[tf.Tensor],
    ):
        """Compiles the first operations.

        Args:
          operations: all operations of an update, in the order of their creation.
          inputs: the gradient, and what the update reads of the parameter.
          outputs: what the operations compute.
        """
        is_worth_it = _is_worth_compiling(inputs[0])
        self.operations = _first_elementwise(operations, inputs) if is_worth_it else []
        made = [tensor for operation in self.operations for tensor in operation.outputs]
        rest = [each for each in operations if each not in self.operations]
        needed = {tensor.ref() for operation in rest for tensor in operation.inputs}
        needed |= {tensor.ref() for tensor in outputs}
        self.results = [tensor for tensor in made if tensor.ref() in needed]
        own = {tensor.ref() for tensor in made}
        read = [tensor.ref() for operation in self.operations for tensor in operation.inputs]
        self._arguments = [ref.deref() for ref in dict.fromkeys(read) if ref not in own]
        self._positions = {tensor.ref(): place for place, tensor in enumerate(inputs)}
        if self.operations:
            self._function = _compiled(self.operations, self._arguments, self.results)

    def __call__(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns what `results` are for another parameter. Call it only if there are `operations`.

        Args:
          inputs: tensors in the order of the constructor's `inputs`, of the same dtypes and shapes.
        """
        places = [self._positions.get(tensor.ref()) for tensor in self._arguments]
        return self._function(
            *(
                shared if place is None else inputs[place]
                for shared, place in zip(self._arguments, places, strict=True)
            )
        )


def _is_worth_compiling(gradient):
    """Tells whether to compile the start of the update that has this gradient.

    A step that XLA compiles as a whole does not need it.
    """
    return not in_xla_program() and (gradient.shape.num_elements() or 0) >= _LEAST_ELEMENTS


def _first_elementwise(operations, inputs):
    """Returns the operations that depend on the inputs through elementwise operations only.

    Operations with control inputs are left out, and so is what depends on them.
    """
    known, found, others = {tensor.ref() for tensor in inputs}, {}, set()
    for operation in operations:
        before = {tensor.op for tensor in operation.inputs if tensor.ref() not in known}
        reads = any(tensor.ref() in known for tensor in operation.inputs)
        if not reads and before.isdisjoint(found) and before.isdisjoint(others):
            continue  # All variables share it.
        if (
            _is_elementwise(operation, inputs[0].shape)
            and not operation.control_inputs
            and before.isdisjoint(others)
        ):
            found[operation] = None
        else:
            others.add(operation)
    return list(found)


def _is_elementwise(operation, shape):
    """Tells whether an operation is elementwise, and its output has this fully known shape."""
    if operation.type not in _ELEMENTWISE or operation.outputs[0].shape.rank is None:
        return False
    # XLA and TensorFlow convert floats outside the range of integers differently.
    is_float = all(x.dtype.is_floating for x in [*operation.inputs, *operation.outputs])
    if operation.type == "Cast" and not is_float:
        return False
    return operation.outputs[0].shape.as_list() == shape.as_list()


def _compiled(operations, arguments, results):
    definition = tf.GraphDef(versions=tf.get_default_graph().graph_def_versions)
    names = {tensor.ref(): f"argument_{place}:0" for place, tensor in enumerate(arguments)}
    for operation in operations:
        node = definition.node.add()
        node.CopyFrom(operation.node_def)
        node.name = f"start/{operation.name}"  # unlike all names of arguments
        node.device = ""
        for attribute in [name for name in node.attr if name.startswith("_")]:
            node.attr.pop(attribute)
        node.input[:] = [names.get(x.ref(), f"start/{x.name}") for x in operation.inputs]

    def start(*tensors):
        input_map = dict(zip(names.values(), tensors, strict=True))
        wanted = [f"start/{tensor.name}" for tensor in results]
        return tf.import_graph_def(definition, input_map, wanted, name="")

    # Traced in a graph of its own, as in `layers/primitives.py`.
    with tf.Graph().as_default():
        function = tf.function(start, jit_compile=True, autograph=False)
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in arguments]
        return function.get_concrete_function(*specs)
