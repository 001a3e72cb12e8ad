"""`tf.tpu.rewrite`, `replicate`, `shard` and `batch_parallel`, as TF1 scripts call them themselves.

Upstream, they turn a computation into a program for cores. Here they build the computation in the
script's own graph, once for each replica: it runs in the script's session, on this machine's CPU or
GPU, and gives what the cores would give. Only TPUEstimator runs on cores.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf.tpu import topology_pb2

from bert_estimator.graph import graph_walk
from bert_estimator.graph.variable_uses import READERS
from bert_estimator.tpu.replicas import replica, replica_operations

_warned = []


def rewrite(
    computation: Callable,
    inputs: list | None = None,
    infeed_queue: None = None,
    device_assignment: Any = None,
    name: str | None = None,
    xla_options: Any = None,
) -> Any:
    """Builds a computation for one core. See `replicate`, which this calls with one replica.

    Args:
      inputs: list of the computation's arguments, or None.

    Returns:
      The outputs of the computation.
    """
    inputs = None if inputs is None else [inputs]
    return replicate(computation, inputs, infeed_queue, device_assignment, name=name)[0]


def replicate(
    computation: Callable,
    inputs: list[list] | None = None,
    infeed_queue: None = None,
    device_assignment: Any = None,
    name: str | None = None,
    maximum_shapes: None = None,
    padding_spec: Any = None,
    xla_options: Any = None,
) -> list:
    """Builds a computation for several replicas, which share their variables.

    Args:
      computation: function of the inputs of a replica.
      inputs: for each replica, the list of the computation's arguments, which may be structures of
        tensors. None means one replica without arguments.
      infeed_queue, maximum_shapes: only None is supported.
      device_assignment, name, padding_spec, xla_options: accepted without effect.

    Returns:
      A list of the outputs of each replica, in upstream's form: a list if the computation returns a
      tensor, or a list or tuple of tensors; an operation if it returns nothing or only operations;
      else what it returns. All operations with effects that the computation builds run with
      each output.

    Raises:
      ValueError: an argument is not supported; the outputs are mixed otherwise than tensors first,
        operations last; or with several replicas, the computation updates a variable or sums over
        the replicas.
    """
    for argument, value in (("infeed_queue", infeed_queue), ("maximum_shapes", maximum_shapes)):
        if value is not None:
            raise ValueError(
                f"tf.tpu.replicate: {argument} is not supported: it is for TensorFlow's own TPU "
                "runtime. Give the computation tensors as inputs"
            )
    inputs = [[]] if inputs is None else inputs
    if not inputs or any(len(each) != len(inputs[0]) for each in inputs):
        raise ValueError(
            "tf.tpu.replicate: inputs must be a list with a list of arguments for each replica, "
            f"all of the same length; got {inputs!r}"
        )
    number = len(inputs)
    if number not in _warned:
        _warned.append(number)
        stands_in = f": one core stands in for {number}" if number > 1 else ""
        tf.logging.warning(
            "tf.tpu.rewrite, replicate, shard and batch_parallel run in the session of the script, "
            "on this machine's CPU or GPU%s. TPUEstimator runs a model on cores.",
            stands_in,
        )
    return [_built(computation, each, i, number) for i, each in enumerate(inputs)]


def shard(
    computation: Callable,
    inputs: list | None = None,
    num_shards: int = 1,
    input_shard_axes: list[int] | None = None,
    outputs_from_all_shards: bool | list[bool] = True,
    output_shard_axes: list[int] | None = None,
    infeed_queue: None = None,
    device_assignment: Any = None,
    name: str | None = None,
    xla_options: Any = None,
) -> list:
    """Splits inputs, builds a computation for each part, and puts the outputs together again.

    Args:
      computation: function of a part of each input.
      inputs: list of tensors of rank 1 or more, or None.
      num_shards: the number of parts.
      input_shard_axes: for each input, the axis to split, whose size must be a multiple of the
        number of parts. None means 0 for all.
      outputs_from_all_shards: for each output, or for all, whether the outputs of all parts are
        concatenated (scalars are stacked); otherwise the first part's output is taken.
      output_shard_axes: for each output, the axis of the concatenation. None means 0 for all.
      infeed_queue, device_assignment, name, xla_options: as for `replicate`.

    Returns:
      The list of outputs.

    Raises:
      TypeError: inputs is not a list.
      ValueError: a list has another length than inputs or outputs have, or as for `replicate`.
    """
    if num_shards <= 0:
        raise ValueError(f"num_shards must be a positive integer, not {num_shards}")
    inputs = [] if inputs is None else inputs
    if not isinstance(inputs, list):
        raise TypeError(f"tf.tpu.shard: inputs must be a list of Tensors or None, not {inputs!r}")
    axes = _for_each(inputs, input_shard_axes, 0, "input_shard_axes")
    parts = [tf.split(x, num_shards, axis) for x, axis in zip(inputs, axes, strict=True)]
    of_shards = [list(each) for each in zip(*parts, strict=True)] or [[]] * num_shards
    outputs = replicate(computation, of_shards, infeed_queue, device_assignment, name=name)
    if isinstance(outputs[0], tf.Operation):
        return [tf.group(*outputs)]
    axes = _for_each(outputs[0], output_shard_axes, 0, "output_shard_axes")
    if isinstance(outputs_from_all_shards, bool):
        outputs_from_all_shards = [outputs_from_all_shards] * len(axes)
    from_all = _for_each(outputs[0], outputs_from_all_shards, True, "outputs_from_all_shards")
    return [
        _together(list(values), axis) if is_from_all else values[0]
        for values, axis, is_from_all in zip(
            zip(*outputs, strict=True), axes, from_all, strict=True
        )
    ]


def batch_parallel(
    computation: Callable,
    inputs: list | None = None,
    num_shards: int = 1,
    infeed_queue: None = None,
    device_assignment: Any = None,
    name: str | None = None,
    xla_options: Any = None,
) -> list:
    """Calls `shard` for the first axis of all inputs and outputs."""
    return shard(
        computation,
        inputs,
        num_shards,
        infeed_queue=infeed_queue,
        device_assignment=device_assignment,
        name=name,
    )


def initialize_system(embedding_config: None = None, job: str | None = None, **_: Any) -> tf.Tensor:
    """Returns a tensor, the serialized topology of a system with one core: there is no other system
    to initialize.

    Raises:
      ValueError: embedding_config is given.
    """
    if embedding_config is not None:
        raise ValueError(
            "tf.tpu.initialize_system: embedding_config is not supported: use "
            "tf.nn.embedding_lookup"
        )
    topology = topology_pb2.TopologyProto(
        mesh_shape=[1, 1, 1, 1],
        num_tasks=1,
        num_tpu_devices_per_task=1,
        device_coordinates=[0, 0, 0, 0],
    )
    return tf.constant(topology.SerializeToString(), name="topology")


def shutdown_system(job: str | None = None) -> tf.Operation:
    """Returns an operation without effect: there is no system to shut down."""
    return tf.no_op("shutdown_system")


def _built(computation, inputs, index, number):
    """Builds the computation of a replica; returns its outputs in upstream's form."""
    graph = tf.get_default_graph()
    before = {operation.name for operation in graph.get_operations()}
    variables_before = len(tf.global_variables() + tf.local_variables())

    def cross_replica_sum(tensor, groups=None):
        raise ValueError(
            f"cross_replica_sum of {tensor.name} in tf.tpu.replicate or shard of {number} replicas "
            "is not supported: train with TPUEstimator"
        )

    inputs = tf.nest.map_structure(tf.convert_to_tensor, list(inputs))
    with (
        tf.variable_scope(
            tf.get_variable_scope(),
            use_resource=True,
            reuse=tf.AUTO_REUSE if index else None,
            auxiliary_name_scope=False,
        ),
        graph.device(replica.place_on_cores(1)),
        # A computation of one replica may be a part of a model, which has replicas of its own.
        replica.Replica(number, index, cross_replica_sum).entered()
        if number > 1
        else contextlib.nullcontext(),
        replica_operations.replaced(),
    ):
        outputs = computation(*inputs)
        effects = [each for each in graph.get_operations() if each.name not in before]
        effects = _with_effects(effects)
        if number > 1:
            made = (tf.global_variables() + tf.local_variables())[variables_before:]
            _check_replicable(effects, made if index else [], number)
        return _in_upstream_form(outputs, effects)


def _with_effects(operations):
    """Leaves out the operations without effects, and all that only initialize variables."""
    variables = tf.global_variables() + tf.local_variables()
    of_initialization = set(graph_walk.all_before(variable.initializer for variable in variables))
    return [
        operation
        for operation in operations
        if operation.op_def.is_stateful
        and operation.type not in {"VarHandleOp", "Variable", "VariableV2", *READERS}
        and operation not in of_initialization
        and operation._get_control_flow_context() is None
    ]


def _check_replicable(operations, variables, number):
    """Raises ValueError if replicas that share the variables cannot each run the operations."""
    for operation in operations:
        if any(t.dtype == tf.resource or t.dtype._is_ref_dtype for t in operation.inputs):
            raise ValueError(
                f"{operation.name} ({operation.type}) updates a variable in each of the {number} "
                "replicas of tf.tpu.replicate or shard, which share their variables here. Train "
                "with TPUEstimator, or use tf.tpu.rewrite"
            )
    if variables:
        raise ValueError(
            f"{variables[0].op.name} would be a variable of one of {number} replicas only: in "
            "tf.tpu.replicate or shard make variables with tf.get_variable, so that the replicas "
            "share them"
        )


def _in_upstream_form(outputs, effects):
    """Returns the outputs of a computation, which run its operations with effects."""
    if not _is_flat(outputs):
        for each in tf.nest.flatten(outputs):
            if isinstance(each, tf.Operation):
                raise ValueError(
                    "tf.tpu.rewrite does not support Operation as return value in non-flat output "
                    f"structure: {each.name}. Make it a control dependency of a tensor"
                )
        return tf.nest.map_structure(lambda each: _after(effects, each), outputs)
    flat = [] if outputs is None else tf.nest.flatten(outputs)
    operations = [each for each in flat if isinstance(each, tf.Operation)]
    tensors = [each for each in flat if not isinstance(each, tf.Operation)]
    if any(isinstance(each, tf.Operation) for each in flat[: len(tensors)]):
        raise ValueError(
            "A TPU function must return zero-or more Tensor values followed by zero or more "
            f"Operations, not {outputs!r}"
        )
    if not tensors:
        return tf.group(*effects, *operations)
    return [_after([*effects, *operations], each) for each in tensors]


def _is_flat(outputs):
    """Returns whether outputs are one value, or a list or tuple of values."""
    if isinstance(outputs, Mapping):
        return False
    if not isinstance(outputs, Sequence) or isinstance(outputs, str | bytes):
        return True
    return not any(isinstance(each, Sequence | Mapping) for each in outputs)


def _after(operations, value):
    """Returns a value as a tensor that runs the operations; None stays None."""
    if value is None:
        return None
    with tf.control_dependencies(operations):
        return tf.identity(value)


def _for_each(values, given, default, name):
    """Returns the given list, or the default for each of the values.

    Raises:
      ValueError: the list has another length than the values.
    """
    given = [default] * len(values) if given is None else given
    if len(given) != len(values):
        raise ValueError(
            f"Length of {name} must be equal to the number of values, {len(values)}; got "
            f"{len(given)}"
        )
    return given


def _together(values, axis):
    """Concatenates tensors; scalars are stacked."""
    return tf.stack(values) if values[0].shape.rank == 0 else tf.concat(values, axis)
