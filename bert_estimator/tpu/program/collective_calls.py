"""Turns the custom calls that stand for operations between cores into those operations.

TensorFlow has no operations for them that it can lower for a core. A call's backend_config has rows
of integers, which `config_of` writes.
"""

from collections.abc import Iterable

import numpy as np

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


def replace(call) -> bool:
    """Replaces an operation of MLIR, if it is such a call; returns whether it is."""
    from jaxlib.mlir import ir

    name = ir.StringAttr(call.attributes["call_target_name"]).value
    if name not in _REPLACING:
        return False
    rows = rows_of(ir.StringAttr(call.attributes["backend_config"]).value)
    with call.context, ir.Location.unknown(), ir.InsertionPoint(call):
        kind, attributes = _REPLACING[name](rows)
        new = ir.Operation.create(
            kind,
            results=[call.results[0].type],
            operands=[call.operands[0]],
            attributes={**attributes, "channel_handle": channel()},
        )
    call.results[0].replace_all_uses_with(new.results[0])
    call.erase()
    return True


def channel():
    """Returns the attribute of an operation between cores: it needs a number that is not 0."""
    from jaxlib.mlir.dialects import stablehlo

    return stablehlo.ChannelHandle.get(1, 0)


def _gathered(rows):
    from jaxlib.mlir import ir

    (axis,), *groups = rows
    return "stablehlo.all_gather", {
        "all_gather_dim": _number(axis),
        "replica_groups": _numbers(groups),
        "use_global_device_ids": ir.UnitAttr.get(),
    }


def _all_to_all(rows):
    (split, concatenated), *groups = rows
    return "stablehlo.all_to_all", {
        "split_dimension": _number(split),
        "concat_dimension": _number(concatenated),
        "split_count": _number(len(groups[0])),
        "replica_groups": _numbers(groups),
    }


def _permuted(rows):
    return "stablehlo.collective_permute", {"source_target_pairs": _numbers(rows)}


def _number(value):
    from jaxlib.mlir import ir

    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _numbers(rows):
    from jaxlib.mlir import ir

    return ir.DenseIntElementsAttr.get(np.array(rows, np.int64))


# Name of a call -> function of its rows that gives the operation's name and attributes.
_REPLACING = {ALL_GATHER: _gathered, ALL_TO_ALL: _all_to_all, PERMUTE: _permuted}
