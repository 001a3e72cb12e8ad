"""The pretraining model_fn: its graph's dtypes, its numbers against float64, its reports."""

import dataclasses
import functools
import glob
import os

import ml_dtypes
import numpy as np
import numpy_bert
import optimizer_steps
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.core.util import event_pb2

from bert_estimator import modeling, optimization, precision, tpu
from bert_estimator.model_fns import depth, pretraining, update
from bert_estimator.optimization import WarmupPolynomialDecay
from bert_estimator.tpu.replicas.replica import Replica
from input_pipelines.records.record_reader import RecordFiles
from tests.test_modeling import nodes

CONFIG = modeling.BertConfig(
    vocab_size=40,
    hidden_size=24,
    num_hidden_layers=1,
    num_attention_heads=3,
    intermediate_size=48,
    max_position_embeddings=16,
)
WITHOUT_DROPOUT = dataclasses.replace(
    CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)
# For tests that only compare two graphs: GELU is compiled anew in every session, for a second.
RELU = dataclasses.replace(CONFIG, hidden_act="relu")
BATCH, LENGTH, PREDICTIONS = 8, 12, 4
STEPS, WARMUP, RATE = 20, 5, 0.01
SCHEDULE = WarmupPolynomialDecay(RATE, STEPS, WARMUP)


def make_batch(seed, masked=(2, 4, 1, 3, 4, 1, 2, 3)):
    """Features of one batch; example i has masked[i] masked positions."""
    rng = np.random.RandomState(seed)
    lengths = rng.randint(6, LENGTH + 1, BATCH)
    places = np.arange(LENGTH)
    weights = np.arange(PREDICTIONS) < np.array(masked)[:, None]
    features = {
        "input_ids": rng.randint(5, CONFIG.vocab_size, [BATCH, LENGTH]),
        "input_mask": places < lengths[:, None],
        "segment_ids": (places >= lengths[:, None] // 2) & (places < lengths[:, None]),
        "masked_lm_positions": rng.randint(0, 6, [BATCH, PREDICTIONS]) * weights,
        "masked_lm_ids": rng.randint(5, CONFIG.vocab_size, [BATCH, PREDICTIONS]) * weights,
        "next_sentence_labels": rng.randint(0, 2, [BATCH, 1]),
        "is_real_example": np.ones([BATCH]),
    }
    features = {name: value.astype(np.int32) for name, value in features.items()}
    return {**features, "masked_lm_weights": weights.astype(np.float32)}


def with_padding(features, rows):
    """Returns the features with the last rows marked as padding."""
    padded = {name: value.copy() for name, value in features.items()}
    padded["is_real_example"][-rows:] = 0
    return padded


@functools.cache
def weights():
    """Weights by name: large enough that every part of the network matters."""
    with tf.Graph().as_default():
        build(make_batch(0), tpu.ModeKeys.EVAL)
        shapes = {v.op.name: v.shape.as_list() for v in tf.trainable_variables()}
    rng = np.random.RandomState(1)
    values = {name: rng.normal(0, 0.3, shape) for name, shape in shapes.items()}
    values.update({n: 1 + v / 3 for n, v in values.items() if n.endswith("gamma")})
    return {name: value.astype(np.float32) for name, value in values.items()}


def build(features, mode=tpu.ModeKeys.TRAIN, config=RELU, optimizer="lamb", **options):
    """Builds the spec of a batch; options are of `UpdateRule` or of `model_fn_builder`."""
    tf.train.get_or_create_global_step()
    of_rule = {f.name for f in dataclasses.fields(update.UpdateRule)} & set(options)
    schedule = WarmupPolynomialDecay(RATE, STEPS, WARMUP)
    rule = update.UpdateRule(optimizer, schedule, **{name: options.pop(name) for name in of_rule})
    model_fn = pretraining.model_fn_builder(config, rule, **options)
    features = {
        name: value if tf.is_tensor(value) else tf.constant(value)
        for name, value in features.items()
    }
    return model_fn(features, None, mode, {})


def new_session(graph=None):
    """A session that does not rewrite its graphs, which takes longer than to run them once."""
    config = tf.ConfigProto()
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return tf.Session(graph=graph, config=config)


def start(session, lacks=None, **more):
    """Puts `weights()` into the variables of the default graph, which may lack a head, and zero
    into the others."""
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    variables = {v.op.name: v for v in tf.global_variables()}
    values = {**weights(), **more}
    values = {n: value for n, value in values.items() if lacks is None or lacks not in n}
    feeds = {variables[name].initializer.inputs[1]: value for name, value in values.items()}
    session.run([variables[name].initializer for name in values], feeds)


def all_variables(session):
    return session.run({v.op.name: v.read_value() for v in tf.global_variables()})


def report_of(spec):
    """The one-value tensors that the host call gets."""
    return {name: value for name, value in spec.host_call[1].items() if name != "trust_ratios"}


@pytest.fixture
def given(monkeypatch):
    """The (gradient, variable) pairs that the optimizer was given last, clipped."""
    pairs = []
    apply = optimization.ChainOptimizer.apply_gradients

    def recorded(self, grads_and_vars, *args, scale=None, **kwargs):
        given = list(grads_and_vars)
        pairs[:] = given if scale is None else [(scale * g, v) for g, v in given]
        return apply(self, given, *args, scale=scale, **kwargs)

    monkeypatch.setattr(optimization.ChainOptimizer, "apply_gradients", recorded)
    return pairs


def dtypes_in(graph):
    """Returns every dtype that a graph names in attributes, in lists or in signatures."""
    found = set()
    for node in nodes(graph):
        for attribute in node.attr.values():
            found.update([attribute.type, *attribute.list.type])
            found.add(attribute.tensor.dtype)
    for function in graph.as_graph_def().library.function:
        signature = function.signature
        found.update(arg.type for arg in [*signature.input_arg, *signature.output_arg])
    return {tf.as_dtype(dtype) for dtype in found if dtype}


@pytest.mark.parametrize(("optimizer", "micro_batch_size"), [("lamb", None), ("adamw", 2)])
@pytest.mark.parametrize("kind", precision.PRECISIONS)
def test_precision_of_the_complete_training_graph(kind, optimizer, micro_batch_size, given):
    compute = tf.as_dtype(kind)
    features = make_batch(0)
    if kind == "bfloat16":
        features["masked_lm_weights"] = features["masked_lm_weights"].astype(ml_dtypes.bfloat16)
    with tf.Graph().as_default() as graph:
        spec = build(
            features,
            config=CONFIG,
            optimizer=optimizer,
            precision=kind,
            micro_batch_size=micro_batch_size,
            summary_dir="unused",
        )
        products = [n for n in nodes(graph) if "MatMul" in n.op or n.op in ("Einsum", "XlaDotV2")]
        # Older TensorFlows have one for a loss's second derivative in a loop, which nothing uses.
        products = [n for n in products if "WithLogits_grad/" not in n.name]
        # Forward: 6 matrix and 2 batch products a layer, the pooler, 3 in the heads; backward: one
        # for each of the two operands.
        assert len(products) == 3 * (8 + 1 + 3)
        assert {tf.as_dtype(node.attr["T"].type) for node in products} == {compute}
        losses = [n for n in nodes(graph) if n.op == "SparseSoftmaxCrossEntropyWithLogits"]
        assert len(losses) == 2
        for node in nodes(graph):
            if node.op in ("SparseSoftmaxCrossEntropyWithLogits", "ArgMax", "Softmax"):
                assert node.attr["T"].type == tf.float32.as_datatype_enum, node.name
        if micro_batch_size is None:
            for node in losses:
                logits = graph.get_tensor_by_name(node.input[0] + ":0")
                while logits.op.type == "Reshape":
                    logits = logits.op.inputs[0]
                assert (logits.op.type, logits.dtype) == ("BiasAdd", tf.float32)
        # Weights, slots and the step.
        slots = 2 * len(tf.trainable_variables())
        assert len(tf.global_variables()) == len(tf.trainable_variables()) + slots + 1
        stored = {v.dtype.base_dtype for v in tf.global_variables() if "step" not in v.name}
        assert stored == {tf.float32}
        assert len(given) == len(tf.trainable_variables())
        assert {gradient.dtype for gradient, _ in given} == {tf.float32}
        assert spec.loss.dtype == tf.float32
        reported = {t.dtype for name, t in spec.host_call[1].items() if name != "global_step"}
        assert reported == {tf.float32}
        assert ("trust_ratios" in spec.host_call[1]) == (optimizer == "lamb")
        assert (tf.bfloat16 in dtypes_in(graph)) == (kind == "bfloat16")
        assert tf.float16 not in dtypes_in(graph)


@pytest.mark.parametrize("kind", precision.PRECISIONS)
def test_precision_of_the_evaluation_graph(kind):
    with tf.Graph().as_default() as graph:
        spec = build(make_batch(0), tpu.ModeKeys.EVAL, config=CONFIG, precision=kind)
        products = [node for node in nodes(graph) if "MatMul" in node.op]
        assert len(products) == 8 + 1 + 3
        assert {tf.as_dtype(node.attr["T"].type) for node in products} == {tf.as_dtype(kind)}
        floats = {t.dtype for t in spec.eval_metrics[1].values() if t.dtype.is_floating}
        assert floats == {spec.loss.dtype} == {tf.float32}
        assert (tf.bfloat16 in dtypes_in(graph)) == (kind == "bfloat16")


def losses_of(features, mode, **options):
    """Returns [loss] of a batch; in training [loss, masked-LM loss, next-sentence loss]."""
    kinds = tuple((name, value.dtype, value.shape) for name, value in sorted(features.items()))
    session, holders, tensors = _losses(kinds, mode, *sorted(options.items()))
    return session.run(tensors, {holders[name]: value for name, value in features.items()})


@functools.cache
def _losses(kinds, mode, *options):
    """Builds the losses of all batches of a kind; returns (session, placeholders, losses)."""
    with tf.Graph().as_default() as graph:
        session = new_session(graph)
        holders = {name: tf.placeholder(dtype, shape) for name, dtype, shape in kinds}
        spec = build(holders, mode, summary_dir="unused", **dict(options))
        start(session)
        losses = [spec.loss]
        if mode == tpu.ModeKeys.TRAIN:
            report = spec.host_call[1]
            losses += [report["masked_lm_loss"][0], report["next_sentence_loss"][0]]
    return session, holders, losses


@pytest.fixture(scope="module", autouse=True)
def _no_graphs_remain():
    yield
    _losses.cache_clear()


def twin_losses(features):
    """Returns numpy BERT's (masked-LM loss, next-sentence loss) over the real examples."""
    real = {name: value[features["is_real_example"] == 1] for name, value in features.items()}
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    outputs = numpy_bert.forward(weights(), CONFIG, *(real[name] for name in names))
    return numpy_bert.losses(
        outputs,
        real["masked_lm_ids"],
        real["masked_lm_weights"].astype(np.float64),
        real["next_sentence_labels"][:, 0],
    )


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_training_loss_is_the_weighted_mean_over_the_batch(micro_batch_size):
    features = make_batch(3)
    expected = twin_losses(features)
    found = losses_of(
        features,
        tpu.ModeKeys.TRAIN,
        config=WITHOUT_DROPOUT,
        micro_batch_size=micro_batch_size,
    )
    np.testing.assert_allclose(found, [sum(expected), *expected], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "micro_batch_size", "kind"),
    [
        ("lamb", None, "float32"),
        ("adamw", 2, "float32"),
        ("lars", 2, "bfloat16"),
        ("adafactor", None, "bfloat16"),
    ],
)
def test_without_labels_of_sentences_masked_words_alone_are_trained(
    optimizer, micro_batch_size, kind, given
):
    """The network has a pooler, which is not trained, and no head of sentences."""
    features = make_batch(3)
    expected = twin_losses(features)[0]
    del features["next_sentence_labels"]
    options = {"micro_batch_size": micro_batch_size, "precision": kind, "summary_dir": "unused"}
    options |= {"config": WITHOUT_DROPOUT, "optimizer": optimizer}
    with tf.Graph().as_default(), new_session() as session:
        spec = build(features, **options)
        start(session, lacks="cls/seq_relationship")
        report = report_of(spec)
        assert {*report} == SCALARS - {n for n in SCALARS if "sentence" in n} | {"global_step"}
        names = {v.op.name for v in tf.trainable_variables()}
        assert names == {n for n in weights() if "seq_relationship" not in n}
        trained = {variable.op.name for _, variable in given}
        assert names - trained == {n for n in names if "/pooler/" in n}
        assert not any(
            "pooler" in v.op.name for v in tf.global_variables() if v.op.name not in names
        )
        found = session.run([spec.loss, report["masked_lm_loss"][0]])
        for _ in range(2):  # the rate of the first step is 0
            session.run(spec.train_op)
        after = all_variables(session)
    tolerance = 1e-5 if kind == "float32" else 0.05
    np.testing.assert_allclose(found, [expected] * 2, rtol=0, atol=tolerance)
    for name in names - trained:
        np.testing.assert_array_equal(after[name], weights()[name])
    assert any((after[name] != weights()[name]).any() for name in trained)


def test_an_evaluation_without_labels_of_sentences_scores_masked_words_alone():
    features = make_batch(3)
    expected = twin_losses(features)[0]
    del features["next_sentence_labels"]
    with tf.Graph().as_default(), new_session() as session:
        nats = np.ones(CONFIG.vocab_size, np.float32)
        spec = build(features, tpu.ModeKeys.EVAL, config=CONFIG, unigram_nats=nats)
        function, tensors = spec.eval_metrics
        assert {*function(**tensors)} == {
            "masked_lm_loss", "masked_lm_accuracy", "unigram_baseline"
        }  # fmt: skip
        start(session, lacks="cls/seq_relationship")
        assert session.run(spec.loss) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("mode", [tpu.ModeKeys.TRAIN, tpu.ModeKeys.EVAL])
def test_padded_examples_count_nothing(mode):
    features = make_batch(3)
    padded = with_padding(features, 3)
    expected = sum(twin_losses(padded))
    assert abs(expected - sum(twin_losses(features))) > 0.01
    loss = losses_of(padded, mode, config=WITHOUT_DROPOUT)[0]
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-5)


def test_without_is_real_example_every_example_counts():
    features = make_batch(3)
    expected = sum(twin_losses(features))
    del features["is_real_example"]
    (loss,) = losses_of(features, tpu.ModeKeys.EVAL, config=CONFIG)
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", [tpu.ModeKeys.TRAIN, tpu.ModeKeys.EVAL])
def test_a_batch_without_masked_positions_has_no_masked_loss(mode):
    with np.errstate(invalid="ignore"):
        _, next_sentence = twin_losses(make_batch(3, masked=[0] * BATCH))
    features = make_batch(3, masked=[0] * BATCH)
    loss = losses_of(features, mode, config=WITHOUT_DROPOUT)[0]
    np.testing.assert_allclose(loss, next_sentence, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", [tpu.ModeKeys.TRAIN, tpu.ModeKeys.EVAL])
def test_cast_features_give_the_same_loss_exactly(mode):
    features = make_batch(3)
    cast = dict(
        features, masked_lm_weights=features["masked_lm_weights"].astype(ml_dtypes.bfloat16)
    )
    found = [losses_of(f, mode, precision="bfloat16") for f in (features, cast)]
    assert found[0] == found[1]


def test_metrics_are_weighted_over_all_batches():
    batches = [make_batch(3), with_padding(make_batch(4, masked=(1,) * BATCH), 5)]
    outputs = []
    for batch in batches:
        names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
        outputs.append(numpy_bert.forward(weights(), CONFIG, *(batch[name] for name in names)))
    masked = np.concatenate(
        [batch["masked_lm_weights"] * batch["is_real_example"][:, None] for batch in batches]
    ).ravel()
    real = np.concatenate([batch["is_real_example"] for batch in batches])

    def mean(logits_name, labels_name, counts):
        logits = np.concatenate([output[logits_name] for output in outputs])
        labels = np.concatenate([batch[labels_name] for batch in batches])
        labels = labels.reshape(logits.shape[:-1])
        losses = numpy_bert.cross_entropy(logits, labels).ravel()
        correct = (logits.argmax(-1) == labels).ravel()
        return np.sum(losses * counts) / counts.sum(), np.sum(correct * counts) / counts.sum()

    masked_lm = mean("masked_lm_logits", "masked_lm_ids", masked)
    next_sentence = mean("next_sentence_logits", "next_sentence_labels", real)
    nats = np.linspace(1, 3, CONFIG.vocab_size, dtype=np.float32)
    ids = np.concatenate([batch["masked_lm_ids"].ravel() for batch in batches])
    with tf.Graph().as_default(), new_session() as session:
        holders = {k: tf.placeholder(v.dtype, v.shape) for k, v in batches[0].items()}
        spec = build(holders, tpu.ModeKeys.EVAL, config=CONFIG, unigram_nats=nats)
        function, tensors = spec.eval_metrics
        values, updates = zip(*function(**tensors).values(), strict=True)
        start(session)
        for batch in batches:
            session.run(updates, {holders[name]: value for name, value in batch.items()})
        found = dict(zip(function(**tensors), session.run(values), strict=True))
    assert found == {
        "masked_lm_loss": pytest.approx(masked_lm[0], abs=1e-5),
        "masked_lm_accuracy": pytest.approx(masked_lm[1], abs=1e-6),
        "next_sentence_loss": pytest.approx(next_sentence[0], abs=1e-5),
        "next_sentence_accuracy": pytest.approx(next_sentence[1], abs=1e-6),
        "unigram_baseline": pytest.approx(nats[ids] @ masked / masked.sum(), abs=1e-5),
    }


def three_steps(given, micro_batch_size):
    """Trains three steps; returns (losses, gradients of the first step, all variables)."""
    batches = [make_batch(seed) for seed in range(3)]
    with tf.Graph().as_default(), new_session() as session:
        holders = {k: tf.placeholder(v.dtype, v.shape) for k, v in batches[0].items()}
        spec = build(holders, micro_batch_size=micro_batch_size)
        by_name = {variable.op.name: gradient for gradient, variable in given}
        start(session, global_step=WARMUP - 1)  # a rate above zero from the first step on
        feeds = [{holders[name]: value for name, value in b.items()} for b in batches]
        steps = [session.run([spec.loss, by_name, spec.train_op], feed) for feed in feeds]
        return [loss for loss, _, _ in steps], steps[0][1], all_variables(session)


def assert_same(found, expected, tolerance):
    """Dicts of arrays are equal, to a tolerance relative to each array's largest element."""
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        if name.rsplit("/adam_", 1)[0].endswith("key/bias"):
            # The softmax does not see this bias: its gradient is nothing but rounding.
            # Divided by its own size and epsilon, that is some 0.01 of a full step, here 0.01.
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-4, err_msg=name)
            continue
        atol = tolerance * np.abs(value).max()
        np.testing.assert_allclose(found[name], value, rtol=0, atol=atol, err_msg=name)


def test_four_micro_batches_equal_one_batch_with_dropout(given):
    losses, gradients, variables = three_steps(given, None)
    micro_losses, micro_gradients, micro_variables = three_steps(given, BATCH // 4)
    np.testing.assert_allclose(micro_losses, losses, rtol=1e-6)
    assert_same(micro_gradients, gradients, 2e-6)
    assert_same(micro_variables, variables, 2e-5)
    assert variables["global_step"] == WARMUP + 2
    (without,) = losses_of(make_batch(0), tpu.ModeKeys.EVAL)
    assert abs(without - losses[0]) > 1e-3


class FakeReplicas:
    """Two replicas as two graphs, whose sums meet on placeholders for the other's share."""

    def __init__(self, features, given, **options):
        self.graphs, self.specs, self.own, self.other, self.given = [], [], [], [], []
        for number in range(2):
            own, other = [], []

            def total(tensor, own=own, other=other):
                tensor = tf.convert_to_tensor(tensor)
                own.append(tensor)
                other.append(tf.placeholder(tensor.dtype, tensor.shape))
                return tensor + other[-1]

            half = slice(number * BATCH // 2, (number + 1) * BATCH // 2)
            with tf.Graph().as_default() as graph, Replica(2, number, total).entered():
                self.specs.append(build({k: v[half] for k, v in features.items()}, **options))
            self.graphs.append(graph)
            self.own.append(own)
            self.other.append(other)
            self.given.append({v.op.name: g for g, v in given})

    def step(self):
        """Returns (loss, report, gradients) of each replica, and the variables after the step."""
        sessions = [new_session(graph) for graph in self.graphs]
        for graph, session in zip(self.graphs, sessions, strict=True):
            with graph.as_default():
                start(session, global_step=WARMUP)
        feeds = [{}, {}]
        # The two normalisers first: everything else that is summed is divided by them.
        for part in (slice(0, 2), slice(2, None)):
            shares = [sessions[i].run(self.own[i][part], feeds[i]) for i in range(2)]
            for i in range(2):
                feeds[i].update(zip(self.other[i][part], shares[1 - i], strict=True))
        results = []
        for number, (session, spec) in enumerate(zip(sessions, self.specs, strict=True)):
            tensors = (spec.loss, report_of(spec), self.given[number], spec.train_op)
            *values, _ = session.run(tensors, feeds[number])
            with self.graphs[number].as_default():
                results.append((*values, all_variables(session)))
        return results


def test_two_replicas_of_two_micro_batches_equal_one_core_with_dropout(given):
    features = make_batch(3, masked=(4, 4, 4, 4, 1, 1, 0, 1))
    with tf.Graph().as_default(), new_session() as session:
        spec = build(features, summary_dir="unused")
        gradients = {variable.op.name: gradient for gradient, variable in given}
        start(session, global_step=WARMUP)
        tensors = (spec.loss, report_of(spec), gradients, spec.train_op)
        loss, report, gradients, _ = session.run(tensors)
        variables = all_variables(session)
    for found in FakeReplicas(features, given, micro_batch_size=2, summary_dir="unused").step():
        found_loss, found_report, found_gradients, found_variables = found
        assert found_loss == pytest.approx(loss, rel=1e-6)
        for name, value in report.items():
            np.testing.assert_allclose(found_report[name], value, rtol=1e-6, err_msg=name)
        assert_same(found_gradients, gradients, 2e-6)
        assert_same(found_variables, variables, 2e-5)


def test_gradients_are_clipped_once_by_their_global_norm(given):
    with tf.Graph().as_default(), new_session() as session:
        spec = build(make_batch(3), summary_dir="unused")
        start(session)
        tensors = [spec.host_call[1]["gradient_norm"][0], [gradient for gradient, _ in given]]
        norm, gradients = session.run(tensors)
    assert norm > 1.0
    clipped = np.sqrt(sum(np.sum(np.float64(gradient) ** 2) for gradient in gradients))
    assert clipped == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "make_optimizer"),
    [
        ({"optimizer": "lamb"}, optimization.LAMBOptimizer),
        (
            {"optimizer": "lamb", "optimizer_options": {"bias_correction": True}},
            functools.partial(optimization.LAMBOptimizer, bias_correction=True),
        ),
        ({"optimizer": "adamw"}, optimization.AdamWeightDecayOptimizer),
    ],
)
def test_the_step_is_the_optimizers_with_the_schedules_rate(options, make_optimizer, given):
    with tf.Graph().as_default(), new_session() as session:
        spec = build(make_batch(3), **options)
        gradients = {v.op.name: g for g, v in given}
        start(session, global_step=WARMUP + 3)
        gradients, _ = session.run([gradients, spec.train_op])
        variables = all_variables(session)
    with tf.Graph().as_default(), new_session() as session:
        step = tf.train.create_global_step()
        pairs = [
            (tf.constant(gradients[name]), tf.get_variable(name, initializer=weights()[name]))
            for name in gradients
        ]
        train_op = make_optimizer(float(SCHEDULE(WARMUP + 3))).apply_gradients(pairs, step)
        session.run(tf.global_variables_initializer())
        session.run(step.assign(WARMUP + 3))
        session.run(train_op)
        expected = all_variables(session)
    assert_same(variables, expected, 1e-6)


def test_dropout_depends_on_seed_and_step():
    features = make_batch(3)

    def losses(seed):
        with tf.Graph().as_default(), new_session() as session:
            spec = build(features, random_seed=seed)
            start(session)
            step = tf.train.get_global_step()
            found = []
            for number in (5, 6, 5):
                step.load(number, session)
                found.append(session.run(spec.loss))
            return found

    one, two = losses(1), losses(2)
    assert one[0] == one[2]
    assert two[0] == two[2]
    assert len({*one, *two}) == 4


def test_predict_is_refused():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="modes TRAIN and EVAL, not 'inf"):
        build(make_batch(0), tpu.ModeKeys.PREDICT)


def events_of(directory):
    """Returns (step, tag) -> value of the events that host calls wrote."""
    found = {}
    for path in glob.glob(os.path.join(directory, "*.v2")):
        records = RecordFiles([path])
        for number in range(records.num_records):
            event = event_pb2.Event.FromString(records.read(number))
            for value in event.summary.value:
                assert (event.step, value.tag) not in found
                found[event.step, value.tag] = tf.make_ndarray(value.tensor)
    return found


SCALARS = {
    "loss",
    "masked_lm_loss",
    "masked_lm_accuracy",
    "next_sentence_loss",
    "next_sentence_accuracy",
    "learning_rate",
    "gradient_norm",
}
RATIOS = ("trust_ratio/min", "trust_ratio/mean", "trust_ratio/max")


def test_host_call_writes_each_steps_report(tmp_path):
    model_dir = str(tmp_path)

    def input_fn(params):
        del params
        dataset = tf.data.Dataset.from_tensors(make_batch(3))
        return dataset.repeat()

    records = []
    estimator = tpu.TPUEstimator(
        model_fn=pretraining.model_fn_builder(
            RELU,
            update.UpdateRule(
                "lamb",
                WarmupPolynomialDecay(RATE, STEPS, WARMUP),
                summary_dir=model_dir,
            ),
        ),
        config=tpu.RunConfig(
            model_dir=model_dir,
            log_step_count_steps=1,
            tpu_config=tpu.TPUConfig(iterations_per_loop=1),
        ),
        params={},
        use_tpu=True,
        train_batch_size=BATCH,
    )
    estimator.train(input_fn, hooks=[tpu.LogListener(records.append)], max_steps=7)
    events = events_of(model_dir)
    parts = ["embeddings", *(f"layer_{n}" for n in range(RELU.num_hidden_layers)), "head"]
    tags = [*SCALARS, *RATIOS, "trust_ratio", *(f"trust_ratio/{part}" for part in parts)]
    assert set(events) == {(step, tag) for step in range(1, 8) for tag in tags}
    assert [record["step"] for record in records] == list(range(1, 8))
    for record in records:
        for tag in SCALARS:
            assert events[record["step"], tag] == np.float32(record[tag])
        # Step n is the update number n, which follows n - 1 others.
        rate = events[record["step"], "learning_rate"]
        assert rate == pytest.approx(SCHEDULE(record["step"] - 1), rel=1e-6)
        low, mean, high = (float(events[record["step"], tag]) for tag in RATIOS)
        assert 0 < low < mean < high
        histogram = events[record["step"], "trust_ratio"]
        assert (histogram[0, 0], histogram[-1, 1]) == pytest.approx((low, high))
        scaled = [v for v in weights() if v.endswith(("kernel", "embeddings", "weights"))]
        assert histogram[:, 2].sum() == len(scaled)
        by_part = {part: events[record["step"], f"trust_ratio/{part}"] for part in parts}
        assert sum(each[:, 2].sum() for each in by_part.values()) == len(scaled)
        assert min(each[0, 0] for each in by_part.values()) == pytest.approx(low)
        of_layer = [name for name in scaled if "/layer_0/" in name]
        assert by_part["layer_0"][:, 2].sum() == len(of_layer)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("trainable", "expected"),
    [("all", {"0", "1", "embeddings"}), ("last:1", {"1"}), ("head", set())],
)
def test_the_backward_pass_ends_at_the_lowest_layer_that_is_trained(
    trainable, expected, dtype, recompute
):
    config = dataclasses.replace(RELU, num_hidden_layers=2)
    options = {"precision": dtype, "recompute": recompute}
    with tf.Graph().as_default():
        is_trained = depth.trained(trainable, config)
        spec = build(make_batch(0), config=config, is_trained=is_trained, **options)
        names = optimizer_steps.ancestors(spec.train_op)
    gradients = [name for name in names if name.startswith("gradients/")]
    assert any("cls/predictions/transform" in name for name in gradients)
    # The table of words is the output layer, too.
    words = ("embeddings/LayerNorm", "embeddings/BertEstimatorGather", "embeddings/IdentityN")
    found = {n for n in ("0", "1") if any(f"encoder/layer_{n}/" in name for name in gradients)}
    found |= {"embeddings"} if any(word in name for name in gradients for word in words) else set()
    assert found == expected
