"""Recurrent cells and layers of `tf.contrib.rnn` that today's TensorFlow does not have.

They have TensorFlow 1's names of variables and its numbers, and consist of operations that a
session and a core can run: the kernels of the block cells only ran on CPUs and GPUs. T is the
length of the sequences, B the batch, and N the number of units.
"""

import abc
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.legacy import modules


def _state_tuple(cells, outputs):
    return modules.look_up("tensorflow.nn.rnn_cell", "LSTMStateTuple")(cells, outputs)


class _WithVariables:
    """Makes variables when it is first called, in a scope of its own, and keeps them."""

    def __init__(self, name, dtype, reuse):
        self._name, self._dtype, self._reuse = name, dtype, reuse
        self._by_name = None  # dict of name -> variable, once called

    def _made(self, inputs, scope, shapes):
        """Returns the variables by name, from `shapes`: name -> (shape, initializer or None)."""
        if self._by_name is None:
            # A default name cannot be reused, because it may get a number; this is the name itself.
            if self._reuse and scope is None:
                scope = self._name
            with tf.variable_scope(scope, self._name, reuse=self._reuse):
                self._by_name = {
                    name: tf.get_variable(
                        name, shape, self._dtype or inputs.dtype, initializer=initializer
                    )
                    for name, (shape, initializer) in shapes.items()
                }
        return self._by_name

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables, once it was called; it trains all of them, as TensorFlow 1's did."""
        return list((self._by_name or {}).values())

    weights = trainable_variables = trainable_weights = variables


class _Cell(_WithVariables):
    """A cell that `tf.nn.dynamic_rnn` and the like run."""

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """Returns the state of the start."""
        return tf.nest.map_structure(lambda size: tf.zeros([batch_size, size], dtype), self._sizes)

    @property
    def state_size(self) -> Any:
        return self._sizes

    @property
    def output_size(self) -> int:
        return tf.nest.flatten(self._sizes)[-1]


def _lstm_shapes(inputs, units, use_peephole):
    depth = inputs.shape.as_list()[-1]
    if depth is None:
        raise ValueError(f"Expecting the last dimension of the inputs to be set: {inputs.shape}")
    shapes = {
        "kernel": ([depth + units, 4 * units], None),
        "bias": ([4 * units], tf.zeros_initializer()),
    }
    peepholes = ("w_i_diag", "w_f_diag", "w_o_diag") if use_peephole else ()
    return {**shapes, **{name: ([units], None) for name in peepholes}}


def _lstm(gates, cells, variables, forget_bias, cell_clip):
    """Returns the new (cells, outputs), [B, N] each, of an LSTM; its `gates`, [B, 4 N], are the
    weighted sums for the input gate, the input, the forget gate and the output gate."""
    into, new, keep, out = tf.split(gates, 4, axis=1)
    keep += forget_bias
    if "w_i_diag" in variables:
        into += cells * variables["w_i_diag"]
        keep += cells * variables["w_f_diag"]
    cells = tf.sigmoid(into) * tf.tanh(new) + tf.sigmoid(keep) * cells
    if cell_clip is not None and cell_clip > 0:
        # As the kernel's gradient: it goes through, whether a cell is clipped or not.
        cells += tf.stop_gradient(tf.clip_by_value(cells, -cell_clip, cell_clip) - cells)
    if "w_o_diag" in variables:
        out += cells * variables["w_o_diag"]
    return cells, tf.sigmoid(out) * tf.tanh(cells)


class LSTMBlockCell(_Cell):
    """Is an LSTM with TensorFlow 1's names of variables, whose dtype is the inputs' by default."""

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        dtype: Any = None,
        reuse: bool | None = None,
        name: str = "lstm_cell",
    ):
        super().__init__(name, dtype, reuse)
        self._num_units, self._use_peephole = num_units, use_peephole
        self._forget_bias, self._cell_clip = forget_bias, cell_clip
        self._sizes = _state_tuple(num_units, num_units)

    def __call__(self, inputs, state, scope=None):
        cells, outputs = state
        shapes = _lstm_shapes(inputs, self._num_units, self._use_peephole)
        variables = self._made(inputs, scope, shapes)
        gates = tf.concat([inputs, outputs], 1) @ variables["kernel"] + variables["bias"]
        new = _lstm(gates, cells, variables, self._forget_bias, self._cell_clip)
        return new[1], _state_tuple(*new)


class FusedRNNCell(abc.ABC):
    """Runs a recurrent network over all of the time: [T, B, C] -> outputs [T, B, N], state."""

    @abc.abstractmethod
    def __call__(self, inputs, initial_state=None, dtype=None, sequence_length=None, scope=None):
        """Returns the outputs, a list if the inputs are a list, and the last state."""


class LSTMBlockWrapper(_WithVariables, FusedRNNCell):
    """Runs a subclass's `_call_cell` on inputs as tensors, with an initial state."""

    def __init__(
        self, trainable: bool = True, name: str | None = None, dtype: Any = None, **kwargs
    ):
        super().__init__(name or "lstm_block_wrapper", dtype, kwargs.get("_reuse"))

    @property
    @abc.abstractmethod
    def num_units(self) -> int:
        """Returns the number of units."""

    @abc.abstractmethod
    def _call_cell(self, inputs, cells, outputs, dtype, sequence_length):
        """Returns (cells, outputs) of all times, [T, B, N] each; it gets the first ones, [B, N]."""

    def __call__(self, inputs, initial_state=None, dtype=None, sequence_length=None, scope=None):
        is_list = isinstance(inputs, list)
        inputs = tf.stack(inputs) if is_list else tf.convert_to_tensor(inputs)
        length, batch, _ = tf.unstack(tf.shape(inputs))
        if initial_state is None:
            if dtype is None:
                raise ValueError("Either initial_state or dtype needs to be specified")
            initial_state = [tf.zeros([batch, self.num_units], dtype)] * 2
        dtype = dtype or initial_state[0].dtype
        self._scope = scope
        cells, outputs = self._call_cell(inputs, *initial_state, dtype, sequence_length)
        if sequence_length is None:
            state = _state_tuple(cells[-1], outputs[-1])
        else:
            # After a sequence's end its outputs are 0. The state is the state at its end,
            # which is the initial state if the sequence is empty.
            inside = tf.sequence_mask(sequence_length, length, dtype=outputs.dtype)
            outputs *= tf.transpose(inside)[:, :, tf.newaxis]
            last = tf.stack([tf.cast(sequence_length, tf.int32), tf.range(batch)], 1)
            first_and_all = zip(initial_state, (cells, outputs), strict=True)
            state = _state_tuple(
                *(tf.gather_nd(tf.concat([a[tf.newaxis], b], 0), last) for a, b in first_and_all)
            )
        return tf.unstack(outputs) if is_list else outputs, state


class LSTMBlockFusedCell(LSTMBlockWrapper):
    """Runs an LSTM over the whole time; its arguments are `LSTMBlockCell`'s."""

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        reuse: bool | None = None,
        dtype: Any = None,
        name: str = "lstm_fused_cell",
    ):
        super().__init__(name=name, dtype=dtype, _reuse=reuse)
        self._num_units, self._use_peephole = num_units, use_peephole
        self._forget_bias, self._cell_clip = forget_bias, cell_clip

    @property
    def num_units(self) -> int:
        return self._num_units

    def _call_cell(self, inputs, cells, outputs, dtype, sequence_length):
        shapes = _lstm_shapes(inputs, self._num_units, self._use_peephole)
        variables = self._made(inputs, self._scope, shapes)
        depth = inputs.shape.as_list()[-1]
        of_inputs, of_outputs = variables["kernel"][:depth], variables["kernel"][depth:]
        # One product for all times.
        gates = tf.tensordot(inputs, of_inputs, 1) + variables["bias"]

        # Only the product with the outputs has to wait for the time before.
        def one_more(state, gates):
            cells, outputs = state
            gates += outputs @ of_outputs
            return _lstm(gates, cells, variables, self._forget_bias, self._cell_clip)

        return tf.scan(one_more, gates, (cells, outputs))


class FusedRNNCellAdaptor(FusedRNNCell):
    """Runs a cell, as `tf.nn.dynamic_rnn` takes it, over the whole time, in a loop or unrolled."""

    def __init__(self, cell: Any, use_dynamic_rnn: bool = False):
        self._cell, self._use_dynamic_rnn = cell, use_dynamic_rnn

    def __call__(self, inputs, initial_state=None, dtype=None, sequence_length=None, scope=None):
        is_list = isinstance(inputs, list)
        given = dict(
            initial_state=initial_state, dtype=dtype, sequence_length=sequence_length, scope=scope
        )
        if self._use_dynamic_rnn:
            inputs = tf.stack(inputs) if is_list else inputs
            outputs, state = tf.nn.dynamic_rnn(self._cell, inputs, time_major=True, **given)
            return tf.unstack(outputs) if is_list else outputs, state
        inputs = inputs if is_list else tf.unstack(inputs)
        outputs, state = tf.nn.static_rnn(self._cell, inputs, **given)
        return outputs if is_list else tf.stack(outputs), state


class TimeReversedFusedRNN(FusedRNNCell):
    """Runs a fused cell from the end of each sequence to its start."""

    def __init__(self, cell: FusedRNNCell):
        self._cell = cell

    def __call__(self, inputs, initial_state=None, dtype=None, sequence_length=None, scope=None):
        def reverse(values):
            if isinstance(values, list):
                return tf.unstack(reverse(tf.stack(values)))
            if sequence_length is None:
                return tf.reverse(values, [0])
            return tf.reverse_sequence(values, sequence_length, seq_axis=0, batch_axis=1)

        outputs, state = self._cell(
            reverse(inputs),
            initial_state=initial_state,
            dtype=dtype,
            sequence_length=sequence_length,
            scope=scope,
        )
        return reverse(outputs), state


class GRUBlockCell(_Cell):
    """Is a GRU with TensorFlow 1's names of variables; `num_units` was `cell_size` before."""

    _names = ("w_ru", "b_ru", "w_c", "b_c")

    def __init__(
        self,
        num_units: int | None = None,
        cell_size: int | None = None,
        reuse: bool | None = None,
        name: str = "gru_cell",
    ):
        if (num_units is None) == (cell_size is None):
            raise ValueError("Exactly one of num_units or cell_size must be provided.")
        super().__init__(name, None, reuse)
        self._sizes = num_units or cell_size

    def __call__(self, inputs, state, scope=None):
        units, depth = self._sizes, inputs.shape.as_list()[-1]
        shapes = [
            ([depth + units, 2 * units], None),
            ([2 * units], tf.ones_initializer()),
            ([depth + units, units], None),
            ([units], tf.zeros_initializer()),
        ]
        variables = self._made(inputs, scope, dict(zip(self._names, shapes, strict=True)))
        of_gates, gate_bias, of_new, bias = (variables[name] for name in self._names)
        gates = tf.sigmoid(tf.concat([inputs, state], 1) @ of_gates + gate_bias)
        reset, keep = tf.split(gates, 2, axis=1)
        new = tf.tanh(tf.concat([inputs, reset * state], 1) @ of_new + bias)
        state = keep * state + (1 - keep) * new
        return state, state


class GRUBlockCellV2(GRUBlockCell):
    """Computes `GRUBlockCell` with the variables of `tf.nn.rnn_cell.GRUCell`."""

    _names = ("gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias")


class LayerNormBasicLSTMCell(_Cell):
    """Runs an LSTM with layer normalization (Ba, Kiros and Hinton, "Layer Normalization", 2016) and
    with dropout of its new values (Semeniuta, Severyn and Barth, "Recurrent Dropout without Memory
    Loss", 2016)."""

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        input_size: Any = None,
        activation: Callable = tf.tanh,
        layer_norm: bool = True,
        norm_gain: float = 1.0,
        norm_shift: float = 0.0,
        dropout_keep_prob: Any = 1.0,
        dropout_prob_seed: int | None = None,
        reuse: bool | None = None,
    ):
        # `input_size` is accepted and ignored.
        super().__init__("layer_norm_basic_lstm_cell", None, reuse)
        self._num_units, self._forget_bias, self._activation = num_units, forget_bias, activation
        self._normalizes, self._start = layer_norm, (norm_gain, norm_shift)
        self._keep_prob, self._seed = dropout_keep_prob, dropout_prob_seed
        self._sizes = _state_tuple(num_units, num_units)

    def __call__(self, inputs, state, scope=None):
        cells, outputs = state
        variables = self._made(inputs, scope, self._shapes(inputs))
        sums = tf.concat([inputs, outputs], 1) @ variables["kernel"]
        if not self._normalizes:
            sums += variables["bias"]
        # The fifth name is the state's.
        parts = zip(tf.split(sums, 4, axis=1), _NORMALIZED, strict=False)
        into, new, keep, out = (self._normalized(part, name) for part, name in parts)
        new = self._activation(new)
        if not (isinstance(self._keep_prob, float) and self._keep_prob >= 1):
            new = tf.nn.dropout(new, rate=1 - self._keep_prob, seed=self._seed)
        cells = cells * tf.sigmoid(keep + self._forget_bias) + tf.sigmoid(into) * new
        cells = self._normalized(cells, "state")
        outputs = self._activation(cells) * tf.sigmoid(out)
        return outputs, _state_tuple(cells, outputs)

    def _shapes(self, inputs):
        shapes = _lstm_shapes(inputs, self._num_units, False)
        if not self._normalizes:
            return {**shapes, "bias": ([4 * self._num_units], None)}
        # The shift of a normalization stands for the bias.
        del shapes["bias"]
        starts = dict(zip(("gamma", "beta"), self._start, strict=True))
        for part in _NORMALIZED:
            for name, start in starts.items():
                shapes[f"{part}/{name}"] = [self._num_units], tf.constant_initializer(start)
        return shapes

    def _normalized(self, values, name):
        if not self._normalizes:
            return values
        mean, variance = tf.nn.moments(values, [1], keepdims=True)
        gamma, beta = (self._by_name[f"{name}/{kind}"] for kind in ("gamma", "beta"))
        # 1e-12 would be 0 in float16.
        epsilon = 1e-3 if values.dtype == tf.float16 else 1e-12
        return tf.nn.batch_normalization(values, mean, variance, beta, gamma, epsilon)


_NORMALIZED = ("input", "transform", "forget", "output", "state")


def stack_bidirectional_dynamic_rnn(
    cells_fw: list,
    cells_bw: list,
    inputs: Any,
    initial_states_fw: Any = None,
    initial_states_bw: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: Any = None,
    swap_memory: bool = False,
) -> tuple:
    """Runs layers in both directions, each on both outputs of the layer below it; returns the
    outputs, the forward layers' states and the backward layers' states."""

    def layer(*inputs, **states):
        outputs, states = tf.nn.bidirectional_dynamic_rnn(
            *inputs,
            **states,
            dtype=dtype,
            sequence_length=sequence_length,
            parallel_iterations=parallel_iterations,
            time_major=time_major,
            swap_memory=swap_memory,
        )
        return tf.concat(outputs, 2), *states

    return _stacked(layer, cells_fw, cells_bw, inputs, initial_states_fw, initial_states_bw, scope)


def stack_bidirectional_rnn(
    cells_fw: list,
    cells_bw: list,
    inputs: list,
    initial_states_fw: Any = None,
    initial_states_bw: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple:
    """Does the same for a list of inputs, [B, C] each, without a loop."""

    def layer(*inputs, **states):
        options = {"dtype": dtype, "sequence_length": sequence_length}
        scope = tf.get_variable_scope()
        return tf.nn.static_bidirectional_rnn(*inputs, **states, **options, scope=scope)

    return _stacked(layer, cells_fw, cells_bw, inputs, initial_states_fw, initial_states_bw, scope)


def _stacked(layer, cells_fw, cells_bw, outputs, states_fw, states_bw, scope):
    count = len(cells_fw)
    if not count or len(cells_bw) != count:
        raise ValueError("Forward and Backward cells must have the same depth, at least one each.")
    given = states_fw or [None] * count, states_bw or [None] * count
    last = []
    with tf.variable_scope(scope, "stack_bidirectional_rnn"):
        layers = zip(cells_fw, cells_bw, *given, strict=True)
        for number, (cell_fw, cell_bw, state_fw, state_bw) in enumerate(layers):
            starts = {"initial_state_fw": state_fw, "initial_state_bw": state_bw}
            with tf.variable_scope(f"cell_{number}"):
                outputs, *states = layer(cell_fw, cell_bw, outputs, **starts)
                last.append(states)
    states_fw, states_bw = zip(*last, strict=True)
    return outputs, states_fw, states_bw


def linear(
    args: Any,
    output_size: int,
    bias: bool,
    bias_initializer: Any = None,
    kernel_initializer: Any = None,
) -> tf.Tensor:
    """Returns the product of tensors [B, C], side by side, and a new weight, and adds a bias if it
    is asked for."""
    args = list(args) if isinstance(args, list | tuple) else [args]
    if not args or args[0] is None:
        raise ValueError("`args` must be specified")
    if not all(x.shape.rank == 2 and x.shape.as_list()[1] for x in args):
        raise ValueError(f"linear is expecting 2D arguments of known size: {args}")
    size, dtype = sum(x.shape.as_list()[1] for x in args), args[0].dtype
    weight = tf.get_variable("kernel", [size, output_size], dtype, kernel_initializer)
    product = tf.concat(args, 1) @ weight
    if not bias:
        return product
    with tf.variable_scope(tf.get_variable_scope()) as scope:
        scope.set_partitioner(None)
        start = bias_initializer or tf.zeros_initializer()
        return product + tf.get_variable("bias", [output_size], dtype, start)
