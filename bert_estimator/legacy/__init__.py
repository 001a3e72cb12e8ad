"""Runs scripts written for TensorFlow 1 and its TPUEstimator, unmodified.

    python -m bert_estimator.legacy SCRIPT.py [its flags]

or, from code, before anything imports TensorFlow:

    import bert_estimator.legacy
    bert_estimator.legacy.install()

The names it gives are a table: `names.py`.
"""

import warnings


def install():
    """Makes `import tensorflow` give TensorFlow 1's names and behaviour, in the whole process.

    Also `tensorflow.compat.v1`, `tensorflow.contrib.*`, `tensorflow_estimator` and the import paths
    that `names.py` lists. Graphs, reference variables, `tf.Dimension` values are as in TensorFlow
    1. A name that is not given raises an AttributeError which says what it was and what to use.
    Calling it again changes nothing.
    """
    # Here, so that to import this package is not to load TensorFlow.
    import tensorflow.compat.v1 as tf
    from tensorflow.python.util import deprecation

    from bert_estimator.legacy import modules

    if isinstance(tf, modules.LegacyModule):
        return
    # Whoever runs this knows that the script is old.
    deprecation._PRINT_DEPRECATION_WARNINGS = False
    warnings.filterwarnings("ignore", r"`(tf\.layers|layer\.(apply|updates))", UserWarning)
    tf.disable_v2_behavior()
    modules.put_back_moved_names()
    modules.put_in_place()
