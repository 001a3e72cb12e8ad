"""A step as one core's program in StableHLO, which is compiled and run without TensorFlow."""

import dataclasses
from collections.abc import Callable

from bert_estimator.tpu.program import devices, kept_programs, stablehlo
from bert_estimator.tpu.program.core_mesh import CoreMesh


@dataclasses.dataclass(frozen=True)
class StateVariable:
    """Describes a variable of the step.

    Attributes:
      name: its name in checkpoints.
      shape: the shape of its value on one core.
      dtype: the name of its dtype, such as "float32".
      trainable: whether it is a weight, rather than a slot of an optimizer or a counter.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool


@dataclasses.dataclass(frozen=True)
class LoweredStep:
    """Holds a step as StableHLO text.

    Attributes:
      text: the module. Its inputs are the step's inputs, with the replica's number first, and then
        the variables in `order`. Its outputs are the step's outputs, and then all variables in the
        order of `state`.
      num_inputs, num_outputs: how many inputs and outputs the step has, without variables.
      state: a `StateVariable` for each variable.
      order: for each variable among the module's inputs, its index in `state`.
    """

    text: str
    num_inputs: int
    num_outputs: int
    state: list[StateVariable]
    order: list[int]

    def key(self) -> tuple:
        """Returns what equal steps have in common, and only equal steps."""
        text = kept_programs.digest(self.text)
        return text, self.num_inputs, self.num_outputs, tuple(self.state), tuple(self.order)

    def one_core(self) -> Callable:
        """Returns the step as a function of one core's arrays, which jax can trace.

        Returns:
          A function (state, inputs) -> (outputs, new state) of lists of arrays. The state has an
          array for each variable. The first input is the replica's number, int32 [1].
        """
        exported = stablehlo.exported(self.text)

        def one_core(state, inputs):
            results = exported.call(*inputs, *(state[number] for number in self.order))
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
        with jax.enable_x64(True):
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
