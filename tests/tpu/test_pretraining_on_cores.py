"""BERT-tiny's pretraining gives the same numbers on every runtime, on any number of cores."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator.bert_config import BertConfig
from bert_estimator.model_fns import pretraining, update
from bert_estimator.optimization import WarmupPolynomialDecay

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("xla_runtime")]

VOCAB, LENGTH, MASKED, ROWS, STEPS = 30522, 32, 5, 64, 50
MASK_ID = 103
BERT = BertConfig.preset("tiny", VOCAB)
WITHOUT_DROPOUT = dataclasses.replace(
    BERT, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)


def input_fn(params):
    """Words of a language that has rare and frequent ones, and nothing else to learn."""
    random, n = np.random.RandomState(0), ROWS * STEPS

    def words(*shape):
        return (1000 + np.minimum(random.zipf(1.5, shape), VOCAB - 1001)).astype(np.int32)

    input_ids = words(n, LENGTH)
    positions = np.argsort(random.rand(n, LENGTH))[:, :MASKED].astype(np.int32)
    masked_ids = np.take_along_axis(input_ids, positions, 1)
    np.put_along_axis(input_ids, positions, MASK_ID, 1)
    lengths = random.randint(LENGTH // 2, LENGTH + 1, [n, 1])
    features = {
        "input_ids": input_ids,
        "input_mask": (np.arange(LENGTH) < lengths).astype(np.int32),
        "segment_ids": (np.arange(LENGTH) >= lengths // 2).astype(np.int32),
        "masked_lm_positions": positions,
        "masked_lm_ids": masked_ids,
        "masked_lm_weights": (positions < lengths).astype(np.float32),
        "next_sentence_labels": random.randint(0, 2, [n, 1]).astype(np.int32),
    }
    data = tf.data.Dataset.from_tensor_slices(features).batch(ROWS, drop_remainder=True)
    batches = data.batch(1).map(lambda batch: {k: v[0] for k, v in batch.items()})
    return batches.skip(params["context"].global_step).repeat()


def pretrain(folder, master, bert_config, micro_batch_size=None, steps=STEPS):
    """Trains one step, and goes on from its checkpoint; returns the losses of all steps."""
    rule = update.UpdateRule(
        "lamb", WarmupPolynomialDecay(1e-2, STEPS, 5), micro_batch_size, summary_dir=str(folder)
    )
    model_fn = pretraining.model_fn_builder(bert_config, rule, random_seed=3)
    estimator = toy.make_estimator(
        folder, model_fn, master=master, tf_random_seed=3, train_batch_size=ROWS, params={},
        iterations_per_loop=STEPS,
    )  # fmt: skip
    for end in (1, steps):
        estimator.train(input_fn, max_steps=end)
    found = toy.scalars(folder, "loss")
    assert [step for step, _ in found] == list(range(1, steps + 1))
    return np.array([loss for _, loss in found])


def values_at(folder, step):
    reader = tf.train.load_checkpoint(str(folder / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def first_gradients(folder):
    """Returns the gradients of step 1 as a vector; the first moments are 0.1 of the gradients."""
    values = values_at(folder, 1)
    return 10 * np.concatenate([values[n].ravel() for n in sorted(values) if "/adam_m" in n])


@pytest.fixture(scope="module")
def on_session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("session")
    return folder, pretrain(folder, "", WITHOUT_DROPOUT)


@pytest.mark.parametrize(
    ("master", "micro_batch_size"),
    [("rehearse:1", None), ("rehearse:2", None), ("rehearse:8", None), ("rehearse:8", 4)],
)
def test_fifty_steps(tmp_path, on_session, master, micro_batch_size):
    losses = pretrain(tmp_path, master, WITHOUT_DROPOUT, micro_batch_size)
    folder, expected_losses = on_session
    assert expected_losses[-1] < expected_losses[0] - 1
    loss_error = np.max(np.abs(losses / expected_losses - 1))

    expected = first_gradients(folder)
    gradient_error = np.linalg.norm(first_gradients(tmp_path) - expected) / np.linalg.norm(expected)

    found, expected = values_at(tmp_path, STEPS), values_at(folder, STEPS)
    assert found.keys() == expected.keys()
    # The gradient of a key's bias is zero but for rounding.
    weights = [n for n in expected if "/adam_" not in n and "/key/bias" not in n]
    errors = {
        n: np.linalg.norm(found[n] - expected[n]) / np.linalg.norm(expected[n]) for n in weights
    }
    worst = max(errors, key=errors.get)
    print(
        f"{master}, micro-batch {micro_batch_size}: losses {loss_error:.2g}, gradients "
        f"{gradient_error:.2g}, weights {errors[worst]:.2g} ({worst})"
    )
    assert loss_error <= 1e-4
    assert gradient_error <= 1e-5
    assert errors[worst] <= 1e-3, worst


def test_with_dropout_a_seed_fixes_every_bit(tmp_path):
    folders = [tmp_path / "first", tmp_path / "again"]
    first, again = (pretrain(folder, "rehearse:8", BERT, steps=10) for folder in folders)
    np.testing.assert_array_equal(first, again)
    expected, found = (values_at(folder, 10) for folder in folders)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)
