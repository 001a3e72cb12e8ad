"""What a TF1 script's datasets draw in sessions of its own: the numbers are TensorFlow 1.15.5's."""

import json

import legacy_script
from fixtures import needs_tensorflow_1

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


def seen(done):
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("SEEN "))
    return json.loads(line.removeprefix("SEEN "))


def test_a_script_draws_what_it_drew(tmp_path):
    assert seen(legacy_script.run(tmp_path, SCRIPT)) == TF1


@needs_tensorflow_1
def test_the_script_draws_the_same_on_tensorflow_1(tmp_path):
    assert seen(legacy_script.run_on_tensorflow_1(tmp_path, SCRIPT)) == TF1
