"""A network as an ONNX graph, made of its weights.

    inputs     `input_ids`, `attention_mask`, `token_type_ids`, int64 [B, F]; B and F are free
    outputs    `logits` [B, L] for a text, or [B, F, L] for its tokens; or `start_logits` and
               `end_logits` [B, F] for answers. Then `last_hidden_state` [B, F, H], and with a
               pooler `pooler_output` [B, H]

Inputs and outputs have transformers' names, and weights have the names of the variables. All
numbers are float32. The operations are ONNX's own, arranged as onnxruntime looks for them
when it opens a model. It makes one operation of the attention of a layer, of a sum with the layer
norm after it, and of GELU. It finds attention only in an OPSET of 12 or less.

Letters: B texts, F sequence length, H hidden size, N attention heads, D size of a head, L labels.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange.network_variables import ANSWER, CLASSIFIER, MAPPING, POOLER
from bert_estimator.interchange.onnx import runtime

OPSET = 12
_IR_VERSION = 7  # of that opset
_MOST_BYTES = (1 << 31) - (1 << 24)  # of the weights in a file, which may have 2 GiB

# Activations that are an operation of ONNX.
_OPERATIONS = {
    "relu": ("Relu", {}),
    "tanh": ("Tanh", {}),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.01}),
}
# Added to the scores of padding; and an answer's logits there, as in predictions.
_MASK_ADDER = NO_TOKEN = -10000.0


def check_size(config: BertConfig) -> None:
    """Raises ValueError if a network has more weights than an ONNX file can hold."""
    size = 4 * config.num_parameters()
    if size > _MOST_BYTES:
        raise ValueError(
            f"the network has {size / 1e9:.1f} GB of weights, and an ONNX file holds at most 2.1 GB"
        )


def make(config: BertConfig, weights: Mapping[str, np.ndarray]) -> Any:
    """Returns a network as a model of the package onnx, which has checked it, from float32 weights:
    an encoder, with or without a pooler, and with at most one head, a classifier's or an
    answer's."""
    check_size(config)
    onnx = runtime.load("onnx")
    graph = _Graph(onnx, weights, config.layer_norm_eps)
    outputs = _network(graph, config)
    inputs = [graph.described(name, ["B", "F"], "INT64") for name in runtime.INPUTS]
    values = [graph.described(name, shape) for name, shape in graph.shapes.items()]
    outputs = [graph.described(name, shape) for name, shape in outputs.items()]
    made = onnx.helper.make_graph(
        graph.nodes, "bert", inputs, outputs, list(graph.constants.values()), value_info=values
    )
    model = onnx.helper.make_model(
        made,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
        producer_name="bert-estimator",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


class _Graph:
    """The nodes and constants of a graph that is being built."""

    def __init__(self, onnx, weights, epsilon):
        self._onnx, self._weights, self._epsilon = onnx, weights, epsilon
        # Each node comes after the nodes that it reads. `shapes` are of the values whose shape ONNX
        # does not infer.
        self.nodes, self.constants, self.shapes = [], {}, {}
        self.has = weights.__contains__  # whether there is a weight of a name

    def add(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Adds a node; returns the name of its output."""
        output = output or f"{kind}_{len(self.nodes)}"
        node = self._onnx.helper.make_node(kind, inputs, [output], name=output, **attributes)
        self.nodes.append(node)
        return output

    def length_of(self, name: str) -> int:
        """Returns how many elements a weight [n] has."""
        return len(self._weights[name])

    def weight(self, name: str, is_transposed: bool = False) -> str:
        """Returns the name of a weight, which becomes a constant of the graph."""
        value = self._weights[name]
        return self._constant(name, value.T if is_transposed else value)

    def number(self, value: float) -> str:
        """Returns the name of a float32 constant."""
        return self._constant(f"number {value:.9g}", np.float32(value))

    def index(self, value: int) -> str:
        """Returns the name of a constant, an int64."""
        return self._constant(f"index {value}", np.int64(value))

    def sizes(self, *values: int) -> str:
        """Returns the name of a constant, int64 [n]."""
        return self._constant(f"sizes {values}", np.int64(values))

    def described(self, name: str, shape: Iterable[int | str], dtype: str = "FLOAT") -> Any:
        """Returns what ONNX calls the type of a value."""
        names = {"B": "batch", "F": "sequence"}
        shape = [names.get(size, size) for size in shape]
        return self._onnx.helper.make_tensor_value_info(name, self.dtype(dtype), shape)

    def dtype(self, name: str) -> int:
        """Returns the number that a dtype has in ONNX."""
        return self._onnx.TensorProto.DataType.Value(name)

    def dense(self, x: str, scope: str) -> str:
        """Returns x [..., n] times `scope`/kernel, plus `scope`/bias."""
        product = self.add("MatMul", x, self.weight(f"{scope}/kernel"))
        return self.add("Add", product, self.weight(f"{scope}/bias"))

    def layer_norm(self, x: str, scope: str, output: str | None = None) -> str:
        """Returns the layer norm of x [..., n]."""
        mean = self.add("ReduceMean", x, axes=[-1], keepdims=1)
        centered = self.add("Sub", x, mean)
        square = self.add("Pow", centered, self.number(2))
        variance = self.add("ReduceMean", square, axes=[-1], keepdims=1)
        deviation = self.add("Sqrt", self.add("Add", variance, self.number(self._epsilon)))
        normalized = self.add("Div", centered, deviation)
        scaled = self.add("Mul", normalized, self.weight(f"{scope}/LayerNorm/gamma"))
        return self.add("Add", scaled, self.weight(f"{scope}/LayerNorm/beta"), output=output)

    def _constant(self, name, value):
        if name not in self.constants:
            array = np.asarray(value, order="C")
            self.constants[name] = self._onnx.numpy_helper.from_array(array, name)
        return name


def _network(graph, config):
    """Adds the network; returns output -> shape."""
    ids, mask, segments = runtime.INPUTS
    x = _embeddings(graph, config, ids, segments)
    # onnxruntime looks for exactly these operations: 1 - mask, times -10000.
    adder = graph.add("Unsqueeze", graph.add("Unsqueeze", mask, axes=[1]), axes=[2])
    adder = graph.add("Cast", adder, to=graph.dtype("FLOAT"))
    adder = graph.add("Sub", graph.number(1), adder)
    adder = graph.add("Mul", adder, graph.number(_MASK_ADDER))  # [B, 1, 1, F]
    last = config.num_hidden_layers - 1
    for index in range(config.num_hidden_layers):
        scope = f"bert/encoder/layer_{config.group_of(index)}"
        x = _layer(graph, config, x, adder, scope, runtime.HIDDEN if index == last else None)
    outputs = {runtime.HIDDEN: ["B", "F", config.hidden_size]}
    # A classifier without a pooler labels tokens.
    if graph.has(f"{POOLER}dense/kernel"):
        first = graph.add("Gather", x, graph.index(0), axis=1)
        pooled = graph.add("Tanh", graph.dense(first, f"{POOLER}dense"), output=runtime.POOLED)
        outputs[runtime.POOLED] = ["B", config.hidden_size]
        x = pooled if graph.has(CLASSIFIER) else x
    return {**_head(graph, x, mask), **outputs}


def _embeddings(graph, config, ids, segments):
    """Adds the sum of the embeddings, its layer norm, and the layer that widens it."""
    scope = "bert/embeddings"
    words = graph.add("Gather", graph.weight(f"{scope}/word_embeddings"), ids)
    types = graph.add("Gather", graph.weight(f"{scope}/token_type_embeddings"), segments)
    length = graph.add("Slice", graph.add("Shape", ids), graph.sizes(1), graph.sizes(2))
    table = graph.weight(f"{scope}/position_embeddings")
    positions = graph.add("Slice", table, graph.sizes(0), length, graph.sizes(0))
    total = graph.add("Add", graph.add("Add", words, types), positions)
    # From the positions, whose number is computed, it cannot be inferred.
    graph.shapes[total] = ["B", "F", config.embedding_width()]
    x = graph.layer_norm(total, scope)
    is_narrow = config.embedding_width() != config.hidden_size
    return graph.dense(x, MAPPING) if is_narrow else x


def _layer(graph, config, x, adder, scope, output):
    """Adds a layer on x [B, F, H]; returns the name of its output."""
    size = config.hidden_size // config.num_attention_heads
    # 0 is the size that the tensor has there, B and F.
    shape = graph.sizes(0, 0, config.num_attention_heads, size)

    def heads(name, order):
        values = graph.dense(x, f"{scope}/attention/self/{name}")
        return graph.add("Transpose", graph.add("Reshape", values, shape), perm=order)

    # The keys are transposed once more for the product, [B, N, D, F].
    query, key = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1])
    value = heads("value", [0, 2, 1, 3])
    scores = graph.add("Div", graph.add("MatMul", query, key), graph.number(math.sqrt(size)))
    shares = graph.add("Softmax", graph.add("Add", scores, adder), axis=3)
    context = graph.add("Transpose", graph.add("MatMul", shares, value), perm=[0, 2, 1, 3])
    context = graph.add("Reshape", context, graph.sizes(0, 0, config.hidden_size))
    context = graph.dense(context, f"{scope}/attention/output/dense")
    attention = graph.layer_norm(graph.add("Add", context, x), f"{scope}/attention/output")
    inner = _activation(graph, config, graph.dense(attention, f"{scope}/intermediate/dense"))
    inner = graph.dense(inner, f"{scope}/output/dense")
    return graph.layer_norm(graph.add("Add", inner, attention), f"{scope}/output", output)


def _activation(graph, config, x):
    """Adds the activation that the configuration names; see `modeling.activate`."""
    if config.hidden_act == "linear":
        return x
    if config.hidden_act in _OPERATIONS:
        kind, attributes = _OPERATIONS[config.hidden_act]
        return graph.add(kind, x, **attributes)
    if config.hidden_act == "relu6":
        return graph.add("Clip", x, graph.number(0), graph.number(6))
    if config.hidden_act == "mish":
        return graph.add("Mul", x, graph.add("Tanh", graph.add("Softplus", x)))
    if config.hidden_act in ("silu", "quick_gelu"):
        factor = graph.number(1 if config.hidden_act == "silu" else 1.702)
        return graph.add("Mul", x, graph.add("Sigmoid", graph.add("Mul", x, factor)))
    if config.hidden_act == "gelu_erf":
        curve = graph.add("Erf", graph.add("Div", x, graph.number(math.sqrt(2))))
        return graph.add(
            "Mul", graph.add("Mul", x, graph.add("Add", curve, graph.number(1))), graph.number(0.5)
        )
    # `gelu` in its tanh form, x/2 (1 + tanh(sqrt(2/pi) x (1 + 0.044715 x^2))), in the order that
    # onnxruntime recognizes.
    cubic = graph.add("Mul", graph.add("Mul", x, graph.number(0.044715)), x)
    cubic = graph.add("Add", cubic, graph.number(1))
    linear = graph.add("Mul", x, graph.number(math.sqrt(2 / math.pi)))
    curve = graph.add("Tanh", graph.add("Mul", linear, cubic))
    half = graph.add("Mul", x, graph.number(0.5))
    return graph.add("Mul", half, graph.add("Add", curve, graph.number(1)))


def _head(graph, x, mask):
    """Adds the head of a fine-tuning on x, [B, H] or [B, F, H]; returns output -> shape."""
    if graph.has(CLASSIFIER) and graph.has(f"{ANSWER}/output_weights"):
        raise ValueError("the network has two heads, one for labels and one for answers")
    if graph.has(CLASSIFIER):
        weights, bias = CLASSIFIER, "output_bias"
    elif graph.has(f"{ANSWER}/output_weights"):
        weights, bias = f"{ANSWER}/output_weights", f"{ANSWER}/output_bias"
    else:
        return {}
    product = graph.add("MatMul", x, graph.weight(weights, is_transposed=True))
    if weights == CLASSIFIER:
        logits = graph.add("Add", product, graph.weight(bias), output=runtime.LOGITS)
        outer = ["B"] if x == runtime.POOLED else ["B", "F"]
        return {logits: [*outer, graph.length_of(bias)]}
    logits = graph.add("Add", product, graph.weight(bias))
    is_token = graph.add("Cast", mask, to=graph.dtype("BOOL"))
    for place, name in enumerate(runtime.ENDS):
        ends = graph.add("Gather", logits, graph.index(place), axis=2)
        graph.add("Where", is_token, ends, graph.number(NO_TOKEN), output=name)
    return {name: ["B", "F"] for name in runtime.ENDS}
