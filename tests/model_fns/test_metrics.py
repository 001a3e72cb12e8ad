"""Compares metrics of batches with padding with scikit-learn and scipy."""

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import tensorflow.compat.v1 as tf

from bert_estimator.command_line import choices
from bert_estimator.model_fns import classification, metrics
from input_pipelines.tasks import task_table

BATCH = 7
GENERATOR = np.random.default_rng(5)


def streamed(name, label_ids, logits):
    """Counts examples in batches, and returns a metric of all; weights of 0 pad the last batch."""
    num_examples = len(label_ids)
    padding = -num_examples % BATCH
    label_ids, logits = (
        np.concatenate([x, np.ones((padding, *x.shape[1:]), x.dtype)]) for x in (label_ids, logits)
    )
    weights = np.float32(np.arange(num_examples + padding) < num_examples)
    (kind,) = (kind for kind, names in metrics.METRICS_OF_KIND.items() if name in names)
    head, total = classification.Head(kind, logits.shape[1], (name,)), {}
    for first in range(0, num_examples + padding, BATCH):
        rows = slice(first, first + BATCH)
        metrics.add(total, head.count(logits[rows], label_ids[rows], weights[rows]))
    return head.values_of(total)[name]


def examples(num_labels, number=100):
    """Returns labels, and logits that are correlated with them."""
    label_ids = GENERATOR.integers(num_labels, size=number).astype(np.int32)
    logits = GENERATOR.normal(size=(number, num_labels)) + np.eye(num_labels)[label_ids]
    return label_ids, logits.astype(np.float32)


ORACLES = {
    "accuracy": sklearn.metrics.accuracy_score,
    "f1": sklearn.metrics.f1_score,
    "macro_f1": lambda y, p: sklearn.metrics.f1_score(y, p, average="macro"),
    "matthews": sklearn.metrics.matthews_corrcoef,
}


def test_tasks_name_metrics_of_their_kinds():
    of_tags = [*metrics.METRICS_OF_KIND["classification"], *classification.ENTITY_METRICS]
    of_kind = {**metrics.METRICS_OF_KIND, "tagging": of_tags}
    lists = [(task.kind, task.metrics) for task in task_table.TASKS.values()]
    lists += [*task_table.OWN_METRICS.items(), ("tagging", task_table.ENTITY_METRICS)]
    for kind, names in [*lists, ("classification", task_table.EMBEDDED_METRICS)]:
        assert set(names) <= set(of_kind[kind])
    assert set(task_table.OWN_METRICS) == set(choices.TASK_KINDS)


def test_each_metric_of_classification_has_an_oracle():
    assert set(ORACLES) == set(metrics.METRICS_OF_KIND["classification"])


@pytest.mark.parametrize(
    ("name", "num_labels"), [*((name, 2) for name in ORACLES), ("macro_f1", 4), ("matthews", 4)]
)
def test_classification(name, num_labels):
    label_ids, logits = examples(num_labels)
    expected = ORACLES[name](label_ids, logits.argmax(axis=1))
    assert streamed(name, label_ids, logits) == pytest.approx(expected, abs=1e-6)
    assert 0.1 < expected < 0.9


@pytest.mark.parametrize("name", ["f1", "macro_f1", "matthews"])
def test_what_is_undefined_is_zero(name):
    label_ids = np.zeros(10, np.int32)
    expected = {"macro_f1": 1.0}.get(name, 0.0)  # of the one label that occurs
    assert streamed(name, label_ids, np.tile(np.float32([1, 0]), (10, 1))) == expected


def test_labels_that_neither_occur_nor_are_predicted_do_not_count():
    label_ids = np.array([0, 1, 3, 3], np.int32)
    logits = np.eye(5, dtype=np.float32)[[0, 2, 3, 0]]
    expected = ORACLES["macro_f1"](label_ids, logits.argmax(axis=1))
    assert streamed("macro_f1", label_ids, logits) == pytest.approx(expected, abs=1e-6)
    assert expected == pytest.approx((2 / 3 + 0 + 0 + 2 / 3) / 4)


def test_multi_label():
    label_ids = GENERATOR.integers(2, size=(50, 3)).astype(np.int32)
    logits = (GENERATOR.normal(size=(50, 3)) + 2 * label_ids - 1).astype(np.float32)
    predictions = (logits > 0).astype(np.int32)
    found = streamed("micro_f1", label_ids, logits)
    expected = sklearn.metrics.f1_score(label_ids, predictions, average="micro")
    assert found == pytest.approx(expected, abs=1e-6)
    found = streamed("exact_match", label_ids, logits)
    expected = sklearn.metrics.accuracy_score(label_ids, predictions)
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("with_ties", [False, True])
def test_correlations(with_ties):
    labels = GENERATOR.uniform(0, 5, size=60).astype(np.float32)
    logits = (labels + GENERATOR.normal(size=60)).astype(np.float32)[:, np.newaxis]
    if with_ties:
        labels, logits = np.round(labels), np.round(logits)
    for name, oracle in (("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)):
        expected = oracle(labels, logits[:, 0]).statistic
        assert streamed(name, labels, logits) == pytest.approx(expected, abs=1e-6)


def test_a_correlation_with_a_constant_is_not_a_number():
    labels = np.arange(10, dtype=np.float32)
    for name in ("pearson", "spearman"):
        assert np.isnan(streamed(name, labels, np.ones((10, 1), np.float32)))


def test_millions_of_examples_are_counted_exactly():
    """The counts are float64; float32 counts would stop at 2^24."""
    example = metrics.count("classification", np.array([1]), np.array([[0.0, 1.0]]))
    total = {"confusion": example["confusion"] * 2**24}
    metrics.add(total, example)
    assert total["confusion"][1, 1] == 2**24 + 1


def test_each_evaluation_of_a_graph_starts_anew():
    def count(x, y):
        return {"sum": np.array([x.sum()]), "rows": [y * 2]}

    def values_of(counts):
        return {"sum": counts["sum"][0], "rows": np.concatenate(counts["rows"])}

    dtypes = {"sum": tf.float32, "rows": tf.float64}
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = {name: tf.placeholder(tf.float32, [None]) for name in "xy"}
        found = metrics.collected(count, values_of, dtypes, tensors)
        assert list(found) == list(dtypes)
        updates = [update for _, update in found.values()]
        for batches in ([[1, 2], [4]], [[8]]):
            session.run(tf.train.Scaffold.default_local_init_op())
            for batch in batches:
                session.run(updates, {tensors["x"]: batch, tensors["y"]: -np.float32(batch)})
            for _ in range(2):  # Reading the values does not change them.
                values = session.run({name: value for name, (value, _) in found.items()})
                every = np.concatenate(batches)
                assert values["sum"] == every.sum() and values["sum"].dtype == np.float32
                np.testing.assert_array_equal(values["rows"], -2.0 * every)
                assert values["rows"].dtype == np.float64


def test_the_error_of_a_count_is_the_error_of_the_evaluation():
    """Labels beyond the head's last label would be counted as other labels."""
    head = classification.Head("classification", 2, ("accuracy",))
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = {"logits": tf.zeros([1, 2]), "label_ids": tf.constant([2])}
        found = head._metric_fn(**tensors, losses=tf.zeros([1]), weights=tf.ones([1]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="invalid entry in coordinates"):
            session.run(found["accuracy"][1])
