"""What TPUEstimator gives to the user's functions under TPU rules, and what it refuses."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import batches, checkpoint_steps, input_fn, make_estimator, make_model_fn

from bert_estimator import tpu

INPUT_MODES = tpu.InputPipelineConfig


def spied(estimator_fn):
    """Calls `estimator_fn(model_fn, input_fn)`, both noting params; returns what they got."""
    seen = {}

    def model_fn(features, mode, params):
        seen["model_fn", mode] = params
        return make_model_fn()(features, mode, params)

    def data(params, mode):
        seen["input_fn", mode] = params
        return batches(batch_size=params["batch_size"])

    estimator_fn(model_fn, data)
    return seen


@pytest.mark.parametrize("num_shards", [None, 1, 4])
def test_params_of_both_functions_in_both_verbs(tmp_path, num_shards):
    given = {"rate": 0.5, "nested": {"a": [1]}}

    def run(model_fn, data):
        estimator = make_estimator(
            tmp_path, model_fn, params=given, num_shards=num_shards,
            train_batch_size=8, eval_batch_size=4,
        )  # fmt: skip
        estimator.train(data, steps=3)
        estimator.evaluate(data, steps=1)
        assert estimator.params == given

    seen = spied(run)
    sizes = {tpu.ModeKeys.TRAIN: 8, tpu.ModeKeys.EVAL: 4}
    for (name, mode), params in seen.items():
        context = params.pop("context")
        assert params == {**given, "use_tpu": True, "batch_size": sizes[mode]}
        assert params["nested"] is not given["nested"]
        assert (context.num_replicas, context.num_hosts) == (1, 1)
        if name == "input_fn":
            assert context.current_host == 0
            device, *numbers = context.current_input_fn_deployment()
            assert tf.DeviceSpec.from_string(device).device_type == "CPU"
            assert numbers == [0, 1, 1]
            assert context.global_step == (0 if mode == tpu.ModeKeys.TRAIN else 3)
    assert len(seen) == 4


def test_an_input_fn_learns_its_deployment(tmp_path, rules):
    deployments, devices = [], []

    def data(params):
        deployments.append(params["context"].current_input_fn_deployment())
        with tf.device(deployments[-1][0]):
            devices.append(tf.constant(0).device)
        return input_fn(params)

    make_estimator(tmp_path, **rules).train(data, steps=1)
    host, cores = "/replica:0/task:0/device:CPU:0", 2 if "master" in rules else 1
    assert deployments == [(host, 0, 1, cores)]
    assert devices == [host]  # it is a device for tf.device


@pytest.mark.parametrize(
    ("num_shards", "size", "divides"), [(4, 8, True), (4, 6, False), (1, 3, True), (None, 3, True)]
)
@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_the_batch_must_divide_by_the_shards(tmp_path, warned, num_shards, size, divides, verb):
    estimator = make_estimator(
        tmp_path, num_shards=num_shards, train_batch_size=size, eval_batch_size=size
    )
    for _ in range(2):
        if divides:
            getattr(estimator, verb)(input_fn, steps=1)
        else:
            with pytest.raises(ValueError, match=r"batch size 6 \(mode '\w+'\) .*num_shards=4"):
                getattr(estimator, verb)(input_fn, steps=1)
    told = [w for w in warned() if w == "num_shards=4, but one core stands in for 4."]
    assert len(told) == (num_shards == 4)  # once
    assert len([w for w in warned() if w.startswith("No TPU was found: ")]) == 1


def test_a_step_is_lowered_for_as_many_replicas_as_there_are_shards(tmp_path):
    estimator = make_estimator(tmp_path, num_shards=2)
    with pytest.raises(ValueError, match="num_shards=2, but the step is lowered for 4 cores"):
        estimator.lower(input_fn, 4)
    estimator.lower(input_fn, 2)


@pytest.mark.parametrize("verb", ["predict", "export_training_program"])
def test_other_verbs_say_that_one_core_stands_in_too(tmp_path, warned, verb):
    estimator = make_estimator(
        tmp_path / "model",
        make_model_fn(lambda features, loss: {"predictions": {"x": features["x"]}}),
        num_shards=2,
        predict_batch_size=4,
    )
    if verb == "predict":
        next(iter(estimator.predict(input_fn)))
    else:
        estimator.export_training_program(input_fn, str(tmp_path / "program"))
    assert "num_shards=2, but one core stands in for 2." in warned()


@pytest.mark.parametrize(
    "mode", [m for name, m in vars(INPUT_MODES).items() if not name.startswith("_")] + [True, False]
)
def test_every_input_mode_is_accepted(tmp_path, mode):
    given = tensors if mode in (INPUT_MODES.PER_SHARD_V1, False) else input_fn
    make_estimator(tmp_path, per_host_input_for_training=mode).train(given, steps=2)
    assert checkpoint_steps(tmp_path) == [0, 2]


def tensors(params):
    return {"x": tf.ones([4])}


def tensors_and_labels(params):
    return {"x": tf.ones([4])}, tf.zeros([4])


def nested(params):
    features = {"deep": (tf.zeros([4, 1]), {"x": tf.ones([4])}), "ids": tf.zeros([4], tf.int32)}
    return tf.data.Dataset.from_tensors((features, {"y": tf.zeros([4])})).repeat()


@pytest.mark.parametrize(
    ("data", "model_sees"),
    [
        (tensors, ({"x": [4]}, None)),
        (tensors_and_labels, ({"x": [4]}, [4])),
        (nested, ({"deep": ([4, 1], {"x": [4]}), "ids": [4]}, {"y": [4]})),
        (lambda params: (tf.ones([4]), None), ([4], None)),
        (lambda params: tf.data.Dataset.from_tensors(tf.ones([4])).repeat(), ([4], None)),
    ],
)
def test_what_an_input_fn_may_return_reaches_the_model_in_its_structure(tmp_path, data, model_sees):
    def model_fn(features, labels, mode, params):
        shapes = tf.nest.map_structure(lambda t: t.shape.as_list(), [features])[0]
        label_shapes = None
        if labels is not None:
            label_shapes = tf.nest.map_structure(lambda t: t.shape.as_list(), [labels])[0]
        seen.append((shapes, label_shapes))
        x = tf.cast(tf.nest.flatten(features)[0], tf.float32)
        return make_model_fn()({"x": x}, mode, params)

    seen = []
    make_estimator(tmp_path, model_fn).train(data, steps=3)
    assert seen == [model_sees]
    assert checkpoint_steps(tmp_path) == [0, 3]


def cubes(params):
    x = np.full([100, 3], 1 + 2j, np.complex64)
    return tf.data.Dataset.from_tensor_slices({"x": x}).batch(
        params["batch_size"], drop_remainder=True
    )


def test_complex_numbers_go_in_and_out(tmp_path, cores):
    def fields(features, loss):
        return {
            "predictions": {"y": features["z"] ** 2},
            "host_call": (lambda z: tf.py_func(seen.append, [z], []), [features["z"]]),
            "eval_metrics": (lambda z: {"imaginary": tf.metrics.mean(tf.imag(z))}, [features["z"]]),
        }

    def model_fn(features, mode, params):
        features = {"x": tf.abs(features["x"]), "z": features["x"]}
        return make_model_fn(fields)(features, mode, params)

    seen = []
    estimator = make_estimator(tmp_path, model_fn, predict_batch_size=4)
    estimator.train(cubes, steps=2)
    results = estimator.evaluate(cubes, steps=2)
    assert results["imaginary"] == 2 and results["loss"] == pytest.approx(5**0.5)
    np.testing.assert_allclose(next(estimator.predict(cubes))["y"], [-3 + 4j] * 3, rtol=1e-6)
    assert [z.dtype for z in seen[:2]] == [np.complex64] * 2 and (seen[0] == 1 + 2j).all()


def test_values_reach_the_features_they_belong_to(tmp_path):
    def data(params):
        def element(i):
            x = tf.cast(i, tf.float32)
            return {"b": (tf.fill([4], x), {"z": tf.fill([4], 10 * x)}), "a": tf.fill([4], -x)}

        return tf.data.Dataset.range(1, 100).map(lambda i: (element(i), tf.fill([4], 100 * i)))

    def model_fn(features, labels, mode, params):
        whole = tf.stack([
            features["b"][0], features["b"][1]["z"], features["a"], tf.cast(labels, tf.float32),
        ])  # fmt: skip

        def fields(_, loss):
            return {"host_call": (lambda t: tf.py_func(lambda v: log.append(v), [t], []), [whole])}

        return make_model_fn(fields)({"x": features["b"][0]}, mode, params)

    log = []
    make_estimator(tmp_path, model_fn).train(data, steps=2)
    np.testing.assert_array_equal(log[1], np.full([4, 4], [[2], [20], [-2], [200]]))


# What is refused.


def train(estimator, **keywords):
    return estimator.train(input_fn, **keywords)


def evaluate(estimator, **keywords):
    return estimator.evaluate(input_fn, **keywords)


@pytest.mark.parametrize(
    ("verb", "keywords", "config", "error", "message"),
    [
        (train, {}, {}, ValueError, "train needs steps or max_steps with use_tpu=True"),
        (train, {"steps": 2.0}, {}, TypeError, r"steps must be int, and positive, not 2\.0"),
        (train, {"steps": 0}, {}, ValueError, "steps must be positive, not 0"),
        (train, {"steps": 1, "max_steps": 1}, {}, ValueError, "either steps or max_steps"),
        (evaluate, {}, {}, ValueError, "evaluate needs steps with use_tpu=True"),
        (evaluate, {"steps": 1.5}, {}, TypeError, r"steps must be int, and positive, not 1\.5"),
        (
            evaluate, {"steps": 1}, {"eval_batch_size": None},
            ValueError, "evaluate needs eval_batch_size with use_tpu=True",
        ),
        (
            train, {"steps": 1}, {"master": "grpc://pod:8470"},
            RuntimeError, "master='grpc://pod:8470' is the address of a TPU's worker",
        ),
        (
            evaluate, {"steps": 1}, {"evaluation_master": "grpc://pod:8470"},
            RuntimeError, "master='grpc://pod:8470' is the address of a TPU",
        ),
    ],
)  # fmt: skip
def test_calls_that_are_refused_before_anything_is_built(
    tmp_path, verb, keywords, config, error, message
):
    def model_fn(features, params):
        raise AssertionError("called")

    with pytest.raises(error, match=message):
        verb(make_estimator(tmp_path, model_fn, **config), **keywords)


@pytest.mark.parametrize(
    ("verb", "config"),
    [(evaluate, {"master": "grpc://pod:8470", "evaluation_master": ""}),
     (train, {"evaluation_master": "grpc://pod:8470"}),
     (train, {"num_cores_per_replica": 1})],
)  # fmt: skip
def test_each_verb_looks_at_its_own_master(tmp_path, verb, config):
    verb(make_estimator(tmp_path, **config), steps=1)


def test_in_local_mode_a_master_is_not_looked_at(tmp_path):
    make_estimator(tmp_path, use_tpu=False, master="grpc://pod:8470").train(input_fn, steps=1)
    assert checkpoint_steps(tmp_path) == [0, 1]


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"train_batch_size": None}, ValueError, "train_batch_size must be given"),
        ({"eval_batch_size": -1}, ValueError, "eval_batch_size must be positive, not -1"),
        ({"params": {"context": 1}}, ValueError, r"params\['context'\] is reserved"),
        ({"model_dir": "a"}, ValueError, "model_dir='a' differs from config.model_dir='b'"),
        ({"embedding_config_spec": 3}, ValueError, "embedding_config_spec is not supported"),
        (
            {"export_saved_model_api_version": 3},
            ValueError,
            "must be an ExportSavedModelApiVersion",
        ),
        ({"config": None}, ValueError, "config must be a bert_estimator.tpu.RunConfig, not None"),
    ],
)
def test_the_constructor_refuses(keywords, error, message):
    with pytest.raises(error, match=message):
        tpu.TPUEstimator(
            **{
                "model_fn": make_model_fn(),
                "config": tpu.RunConfig(model_dir="b"),
                "train_batch_size": 8,
                **keywords,
            }
        )


def test_a_temporary_directory_stands_in_for_a_model_dir(warned):
    estimator = tpu.TPUEstimator(make_model_fn(), config=tpu.RunConfig(), train_batch_size=4)
    assert estimator.model_dir in warned()[0]
    assert checkpoint_steps(estimator.model_dir) == []


def test_without_a_checkpoint_there_are_no_variables(tmp_path):
    estimator = make_estimator(tmp_path)
    with pytest.raises(ValueError, match=r"There is no checkpoint in .*: train first"):
        estimator.get_variable_names()


def test_a_local_estimator_has_no_program_for_cores(tmp_path):
    """use_tpu=False builds the model by other rules, so its step is not what runs on cores."""
    estimator = make_estimator(tmp_path, use_tpu=False)
    with pytest.raises(ValueError, match="lower needs an estimator with use_tpu=True"):
        estimator.lower(input_fn, num_cores=2)
    program = tmp_path / "program"
    with pytest.raises(ValueError, match=r"export_training_program needs .* use_tpu=True"):
        estimator.export_training_program(input_fn, str(program))
    assert not program.exists()


@pytest.mark.parametrize("mode", [tpu.ModeKeys.TRAIN, tpu.ModeKeys.EVAL, tpu.ModeKeys.PREDICT])
@pytest.mark.parametrize("use_tpu", [False, True])
def test_its_model_fn_returns_the_spec_of_an_estimator(tmp_path, mode, use_tpu):
    """Programs that export models by themselves ask the spec for what only this one has."""

    def fields(features, loss):
        metrics = (lambda x: {"mean": tf.metrics.mean(x)}, [features["x"]])
        return {"eval_metrics": metrics, "predictions": {"x": features["x"]}}

    estimator = make_estimator(tmp_path, make_model_fn(fields), use_tpu=use_tpu)
    with tf.Graph().as_default():
        features = {"x": tf.ones([4])}
        tf.train.create_global_step()
        spec = estimator.model_fn(features, None, mode, estimator.config)
    assert type(spec) is tpu.EstimatorSpec and spec.mode == mode
    assert set(spec.eval_metric_ops or ()) == {"mean"}
