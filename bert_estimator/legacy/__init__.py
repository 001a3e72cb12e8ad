"""Runs scripts written for TensorFlow 1 and its TPUEstimator, unmodified.

    python -m bert_estimator.legacy SCRIPT.py [its flags]

or, from code, before anything imports TensorFlow:

    import bert_estimator.legacy
    bert_estimator.legacy.install()

`names.py` is the table of the names that scripts can import.
"""

import logging
import warnings


def install() -> None:
    """Makes `import tensorflow` give TensorFlow 1's names and behaviour, in the whole process.

    The same holds for `tensorflow.compat.v1`, `tensorflow.contrib.*`, `tensorflow_estimator` and
    the import paths in `names.py`. Graphs, reference variables and `tf.Dimension` values behave as
    in TensorFlow 1, datasets read nothing ahead unless they say so, and protobuf and NumPy accept
    what they accepted then. A missing name raises an AttributeError that says what the name was and
    what to use. Further calls have no effect.
    """
    # These imports are here so that importing this package does not load TensorFlow.
    import tensorflow.compat.v1 as tf
    from absl import flags
    from tensorflow.python.util import deprecation

    from bert_estimator.legacy import modules, strictness
    from bert_estimator.legacy.stand_ins import data, variables
    from bert_estimator.system import steady_clock

    if isinstance(tf, modules.LegacyModule):
        return
    # The user of this function knows that the script is old.
    deprecation._PRINT_DEPRECATION_WARNINGS = False
    warnings.filterwarnings("ignore", r"`(tf\.layers|layer\.(apply|updates))", UserWarning)
    _log_once(tf.get_logger())
    if "log_dir" in flags.FLAGS:  # of absl.logging; up to TensorFlow 1.13 scripts could have theirs
        flags.FLAGS["log_dir"].allow_override = True
    tf.disable_v2_behavior()
    steady_clock.install()
    strictness.relax()
    data.put_back()
    variables.put_back()
    modules.put_back_moved_names()
    modules.put_in_place()


def _log_once(logger):
    """Silences TensorFlow's own log handlers while the root logger has handlers.

    TensorFlow adds its handler only if the root logger does not have any. absl's `app.run` adds one
    later, and each line was printed by both.
    """
    for handler in logger.handlers:
        handler.addFilter(lambda record: not logging.getLogger().handlers)
