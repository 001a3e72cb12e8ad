"""Input receivers: what they hold, under which names, and what they refuse."""

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.tpu import serving


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def test_tensors_without_names_get_upstream_s():
    x = tf.ones([2])
    receiver = serving.ServingInputReceiver(x, x, {"other": x})
    assert receiver.features == {"feature": x}
    assert receiver.receiver_tensors == {"input": x}
    assert receiver.receiver_tensors_alternatives == {"other": {"input": x}}
    alone = serving.TensorServingInputReceiver(x, x)
    assert alone.features is x
    assert alone.receiver_tensors == {"input": x}
    assert alone.receiver_tensors_alternatives is None
    assert serving.UnsupervisedInputReceiver(x, x).features == {"feature": x}
    both = serving.SupervisedInputReceiver({"a": x}, x, {"a": x})
    assert both == ({"a": x}, x, {"a": x})


def test_dicts_and_sparse_tensors_are_kept():
    x = tf.placeholder(tf.float32, [2])
    sparse = tf.sparse.from_dense(x)
    receiver = serving.ServingInputReceiver({"a": sparse, 3: x}, {"x": x})
    assert receiver.features == {"a": sparse, 3: x}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda x: (None, x), "features must be given"),
        (lambda x: (x, None), "receiver_tensors must be given"),
        (lambda x: ({"a": 3}, x), "features: 'a' must be a Tensor.*not 3"),
        (lambda x: ({"a": x}, {3: x}), "receiver_tensors must be named by strings, not by 3"),
        (lambda x: (x, x, [x]), "receiver_tensors_alternatives must be a dict"),
        (lambda x: (x, x, {"a": {"b": 3}}), r"alternatives\['a'\]: 'b' must be a Tensor"),
    ],
)
def test_what_is_no_tensor_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        serving.ServingInputReceiver(*arguments(tf.ones([2])))


def test_a_single_tensor_is_no_dict():
    x = tf.ones([2])
    with pytest.raises(ValueError, match="features must be a tensor"):
        serving.TensorServingInputReceiver({"x": x}, x)
    with pytest.raises(ValueError, match="labels must be given"):
        serving.SupervisedInputReceiver(x, None, x)


@pytest.mark.parametrize("size", [None, 3])
def test_raw_features_are_placeholders_of_any_batch_or_of_one(size):
    features = {"a": tf.ones([2, 5], tf.bfloat16), "b": tf.constant(["x", "y"])}
    receiver = serving.build_raw_serving_input_receiver_fn(features, size)()
    assert receiver.features == receiver.receiver_tensors
    assert receiver.features["a"].shape.as_list() == [size, 5]
    assert receiver.features["a"].dtype == tf.bfloat16
    assert receiver.features["b"].dtype == tf.string
    assert receiver.features["b"].op.type == "Placeholder"


def test_parsed_examples():
    spec = {"a": tf.FixedLenFeature([3], tf.int64)}
    receiver = serving.build_parsing_serving_input_receiver_fn(spec, 2)()
    assert receiver.features["a"].shape.as_list() == [2, 3]
    assert list(receiver.receiver_tensors) == ["examples"]
    assert receiver.receiver_tensors["examples"].op.name == "input_example_tensor"


def test_supervised_receivers():
    a, b = tf.ones([2, 5]), tf.ones([2])
    receiver = serving.build_raw_supervised_input_receiver_fn({"a": a}, b)()
    assert list(receiver.receiver_tensors) == ["a", "label"]
    assert receiver.labels.shape.as_list() == [None]
    receiver = serving.build_raw_supervised_input_receiver_fn(a, {"b": b}, 4)()
    assert list(receiver.receiver_tensors) == ["input", "b"]
    assert receiver.features.shape.as_list() == [4, 5]
    with pytest.raises(ValueError, match=r"distinct names, but share \['a'\]"):
        serving.build_raw_supervised_input_receiver_fn({"a": a}, {"a": b})


def test_supervised_receivers_from_an_input_fn():
    def input_fn(size):
        return tf.data.Dataset.from_tensors(({"x": tf.ones([size, 3])}, tf.ones([size])))

    make = serving.build_supervised_input_receiver_fn_from_input_fn
    receiver = make(input_fn, size=4)()
    assert receiver.features["x"].shape.as_list() == [None, 3]
    assert receiver.labels.shape.as_list() == [None]
    receiver = make(lambda: (tf.ones([2, 3]), {"y": tf.ones([2])}))()
    assert list(receiver.receiver_tensors) == ["input", "y"]
