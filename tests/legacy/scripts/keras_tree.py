"""What `tensorflow.python.keras` does, as JSON: learning phases, trainings, classes of tf.keras.

`keras_tree.py --names` prints the names that the modules of TensorFlow 1.15's tree define.
"""

from __future__ import absolute_import, division, print_function

import importlib
import inspect
import json
import os
import sys

import numpy as np
import tensorflow as tf
import tensorflow.python.keras.backend
from tensorflow.contrib import keras as contrib_keras
from tensorflow.python import keras
from tensorflow.python.keras import backend as K
from tensorflow.python.keras import callbacks, initializers, models, optimizers, regularizers
from tensorflow.python.keras.engine import base_layer, training
from tensorflow.python.keras.engine.network import Network
from tensorflow.python.keras.layers import GRU, LSTM, BatchNormalization, Dense, Dropout
from tensorflow.python.keras.layers.core import Lambda
from tensorflow.python.keras.layers.merge import add, concatenate
from tensorflow.python.keras.optimizer_v2 import adam as adam_v2
from tensorflow.python.keras.optimizers import SGD, Adam

X = np.arange(12, dtype=np.float32).reshape(4, 3) / 12


def names():
    """Returns module -> the public names of classes and functions that it defines."""
    root = os.path.dirname(keras.__file__)
    defined = {}
    for folder, _, files in os.walk(root):
        for file in files:
            path = os.path.relpath(os.path.join(folder, file), root)
            module = "tensorflow.python.keras." + path[:-3].replace(os.sep, ".")
            module = module[: -len(".__init__")] if module.endswith(".__init__") else module
            if not file.endswith(".py") or "test" in path or ".keras.api." in module + ".":
                continue
            if file in ("keras_parameterized.py",):
                continue
            members = vars(importlib.import_module(module)).items()
            defined[module] = sorted(
                name
                for name, value in members
                if name[0] != "_"
                and (inspect.isclass(value) or inspect.isfunction(value))
                and (value.__module__ == module or file == "__init__.py")
                and value.__module__.startswith("tensorflow.python.keras")
            )
    return defined


def in_learning_phases():
    """Returns what batch normalization gives, and whether dropout drops, in both phases."""
    seen = []
    for phase in (0, 1):
        tf.reset_default_graph()
        K.clear_session()
        K.set_learning_phase(phase)
        normal = BatchNormalization()(tf.constant(X))
        dropped = Dropout(0.5, seed=1)(tf.ones([100, 100]))
        session = K.get_session()
        session.run(tf.global_variables_initializer())
        normal, dropped = session.run([normal, dropped])
        seen.append([normal.tolist(), bool((dropped == 0).any()), K.learning_phase()])
    return seen


def fit(make_optimizer):
    tf.reset_default_graph()
    K.clear_session()
    hidden = Dense(4, "tanh", kernel_initializer=initializers.Constant(0.3), input_shape=(3,))
    output = Dense(1, kernel_initializer="ones", kernel_regularizer=regularizers.l2(0.01))
    model = models.Sequential([hidden, BatchNormalization(), output])
    model.compile(make_optimizer(), "mse")
    stop = callbacks.EarlyStopping("loss", patience=5)
    history = model.fit(X, X[:, :1], 2, 3, verbose=0, shuffle=False, callbacks=[stop])
    return [float(loss) for loss in history.history["loss"]] + model.predict(X)[:, 0].tolist()


def recurrent():
    tf.reset_default_graph()
    K.clear_session()
    ones = {"kernel_initializer": "ones", "recurrent_initializer": "ones"}
    model = models.Sequential(
        [LSTM(2, input_shape=(2, 3), return_sequences=True, **ones), GRU(2, **ones)]
    )
    output = model.predict(np.stack([X[:2], X[2:]])).tolist()
    return output, [weight.name for weight in model.weights]


class Mine(base_layer.Layer):
    """A layer of a script's own."""

    def build(self, shape):
        self.kernel = self.add_weight("kernel", shape=(int(shape[-1]), 2), initializer="ones")
        super(Mine, self).build(shape)

    def call(self, inputs):
        return K.dot(inputs, self.kernel)


def functional():
    tf.reset_default_graph()
    K.clear_session()
    x = keras.Input((3,))
    mine = Mine()(x)
    both = concatenate([add([mine, mine]), Lambda(lambda t: t * 2)(x)])
    model = training.Model(x, tf.keras.layers.Dense(1, kernel_initializer="ones")(both))
    return [
        isinstance(model, Network),
        [layer.name for layer in model.layers],
        model.predict(X)[:, 0].tolist(),
    ]


def main():
    if "--names" in sys.argv:
        print(json.dumps(names()))
        return
    seen = {
        "same": [
            Dense is tf.keras.layers.Dense is contrib_keras.layers.Dense,
            BatchNormalization is tf.keras.layers.BatchNormalization,
            LSTM is tf.keras.layers.LSTM,
            GRU is tf.keras.layers.GRU,
            K.learning_phase is tf.keras.backend.learning_phase,
            keras.Model is tf.keras.Model is training.Model,
            models.Sequential is tf.keras.models.Sequential,
            adam_v2.Adam is tf.keras.optimizers.Adam,
            Adam is tf.keras.optimizers.Adam,
            initializers.Zeros is tf.keras.initializers.Zeros,
            regularizers.l2 is tf.keras.regularizers.l2,
            callbacks.EarlyStopping is tf.keras.callbacks.EarlyStopping,
            isinstance(tf.keras.layers.Dense(2), base_layer.Layer),
            isinstance(tf.layers.Dense(2), base_layer.Layer),
            isinstance(tf.nn.rnn_cell.LSTMCell(2), base_layer.Layer),
            tensorflow.python.keras.backend is K,
        ],
        "phases": in_learning_phases(),
        "fit": [
            fit(lambda: Adam(lr=0.01)),
            fit(lambda: SGD(0.1, momentum=0.5)),
            fit(lambda: adam_v2.Adam(0.01)),
            fit(lambda: "rmsprop"),
            fit(optimizers.Adadelta),
        ],
        "recurrent": recurrent(),
        "functional": functional(),
    }
    print(json.dumps({"keras_tree": seen}))


if __name__ == "__main__":
    main()
