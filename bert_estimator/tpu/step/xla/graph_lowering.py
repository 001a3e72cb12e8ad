"""Lowers a GraphDef with resource variables to the StableHLO of one core, or says why it cannot.

TensorFlow's own bridge to XLA does it, for a function that the GraphDef is imported into. The
variables are stand-ins without memory: only their shapes and dtypes reach the program.

Functions are named by what is in them, so that equal steps are equal to the last byte. TensorFlow
numbers the functions of conditions and loops in the order in which a process makes them. With these
numbers, a model that is built a second time would seem to be another program, and be compiled a
second time.
"""

import contextlib
import hashlib
import importlib.util
import os
import re
import threading
from collections.abc import Iterator

import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2
from tensorflow.python.eager import context

from bert_estimator.tpu.program import lowered_step, stablehlo

# They say how to make gradients, and hold numbers too. A step has its gradients already.
_OF_GRADIENTS = ("_gradient_op_type", "forward_function_name", "backward_function_name")


def name_by_contents(graph_def: tf.GraphDef) -> None:
    """Renames the functions that the operations of a GraphDef run, and drops all others."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    names, kept = {}, {}

    def rename_in(node):
        for attribute in _OF_GRADIENTS:
            node.attr.pop(attribute, None)
        if node.op in functions:
            node.op = new_name(node.op)
        for called in called_by(node):
            if called.name in functions:
                called.name = new_name(called.name)

    def new_name(name):
        if name not in names:
            names[name] = name  # A function that calls itself keeps its name.
            function = function_pb2.FunctionDef()
            function.CopyFrom(functions[name])
            for node in function.node_def:
                rename_in(node)
            for attribute in _OF_GRADIENTS:
                function.attr.pop(attribute, None)
            _number_arguments(function)
            function.signature.name = ""
            # Without its name, and with the called functions' new names, which say what is in them.
            contents = function.SerializeToString(deterministic=True)
            names[name] = f"function_{hashlib.sha256(contents).hexdigest()[:32]}"
            function.signature.name = names[name]
            kept[names[name]] = function
        return names[name]

    for node in graph_def.node:
        rename_in(node)
    del graph_def.library.function[:]
    graph_def.library.function.extend(kept[name] for name in sorted(kept))


def read_before_gathering(graph_def: tf.GraphDef) -> None:
    """Has `tf.gather_nd` read a variable first, since XLA does not have a kernel that does both."""
    library = graph_def.library.function
    for nodes, output in [(graph_def.node, ""), *((each.node_def, ":value:0") for each in library)]:
        for node in [node for node in nodes if node.op == "ResourceGatherNd"]:
            read = nodes.add(name=f"{node.name}/read", op="ReadVariableOp", input=[node.input[0]])
            read.input.extend(name for name in node.input if name.startswith("^"))
            dtype = node.attr["dtype"].type
            read.attr["dtype"].type = dtype
            node.op, node.input[0] = "GatherNd", f"{read.name}{output}"
            del node.attr["dtype"]
            node.attr["Tparams"].type = dtype


def call_gradients(graph_def: tf.GraphDef) -> None:
    """Calls the gradient that a function brings with it, as `Defun(grad_func=...)` does: a graph's
    own list says which function has one, and the compiler does not get this list."""
    library = graph_def.library
    gradient_of = {each.function_name: each.gradient_func for each in library.gradient}
    if not gradient_of:
        return
    del library.gradient[:]
    functions = {function.signature.name: function.node_def for function in library.function}

    def calls_one(name):
        called = [f.name for node in functions[name] for f in called_by(node)]
        called += [node.op for node in functions[name] if node.op in functions]
        return any(each in gradient_of or calls_one(each) for each in called if each != name)

    for nodes in (graph_def.node, *functions.values()):
        for node in nodes:
            name = node.attr["f"].func.name if node.op == "SymbolicGradient" else ""
            if name in gradient_of:
                node.op, node.attr["f"].func.name = "PartitionedCall", gradient_of[name]
            elif name and calls_one(name):
                raise RuntimeError(
                    f"The gradient of the function {name} needs the grad_func of a function that "
                    "it calls, which cores do not find: call that function from model_fn itself"
                )


def called_by(node: node_def_pb2.NodeDef) -> Iterator[attr_value_pb2.NameAttrList]:
    """Yields the functions in an operation's attributes, in the same order in each process."""
    for _, attribute in sorted(node.attr.items()):
        if attribute.HasField("func"):
            yield attribute.func
        yield from attribute.list.func


def _number_arguments(function):
    """Names a function's arguments by their position."""
    arguments = function.signature.input_arg
    names = {argument.name: f"argument_{i}" for i, argument in enumerate(arguments)}
    for argument in arguments:
        argument.name = names[argument.name]
    for node in function.node_def:
        node.input[:] = [_renamed(name, names) for name in node.input]
    for returned in (function.ret, function.control_ret):
        for key in list(returned):
            returned[key] = _renamed(returned[key], names)


def _renamed(name, names):
    """Returns what an input of an operation in a function is called after its renaming."""
    control = "^" if name.startswith("^") else ""
    return control + names.get(name.removeprefix("^"), name.removeprefix("^"))


# The steps that this process lowered: (text, order), as in `LoweredStep`.
LOWERED = lowered_step.KeptPrograms()


def lowered(graph_def, inputs, outputs, after, variable_of, shapes, handles):
    """Lowers a GraphDef to StableHLO, or returns what an equal call of this process gave: the text;
    and for each variable among the module's inputs, its number in the state.

    Args:
      variable_of: dict, name of a handle -> variable, in the order of the state. A variable's first
        handle has its value at the end of the step.
      shapes: dict, name of a handle -> shape of the variable, or of the part.
      handles: dict, name of an input of graph_def that nothing defines -> its name in variable_of.
    """
    given = (graph_def, inputs, outputs, after, variable_of, shapes, handles)
    return LOWERED.get(_key(*given), lambda: _lower(*given))


def _key(graph_def, inputs, outputs, after, variable_of, shapes, handles):
    """Returns what calls of `lowered` have in common that lower the same step."""
    tensors = [(t.name, t.dtype, t.shape.as_list()) for t in inputs]
    variables = [(name, v.dtype, shapes[name]) for name, v in variable_of.items()]
    others = [[each.name for each in [*outputs, *after]], len(outputs), handles]
    graph = graph_def.SerializeToString(deterministic=True)
    return lowered_step.digest(graph, repr([tensors, variables, *others]))


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
            # The state at the end is read after all that runs in every step.
            with tf.control_dependencies(found[len(outputs) :]):
                returned = [tf.identity(tensor) for tensor in found[: len(outputs)]]
                return returned + [stand_ins[name].read_value() for name in last_of.values()]

        function = tf2.function(step, jit_compile=True, autograph=False)
        captured = function.get_concrete_function(*signature).captured_inputs
        with _registering, _registered(graph_def.library.function):
            text = function.experimental_get_compiler_ir(*signature)(stage="stablehlo")
        number_of = {variable: number for number, variable in enumerate(last_of)}
        numbers = {
            id(v.handle): number_of[variable_of[handles[name]].ref()]
            for name, v in stand_ins.items()
        }
    # The name has a number that no other function of this process has.
    text = re.sub(r"^module @\S+", "module @step", text, count=1, flags=re.MULTILINE)
    return stablehlo.with_bits_as_vectors(text), [numbers[id(handle)] for handle in captured]


# Equal functions of two steps have one name: a thread must not remove what another thread lowers.
_registering = threading.Lock()


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


_NO_KERNEL = re.compile(r"(\w+) \(No registered .*?\{\{node ([^}]+)\}\}")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
# How many rows these operations return depends on values.
_OF_UNKNOWN_LENGTH = {"DynamicPartition", "ListDiff", "Unique", "UniqueV2", "UniqueWithCounts",
                      "UniqueWithCountsV2", "Where"}  # fmt: skip
# Of TensorFlow's functions, only a lookup in several tables makes it: it joins the rows that each
# table gives, and how many these are depends on values.
_LOOKUP_IN_PARTS = "ParallelDynamicStitch"
# tf_slim is only found, not imported: that takes a second if scikit-learn is installed.
_LIBRARIES = tuple(
    os.path.dirname(importlib.util.find_spec(name).origin) + os.sep
    for name in ("tensorflow", "tf_slim", "bert_estimator.tpu")
)


def explained(error: Exception, graph: tf2.Graph) -> RuntimeError:
    """Returns a RuntimeError that explains an error of TensorFlow's bridge to XLA, which was
    lowering a graph."""
    text = str(error)
    without_kernel = dict.fromkeys(_NO_KERNEL.findall(text))
    # The step's own variables never have this operation: their handles are inputs.
    imported = [name for kind, name in without_kernel if kind == "VarHandleOp"]
    if imported:
        return RuntimeError(
            f"model_fn imports a graph with variables of its own: {', '.join(imported)}. A core "
            "has the variables that tf.get_variable and layers make; tf.train.import_meta_graph "
            "and hub.Module make others. Build the network in the model_fn, and "
            "take its weights by tf.train.init_from_checkpoint; or train with use_tpu=False"
        )
    if without_kernel:
        found = ", ".join(_described(graph, name, kind) for kind, name in without_kernel)
        return RuntimeError(
            f"model_fn uses operations that XLA has no kernel for: {found}. On a TPU, Python code, "
            "strings and files belong into input_fn, host_call or eval_metrics; or into "
            "tpu.outside_compilation, if the step does not use their results. Use other "
            "operations to compute on the TPU"
        )
    nodes = dict.fromkeys(_NODE.findall(text))
    places = ", ".join(_described(graph, name) for name in nodes)
    if any(_kind(graph, name) == _LOOKUP_IN_PARTS for name in nodes):
        return RuntimeError(
            f"model_fn looks rows up in a variable of several parts: {places}. How many rows a "
            "part gives depends on values, and on a TPU all shapes must be static: make the table "
            "without a partitioner. It can be restored from the checkpoints of the parts"
        )
    return RuntimeError(f"The step of model_fn cannot be lowered to XLA ({places}): {text}")


def check_static(text: str, graph: tf2.Graph, names: list[str]) -> None:
    """Raises RuntimeError if shapes in a lowered step depend on values; the text names the
    operations, of these names, that are the cause."""
    if "#stablehlo.bounds" not in text and "tensor<?" not in text:
        return
    found = ", ".join(
        _described(graph, name, graph.get_operation_by_name(name).type)
        for name in names
        if graph.get_operation_by_name(name).type in _OF_UNKNOWN_LENGTH
    )
    raise RuntimeError(
        f"model_fn has tensors whose length depends on values: {found or 'unknown'}. "
        "On a TPU all shapes must be static: multiply by a mask of zeros and ones in place of "
        "picking rows (tf.boolean_mask, tf.where of one argument, tf.unique)"
    )


def line_of(operation: tf2.Operation) -> str:
    """Returns "FILE:LINE" of the user's code that made an operation."""
    for frame in reversed(operation.traceback or ()):
        if not frame.filename.startswith(_LIBRARIES):
            return f"{frame.filename}:{frame.lineno}"
    return "an unknown line"


def _kind(graph, name):
    """Returns the type of an operation; None if it is inside the function of another."""
    try:
        return graph.get_operation_by_name(name).type
    except KeyError:
        return None


def _described(graph, name, kind=None):
    """Returns "NAME (KIND) in FILE:LINE"; without the line if it is not known."""
    described = f"{name} ({kind})" if kind else name
    try:
        return f"{described} in {line_of(graph.get_operation_by_name(name))}"
    except KeyError:  # The operation is inside the function of a condition or a loop.
        return described
