"""A step as one core's program in StableHLO, which is compiled and run without TensorFlow."""

import dataclasses
from collections.abc import Callable

from bert_estimator.tpu.program import devices, kept_programs, stablehlo
from bert_estimator.tpu.program.core_mesh import REPLICA, CoreMesh


@dataclasses.dataclass(frozen=True)
class StateVariable:
    """Describes a variable of the step.

    Attributes:
      name: its name in checkpoints.
      shape: the shape of its value.
      dtype: the name of its dtype, such as "float32".
      trainable: whether it is a weight, rather than a slot of an optimizer or a counter.
      split_axis: the axis along which the cores that share an update split the value; None if each
        core has the whole value.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    split_axis: int | None = None


@dataclasses.dataclass(frozen=True)
class LoweredStep:
    """Holds a step as StableHLO text.

    Attributes:
      text: the module. Its inputs are the step's inputs, with the replica's number first, and then
        the variables in `order`. Its outputs are the step's outputs, and then all variables in the
        order of `state`.
      num_inputs, num_outputs: how many inputs and outputs the step has, without variables.
      state: a `StateVariable` for each variable.
      order: for each variable among the module's inputs, its index in `state`. If the cores split
        the variable, the input is the core's part, or the whole value.
      num_shards: how many cores, one after the other, share the update of the weights.
    """

    text: str
    num_inputs: int
    num_outputs: int
    state: list[StateVariable]
    order: list[int]
    num_shards: int = 1

    def key(self) -> tuple:
        """Returns what equal steps have in common, and only equal steps."""
        text = kept_programs.digest(self.text)
        state, order = tuple(self.state), tuple(self.order)
        return text, self.num_inputs, self.num_outputs, state, order, self.num_shards

    def one_core(self) -> Callable:
        """Returns the step as a function of one core's arrays, which jax can trace.

        Returns:
          A function (state, inputs) -> (outputs, new state) of lists of arrays. The state has an
          array for each variable: what the core holds of it. The first input is the replica's
          number, int32 [1].
        """
        exported = stablehlo.exported(self.text)
        gather = devices.import_jax().lax.all_gather
        shapes = [aval.shape for aval in exported.in_avals[self.num_inputs :]]

        def value(number, shape, state):
            axis = self.state[number].split_axis
            if axis is None or shape != self.state[number].shape:
                return state[number]
            return gather(state[number], REPLICA[1], axis=axis, tiled=True)

        def one_core(state, inputs):
            given = zip(self.order, shapes, strict=True)
            results = exported.call(*inputs, *(value(n, shape, state) for n, shape in given))
            last = self.num_outputs + len(self.state)
            return list(results[: self.num_outputs]), list(results[self.num_outputs : last])

        return one_core

    def compile(self, mesh: CoreMesh) -> Callable:
        """Compiles the step for the cores of a mesh.

        Returns:
          A function (state, inputs) -> (outputs, new state) of lists of arrays. The rows of inputs
          and outputs are the replicas' rows one after the other. The state has an array for each
          variable; the function consumes them.

        Raises:
          ValueError: a variable cannot be split by the mesh's rules.
        """
        jax = devices.import_jax()
        step = self._jitted(mesh)
        replica_ids = mesh.replica_ids()

        def run(state, inputs):
            with jax.enable_x64(True):
                state, outputs = step(state, [replica_ids, *inputs])
                return outputs, state

        return run

    def compile_only(self, mesh: CoreMesh):
        """Compiles the step for devices that need not be there, such as a topology's devices.

        Returns:
          A `jax.stages.Compiled`, which knows its memory and cost. It cannot run unless the devices
          are real.
        """
        jax = devices.import_jax()
        with jax.enable_x64(True), kept_programs.not_on_disk():
            state = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in self.state]
            inputs = [
                jax.ShapeDtypeStruct((mesh.num_replicas * shape[0], *shape[1:]), dtype)
                for shape, dtype in stablehlo.parameters(self.text)[: self.num_inputs]
            ]
            return self._jitted(mesh).lower(state, inputs).compile()

    def _jitted(self, mesh):
        one_core = self.one_core()

        def step(state, inputs):
            outputs, state = one_core(state, inputs)
            return state, outputs

        return mesh.jit(step, self.state, inputs=[0], outputs=[0])
