"""Packed rows: losses, gradients, evaluations and predictions are the same in unpacked rows."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import modeling, tpu
from bert_estimator.bert_config import BertConfig
from bert_estimator.layers import dropout
from bert_estimator.model_fns import (
    classification,
    fine_tuning,
    pretraining,
    question_answering,
    update,
)
from bert_estimator.optimization import WarmupPolynomialDecay
from input_pipelines.records import packed_rows

S, F, P = 6, 16, 3
LENGTHS = np.array([5, 11, 4, 9, 7, 0])  # the last one only pads the batch
CONFIG = BertConfig(
    vocab_size=30,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=F,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.3,
)
WITHOUT_DROPOUT = dataclasses.replace(CONFIG, classifier_dropout=0.0)
RULE = update.UpdateRule("adamw", WarmupPolynomialDecay(1e-3, 10))
RANDOM = np.random.default_rng(1)
IS_TOKEN = np.arange(F) < LENGTHS[:, np.newaxis]


def ints(high, *shape):
    return RANDOM.integers(0, high, shape).astype(np.int32)


SEQUENCES = {
    "input_ids": np.where(IS_TOKEN, 1 + ints(29, S, F), 0).astype(np.int32),
    "input_mask": IS_TOKEN.astype(np.int32),
    "segment_ids": np.where(IS_TOKEN, ints(2, S, F), 0).astype(np.int32),
    "unique_ids": np.where(LENGTHS > 0, np.arange(S), -1).astype(np.int32),
    "is_real_example": (LENGTHS > 0).astype(np.int32),
}
OF_TASK = {
    "pretraining": {
        "masked_lm_positions": RANDOM.integers(0, np.maximum(LENGTHS, 1)[:, np.newaxis], [S, P]),
        "masked_lm_ids": ints(30, S, P),
        "masked_lm_weights": np.float32(RANDOM.integers(0, 2, [S, P])),
        "next_sentence_labels": ints(2, S, 1),
    },
    "classification": {"label_ids": ints(3, S)},
    "multi_label": {"label_ids": ints(2, S, 3)},
    "regression": {"label_ids": np.float32(RANDOM.standard_normal(S))},
    "tagging": {
        "label_ids": np.where(IS_TOKEN, ints(3, S, F), 0),
        "label_mask": np.where(IS_TOKEN, ints(2, S, F), 0),
        "continues_sentence": np.zeros(S, np.int32),
    },
    "answers": {
        "start_positions": np.minimum(1, LENGTHS).astype(np.int32),
        "end_positions": np.maximum(LENGTHS - 1, 0).astype(np.int32),
    },
}


def features_of(task, is_packed, parts=1):
    """Returns the batch of a task; packed into a number of parts of several rows."""
    batch = SEQUENCES | {
        name: value.astype(np.int32) if value.dtype == np.int64 else value
        for name, value in OF_TASK[task].items()
    }
    if not is_packed:
        return batch
    packing = packed_rows.Packing(F, parts, rows_of_part=4 // parts, slots_of_part=S)
    slots = packing.slots(LENGTHS)
    batch = {name: values[slots.numbers] for name, values in batch.items()}
    batch["unique_ids"] = np.where(slots.numbers < 0, -1, batch["unique_ids"])
    batch["is_real_example"] = (slots.numbers >= 0).astype(np.int32)
    return packing.pack(slots, LENGTHS, batch)


def model_fn_of(task, rule=RULE, config=CONFIG, **options):
    network = fine_tuning.NetworkBuilder(config, **options)
    if task == "pretraining":
        return pretraining.model_fn_builder(config, rule, **options)
    if task == "answers":
        return question_answering.model_fn_builder(network, rule)
    if task == "tagging":
        head = classification.TaggingHead(task, 3, ("accuracy",), labels=("O", "B-A", "I-A"))
    else:
        head = classification.Head(task, 1 if task == "regression" else 3)
    return classification.model_fn_builder(network, head, rule)


def run(task, mode, features, model_fn=None, batch_size=S):
    """Returns what the model_fn gives: the loss, gradients by variable, metrics, predictions."""
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.set_random_seed(3)
        tensors = {name: tf.constant(value) for name, value in features.items()}
        if mode == tpu.ModeKeys.TRAIN:
            tf.train.create_global_step()
        spec = (model_fn or model_fn_of(task))(tensors, None, mode, {"batch_size": batch_size})
        results = {} if spec.loss is None else {"loss": spec.loss}
        if mode == tpu.ModeKeys.PREDICT:
            results |= spec.predictions
        if mode == tpu.ModeKeys.TRAIN:
            results |= first_moments(graph)
        if spec.eval_metrics is not None and mode == tpu.ModeKeys.EVAL:
            metric_fn, arguments = spec.eval_metrics
            metrics = metric_fn(**arguments)
            updates = [update_op for _, update_op in metrics.values()]
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        values = session.run(results | {"train_op": spec.train_op} if spec.train_op else results)
        if mode == tpu.ModeKeys.TRAIN:
            values |= session.run(first_moments(graph))
        if mode == tpu.ModeKeys.EVAL:
            session.run(updates)
            values |= session.run({name: value for name, (value, _) in metrics.items()})
        values.pop("train_op", None)
        return values


def first_moments(graph):
    """Returns AdamW's first moments, which after the first step are a tenth of the gradients."""
    with graph.as_default():
        return {v.op.name: v for v in tf.global_variables() if v.op.name.endswith("/adam_m")}


def in_order(predictions):
    """Returns the predictions of the real examples, in the order of their numbers."""
    order = np.argsort(predictions["unique_ids"])[-(S - 1) :]
    assert predictions["unique_ids"][order].tolist() == list(range(S - 1))
    return {name: values[order] for name, values in predictions.items()}


@pytest.mark.parametrize("task", [task for task in OF_TASK if task != "answers"])
@pytest.mark.parametrize("mode", [tpu.ModeKeys.TRAIN, tpu.ModeKeys.EVAL, tpu.ModeKeys.PREDICT])
def test_packed_equals_unpacked(task, mode):
    if (task, mode) == ("pretraining", tpu.ModeKeys.PREDICT):
        return
    model_fn = model_fn_of(task, config=WITHOUT_DROPOUT)  # tagging's is drawn for rows
    unpacked = run(task, mode, features_of(task, is_packed=False), model_fn)
    packed = run(task, mode, features_of(task, is_packed=True), model_fn)
    assert unpacked.keys() == packed.keys() and len(unpacked) > 0
    if mode == tpu.ModeKeys.PREDICT:
        packed, unpacked = in_order(packed), in_order(unpacked)
    for name, expected in unpacked.items():
        value = packed[name]
        if mode == tpu.ModeKeys.PREDICT and task == "tagging" and value.ndim > 1:
            expected, value = expected[IS_TOKEN[:-1]], value[IS_TOKEN[:-1]]
        # The gradient of a key's bias is 0, and what is left of it is rounding.
        scale = max(np.max(np.abs(expected)), 1e-4)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5 * scale, err_msg=name)


@pytest.mark.parametrize("task", ["pretraining", "classification", "tagging"])
def test_micro_batches_are_packed_by_themselves(task):
    rule = dataclasses.replace(RULE, micro_batch_size=S // 2)
    features = features_of(task, is_packed=True, parts=2)
    packed, unpacked = (
        run(task, tpu.ModeKeys.TRAIN, batch, model_fn_of(task, of_side, WITHOUT_DROPOUT))
        for batch, of_side in ((features, rule), (features_of(task, is_packed=False), RULE))
    )
    assert packed.keys() == unpacked.keys()
    for name, expected in unpacked.items():
        scale = max(np.max(np.abs(expected)), 1e-4)
        np.testing.assert_allclose(packed[name], expected, rtol=1e-5, atol=1e-5 * scale)


def test_the_dropout_of_a_head_is_that_of_unpacked_rows():
    unpacked = run("classification", tpu.ModeKeys.TRAIN, features_of("classification", False))
    packed = run("classification", tpu.ModeKeys.TRAIN, features_of("classification", True))
    np.testing.assert_allclose(packed["loss"], unpacked["loss"], rtol=1e-5)


def test_answers_equal_those_of_windows_without_padding():
    """Here the softmax is over the window's tokens alone."""
    features = features_of("answers", is_packed=True)
    packed = run("answers", tpu.ModeKeys.TRAIN, features)
    totals = {}
    for number, length in enumerate(LENGTHS[:-1]):
        window = {
            name: values[number : number + 1, :length] if values.ndim == 2 else values[[number]]
            for name, values in features_of("answers", is_packed=False).items()
        }
        for name, value in run("answers", tpu.ModeKeys.TRAIN, window).items():
            totals[name] = totals.get(name, 0) + value / (S - 1)
    assert totals.keys() == packed.keys()
    # Each window's gradients were clipped by themselves, so only losses can be compared.
    np.testing.assert_allclose(packed["loss"], totals["loss"], rtol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_session_does_not_compute_empty_rows(rate, recompute):
    """Outputs, dropout included, are the same as without the empty rows, and they are zeros."""
    config = dataclasses.replace(
        CONFIG, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate
    )

    def outputs(features):
        with tf.Graph().as_default() as graph, tf.Session() as session:
            tf.set_random_seed(3)
            tensors = {name: tf.constant(value) for name, value in features.items()}
            model = modeling.BertModel(
                config,
                is_training=True,
                input_ids=tensors["input_ids"],
                input_mask=tensors["input_mask"],
                dropout=dropout.Dropout(1, 5),
                recompute=recompute,
                position_ids=tensors["position_ids"],
                sequence_starts=tensors["sequence_starts"],
            )
            tokens, pooled = model.get_sequence_output(), model.get_pooled_output()
            assert tokens.shape == (*features["input_ids"].shape, 8)
            (table,) = tf.gradients([tokens, pooled], [model.get_embedding_table()])
            products = [
                op.outputs[0]
                for op in graph.get_operations()
                if op.type == "MatMul" and "layer_1/intermediate" in op.name
            ]
            session.run(tf.global_variables_initializer())
            *values, product = session.run([tokens, pooled, table, products[0]])
        return values, len(product) // F

    features = features_of("classification", is_packed=True)
    assert not features["input_mask"][3].any()
    (tokens, *others), num_rows = outputs(features)
    assert num_rows == 3 and not tokens[3].any()
    for name in ("input_ids", "input_mask", "position_ids"):
        features[name] = features[name][:3]
    (expected, *expected_others), num_rows = outputs(features)
    assert num_rows == 3
    np.testing.assert_array_equal(tokens[:3], expected)
    for value, twin in zip(others, expected_others, strict=True):
        np.testing.assert_array_equal(value, twin)
