"""Runs scripts written for TensorFlow 1 and its TPUEstimator, unmodified.

    python -m bert_estimator.legacy SCRIPT.py [its flags]

or, from code, before anything imports TensorFlow:

    import bert_estimator.legacy
    bert_estimator.legacy.install()

`names.py` is the table of the names that scripts can import.
"""

import importlib.util
import warnings

NEEDS_KERAS = (
    "Old scripts need the tf_keras package, in the release of TensorFlow's own version: "
    "pip install 'bert-estimator[legacy]', or in a checkout pip install -e '.[legacy]'"
)


def check_keras() -> None:
    """Raises an ImportError that says what to install if the tf_keras package is missing."""
    if importlib.util.find_spec("tf_keras") is None:
        raise ImportError(NEEDS_KERAS)


def install(tf2: bool = False) -> None:
    """Makes `import tensorflow` give TensorFlow 1's names and behaviour, in the whole process.

    The same holds for `tensorflow.compat.v1`, `tensorflow.contrib.*`, `tensorflow_estimator` and
    the import paths in `names.py`. Further calls have no effect.

    Args:
      tf2: whether the program was written for TensorFlow 2.0 to 2.15. Then `import tensorflow`
        gives TensorFlow 2's names and behaviour, with `tf.estimator` and Keras 2. TensorFlow 1's
        names are `tf.compat.v1.X`, with its canned estimators.

    Raises:
      ImportError: the tf_keras package is missing.
      RuntimeError: `install` was called before, for the other version.
    """
    check_keras()
    # These imports are here so that importing this package does not load TensorFlow.
    import tensorflow.compat.v1 as tf
    from absl import flags
    from tensorflow.python.util import deprecation

    from bert_estimator.legacy import modules, strictness
    from bert_estimator.legacy.stand_ins import data

    if isinstance(tf, modules.LegacyModule):
        if tf2 != modules.is_of_2():
            version = 2 if modules.is_of_2() else 1
            raise RuntimeError(
                f"`import tensorflow` gives TensorFlow {version} in this process already, and "
                f"install(tf2={tf2}) would have it give the other one. Call install once"
            )
        return
    # The user of this function knows that the script is old.
    deprecation._PRINT_DEPRECATION_WARNINGS = False
    old = r"`(tf\.layers|layer\.(apply|updates)|tf\.keras\.backend\.|Model\.state_updates)"
    warnings.filterwarnings("ignore", old, UserWarning)
    strictness.log_old_lines(tf.get_logger())
    if "log_dir" in flags.FLAGS:  # of absl.logging; up to TensorFlow 1.13 scripts could have theirs
        flags.FLAGS["log_dir"].allow_override = True
    if not tf2:
        # This brings back graphs, reference variables, `tf.Dimension`, and datasets that read on
        # demand.
        tf.disable_v2_behavior()
        data.put_back()
    strictness.relax()
    modules.put_back_moved_names()
    modules.put_in_place(tf2)
