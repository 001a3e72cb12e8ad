"""Runs the scripts in `scripts/` and compares results, for compare.py and test_scripts.py."""

import itertools
import json
import math
import os
import pathlib
import shutil
import subprocess

import tensorflow.compat.v1 as tf

HERE = pathlib.Path(__file__).parent
SCRIPTS = HERE / "scripts"
GOLDENS = HERE / "goldens"
ROOT = HERE.parent.parent
RELATIVE = 1e-4

# These run in the quick suite.
QUICK = [
    *["bert_pretraining", "bert_classifier", "mnist_convnet", "regression", "counted_beside"],
    *["moving_averages", "train_and_evaluate", "predict_and_export"],
]
# These need the tensorflow-estimator package.
CANNED = ["wide_and_deep", "text_classifier", "multi_head", "canned_exporters", "contrib_heads"]
# These have a mean loss and no batch statistics: on two cores they give what they give on one.
ON_CORES = [
    *["regression", "depthwise_convnet", "recurrent_tagger", "keras_layers", "slim_autoencoder"],
    *["matrix_factorization", "two_players", "translation", "segmentation"],
]
# Script -> (its flags, the flags that resume it and run to step 22).
FLAGS = {
    **dict.fromkeys([*QUICK, *CANNED, *ON_CORES], ([], ["--train_steps=22"])),
    "bert_pretraining": (["--do_train", "--do_eval"], ["--num_train_steps=22"]),
    "bert_classifier": (["--do_train", "--do_eval"], ["--num_train_epochs=4.4"]),
    "predict_and_export": ([], ["--num_train_steps=22"]),
}
# Script -> the largest relative difference of its losses, if it is not RELATIVE.
LOSSES = dict.fromkeys(CANNED, 1e-5)

# A name -> the script that writes its variables, and the script's flags.
ZOO = {
    "model_zoo": ("model_zoo", []),
    "keras_applications": ("model_zoo", ["--applications"]),
}


def run_zoo(command, name, folder, process=subprocess.run):
    """Has a script of ZOO write variables.json into a folder; see `run`."""
    script, flags = ZOO[name]
    run(command, script, folder, *flags, process=process)


def variables_of(path):
    """Reads model -> list of (variable's name, shape, dtype, whether it is trainable)."""
    return json.loads(path.read_text())


def differences_of_variables(expected, got):
    """Returns a line for each model whose variables differ, in their order or otherwise."""
    lines = [f"{model} in one only" for model in sorted(set(expected) ^ set(got))]
    for model in sorted(set(expected) & set(got)):
        pairs = itertools.zip_longest(expected[model], got[model])
        different = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if different is not None:
            lines.append("{}: {} and {}".format(model, *different))
    return lines


def run(command, script, folder, *flags, process=subprocess.run):
    """Runs a script by a command; raises RuntimeError with the end of its log if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    # TensorFlow sets this variable in this process; it makes TensorFlow 1 behave as TensorFlow 2.
    environment.pop("TF2_BEHAVIOR", None)
    done = process(
        [*command, str(SCRIPTS / f"{script}.py"), f"--output_dir={folder}", *flags],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{script} ended with {done.returncode}:\n{done.stdout[-4000:]}")


def start_from(folder, source, step):
    """Puts the checkpoint of a step, from another folder, into a new folder."""
    folder.mkdir(parents=True)
    for path in source.glob(f"model.ckpt-{step}.[di]*"):
        shutil.copy(path, folder)
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')


def differences_on_cores(script, folder, expected):
    """Returns the differences on two cores, where a mean loss is logged after each loop."""
    got = observe(folder)
    assert list(got["losses"]) == ["5", "10", "15", "20"], script
    losses = {step: expected["losses"][step] for step in got["losses"]}
    return differences({**expected, "losses": losses}, got)


def observe(folder):
    """Reads the results of a run: losses by step, metrics and shapes of variables by name."""
    losses = {}
    for path in sorted(folder.glob("events*")):
        for event in tf.train.summary_iterator(str(path)):
            for value in event.summary.value:
                # If the script has a scope called loss, the second name is the loss.
                if value.tag in ("loss", "loss_1"):
                    losses[str(event.step)] = value.simple_value
    results = {}
    for path in folder.glob("*_results.txt"):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" = ")
            results[name] = value
    newest = tf.train.latest_checkpoint(str(folder))
    return {
        "losses": losses,
        "results": results,
        "variables": dict(tf.train.list_variables(newest)),
    }


def differences(expected, got, losses=None):
    """Returns a line for each difference of two observations, and the largest difference."""
    lines, largest = [], 0.0
    for kind in ("losses", "results", "variables"):
        if set(expected[kind]) != set(got[kind]):
            lines.append(f"{kind}: {sorted(set(expected[kind]) ^ set(got[kind]))} in one only")
    for kind in ("losses", "results"):
        for name in set(expected[kind]) & set(got[kind]):
            one, other = expected[kind][name], got[kind][name]
            try:
                one, other = float(one), float(other)
            except ValueError:
                if one != other:
                    lines.append(f"{kind} {name}: {one} and {other}")
                continue
            if one != other:
                largest = max(largest, abs(one - other) / max(abs(one), abs(other)))
            tolerance = losses if kind == "losses" and losses else RELATIVE
            if not math.isclose(one, other, rel_tol=tolerance):
                lines.append(f"{kind} {name}: {one} and {other}")
    for name in set(expected["variables"]) & set(got["variables"]):
        if list(expected["variables"][name]) != list(got["variables"][name]):
            lines.append(f"variable {name}: shapes differ")
    return lines, largest
