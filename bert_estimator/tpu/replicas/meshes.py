"""What mesh-tensorflow's SimdMeshImpl asks of TensorFlow's own TPU runtime, for our cores.

A program of mesh-tensorflow (T5, GPT-Neo) splits its tensors over the cores by itself. To the
TPUEstimator each core is a replica, which gets the whole batch. The program keeps each weight
twice: as a master variable of the session, which checkpoints have, and as one slice for each core.
Hooks of its own copy between them. It needs

- a variable that has another value on each core: `Context.get_replicated_var_handle`;
- `outside_all_rewrites`, the block in which it builds what the session runs: `outside_rewrites`;
- the layout of the cores: `CoreAssignment`.
"""

import contextlib
import math
import sys
import types
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_ops
from tensorflow.python.tpu.device_assignment import DeviceAssignment
from tensorflow.python.tpu.topology import Topology

HOST_DEVICE = "/device:CPU:0"  # Each host runs a session of its own.


class CoreAssignment(DeviceAssignment):
    """Says which core runs which replica (on one core, or on the first of several), to programs
    that lay out a mesh by it."""

    def __init__(self, num_replicas: int, num_hosts: int = 1):
        cores = 2 if num_replicas % 2 == 0 else 1
        chips = num_replicas // cores
        # The chips are laid out as near to a square as they can.
        y = next(y for y in range(math.isqrt(chips), 0, -1) if chips % y == 0)
        shape = [chips // y, y, 1, cores]
        # In lexicographic order of [x, y, 0, core of the chip], as the replicas are numbered.
        coordinates = np.array(list(np.ndindex(*shape)), np.int32)
        topology = Topology(
            mesh_shape=shape, device_coordinates=coordinates.reshape(num_hosts, -1, len(shape))
        )
        super().__init__(topology, coordinates[:, np.newaxis])

    def tpu_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        # Cores are not TensorFlow devices, so there is no name to place operations by.
        return ""

    def host_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        return HOST_DEVICE


class Context(control_flow_ops.XLAControlFlowContext):
    """The control flow context of a step that is built for cores, in which TensorFlow makes
    gradients of conditions and loops with operations that XLA knows."""

    def __init__(self, handle_of: Callable[[str, list[tf.Variable]], tf.Tensor]):
        super().__init__()
        # A function of a name and of variables of the session, one for each replica. It returns the
        # handle of the variable that has their values, each on its replica.
        self._handle_of = handle_of

    def __enter__(self):
        self.Enter()

    def __exit__(self, *exc_info):
        self.Exit()

    def get_replicated_var_handle(self, name: str, vars_: list[tf.Variable]) -> tf.Tensor:
        """Returns the handle, as upstream's context does; mesh-tensorflow's variables call this."""
        return self._handle_of(name, vars_)

    def RequiresUniqueFunctionRetracing(self) -> bool:
        # A `tf.function` that both the session and a step call is traced for each: random
        # operations, for one, have another meaning in a step.
        return True


@contextlib.contextmanager
def outside_rewrites(session_graph: tf.Graph) -> Iterator[None]:
    """Surrounds code that builds a step in a graph of its own: in mesh-tensorflow's block
    `outside_all_rewrites`, it builds in the session's graph instead."""
    # A program that uses mesh-tensorflow has imported it before it builds a step.
    utils = sys.modules.get("mesh_tensorflow.utils")
    if utils is None:
        yield
        return

    @contextlib.contextmanager
    def control_dependencies(control_inputs):
        assert control_inputs is None
        scope = tf.get_variable_scope()
        with (
            session_graph.as_default(),
            tf.control_dependencies(None),
            tf.variable_scope(scope, use_resource=True, auxiliary_name_scope=False),
        ):
            yield

    # Programs may have imported the function itself. It consists of `ops.control_dependencies`,
    # and nothing else in its module uses `ops`.
    tensorflows, utils.ops = (
        utils.ops,
        types.SimpleNamespace(control_dependencies=control_dependencies),
    )
    try:
        yield
    finally:
        utils.ops = tensorflows
