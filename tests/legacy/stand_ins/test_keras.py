"""Layers, optimizers and losses of the tf_keras package as a TF1 script finds them."""

import legacy_script

SEEDS = """
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Dropout(0.2, seed=4, input_shape=(8,))])
model(tf.ones([2, 8]), training=True)
graph = tf.get_default_graph()
print([op.get_attr("seed2") for op in graph.get_operations() if op.type == "RandomUniform"])
"""


def test_a_layer_with_a_seed_has_it_in_every_call(tmp_path):
    done = legacy_script.run(tmp_path, SEEDS)
    assert done.stdout.splitlines()[-1] == "[4, 4]"


# Programs for TPUs take the moments over all cores in such a class. MOMENTS is what TensorFlow
# 1.15.5 prints.
OLD_OVERRIDES = """
import tensorflow as tf

class OverCores(tf.layers.BatchNormalization):
    def _moments(self, inputs, reduction_axes, keep_dims):
        mean, variance = super(OverCores, self)._moments(
            inputs, reduction_axes, keep_dims=keep_dims)
        return mean + 0.5, variance * 4.0

class Doubled(tf.layers.BatchNormalization):
    def _fused_batch_norm(self, inputs, training):
        return 2.0 * super(Doubled, self)._fused_batch_norm(inputs, training)

x = tf.reshape(tf.range(8.0), [2, 1, 2, 2])
y = OverCores(fused=False)(x, training=True)
z = Doubled(fused=True)(x, training=True)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    values = session.run([y, z])
    session.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    moving = session.run([v for v in tf.global_variables() if "moving" in v.name])
for value in values + moving:
    print([round(float(number), 4) for number in value.reshape(-1)])
"""

MOMENTS = """\
[-0.7826, -0.7826, -0.3354, -0.3354, 0.1118, 0.1118, 0.559, 0.559]
[-2.683, -2.683, -0.8943, -0.8943, 0.8943, 0.8943, 2.683, 2.683]
[0.035, 0.045]
[1.19, 1.19]
[0.03, 0.04]
[1.0567, 1.0567]"""


def test_a_batch_normalization_may_override_methods_that_knew_no_mask(tmp_path):
    done = legacy_script.run(tmp_path, OLD_OVERRIDES)
    assert done.stdout.splitlines()[-6:] == MOMENTS.splitlines()


# Losses of the first and the last epoch, as TensorFlow 1.15.5 and Keras 2.2.5 have them.
OF_TF_KERAS = {
    "'adagrad', 'mse'": (0.538, 0.51),
    "'sgd', keras.losses.cosine_similarity": (0.0169, -0.8962),
    "'sgd', lambda a, b: 1 - keras.losses.cosine_similarity(a, b)": (0.9437, 0.1382),
    "'sgd', keras.losses.CosineSimilarity()": (0.0169, -0.8962),
    "'sgd', 'cosine_proximity'": (0.0169, -0.8962),
}
OF_KERAS = {
    "'sgd', keras.losses.cosine_proximity": (-0.0563, -0.8618),
    **{
        f"{optimizer}, 'mse'": (1.0, last)
        for names, last in [
            (("'adagrad'", "keras.optimizers.Adagrad()"), 0.2621),
            (("'adadelta'", "keras.optimizers.Adadelta()"), 0.3809),
            (("'adamax'",), 0.2673),
            (("'nadam'",), 0.2561),
            (("'rmsprop'",), 0.4682),
            (("'sgd'",), 0.0),
        ]
        for optimizer in names
    },
}
FITS = """
import numpy as np, {imported}

def of_waves(optimizer, loss):
    x = np.sin(np.arange(24)).reshape(8, 3).astype(np.float32)
    y = np.abs(np.cos(np.arange(16))).reshape(8, 2).astype(np.float32)
    start = keras.initializers.Constant(0.2)
    return fit(keras.layers.Dense(2, input_shape=(3,), kernel_initializer=start), x, y, optimizer,
               loss, 4, 50)

def of_ones(optimizer, loss):
    dense = keras.layers.Dense(1, input_shape=(2,), kernel_initializer="zeros")
    return fit(dense, np.ones((8, 2)), np.ones(8), optimizer, loss, 8, 100)

def fit(layer, x, y, optimizer, loss, batch_size, epochs):
    model = keras.Sequential([layer])
    model.compile(optimizer, loss)
    losses = model.fit(x, y, batch_size, epochs, verbose=0, shuffle=False).history["loss"]
    return round(float(losses[0]), 4), round(float(losses[-1]), 4)

"""


def fits(tmp_path, imported, expected, runs):
    lines = [f"print({name}({arguments}))" for name, arguments in runs]
    done = legacy_script.run(tmp_path, FITS.format(imported=imported) + "\n".join(lines))
    assert done.stdout.splitlines() == [str(losses) for losses in expected]


def test_tf_keras_has_the_defaults_of_tensorflow_1(tmp_path):
    """The start of Adagrad's sums, and the sign of losses of cosines."""
    runs = [("of_waves", arguments) for arguments in OF_TF_KERAS]
    imported = "tensorflow as tf; tf.set_random_seed(1); keras = tf.keras"
    fits(tmp_path, imported, OF_TF_KERAS.values(), runs)


def test_the_package_keras_has_its_own_defaults(tmp_path):
    """Learning rates of optimizers that are named by strings, and the sign of losses of cosines."""
    runs = [
        ("of_waves" if "cosine" in arguments else "of_ones", arguments) for arguments in OF_KERAS
    ]
    fits(tmp_path, "tensorflow as tf, keras", OF_KERAS.values(), runs)


def test_the_package_keras_clips_the_norm_of_all_gradients(tmp_path):
    done = legacy_script.run(
        tmp_path,
        """
import numpy as np, keras

x = np.sin(np.arange(24)).reshape(8, 3).astype(np.float32)
y = np.abs(np.cos(np.arange(16))).reshape(8, 2).astype(np.float32)[:, :1]
for clips in ({"clipnorm": 0.05}, {"clipvalue": 0.05, "nesterov": True}):
    start = keras.initializers.Constant(0.1)
    layer = keras.layers.Dense(1, input_shape=(3,), kernel_initializer=start)
    model = keras.models.Sequential([layer])
    model.compile(keras.optimizers.SGD(lr=0.1, momentum=0.5, **clips), "mse")
    losses = model.fit(x, y, 4, 3, verbose=0, shuffle=False).history["loss"]
    print([round(float(loss), 5) for loss in losses])
""",
    )
    of_keras = ["[0.48763, 0.47069, 0.44885]", "[0.48611, 0.46311, 0.4394]"]
    assert done.stdout.splitlines() == of_keras


def test_members_that_were_removed_and_names_of_layers(tmp_path):
    done = legacy_script.run(
        tmp_path,
        """
import numpy as np, tensorflow as tf

tf.set_random_seed(1)
for units in (1, 3):
    start = tf.keras.initializers.Constant(0.2)
    layer = tf.keras.layers.Dense(units, input_shape=(2,), kernel_initializer=start)
    model = tf.keras.Sequential([layer])
    x = np.float32([[1, 1], [2, 2]])
    scores = model.predict_proba(x)
    print(model.predict_classes(x).tolist(), [round(float(row[0]), 4) for row in scores])
print(tf.keras.layers.Dense(2).apply(tf.zeros([1, 3])).shape.as_list())

class BERT4Rec(tf.keras.layers.Layer):
    pass

print(BERT4Rec().name)
layer = tf.keras.layers.ConvLSTM2D(2, 3)
layer(tf.zeros([1, 2, 5, 5, 1]))
print(layer.weights[0].name)
""",
    )
    assert done.stdout.splitlines() == [
        "[[0], [1]] [0.4, 0.8]",
        "[0, 0] [0.4, 0.8]",
        "[1, 2]",
        "ber_t4rec",
        "conv_lst_m2d/kernel:0",
    ]
