"""The first hour of a user, journey by journey: the commands of the docs on files of their own.

`python -m pytest tests/journeys/test_journeys.py -m slow -s` prints the longest silence of each
journey. `TRANSFORMERS_PYTHON` names a Python with transformers, whose pipeline then answers, too.
"""

import csv
import json
import os
import random
import subprocess
import sys

import pytest
from journey import ROOT, Journey

pytestmark = pytest.mark.slow

THINGS = ["river", "boat", "captain", "harbour", "storm", "lamp", "kitchen", "garden", "letter"]
DEEDS = ["sees", "carries", "finds", "leaves", "paints", "repairs"]
GOOD, BAD = ["bright", "quiet", "warm", "tall"], ["broken", "empty", "narrow", "heavy"]
PEOPLE = ["ada", "bob", "eve", "ira", "lea", "max"]

TINY = ["--train_batch_size=8", "--eval_batch_size=8"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Makes the files of a user (text, a table), and links to the scripts."""
    path = tmp_path_factory.mktemp("journeys")
    for script in ("run_pretraining.py", "run_classifier.py"):
        (path / script).symlink_to(ROOT / script)
    choose = random.Random(1).choice

    def sentence(adjectives):
        one, other = choose(THINGS), choose(THINGS)
        return f"The {choose(adjectives)} {one} {choose(DEEDS)} the {other}, near the {one}."

    (path / "corpus").mkdir()
    documents = ["\n".join(sentence(GOOD + BAD) for _ in range(6)) for _ in range(60)]
    people = ["\n".join(f"{a} met {b}. Who met {b}?" for a in PEOPLE for b in PEOPLE)]
    (path / "corpus" / "own.txt").write_text("\n\n".join(documents + people))
    for name, number in (("train", 64), ("dev", 16), ("test", 4)):
        with open(path / f"{name}.csv", "w", newline="") as file:
            rows = [(choose((GOOD, BAD)),) for _ in range(number)]
            csv.writer(file).writerows(
                [("review", "verdict")]
                + [(sentence(words), "good" if words is GOOD else "bad") for (words,) in rows]
            )
    return path


@pytest.fixture
def journey(workspace, request):
    """Runs the commands of a journey; prints at its end how long it was silent."""
    made = Journey(workspace)
    yield made
    print_silence(made, request.node.name)


def print_silence(journey, name):
    secs, line, command = journey.longest_silence
    print(f"\n{name}: silent for {secs:.1f} s at most, after {line!r} of {command}")


@pytest.fixture(scope="module")
def model(workspace):
    """Pretrains a network on the user's own text; returns the flags that name it."""
    first = Journey(workspace)
    wrong = first.run(
        "-m", "input_pipelines.create_vocabulary", "--input_file=corpus", "--vocab_file=vocab.txt",
        code=2,
    )  # fmt: skip
    # The message says which size would do, so that nobody has to guess.
    size = wrong[-1].partition("Ask for ")[2].partition(",")[0]
    first.run(
        "-m", "input_pipelines.create_vocabulary", "--input_file=corpus", "--vocab_file=vocab.txt",
        f"--vocab_size={size}",
    )  # fmt: skip
    assert len((workspace / "vocab.txt").read_text().splitlines()) == int(size)
    (workspace / "data").mkdir()
    first.run(
        "-m", "input_pipelines.create_pretraining_data", "--input_file=corpus",
        "--vocab_file=vocab.txt", "--output_file=data/train.tfrecord", "--max_seq_length=32",
        "--eval_fraction=0.2", "--dupe_factor=2",
    )  # fmt: skip
    network = {
        "vocab_size": int(size),
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    }
    (workspace / "bert_config.json").write_text(json.dumps(network))
    lines = first.run(
        "run_pretraining.py", "--input_file=data", "--bert_config_file=bert_config.json",
        "--output_dir=runs/mine", "--num_train_steps=20", "--max_seq_length=32", *TINY,
    )  # fmt: skip
    assert any(line.startswith("Held-out text at step 20: masked-LM loss") for line in lines)
    assert any(line.startswith("step 20/20  loss ") for line in lines)
    print_silence(first, "own text to a network")
    flags = ["--vocab_file=vocab.txt", "--bert_config_file=bert_config.json"]
    return [*flags, "--init_checkpoint=runs/mine"]


@pytest.mark.usefixtures("model")
def test_own_text_to_answers_of_transformers(workspace, journey):
    lines = journey.run("-m", "bert_estimator.interchange", "runs/mine", "hf")
    assert len(lines) < 50 and not [line for line in lines if "adam_" in line]
    assert any(line.startswith("Weights read back bit for bit.") for line in lines)
    if os.environ.get("TRANSFORMERS_PYTHON"):
        program = (
            "import json, transformers\n"
            "answers = transformers.pipeline('fill-mask', 'hf')('The bright [MASK] sees it.')\n"
            "print(json.dumps(answers))"
        )
        python = os.environ["TRANSFORMERS_PYTHON"]
        done = subprocess.run(
            [python, "-c", program], cwd=workspace, check=True, capture_output=True, text=True
        )
        answers = json.loads(done.stdout.splitlines()[-1])
        vocabulary = (workspace / "vocab.txt").read_text().splitlines()
        assert len(answers) == 5
        assert all(vocabulary[answer["token"]] == answer["token_str"] for answer in answers)


def test_own_table_to_a_served_model(workspace, journey, model):
    files = ["--train_file=train.csv", "--eval_file=dev.csv", "--output_dir=runs/own_table"]
    files += ["--max_seq_length=32"]
    wrong = journey.run("run_classifier.py", *files, *model, code=2)
    assert "its columns are review, verdict" in wrong[-1]
    columns = ["--text_a_column=review", "--label_column=verdict"]
    journey.run(
        "run_classifier.py", *files, *model, *columns, *TINY, "--num_train_epochs=1",
        "--do_train", "--do_eval", "--do_predict", "--predict_file=test.csv", "--do_export",
    )  # fmt: skip
    with open(workspace / "test.csv", newline="") as file:
        texts = [row["review"] for row in csv.DictReader(file)]
    rows = (workspace / "runs/own_table/test_results.tsv").read_text().splitlines()
    predicted = [[float(cell) for cell in row.split("\t")] for row in rows]
    answers = [
        json.loads(line)
        for line in journey.run(
            "-m", "bert_estimator.serving.predictor", "runs/own_table", stdin="\n".join(texts)
        )
        if not line.startswith("Opening the model: ")  # which it says if that takes long
    ]
    for answer, probabilities in zip(answers, predicted, strict=True):
        assert list(answer["probabilities"]) == ["bad", "good"]
        assert list(answer["probabilities"].values()) == pytest.approx(probabilities, abs=1e-5)
    (export,) = (workspace / "runs/own_table/export").iterdir()
    # A server has TensorFlow alone, and gives strings.
    program = (
        "import tensorflow as tf\n"
        f"model = tf.saved_model.load({str(export)!r}).signatures['serving_default']\n"
        f"print(*[label.decode() for label in model(text_a=tf.constant({texts}))['label'].numpy()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=workspace, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [answer["label"] for answer in answers]
