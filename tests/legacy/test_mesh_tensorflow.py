"""A program of mesh-tensorflow under the runner: every mesh of cores gives what one CPU gives."""

import importlib.util
import json
import subprocess

import legacy_script
import numpy as np
import pytest

SCRIPT = """
import json, sys
import mesh_tensorflow as mtf
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.tpu import tpu_config, tpu_estimator

master, mesh_shape, layout = sys.argv[1:]
outside = mtf.utils.outside_all_rewrites
BATCH, CLASSES = 8, 4


def model_fn(features, labels, mode, params):
    features = features["x"] if isinstance(features, dict) else features
    step = tf.train.get_global_step()
    graph = mtf.Graph()
    shape, rules = mtf.convert_to_shape(mesh_shape), mtf.convert_to_layout_rules(layout)
    if master:
        context = params["context"]
        devices = [context.tpu_host_placement_function(host_id=i) for i in range(context.num_hosts)]
        placer = mtf.utils.BalancedVariablePlacer(devices)
        mesh_impl = mtf.simd_mesh_impl.SimdMeshImpl(shape, rules, None, context.device_assignment)
    else:
        placer = None
        mesh_impl = mtf.placement_mesh_impl.PlacementMeshImpl(shape, rules, [""] * shape.size)
    mesh = mtf.Mesh(graph, "mesh", placer)
    batch, size = mtf.Dimension("batch", BATCH), mtf.Dimension("size", 4)
    hidden, classes = mtf.Dimension("hidden", 8), mtf.Dimension("classes", CLASSES)
    x = mtf.import_tf_tensor(mesh, tf.reshape(features, [BATCH, 4]), mtf.Shape([batch, size]))
    normal = tf.random_normal_initializer(stddev=0.3, seed=7)
    with tf.variable_scope("network"):
        layer = mtf.layers.dense(
            x, hidden, reduced_dims=[size], activation=mtf.relu, kernel_initializer=normal, name="a"
        )
        logits = mtf.layers.dense(
            layer, classes, reduced_dims=[hidden], kernel_initializer=normal, name="b"
        )
    if mode == tf.estimator.ModeKeys.PREDICT:
        logits = mtf.anonymize(logits)
        lowering = mtf.Lowering(graph, {mesh: mesh_impl})
        predictions = {"logits": lowering.export_to_tf_tensor(logits)}
        with outside():
            return tpu_estimator.TPUEstimatorSpec(
                mode, predictions=predictions, prediction_hooks=[mtf.MtfRestoreHook(lowering)]
            )
    ids = mtf.import_tf_tensor(mesh, tf.reshape(labels, [BATCH]), mtf.Shape([batch]))
    targets = mtf.one_hot(ids, classes)
    losses = mtf.layers.softmax_cross_entropy_with_logits(logits, targets, classes)
    loss = mtf.reduce_mean(losses)
    if mode == tf.estimator.ModeKeys.TRAIN:
        gradients = mtf.gradients([loss], [v.outputs[0] for v in graph.trainable_variables])
        with outside():  # as mesh_tensorflow.transformer does
            rate = tf.train.polynomial_decay(0.1, step, 10, 0.0)
            tf.summary.scalar("learning_rate", rate)
        optimizer = mtf.optimize.AdamWeightDecayOptimizer(
            learning_rate=mtf.import_tf_tensor(mesh, rate, mtf.Shape([]))
        )
        updates = optimizer.apply_grads(gradients, graph.trainable_variables)
        mtf.scalar_summary("loss", loss)
    losses = mtf.anonymize(losses)
    lowering = mtf.Lowering(graph, {mesh: mesh_impl})
    tf_loss = tf.to_float(lowering.export_to_tf_tensor(loss))
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = lambda losses: {"mean": tf.metrics.mean(losses)}
        with outside():
            return tpu_estimator.TPUEstimatorSpec(
                mode,
                loss=tf_loss,
                eval_metrics=(metrics, [lowering.export_to_tf_tensor(losses)]),
                evaluation_hooks=[mtf.MtfRestoreHook(lowering)],
            )
    host_call = mtf.utils.create_host_call("model") if master else None
    mtf.utils.remove_summaries()
    # The update waits for the training, so that the rate is as before the step on each runtime.
    with tf.control_dependencies([lowering.lowered_operation(update) for update in updates]):
        train_op = tf.group(tf.assign_add(step, 1))
    with outside():
        saver = tf.train.Saver(tf.global_variables(), sharded=True)
        tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
        saver_hook = tf.train.CheckpointSaverHook(
            "model", save_steps=2, saver=saver, listeners=[mtf.MtfCheckpointSaverListener(lowering)]
        )
        return tpu_estimator.TPUEstimatorSpec(
            mode,
            loss=tf_loss,
            train_op=train_op,
            host_call=host_call,
            training_hooks=[mtf.MtfRestoreHook(lowering), saver_hook],
        )


def data():
    x = np.random.RandomState(0).uniform(-1, 1, [64, 4]).astype("float32")
    return x, np.argmax(x + x[:, ::-1] ** 2, 1).astype("int32")


def input_fn(params):
    return tf.data.Dataset.from_tensor_slices(data()).repeat().batch(BATCH, drop_remainder=True)


def predict_input_fn(params):
    return tf.data.Dataset.from_tensor_slices(data()[0][:16]).batch(BATCH, drop_remainder=True)


estimator = tpu_estimator.TPUEstimator(
    model_fn,
    use_tpu=bool(master),
    config=tpu_config.RunConfig(
        master=master,
        model_dir="model",
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        tpu_config=tpu_config.TPUConfig(
            iterations_per_loop=2,
            num_cores_per_replica=1,
            per_host_input_for_training=tpu_config.InputPipelineConfig.BROADCAST,
        ),
    ),
    train_batch_size=BATCH,
    eval_batch_size=BATCH,
    predict_batch_size=BATCH,
)
for steps in (4, 8):  # The second training resumes.
    estimator.train(input_fn, max_steps=steps)
evaluated = estimator.evaluate(input_fn, steps=4)
predictions = [p["logits"].tolist() for p in estimator.predict(predict_input_fn)]
weights = {
    name: estimator.get_variable_value(name).tolist()
    for name in estimator.get_variable_names()
    if "kernel" in name
}
print(json.dumps([float(evaluated["loss"]), float(evaluated["mean"]), predictions, weights]))
"""


def ran(folder, master, mesh_shape, layout):
    folder.mkdir()
    arguments = (master, mesh_shape, layout)
    done = legacy_script.run(folder, SCRIPT, *arguments, process=subprocess.run)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("mesh_tensorflow") is None, reason="needs mesh_tensorflow"
)
def test_every_mesh_gives_what_one_cpu_gives(tmp_path, xla_runtime):
    loss, mean, predictions, weights = ran(tmp_path / "cpu", "", "all:1", "batch:all")
    assert np.shape(predictions) == (16, 4)
    assert any("b/kernel" in name for name in weights)
    for number, case in enumerate(
        [
            ("rehearse:2", "all:2", "batch:all"),
            ("rehearse:2", "all:2", "hidden:all"),
            ("rehearse:4", "rows:2;columns:2", "batch:rows;hidden:columns"),
            ("rehearse:4", "all:4", "classes:all"),
        ]
    ):
        result = ran(tmp_path / str(number), *case)
        assert result[:2] == pytest.approx([loss, mean], rel=1e-5), case
        np.testing.assert_allclose(result[2], predictions, atol=1e-5, err_msg=str(case))
        assert result[3].keys() == weights.keys()
        for name, value in weights.items():
            np.testing.assert_allclose(result[3][name], value, atol=1e-5, err_msg=name)
