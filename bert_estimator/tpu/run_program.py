"""Runs an exported training program with jax and numpy, without TensorFlow or an input pipeline.

    python -m bert_estimator.tpu.run_program DIR --steps 20

`run_pretraining.py --export_program=DIR` writes the directory DIR. The program starts from the
exported state and repeats the exported batches. It measures how fast the devices are: the batches
are on the devices before the first step, and the host only waits for the last step. It does not
write any files.
"""

import time

import numpy as np

from bert_estimator.command_line import console
from bert_estimator.system import disk_files
from bert_estimator.system.errors import FlagError
from bert_estimator.tpu.program import compile_report, devices, exported_program, stablehlo

_MOST_STEPS = 1_000_000  # the losses of all of them are kept

# FLOP/s of dense matrix products in bfloat16 (in float16 on GPUs without bfloat16), from NVIDIA's
# data sheets. The keys are full names, because boards with the same chip differ.
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


def peak_of(device) -> float | None:
    """Returns the peak of a device in FLOP/s, or None if it is not known."""
    if device.device_kind in compile_report.GENERATIONS:
        return compile_report.GENERATIONS[device.device_kind].peak
    return _GPU_PEAKS.get(device.device_kind)


def run(
    program: exported_program.ExportedProgram, cores: list, steps: int
) -> tuple[list[float], float, float]:
    """Runs at least 2 steps of a program on as many devices as it has cores; returns (mean loss of
    all cores by step, mean seconds of a step, seconds of the first step)."""
    jax = devices.import_jax()
    # All batches are on the devices before the clock starts: the figure is the devices' alone.
    step, state, batches = program.on_cores(cores)
    jax.block_until_ready((batches, state))
    start = time.perf_counter()
    losses = []
    for number in range(steps):
        state, outputs = step(state, batches[number % len(batches)])
        losses.append(outputs[0])
        # The first step compiles the program, so it is timed apart from the others.
        if number == 0:
            jax.block_until_ready((outputs, state))
            compile_secs, start = time.perf_counter() - start, time.perf_counter()
    jax.block_until_ready((losses, state))
    secs = (time.perf_counter() - start) / (steps - 1)
    return [float(np.mean(np.asarray(loss))) for loss in losses], secs, compile_secs


def find_cores(tpu_name: str | None, number: int) -> list:
    """Returns the devices to run on; without a `tpu_name` (see `devices.find`) the fastest kind of
    device of this machine."""
    if tpu_name:
        cores = devices.find(tpu_name)
    else:
        jax = devices.import_jax()
        # If there is only a CPU, its virtual cores stand in for the program's.
        jax.config.update("jax_num_cpu_devices", number)
        cores = jax.devices()
    if len(cores) < number:
        raise RuntimeError(
            f"the program was exported for {number} cores, but there are {len(cores)} "
            f"({cores[0].device_kind}): export it for {len(cores)}, or choose other devices with "
            "--tpu_name"
        )
    return cores[:number]


def main(argv: list[str]) -> int:
    """Runs the command line; returns its exit code."""
    parser = console.parser("bert_estimator.tpu.run_program", __doc__)
    parser.add_argument("directory", help="read the program from this --export_program directory")
    parser.add_argument(
        "--batches", help="read batches from this npz file instead of the exported batches"
    )
    parser.add_argument(
        "--steps", type=int, default=20, help="run this many steps (default %(default)s)"
    )
    parser.add_argument(
        "--tpu_name", help=f"run on {devices.ALLOWED} (default: the fastest kind of device)"
    )
    arguments = parser.parse_args(argv[1:])
    if not 2 <= arguments.steps <= _MOST_STEPS:
        parser.error(
            f"--steps={arguments.steps}: must be from 2 to {_MOST_STEPS}; the first is not timed"
        )
    return console.exit_code(
        "run_program", argv, lambda: _run(arguments), doing=None, prints_results=True
    )


def _run(arguments):
    try:
        program = exported_program.load(arguments.directory, arguments.batches)
        cores = find_cores(arguments.tpu_name, program.num_cores)
    # All of these are about what the command line names, so the message is enough.
    except (OSError, ValueError, RuntimeError) as error:
        raise FlagError(disk_files.in_words(error)) from None
    flops = stablehlo.matmul_flops(program.step.mlir_module())
    print(
        f"{len(cores)} x {cores[0].device_kind}; {program.batch_size} examples and "
        f"{flops:.4g} FLOP of matrix products per core and step"
    )
    losses, secs, compile_secs = run(program, cores, arguments.steps)
    peak = peak_of(cores[0])
    share = f"{flops / secs / peak:.1%}" if peak else "not known for this device"
    print(
        f"first step, with compiling: {compile_secs:.1f} s; the others: {secs:.4g} s each, "
        f"{program.batch_size / secs:.4g} sequences/s, share of peak: {share}"
    )
    print(f"loss: {losses[0]:.5f} at the first step, {losses[-1]:.5f} at step {len(losses)}")


def command() -> None:
    """Runs the console command `tpu-run-program`."""
    console.run(main)


if __name__ == "__main__":
    command()
