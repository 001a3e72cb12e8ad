"""What parts of tf.contrib give, as JSON: random fields, recurrent cells, loss scales, averages.

Weights are a function of their place, so that both versions of TensorFlow have the same.
"""

from __future__ import absolute_import, division, print_function

import json
import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow.contrib import crf, mixed_precision, rnn

RANDOM = np.random.RandomState(0)
# [T, B, C], and lengths [B].
X = RANDOM.normal(size=(4, 3, 2)).astype(np.float32)
LENGTHS = np.array([4, 2, 0], np.int32)


def seen(name, values):
    numbers = [[float("%.7g" % v) for v in np.ravel(value)] for value in values]
    print(json.dumps({name: numbers}))


def of_crf():
    transitions = RANDOM.normal(size=(3, 3)).astype(np.float32)
    for length in (4, 1):
        for is_static in (True, False):
            arrays = [
                RANDOM.normal(size=(4, length, 3)).astype(np.float32),
                RANDOM.randint(0, 3, (4, length)).astype(np.int32),
                RANDOM.uniform(size=(4, length, 3)) < 0.6,
            ]
            arrays[2][..., 0] = True
            lengths = np.array([length, max(length - 2, 1), 1, 0])
            with tf.Graph().as_default(), tf.Session() as session:
                shapes = [a.shape if is_static else (None, None) + a.shape[2:] for a in arrays]
                dtypes = (tf.float32, tf.int32, tf.bool)
                holders = [tf.placeholder(*pair) for pair in zip(dtypes, shapes)]
                potentials, tags, bitmap = holders
                by = tf.Variable(transitions)
                likelihood, used = crf.crf_log_likelihood(potentials, tags, lengths, by)
                assert used is by
                fetches = [
                    likelihood,
                    crf.crf_sequence_score(potentials, tags, lengths, by),
                    crf.crf_multitag_sequence_score(potentials, bitmap, lengths, by)[:3],
                    crf.crf_log_norm(potentials, lengths, by),
                    crf.crf_unary_score(tags, lengths, potentials),
                    crf.crf_binary_score(tags, lengths, by),
                    crf.crf_decode(potentials, by, lengths),
                ]
                if length > 1:
                    fetches.append(tf.gradients(likelihood[:3], [by, potentials]))
                session.run(tf.global_variables_initializer())
                results = session.run(fetches, dict(zip(holders, arrays)))
            best = crf.viterbi_decode(arrays[0][0], transitions)
            flat = [
                np.asarray(part)
                for result in results
                for part in (result if isinstance(result, (list, tuple)) else [result])
            ]
            seen("crf of length %d, static: %s" % (length, is_static), flat + list(best))
    with tf.Graph().as_default(), tf.Session() as session:
        first, others = tf.constant(X[0]), tf.constant(X[1:])
        by = transitions[:2, :2]
        run = dict(sequence_length=[3, 1, 2], time_major=True)
        _, alphas = tf.nn.dynamic_rnn(crf.CrfForwardRnnCell(by), others, initial_state=first, **run)
        back, best = tf.nn.dynamic_rnn(
            crf.CrfDecodeForwardRnnCell(by), others, initial_state=first, dtype=tf.int32, **run
        )
        tags, _ = tf.nn.dynamic_rnn(
            crf.CrfDecodeBackwardRnnCell(2),
            back,
            initial_state=tf.constant([[1], [0], [1]]),
            dtype=tf.int32,
            **run,
        )
        seen("crf cells", session.run([alphas, back, best, tags]))
        crf.crf_log_likelihood(tf.constant(X), tf.zeros([4, 3], tf.int32), tf.constant([3] * 4))
        print(json.dumps({"crf variable": [v.op.name for v in tf.trainable_variables()]}))


def both_directions(inputs):
    with tf.variable_scope("both"):
        forward = rnn.LSTMBlockFusedCell(2)
        backward = rnn.TimeReversedFusedRNN(rnn.LSTMBlockFusedCell(2))
        run = dict(dtype=tf.float32, sequence_length=LENGTHS)
        return (
            forward(inputs, **run),
            backward(inputs, **run),
            rnn.TimeReversedFusedRNN(forward)(inputs, dtype=tf.float32),
        )


def one_after_the_other(inputs):
    first, second = rnn.LSTMBlockFusedCell(2), rnn.LSTMBlockFusedCell(2)
    below, _ = first(inputs, dtype=tf.float32)
    above, state = second(below, dtype=tf.float32, sequence_length=LENGTHS)
    return above, state, first(inputs, initial_state=state)


def called_directly(inputs):
    cell = rnn.LSTMBlockCell(2)
    first, state = cell(inputs[0], cell.zero_state(3, tf.float32))
    second, state = cell(inputs[1], state)
    with tf.variable_scope("again"):
        third, _ = rnn.GRUBlockCell(2)(inputs[0], tf.zeros([3, 2]))
    return first, second, state, third


def several():
    return rnn.MultiRNNCell(
        [rnn.LSTMBlockCell(2), rnn.DropoutWrapper(rnn.LSTMBlockCell(3), output_keep_prob=1.0)]
    )


CELLS = {
    "lstm": lambda: rnn.LSTMBlockCell(2),
    "peepholes": lambda: rnn.LSTMBlockCell(2, 0.3, 0.2, True),
    "gru": lambda: rnn.GRUBlockCell(2),
    "gru v2": lambda: rnn.GRUBlockCellV2(cell_size=2),
    "layer norm": lambda: rnn.LayerNormBasicLSTMCell(3, norm_gain=0.9, norm_shift=0.1),
    "no layer norm": lambda: rnn.LayerNormBasicLSTMCell(
        2, 0.2, layer_norm=False, activation=tf.nn.relu
    ),
    "several": several,
}


def of_cell(name):
    return lambda inputs: tf.nn.dynamic_rnn(
        CELLS[name](), inputs, LENGTHS, dtype=tf.float32, time_major=True
    )


NETWORKS = {
    "one after the other": one_after_the_other,
    "both directions": both_directions,
    "fused peepholes": lambda inputs: rnn.LSTMBlockFusedCell(
        2,
        forget_bias=0.5,
        cell_clip=0.2,
        use_peephole=True,
        name="own",
    )(inputs, dtype=tf.float32, sequence_length=LENGTHS),
    "dynamic adaptor": lambda inputs: rnn.FusedRNNCellAdaptor(rnn.LSTMBlockCell(2), True)(
        inputs, dtype=tf.float32, sequence_length=LENGTHS
    ),
    "static adaptor": lambda inputs: rnn.FusedRNNCellAdaptor(rnn.LSTMBlockCell(2))(
        inputs, dtype=tf.float32, sequence_length=LENGTHS
    ),
    "stack": lambda inputs: rnn.stack_bidirectional_dynamic_rnn(
        [rnn.GRUBlockCell(2), rnn.LSTMBlockCell(2)],
        [rnn.GRUBlockCell(2), rnn.LSTMBlockCell(2)],
        inputs,
        dtype=tf.float32,
        sequence_length=LENGTHS,
        time_major=True,
    ),
    "static stack": lambda inputs: rnn.stack_bidirectional_rnn(
        [rnn.LSTMBlockCell(2)], [rnn.LSTMBlockCell(2)], tf.unstack(inputs), dtype=tf.float32
    ),
    "called directly": called_directly,
}
for cell_name in CELLS:
    NETWORKS[cell_name] = of_cell(cell_name)


def of_network(name):
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = tf.constant(X)
        results = tf.contrib.framework.nest.flatten(NETWORKS[name](inputs))
        weights = sorted(tf.trainable_variables(), key=lambda v: v.op.name)
        loss = tf.add_n([tf.reduce_sum(tf.square(result)) for result in results])
        gradients = tf.gradients(loss, [inputs] + weights)
        session.run(tf.global_variables_initializer())
        constant = [
            v for v in weights if v.op.name.split("/")[-1] in ("b_ru", "b_c", "gamma", "beta")
        ]
        seen("start of " + name, session.run(constant))
        for number, weight in enumerate(weights):
            shape = weight.shape.as_list()
            places = np.arange(np.prod(shape), dtype=np.float32)
            weight.load(np.reshape(np.sin(0.7 * places + number) / 2, shape), session)
        seen(name, session.run(results + gradients))
        variables = [[v.op.name, v.shape.as_list()] for v in tf.global_variables()]
        print(json.dumps({"variables of " + name: variables}))


def of_loss_scale(name, manager):
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        weight = tf.get_variable("w", [2], initializer=tf.ones_initializer())
        factor = tf.placeholder(tf.float32, [])
        manager = manager()
        optimizer = mixed_precision.LossScaleOptimizer(tf.train.AdamOptimizer(0.1), manager)
        train = optimizer.minimize(tf.reduce_sum(tf.square(weight)) * factor, global_step=step)
        session.run(tf.global_variables_initializer())
        states = []
        inf, nan = float("inf"), float("nan")
        for value in [1, 1, 1, 1, inf, 1, nan, inf, inf, inf, inf, inf, 1, 1, 1, 1, 1]:
            session.run(train, {factor: value})
            states += session.run([weight, step, manager.get_loss_scale()])
        seen(name, states)
        variables = [v.op.name for v in tf.global_variables()]
        print(json.dumps({"variables of " + name: variables}))


def of_moving_averages(name, **arguments):
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        weight = tf.get_variable("w", [2], initializer=tf.ones_initializer())
        tf.get_variable("unused", [], initializer=tf.ones_initializer())
        optimizer = tf.contrib.opt.MovingAverageOptimizer(
            tf.train.MomentumOptimizer(0.1, 0.9), 0.8, **arguments
        )
        train = optimizer.minimize(tf.reduce_sum(tf.square(weight)), global_step=step)
        saver = optimizer.swapping_saver()
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train)
        variables = tf.global_variables()
        seen(name, session.run(variables))
        with tempfile.TemporaryDirectory() as folder:
            path = saver.save(session, os.path.join(folder, "swapped"))
            seen(
                "saved by " + name,
                [tf.train.load_variable(path, each.op.name) for each in variables],
            )
            session.run(tf.global_variables_initializer())
            saver.restore(session, path)
            seen("restored by " + name, session.run(variables))
        names = [each.op.name for each in variables]
        print(json.dumps({"variables of " + name: names}))


if __name__ == "__main__":
    of_crf()
    for network in sorted(NETWORKS):
        of_network(network)
    of_loss_scale("fixed", lambda: mixed_precision.FixedLossScaleManager(8.0))
    of_loss_scale(
        "exponential", lambda: mixed_precision.ExponentialUpdateLossScaleManager(4.0, 2, 2, 2, 0.5)
    )
    of_moving_averages("moving averages")
    of_moving_averages("moving averages of few updates", num_updates=1)
