"""Runs lowered steps on cores, one step at a time."""

from bert_estimator.tpu.program import devices


def compiled(lowered, mesh):
    """Returns a function (state, inputs) -> (outputs, new state) of lists of arrays, which consumes
    the state; in inputs and outputs the replicas' rows follow each other."""
    jax = devices.import_jax()
    step = mesh.jit(lowered.one_core(), lowered.state, inputs=[0], outputs=[0])
    replica_ids = mesh.replica_ids()

    def run(state, inputs):
        with jax.enable_x64(True):
            state, outputs = step(state, [replica_ids, *inputs])
            return outputs, state

    return run
