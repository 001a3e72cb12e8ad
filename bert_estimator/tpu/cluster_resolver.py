"""The cluster resolver for old scripts: it carries a TPU's name to `RunConfig(cluster=...)`."""

import os

import tensorflow.compat.v1 as tf


class TPUClusterResolver:
    """Names the TPU to run on, as `tf.distribute.cluster_resolver.TPUClusterResolver` does.

    TensorFlow's resolver asks Google Cloud for the addresses of a TPU's workers. Here a program
    runs on the TPU's own machine and does not need addresses. The resolver only holds the name,
    which is looked up when a TPUEstimator needs cores.

    Args:
      tpu: "local", "gpu" or "rehearse:N". None means the environment variable `TPU_NAME`. "" does
        not name a TPU, like `RunConfig(master="")`.
      zone: accepted and ignored, as all arguments after it are.

    Raises:
      ValueError: `tpu` is None and `TPU_NAME` is not set.
    """

    def __init__(
        self,
        tpu=None,
        zone=None,
        project=None,
        job_name="worker",
        coordinator_name=None,
        coordinator_address=None,
        credentials="default",
        service=None,
        discovery_url=None,
        tpu_hardware_feature=None,
    ):
        if isinstance(tpu, list | tuple):
            (tpu,) = tpu
        name = (os.environ.get("TPU_NAME") or None) if tpu is None else tf.compat.as_str(tpu)
        if name is None:
            raise ValueError(
                "TPUClusterResolver: please provide a TPU name to connect to, as the argument tpu "
                "or in the environment variable TPU_NAME"
            )
        self._name = name

    def master(self, task_type=None, task_id=None, rpc_layer=None) -> str:
        """Returns the TPU's name, or "", in the form that `RunConfig(master=...)` takes."""
        return self._name

    get_master = master

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Returns an empty `tf.train.ClusterSpec`, since the program does not talk to workers."""
        return tf.train.ClusterSpec({})

    def get_job_name(self) -> str:
        """Returns the job of the TPU's workers."""
        return "worker"
