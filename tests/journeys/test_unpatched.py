"""Each runtime and verb as users run them, with all that `quick_graphs` switches off elsewhere."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.bert_config import BertConfig
from bert_estimator.model_fns import classification, fine_tuning, update
from bert_estimator.optimization import WarmupPolynomialDecay

REWRITES_GRAPHS = KNOWS_LINES = OPTIMIZES_PROGRAMS = True

BATCH, LENGTH, STEPS = 4, 8, 4
CONFIG = BertConfig(
    vocab_size=20,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=LENGTH,
    initializer_range=0.3,
)
RANDOM = np.random.default_rng(1)
IDS = RANDOM.integers(1, 20, [BATCH * STEPS, LENGTH]).astype(np.int32)
FEATURES = {
    "input_ids": IDS,
    "input_mask": np.ones_like(IDS),
    "segment_ids": np.zeros_like(IDS),
    "is_real_example": np.ones([len(IDS)], np.int32),
    "label_ids": (IDS[:, 1] > 10).astype(np.int32),
}


def input_fn(params):
    examples = tf.data.Dataset.from_tensor_slices(FEATURES)
    return examples.batch(params["batch_size"], drop_remainder=True)


def training_input_fn(params):
    """Has the examples from the step at which training starts."""
    return input_fn(params).skip(params["context"].global_step)


def receiver_fn():
    names = ("input_ids", "input_mask", "segment_ids")
    fed = {name: tf.placeholder(tf.int32, [None, LENGTH], name) for name in names}
    features = {**fed, "is_real_example": tf.ones_like(fed["input_ids"][:, 0])}
    return tpu.serving.ServingInputReceiver(features, fed)


def estimator_in(folder, precision, rules):
    rule = update.UpdateRule("lamb", WarmupPolynomialDecay(0.05, STEPS, 1))
    network = fine_tuning.NetworkBuilder(CONFIG, precision=precision)
    head = classification.Head("classification", 2, ("accuracy",))
    settings = {"use_tpu": True, **rules}
    config = tpu.RunConfig(
        master=settings.pop("master", ""),
        model_dir=str(folder),
        tf_random_seed=7,
        tpu_config=tpu.TPUConfig(iterations_per_loop=2),
    )
    return tpu.TPUEstimator(
        classification.model_fn_builder(network, head, rule),
        config=config,
        params={},
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
        **settings,
    )


def exported_outputs(folder):
    with tf.Graph().as_default(), tf.Session() as session:
        model = tf.saved_model.load(session, [tf.saved_model.SERVING], folder)
        signature = model.signature_def["serving_default"]
        feeds = {tensor.name: FEATURES[name] for name, tensor in signature.inputs.items()}
        return session.run(signature.outputs["probabilities"].name, feeds)


@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_every_verb(tmp_path, rules, precision):
    whole = estimator_in(tmp_path / "whole", precision, rules)
    whole.train(training_input_fn, max_steps=STEPS)
    resumed = estimator_in(tmp_path / "resumed", precision, rules)
    resumed.train(training_input_fn, max_steps=STEPS // 2)
    before = resumed.evaluate(input_fn, steps=STEPS)
    resumed.train(training_input_fn, max_steps=STEPS)
    after = resumed.evaluate(input_fn, steps=STEPS)
    assert (before["global_step"], after["global_step"]) == (STEPS // 2, STEPS)
    assert after["loss"] != before["loss"]
    for name in whole.get_variable_names():
        one, other = whole.get_variable_value(name), resumed.get_variable_value(name)
        np.testing.assert_array_equal(one, other, name)

    predictions = np.stack([row["probabilities"] for row in resumed.predict(input_fn)])
    np.testing.assert_allclose(predictions.sum(axis=1), 1, atol=1e-6)
    right = (predictions.argmax(axis=1) == FEATURES["label_ids"]).mean()
    assert after["accuracy"] == pytest.approx(right)
    folder = resumed.export_saved_model(str(tmp_path / "export"), receiver_fn)
    tolerance = 1e-5 if precision == "float32" else 0.02
    np.testing.assert_allclose(exported_outputs(folder), predictions, atol=tolerance)
