"""Compares the network and its heads with the float64 numpy twin, and walks their graphs."""

import dataclasses
import functools
import gc
import weakref

import numpy as np
import numpy_bert
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_ops

from bert_estimator import heads, modeling, precision
from bert_estimator.layers.dropout import Dropout

CONFIG = modeling.BertConfig(
    vocab_size=40,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=48,
    max_position_embeddings=16,
)
SHARED = dataclasses.replace(CONFIG, embedding_size=6, num_hidden_layers=4, num_hidden_groups=2)
BATCH, LENGTH, PREDICTIONS = 3, 12, 4


@functools.cache
def batch():
    """Returns three examples: a padded, a full, and one with a short second segment."""
    rng = np.random.RandomState(0)
    features = {
        "input_ids": rng.randint(0, CONFIG.vocab_size, [BATCH, LENGTH]),
        "input_mask": np.ones([BATCH, LENGTH], np.int64),
        "segment_ids": np.zeros([BATCH, LENGTH], np.int64),
        "masked_lm_positions": rng.randint(0, 7, [BATCH, PREDICTIONS]),
        "masked_lm_ids": rng.randint(0, CONFIG.vocab_size, [BATCH, PREDICTIONS]),
        "masked_lm_weights": np.array([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]], np.float32),
        "next_sentence_labels": np.array([0, 1, 1]),
    }
    features["input_mask"][0, 7:] = 0
    features["segment_ids"][0, 4:7] = 1
    features["segment_ids"][1, 6:] = 1
    features["segment_ids"][2, 11:] = 1
    return {k: v.astype(np.int32) if v.dtype == np.int64 else v for k, v in features.items()}


@functools.cache
def weights(config=CONFIG):
    """Returns weights by name, large enough that every part of the network matters."""
    with tf.Graph().as_default():
        build(is_training=False, config=config)
        shapes = {v.op.name: v.shape.as_list() for v in tf.trainable_variables()}
    rng = np.random.RandomState(1)
    values = {name: rng.normal(0, 0.3, shape) for name, shape in shapes.items()}
    values.update({n: 1 + v / 3 for n, v in values.items() if n.endswith("gamma")})
    return {name: value.astype(np.float32) for name, value in values.items()}


def build(is_training, kind="float32", config=CONFIG, dropout=None, rows=slice(None), **kwargs):
    """Returns the outputs for rows of the batch, by the numpy twin's names, and the losses."""
    features = {name: tf.constant(value[rows]) for name, value in batch().items()}
    with precision.scope(kind):
        model = modeling.BertModel(
            config,
            is_training,
            features["input_ids"],
            features["input_mask"],
            features["segment_ids"],
            dropout=dropout,
            **kwargs,
        )
        masked_lm = heads.masked_lm_logits(model, features["masked_lm_positions"])
        next_sentence = heads.next_sentence_logits(model)
    masked_lm_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.reshape(features["masked_lm_ids"], [-1]), logits=masked_lm
    )
    mask = tf.reshape(features["masked_lm_weights"], [-1])
    masked_lm_loss = tf.reduce_sum(masked_lm_loss * mask) / tf.reduce_sum(mask)
    next_sentence_loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=features["next_sentence_labels"], logits=next_sentence
        )
    )
    outputs = {
        "sequence_output": model.get_sequence_output(),
        "pooled_output": model.get_pooled_output(),
        "masked_lm_logits": masked_lm,
        "next_sentence_logits": next_sentence,
    }
    return outputs, (masked_lm_loss, next_sentence_loss)


def run(tensors, values=None):
    """Runs tensors of the default graph after setting its variables; None sets `weights()`."""
    values = weights() if values is None else values
    with tf.Session() as session:
        initializers = {v.op.name: v.initializer for v in tf.global_variables()}
        feeds = {op.inputs[1]: values[name] for name, op in initializers.items()}
        session.run(list(initializers.values()), feeds)
        return session.run(tensors)


def twin(values, config=CONFIG):
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    outputs = numpy_bert.forward(values, config, *(batch()[name] for name in names))
    names = ("masked_lm_ids", "masked_lm_weights", "next_sentence_labels")
    return outputs, numpy_bert.losses(outputs, *(batch()[name] for name in names))


@pytest.mark.parametrize(("config", "tolerance"), [(CONFIG, 1e-5), (SHARED, 2e-5)])
def test_forward_equals_the_numpy_bert(config, tolerance):
    with tf.Graph().as_default():
        outputs, losses = run(build(is_training=False, config=config), weights(config))
    expected, expected_losses = twin(weights(config), config)
    for name, value in expected.items():
        assert outputs[name].dtype == np.float32
        actual = outputs[name].reshape(value.shape)
        np.testing.assert_allclose(actual, value, rtol=0, atol=tolerance, err_msg=name)
    np.testing.assert_allclose(losses, expected_losses, rtol=0, atol=1e-5)


def gradients_of(config):
    """Returns the total loss's gradients by variable name, as float64 copies of float32 values."""
    with tf.Graph().as_default():
        _, losses = build(is_training=False, config=config)
        variables = tf.trainable_variables()
        values = run(tf.gradients(sum(losses), variables), weights(config))
    return {v.op.name: np.float64(value) for v, value in zip(variables, values, strict=True)}


@pytest.fixture(scope="module")
def gradients():
    return gradients_of(CONFIG)


def test_the_network_in_a_program_for_xla_equals_the_network_in_a_session(gradients):
    with tf.Graph().as_default() as graph:
        context = control_flow_ops.XLAControlFlowContext()
        context.Enter()
        outputs, losses = build(is_training=False)
        variables = tf.trainable_variables()
        slopes = tf.gradients(sum(losses), variables)
        context.Exit()
        assert any(op.type == "Einsum" for op in graph.get_operations())
        outputs, losses, slopes = run((outputs, losses, slopes))
    expected, expected_losses = twin(weights())
    for name, value in expected.items():
        actual = outputs[name].reshape(value.shape)
        np.testing.assert_allclose(actual, value, rtol=0, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(losses, expected_losses, rtol=0, atol=1e-5)
    for variable, slope in zip(variables, slopes, strict=True):
        name = variable.op.name
        np.testing.assert_allclose(slope, gradients[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_training_in_a_program_for_xla_equals_training_in_a_session():
    def losses_and_slopes():
        _, losses = build(is_training=True, dropout=Dropout(1, 2))
        slopes = tf.gradients(sum(losses), tf.trainable_variables())
        return [v.op.name for v in tf.trainable_variables()], losses, slopes

    with tf.Graph().as_default():
        names, losses, slopes = losses_and_slopes()
        expected_losses, expected = run((losses, slopes))
    with tf.Graph().as_default():
        context = control_flow_ops.XLAControlFlowContext()
        context.Enter()
        _, losses, slopes = losses_and_slopes()
        context.Exit()
        losses, slopes = run((losses, slopes))
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for name, slope, other in zip(names, slopes, expected, strict=True):
        np.testing.assert_allclose(slope, other, rtol=1e-4, atol=1e-6, err_msg=name)


def central_difference(direction, config=CONFIG, step=1e-5):
    """Returns the slope of the numpy BERT's loss along a direction, a dict by variable name."""

    def loss(size):
        moved = {n: np.float64(w) + size * direction.get(n, 0) for n, w in weights(config).items()}
        return sum(twin(moved, config)[1])

    return (loss(step) - loss(-step)) / (2 * step)


@pytest.mark.parametrize("seed", range(20))
def test_directional_derivatives_equal_central_differences(gradients, seed):
    rng = np.random.RandomState(seed)
    direction = {name: rng.normal(size=value.shape) for name, value in gradients.items()}
    slope = sum(np.sum(gradients[name] * direction[name]) for name in gradients)
    np.testing.assert_allclose(slope, central_difference(direction), rtol=1e-3)


def test_gradient_of_each_variable_has_the_length_of_the_steepest_slope(gradients):
    for name, gradient in gradients.items():
        length = np.linalg.norm(gradient)
        if name.endswith("key/bias"):
            # A constant that is added to all scores of a query does not change its softmax. The
            # true gradient is zero, and the computed values are rounding errors.
            assert length < 1e-6
            continue
        slope = central_difference({name: gradient / length})
        np.testing.assert_allclose(length, slope, rtol=1e-3, err_msg=name)


def nodes(graph):
    """Yields all nodes of a graph and of its function library."""
    graph_def = graph.as_graph_def()
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("kind", precision.PRECISIONS)
def test_precision_of_every_product_variable_and_gradient(kind, one_hot):
    dtype = {"float32": tf.float32, "bfloat16": tf.bfloat16}[kind]
    with tf.Graph().as_default() as graph:
        outputs, losses = build(True, kind, dropout=Dropout(1, 2), use_one_hot_embeddings=one_hot)
        variables = tf.trainable_variables()
        gradients = tf.gradients(sum(losses), variables)
        products = [node for node in nodes(graph) if "MatMul" in node.op]
        # The forward pass has 6 matrix and 2 batch products per layer, 1 in the pooler, 3 in the
        # heads, and 2 one-hot lookups. The backward pass has as many for each of the two operands.
        assert len(products) == 3 * (2 * 8 + 1 + 3 + 2 * one_hot)
        assert {node.attr["T"].type for node in products} == {dtype.as_datatype_enum}
        assert {v.dtype.base_dtype for v in tf.global_variables()} == {tf.float32}
        assert {type(g) for g in gradients} == {type(outputs["pooled_output"])}  # dense
        assert {g.dtype for g in gradients} == {tf.float32}
        assert {loss.dtype for loss in losses} == {tf.float32}
        assert {name: tensor.dtype for name, tensor in outputs.items()} == {
            "sequence_output": dtype,
            "pooled_output": dtype,
            "masked_lm_logits": tf.float32,
            "next_sentence_logits": tf.float32,
        }
        for node in nodes(graph):
            if node.op in ("Softmax", "Rsqrt", "Mean", "SquaredDifference"):
                assert node.attr["T"].type == tf.float32.as_datatype_enum, node.name
        bfloat16 = tf.bfloat16.as_datatype_enum
        used = any(a.type == bfloat16 for node in nodes(graph) for a in node.attr.values())
        assert used == (kind == "bfloat16")


def test_bfloat16_is_near_float32():
    results = []
    for kind in precision.PRECISIONS:
        with tf.Graph().as_default():
            results.append(run(build(False, kind)[1]))
    assert results[0] != results[1]
    np.testing.assert_allclose(results[1], results[0], rtol=0.03)


def test_bfloat16_gradients_of_many_rows_are_near_float32():
    rng = np.random.RandomState(3)
    input_ids = rng.randint(0, CONFIG.vocab_size, [256, 16]).astype(np.int32)
    slopes = rng.normal(size=[256, 16, CONFIG.hidden_size]).astype(np.float32)

    def gradients(kind):
        with tf.Graph().as_default():
            with precision.scope(kind):
                model = modeling.BertModel(CONFIG, False, input_ids)
            variables = [v for v in tf.trainable_variables() if "pooler" not in v.name]
            output = tf.cast(model.get_sequence_output(), tf.float32)
            found = tf.gradients(output, variables, slopes)
            found = run([tf.convert_to_tensor(gradient) for gradient in found])
            return dict(zip([v.op.name for v in variables], found, strict=True))

    exact = gradients("float32")
    for name, gradient in gradients("bfloat16").items():
        error = np.linalg.norm(gradient - exact[name])
        # The softmax does not see the bias of the keys, whose gradient is 0.
        size = np.linalg.norm(exact[name.replace("/key/bias", "/query/bias")])
        assert error < 0.03 * size, name


ENCODER = """
bert/encoder/layer_{0}/attention/self/query/kernel 24 24
bert/encoder/layer_{0}/attention/self/query/bias 24
bert/encoder/layer_{0}/attention/self/key/kernel 24 24
bert/encoder/layer_{0}/attention/self/key/bias 24
bert/encoder/layer_{0}/attention/self/value/kernel 24 24
bert/encoder/layer_{0}/attention/self/value/bias 24
bert/encoder/layer_{0}/attention/output/dense/kernel 24 24
bert/encoder/layer_{0}/attention/output/dense/bias 24
bert/encoder/layer_{0}/attention/output/LayerNorm/beta 24
bert/encoder/layer_{0}/attention/output/LayerNorm/gamma 24
bert/encoder/layer_{0}/intermediate/dense/kernel 24 48
bert/encoder/layer_{0}/intermediate/dense/bias 48
bert/encoder/layer_{0}/output/dense/kernel 48 24
bert/encoder/layer_{0}/output/dense/bias 24
bert/encoder/layer_{0}/output/LayerNorm/beta 24
bert/encoder/layer_{0}/output/LayerNorm/gamma 24
"""
VARIABLES = f"""
bert/embeddings/word_embeddings 40 24
bert/embeddings/token_type_embeddings 2 24
bert/embeddings/position_embeddings 16 24
bert/embeddings/LayerNorm/beta 24
bert/embeddings/LayerNorm/gamma 24
{ENCODER.format(0)}{ENCODER.format(1)}
bert/pooler/dense/kernel 24 24
bert/pooler/dense/bias 24
cls/predictions/transform/dense/kernel 24 24
cls/predictions/transform/dense/bias 24
cls/predictions/transform/LayerNorm/beta 24
cls/predictions/transform/LayerNorm/gamma 24
cls/predictions/output_bias 40
cls/seq_relationship/output_weights 2 24
cls/seq_relationship/output_bias 2
""".split("\n")
VARIABLES = [line for line in VARIABLES if line]


@pytest.mark.parametrize("kind", precision.PRECISIONS)
def test_variables_are_those_of_google_research_bert(kind):
    with tf.Graph().as_default():
        build(False, kind)
        names = [" ".join([v.op.name, *map(str, v.shape)]) for v in tf.trainable_variables()]
        assert names == VARIABLES
        assert {v.op.type for v in tf.global_variables()} == {"VarHandleOp"}


def initial_values(kind="float32", seed=5, before=0):
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        for _ in range(before):
            tf.random.uniform([2])
        build(False, kind)
        variables = tf.global_variables()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            values = session.run([variable.read_value() for variable in variables])
        return {v.op.name: value for v, value in zip(variables, values, strict=True)}


def test_initial_values_depend_on_seed_and_name_alone():
    base = initial_values()
    for name, value in initial_values("bfloat16", before=3).items():
        np.testing.assert_array_equal(value, base[name], err_msg=name)
    other = initial_values(seed=6)
    drawn = [n for n in base if n.endswith(("kernel", "embeddings", "output_weights"))]
    assert len(drawn) == 18
    for name in drawn:
        assert np.mean(other[name] != base[name]) > 0.99, name
    firsts = {float(base[name].flat[0]) for name in drawn}
    assert len(firsts) == len(drawn)
    for name in set(base) - set(drawn):
        assert np.all(base[name] == (1 if name.endswith("gamma") else 0)), name


@pytest.mark.parametrize("kind", precision.PRECISIONS)
def test_one_hot_lookup_equals_gather(kind):
    results = []
    for one_hot in (False, True):
        with tf.Graph().as_default():
            _, losses = build(False, kind, use_one_hot_embeddings=one_hot)
            table = tf.trainable_variables()[0]
            results.append(run([*losses, *tf.gradients(sum(losses), table)]))
    # In bfloat16 the one-hot product rounds the rows, and the table's gradient is a bfloat16 sum.
    tolerance = {"float32": 1e-6, "bfloat16": 0.03}[kind]
    for gathered, one_hot in zip(*results, strict=True):
        scale = np.max(np.abs(gathered))
        np.testing.assert_allclose(one_hot, gathered, rtol=0, atol=tolerance * scale)


def test_defaults_are_a_full_mask_and_the_first_segment():
    results = []
    for explicit in (False, True):
        with tf.Graph().as_default():
            ids = tf.constant(batch()["input_ids"])
            more = (tf.ones_like(ids), tf.zeros_like(ids)) if explicit else ()
            model = modeling.BertModel(CONFIG, False, ids, *more)
            results.append(run(model.get_sequence_output()))
    np.testing.assert_array_equal(*results)


def test_padding_does_not_reach_the_tokens():
    changed = dict(batch(), input_ids=batch()["input_ids"].copy())
    changed["input_ids"][0, 7:] = 1
    outputs = []
    for features in (batch(), changed):
        with tf.Graph().as_default():
            ids, mask = tf.constant(features["input_ids"]), tf.constant(features["input_mask"])
            model = modeling.BertModel(CONFIG, False, ids, mask)
            outputs.append(run(model.get_sequence_output()))
    np.testing.assert_array_equal(outputs[0][:, :7], outputs[1][:, :7])
    assert np.all(np.any(outputs[0][0, 7:] != outputs[1][0, 7:], axis=-1))


def test_unknown_batch_size_and_getters():
    with tf.Graph().as_default():
        ids = tf.placeholder(tf.int32, [None, LENGTH])
        model = modeling.BertModel(CONFIG, False, ids, scope="other")
        assert model.get_sequence_output().shape.as_list() == [None, LENGTH, 24]
        assert model.get_embedding_output().shape.as_list() == [None, LENGTH, 24]
        assert model.get_pooled_output().shape.as_list() == [None, 24]
        assert model.get_embedding_table().shape.as_list() == [40, 24]
        layers = model.get_all_encoder_layers()
        assert len(layers) == 2 and layers[-1] is model.get_sequence_output()
        assert tf.trainable_variables()[0].op.name == "other/embeddings/word_embeddings"


def test_reuse_builds_the_same_network():
    with tf.Graph().as_default():
        results = [build(False)[1]]
        with tf.variable_scope("", reuse=True):
            results.append(build(False)[1])
        assert len(tf.trainable_variables()) == len(VARIABLES)
        first, second = run(results)
    assert first == second


def dropped(step=2, first=0, last=BATCH, is_training=True):
    with tf.Graph().as_default():
        dropout = Dropout(1, step, first_row=first)
        outputs, _ = build(is_training, dropout=dropout, rows=slice(first, last))
        return run(outputs["sequence_output"])


def test_dropout_depends_on_the_step_and_not_on_the_split_of_a_batch():
    whole = dropped()
    np.testing.assert_array_equal(dropped(), whole)
    assert np.all(np.any(dropped(step=3) != whole, axis=-1))
    parts = np.concatenate([dropped(last=2), dropped(first=2)])
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-5)


def test_dropout_is_off_outside_training():
    with tf.Graph().as_default():
        plain = run(build(False)[0]["sequence_output"])
    np.testing.assert_array_equal(dropped(is_training=False), plain)


@pytest.mark.parametrize("is_training", [False, True])
def test_another_function_cannot_be_the_dropout(is_training):
    message = r"^BertModel: dropout=<function .* must be a bert_estimator\.layers\.dropout\.Dropout"
    with tf.Graph().as_default(), pytest.raises(TypeError, match=message):
        build(is_training, dropout=lambda x, rate: x * 0.5)


def test_training_without_dropout_needs_no_generator():
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with tf.Graph().as_default() as graph:
        build(True, config=config)
        draws = [op.name for op in graph.get_operations() if op.type.startswith("StatelessRandom")]
    assert all("/Initializer/" in name for name in draws)


def test_training_with_dropout_needs_a_generator():
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"pass dropout=.*Dropout\(seed"):
        build(True)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([[2, 17]], r"input_ids \(.*\): sequences of 17 tokens, but max_position_embeddings=16"),
        ([[2]], r"input_ids \(.*\) has shape .*not \[batch, sequence length\]"),
        (
            [[2, 8], [2, 9]],
            r"input_mask has shape \(2, 9\); it must have input_ids' shape \(2, 8\)",
        ),
        ([[2, 8], [2, 8], [1, 8]], r"token_type_ids has shape \(1, 8\)"),
    ],
)
def test_bad_shapes(shapes, message):
    with tf.Graph().as_default():
        inputs = [tf.placeholder(tf.int32, shape) for shape in shapes]
        with pytest.raises(ValueError, match=message):
            modeling.BertModel(CONFIG, False, *inputs)


def test_the_length_may_be_unknown_until_the_graph_runs():
    """This is for inference: what training draws for a row depends on the row's shape."""
    ids, mask = np.random.default_rng(0).integers(0, 9, [2, 3, 7]).astype(np.int32)
    outputs = []
    for length in (7, None):
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(1)
            inputs = [tf.placeholder(tf.int32, [None, length]) for _ in range(2)]
            model = modeling.BertModel(CONFIG, False, *inputs, use_one_hot_embeddings=True)
            session.run(tf.global_variables_initializer())
            layers = [model.get_embedding_output(), *model.get_all_encoder_layers()]
            feed = dict(zip(inputs, (ids, mask > 4), strict=True))
            outputs.append(session.run([*layers, model.get_pooled_output()], feed))
    for static, dynamic in zip(*outputs, strict=True):
        np.testing.assert_allclose(dynamic, static, rtol=0, atol=1e-6)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="after the first one static; se"):
        ids = tf.placeholder(tf.int32, [None, None])
        modeling.BertModel(CONFIG, True, ids, dropout=Dropout(1, 2))


def test_graphs_are_let_go_of():
    def graph_of_a_network():
        with tf.Graph().as_default() as graph:
            _, losses = build(True, dropout=Dropout(1, 2))
            tf.gradients(sum(losses), tf.trainable_variables())
        return weakref.ref(graph)

    graph = graph_of_a_network()
    gc.collect()
    assert graph() is None
