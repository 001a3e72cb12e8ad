"""Event files: what evaluations wrote is read, and writers whose file is lost are dropped."""

import collections
import contextlib

import tensorflow.compat.v1 as tf
from google.protobuf import message


def drop_stale_writer(directory: str | None) -> None:
    """Closes the cached event writer of a directory whose event file is not there any more.

    It was deleted, or the directory is relative and now means another one. The writer would write
    to the lost file; `tf.summary.FileWriterCache.get` makes a new writer after this.
    """
    cache = tf.summary.FileWriterCache
    writer = cache._cache.get(directory)
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
            for event in tf.train.summary_iterator(path):
                for value in event.summary.value:
                    if value.HasField("simple_value"):
                        by_step[event.step][value.tag] = value.simple_value
        except (tf.errors.DataLossError, message.DecodeError) as error:
            tf.logging.warning("%s is read up to where it is damaged: %s", path, error)
    return collections.OrderedDict(sorted(by_step.items()))
