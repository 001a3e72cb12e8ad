"""Tests tf.contrib.predictor on saved models and on an estimator."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.legacy.stand_ins import saved_predictor


@pytest.fixture
def saved(tmp_path):
    """Writes a model that gives 2 x + shift, whose shift has the default 1, and x itself."""
    path = str(tmp_path / "saved")
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None], "x")
        shift = tf.placeholder_with_default(1.0, [], "shift")
        factor = tf.get_variable("factor", initializer=2.0)
        signatures = {
            name: tf.saved_model.predict_signature_def({"x": x, "shift": shift}, {"y": y})
            for name, y in (("serving_default", factor * x + shift), ("same", tf.identity(x, "i")))
        }
        session.run(tf.global_variables_initializer())
        builder = tf.saved_model.Builder(path)
        builder.add_meta_graph_and_variables(session, ["serve", "mine"], signatures)
        builder.save()
    return path


def test_a_saved_model_answers_by_names(saved):
    predict = saved_predictor.from_saved_model(saved, tags="serve,mine")
    np.testing.assert_allclose(predict({"x": [1, 2]})["y"], [3, 5])
    np.testing.assert_allclose(predict({"x": [1, 2], "shift": 0})["y"], [2, 4])
    assert predict.graph is predict.session.graph
    assert sorted(predict.feed_tensors) == ["shift", "x"] and list(predict.fetch_tensors) == ["y"]
    with pytest.raises(ValueError, match=r"has \['z'\], but the inputs are \['shift', 'x'\]"):
        predict({"x": [1], "z": 2})


def test_which_outputs(saved):
    def ask(**arguments):
        predict = saved_predictor.from_saved_model(saved, tags=["serve", "mine"], **arguments)
        return predict({"x": [1, 2]})

    np.testing.assert_allclose(ask(signature_def_key="same")["y"], [1, 2])
    names = {"input_names": {"x": "x:0"}, "output_names": {"out": "i:0"}}
    np.testing.assert_allclose(ask(**names)["out"], [1, 2])
    graph = tf.Graph()
    assert ask(graph=graph)["y"].tolist() == [3, 5] and graph.get_operations()
    with pytest.raises(ValueError, match=r"the signature 'no'; it has \['same', 'serving_default'"):
        ask(signature_def_key="no")
    with pytest.raises(ValueError, match="give both input_names and output_names"):
        ask(input_names={"x": "x:0"})
    with pytest.raises(ValueError, match="give one of signature_def_key, signature_def, and input"):
        ask(signature_def_key="same", **names)


def test_an_estimator_answers(tmp_path):
    def model_fn(features, labels, mode):
        w = tf.get_variable("w", initializer=3.0)
        y = w * features["x"]
        if mode == tpu.ModeKeys.PREDICT:
            return tpu.EstimatorSpec(mode, predictions={"y": y})
        step = tf.train.get_global_step()
        train_op = tf.group(w.assign_add(1.0), step.assign_add(1))
        return tpu.EstimatorSpec(mode, loss=tf.reduce_mean(y), train_op=train_op)

    def input_fn():
        return tf.data.Dataset.from_tensors(({"x": [1.0]}, [0.0])).repeat()

    estimator = tpu.Estimator(model_fn, str(tmp_path))
    estimator.train(input_fn, steps=2)
    receiver = tpu.serving.build_raw_serving_input_receiver_fn(
        {"x": tf.TensorSpec([None], tf.float32)}
    )
    predict = saved_predictor.from_estimator(estimator, receiver)
    np.testing.assert_allclose(predict({"x": [1, 2]})["y"], [5, 10])
