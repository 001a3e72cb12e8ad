"""What a TF1 script's datasets draw in sessions of its own: the numbers are TensorFlow 1.15.5's."""

import json
import os
import subprocess
import sys

import forked
import pytest
import replay

SCRIPT = """
import json, time
import tensorflow as tf

drawn = [0]

def generate():
    while True:
        drawn[0] += 1
        yield drawn[0]

def numbers(_=None):
    return tf.data.Dataset.from_generator(generate, tf.int64, [])

def counts(dataset, make):
    drawn[0], row = 0, []
    with tf.Session(graph=tf.get_default_graph()) as session:
        element, initializer = make(dataset)
        session.run(initializer)
        for _ in range(3):
            session.run(element)
            time.sleep(0.05)
            row.append(drawn[0])
    return row

def one_shot(dataset):
    return dataset.make_one_shot_iterator().get_next(), []

def initializable(dataset):
    iterator = dataset.make_initializable_iterator()
    return iterator.get_next(), iterator.initializer

def reinitializable(dataset):
    iterator = tf.data.Iterator.from_structure(dataset.output_types, dataset.output_shapes)
    return iterator.get_next(), iterator.make_initializer(dataset)

sources = tf.data.Dataset.range(4)
seen = {
    "one shot": counts(numbers(), one_shot),
    "initializable": counts(numbers().map(lambda x: x + 1), initializable),
    "reinitializable": counts(numbers().filter(lambda x: x > 0), reinitializable),
    "prefetch": counts(numbers().prefetch(2), one_shot),
    "map by 2": counts(numbers().map(lambda x: x + 1, num_parallel_calls=2), one_shot),
    "interleave": counts(sources.interleave(numbers, 2), one_shot),
    "interleave by 2": counts(sources.interleave(numbers, 2, num_parallel_calls=2), one_shot),
    "interleave blocks by 2": counts(
        sources.interleave(numbers, 2, 2, num_parallel_calls=2), one_shot
    ),
}
print("SEEN " + json.dumps(seen))
"""

TF1 = {
    "one shot": [1, 2, 3],
    "initializable": [1, 2, 3],
    "reinitializable": [1, 2, 3],
    "prefetch": [3, 4, 5],
    "map by 2": [3, 4, 5],
    "interleave": [1, 2, 3],
    "interleave by 2": [5, 6, 7],
    "interleave blocks by 2": [9, 10, 11],
}


def run(command, folder, run_command):
    (folder / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(replay.ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("TF2_BEHAVIOR", None)
    done = run_command(
        [*command, "script.py"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("SEEN "))
    return json.loads(line.removeprefix("SEEN "))


def test_a_script_draws_what_it_drew(tmp_path):
    assert run([sys.executable, "-m", "bert_estimator.legacy"], tmp_path, forked.run) == TF1


@pytest.mark.skipif("TF115_PYTHON" not in os.environ, reason="TF115_PYTHON is not set")
def test_the_script_draws_the_same_on_tensorflow_1(tmp_path):
    assert run([os.environ["TF115_PYTHON"]], tmp_path, subprocess.run) == TF1
