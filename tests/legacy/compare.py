"""Runs the same scripts on TensorFlow 1.15 and on today's, and compares what came out.

    python tests/legacy/compare.py --tf1_python=PATH_OF_PYTHON_3.7 [--record] [script ...]

The Python of TensorFlow 1 needs `pip install tensorflow==1.15.5 'protobuf<3.21'`. Each script runs

1. on TensorFlow 1 from its own initial weights: checkpoints at steps 0 and 20,
2. on today's TensorFlow under the legacy runner, from the first one's checkpoint of step 0,
3. on TensorFlow 1 from the second one's checkpoint of step 20, to step 22,
4. on today's from the first one's checkpoint of step 20, to step 22,
5. if it is in `replay.ON_CORES`, as 2 on two virtual cores,

and 1 must equal 2 and 5, and 3 equal 4; models of `replay.ZOO` must have the same variables. With
--record, what 1 gave, and its checkpoint of step 0, become the goldens of `test_scripts.py`.
"""

import argparse
import json
import pathlib
import shutil
import sys
import tempfile

import replay


def compare(script, tf1_python, folder, record):
    """Runs a script in all ways; returns the lines in which they differ."""
    flags, further = replay.FLAGS[script]
    then, now = [tf1_python], [sys.executable, "-m", "bert_estimator.legacy"]
    first, second = folder / "then", folder / "now"
    first.mkdir(parents=True)
    replay.run(then, script, first, *flags)
    replay.start_from(second, first, 0)
    replay.run(now, script, second, *flags)
    seen = replay.observe(first)
    lines, largest = replay.differences(seen, replay.observe(second), replay.LOSSES.get(script))
    third, fourth = folder / "then_after_now", folder / "now_after_then"
    replay.start_from(third, second, 20)
    replay.start_from(fourth, first, 20)
    replay.run(then, script, third, *flags, *further)
    replay.run(now, script, fourth, *flags, *further)
    more, largest_after = replay.differences(
        replay.observe(third), replay.observe(fourth), replay.LOSSES.get(script)
    )
    lines += [f"after the other's checkpoint: {line}" for line in more]
    if script in replay.ON_CORES:
        cores = folder / "cores"
        replay.start_from(cores, first, 0)
        replay.run(now, script, cores, *flags, "--use_tpu", "--tpu=rehearse:2")
        more, largest_on_cores = replay.differences_on_cores(script, cores, seen)
        lines += [f"on two cores: {line}" for line in more]
        print(f"{script}: largest relative difference on two cores {largest_on_cores:.1e}")
    print(
        f"{script}: {len(seen['losses'])} losses, {len(seen['results'])} results, "
        f"{len(seen['variables'])} variables; largest relative difference {largest:.1e}, "
        f"{largest_after:.1e} from each other's checkpoints"
    )
    if record and not lines:
        golden = replay.GOLDENS / script
        shutil.rmtree(golden, ignore_errors=True)
        golden.mkdir(parents=True)
        for path in first.glob("model.ckpt-0.[di]*"):
            shutil.copy(path, golden)
        text = json.dumps(seen, indent=1, sort_keys=True)
        (replay.GOLDENS / f"{script}.json").write_text(text + "\n")
    return lines


def compare_variables(script, tf1_python, folder, record):
    """Builds a zoo's models on both; returns the lines in which their variables differ."""
    then, now = folder / "then", folder / "now"
    replay.run_zoo([tf1_python], script, then)
    replay.run_zoo([sys.executable, "-m", "bert_estimator.legacy"], script, now)
    expected, got = (replay.variables_of(path / "variables.json") for path in (then, now))
    number = sum(len(variables) for variables in expected.values())
    print(f"{script}: {len(expected)} models, {number} variables")
    lines = replay.differences_of_variables(expected, got)
    if record and not lines:
        shutil.copy(then / "variables.json", replay.GOLDENS / f"{script}.json")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tf1_python", required=True, help="run TensorFlow 1.15 with this Python")
    parser.add_argument("--record", action="store_true", help="write the goldens")
    parser.add_argument("scripts", nargs="*", default=[*replay.FLAGS, *replay.ZOO])
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.scripts) - {*replay.FLAGS, *replay.ZOO})
    if unknown:
        parser.error(f"no such script: {unknown}; there are {[*replay.FLAGS, *replay.ZOO]}")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for script in arguments.scripts:
            compared = compare_variables if script in replay.ZOO else compare
            lines = compared(
                script, arguments.tf1_python, pathlib.Path(folder) / script, arguments.record
            )
            failed |= bool(lines)
            print("\n".join(f"  {line}" for line in lines), end="\n" if lines else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
