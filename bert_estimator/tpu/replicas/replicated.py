"""`tf.tpu.rewrite` and its kin, as TF1 scripts call them themselves.

Upstream, they turn a computation into a program for cores. Here they build the computation in the
script's own graph: it runs in the script's session, on this machine's CPU or GPU. Only TPUEstimator
runs on cores, and only it has several replicas.
"""

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
    """Builds a computation of inputs, which may be structures of tensors, for one core; the outputs
    have upstream's form, and each runs all operations with effects that the computation builds."""
    if infeed_queue is not None:
        raise ValueError(
            "tf.tpu.rewrite: infeed_queue is not supported: it is for TensorFlow's own TPU "
            "runtime. Give the computation tensors as inputs"
        )
    if not _warned:
        _warned.append(True)
        tf.logging.warning(
            "tf.tpu.rewrite, replicate, shard and batch_parallel run in the session of the script, "
            "on this machine's CPU or GPU. TPUEstimator runs a model on cores."
        )
    return _built(computation, [] if inputs is None else inputs)


def replicate(computation: Callable, inputs: list[list] | None = None, **keywords: Any) -> list:
    """Does what `rewrite` does, in a list, for the arguments of one replica in a list."""
    inputs = [[]] if inputs is None else inputs
    _check_is_one(len(inputs), "replicate")
    if keywords.pop("maximum_shapes", None) is not None:
        raise ValueError("tf.tpu.replicate: maximum_shapes is not supported: pad the inputs")
    keywords.pop("padding_spec", None)
    return [rewrite(computation, inputs[0], **keywords)]


def shard(
    computation: Callable,
    inputs: list | None = None,
    num_shards: int = 1,
    input_shard_axes: list[int] | None = None,
    outputs_from_all_shards: bool | list[bool] = True,
    output_shard_axes: list[int] | None = None,
    **keywords: Any,
) -> list:
    """Does what `rewrite` does, for one shard, which is all of the inputs."""
    _check_is_one(num_shards, "shard")
    outputs = rewrite(computation, inputs, **keywords)
    return [outputs] if isinstance(outputs, tf.Operation) else outputs


def batch_parallel(
    computation: Callable, inputs: list | None = None, num_shards: int = 1, **keywords: Any
) -> list:
    """Does what `shard` does."""
    return shard(computation, inputs, num_shards, **keywords)


def _check_is_one(number, name):
    """Raises ValueError for several replicas."""
    if number != 1:
        raise ValueError(
            f"tf.tpu.{name} of {number} replicas is not supported: here it runs in the script's "
            "session, which is one replica. TPUEstimator runs a model_fn on several cores"
        )


def initialize_system(embedding_config: None = None, job: str | None = None, **_: Any) -> tf.Tensor:
    """Returns a tensor, the serialized topology of a system with one core."""
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


def _built(computation, inputs):
    """Builds a computation; returns its outputs in upstream's form."""
    graph = tf.get_default_graph()
    before = {operation.name for operation in graph.get_operations()}
    inputs = tf.nest.map_structure(tf.convert_to_tensor, list(inputs))
    # As upstream, TF1's variables become resource variables, and devices of cores have no effect.
    with (
        tf.variable_scope(tf.get_variable_scope(), use_resource=True, auxiliary_name_scope=False),
        graph.device(replica.place_on_cores(1)),
        replica_operations.replaced(),
    ):
        outputs = computation(*inputs)
        built = [each for each in graph.get_operations() if each.name not in before]
        return _in_upstream_form(outputs, _with_effects(built))


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
        # Nothing outside of a loop or a condition may depend on an operation inside of it.
        and operation._get_control_flow_context() is None
    ]


def _in_upstream_form(outputs, effects):
    """Returns the outputs of a computation, which run its operations with effects."""
    # Upstream's form is a list if the computation returns a tensor, or a list or tuple of tensors;
    # an operation if it returns nothing or only operations; else what it returns.
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
