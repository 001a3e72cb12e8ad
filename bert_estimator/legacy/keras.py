"""`tf.keras` as it was in TensorFlow 1; only this module imports the tf_keras package."""

try:
    from tf_keras.api._v1.keras import *  # noqa: F403
except ImportError as error:
    raise ImportError(
        "tf.keras of TensorFlow 1 needs the tf_keras package: pip install 'bert-estimator[legacy]' "
        "(a tf_keras of TensorFlow's own version)"
    ) from error
