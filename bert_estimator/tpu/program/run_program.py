"""Runs an exported training program, with jax and numpy alone: no TensorFlow, no input pipeline.

    python -m bert_estimator.tpu.run_program DIR --steps 20

DIR is what `run_pretraining.py --export_program=DIR` wrote. The program starts from the exported
state and goes through the exported batches again and again. It tells how fast the devices are: the
batches are there before the first step, and nobody waits for a step but the last one. Nothing is
written.
"""

import argparse
import sys
import time

import numpy as np

from bert_estimator.tpu.program import devices, exported_program, stablehlo, topology
from bert_estimator.tpu.program.core_mesh import CoreMesh

# FLOP/s of dense matrix products in bfloat16 (float16 where there is none), by a GPU's whole name:
# boards of one chip differ. NVIDIA's data sheets.
_GPU_PEAKS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
    "Tesla V100-SXM2-16GB": 125e12,
    "Tesla V100-SXM2-32GB": 125e12,
    "Tesla T4": 65e12,
}


def peak_of(device):
    """Returns the peak of a device in FLOP/s, or None where it is not known."""
    if device.device_kind in topology.GENERATIONS:
        return topology.GENERATIONS[device.device_kind].peak
    return _GPU_PEAKS.get(device.device_kind)


def run(program, cores, steps):
    """Runs steps of a program.

    Args:
      program: an `ExportedProgram`.
      cores: devices, as many as it has cores.
      steps: how many, at least 2: the first one, which is compiled then, is not timed.

    Returns:
      (losses, secs, compile_secs): the loss of every step, the mean of the cores'; seconds of a
      step, of all but the first; seconds that the first took.
    """
    jax = devices.import_jax()
    mesh = CoreMesh(cores)
    step = program.lowered.compile(mesh)
    batches = [mesh.put(batch, mesh.rows) for batch in program.batches]
    state = mesh.put(program.state, mesh.whole)
    jax.block_until_ready((batches, state))
    start = time.perf_counter()
    losses = []
    for number in range(steps):
        outputs, state = step(state, batches[number % len(batches)])
        losses.append(outputs[0])
        if number == 0:
            jax.block_until_ready((outputs, state))
            compile_secs, start = time.perf_counter() - start, time.perf_counter()
    jax.block_until_ready((losses, state))
    secs = (time.perf_counter() - start) / (steps - 1)
    return [float(np.mean(np.asarray(loss))) for loss in losses], secs, compile_secs


def find_cores(tpu_name, number):
    """Returns the devices to run on: those named, or the fastest kind that this machine has.

    Raises:
      RuntimeError: there are fewer than the program has cores.
    """
    if tpu_name:
        found = devices.find(tpu_name)
    else:
        jax = devices.import_jax()
        jax.config.update("jax_num_cpu_devices", number)
        found = jax.devices()
    if len(found) < number:
        raise RuntimeError(
            f"the program was exported for {number} cores, and here are {len(found)} "
            f"({found[0].device_kind}): export it for as many, or name others with --tpu_name"
        )
    return found[:number]


def main(argv):
    """Runs the command line; returns its exit code."""
    parser = argparse.ArgumentParser(prog="run_program", description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="what --export_program wrote")
    parser.add_argument("--batches", help="npz file of batches, in place of the exported ones")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tpu_name", help=f"{devices.ALLOWED}; by default the best there is")
    arguments = parser.parse_args(argv)
    if arguments.steps < 2:
        parser.error(f"--steps={arguments.steps}: must be at least 2; the first is not timed")
    try:
        program = exported_program.load(arguments.directory, arguments.batches)
        cores = find_cores(arguments.tpu_name, program.num_cores)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"run_program: {error}", file=sys.stderr)
        return 2
    flops = stablehlo.matmul_flops(program.lowered.text)
    print(
        f"{len(cores)} x {cores[0].device_kind}; {program.batch_size} examples and "
        f"{flops:.4g} FLOP of matrix products a core in a step"
    )
    losses, secs, compile_secs = run(program, cores, arguments.steps)
    peak = peak_of(cores[0])
    share = f"{flops / secs / peak:.1%}" if peak else "not known of this device"
    print(
        f"first step, compiled: {compile_secs:.1f} s; the others: {secs:.4g} s each, "
        f"{program.batch_size / secs:.4g} sequences/s, share of peak: {share}"
    )
    print(f"loss: {losses[0]:.5f} at the first step, {losses[-1]:.5f} at step {len(losses)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
