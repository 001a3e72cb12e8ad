import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import precision


def test_float32_scope_changes_nothing():
    with tf.Graph().as_default() as graph, tf.variable_scope("net", use_resource=True):
        with precision.scope("float32"):
            w = tf.get_variable("w", [2])
            assert precision.compute_dtype() == tf.float32
        assert w.dtype.base_dtype == tf.float32
        assert w.name == "net/w:0"
        assert not [op for op in graph.get_operations() if op.type == "Cast"]


def test_bfloat16_scope_stores_float32_and_reads_bfloat16():
    with tf.Graph().as_default(), tf.variable_scope("net", use_resource=True):
        with precision.scope("bfloat16"):
            assert precision.compute_dtype() == tf.bfloat16
            by_default = tf.get_variable("by_default", [2])
            by_request = tf.get_variable("by_request", [2], tf.bfloat16)
            stays = tf.get_variable("stays", [2], tf.float32)
            counter = tf.get_variable("counter", [2], tf.int32, tf.zeros_initializer())
        assert precision.compute_dtype() == tf.float32
        assert [t.dtype.base_dtype for t in (by_default, by_request, stays, counter)] == [
            tf.bfloat16,
            tf.bfloat16,
            tf.float32,
            tf.int32,
        ]
        assert [(v.op.name, v.dtype.base_dtype) for v in tf.global_variables()] == [
            ("net/by_default", tf.float32),
            ("net/by_request", tf.float32),
            ("net/stays", tf.float32),
            ("net/counter", tf.int32),
        ]
        assert {v.op.type for v in tf.global_variables()} == {"VarHandleOp"}


def test_names_are_the_same_at_any_depth_and_in_both_precisions():
    def names(kind):
        with tf.Graph().as_default():
            with precision.scope(kind):
                tf.get_variable("root", [1])
                with tf.variable_scope("a"), precision.scope(kind), tf.variable_scope("b"):
                    tf.get_variable("leaf", [1])
            return [v.op.name for v in tf.global_variables()]

    assert names("float32") == names("bfloat16") == ["root", "a/b/leaf"]


def test_initializer_is_evaluated_in_float32():
    with tf.Graph().as_default():
        with precision.scope("bfloat16"), tf.variable_scope("", use_resource=True):
            read = tf.get_variable("w", [1], initializer=tf.constant_initializer(0.1))
        (stored,) = tf.global_variables()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            assert session.run(stored)[0] == np.float32(0.1)
            assert float(session.run(read)[0]) == 0.10009765625  # 0.1 in bfloat16


def test_variables_that_are_stored_as_they_are_read():
    with tf.Graph().as_default() as graph:
        with precision.stored_as_read(), precision.scope("bfloat16"):
            tf.get_variable("by_default", [2])
            tf.get_variable("stays", [2], tf.float32)
        with precision.stored_as_read(), precision.scope("float32"):
            tf.get_variable("float32", [2])
        with precision.scope("bfloat16"):
            assert tf.get_variable("after", [2]).dtype == tf.bfloat16
        assert {v.op.name: v.dtype.base_dtype for v in tf.global_variables()} == {
            "by_default": tf.bfloat16,
            "stays": tf.float32,
            "float32": tf.float32,
            "after": tf.float32,
        }
        assert [op.name for op in graph.get_operations() if op.type == "Cast"] == ["after_bfloat16"]


def test_reuse_finds_the_stored_variable():
    with tf.Graph().as_default():
        for _ in range(2):
            with (
                precision.scope("bfloat16"),
                tf.variable_scope("net", reuse=tf.AUTO_REUSE, use_resource=True),
            ):
                assert tf.get_variable("w", [2]).dtype == tf.bfloat16
        assert len(tf.global_variables()) == 1


def test_gradient_of_a_variable_is_float32_and_products_are_bfloat16():
    with tf.Graph().as_default() as graph:
        with precision.scope("bfloat16"), tf.variable_scope("net", use_resource=True):
            w = tf.get_variable("w", [3, 2])
            y = precision.to_float32(tf.matmul(tf.ones([4, 3], tf.bfloat16), w))
        (gradient,) = tf.gradients(tf.reduce_sum(y), tf.trainable_variables())
        assert gradient.dtype == tf.float32
        products = {op.get_attr("T") for op in graph.get_operations() if op.type == "MatMul"}
        assert products == {tf.bfloat16}


@pytest.mark.parametrize("ours_outside", [True, False])
def test_composes_with_the_tpu_scope(ours_outside):
    outer, inner = tf.tpu.bfloat16_scope(), precision.scope("bfloat16")
    if ours_outside:
        outer, inner = inner, outer
    with tf.Graph().as_default():
        with outer, inner:
            requested = tf.get_variable("requested", [2], tf.bfloat16)
            stays = tf.get_variable("stays", [2], tf.float32)
        assert requested.dtype == tf.bfloat16
        assert stays.dtype.base_dtype == tf.float32
        assert {v.dtype.base_dtype for v in tf.global_variables()} == {tf.float32}


def test_keeps_a_custom_getter_around_it():
    seen = []

    def getter(getter, name, *args, **kwargs):
        seen.append((name, kwargs["dtype"]))
        return getter(name, *args, **kwargs)

    with tf.Graph().as_default():
        with tf.variable_scope("net", custom_getter=getter), precision.scope("bfloat16"):
            tf.get_variable("w", [2])
        assert seen == [("net/w", tf.float32)]


def test_to_float32_casts_only_bfloat16():
    with tf.Graph().as_default():
        outputs = precision.to_float32(
            {
                "logits": tf.zeros([2], tf.bfloat16),
                "pair": (tf.zeros([1], tf.int32), tf.zeros([1], tf.float64)),
            }
        )
        assert outputs["logits"].dtype == tf.float32
        assert outputs["pair"][0].dtype == tf.int32
        assert outputs["pair"][1].dtype == tf.float64
        kept = tf.zeros([1])
        assert precision.to_float32(kept) is kept


def test_unknown_precision():
    with (
        pytest.raises(ValueError, match=r"precision='float16'.*choose one of float32, bfloat16"),
        precision.scope("float16"),
    ):
        pass
