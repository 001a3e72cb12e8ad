"""What is tortured: commands with their data, what they leave, and how to compare it."""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from scripts import CLASSIFIER, PRETRAINING
from tiny_run import metrics_of, variables_of, without_timing, words, write_records

from bert_estimator.command_line import console
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab
from input_pipelines import create_pretraining_data


@dataclasses.dataclass(frozen=True, eq=False)
class Scenario:
    """Holds a command that a trial interrupts.

    Attributes:
      name: for the table.
      write_data: writes what the command reads into a directory.
      main: function of (data, output directory) that runs the command; returns its exit code.
      left: function of the output directory: what must not depend on interruptions, a dict.
      hosts: how many processes run the command together.
      checkpoints: directories, below the output directory, whose checkpoints a trial may damage.
    """

    name: str
    write_data: Callable
    main: Callable
    left: Callable
    hosts: int = 1
    checkpoints: tuple[str, ...] = (".",)


def _digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def _variables(path, step):
    return {
        name: hashlib.sha256(value.tobytes()).hexdigest()
        for name, value in variables_of(path, step).items()
    }


def _of_training(path, step):
    names = os.listdir(path)
    return {
        "variables": _variables(path, step),
        "metrics": list(map(without_timing, metrics_of(path))),
        "leftovers": [name for name in names if "temp" in name or "tmp" in name],
        "checkpoints": sorted(name for name in names if name.startswith("model.ckpt-")),
        "named": tf.train.get_checkpoint_state(str(path)).model_checkpoint_path.split("-")[-1],
    }


# Pretraining

STEPS = 12


def _pretraining(**changes):
    def main(data, output_dir):
        flags = PRETRAINING.flags(
            data,
            output_dir,
            num_train_steps=STEPS,
            **{"save_checkpoints_steps": 2, "do_train": True, "do_eval": True, **changes},
        )
        return PRETRAINING.main(flags)

    return main


def _left_by_pretraining(path):
    return _of_training(path, STEPS)


# A recipe, which hands over from stage to stage


def _recipe_data(path):
    PRETRAINING.write_data(path)
    write_records(path, "16.tfrecord", words(40), num_sentences=9, max_predictions_per_seq=3)


def _recipe(data, output_dir):
    flags = {
        "recipe": "lamb_76min",
        "scale": "smoke",
        "input_file": f"{data}/{{max_seq_length}}.tfrecord",
        "bert_config_file": data / "bert_config.json",
        "output_dir": output_dir,
        "max_seq_length": 16,
        "max_predictions_per_seq": 3,
        "train_batch_size": 8,
        "micro_batch_size": 4,
        "num_train_steps": 6,
        "num_warmup_steps": 2,
        "save_checkpoints_steps": 2,
        "iterations_per_loop": 1,
        "do_train": True,
        "do_eval": True,
        "use_tpu": True,
    }
    return PRETRAINING.main([f"--{name}={value}" for name, value in flags.items()])


def _left_by_recipe(path):
    return {stage: _of_training(path / stage, 6) for stage in ("stage_1", "stage_2")}


# Fine-tuning with all that comes after it


def _classifier(**changes):
    def main(data, output_dir):
        flags = CLASSIFIER.flags(
            data,
            output_dir,
            save_checkpoints_steps=2,
            learning_rate=0.1,
            random_seed=2,
            keep_best_checkpoint=True,
            early_stopping_patience=9,
            do_train=True,
            do_eval=True,
            do_predict=True,
            predict_file=data / "dev.tsv",
            do_export=True,
            **changes,
        )
        return CLASSIFIER.main(flags)

    return main


def _left_by_classifier(path):
    newest = max((path / "export").iterdir(), key=lambda export: export.name)
    best = path / "best"
    return {
        **_of_training(path, 8),
        "best": json.loads((best / "best.json").read_text()),
        # The graph in a .meta file depends on the process that wrote it.
        "kept": {
            name: name.endswith(".meta") or _digest(best / name)
            for name in sorted(os.listdir(best))
        },
        "results": (path / "eval_results.txt").read_text(),
        "predictions": (path / "test_results.tsv").read_text(),
        "exported step": int(
            tf.train.load_variable(str(newest / "variables" / "variables"), "global_step")
        ),
        "broken exports": [
            export.name
            for export in (path / "export").iterdir()
            if not (export / "saved_model.pb").exists()
        ],
    }


# Data creation


def _text_data(path):
    write_vocab([*SPECIAL_TOKENS, *words(40)], str(path / "vocab.txt"))
    documents = (
        "\n".join(" ".join(f"w{(7 * d + 3 * s + w) % 40}" for w in range(6)) for s in range(30))
        for d in range(60)
    )
    (path / "corpus.txt").write_text("\n\n".join(documents) + "\n")


def _creation(data, output_dir):
    os.makedirs(output_dir, exist_ok=True)
    create_pretraining_data.define_flags()
    flags = {
        "input_file": data / "corpus.txt",
        "output_file": f"{output_dir}/a.tfrecord,{output_dir}/b.tfrecord",
        "vocab_file": data / "vocab.txt",
        "max_seq_length": 32,
        "max_predictions_per_seq": 4,
    }
    argv = ["create_pretraining_data", *(f"--{name}={value}" for name, value in flags.items())]
    return console.exit_code(argv[0], lambda: leave_unless_0(create_pretraining_data.main(argv)))


def leave_unless_0(code):
    if code:
        raise SystemExit(code)


def _left_by_creation(path):
    return {name: _digest(path / name) for name in sorted(os.listdir(path)) if name[0] != "."}


SCENARIOS = [
    Scenario("pretraining, session", PRETRAINING.write_data, _pretraining(), _left_by_pretraining),
    Scenario(
        "fine-tuning, session", CLASSIFIER.write_data, _classifier(), _left_by_classifier
    ),
    Scenario(
        "recipe, hand-over", _recipe_data, _recipe, _left_by_recipe,
        checkpoints=("stage_1", "stage_2"),
    ),
    Scenario(
        "fine-tuning, cores", CLASSIFIER.write_data, _classifier(tpu_name="rehearse:2"),
        _left_by_classifier,
    ),
    Scenario("data creation", _text_data, _creation, _left_by_creation, checkpoints=()),
    Scenario(
        "pretraining, cores", PRETRAINING.write_data, _pretraining(tpu_name="rehearse:2"),
        _left_by_pretraining,
    ),
    Scenario(
        "pretraining, two hosts", PRETRAINING.write_data,
        _pretraining(tpu_name="rehearse:2", host_wait_secs=15), _left_by_pretraining, hosts=2,
    ),
]  # fmt: skip
