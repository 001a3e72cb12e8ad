"""What is tortured: commands with their data, what they leave, and how to compare it."""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from scripts import CLASSIFIER, PRETRAINING, SQUAD, TAGGER
from tiny_run import metrics_of, variables_of, without_timing, words, write_records

from bert_estimator.command_line import console
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab
from input_pipelines import create_pretraining_data
from input_pipelines.creation import stages
from input_pipelines.text.documents import split_files


@dataclasses.dataclass(frozen=True, eq=False)
class Scenario:
    """Holds a command that a trial interrupts, its data, and what of its output must not differ."""

    name: str
    write_data: Callable
    main: Callable
    left: Callable
    hosts: int = 1
    workers: bool = False
    checkpoints: tuple[str, ...] = (".",)


def _digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def _variables(path, step):
    return {
        name: hashlib.sha256(value.tobytes()).hexdigest()
        for name, value in variables_of(path, step).items()
    }


def _of_training(path):
    names = os.listdir(path)
    newest = tf.train.get_checkpoint_state(str(path)).model_checkpoint_path.split("-")[-1]
    return {
        "variables": _variables(path, int(newest)),
        "metrics": list(map(without_timing, metrics_of(path))),
        "leftovers": [name for name in names if "temp" in name or "tmp" in name],
        "checkpoints": sorted(name for name in names if name.startswith("model.ckpt-")),
        "named": newest,
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
    return _of_training(path)


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
    return {stage: _of_training(path / stage) for stage in ("stage_1", "stage_2")}


# Fine-tuning with all that comes after it


def _fine_tuning(script, predict_file, **changes):
    def main(data, output_dir):
        flags = script.flags(
            data,
            output_dir,
            **{
                "save_checkpoints_steps": 2,
                "learning_rate": 0.1,
                "random_seed": 2,
                "keep_best_checkpoint": True,
                "early_stopping_patience": 9,
                "do_train": True,
                "do_eval": True,
                "do_predict": True,
                "predict_file": data / predict_file,
                "do_export": True,
                **changes,
            },
        )
        return script.main(flags)

    return main


def _left_by_fine_tuning(path):
    newest = max((path / "export").iterdir(), key=lambda export: export.name)
    best = path / "best"
    return {
        **_of_training(path),
        "best": json.loads((best / "best.json").read_text()),
        # The graph in a .meta file depends on the process that wrote it.
        "kept": {
            name: name.endswith(".meta") or _digest(best / name)
            for name in sorted(os.listdir(best))
        },
        "results": (path / "eval_results.txt").read_text(),
        "predictions": {
            name: _digest(path / name)
            for name in sorted(os.listdir(path))
            if "predictions" in name or name.startswith("test_results")
        },
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
    # So small that a short text has several tasks of each kind, and work for two processes.
    stages._GROUP_TOKENS, stages._BUCKET_TOKENS = 2000, 8000
    create_pretraining_data._BYTES_OF_A_WORKER = 1
    create_pretraining_data.split_files = lambda *args: split_files(*args, part_bytes=5000)
    flags = {
        "num_workers": 2,
        "input_file": data / "corpus.txt",
        "output_file": f"{output_dir}/a.tfrecord,{output_dir}/b.tfrecord",
        "vocab_file": data / "vocab.txt",
        "max_seq_length": 32,
        "max_predictions_per_seq": 4,
    }
    argv = ["create_pretraining_data", *(f"--{name}={value}" for name, value in flags.items())]
    return console.exit_code(
        argv[0], argv, lambda: leave_unless_0(create_pretraining_data.main(argv))
    )


def leave_unless_0(code):
    if code:
        raise SystemExit(code)


def _left_by_creation(path):
    return {name: _digest(path / name) for name in sorted(os.listdir(path)) if name[0] != "."}


def _of_pretraining(name, hosts=1, **changes):
    main = _pretraining(**changes)
    return Scenario(name, PRETRAINING.write_data, main, _left_by_pretraining, hosts)


def _of_fine_tuning(name, script, predict_file, **changes):
    main = _fine_tuning(script, predict_file, **changes)
    return Scenario(name, script.write_data, main, _left_by_fine_tuning)


_CORES = {"tpu_name": "rehearse:2"}

SCENARIOS = [
    _of_pretraining("pretraining, session"),
    _of_fine_tuning("labels, session", CLASSIFIER, "dev.tsv"),
    Scenario(
        "recipe, hand-over", _recipe_data, _recipe, _left_by_recipe,
        checkpoints=("stage_1", "stage_2"),
    ),
    _of_fine_tuning("answers, session", SQUAD, "dev.json"),
    _of_fine_tuning("labels, cores", CLASSIFIER, "dev.tsv", **_CORES),
    Scenario("data creation", _text_data, _creation, _left_by_creation, workers=True,
             checkpoints=()),
    _of_fine_tuning("tags, session", TAGGER, "dev.conll"),
    _of_pretraining("pretraining, cores", **_CORES),
    _of_fine_tuning("answers, cores", SQUAD, "dev.json", **_CORES),
    _of_pretraining("pretraining, best, local", use_tpu=False, keep_best_checkpoint=True),
    _of_fine_tuning("tags, cores", TAGGER, "dev.conll", **_CORES),
    _of_pretraining("pretraining, two hosts", hosts=2, host_wait_secs=15, **_CORES),
]  # fmt: skip
