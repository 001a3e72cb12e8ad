"""Every command of README and docs runs as it is printed, with flags added that make it short."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from tiny_run import bert_config, pairs, write_questions

import bert_estimator
from tests.docs.test_docs import PAGES, old_script

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent

TINY = (
    "--train_batch_size=8 --num_train_steps=4 --num_warmup_steps=2 --iterations_per_loop=2 "
    "--max_eval_steps=2 --eval_batch_size=8 --micro_batch_size=8"
)
FINE_TUNING = (
    "--max_seq_length=16 --train_batch_size=8 --eval_batch_size=8 --num_train_epochs=1 "
    "--nodo_lower_case"  # the model of the test is cased
)

# Documented commands in the order of a stranger's day: the beginning of a command, and the flags
# that the test adds to it.
RUN_HERE = [
    ("mkdir -p data", ""),
    ("python -m input_pipelines.create_text", ""),
    ("python -m input_pipelines.create_vocabulary", "--vocab_size=80"),
    (
        "python -m input_pipelines.create_pretraining_data --input_file=corpus --vocab_file=model",
        "--max_seq_length=16 --max_predictions_per_seq=4",
    ),
    ("python -m input_pipelines.create_pretraining_data", "--dupe_factor=1"),
    ("python run_pretraining.py --input_file=data", TINY),
    (
        "python run_pretraining.py --init_checkpoint=model --input_file=domain.tfrecord",
        f"{TINY} --max_seq_length=16 --max_predictions_per_seq=4",
    ),
    ("python run_pretraining.py --use_tpu --output_dir=runs/cores --export_program=program", TINY),
    ("python -m bert_estimator.tpu.run_program program", ""),
    ("python run_classifier.py --task_name=mrpc", FINE_TUNING),
    ("python run_classifier.py --train_file=train.csv", FINE_TUNING),
    ("python run_classifier.py --init_checkpoint=runs/my_task", "--max_seq_length=16"),
    (
        "python run_squad.py --train_file=train-v1.1.json",
        "--max_seq_length=16 --doc_stride=4 --max_query_length=4 --train_batch_size=8 "
        "--num_train_epochs=1 --nodo_lower_case",
    ),
    ("python -m bert_estimator.serving.predictor runs/mrpc", ""),
    ("python -m bert_estimator.serving.embed uncased_L-12_H-768_A-12", ""),
    ("python -m bert_estimator.serving.fill uncased_L-12_H-768_A-12", ""),
    ("python -m bert_estimator.interchange runs/mrpc mrpc", ""),
    ("python -m bert_estimator.interchange uncased_L-12_H-768_A-12.zip bert-base-uncased", ""),
    (
        "python -m bert_estimator.legacy tests/legacy/scripts/bert_pretraining.py",
        "--num_train_steps=4 --num_warmup_steps=2 --max_eval_steps=2",
    ),
    ("python -m bert_estimator.legacy old_script.py", ""),
    ("sed -E", ""),  # makes new_script.py
    ("python new_script.py", ""),
]
# Commands that take minutes, or an environment of their own, and what runs them instead.
VENV = "python3 -m venv .venv && . .venv/bin/activate &&"
RUN_ELSEWHERE = {
    f"{VENV} pip install -e '.[test,tpu]'": ".ci/run",
    f"{VENV} pip install -e . && python run_pretraining.py": "benchmarks/main_job.py",
    "python run_classifier.py --use_tpu --precision=bfloat16": "benchmarks/classifier.py",
    "python run_classifier.py --init_checkpoint=albert_base": "tests/journeys/test_shared_layers.py",  # noqa: E501
    "python run_classifier.py --init_checkpoint=bert_en_uncased": "tests/interchange/hub/test_reader.py",  # noqa: E501
    "python run_classifier.py --init_checkpoint=bert-base-NER": "tests/jobs/fine_tuning/test_model_labels.py",  # noqa: E501
    "python run_classifier.py --do_export --export_format=onnx": "tests/jobs/fine_tuning/test_onnx_export.py",  # noqa: E501
    "python run_classifier.py --init_checkpoint=nli-model": "tests/jobs/fine_tuning/test_model_labels.py",  # noqa: E501
    "pip install -e '.[serve]'": "tests/serving/server/test_serving.py",
    "pip install -e '.[hf,serve]'": "benchmarks/public_record.py",
    "pip download --no-deps": "benchmarks/public_record.py",
    "python run_classifier.py --task_name=summary": "tests/interchange/test_published_network.py",
    "python run_squad.py --use_tpu --precision=bfloat16": "tests/journeys/test_run_squad.py",
    "python run_classifier.py --task_kind=tagging": "tests/journeys/test_tagging_runs.py",
    "pip install -e '.[tpu]' && python run_pretraining.py --use_tpu --tpu_name=rehearse:4": (
        "tests/tpu/test_pretraining_on_cores.py"
    ),
    "pip install -e '.[tpu]' && python run_pretraining.py --use_tpu --recipe=lamb_76min": (
        "benchmarks/tpu_plan.py"
    ),
    "python run_pretraining.py --use_tpu --recipe=lamb_76min": "tests/recipes/test_hand_over.py",
    "pip install -e '.[legacy]'": "tests/legacy/stand_ins/test_keras.py",
    "python -m bert_estimator.legacy run_pretraining.py": "tests/legacy/test_scripts.py",
}


def documented_commands():
    """Returns the commands of all pages, each once, in the order of the pages."""
    commands = {}
    for text in PAGES.values():
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace("\\\n", "")
        for line in re.findall(r"^    ((?:python3?|pip|mkdir|sed)\b.*)$", text, re.MULTILINE):
            commands[re.sub(r"\s+", " ", line.strip())] = None
    return list(commands)


def test_every_command_is_run_somewhere():
    known = [start for start, _ in RUN_HERE] + list(RUN_ELSEWHERE)
    unknown = [c for c in documented_commands() if not c.startswith(tuple(known))]
    assert not unknown
    documented = documented_commands()
    assert not [start for start in known if not any(c.startswith(start) for c in documented)]
    for place in RUN_ELSEWHERE.values():
        assert (ROOT / place).exists()


@pytest.fixture
def workspace(tmp_path):
    """Makes a directory with the files that the docs speak of, and the scripts."""
    for script in ("run_pretraining.py", "run_classifier.py", "run_squad.py", "tests"):
        (tmp_path / script).symlink_to(ROOT / script)
    (tmp_path / "old_script.py").write_text(old_script())
    (tmp_path / "corpus").mkdir()
    texts = [f"{a} {b}\n{b} {a}\n" for a, b, _ in pairs(40, 1)]
    (tmp_path / "corpus" / "a.txt").write_text("\n".join(texts[:20]))
    (tmp_path / "corpus" / "b.txt").write_text("\n".join(texts[20:]))
    network = bert_config(0, max_position_embeddings=512, vocab_size=80)
    (tmp_path / "bert_config.json").write_text(json.dumps(network))
    model = ROOT / "tests" / "interchange" / "data" / "tf1"
    shutil.copytree(model, tmp_path / "model")
    shutil.make_archive(str(tmp_path / "uncased_L-12_H-768_A-12"), "zip", model)
    vocabulary = (tmp_path / "model" / "vocab.txt").read_text().split()
    words = [word for word in vocabulary if word.isalnum()]
    rows = [(f"{words[i % 7]} {words[i % 5]}", words[i % 3], str(i % 2)) for i in range(32)]
    for name in ("train.csv", "dev.csv", "test.csv"):
        lines = ["text_a,text_b,label", *(",".join(row) for row in rows)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    asked = [(f"{a} {b}", {"id": str(i), "question": b, "answers": [
        {"text": b, "answer_start": len(a) + 1}]}) for i, (a, b, _) in enumerate(rows)]  # fmt: skip
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        write_questions(tmp_path / name, asked)
    shutil.copytree(model, tmp_path / "uncased_L-12_H-768_A-12")
    (tmp_path / "texts.txt").write_text("".join(f"{a} {b}\n" for a, b, _ in rows[:3]))
    (tmp_path / "texts.tsv").write_text("".join(f"{a}\t{b}\n" for a, b, _ in rows[:3]))
    mrpc = tmp_path / "glue" / "MRPC"
    mrpc.mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv", "test.tsv"):
        header = "index" if name == "test.tsv" else "Quality"
        lines = [f"{header}\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        lines += [f"{label}\t1\t2\t{a}\t{b}" for a, b, label in rows]
        (mrpc / name).write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("xla_runtime")  # which some of the commands need
def test_the_commands_run_as_printed(workspace):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    bin_dir = os.path.dirname(sys.executable)
    environment["PATH"] = bin_dir + os.pathsep + environment["PATH"]
    done = set()
    for start, flags in RUN_HERE:
        for command in documented_commands():
            if not command.startswith(start) or command in done:
                continue
            done.add(command)
            program, redirect, rest = command.partition(" < ")
            process = subprocess.run(
                ["bash", "-c", f"{program} {flags}{redirect}{rest}"],
                cwd=workspace,
                env=environment,
                capture_output=True,
                text=True,
            )
            assert process.returncode == 0, f"{command}\n{process.stderr[-3000:]}"
            if "--output_dir=runs/mine" in command:
                shutil.rmtree(workspace / "runs" / "mine")
    answers = (workspace / "answers.jsonl").read_text().splitlines()
    assert len(answers) == 3
    assert all(json.loads(answer) for answer in answers)
    assert (workspace / "mrpc" / "model.safetensors").exists()
