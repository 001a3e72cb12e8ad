"""An event writer for host calls: `tf.summary`'s scalar, histogram and text, without TensorBoard.

TensorFlow's own functions refuse to run if the tensorboard package is not installed, although they
do not need it to write events. The functions here have the same signatures, and write events that
TensorBoard shows. Like TensorFlow's functions, they write to the default writer:

    with summary.create_file_writer(model_dir).as_default():
        summary.scalar("loss", loss[0], step=global_step[0])

The verbs get their writers here, read what evaluations wrote, and drop writers whose file is lost.
"""

import collections
import contextlib
import itertools
import os

import tensorflow.compat.v1 as tf1
import tensorflow.compat.v2 as tf
from google.protobuf import message
from tensorflow.core.framework import summary_pb2

create_file_writer = tf.summary.create_file_writer
record_if = tf.summary.record_if

_numbers = itertools.count()  # of the event files of this process


def scalar(name: str, data, step=None, description: str | None = None) -> tf.Tensor:
    """Writes a scalar of any real dtype; it is stored as float32.

    Returns:
      A bool tensor, like all functions of this module: whether the event was written. In a graph,
      running this tensor writes the event.

    Raises:
      ValueError: `data` is not a scalar.

    Example:

      >>> with tpu.summary.create_file_writer("events").as_default():
      ...     bool(tpu.summary.scalar("loss", 0.5, step=1))
      True
    """
    metadata = _metadata("scalars", description, summary_pb2.DATA_CLASS_SCALAR)
    with _tag(name, "scalar_summary") as tag:
        tf.debugging.assert_scalar(data)
        return tf.summary.write(tag, tf.cast(data, tf.float32), step=step, metadata=metadata)


def text(name: str, data, step=None, description: str | None = None) -> tf.Tensor:
    """Writes a string tensor of any shape."""
    metadata = _metadata("text", description, summary_pb2.DATA_CLASS_TENSOR)
    with _tag(name, "text_summary") as tag:
        data = tf.convert_to_tensor(data, tf.string)
        return tf.summary.write(tag, data, step=step, metadata=metadata)


def histogram(
    name: str, data, step=None, buckets: int = 30, description: str | None = None
) -> tf.Tensor:
    """Writes a histogram of a real tensor: [buckets, 3] of (left edge, right edge, count).

    The buckets have equal widths and cover [min, max]; the last bucket includes its right edge. If
    all values are equal, all edges are equal too, and the last bucket holds all values. Without
    values, all numbers are 0.
    """
    metadata = _metadata("histograms", description, summary_pb2.DATA_CLASS_TENSOR)
    with _tag(name, "histogram_summary") as tag:
        values = tf.reshape(data, [-1])

        def table():  # It is only made if it is written.
            return tf.cond(
                tf.size(values) > 0,
                lambda: _buckets(tf.cast(values, tf.float64), buckets),
                lambda: tf.zeros([buckets, 3], tf.float64),
            )

        return tf.summary.write(tag, table, step=step, metadata=metadata)


@contextlib.contextmanager
def _tag(name, kind):
    """Yields the tag of an event, which begins with the current name scope."""
    scope = tf.get_current_name_scope()
    # Operations get names of their own kind: a summary of TensorFlow 1 gets its tag from the name
    # of its operation, and has to find its name free ("loss", not "loss_1").
    with tf.name_scope(kind):
        yield f"{scope}/{name}" if scope else name


def _buckets(values, buckets):
    low, high = tf.reduce_min(values), tf.reduce_max(values)
    width = (high - low) / buckets
    position = tf.where(
        tf.equal(values, high),  # The other branch is 0 / 0 if all values are equal.
        tf.cast(buckets - 1, tf.float64),
        tf.floor((values - low) / width),
    )
    index = tf.clip_by_value(tf.cast(position, tf.int32), 0, buckets - 1)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(values), index, buckets)
    edges = tf.concat([low + width * tf.cast(tf.range(buckets), tf.float64), [high]], axis=0)
    return tf.stack([edges[:-1], edges[1:], counts], axis=1)


def _metadata(plugin, description, data_class):
    return summary_pb2.SummaryMetadata(
        plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name=plugin),
        summary_description=description or "",
        data_class=data_class,
    )


def event_writer(directory: str) -> tf1.summary.FileWriter:
    """Returns the writer of a directory in `tf1.summary.FileWriterCache`, which it makes if
    needed."""
    cache = tf1.summary.FileWriterCache
    with cache._lock:
        if directory not in cache._cache:
            # TensorFlow names an event file by the second. A writer that is made in the same second
            # as the one before it would empty its file; so the names here end in the process and a
            # number.
            suffix = f".{os.getpid()}.{next(_numbers)}"
            cache._cache[directory] = tf1.summary.FileWriter(
                directory, graph=tf1.get_default_graph(), filename_suffix=suffix
            )
        return cache._cache[directory]


def drop_stale_writer(directory: str | None) -> None:
    """Closes the cached event writer of a directory whose event file is not there any more."""
    cache = tf1.summary.FileWriterCache
    writer = cache._cache.get(directory)
    # The file was deleted, or the directory is relative and now means another one. The writer would
    # write to the lost file; `event_writer` makes a new writer after this.
    if writer is None:
        return
    with contextlib.suppress(Exception):  # What the lost file still misses cannot be written.
        writer.flush()  # Then the writer's thread does not work on the file.
        if tf.io.gfile.exists(writer.event_writer._ev_writer.FileName()):
            return
    with cache._lock:
        cache._cache.pop(directory, None)
    with contextlib.suppress(Exception):
        writer.close()


def read_events(pattern):
    """Returns what evaluations wrote to event files.

    Args:
      pattern: glob of the files. A file that is cut short, as by a kill, or damaged is read as far
        as it goes; of two evaluations of a step, the one in the later file counts.

    Returns:
      An OrderedDict of global step -> dict of metric name -> float, sorted by step.
    """
    by_step = collections.defaultdict(dict)
    for path in sorted(tf.io.gfile.glob(pattern)):
        try:
            for event in tf1.train.summary_iterator(path):
                for value in event.summary.value:
                    if value.HasField("simple_value"):
                        by_step[event.step][value.tag] = value.simple_value
        except (tf.errors.DataLossError, message.DecodeError) as error:
            tf1.logging.warning("%s is read up to where it is damaged: %s", path, error)
    return collections.OrderedDict(sorted(by_step.items()))
