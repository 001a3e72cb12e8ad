"""Lowers a GraphDef with resource variables to the StableHLO of one core.

TensorFlow's own bridge to XLA does it, for a function that the GraphDef is imported into. The
variables are stand-ins without memory: only their shapes and dtypes reach the program.
"""

import contextlib
import re

import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2
from tensorflow.python.eager import context

from bert_estimator.tpu.program import kept_programs

# The steps that this process lowered: (text, order), as in `LoweredStep`.
LOWERED = kept_programs.KeptPrograms()


def lowered(graph_def, inputs, outputs, after, variable_of, shapes, handles):
    """Lowers a GraphDef to StableHLO, or returns what an equal call of this process gave.

    Args:
      graph_def: the step, with inputs that nothing defines, for the values of `inputs` and the
        handles of variables.
      handles: dict, name of such a handle -> its name in `variable_of`.
      inputs, outputs: lists of tensors of the step.
      after: list of the operations that run in every step.
      variable_of: dict, name of a handle -> variable, in the order of the state. A variable's first
        handle has its value at the end of the step.
      shapes: dict, name of a handle -> shape of the variable, or of the part.

    Returns:
      The text; and for each variable among the module's inputs, its number in the state.
    """
    given = (graph_def, inputs, outputs, after, variable_of, shapes, handles)
    return LOWERED.get(_key(*given), lambda: _lower(*given))


def _key(graph_def, inputs, outputs, after, variable_of, shapes, handles):
    """Returns what calls of `lowered` have in common that lower the same step."""
    tensors = [(t.name, t.dtype, t.shape.as_list()) for t in inputs]
    variables = [(name, v.dtype, shapes[name]) for name, v in variable_of.items()]
    others = [[each.name for each in [*outputs, *after]], len(outputs), handles]
    graph = graph_def.SerializeToString(deterministic=True)
    return kept_programs.digest(graph, repr([tensors, variables, *others]))


def _lower(graph_def, inputs, outputs, after, variable_of, shapes, handles):
    """Does what `lowered` does, and keeps nothing."""
    used = {name.split(":")[0] for node in graph_def.node for name in node.input}
    names = [each.name for each in [*outputs, *after]]
    signature = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    last_of = {}  # variable -> name of the handle that has its value at the end
    for name, variable in variable_of.items():
        last_of.setdefault(variable.ref(), name)
    with context.eager_mode():
        # The program only gets the shapes and dtypes of these stand-ins. Their memory is never
        # written to, so the system does not really allocate it, however large the network is.
        stand_ins = {
            handle: tf2.Variable(
                tf.raw_ops.Empty(shape=shapes[name], dtype=variable_of[name].dtype)
            )
            for handle, name in handles.items()
        }

        def step(*values):
            graph = tf.get_default_graph()
            given = zip(inputs, values, strict=True)
            mapped = {tensor.op.name: value for tensor, value in given}
            mapped.update({name: graph.capture(v.handle) for name, v in stand_ins.items()})
            found = tf.graph_util.import_graph_def(
                graph_def,
                input_map={name: value for name, value in mapped.items() if name in used},
                return_elements=names,
                name="",
            )
            with tf.control_dependencies(found[len(outputs) :]):
                returned = [tf.identity(tensor) for tensor in found[: len(outputs)]]
                return returned + [stand_ins[name].read_value() for name in last_of.values()]

        function = tf2.function(step, jit_compile=True, autograph=False)
        captured = function.get_concrete_function(*signature).captured_inputs
        with _registered(graph_def.library.function):
            text = function.experimental_get_compiler_ir(*signature)(stage="stablehlo")
        number_of = {variable: number for number, variable in enumerate(last_of)}
        numbers = {
            id(v.handle): number_of[variable_of[handles[name]].ref()]
            for name, v in stand_ins.items()
        }
    # The name has a number that no other function of this process has.
    text = re.sub(r"^module @\S+", "module @step", text, count=1, flags=re.MULTILINE)
    return text, [numbers[id(handle)] for handle in captured]


@contextlib.contextmanager
def _registered(functions):
    """Registers a graph's functions with TensorFlow's eager context, where the compiler looks."""
    eager = context.context()
    new = [each for each in functions if not eager.has_function(each.signature.name)]
    for function in new:
        eager.add_function_def(function)
    try:
        yield
    finally:
        for function in new:
            eager.remove_function(function.signature.name)
