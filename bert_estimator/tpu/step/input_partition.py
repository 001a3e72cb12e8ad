"""`TPUConfig.input_partition_dims`: which inputs are split over the cores of a replica, and how.

An image may be too large for one core. Its parts then lie on the cores of a replica, and the
compiler divides the work accordingly; it exchanges the borders that convolutions need.
"""

import math

from bert_estimator.tpu.spec import ModeKeys
from bert_estimator.tpu.step.inputs import named_leaves


def parts_of_inputs(job, features, labels) -> list[list[int] | None]:
    """Returns how each input of a replica is split.

    Args:
      job: the `Job`.
      features, labels: structures of tensors, with the shapes of one replica's share of the batch.

    Returns:
      For each tensor, in the order of `tf.nest.flatten`, a list with the number of parts of each
      dimension; None if every core of the replica has the whole tensor.

    Raises:
      ValueError: input_partition_dims does not fit the inputs, or there are several hosts.
    """
    config = job.config.tpu_config
    whole = [None for _ in named_leaves("", features) + named_leaves("", labels)]
    if config.input_partition_dims is None:
        return whole
    if job.hosts.number > 1:
        raise ValueError(
            f"TPUConfig: input_partition_dims is not supported with {job.hosts.number} hosts, only "
            "with one"
        )
    of_features, of_labels, *_ = [*config.input_partition_dims, None]
    if job.mode == ModeKeys.PREDICT:
        of_labels = None  # predict drops the labels
    cores = config.num_cores_per_replica
    parts = _parts("features", features, of_features, cores)
    return parts + _parts("labels", labels, of_labels, cores)


def _parts(path, structure, dims, cores):
    """Returns the parts of each tensor of a structure."""
    leaves = named_leaves(path, structure)
    if dims is None:
        return [None for _ in leaves]
    if leaves == [(path, structure)]:
        return [_parts_of_tensor(path, structure, dims, cores)]
    if isinstance(structure, dict):
        fits = isinstance(dims, dict) and dims.keys() == structure.keys()
        keys = sorted(structure)
    else:
        fits = isinstance(dims, list | tuple) and len(dims) == len(structure or ())
        keys = range(len(structure or ()))
    if not fits:
        raise ValueError(
            f"TPUConfig: input_partition_dims has {dims!r} for {path}, but its structure must be "
            f"the inputs' own: {structure!r}"
        )
    each = (_parts(f"{path}[{key!r}]", structure[key], dims[key], cores) for key in keys)
    return [parts for of_key in each for parts in of_key]


def _parts_of_tensor(path, tensor, dims, cores):
    shape = tensor.shape.as_list()
    numbers = isinstance(dims, list | tuple) and all(isinstance(n, int) and n > 0 for n in dims)
    if not numbers or len(dims) != len(shape) or math.prod(dims) != cores:
        raise ValueError(
            f"TPUConfig: input_partition_dims has {dims!r} for {path} of shape {shape}: it must be "
            "None, or a list with the number of parts of each dimension, whose product is "
            f"num_cores_per_replica={cores}"
        )
    if any(size % number for size, number in zip(shape, dims, strict=True)):
        raise ValueError(
            f"TPUConfig: input_partition_dims has {dims!r} for {path}, but its shape {shape} "
            "cannot be split evenly into so many parts"
        )
    return list(dims)
