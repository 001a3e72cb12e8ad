"""The names of tf.estimator and of Keras's modules, and what each is called, as JSON."""

import json

import tensorflow as tf

MODULES = """estimator estimator.experimental estimator.export losses metrics optimizers
    optimizers.schedules initializers keras keras.layers keras.optimizers.legacy
    compat.v1.estimator compat.v1.estimator.experimental compat.v1.estimator.export
    compat.v1.estimator.inputs compat.v1.estimator.tpu compat.v1.keras.layers compat.v1.losses
    compat.v1.metrics compat.v1.train compat.v1.layers"""


def kind(module, name):
    """Returns the name of a class or function; of modules and constants, that they are there."""
    value = getattr(module, name)
    return value.__name__ if isinstance(value, type) else "other"


seen = {}
for path in MODULES.split():
    module = tf
    for part in path.split("."):
        module = getattr(module, part)
    names = [name for name in dir(module) if not name.startswith("_")]
    seen[path] = {name: kind(module, name) for name in names}
seen["tensorflow"] = {name: "other" for name in dir(tf) if not name.startswith("_")}
print(json.dumps({"names": seen}))
