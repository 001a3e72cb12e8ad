"""Computes the keys of a step's random operations from (seed, operation, step, replica).

TensorFlow cannot hand the number of a step to an operation in a condition or a loop. So a lowered
step asks for the key of an operation by a custom call, wherever the operation is, and this module
replaces the calls in the module's text. A loop counts its turns, so that each turn has other keys.

The bits are drawn as vectors: for a CPU, jax 0.10 does not end compiling what takes the argmax of
some matrices of random numbers (of 4 x 1000, say), as `tf.multinomial` does.
"""

import math
import re

import numpy as np

from bert_estimator.tpu.program import stablehlo

# The name of the custom call that stands for a key, uint64 [1]. The call's backend_config is what
# `config_of` returns.
KEY = "bert_estimator.random_key"

# The constants of SplitMix64 (Steele, Lea and Flood, 2014).
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def config_of(seed: int, seed2: int) -> str:
    """Returns the backend_config of a KEY call for an operation's two seeds."""
    return f"{seed};{seed2}"


def computed(text: str, numbers: list[int]) -> str:
    """Returns a module in which the KEY calls are computed from the operation's seeds and the main
    function's arguments `numbers`, integers of one element."""
    if KEY in text:
        from jaxlib.mlir import ir

        with stablehlo.parsed(text) as module, ir.Location.unknown():
            _Keys(module).replace_calls(numbers)
            text = str(module)
    return _BITS.sub(_as_vector, text)


# An operation that draws random bits: its results, its input, the types up to the bits' shape.
_BITS = re.compile(
    r"(?P<indent> *)(?P<state>%\w+), (?P<bits>%\w+) = (?P<draws>stablehlo\.rng_bit_generator .* -> "
    r"\(tensor<\S+>, )tensor<(?P<shape>\d+(?:x\d+)+)x(?P<dtype>ui\d+)>\)"
)


def _as_vector(match):
    """Returns the text that draws a vector of bits and gives it the shape."""
    indent, state, bits, draws, shape, dtype = match.group(
        "indent", "state", "bits", "draws", "shape", "dtype"
    )
    vector = f"tensor<{math.prod(map(int, shape.split('x')))}x{dtype}>"
    return (
        f"{indent}{state}, {bits}_vector = {draws}{vector})\n"
        f"{indent}{bits} = stablehlo.reshape {bits}_vector : ({vector}) -> tensor<{shape}x{dtype}>"
    )


class _Keys:
    """Replaces the calls in a module of MLIR: functions and loops with calls get a key to start
    from."""

    def __init__(self, module):
        from jaxlib.mlir import ir

        self._ir = ir
        self._uint64 = ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(64))
        self._function_of = {
            ir.StringAttr(op.attributes["sym_name"]).value: op.operation
            for op in module.body.operations
        }
        self._known = {}  # name of a function -> whether it needs a key

    def replace_calls(self, numbers):
        for name, function in self._function_of.items():
            if not self._needs_key(name):
                continue
            block = function.regions[0].blocks[0]
            # All functions get their key from main, whose arguments tell the step and the replica.
            if name == "main":
                arguments = [block.arguments[number] for number in numbers]
                with self._ir.InsertionPoint.at_block_begin(block):
                    key = self._constant(_GAMMA)
                    for argument in arguments:
                        key = self._mixed(key, self._as_uint64(argument))
            else:
                key = self._with_argument(function, block)
            self._replace_in(block, key)

    def _needs_key(self, name):
        if name not in self._known:
            # This ends the search in a function that calls itself.
            self._known[name] = False
            self._known[name] = self._has_calls(self._function_of[name])
        return self._known[name]

    def _has_calls(self, operation):
        if operation.name == "func.call":
            return self._needs_key(self._callee(operation))
        return _is_key(operation) or any(
            self._has_calls(child.operation)
            for region in operation.regions
            for block in region.blocks
            for child in block.operations
        )

    def _callee(self, call):
        return self._ir.FlatSymbolRefAttr(call.attributes["callee"]).value

    def _with_argument(self, function, block):
        """Adds an argument to a function; returns it."""
        ir = self._ir
        kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        added = ir.FunctionType.get([*kind.inputs, self._uint64], kind.results)
        function.attributes["function_type"] = ir.TypeAttr.get(added)
        if "arg_attrs" in function.attributes:
            attributes = list(ir.ArrayAttr(function.attributes["arg_attrs"]))
            function.attributes["arg_attrs"] = ir.ArrayAttr.get([*attributes, ir.DictAttr.get({})])
        return block.add_argument(self._uint64, ir.Location.unknown())

    def _replace_in(self, block, key):
        """Replaces the calls of a block and of the regions in it."""
        for child in list(block.operations):
            operation = child.operation
            if not self._has_calls(operation):
                continue
            if _is_key(operation):
                self._replace(operation, key)
            elif operation.name == "func.call":
                self._recreate(operation, [*operation.operands, key])
            elif operation.name == "stablehlo.while":
                self._replace_in_loop(operation, key)
            else:
                for region in operation.regions:
                    for inner in region.blocks:
                        self._replace_in(inner, key)

    def _replace(self, call, key):
        config = self._ir.StringAttr(call.attributes["backend_config"]).value
        with self._ir.InsertionPoint(call):
            for seed in config.split(";"):
                key = self._mixed(key, self._constant(int(seed) % 2**64))
            key = self._operation("stablehlo.reshape", [key], call.results[0].type)
        call.results[0].replace_all_uses_with(key)
        call.erase()

    def _replace_in_loop(self, loop, key):
        """Replaces the calls of a loop: a key goes from turn to turn."""
        with self._ir.InsertionPoint(loop):
            first = self._mixed(key, self._constant(1))
        new = self._recreate(loop, [*loop.operands, first], [self._uint64])
        for region in new.regions:
            block = region.blocks[0]
            turn = block.add_argument(self._uint64, self._ir.Location.unknown())
            self._replace_in(block, turn)
        # The condition gets the key and does not return it. The body returns the key of the next
        # turn, so that each turn draws other numbers.
        end = list(block.operations)[-1].operation  # of the body, which is the second region
        with self._ir.InsertionPoint(end):
            following = self._operation(
                "stablehlo.add", [turn, self._constant(_GAMMA)], self._uint64
            )
        self._recreate(end, [*end.operands, following])

    def _recreate(self, operation, operands, more_results=()):
        """Replaces an operation by one with other operands, and maybe further results."""
        with self._ir.InsertionPoint(operation):
            new = self._ir.Operation.create(
                operation.name,
                results=[*(result.type for result in operation.results), *more_results],
                operands=operands,
                attributes={name: operation.attributes[name] for name in operation.attributes},
                regions=len(operation.regions),
            )
        for old_region, region in zip(operation.regions, new.regions, strict=True):
            for block in list(old_region.blocks):
                block.append_to(region)
        for number, result in enumerate(list(operation.results)):
            result.replace_all_uses_with(new.results[number])
        operation.erase()
        return new

    def _as_uint64(self, value):
        """Returns an integer of one element as uint64 []."""
        scalar = self._ir.RankedTensorType.get(
            [], self._ir.RankedTensorType(value.type).element_type
        )
        value = self._operation("stablehlo.reshape", [value], scalar)
        return self._operation("stablehlo.convert", [value], self._uint64)

    def _mixed(self, key, value):
        """Returns a key that depends on a key and a value, by SplitMix64's finalizer."""
        mixed = self._two("add", self._two("xor", key, value), self._constant(_GAMMA))
        for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
            shifted = self._two("shift_right_logical", mixed, self._constant(shift))
            mixed = self._two("xor", mixed, shifted)
            mixed = self._two("multiply", mixed, self._constant(multiplier))
        shifted = self._two("shift_right_logical", mixed, self._constant(31))
        return self._two("xor", mixed, shifted)

    def _two(self, name, one, other):
        return self._operation(f"stablehlo.{name}", [one, other], self._uint64)

    def _constant(self, number):
        value = self._ir.DenseElementsAttr.get(
            np.array(number, np.uint64), type=self._uint64.element_type
        )
        return self._operation("stablehlo.constant", [], self._uint64, {"value": value})

    def _operation(self, name, operands, kind, attributes=None):
        created = self._ir.Operation.create(
            name, results=[kind], operands=operands, attributes=attributes or {}
        )
        return created.results[0]


def _is_key(operation):
    return operation.name == "stablehlo.custom_call" and KEY in str(
        operation.attributes["call_target_name"]
    )
