"""Reads StableHLO text, and makes it callable by jax.

In the text, custom calls stand for operations between cores: TensorFlow does not have operations
for them that it can lower for a core. A call's backend_config has rows of integers, which
`config_of` writes.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterable

import numpy as np

from bert_estimator.tpu.program import devices

# The names of the calls, with their rows.
ALL_GATHER = "bert_estimator.all_gather"  # [axis], then the groups of cores that gather
ALL_TO_ALL = "bert_estimator.all_to_all"  # [axis to split, axis to concatenate], then the groups
PERMUTE = "bert_estimator.collective_permute"  # pairs: sending core, receiving core


def config_of(rows: Iterable[Iterable[int]]) -> str:
    """Returns the backend_config of a call with these rows."""
    return ";".join(",".join(map(str, row)) for row in rows)


def rows_of(config: str) -> list[list[int]]:
    """Returns the rows of a backend_config."""
    return [[int(number) for number in row.split(",")] for row in config.split(";")]


# Name of a call -> function of its rows that gives the operation's name and attributes, as text.
_REPLACING = {
    ALL_GATHER: lambda axis, *groups: (
        "stablehlo.all_gather",
        f"all_gather_dim = {axis[0]}, replica_groups = {_matrix(groups)}, use_global_device_ids",
    ),
    ALL_TO_ALL: lambda axes, *groups: (
        "stablehlo.all_to_all",
        f"split_dimension = {axes[0]}, concat_dimension = {axes[1]}, "
        f"split_count = {len(groups[0])}, replica_groups = {_matrix(groups)}",
    ),
    PERMUTE: lambda *pairs: (
        "stablehlo.collective_permute",
        f"source_target_pairs = {_matrix(pairs)}",
    ),
}

# An operation between cores needs a number that is not 0.
_CHANNEL = "#stablehlo.channel_handle<handle = 1, type = 0>"


def _matrix(rows):
    return f"dense<{list(rows)}> : tensor<{len(rows)}x{len(rows[0])}xi64>"


def _replace(call):
    """Replaces an operation of MLIR if it is a call in `_REPLACING`."""
    from jax.extend.mlir import ir

    name = ir.StringAttr(call.attributes["call_target_name"]).value
    if name not in _REPLACING:
        return
    rows = rows_of(ir.StringAttr(call.attributes["backend_config"]).value)
    with call.context, ir.Location.unknown(), ir.InsertionPoint(call):
        kind, attributes = _REPLACING[name](*rows)
        attributes = ir.DictAttr.parse(f"{{{attributes}, channel_handle = {_CHANNEL}}}")
        new = ir.Operation.create(
            kind,
            results=[call.results[0].type],
            operands=[call.operands[0]],
            attributes={each.name: each.attr for each in attributes},
        )
    call.results[0].replace_all_uses_with(new.results[0])
    call.erase()


def exported(text: str):
    """Returns StableHLO text as a `jax.export.Exported`, which jax can call."""
    jax = devices.import_jax()
    from jax import export
    from jax.extend.mlir.dialects import stablehlo

    with parsed(text) as module:
        _walk(module.operation, _mend)
        main = _functions(module)["main"]
        in_avals = tuple(jax.core.ShapedArray(*_shape_and_dtype(t)) for t in main.type.inputs)
        out_avals = tuple(jax.core.ShapedArray(*_shape_and_dtype(t)) for t in main.type.results)
        artifact = stablehlo.serialize_portable_artifact_str(
            str(module), stablehlo.get_current_version()
        )
    # jax only makes an Exported from a function of its own. What the template tells of
    # its function is replaced.
    template = export.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((), np.float32))
    tree = jax.tree_util.tree_structure
    changes = dict(
        fun_name="step",
        # StableHLO is the same for all platforms, but the template was exported on a CPU.
        disabled_safety_checks=(export.DisabledSafetyCheck.platform(),),
        in_tree=tree((in_avals, {})),
        in_avals=in_avals,
        out_tree=tree(out_avals),
        out_avals=out_avals,
        in_shardings_hlo=(None,) * len(in_avals),
        out_shardings_hlo=(None,) * len(out_avals),
        mlir_module_serialized=artifact,
        module_kept_var_idx=tuple(range(len(in_avals))),
    )
    # Some versions of jax have these fields too.
    for name, avals in (("_in_named_shardings", in_avals), ("_out_named_shardings", out_avals)):
        if hasattr(template, name):
            changes[name] = (None,) * len(avals)
    return dataclasses.replace(template, **changes)


# An operation that draws random bits: its results, its input, the types up to the bits' shape.
_BITS = re.compile(
    r"(?P<indent> *)(?P<state>%\w+), (?P<bits>%\w+) = (?P<draws>stablehlo\.rng_bit_generator .* -> "
    r"\(tensor<\S+>, )tensor<(?P<shape>\d+(?:x\d+)+)x(?P<dtype>ui\d+)>\)"
)


def with_bits_as_vectors(text: str) -> str:
    """Returns a module that draws random bits as vectors, and reshapes them afterwards."""
    # For a CPU, jax 0.10 does not end compiling what takes the argmax of some matrices of random
    # numbers (of 4 x 1000, say), as `tf.multinomial` does.

    def as_vector(match):
        indent, state, bits, draws, shape, dtype = match.group(
            "indent", "state", "bits", "draws", "shape", "dtype"
        )
        # Dropout draws four words for each place of a mask. Of vectors, a TPU's compiler would make
        # a step of BERT-Large that takes 1.12 times as long, and 0.5 GiB more of memory.
        if shape.endswith("x4"):
            return match.group()
        vector = f"tensor<{math.prod(map(int, shape.split('x')))}x{dtype}>"
        return (
            f"{indent}{state}, {bits}_vector = {draws}{vector})\n{indent}{bits} = "
            f"stablehlo.reshape {bits}_vector : ({vector}) -> tensor<{shape}x{dtype}>"
        )

    return _BITS.sub(as_vector, text)


def parameters(text: str) -> list[tuple[tuple[int, ...], np.dtype]]:
    """Returns (shape, numpy dtype) of each input of a module's main function."""
    with parsed(text) as module:
        return [_shape_and_dtype(t) for t in _functions(module)["main"].type.inputs]


def matmul_flops(text: str) -> int:
    """Counts the floating-point operations of a module's matrix products, for one core: two for a
    multiplication and an addition, none for convolutions, and a loop's body as often as it runs (in
    the compiler's own count it counts once)."""
    return _sum_over(text, {"stablehlo.dot_general": _dot_flops, "stablehlo.dot": _dot_flops})


def summed_bytes(text: str) -> int:
    """Counts the bytes of the arrays that a module sums between cores, each array once."""
    return _sum_over(
        text, {"stablehlo.all_reduce": _sum_bytes, "stablehlo.reduce_scatter": _operand_bytes}
    )


def _sum_over(text, functions_by_name):
    """Sums functions of operations, by the operations' names, over a module."""
    from jax.extend.mlir import ir

    with parsed(text) as module:
        functions, known = _functions(module), {}

        def of_regions(operation):
            # All branches of a conditional count. What the module's results do not depend on does
            # not: the compiler removes it.
            return sum(
                of_operation(needed)
                for region in operation.regions
                for block in region.blocks
                for needed in _needed(block)
            )

        def of_operation(operation):
            if operation.name in functions_by_name:
                return functions_by_name[operation.name](operation)
            if operation.name == "stablehlo.while":
                # A loop without what is counted may have a length that depends on its data.
                once = of_regions(operation)
                return once and once * _trips(operation.regions[0], functions)
            if operation.name == "func.call":
                name = ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
                # Layers call the same function: it is counted once, and added at each call.
                if name not in known:
                    known[name] = of_regions(functions[name])
                return known[name]
            return of_regions(operation)

        return of_regions(functions["main"])


def _needed(block):
    """Returns the operations of a block that its results depend on."""
    needed = {}
    # Backwards, so that all users of an operation are known before it.
    for child in reversed(list(block.operations)):
        operation = child.operation
        users = [use.owner.operation for result in operation.results for use in result.uses]
        # An operation that is used inside the region of another operation counts as needed.
        if not len(operation.results) or any(
            user in needed or user.parent != operation.parent for user in users
        ):
            needed[operation] = True
    return list(needed)


def _dot_flops(operation):
    from jax.extend.mlir import ir
    from jax.extend.mlir.dialects import stablehlo

    left = ir.RankedTensorType(operation.operands[0].type).shape
    if operation.name == "stablehlo.dot":  # It contracts the last axis of a matrix or a vector.
        contracted = left[-1:]
    else:
        numbers = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
        contracted = [left[axis] for axis in numbers.lhs_contracting_dimensions]
    return 2 * math.prod(ir.RankedTensorType(operation.results[0].type).shape + contracted)


def _sum_bytes(all_reduce):
    """Returns the bytes of an array that is summed; 0 for a part whose whole was counted before."""
    source = all_reduce.operands[0].owner
    if getattr(source, "name", None) == "stablehlo.reduce_scatter":
        return 0
    return _operand_bytes(all_reduce)


def _operand_bytes(operation):
    operands = [_shape_and_dtype(operand.type) for operand in operation.operands]
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in operands)


def _trips(condition, functions):
    """Returns how often a loop that counts from 0 runs, by its condition `counter < constant`."""
    from jax.extend.mlir import ir

    limits = []

    def visit(operation):
        if operation.name == "func.call":
            name = ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
            _walk(functions[name], visit)
        if operation.name == "stablehlo.compare" and "LT" in str(
            operation.attributes["comparison_direction"]
        ):
            limit = operation.operands[1].owner
            if getattr(limit, "name", None) == "stablehlo.constant":
                limits.append(int(ir.DenseIntElementsAttr(limit.attributes["value"])[0]))

    for block in condition.blocks:
        for child in block.operations:
            _walk(child.operation, visit)
            visit(child.operation)
    if not limits:
        raise ValueError("The program has a loop whose length depends on its data")
    # Of several limits, the smallest ends the loop.
    return min(limits)


@contextlib.contextmanager
def parsed(text):
    """Gives the module of a text, in a context of MLIR."""
    devices.import_jax()
    from jax.extend.mlir import ir
    from jax.interpreters import mlir

    with mlir.make_ir_context():
        yield ir.Module.parse(_with_readable_booleans(text))


# A constant with many elements is written as hexadecimal digits.
_BOOLEANS = re.compile(r'dense<"0x([0-9A-Fa-f]*)">( : tensor<((?:\d+x)*)i1>)')


def _with_readable_booleans(text):
    """Returns a module with its long boolean constants as this version of jaxlib reads them: some
    versions of MLIR take a bit for each element, others a byte, and TensorFlow's version may
    differ."""
    from jax.extend.mlir import ir

    def rewritten(match):
        digits, rest, sizes = match.groups()
        given = np.frombuffer(bytes.fromhex(digits), np.uint8)
        size = math.prod(int(n) for n in sizes.split("x")[:-1])
        if len(given) < size:
            given = np.unpackbits(given, count=size, bitorder="little")
        wanted = np.packbits(given, bitorder="little") if in_bits else given.astype(bool)
        return f'dense<"0x{wanted.tobytes().hex().upper()}">{rest}'

    # Two bytes of bits for nine elements: a version that wants a byte for each refuses them.
    try:
        in_bits = bool(ir.Attribute.parse('dense<"0xFF01"> : tensor<9xi1>'))
    except ir.MLIRError:
        in_bits = False
    return _BOOLEANS.sub(rewritten, text)


def _functions(module):
    """Returns name -> function of a module."""
    from jax.extend.mlir import ir

    return {ir.StringAttr(op.attributes["sym_name"]).value: op for op in module.body.operations}


def _walk(operation, visit):
    for region in operation.regions:
        for block in region.blocks:
            for child in list(block.operations):
                _walk(child.operation, visit)
                visit(child.operation)


def _mend(operation):
    """Rewrites operations of TensorFlow's bridge into the form that other programs can read."""
    from jax.extend.mlir import ir

    if operation.name == "mhlo.copy":
        operation.result.replace_all_uses_with(operation.operands[0])
        operation.erase()
    elif operation.name.startswith("mhlo."):
        # StableHLO lacks some of XLA's operations, such as the one of tf.erf. A custom call is its
        # way to write them.
        with operation.context, ir.Location.unknown(), ir.InsertionPoint(operation):
            version = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 1)
            call = ir.Operation.create(
                "stablehlo.custom_call",
                results=[result.type for result in operation.results],
                operands=list(operation.operands),
                attributes={
                    "call_target_name": ir.StringAttr.get(operation.name),
                    "mhlo.attributes": ir.DictAttr.get(
                        {name: operation.attributes[name] for name in operation.attributes}
                    ),
                    "mhlo.version": version,
                },
            )
        for old, new in zip(operation.results, call.results, strict=True):
            old.replace_all_uses_with(new)
        operation.erase()
    elif operation.name in ("stablehlo.all_reduce", "stablehlo.reduce_scatter"):
        # Without these attributes the compiler rejects groups that span partitions.
        operation.attributes["use_global_device_ids"] = ir.UnitAttr.get()
        operation.attributes["channel_handle"] = ir.Attribute.parse(_CHANNEL, operation.context)
    elif operation.name == "stablehlo.custom_call":
        _replace(operation)


_DTYPES = {
    "i1": "bool", "i4": "int4", "ui4": "uint4",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "ui8": "uint8", "ui16": "uint16", "ui32": "uint32", "ui64": "uint64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "f8E5M2": "float8_e5m2", "f8E4M3FN": "float8_e4m3fn",
    "complex<f32>": "complex64", "complex<f64>": "complex128",
}  # fmt: skip


def dtype(name: str | np.dtype) -> np.dtype:
    """Returns a numpy dtype by name; the name may be "bfloat16"."""
    import ml_dtypes  # jax depends on it; numpy does not have bfloat16

    return np.dtype(getattr(ml_dtypes, name, name) if isinstance(name, str) else name)


def _shape_and_dtype(tensor_type):
    from jax.extend.mlir import ir

    ranked = ir.RankedTensorType(tensor_type)
    return tuple(ranked.shape), dtype(_DTYPES[str(ranked.element_type)])
