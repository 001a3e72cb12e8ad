"""The question answering model_fn: losses, logits, precision, evaluation; against numpy."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.model_fns import fine_tuning, question_answering
from tests.model_fns.test_classification import (
    CONFIG,
    REAL,
    B,
    F,
    check_micro_batches,
    check_precision,
    evaluated,
    one_step,
)

STARTS, ENDS = np.array([3, 0, 5, 1], np.int32), np.array([4, 0, 5, 2], np.int32)


def make_features(with_positions=True):
    ids = np.random.default_rng(2).integers(1, 20, [B, F]).astype(np.int32)
    features = {
        "input_ids": ids,
        "input_mask": np.ones([B, F], np.int32),
        "segment_ids": (np.arange(F) > 2).astype(np.int32) * np.ones([B, 1], np.int32),
        "unique_ids": np.array([7, 8, 9, -1], np.int32),
        "is_real_example": REAL,
    }
    positions = {"start_positions": STARTS, "end_positions": ENDS}
    return {**features, **positions} if with_positions else features


def build(mode, rule=None, scorer=None, with_positions=True, **options):
    tf.set_random_seed(3)
    features = {n: tf.constant(v) for n, v in make_features(with_positions).items()}
    network = fine_tuning.NetworkBuilder(CONFIG, **options)
    return question_answering.model_fn_builder(network, rule, scorer)(features, None, mode, {})


def numpy_losses(starts, ends):
    losses = []
    for logits, labels in ((starts, STARTS), (ends, ENDS)):
        logits = logits.astype(np.float64)
        losses.append(np.log(np.exp(logits).sum(1)) - logits[np.arange(B), labels])
    return np.mean(losses, axis=0)


class Scorer:
    names = ("first", "number")

    def __init__(self):
        self.batches = []

    def add(self, unique_ids, starts, ends):
        self.batches.append((unique_ids, starts, ends))

    def scores(self):
        return [float(self.batches[0][1][0, 0]), len(self.batches)]


def test_evaluation():
    scorer = Scorer()
    loss, values, found = evaluated(build, times=2, scorer=scorer)
    losses = numpy_losses(values["starts"], values["ends"])
    np.testing.assert_allclose(values["losses"], losses, rtol=1e-5)
    assert loss == pytest.approx(losses[:3].mean(), rel=1e-5)
    assert found["mean_loss"] == pytest.approx(losses[:3].mean(), rel=1e-5)
    assert found["first"] == values["starts"][0, 0] and found["number"] == 2
    np.testing.assert_array_equal(scorer.batches[1][0], [7, 8, 9, -1])
    np.testing.assert_array_equal(scorer.batches[1][2], values["ends"])


def test_the_logits_are_google_s_head_on_each_token():
    with tf.Graph().as_default(), tf.Session() as session:
        spec = build(tpu.ModeKeys.PREDICT, with_positions=False)
        variables = {v.op.name: v for v in tf.global_variables()}
        layer_norms = [op for op in tf.get_default_graph().get_operations() if op.type == "MatMul"]
        session.run(tf.global_variables_initializer())
        weights, bias = (variables[f"cls/squad/output_{n}"] for n in ("weights", "bias"))
        bias.load([0.5, -0.25], session)
        tokens = layer_norms[-1].inputs[0]
        found, tokens, weights = session.run([spec.predictions, tokens, weights])
    expected = (tokens.astype(np.float64) @ weights.T + [0.5, -0.25]).reshape(B, F, 2)
    np.testing.assert_allclose(found["start_logits"], expected[..., 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["end_logits"], expected[..., 1], rtol=1e-4, atol=1e-5)
    assert weights.shape == (2, CONFIG.hidden_size)
    np.testing.assert_array_equal(found["unique_ids"], [7, 8, 9, -1])


def test_training_reports_the_loss_of_evaluation_and_lowers_it():
    with tf.Graph().as_default(), tf.Session() as session:
        spec = build(tpu.ModeKeys.EVAL)
        session.run(tf.global_variables_initializer())
        expected, tensors = session.run([spec.loss, spec.eval_metrics[1]])
        loss, report, weights, _ = one_step(build)
        assert loss == pytest.approx(expected, rel=1e-5)
        right = (tensors["starts"].argmax(1) == STARTS) & (tensors["ends"].argmax(1) == ENDS)
        assert report["accuracy"] == pytest.approx(right[:3].mean())
        for variable in tf.trainable_variables():
            variable.load(weights[variable.op.name], session)
        assert session.run(spec.loss) < expected


def test_micro_batches_equal_the_batch():
    check_micro_batches(build)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_border_of_precision(precision):
    check_precision(build, precision)
