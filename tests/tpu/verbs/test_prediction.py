"""Prediction: every example once and in order, on any number of cores; its errors; its end."""

import contextlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import Visits, make_estimator, threads, wait_until

from bert_estimator import tpu

EXAMPLES = 13

on_8_cores_too = pytest.mark.parametrize(
    "rules", ["local", "session", "rehearse:2", "rehearse:8"], indirect=True
)


def model_fn(features, labels, mode, params):
    assert labels is None
    weight = tf.get_variable("w", initializer=3.0)
    hidden = tf.cast(features["x"], tf.float32) * weight
    predictions = {
        "product": hidden,
        "pair": tf.stack([hidden, -hidden], 1),
        "number": features["x"],
    }
    return tpu.TPUEstimatorSpec(mode, predictions=predictions)


def make(folder, model_fn=model_fn, **keywords):
    return make_estimator(folder, model_fn, **{"predict_batch_size": 8, **keywords})


def input_fn(params, examples=EXAMPLES):
    data = tf.data.Dataset.range(examples).map(lambda i: ({"x": tf.cast(i, tf.int32)}, i))
    return data.batch(params["batch_size"])


@on_8_cores_too
@pytest.mark.parametrize("examples", [13, 16, 3, 0])
def test_each_example_once_in_order(tmp_path, rules, examples):
    found = list(make(tmp_path, **rules).predict(lambda params: input_fn(params, examples)))
    assert [each["number"] for each in found] == list(range(examples))
    for i, each in enumerate(found):
        assert set(each) == {"number", "product", "pair"}
        assert each["product"] == 3.0 * i
        np.testing.assert_array_equal(each["pair"], [3.0 * i, -3.0 * i])


@on_8_cores_too
def test_batches_and_keys(tmp_path, rules):
    batches = make(tmp_path, **rules).predict(
        input_fn, predict_keys=["number", "absent"], yield_single_examples=False
    )
    found = [{key: value.tolist() for key, value in batch.items()} for batch in batches]
    assert found == [{"number": [*range(8)]}, {"number": [*range(8, 13)]}]


@pytest.mark.parametrize("examples", [13, 16, 3, 0])
@pytest.mark.parametrize("mode", ["PER_HOST_V2", "BROADCAST"])
@pytest.mark.usefixtures("xla_runtime")
def test_each_example_once_however_cores_are_fed(tmp_path, mode, examples):
    fed = {"per_host_input_for_training": getattr(tpu.InputPipelineConfig, mode)}
    estimator = make(tmp_path, master="rehearse:2", **fed)
    found = list(estimator.predict(lambda params: input_fn(params, examples)))
    assert [each["number"] for each in found] == list(range(examples))


def test_batches_of_any_size_up_to_the_full_one(tmp_path, rules):
    def ragged(params):
        sizes = tf.data.Dataset.from_tensor_slices([3, 8, 1])
        return sizes.map(lambda n: {"x": n * tf.ones([n], tf.int32)})

    found = [each["number"] for each in make(tmp_path, **rules).predict(ragged)]
    assert found == [3] * 3 + [8] * 8 + [1]


def test_a_trained_checkpoint_or_a_given_one(tmp_path, rules, warned):
    def trained(features, labels, mode, params):
        weight = tf.get_variable("w", initializer=0.0)
        step = tf.train.get_global_step()
        if mode == tpu.ModeKeys.TRAIN:
            loss = tf.reduce_mean(tf.cast(features["x"], tf.float32))
            update = weight.assign_add(1.0)
            train_op = tf.group(tpu.cross_replica_sum(loss), update, step.assign_add(1))
            return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
        ones = tf.ones_like(features["x"], tf.float32)
        return tpu.TPUEstimatorSpec(mode, predictions={"w": weight * ones})

    estimator = make(
        tmp_path, trained, train_batch_size=8, save_checkpoints_steps=2, iterations_per_loop=2,
        **rules,
    )  # fmt: skip
    assert {each["w"] for each in estimator.predict(input_fn)} == {0.0}
    assert any("predicting with newly initialized variables" in text for text in warned())

    def endless(params):
        data = tf.data.Dataset.range(8).repeat().map(lambda i: ({"x": tf.cast(i, tf.int32)}, i))
        return data.batch(8, drop_remainder=True)

    estimator.train(endless, steps=4)
    assert {each["w"] for each in estimator.predict(input_fn)} == {4.0}
    given = estimator.predict(input_fn, checkpoint_path=f"{tmp_path}/model.ckpt-2")
    assert {each["w"] for each in given} == {2.0}
    with pytest.raises(ValueError, match="checkpoint_path='nowhere': there is no such checkpoint"):
        estimator.predict(input_fn, checkpoint_path="nowhere")  # at the call


def test_hooks_visit_each_batch(tmp_path, rules):
    hook, of_spec = Visits(), Visits()

    def with_hook(features, labels, mode, params):
        return model_fn(features, labels, mode, params)._replace(prediction_hooks=(of_spec,))

    assert len(list(make(tmp_path, with_hook, **rules).predict(input_fn, hooks=[hook]))) == 13
    assert hook.fetched == of_spec.fetched == [(0, 3.0), (0, 3.0)]
    assert hook.calls[-1] == "end"


def test_a_hook_may_end_it(tmp_path, rules):
    assert len(list(make(tmp_path, **rules).predict(input_fn, hooks=[Visits(stop_at=0)]))) == 8


def test_closed_early_it_leaves_nothing_behind(tmp_path, rules):
    def endless(params):
        return tf.data.Dataset.range(10**6).map(lambda i: {"x": tf.fill([8], i)})

    hook = Visits()
    graph = tf.get_default_graph()
    predictions = make(tmp_path, **rules).predict(endless, hooks=[hook])
    assert next(predictions)["product"] == 0.0
    assert tf.get_default_graph() is graph
    predictions.close()
    assert "end" not in hook.calls
    wait_until(lambda: not threads("infeed") and not threads("outfeed"))


def test_two_at_once(tmp_path, rules):
    estimator = make(tmp_path, **rules)
    pairs = zip(estimator.predict(input_fn), estimator.predict(input_fn), strict=True)
    assert [(a["number"], b["number"]) for a, b in pairs] == [(i, i) for i in range(13)]


def test_in_local_mode_predictions_may_be_a_tensor_and_inputs_tensors(tmp_path):
    def tensor_model_fn(features, mode, params):
        return tpu.EstimatorSpec(mode, predictions=features * 2)

    estimator = make(tmp_path, tensor_model_fn, use_tpu=False, predict_batch_size=2)
    data = tf.data.Dataset
    assert list(estimator.predict(lambda params: data.range(5).batch(2))) == [0, 2, 4, 6, 8]
    with pytest.raises(ValueError, match="the model's predictions are not a dict"):
        next(estimator.predict(lambda params: data.range(5).batch(2), predict_keys=["a"]))


def test_keys_that_fit_nothing(tmp_path, rules):
    with pytest.raises(ValueError, match=r"\['a'\]: none of them.*\['number', 'pair', 'product'\]"):
        next(make(tmp_path, **rules).predict(input_fn, predict_keys=["a"]))


def test_lengths_that_differ(tmp_path):
    def uneven(features, mode, params):
        predictions = {"a": features["x"], "b": tf.zeros([2])}
        return tpu.TPUEstimatorSpec(mode, predictions=predictions)

    unlabelled = lambda params: tf.data.Dataset.range(3).map(lambda i: {"x": i}).batch(3)  # noqa: E731
    estimator = make(tmp_path, uneven, use_tpu=False)
    (batch,) = estimator.predict(unlabelled, yield_single_examples=False)
    assert batch["b"].shape == (2,)
    with pytest.raises(ValueError, match=r"same batch length.*'a': 3, 'b': 2"):
        list(estimator.predict(unlabelled))


class TestTpuRules:
    def test_the_batch_size_is_needed_at_once(self, tmp_path):
        with pytest.raises(ValueError, match="predict needs predict_batch_size"):
            make(tmp_path, predict_batch_size=None).predict(input_fn)

    def test_tensors_are_no_input(self, tmp_path):
        with pytest.raises(TypeError, match=r"returns a tf.data.Dataset.*not dict"):
            next(make(tmp_path).predict(lambda params: {"x": tf.zeros([8])}))

    def test_larger_batches_are_refused(self, tmp_path):
        with pytest.raises(tf.errors.InvalidArgumentError, match="batch of more than 8 rows"):
            list(make(tmp_path).predict(lambda params: input_fn({"batch_size": 9})))

    def test_other_dimensions_must_be_static(self, tmp_path):
        def ragged(params):
            return input_fn(params).map(
                lambda x, y: {"x": x["x"], "row": tf.zeros([8, tf.size(y)])}
            )

        with pytest.raises(ValueError, match=r"features\['row'\] has shape \(8, None\)"):
            next(make(tmp_path).predict(ragged))

    def test_every_feature_has_a_batch(self, tmp_path):
        def scalar(params):
            return tf.data.Dataset.range(3).map(lambda i: {"x": i})

        with pytest.raises(ValueError, match="whose first dimension is the batch"):
            next(make(tmp_path).predict(scalar))

    @pytest.mark.parametrize(
        ("predictions", "kind", "message"),
        [
            (lambda x: x, TypeError, "must be a dict of tensors"),
            (lambda x: {"a": tf.zeros([])}, ValueError, r"predictions\['a'\] has shape \(\)"),
            (lambda x: {"a": tf.zeros([3])}, ValueError, r"the batch of one core \(8\)"),
            (lambda x: {"a": tf.boolean_mask(x, x > 0)}, ValueError, r"\(None,\): .*must be known"),
        ],
    )
    def test_predictions_have_the_batch_first(self, tmp_path, predictions, kind, message):
        def model_fn(features, mode, params):
            return tpu.TPUEstimatorSpec(mode, predictions=predictions(features["x"]))

        with pytest.raises(kind, match=message):
            next(make(tmp_path, model_fn).predict(input_fn))

    def test_a_plain_spec_is_refused(self, tmp_path):
        def plain(features, mode, params):
            return tpu.EstimatorSpec(mode, predictions={"x": features["x"]})

        with pytest.raises(RuntimeError, match="must return a TPUEstimatorSpec in mode 'infer'"):
            next(make(tmp_path, plain).predict(input_fn))


@pytest.mark.parametrize(
    "read",
    [
        lambda data: tf.data.make_one_shot_iterator(data).get_next(),
        lambda data: 2 * tf.data.make_one_shot_iterator(data).get_next(),
        lambda data: tf.py_func(lambda: np.ones(2, np.float32), [], tf.float32),
        lambda data: tf.train.batch([tf.ones([])], 2),
        lambda data: data,
        lambda data: tf.constant([1.0, 2.0]),
    ],
    ids=["iterator", "computed", "Python", "queue", "dataset", "endless"],
)
def test_only_what_cannot_end_is_warned_of(request, tmp_path, warned, read):
    def model_fn(features, mode):
        return tpu.EstimatorSpec(mode, predictions=features + tf.get_variable("w", [1]))

    estimator = tpu.Estimator(model_fn, config=tpu.RunConfig(model_dir=str(tmp_path)))
    with contextlib.closing(
        estimator.predict(lambda: read(tf.data.Dataset.from_tensors(tf.constant([1.0]))))
    ) as predictions:
        next(predictions)
    is_endless = request.node.callspec.id == "endless"
    assert len([text for text in warned() if "predict yields forever" in text]) == is_endless


@pytest.fixture(params=[True, False])
def tensorshape(request):
    """Shapes as TF2 has them, or as TF1, whose Dimension(None) compares as None."""
    if not request.param:
        tf.disable_v2_tensorshape()
    yield
    tf.enable_v2_tensorshape()


def unknown(tensor):
    return tf.placeholder_with_default(tensor, None)


def unknown_rows(tensor):
    return tf.placeholder_with_default(tensor, [None, *tensor.shape[1:]])


@pytest.mark.usefixtures("tensorshape")
@pytest.mark.parametrize("hide", [unknown, unknown_rows])
class TestUnknownShapes:
    """Each gets its error by name, whatever runs it."""

    def test_of_predictions(self, tmp_path, cores, hide):
        def model_fn(features, mode, params):
            return tpu.TPUEstimatorSpec(mode, predictions={"y": hide(features["x"])})

        with pytest.raises(ValueError, match=r"predictions\['y'\] has shape .* must be known"):
            next(make(tmp_path, model_fn).predict(input_fn))

    @pytest.mark.parametrize("what", ["features", "labels"])
    def test_of_what_input_fn_gives(self, tmp_path, cores, hide, what):
        def input_fn(params):
            features, labels = {"x": tf.ones([4])}, {"y": tf.ones([4])}
            if what == "features":
                features = {"x": hide(features["x"])}
            else:
                labels = {"y": hide(labels["y"])}
            return features, labels

        def model_fn(features, labels, mode, params):
            loss = tf.reduce_mean(features["x"] - labels["y"]) * tf.get_variable("w", [])
            return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=tf.no_op())

        estimator = make(tmp_path, model_fn)
        name = {"features": "x", "labels": "y"}[what]
        for call in (estimator.train, estimator.evaluate):
            with pytest.raises(
                ValueError, match=rf"{what}\['{name}'\] has shape .* must be static"
            ):
                call(input_fn, steps=1)
