"""Scenarios of what is refused, and of the defaults: configs, constructor, specs, calls."""

import numpy as np
import tensorflow.compat.v1 as tf
from harness import (
    build,
    dataset,
    make_estimator,
    make_input_fn,
    make_model_fn,
    outcome,
    plain,
    scenario,
    table,
)


def fields_of(config, *names):
    return {name: plain(getattr(config, name)) for name in names}


# TPUConfig.


@scenario
def tpu_config_defaults(api, folder):
    config = api.TPUConfig()
    return {name: plain(getattr(config, name)) for name in config._fields}


@table(
    per_host_true={"keywords": {"per_host_input_for_training": True}},
    per_host_false={"keywords": {"per_host_input_for_training": False}},
    per_host_v2={"keywords": {"per_host_input_for_training": 3}},
    broadcast={"keywords": {"per_host_input_for_training": 4}},
    seconds={"keywords": {"iterations_per_loop": "30s"}},
    minutes={"keywords": {"iterations_per_loop": "5m"}},
    hours={"keywords": {"iterations_per_loop": "1h"}},
    one_shard={"keywords": {"num_shards": 1}},
    many_shards={"keywords": {"num_shards": 2048}},
    cores_per_replica={"keywords": {"num_cores_per_replica": 8}},
    job_name={"keywords": {"tpu_job_name": "worker"}},
    sleep={"keywords": {"initial_infeed_sleep_secs": 3}},
    eval_sliced={"keywords": {"eval_training_input_configuration": 5}},
)
def tpu_config(api, folder, keywords):
    config = api.TPUConfig(**keywords)
    return fields_of(config, "per_host_input_for_training", *keywords)


@table(
    loop_of_0={"keywords": {"iterations_per_loop": 0}},
    loop_negative={"keywords": {"iterations_per_loop": -1}},
    loop_float={"keywords": {"iterations_per_loop": 2.5}},
    loop_text={"keywords": {"iterations_per_loop": "many"}},
    loop_of_0_seconds={"keywords": {"iterations_per_loop": "0s"}},
    loop_none={"keywords": {"iterations_per_loop": None}},
    shards_0={"keywords": {"num_shards": 0}},
    shards_float={"keywords": {"num_shards": 2.5}},
    shards_text={"keywords": {"num_shards": "8"}},
    cores_0={"keywords": {"num_cores_per_replica": 0}},
    cores_3={"keywords": {"num_cores_per_replica": 3}},
    cores_256={"keywords": {"num_cores_per_replica": 256}},
    eval_input_mode={"keywords": {"eval_training_input_configuration": 3}},
    per_host_9={"keywords": {"per_host_input_for_training": 9}},
    sleep_text={"keywords": {"initial_infeed_sleep_secs": "3"}},
    sleep_0={"keywords": {"initial_infeed_sleep_secs": 0}},
    sleep_negative={"keywords": {"initial_infeed_sleep_secs": -1}},
    loop_bool={"keywords": {"iterations_per_loop": True}},
    loop_of_digits={"keywords": {"iterations_per_loop": "2"}},
    shards_bool={"keywords": {"num_shards": True}},
    shards_of_numpy={"keywords": {"num_shards": np.int64(2)}},
    unknown={"keywords": {"more": 1}},
)
def tpu_config_refuses(api, folder, keywords):
    phrases = [
        *["must be positive integer value", "must be positive", "must be 1, 2, 4, 8, 16, 32, 64"],
        "must be PER_HOST_V1 or SLICED; got",
    ]
    return outcome(lambda: api.TPUConfig(**keywords), says=[*keywords, *phrases])


@table(
    checked={"keywords": {"num_shards": 0}},
    unknown={"keywords": {"more": 1}},
    settled={"keywords": {"per_host_input_for_training": False}},
)
def tpu_config_replace(api, folder, keywords):
    seen = {}

    def call():
        seen.update(fields_of(api.TPUConfig()._replace(**keywords), *keywords))

    return {**outcome(call, says=keywords), **seen}


@scenario
def tpu_config_is_a_named_tuple(api, folder):
    config = api.TPUConfig(iterations_per_loop=4)
    changed = config._replace(num_shards=2)
    return {
        "tuple": isinstance(config, tuple),
        "equal": config == api.TPUConfig(iterations_per_loop=4),
        "changed": [changed.iterations_per_loop, changed.num_shards],
        "unchanged": config.num_shards,
        "assignment": outcome(lambda: setattr(config, "num_shards", 3)),
    }


@scenario
def input_pipeline_config(api, folder):
    names = ["PER_SHARD_V1", "PER_HOST_V1", "PER_HOST_V2", "BROADCAST", "SLICED"]
    return fields_of(api.InputPipelineConfig, *names)


@scenario
def mode_keys(api, folder):
    return fields_of(api.ModeKeys, "TRAIN", "EVAL", "PREDICT")


# RunConfig.


@scenario
def run_config_defaults(api, folder):
    return fields_of(
        api.RunConfig(),
        *["model_dir", "tf_random_seed", "save_summary_steps", "save_checkpoints_steps"],
        *["save_checkpoints_secs", "session_config", "keep_checkpoint_max"],
        *["keep_checkpoint_every_n_hours", "log_step_count_steps", "train_distribute"],
        *["eval_distribute", "device_fn", "protocol", "session_creation_timeout_secs"],
        *["experimental_max_worker_delay_secs", "checkpoint_save_graph_def"],
        *["master", "evaluation_master", "cluster", "tpu_config"],
        *["is_chief", "task_type", "task_id", "num_ps_replicas", "num_worker_replicas"],
        *["global_id_in_cluster", "service"],
    )


@table(
    steps={"keywords": {"save_checkpoints_steps": 10}},
    seconds={"keywords": {"save_checkpoints_secs": 10}},
    neither={"keywords": {"save_checkpoints_steps": None, "save_checkpoints_secs": None}},
    steps_none={"keywords": {"save_checkpoints_steps": None}},
    seconds_none={"keywords": {"save_checkpoints_secs": None}},
    steps_and_no_seconds={
        "keywords": {"save_checkpoints_steps": 10, "save_checkpoints_secs": None}
    },
)
def saving(api, folder, keywords):
    return fields_of(api.RunConfig(**keywords), "save_checkpoints_steps", "save_checkpoints_secs")


@table(
    master={"keywords": {"master": "grpc://a:1"}},
    empty_master={"keywords": {"master": ""}},
    evaluation_master={"keywords": {"master": "grpc://a:1", "evaluation_master": "grpc://b:1"}},
    evaluation_master_alone={"keywords": {"evaluation_master": "grpc://b:1"}},
    master_none={"keywords": {"master": None}},
)
def masters(api, folder, keywords):
    return fields_of(api.RunConfig(**keywords), "master", "evaluation_master")


@table(
    both_intervals={"keywords": {"save_checkpoints_steps": 1, "save_checkpoints_secs": 1}},
    save_steps_negative={"keywords": {"save_checkpoints_steps": -1}},
    save_steps_0={"keywords": {"save_checkpoints_steps": 0}},
    save_secs_negative={"keywords": {"save_checkpoints_secs": -1}},
    summary_negative={"keywords": {"save_summary_steps": -1}},
    summary_0={"keywords": {"save_summary_steps": 0}},
    keep_negative={"keywords": {"keep_checkpoint_max": -1}},
    keep_hours_0={"keywords": {"keep_checkpoint_every_n_hours": 0}},
    log_0={"keywords": {"log_step_count_steps": 0}},
    log_negative={"keywords": {"log_step_count_steps": -1}},
    seed_float={"keywords": {"tf_random_seed": 1.5}},
    seed_text={"keywords": {"tf_random_seed": "1"}},
    session_config={"keywords": {"session_config": {"a": 1}}},
    device_fn={"keywords": {"device_fn": lambda: None}},
    device_fn_text={"keywords": {"device_fn": "cpu"}},
    protocol={"keywords": {"protocol": "pigeon"}},
    timeout_negative={"keywords": {"session_creation_timeout_secs": -1}},
    seed_bool={"keywords": {"tf_random_seed": True}},
    seed_of_numpy={"keywords": {"tf_random_seed": np.int64(1)}},
    summary_bool={"keywords": {"save_summary_steps": True}},
    summary_text={"keywords": {"save_summary_steps": "1"}},
    summary_of_numpy={"keywords": {"save_summary_steps": np.int64(1)}},
    device_fn_of_two={"keywords": {"device_fn": lambda op, more: None}},
    delay_float={"keywords": {"experimental_max_worker_delay_secs": 1.5}},
    delay_text={"keywords": {"experimental_max_worker_delay_secs": "1"}},
    model_dir_empty={"keywords": {"model_dir": ""}},
    unknown={"keywords": {"more": 1}},
)
def run_config_refuses(api, folder, keywords):
    phrases = [
        *["should be >= 0", "should be > 0", "must be integer", "cannot be both set"],
        *["must be instance of ConfigProto", 'must be callable with exactly one argument "op"'],
        *["should be grpc or grpc+verbs", "should be non-empty", "must be an integer if set"],
    ]
    return outcome(lambda: api.RunConfig(**keywords), says=[*keywords, *phrases])


@scenario
def run_config_refuses_master_and_cluster(api, folder):
    class Cluster:
        def master(self):
            return "grpc://a:1"

        def cluster_spec(self):
            return tf.train.ClusterSpec({})

    return outcome(
        lambda: api.RunConfig(master="grpc://b:1", cluster=Cluster()), says=["master", "cluster"]
    )


class ClusterOfNone:
    def master(self):
        return ""

    def cluster_spec(self):
        return tf.train.ClusterSpec({})


@table(none={}, plain={"jobs": []}, with_cluster_def={"jobs": ["worker"]})
def cluster_and_session_config(api, folder, jobs=None):
    session_config = None
    if jobs is not None:
        session_config = tf.ConfigProto()
        for name in jobs:
            session_config.cluster_def.job.add(name=name)
    return outcome(
        lambda: api.RunConfig(cluster=ClusterOfNone(), session_config=session_config),
        says=["session_config", "cluster_def"],
    )


@table(
    model_dir={"keywords": {"model_dir": "b"}},
    seed={"keywords": {"tf_random_seed": 3}},
    steps={"keywords": {"save_checkpoints_steps": 3}},
    seconds={"keywords": {"save_checkpoints_secs": 3}},
    summary={"keywords": {"save_summary_steps": 3}},
    keep={"keywords": {"keep_checkpoint_max": 3}},
    log={"keywords": {"log_step_count_steps": 3}},
    master={"keywords": {"master": "grpc://a:1"}},
    evaluation_master={"keywords": {"evaluation_master": "grpc://a:1"}},
    unknown={"keywords": {"more": 3}},
    both_intervals={"keywords": {"save_checkpoints_steps": 3, "save_checkpoints_secs": 3}},
)
def replace(api, folder, keywords):
    names = [
        *["model_dir", "tf_random_seed", "save_checkpoints_steps", "save_checkpoints_secs"],
        *["save_summary_steps", "keep_checkpoint_max", "log_step_count_steps", "master"],
    ]
    config = api.RunConfig(model_dir="a", tpu_config=api.TPUConfig(iterations_per_loop=9))
    seen = {}

    def call():
        changed = config.replace(**keywords)
        seen["changed"] = fields_of(changed, *names)
        seen["loop"] = changed.tpu_config.iterations_per_loop

    failure = outcome(call, says=[*keywords, "is not supported. Allowed properties are"])
    return {**failure, **seen, "original": fields_of(config, *names)}


@scenario
def replace_tpu_config(api, folder):
    config = api.RunConfig(tpu_config=api.TPUConfig(iterations_per_loop=9))
    changed = config.replace(tpu_config=api.TPUConfig(iterations_per_loop=8))
    return {
        "loops": [config.tpu_config.iterations_per_loop, changed.tpu_config.iterations_per_loop],
        "type_is_kept": type(changed) is type(config),
    }


@scenario
def run_config_is_read_only(api, folder):
    config = api.RunConfig()
    return outcome(lambda: setattr(config, "model_dir", "b"))


# The constructor.


@table(
    no_config={"keywords": {"config": None}, "says": ["config"]},
    config_is_a_dict={"keywords": {"config": {"model_dir": "a"}}, "says": ["config"]},
    reserved_batch_size={"keywords": {"params": {"batch_size": 1}}, "says": ["batch_size"]},
    reserved_context={"keywords": {"params": {"context": 1}}, "says": ["context"]},
    params_list={"keywords": {"params": [1]}, "says": ["params"]},
    train_batch_size_0={"keywords": {"train_batch_size": 0}, "says": ["train_batch_size"]},
    train_batch_size_negative={"keywords": {"train_batch_size": -8}, "says": []},
    train_batch_size_float={"keywords": {"train_batch_size": 2.5}, "says": ["train_batch_size"]},
    train_batch_size_text={"keywords": {"train_batch_size": "8"}, "says": ["train_batch_size"]},
    eval_batch_size_0={"keywords": {"eval_batch_size": 0}, "says": ["eval_batch_size"]},
    eval_batch_size_float={"keywords": {"eval_batch_size": 2.5}, "says": ["eval_batch_size"]},
    predict_batch_size_0={"keywords": {"predict_batch_size": 0}, "says": []},
    no_train_batch_size={"keywords": {"train_batch_size": None}, "says": ["train_batch_size"]},
    no_eval_batch_size={"keywords": {"eval_batch_size": None}, "says": []},
    unknown={"keywords": {"more": 1}, "says": ["more"]},
    model_dir_number={"keywords": {"model_dir": 3}, "says": []},
)
def constructor(api, folder, keywords, says):
    """Makes a TPUEstimator with use_tpu=False and with use_tpu=True; neither looks for a TPU."""

    def make(use_tpu):
        api.TPUEstimator(
            **{
                "model_fn": make_model_fn(api),
                "config": api.RunConfig(model_dir=folder),
                "train_batch_size": 8,
                "eval_batch_size": 8,
                **keywords,
                "use_tpu": use_tpu,
            }
        )

    return {
        "local": outcome(lambda: make(False), says),
        "tpu": outcome(lambda: make(True), says),
    }


@scenario
def constructor_refuses_per_shard_model_parallelism(api, folder):
    mode = api.InputPipelineConfig.PER_SHARD_V1
    tpu_config = api.TPUConfig(per_host_input_for_training=mode, num_cores_per_replica=2)
    return outcome(
        lambda: api.TPUEstimator(
            make_model_fn(api),
            config=api.RunConfig(model_dir=folder, tpu_config=tpu_config),
            use_tpu=True,
            train_batch_size=8,
        )
    )


# Specs.


def metric_fn(value):
    return {"mean": tf.metrics.mean(value)}


@table(
    metrics_not_a_pair={"fields": lambda loss: {"eval_metrics": metric_fn}},
    metrics_of_one={"fields": lambda loss: {"eval_metrics": (metric_fn,)}},
    metrics_of_three={"fields": lambda loss: {"eval_metrics": (metric_fn, [loss], 1)}},
    metrics_as_a_list={"fields": lambda loss: {"eval_metrics": [metric_fn, [loss]]}},
    metrics_not_callable={"fields": lambda loss: {"eval_metrics": ("mean", [loss])}},
    metrics_tensor_alone={"fields": lambda loss: {"eval_metrics": (metric_fn, loss)}},
    metrics_too_many={"fields": lambda loss: {"eval_metrics": (metric_fn, [loss, loss])}},
    metrics_too_few={"fields": lambda loss: {"eval_metrics": (metric_fn, [])}},
    metrics_with_a_default={
        "fields": lambda loss: {"eval_metrics": (lambda value, scale=1: {}, [loss])}
    },
    metrics_var_args={"fields": lambda loss: {"eval_metrics": (lambda *values: {}, [loss, loss])}},
    metrics_wrong_key={"fields": lambda loss: {"eval_metrics": (metric_fn, {"other": loss})}},
    metrics_none={"fields": lambda loss: {"eval_metrics": None}},
    host_call_not_a_pair={"fields": lambda loss: {"host_call": metric_fn}},
    host_call_not_callable={"fields": lambda loss: {"host_call": (1, [loss])}},
    host_call_too_many={"fields": lambda loss: {"host_call": (metric_fn, [loss, loss])}},
    host_call_tensor_alone={"fields": lambda loss: {"host_call": (metric_fn, loss)}},
    training_hook={"fields": lambda loss: {"training_hooks": ["hook"]}},
    evaluation_hook={"fields": lambda loss: {"evaluation_hooks": ["hook"]}},
    one_hook={"fields": lambda loss: {"training_hooks": tf.train.SessionRunHook()}},
    hooks_as_a_tuple={"fields": lambda loss: {"training_hooks": (tf.train.SessionRunHook(),)}},
    training_chief_hooks={"fields": lambda loss: {"training_chief_hooks": []}},
    eval_metric_ops={"fields": lambda loss: {"eval_metric_ops": {}}},
    scaffold={"fields": lambda loss: {"scaffold": None}},
    no_loss={"fields": lambda loss: {"loss": None}},
    loss_number={"fields": lambda loss: {"loss": 1.0}},
    train_op_number={"fields": lambda loss: {"train_op": 1}},
    no_train_op={"fields": lambda loss: {"mode": "train"}},
    predictions_list={"fields": lambda loss: {"predictions": [loss]}},
    no_predictions={"fields": lambda loss: {"mode": "infer"}},
    unknown_mode={"fields": lambda loss: {"mode": "tune"}},
)
def spec(api, folder, fields):
    """What the constructor of TPUEstimatorSpec refuses by itself."""
    with tf.Graph().as_default():
        loss = tf.constant(1.0)
        keywords = {"mode": "eval", "loss": loss, **fields(loss)}
        return outcome(
            lambda: api.TPUEstimatorSpec(**keywords),
            says=[
                *["eval_metrics", "host_call", "training_chief_hooks", "eval_metric_ops"],
                *["should be tuple or list", "should have two elements", "should be callable"],
                *["does not match method args of the function", "should be tuple or list, or dict"],
                *SPEC_PHRASES,
            ],
        )


@table(
    loss_number={"fields": lambda x: {"loss": 1.0}},
    loss_list={"fields": lambda x: {"loss": [x]}},
    loss_operation={"fields": lambda x: {"loss": x.op}},
    loss_vector={"fields": lambda x: {"loss": tf.zeros([2])}},
    loss_of_one={"fields": lambda x: {"loss": tf.zeros([1])}},
    loss_of_unknown_shape={"fields": lambda x: {"loss": tf.placeholder(tf.float32)}},
    no_loss={"fields": lambda x: {"loss": None}},
    no_train_op={"fields": lambda x: {"mode": "train"}},
    no_predictions={"fields": lambda x: {"mode": "infer"}},
    train_op_number={"fields": lambda x: {"train_op": 1}},
    train_op_list={"fields": lambda x: {"train_op": [x.op]}},
    train_op_tensor={"fields": lambda x: {"train_op": x}},
    predictions_number={"fields": lambda x: {"predictions": 1}},
    predictions_list={"fields": lambda x: {"predictions": [x]}},
    predictions_of_numbers={"fields": lambda x: {"predictions": {"a": 1}}},
    predictions_of_arrays={"fields": lambda x: {"predictions": {"a": np.ones(2)}}},
    predictions_of_lists={"fields": lambda x: {"predictions": {"a": [x]}}},
    predictions_of_operations={"fields": lambda x: {"predictions": {"a": x.op}}},
    predictions_sparse={"fields": lambda x: {"predictions": {"a": tf.sparse.eye(2)}}},
    predictions_variable={"fields": lambda x: {"predictions": {"a": tf.Variable(1.0)}}},
    metrics_list={"fields": lambda x: {"eval_metric_ops": [("a", (x, x))]}},
    metric_tensor={"fields": lambda x: {"eval_metric_ops": {"a": x}}},
    metric_list={"fields": lambda x: {"eval_metric_ops": {"a": [x, x]}}},
    metric_value_number={"fields": lambda x: {"eval_metric_ops": {"a": (1.0, x)}}},
    metric_update_none={"fields": lambda x: {"eval_metric_ops": {"a": (x, None)}}},
    metric_update_operation={"fields": lambda x: {"eval_metric_ops": {"a": (x, x.op)}}},
    scaffold_class={"fields": lambda x: {"scaffold": tf.train.Scaffold}},
    scaffold_number={"fields": lambda x: {"scaffold": 1}},
    chief_hook={"fields": lambda x: {"training_chief_hooks": ["hook"]}},
    hooks_number={"fields": lambda x: {"training_hooks": 1}},
    prediction_hook={"fields": lambda x: {"prediction_hooks": [tf.train.SessionRunHook]}},
    unknown_mode={"fields": lambda x: {"mode": "tune"}},
)
def estimator_spec(api, folder, fields):
    """What the constructor of EstimatorSpec refuses by itself."""
    with tf.Graph().as_default():
        tensor = tf.constant(1.0)
        keywords = {"mode": "eval", "loss": tensor, **fields(tensor)}
        return outcome(lambda: api.EstimatorSpec(**keywords), says=SPEC_PHRASES)


SPEC_PHRASES = [
    *["Missing loss", "Missing train_op", "Missing predictions", "loss must be Tensor"],
    *["Loss must be scalar", "train_op must be Operation or Tensor", "predictions must be Tensor"],
    *["predictions[a] must be Tensor", "eval_metric_ops must be a dict"],
    *["Values of eval_metric_ops must be (metric_value, update_op) tuples"],
    *["scaffold must be tf.train.Scaffold", "All hooks must be SessionRunHook instances"],
    *["must be from the default graph", "mode of EstimatorSpec cannot be changed"],
]


@table(
    mode={"fields": {"mode": "train"}},
    same_mode={"fields": {"mode": "eval"}},
    no_loss={"fields": {"loss": None}},
    loss_number={"fields": {"loss": 1.0}},
)
def estimator_spec_replace(api, folder, fields):
    with tf.Graph().as_default():
        value = api.EstimatorSpec("eval", loss=tf.constant(1.0))
        return outcome(lambda: value._replace(**fields), says=SPEC_PHRASES)


@table(
    loss={"mode": "eval", "fields": lambda loss: {"loss": loss}},
    predictions={"mode": "infer", "fields": lambda loss: {"predictions": {"x": loss}}},
    train_op={"mode": "train", "fields": lambda loss: {"train_op": loss.op}},
    metric={"mode": "eval", "fields": lambda loss: {"eval_metric_ops": {"m": (loss, loss.op)}}},
)
def spec_of_another_graph(api, folder, mode, fields):
    with tf.Graph().as_default():
        elsewhere = tf.constant(1.0)
    with tf.Graph().as_default():
        here = tf.constant(1.0)
        keywords = {"loss": here, "predictions": {"x": here}, "train_op": here.op}
        return outcome(
            lambda: api.EstimatorSpec(mode, **{**keywords, **fields(elsewhere)}),
            says=["loss", "graph", "must be from the default graph"],
        )


@table(
    none={"make": lambda api, x: None},
    not_a_dict={"make": lambda api, x: [api.serving.PredictOutput({"x": x})]},
    tensors={"make": lambda api, x: {"x": x}},
    one_of_another_name={"make": lambda api, x: {"own": api.serving.PredictOutput({"x": x})}},
    several_without_the_default={
        "make": lambda api, x: {name: api.serving.PredictOutput({"x": x}) for name in "ab"}
    },
    several_with_the_default={
        "make": lambda api, x: {
            name: api.serving.PredictOutput({"x": x}) for name in ("a", "serving_default")
        }
    },
    empty={"make": lambda api, x: {}},
)
def export_outputs(api, folder, make):
    """Checked when the spec is made, in PREDICT alone."""
    found = {}

    def specify(mode):
        with tf.Graph().as_default():
            x = tf.constant(1.0)
            tensors = {"predictions": {"x": x}, "loss": x, "train_op": x.op}
            made = api.EstimatorSpec(mode, export_outputs=make(api, x), **tensors)
        outputs = made.export_outputs
        found[mode + "_names"] = sorted(outputs) if isinstance(outputs, dict) else plain(outputs)

    for mode in ("train", "eval", "infer"):
        found[mode] = outcome(lambda mode=mode: specify(mode), says=["export_outputs"])
    return found


@scenario
def spec_is_a_named_tuple(api, folder):
    with tf.Graph().as_default():
        value = api.TPUEstimatorSpec("eval", loss=tf.constant(1.0))
        return {"fields": list(value._fields), "training_hooks": plain(value.training_hooks)}


# Calls.


@table(
    steps_and_max_steps={"keywords": {"steps": 1, "max_steps": 1}, "says": ["steps", "max_steps"]},
    steps_0={"keywords": {"steps": 0}, "says": ["steps"]},
    steps_negative={"keywords": {"steps": -1}, "says": ["steps"]},
    steps_float={"keywords": {"steps": 1.5}, "says": ["steps"]},
    steps_whole_float={"keywords": {"steps": 2.0}, "says": ["steps"]},
    steps_text={"keywords": {"steps": "2"}, "says": ["steps"]},
    max_steps_0={"keywords": {"max_steps": 0}, "says": ["max_steps"]},
    max_steps_negative={"keywords": {"max_steps": -1}, "says": ["max_steps"]},
    max_steps_text={"keywords": {"max_steps": "2"}, "says": ["max_steps"]},
    hooks_of_text={"keywords": {"steps": 1, "hooks": ["hook"]}, "says": ["hook"]},
    hook_class={
        "keywords": {"steps": 1, "hooks": [tf.train.SessionRunHook]},
        "says": ["SessionRunHook"],
    },
    one_hook={
        "keywords": {"steps": 1, "hooks": tf.train.SessionRunHook()},
        "says": [],
    },
    hooks_as_a_tuple={"keywords": {"steps": 1, "hooks": (tf.train.SessionRunHook(),)}, "says": []},
    no_hooks={"keywords": {"steps": 1, "hooks": []}, "says": []},
    listeners_of_text={
        "keywords": {"steps": 1, "saving_listeners": ["listener"]},
        "says": ["listener"],
    },
    unknown={"keywords": {"more": 1}, "says": ["more"]},
)
def train_refuses(api, folder, keywords, says):
    calls = []
    estimator = make_estimator(api, folder, make_model_fn(api, calls))
    failure = outcome(lambda: estimator.train(make_input_fn(), **keywords), says)
    return {**failure, "model_fn_calls": len(calls)}


@table(
    steps_0={"keywords": {"steps": 0}, "says": ["steps"]},
    steps_negative={"keywords": {"steps": -1}, "says": ["steps"]},
    steps_text={"keywords": {"steps": "2"}, "says": ["steps"]},
    steps_float={"keywords": {"steps": 1.5}, "says": ["steps"]},
    hooks_of_text={"keywords": {"steps": 1, "hooks": ["hook"]}, "says": ["hook"]},
    unknown={"keywords": {"max_steps": 1}, "says": ["max_steps"]},
)
def evaluate_refuses(api, folder, keywords, says):
    calls = []
    estimator = make_estimator(api, folder, make_model_fn(api, calls))
    failure = outcome(lambda: estimator.evaluate(make_input_fn(), **keywords), says)
    return {**failure, "model_fn_calls": len(calls)}


@scenario
def labels_not_taken_in_evaluation(api, folder):
    def model_fn(features, mode, params):
        graph = build(features, None, mode)
        return api.TPUEstimatorSpec(mode, loss=graph.loss, train_op=graph.train_op)

    estimator = make_estimator(api, folder, model_fn)
    return {
        "with_labels": outcome(lambda: estimator.evaluate(make_input_fn(), steps=1), ["labels"]),
        "without": outcome(
            lambda: estimator.evaluate(lambda params: dataset(4, 2, labels=False), steps=1)
        ),
    }
