"""Names functions of a step by what is in them, so that equal steps are equal to the last byte.

TensorFlow numbers the functions of conditions and loops in the order in which a process makes them.
With these numbers, a model that is built a second time would seem to be another program, and be
compiled a second time.
"""

import hashlib
from collections.abc import Iterator

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2

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
        for called in _called(node):
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
            contents = function.SerializeToString(deterministic=True)
            names[name] = f"function_{hashlib.sha256(contents).hexdigest()[:32]}"
            function.signature.name = names[name]
            kept[names[name]] = function
        return names[name]

    for node in graph_def.node:
        rename_in(node)
    del graph_def.library.function[:]
    graph_def.library.function.extend(kept[name] for name in sorted(kept))


def _called(node: node_def_pb2.NodeDef) -> Iterator[attr_value_pb2.NameAttrList]:
    """Yields the functions in an operation's attributes."""
    for attribute in node.attr.values():
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
