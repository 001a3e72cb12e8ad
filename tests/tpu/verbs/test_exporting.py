"""SavedModels: what is in them, that plain TensorFlow runs them, and that a failure leaves none."""

import os
import sys

import forked
import locked
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2
from tensorflow.compiler.tf2xla.python import xla
from toy import make_estimator

from bert_estimator import tpu
from bert_estimator.tpu import serving


def model_fn(features, labels, mode, params):
    weight = tf.get_variable("w", initializer=3.0)
    product = weight * features["x"]
    loss = train_op = metrics = None
    if mode != tpu.ModeKeys.PREDICT:
        loss = tf.reduce_mean(tf.square(product - labels))
        metrics = (lambda p: {"mean": tf.metrics.mean(p)}, [product])
    else:
        assert params["use_tpu"] is False and "batch_size" not in params
    if mode == tpu.ModeKeys.TRAIN:
        optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.0))
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(
        mode,
        predictions={"product": product},
        loss=loss,
        train_op=train_op,
        eval_metrics=metrics,
        export_outputs={
            "serving_default": serving.PredictOutput({"product": product}),
            "rank": serving.ClassificationOutput(scores=product),
            "value": serving.RegressionOutput(product),
        },
    )


def input_fn(params):
    data = tf.data.Dataset.from_tensors(({"x": tf.ones([4])}, tf.ones([4])))
    return data.repeat()


def raw_receiver():
    return serving.build_raw_serving_input_receiver_fn({"x": tf.ones([1])})()


def trained(folder, model_fn=model_fn, **keywords):
    estimator = make_estimator(folder / "model", model_fn, **keywords)
    return estimator.train(input_fn, steps=2)


def signatures(path, tag="serve"):
    with tf.Graph().as_default(), tf.Session() as session:
        return tf.saved_model.load(session, [tag], path).signature_def


def run(path, feed, signature="serving_default", tag="serve"):
    with tf.Graph().as_default(), tf.Session() as session:
        found = tf.saved_model.load(session, [tag], path).signature_def[signature]
        values = {found.inputs[name].name: value for name, value in feed.items()}
        outputs = {name: tensor.name for name, tensor in found.outputs.items()}
        return session.run(outputs, values)


def test_an_object_based_checkpoint_as_the_scaffold_s_saver(tmp_path, cores):
    """Trains, resumes, evaluates and exports; upstream's are in tests/oracle."""

    def with_saver(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        weight = tf.trainable_variables()[0]
        if mode == tpu.ModeKeys.TRAIN:
            moved = tf.group(weight.assign_add(1.0), tf.train.get_global_step().assign_add(1))
            with tf.control_dependencies([tpu.cross_replica_sum(spec.loss)]):
                spec = spec._replace(train_op=tf.group(moved))
        saver = tf2.train.Checkpoint(weight=weight, step=tf.train.get_global_step())
        return spec._replace(scaffold_fn=lambda: tf.train.Scaffold(saver=saver))

    trained(tmp_path, with_saver)
    estimator = trained(tmp_path, with_saver)
    assert estimator.latest_checkpoint() == str(tmp_path / "model/model.ckpt-4")
    assert estimator.get_variable_value("weight/.ATTRIBUTES/VARIABLE_VALUE") == 7
    assert estimator.evaluate(input_fn, steps=1)["mean"] == 7
    path = estimator.export_saved_model(tmp_path / "out", raw_receiver)
    assert run(path, {"x": [2.0]})["product"].tolist() == [14]


def test_a_class_s_own_latest_checkpoint_is_exported(tmp_path):
    """As in TensorFlow 2.15, whose evaluations and predictions take the newest nevertheless."""
    trained(tmp_path, save_checkpoints_steps=1, iterations_per_loop=1)

    class Best(tpu.TPUEstimator):
        def latest_checkpoint(self):
            return str(tmp_path / "model/model.ckpt-1")

    config = tpu.RunConfig(model_dir=str(tmp_path / "model"))
    best = Best(model_fn, config=config, train_batch_size=4)
    given = str(tmp_path / "model/model.ckpt-2")
    for checkpoint, expected in ((None, best.latest_checkpoint()), (given, given)):
        path = best.export_saved_model(
            str(tmp_path / "out"), raw_receiver, checkpoint_path=checkpoint
        )
        variables = f"{tf.compat.as_str(path)}/variables/variables"
        steps = [tf.train.load_variable(each, "global_step") for each in (variables, expected)]
        assert steps[0] == steps[1]


def test_operations_between_replicas_are_exported_as_those_of_one_replica(tmp_path):
    def talking(features, labels, mode, params):
        everyone = [list(range(tpu.num_replicas()))]
        x = tf.raw_ops.CrossReplicaSum(input=features["x"], group_assignment=everyone)
        x += tf.cast(xla.replica_id(), x.dtype)
        return model_fn({"x": tf.cond(x[0] > 0, lambda: x, lambda: -x)}, labels, mode, params)

    path = trained(tmp_path, talking).export_saved_model(tmp_path / "out", raw_receiver)
    assert run(path, {"x": [2.0]})["product"].tolist() == [6]


@pytest.mark.parametrize("use_tpu", [True, False])
def test_it_runs_in_a_process_with_plain_tensorflow(tmp_path, use_tpu):
    path = trained(tmp_path, use_tpu=use_tpu).export_saved_model(tmp_path / "out", raw_receiver)
    assert isinstance(path, bytes) and os.path.dirname(path) == os.fsencode(tmp_path / "out")
    assert os.path.basename(path).isdigit()
    program = (
        "import sys, tensorflow as tf\n"
        "serve = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
        "print(serve(x=tf.constant([1.0, 2.0]))['product'].numpy().tolist())\n"
        "assert not any('bert_estimator' in name for name in sys.modules)\n"
    )
    done = forked.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1:] == ["[3.0, 6.0]"], done.stderr


def test_serialized_examples_reach_every_kind_of_output(tmp_path):
    spec = {"x": tf.FixedLenFeature([], tf.float32)}
    receiver_fn = serving.build_parsing_serving_input_receiver_fn(spec)
    path = trained(tmp_path).export_saved_model(tmp_path / "out", receiver_fn)
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=[2.0]))
    example = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
    examples = [example.SerializeToString()] * 2
    assert set(signatures(path)) == {"serving_default", "rank", "value"}
    for signature, output, name in (
        ("serving_default", "product", "examples"),
        ("rank", "scores", "inputs"),
        ("value", "outputs", "inputs"),
    ):
        np.testing.assert_array_equal(run(path, {name: examples}, signature)[output], [6.0, 6.0])


def test_graphs_of_several_modes(tmp_path):
    supervised = serving.build_raw_supervised_input_receiver_fn({"x": tf.ones([1])}, tf.ones([1]))
    receivers = {"train": supervised, "eval": supervised, "infer": raw_receiver}
    estimator = trained(tmp_path)
    path = estimator.experimental_export_all_saved_models(tmp_path / "out", receivers)
    fed = {"x": [1.0], "label": [5.0]}
    assert run(path, fed, "eval", "eval")["loss"] == 4.0
    assert run(path, fed, "train", "train")["loss"] == 4.0
    np.testing.assert_array_equal(run(path, {"x": [1.0]})["product"], [3.0])
    path = estimator.export_saved_model(
        tmp_path / "eval", supervised, experimental_mode=tpu.ModeKeys.EVAL
    )
    assert set(signatures(path, "eval")) == {"eval"}


def test_a_scaffold_s_saver_and_local_init_op_are_the_served_ones(tmp_path):
    def averaged(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        if mode != tpu.ModeKeys.PREDICT:
            return spec
        (weight,) = tf.trainable_variables()
        step = tf.train.get_global_step()

        def scaffold_fn():  # w is not in this saver: the initialization on loading gives it
            saver = tf.train.Saver({"global_step": step})
            return tf.train.Scaffold(saver=saver, local_init_op=tf.group(weight.assign(7.0)))

        return spec._replace(scaffold_fn=scaffold_fn)

    path = trained(tmp_path, averaged).export_saved_model(tmp_path / "out", raw_receiver)
    np.testing.assert_array_equal(run(path, {"x": [1.0]})["product"], [7.0])


@pytest.mark.parametrize("verb", ["export_saved_model", "export_savedmodel"])
def test_a_receiver_is_needed(tmp_path, verb):
    estimator = make_estimator(tmp_path, model_fn)
    with pytest.raises(ValueError, match="serving_input_receiver_fn must be given"):
        getattr(estimator, verb)(tmp_path / "out", None)


def test_failures_leave_nothing(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"no checkpoint to export in .*model: train first"):
        make_estimator(tmp_path / "model", model_fn).export_saved_model(out, raw_receiver)
    estimator = trained(tmp_path)
    with pytest.raises(ValueError, match="Nothing to export"):
        estimator.experimental_export_all_saved_models(out, {"infer": None})

    def larger(features, labels, mode, params):
        tf.get_variable("other", [])
        return model_fn(features, labels, mode, params)

    with pytest.raises(ValueError, match="other: not in the checkpoint"):
        make_estimator(tmp_path / "model", larger).export_saved_model(out, raw_receiver)
    with pytest.raises(tf.errors.NotFoundError):
        estimator.export_saved_model(out, raw_receiver, assets_extra={"a": str(tmp_path / "b")})
    assert not out.exists() or not os.listdir(out)


def test_what_a_killed_export_left_is_removed_and_nothing_else(tmp_path):
    estimator, base = trained(tmp_path / "model"), tmp_path / "out"
    for name in ("temp-1700000000", "temp-1700000001", "temp-mine", "1600000000"):
        (base / name / "variables").mkdir(parents=True)
    with locked.by_another(base / "temp-1700000001" / ".lock"):
        path = estimator.export_saved_model(str(base), raw_receiver).decode()
        kept = {os.path.basename(path), "temp-1700000001", "temp-mine", "1600000000"}
        assert set(os.listdir(base)) == kept
    assert ".lock" not in os.listdir(path)
    estimator.export_saved_model(str(base), raw_receiver)
    assert "temp-1700000001" not in os.listdir(base)


def test_the_graph_for_tpus_alone_is_refused(tmp_path):
    estimator = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(model_dir=str(tmp_path)),
        train_batch_size=4,
        export_to_cpu=False,
    )
    with pytest.raises(ValueError, match="export_to_cpu=False leaves nothing to export"):
        estimator.export_saved_model(tmp_path / "out", raw_receiver)
