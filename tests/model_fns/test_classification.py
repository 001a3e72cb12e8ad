"""The fine-tuning model_fn: losses, normalisation, class weights, precision; against numpy."""

import contextlib
import dataclasses
import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.bert_config import BertConfig
from bert_estimator.model_fns import classification, fine_tuning, metrics, update
from bert_estimator.optimization import WarmupPolynomialDecay
from bert_estimator.tpu.replicas.replica import Replica

B, F = 4, 6
CONFIG = BertConfig(
    vocab_size=20,
    hidden_size=8,
    num_hidden_layers=1,  # building the graph takes most of the time
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=F,
    hidden_act="relu",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.3,
)
GENERATOR = np.random.default_rng(1)
LABELS = {
    "classification": np.array([0, 2, 1, 2], np.int32),
    "multi_label": np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0], [1, 1, 1]], np.int32),
    "regression": np.array([0.5, -2.0, 3.0, 1.0], np.float32),
}
METRICS = {kind: tuple(of_kind) for kind, of_kind in metrics.METRICS_OF_KIND.items()}
REAL = np.array([1, 1, 1, 0], np.int32)


def make_features(kind, rows=slice(None)):
    ids = np.random.default_rng(2).integers(1, 20, [B, F]).astype(np.int32)
    return {
        "input_ids": ids[rows],
        "input_mask": np.ones([B, F], np.int32)[rows],
        "segment_ids": (np.arange(F) > 2).astype(np.int32) * np.ones([B, 1], np.int32)[rows],
        "is_real_example": REAL[rows],
        "label_ids": LABELS[kind][rows],
    }


def head_of(kind, **options):
    num_labels = 1 if kind == "regression" else 3
    return classification.Head(kind, num_labels, METRICS[kind], **options)


def build(kind, mode, rule=None, head=None, rows=slice(None), **options):
    """Builds the model in the current graph; returns its spec."""
    tf.set_random_seed(3)
    features = {n: tf.constant(v) for n, v in make_features(kind, rows).items()}
    network = fine_tuning.NetworkBuilder(CONFIG, **options)
    model_fn = classification.model_fn_builder(network, head or head_of(kind), rule)
    return model_fn(features, None, mode, {})


def numpy_losses(kind, logits, labels):
    logits = logits.astype(np.float64)
    if kind == "classification":
        log_sums = np.log(np.exp(logits).sum(axis=1))
        return log_sums - logits[np.arange(len(labels)), labels]
    if kind == "multi_label":
        signs = 2 * labels - 1
        return np.log1p(np.exp(-signs * logits)).mean(axis=1)
    return (logits[:, 0] - labels) ** 2


def evaluated(build, times=1, **options):
    """Returns (loss of the spec, the tensors of the metrics, the metrics of a batch so often)."""
    with tf.Graph().as_default(), tf.Session() as session:
        spec = build(tpu.ModeKeys.EVAL, **options)
        metric_fn, tensors = spec.eval_metrics
        metrics = metric_fn(**tensors)
        session.run(tf.global_variables_initializer())
        for _ in range(times):
            loss, values, _ = session.run([spec.loss, tensors, [m[1] for m in metrics.values()]])
        return loss, values, session.run({name: metric[0] for name, metric in metrics.items()})


@pytest.mark.parametrize("kind", LABELS)
def test_evaluation(kind):
    loss, values, found = evaluated(functools.partial(build, kind))
    losses = numpy_losses(kind, values["logits"], LABELS[kind])
    np.testing.assert_allclose(values["losses"], losses, rtol=1e-5)
    assert loss == pytest.approx(losses[:3].mean(), rel=1e-5)
    assert found["mean_loss"] == pytest.approx(losses[:3].mean(), rel=1e-5)
    assert set(found) == {*METRICS[kind], "mean_loss"}
    if kind == "classification":
        predictions = values["logits"][:3].argmax(axis=1)
        assert found["accuracy"] == pytest.approx(np.mean(predictions == LABELS[kind][:3]))


@pytest.mark.parametrize("kind", ["classification", "multi_label"])
def test_an_evaluation_keeps_counts_and_not_logits(kind):
    """Otherwise a million examples of a thousand labels would need gigabytes."""
    head, total, shapes = head_of(kind, reports=True), {}, []
    for _ in range(2):
        logits = np.random.default_rng(3).normal(size=[B, 3])
        metrics.add(total, head.count(logits, LABELS[kind], np.ones(B)))
        shapes.append({name: value.shape for name, value in total.items()})
    assert shapes[0] == shapes[1] and {"confusion", "calibration", "thresholds"} <= set(total)


@pytest.mark.parametrize("kind", LABELS)
def test_predictions(kind):
    with tf.Graph().as_default(), tf.Session() as session:
        spec = build(kind, tpu.ModeKeys.PREDICT)
        session.run(tf.global_variables_initializer())
        found = session.run(spec.predictions)
    logits = found["logits"].astype(np.float64)
    if kind == "classification":
        expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found["probabilities"], expected, rtol=1e-5)
    elif kind == "multi_label":
        np.testing.assert_allclose(found["probabilities"], 1 / (1 + np.exp(-logits)), rtol=1e-5)
    else:
        assert set(found) == {"logits"} and logits.shape == (B, 1)


def one_step(build, micro_batch_size=None, replica=None, **options):
    """Trains one step; returns (loss, report, weights after it, weights before it)."""
    rule = update.UpdateRule(
        "adamw", WarmupPolynomialDecay(0.01, 10), micro_batch_size, summary_dir="unused"
    )
    with tf.Graph().as_default(), tf.Session() as session:
        with contextlib.nullcontext() if replica is None else replica.entered():
            spec = build(tpu.ModeKeys.TRAIN, rule, **options)
        session.run(tf.global_variables_initializer())
        variables = {v.op.name: v for v in tf.trainable_variables()}
        before = session.run(variables)
        loss, report, _ = session.run([spec.loss, spec.host_call[1], spec.train_op])
        return loss, report, session.run(variables), before


def check_micro_batches(build):
    loss, report, weights, _ = one_step(build)
    other_loss, other_report, other_weights, _ = one_step(build, micro_batch_size=2)
    assert other_loss == pytest.approx(loss, rel=1e-5)
    assert other_report["gradient_norm"] == pytest.approx(report["gradient_norm"], rel=1e-4)
    for name, value in weights.items():
        np.testing.assert_allclose(other_weights[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def check_precision(build, precision):
    rule = update.UpdateRule("lamb", WarmupPolynomialDecay(0.01, 10))
    with tf.Graph().as_default() as graph:
        spec = build(tpu.ModeKeys.TRAIN, rule, precision=precision)
        assert spec.loss.dtype == tf.float32
        assert {v.dtype.base_dtype for v in tf.trainable_variables()} == {tf.float32}
        products = [op for op in graph.get_operations() if op.type in ("MatMul", "BatchMatMulV2")]
        assert {op.outputs[0].dtype.name for op in products} == {precision}


def train_once(kind, **options):
    """Returns (loss, report, weights after it) of one step. Equal runs run once."""
    if not options:
        return _trained(kind, CONFIG.classifier_dropout)
    return one_step(functools.partial(build, kind), **options)[:3]


@functools.cache
def _trained(kind, head_dropout):
    return one_step(functools.partial(build, kind))[:3]


@pytest.fixture
def no_head_dropout(monkeypatch):
    without = dataclasses.replace(CONFIG, classifier_dropout=0.0)
    monkeypatch.setitem(globals(), "CONFIG", without)


@pytest.mark.parametrize("kind", LABELS)
def test_training_reports_the_loss_of_evaluation_and_lowers_it(kind, no_head_dropout):
    with tf.Graph().as_default(), tf.Session() as session:
        spec = build(kind, tpu.ModeKeys.EVAL)
        session.run(tf.global_variables_initializer())
        expected = session.run(spec.loss)
        loss, report, weights = train_once(kind)
        assert loss == pytest.approx(expected, rel=1e-5)
        for variable in tf.trainable_variables():
            variable.load(weights[variable.op.name], session)
        assert session.run(spec.loss) < expected
    assert ("accuracy" in report) == (kind == "classification")
    assert {"output_weights", "output_bias"} <= set(weights)
    assert weights["output_weights"].shape == (1 if kind == "regression" else 3, 8)


def test_recomputing_changes_no_number():
    loss, report, weights = train_once("classification")
    other_loss, other_report, other_weights = train_once("classification", recompute=True)
    assert other_loss == pytest.approx(loss, rel=1e-5)
    assert other_report["gradient_norm"] == pytest.approx(report["gradient_norm"], rel=1e-5)
    for name, value in weights.items():
        np.testing.assert_allclose(other_weights[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", LABELS)
def test_micro_batches_equal_the_batch(kind):
    check_micro_batches(functools.partial(build, kind))


def test_the_normaliser_counts_the_global_batch(no_head_dropout):
    """There are two cores with two rows each; a row of the second core only pads the batch."""
    # What the other core adds to the number of examples is 1, to the losses a known number.
    _, _, other = train_once("classification")
    assert other
    sums = iter([1.0])

    def cross_replica_sum(tensor):
        return tensor + tf.constant(next(sums, 0.0), tensor.dtype)

    halved, _, _ = train_once(
        "classification", rows=slice(0, 2), replica=Replica(2, 0, cross_replica_sum)
    )
    alone, _, _ = train_once("classification", rows=slice(0, 2))
    assert halved == pytest.approx(alone * 2 / 3, rel=1e-5)


@pytest.mark.parametrize("factors", [(1.0, 2.0, 5.0), (0.1, 0.05, 0.2)])
def test_class_weights_are_those_of_a_weighted_mean(no_head_dropout, factors):
    head = head_of("classification", class_weights=factors)
    loss, values, _ = evaluated(functools.partial(build, "classification"), head=head)
    weights = np.array(factors)[LABELS["classification"]] * REAL
    losses = numpy_losses("classification", values["logits"], LABELS["classification"])
    expected = (losses * weights).sum() / weights.sum()
    assert loss == pytest.approx(expected, rel=1e-5)
    trained, _, _ = train_once("classification", head=head)
    assert trained == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("smoothing", "factors"), [(0.1, None), (0.9, (1.0, 2.0, 5.0))])
def test_label_smoothing_is_of_the_loss_of_training_alone(no_head_dropout, smoothing, factors):
    head = head_of("classification", class_weights=factors, label_smoothing=smoothing)
    plain = dataclasses.replace(head, label_smoothing=0.0)
    labels = LABELS["classification"]
    loss, values, found = evaluated(functools.partial(build, "classification"), head=head)
    assert loss == evaluated(functools.partial(build, "classification"), head=plain)[0]
    assert found["mean_loss"] == pytest.approx(values["losses"][:3].mean(), rel=1e-6)
    # The cross-entropy with a distribution of the labels, in float64.
    targets = (1 - smoothing) * np.eye(3)[labels] + smoothing / 3
    logits = values["logits"].astype(np.float64)
    log_shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    weights = np.array(factors or (1.0,) * 3)[labels] * REAL
    expected = -((targets * log_shares).sum(axis=1) * weights).sum() / weights.sum()
    trained, report, _ = train_once("classification", head=head)
    assert trained == pytest.approx(expected, rel=1e-5)
    assert report["accuracy"] == train_once("classification", head=plain)[1]["accuracy"]
    halves, _, _ = train_once("classification", head=head, micro_batch_size=2)
    assert halves == pytest.approx(expected, rel=1e-5)


def test_the_gradient_of_a_smoothed_loss_is_the_difference_of_shares(no_head_dropout):
    """With respect to the outputs' biases it is the mean of softmax - targets."""
    head = head_of("classification", label_smoothing=0.3)
    _, values, _ = evaluated(functools.partial(build, "classification"), head=head)
    shares = np.exp(values["logits"].astype(np.float64))
    shares /= shares.sum(axis=1, keepdims=True)
    targets = 0.7 * np.eye(3)[LABELS["classification"]] + 0.1
    expected = ((shares - targets) * REAL[:, np.newaxis]).sum(axis=0) / REAL.sum()
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(3)
        tf.train.get_or_create_global_step()
        features = {n: tf.constant(v) for n, v in make_features("classification").items()}
        network = fine_tuning.NetworkBuilder(CONFIG)
        loss_fn = classification._loss_fn(network, head, features, tf.constant(0))
        loss, _ = loss_fn(features, tf.constant(0))
        bias = next(v for v in tf.trainable_variables() if v.op.name == "output_bias")
        gradient = tf.gradients(loss, bias)[0]
        session.run(tf.global_variables_initializer())
        np.testing.assert_allclose(session.run(gradient), expected, rtol=1e-5, atol=1e-7)


def test_a_batch_whose_labels_have_no_weight_has_no_loss():
    head = head_of("classification", class_weights=(1.0, 0.0, 0.0))
    found, *_ = evaluated(functools.partial(build, "classification"), head=head, rows=slice(1, 2))
    assert found == 0.0
    loss, report, weights = train_once("classification", head=head, rows=slice(1, 2))
    assert loss == report["gradient_norm"] == 0.0
    assert all(np.isfinite(value).all() for value in weights.values())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_border_of_precision(precision):
    check_precision(functools.partial(build, "classification"), precision)


def test_dropout_is_on_in_training_alone():
    with_seed_0, _, _ = train_once("classification")
    losses = [train_once("classification", random_seed=1)[0] for _ in range(2)]
    assert losses[0] == losses[1] != with_seed_0


# Windows of long texts: windows 0 and 2 are of one text, and row 3 only pads the batch.
OF_WINDOWS = {
    "text_numbers": np.array([5, 2, 5, 0], np.int32),
    # 0.75, 1 and 0.25 of the tokens of a text, in the mean 1.
    "window_weights": np.array([1.125, 1.5, 0.375, 0.0], np.float32),
}


def build_windows(kind, mode, rule=None, row=None, **options):
    tf.set_random_seed(3)
    features = make_features(kind) | OF_WINDOWS
    features["label_ids"] = features["label_ids"][[0, 1, 0, 3]]
    rows = slice(None) if row is None else slice(row, row + 1)
    features = {name: value[rows] for name, value in features.items()}
    head = classification.WindowsHead(kind, 1 if kind == "regression" else 3, METRICS[kind])
    network = fine_tuning.NetworkBuilder(CONFIG, **options)
    model_fn = classification.model_fn_builder(network, head, rule)
    return model_fn({n: tf.constant(v) for n, v in features.items()}, None, mode, {})


@pytest.mark.parametrize("kind", LABELS)
def test_all_windows_of_a_text_weigh_in_the_loss_as_one_example(kind, no_head_dropout):
    build = functools.partial(build_windows, kind)
    loss, values, found = evaluated(build)
    losses = numpy_losses(kind, values["logits"], LABELS[kind][[0, 1, 0, 3]])
    expected = np.average(losses, weights=np.float64(OF_WINDOWS["window_weights"]))
    assert loss == pytest.approx(expected, rel=1e-5)
    assert found["mean_loss"] == pytest.approx(expected, rel=1e-5)
    assert one_step(build)[0] == pytest.approx(expected, rel=1e-5)
    # So they do if each is a batch.
    parts = [one_step(functools.partial(build, row=row))[:2] for row in range(3)]
    weighted = np.float64(OF_WINDOWS["window_weights"])[:3] * losses[:3]
    assert [part for part, _ in parts] == pytest.approx(list(weighted), rel=1e-5)
    assert all(report.get("accuracy", 0.0) in (0.0, 1.0) for _, report in parts)
    check_micro_batches(build)


@pytest.mark.parametrize("kind", LABELS)
def test_windows_are_scored_by_the_means_of_their_logits(kind):
    """The windows of a text are in several batches; the reference is computed in float64."""
    generator = np.random.default_rng(4)
    owners = generator.permutation(np.repeat(np.arange(20), generator.integers(1, 6, 20)))
    weights = np.float32(generator.uniform(0.1, 1, len(owners)))
    number = 1 if kind == "regression" else 3
    logits = generator.normal(size=[len(owners), number]).astype(np.float32)
    labels = np.resize(LABELS[kind], [20, *LABELS[kind].shape[1:]])
    options = number, METRICS[kind], None, kind != "regression"
    head, total = classification.WindowsHead(kind, *options), {}
    for first in range(0, len(owners), 7):
        part = np.arange(first, min(first + 7, len(owners)))
        part, is_real = np.append(part, 0), np.append(np.ones(len(part)), 0)
        of_part = logits[part], labels[owners[part]], is_real, owners[part], weights[part]
        metrics.add(total, head.count(*of_part))
    of_text = [owners == text for text in range(20)]
    means = [np.average(np.float64(logits[i]), axis=0, weights=weights[i]) for i in of_text]
    single = classification.Head(kind, *options)
    counts = single.count(np.array(means), labels, np.ones(20))
    expected, found = counts | single.values_of(counts), head.values_of(total)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)
