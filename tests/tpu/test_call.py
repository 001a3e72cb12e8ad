"""How user functions are called: by the names of their arguments."""

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.tpu import call


class HParams:
    """Has the methods of tf.contrib.training.HParams that the estimator calls."""

    def __init__(self, **values):
        self._values = values

    def values(self):
        return dict(self._values)

    def add_hparam(self, name, value):
        assert name not in self._values
        self._values[name] = value

    def set_hparam(self, name, value):
        assert name in self._values
        self._values[name] = value


def test_hparams_get_new_entries_added_and_old_ones_set():
    params = HParams(rate=0.5, use_tpu=None)
    changed = call.with_entries(params, batch_size=8, use_tpu=True)
    assert changed.values() == {"rate": 0.5, "use_tpu": True, "batch_size": 8}
    assert params.values() == {"rate": 0.5, "use_tpu": None}


@pytest.mark.parametrize(
    ("model_fn", "params", "message"),
    [
        (None, None, "model_fn must be given"),
        (lambda labels, params: 0, None, r"argument named features; it takes \['labels', 'params'"),
        (lambda features: 0, {"a": 1}, "without params, but params were given"),
        (lambda features, params, extra: 0, {}, r"model_fn takes \['extra'\]; it may only take \["),
    ],
)
def test_a_model_fn_that_cannot_work_is_refused(model_fn, params, message):
    with pytest.raises(ValueError, match=message):
        call.check_model_fn(model_fn, params)


@pytest.mark.parametrize(
    ("model_fn", "labels", "message"),
    [
        (
            lambda features: 0,
            None,
            r"with TPUEstimator it must take params.*params\[\"batch_size\"\]",
        ),
        (lambda features, params: 0, "l", "does not take labels, but input_fn returns them"),
    ],
)
def test_a_call_that_cannot_work_is_refused(model_fn, labels, message):
    with pytest.raises(ValueError, match=message):
        call.call_model_fn(model_fn, "f", labels, "train", {}, None)


def test_an_input_fn_must_take_params():
    with pytest.raises(
        ValueError, match=r"input_fn takes \['mode'\]; with TPUEstimator it must take"
    ):
        call.call_input_fn(lambda mode: 0, "m", "p", "c")


@pytest.mark.parametrize("element", [(), ("f",), ("f", "l", "more")])
def test_tuples_of_another_length_are_refused(element):
    with pytest.raises(ValueError, match=f"not a {len(element)}-tuple"):
        call.split_features_and_labels(element)


def test_datasets_of_both_kinds_are_known():
    with tf.Graph().as_default():
        assert call.is_dataset(tf.data.Dataset.range(3))
        assert call.is_dataset(tf.compat.v2.data.Dataset.range(3))
        assert not call.is_dataset(tf.zeros([3]))


def test_the_context_of_several_hosts():
    context = call.TPUContext(num_replicas=16, num_hosts=2, current_host=1, global_step=7)
    assert context.num_of_replicas_per_host == 8
    assert context.current_input_fn_deployment() == (
        "/replica:0/task:1/device:CPU:0",
        1,
        2,
        8,
    )
    assert context.global_step == 7


def test_a_context_in_a_model_fn_knows_no_deployment_and_no_devices():
    context = call.TPUContext(num_replicas=4, global_step=None)
    assert (context.num_replicas, context.device_assignment) == (4, None)
    with pytest.raises(RuntimeError, match="deployment is only known in an input_fn"):
        context.current_input_fn_deployment()
    with pytest.raises(RuntimeError, match="current_host is only known in an input_fn"):
        _ = context.current_host
    with pytest.raises(RuntimeError, match="device_for_replica: cores are not TensorFlow devices"):
        context.device_for_replica(0)
    assert context.tpu_host_placement_function(host_id=0) == "/device:CPU:0"
    assert call.TPUContext(4, global_step=0).current_input_fn_deployment()[1:] == (0, 1, 4)
