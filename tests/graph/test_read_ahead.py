"""What is drawn from an input, and when: in local mode nothing before its step."""

import queue
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context
from toy import Visits, make_estimator, make_model_fn, wait_until

from bert_estimator import tpu
from bert_estimator.graph import patches
from bert_estimator.tpu.step import feeds

# What may be drawn ahead by a thread is drawn while a test waits for so long.
QUIET_SECS = 0.03


class Counted:
    """Makes datasets of a generator that counts what was drawn: 1.0, 2.0, ..., `last`."""

    def __init__(self, last=1000):
        self.drawn, self._last = 0, last

    def _generate(self):
        for number in range(1, self._last + 1):
            self.drawn += 1
            yield number

    def numbers(self):
        return tf.data.Dataset.from_generator(self._generate, tf.float32, [])

    def batches(self):
        return self.numbers().map(lambda number: {"x": tf.fill([4], number)})

    def quiet(self, at_least=0):
        """Returns what was drawn, and what threads draw soon; they may take long for `at_least`."""
        wait_until(lambda: self.drawn >= at_least, secs=30)
        time.sleep(QUIET_SECS)
        return self.drawn


def parallel(function, calls):
    return lambda c: c.numbers().map(function, num_parallel_calls=calls)


def with_options(dataset, **chosen):
    options = tf.data.Options()
    options.autotune.enabled = True
    for name, value in chosen.items():
        setattr(options.experimental_optimization, name, value)
    return dataset.with_options(options)


def plus_one(x):
    return x + 1


def interleaved(c, calls=None):
    return tf.data.Dataset.range(2).interleave(
        lambda i: c.numbers(), cycle_length=2, num_parallel_calls=calls
    )


# Datasets, and how many numbers are drawn when one, two and three elements have been asked for.
# TensorFlow 1.15.5 gives the same, but for a map before a batch: it draws one batch ahead.
DATASETS = {
    "as it is": (lambda c: c.numbers(), [1, 2, 3]),
    "map": (lambda c: c.numbers().map(plus_one), [1, 2, 3]),
    "filter": (lambda c: c.numbers().filter(lambda x: x > 0), [1, 2, 3]),
    "batch": (lambda c: c.numbers().batch(2), [2, 4, 6]),
    "map, batch": (lambda c: c.numbers().map(plus_one).batch(2), [2, 4, 6]),
    "map, whole batches": (
        lambda c: c.numbers().map(plus_one).batch(2, drop_remainder=True),
        [2, 4, 6],
    ),
    "batch, map": (lambda c: c.numbers().batch(2).map(plus_one), [2, 4, 6]),
    "padded": (
        lambda c: c.numbers().map(lambda x: tf.fill([2], x)).padded_batch(2, [3]),
        [2, 4, 6],
    ),
    "Python": (
        lambda c: c.numbers().map(
            lambda x: tf.py_func(lambda v: v + v.dtype.type(1), [x], x.dtype)
        ),
        [1, 2, 3],
    ),
    "repeat": (lambda c: c.numbers().repeat(), [1, 2, 3]),
    "shuffle": (lambda c: c.numbers().shuffle(5).repeat(), [5, 6, 7]),
    "cache": (lambda c: c.numbers().cache(), [1, 2, 3]),
    "zip": (lambda c: tf.data.Dataset.zip((c.numbers(), {"x": c.numbers()})), [2, 4, 6]),
    "interleave": (interleaved, [1, 2, 3]),
    "flat_map": (
        lambda c: c.numbers().flat_map(lambda x: tf.data.Dataset.from_tensors(x).repeat(2)),
        [1, 1, 2],
    ),
    "window": (
        lambda c: c.numbers().window(2).flat_map(lambda rows: rows.batch(2)),
        [2, 4, 6],
    ),
    "own options": (lambda c: with_options(c.numbers().map(plus_one)), [1, 2, 3]),
    "own options of rewriting": (
        lambda c: with_options(
            c.numbers().filter(lambda x: x > 0).map(plus_one).batch(2),
            inject_prefetch=True,
            map_parallelization=True,
            filter_parallelization=True,
            map_and_batch_fusion=True,
        ),
        [2, 4, 6],
    ),
    # What a program reads ahead by itself stays.
    "prefetch(1)": (lambda c: c.numbers().prefetch(1), [2, 3, 4]),
    "prefetch(3)": (lambda c: c.numbers().prefetch(3), [4, 5, 6]),
    "batch, prefetch": (lambda c: c.numbers().batch(2).prefetch(1), [4, 6, 8]),
    "map by 2": (parallel(plus_one, 2), [3, 4, 5]),
    "map by 4": (parallel(plus_one, 4), [5, 6, 7]),
}


def one_shot(dataset):
    return tf.data.make_one_shot_iterator(dataset).get_next(), []


def initializable(dataset):
    iterator = tf.data.make_initializable_iterator(dataset)
    return iterator.get_next(), iterator.initializer


def reinitializable(dataset):
    iterator = tf.data.Iterator.from_structure(
        tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset)
    )
    return iterator.get_next(), iterator.make_initializer(dataset)


def by_handle(dataset):
    iterator = tf.data.make_initializable_iterator(dataset)
    other = tf.data.Iterator.from_string_handle(
        iterator.string_handle(),
        tf.data.get_output_types(dataset),
        tf.data.get_output_shapes(dataset),
    )
    return other.get_next(), iterator.initializer


ITERATORS = [one_shot, initializable, reinitializable, by_handle]


def check_drawn(expected, dataset_fn, iterator_fn):
    """Asks for an element as often as there are numbers, and compares what was drawn by then."""
    counted = Counted()
    patches.read_on_request()
    with tf.Graph().as_default(), tf.Session() as session:
        element, initializer = iterator_fn(dataset_fn(counted))
        session.run(initializer)
        for number in expected:
            session.run(element)
            assert counted.quiet(at_least=number) == number


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_gives_what_is_asked_for(name):
    dataset_fn, expected = DATASETS[name]
    check_drawn(expected, dataset_fn, initializable)


@pytest.mark.parametrize("iterator_fn", ITERATORS)
def test_every_kind_of_iterator_draws_what_is_asked_for(iterator_fn):
    check_drawn([1, 2, 3], lambda c: c.numbers().map(plus_one), iterator_fn)


def test_an_iterator_of_a_function_draws_what_is_asked_for():
    counted = Counted()

    @tf.function
    def first():
        return next(iter(counted.numbers().map(plus_one)))

    patches.read_on_request()
    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(first()) == 2
        assert counted.quiet() == 1


def test_in_eager_loops_tensorflow_decides():
    for _ in range(2):
        patches.read_on_request()
        with context.eager_mode():
            dataset = tf.data.Dataset.range(3)
            assert dataset._apply_debug_options() is dataset
        with tf.Graph().as_default():
            dataset = tf.data.Dataset.range(3)
            assert dataset._apply_debug_options() is not dataset


# Estimators in local mode. Each input_fn takes one number in a step.


def labelled(dataset):
    return dataset.map(lambda features: (features, features["x"]))


def collected(iterator):
    """Has an iterator initialized as TF1 scripts do."""
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator[1])
    return iterator[0]


INPUTS = {
    "dataset": lambda c: c.batches(),
    "labels": lambda c: labelled(c.batches()),
    "own options": lambda c: with_options(c.batches(), inject_prefetch=True),
    "interleave": lambda c: tf.data.Dataset.range(2).interleave(lambda i: c.batches(), 2),
    "one shot": lambda c: one_shot(c.batches())[0],
    "initializable": lambda c: collected(initializable(labelled(c.batches()))),
    "reinitializable": lambda c: collected(reinitializable(c.batches())),
    "pair of iterators": lambda c: (
        one_shot(c.batches())[0],
        one_shot(Counted().numbers())[0],
    ),
    "dict of iterators": lambda c: {
        "x": one_shot(c.batches())[0]["x"],
        "y": collected(initializable(Counted().batches()))["x"],
    },
    "zip": lambda c: tf.data.Dataset.zip((c.batches(), Counted().numbers())),
}


def model_fn(features, labels, mode, params):
    predicted = {"predictions": {"x": features["x"]}}
    return make_model_fn(lambda features, loss: predicted)(features, mode, params)


def local(folder, **keywords):
    return make_estimator(folder, model_fn, use_tpu=False, predict_batch_size=4, **keywords)


@pytest.mark.parametrize("name", INPUTS)
def test_local_verbs_draw_what_their_steps_take(tmp_path, name):
    estimator = local(tmp_path)

    def drawn_by(verb, **keywords):
        counted = Counted()
        verb(lambda params: INPUTS[name](counted), **keywords)
        return counted.quiet()

    assert drawn_by(estimator.train, steps=5) == 5
    assert drawn_by(estimator.train, max_steps=7) == 2
    drawn = drawn_by(estimator.train, steps=9, hooks=[Visits(stop_at=9)])
    assert drawn == estimator.global_step() - 7 < 9
    assert drawn_by(estimator.evaluate, steps=3) == 3
    counted = Counted()
    answers = estimator.predict(lambda params: INPUTS[name](counted), yield_single_examples=False)
    for number in (1, 2, 3):
        next(answers)
        assert counted.quiet() == number
    answers.close()
    assert counted.quiet() == 3


def test_all_data_is_drawn_once_if_it_ends(tmp_path):
    estimator, counted = local(tmp_path), Counted(last=4)
    estimator.train(lambda params: counted.batches())
    assert (estimator.global_step(), counted.quiet()) == (4, 4)
    estimator.evaluate(lambda params: counted.batches())
    list(estimator.predict(lambda params: counted.batches()))
    assert counted.quiet() == 12


def test_a_training_with_evaluations_draws_what_its_steps_take(tmp_path):
    estimator = local(tmp_path, save_checkpoints_steps=2)
    trained, evaluated, watched = Counted(), Counted(), Counted()
    hook = tpu.InMemoryEvaluatorHook(
        estimator, lambda params: watched.batches(), steps=1, every_n_iter=3
    )
    tpu.train_and_evaluate(
        estimator,
        tpu.TrainSpec(lambda params: trained.batches(), max_steps=6, hooks=[hook]),
        tpu.EvalSpec(lambda params: evaluated.batches(), steps=2, throttle_secs=0),
    )
    assert trained.quiet() == 6
    assert evaluated.quiet() == 3 * 2  # after steps 2, 4 and 6
    assert watched.quiet() == 3  # before the first step, after steps 3 and 6


def test_a_request_is_answered_before_the_next_one_is_asked_for(tmp_path):
    requests, asked = queue.SimpleQueue(), []

    def wait_for_requests():
        while True:
            asked.append(len(asked) + 1)
            request = requests.get()
            if request is None:
                return
            yield np.full([4], request, np.float32)

    def input_fn(params):
        rows = tf.data.Dataset.from_generator(wait_for_requests, tf.float32, [4])
        return rows.map(lambda x: {"x": x})

    answers = local(tmp_path).predict(input_fn, yield_single_examples=False)
    for number in (1, 2, 3):
        requests.put(10 * number)
        assert next(answers)["x"].tolist() == [10 * number] * 4
        time.sleep(QUIET_SECS)
        assert len(asked) == number
    requests.put(None)
    assert list(answers) == []


# Under TPU rules a thread draws ahead, but only so much.


def test_under_tpu_rules_no_step_goes_without_its_data(tmp_path, cores):
    estimator, counted = make_estimator(tmp_path, model_fn, train_batch_size=4 * cores), Counted()

    def input_fn(params):
        numbers = counted.numbers()
        return numbers.map(lambda number: {"x": tf.fill([params["batch_size"]], number)})

    estimator.train(input_fn, steps=20)
    assert counted.quiet() == 20
    estimator.evaluate(input_fn, steps=3)
    assert counted.quiet() == 20 + 3


OWN_ITERATORS = ["one shot", "initializable", "reinitializable", "dict of iterators"]


@pytest.mark.parametrize("name", OWN_ITERATORS)
def test_under_tpu_rules_own_iterators_draw_what_the_steps_take(tmp_path, cores, name):
    estimator, counted = make_estimator(tmp_path, model_fn, iterations_per_loop=3), Counted()
    estimator.train(lambda params: INPUTS[name](counted), steps=7)
    assert counted.quiet() == 7
    estimator.evaluate(lambda params: INPUTS[name](counted), steps=3)
    assert counted.quiet() == 7 + 3


def test_under_tpu_rules_the_infeed_is_at_most_five_batches_ahead(tmp_path, cores):
    counted = Counted()
    estimator = make_estimator(tmp_path, model_fn, predict_batch_size=4)
    answers = estimator.predict(lambda params: counted.batches(), yield_single_examples=False)
    for number in (1, 2, 3):
        next(answers)
        ahead = feeds.INFEED_DEPTH + 1
        assert counted.quiet(at_least=number + ahead) == number + ahead
    answers.close()
    assert counted.quiet() == 3 + ahead


class Ahead(tf.train.SessionRunHook):
    """Notes after each of two loops how many steps were done, and how many batches were drawn."""

    def __init__(self, counted, ahead):
        self.seen, self._counted, self._ahead = [], counted, ahead

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(tf.train.get_global_step())

    def after_run(self, run_context, run_values):
        steps = int(run_values.results)
        self.seen.append((steps, self._counted.quiet(at_least=steps + self._ahead)))
        if len(self.seen) == 2:
            run_context.request_stop()


@pytest.mark.usefixtures("xla_runtime")
@pytest.mark.parametrize(("loop", "ahead"), [(2, 5), (10, 11), (16, 17), (40, 17)])
def test_on_cores_long_loops_draw_at_most_seventeen_batches_ahead(tmp_path, loop, ahead):
    counted = Counted()
    estimator = make_estimator(tmp_path, model_fn, iterations_per_loop=loop, master="rehearse:2")
    hook = Ahead(counted, ahead)
    estimator.train(lambda params: counted.batches(), steps=1000, hooks=[hook])
    assert hook.seen == [(loop, loop + ahead), (2 * loop, 2 * loop + ahead)]
