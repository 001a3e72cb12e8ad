"""A step as one core's program, apart from TensorFlow: compiled for devices, and run on them."""

import dataclasses

from bert_estimator.tpu.program import devices, stablehlo


@dataclasses.dataclass(frozen=True)
class StateVariable:
    """A variable of the step.

    Attributes:
      name: as in checkpoints.
      shape, dtype: of its value on one core; the dtype by name, such as "float32".
      trainable: whether it is a weight, rather than a slot of an optimizer or a counter.
    """

    name: str
    shape: tuple
    dtype: str
    trainable: bool


@dataclasses.dataclass(frozen=True)
class LoweredStep:
    """A step as StableHLO text.

    Attributes:
      text: the module; its inputs are the step's inputs (the replica's number first), then the
        variables in `order`; its outputs the step's outputs, then all variables as they stand.
      num_inputs, num_outputs: how many of them there are.
      state: a `StateVariable` for each variable, in the order of the outputs.
      order: for each variable among the module's inputs, its number in `state`.
    """

    text: str
    num_inputs: int
    num_outputs: int
    state: list
    order: list

    def one_core(self):
        """Returns the step as jax sees it: a function of one core's arrays.

        Returns:
          A function (state, inputs) -> (outputs, new state) that jax can trace, of lists of arrays:
          state is one a variable, inputs are the replica's number, int32 [1], and the step's own.
        """
        exported = stablehlo.exported(self.text)

        def one_core(state, inputs):
            results = exported.call(*inputs, *(state[number] for number in self.order))
            last = self.num_outputs + len(self.state)
            return list(results[: self.num_outputs]), list(results[self.num_outputs : last])

        return one_core

    def compile(self, mesh):
        """Compiles the step for the cores of a `CoreMesh`.

        Returns:
          A function (state, inputs) -> (outputs, new state). Inputs and outputs are arrays whose
          first axis is the replicas' one after the other; state is a list of arrays, one a
          variable, which the function consumes.

        Raises:
          ValueError: a variable cannot be split as the mesh wants.
        """
        jax = devices.import_jax()
        step = self._jitted(mesh)
        replica_ids = mesh.replica_ids()

        def run(state, inputs):
            with jax.enable_x64(True):
                state, outputs = step(state, [replica_ids, *inputs])
                return outputs, state

        return run

    def compile_only(self, mesh):
        """Compiles the step for devices that need not be there, such as a topology's.

        Returns:
          A `jax.stages.Compiled`, which knows its memory and cost; it runs only where the devices
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
