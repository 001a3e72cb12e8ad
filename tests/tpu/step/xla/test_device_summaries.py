"""v1 summaries of a model on devices: which are written, of which values."""

import pytest
import tensorflow.compat.v1 as tf
import toy

pytestmark = pytest.mark.usefixtures("xla_runtime")


def test_every_kind_is_written_with_what_the_first_core_has(tmp_path):
    def fields(features, loss):
        x = features["x"]
        tf.summary.scalar("of_a_core", tf.reduce_sum(x))
        tf.summary.scalar("constant", tf.constant(7.0))
        with tf.name_scope("scope"):
            tf.summary.scalar("scalar", loss)
        tf.summary.image("image", tf.cast(tf.reshape(x, [1, 1, -1, 1]), tf.uint8))
        tf.summary.text("text", tf.constant("a text"))
        return {}

    toy.make_estimator(
        tmp_path, toy.make_model_fn(fields), master="rehearse:2", save_summary_steps=1,
        iterations_per_loop=2,
    ).train(toy.input_fn, max_steps=4)  # fmt: skip
    rows = toy.BATCH_SIZE // 2
    assert toy.scalars(tmp_path, "of_a_core") == [(2, 2.0 * rows), (4, 4.0 * rows)]
    assert toy.scalars(tmp_path, "constant") == [(2, 7), (4, 7)]
    assert toy.scalars(tmp_path, "scope/scalar") == [(2, 2), (4, 4)]
    found = {tag: value for step, tag, value in toy.events(tmp_path) if step == 4}
    assert (found["image/image/0"].image.height, found["image/image/0"].image.width) == (1, rows)
    assert tf.make_ndarray(found["text"].tensor).tolist() == b"a text"
