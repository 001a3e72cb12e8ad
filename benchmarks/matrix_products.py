"""The roofline of a training step: the time of its matrix products alone, by TensorFlow or torch.

    python -m benchmarks.matrix_products tensorflow NETWORK.json 32 128 20 bfloat16

prints seconds by product as JSON; NETWORK.json has the fields of a bert_config.json, and 32, 128
and 20 are the batch, its length and its predictions. With `torch` in the place of `tensorflow` this
needs torch alone.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator

# Of these repetitions the fastest counts. They end after `_LEAST` if they have taken `_SECS`.
_LEAST, _MOST, _SECS = 5, 30, 1.0


def products(
    network: dict, batch: int, length: int, predictions: int
) -> dict[tuple[int, int, int, int], int]:
    """Returns how often a step's forward pass has each product, by its shape.

    The shape (matrices, rows, inner, columns) means [matrices, rows, inner] times [matrices, inner,
    columns]. Each has two products of gradients, with the same number of operations. The pooler and
    the next sentence are left out: they are a thousandth.
    """
    hidden, inner = network["hidden_size"], network["intermediate_size"]
    layers, heads = network["num_hidden_layers"], network["num_attention_heads"]
    rows, masked, head = batch * length, batch * predictions, hidden // heads
    counts = {}
    for shape, count in [
        ((1, rows, hidden, hidden), 4 * layers),
        ((1, rows, hidden, inner), layers),
        ((1, rows, inner, hidden), layers),
        ((batch * heads, length, head, length), layers),
        ((batch * heads, length, length, head), layers),
        ((1, masked, hidden, hidden), 1),
        ((1, masked, hidden, network["vocab_size"]), 1),
    ]:
        counts[shape] = counts.get(shape, 0) + count
    return counts


def step_secs(counts: dict, secs: dict[str, float]) -> float:
    """Returns the seconds of a step that has nothing but its products; `secs` are by `key`."""
    return sum(count * secs[key(shape)] for shape, count in counts.items())


def key(shape: tuple[int, int, int, int]) -> str:
    """Returns the name of a product: "4096x768x3072", or "384*128x64x128" for many matrices."""
    matrices, *rest = shape
    return (f"{matrices}*" if matrices > 1 else "") + "x".join(map(str, rest))


def time_products(library: str, counts: dict, precision: str) -> dict[str, float]:
    """Times each product together with its two gradients: a b, g transposed(b), transposed(a) g;
    returns the sum of the three shortest times, in seconds, by `key`."""
    timed = _tensorflow if library == "tensorflow" else _torch
    return {key(shape): sum(map(_shortest, timed(shape, precision))) for shape in counts}


def _shortest(run: Callable[[], object]) -> float:
    run()
    times = []
    while len(times) < _MOST and (len(times) < _LEAST or sum(times) < _SECS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _operands(shape):
    matrices, rows, inner, columns = shape
    sizes = [(rows, inner), (inner, columns), (rows, columns)]
    return [size if matrices == 1 else (matrices, *size) for size in sizes]


def _tensorflow(shape: tuple[int, int, int, int], precision: str) -> Iterator[Callable]:
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default(), tf.Session() as session:
        a, b, g = (
            tf.get_variable(name, initializer=tf.random.normal(size, dtype=precision))
            for name, size in zip("abg", _operands(shape), strict=True)
        )
        session.run(tf.global_variables_initializer())
        for product in (
            tf.matmul(a, b),
            tf.matmul(g, b, transpose_b=True),
            tf.matmul(a, g, transpose_a=True),
        ):
            yield session.make_callable(product.op)


def _torch(shape: tuple[int, int, int, int], precision: str) -> Iterator[Callable]:
    import torch

    a, b, g = (torch.randn(size, dtype=getattr(torch, precision)) for size in _operands(shape))
    yield lambda: a @ b
    yield lambda: g @ b.mT
    yield lambda: a.mT @ g


def main(library: str, network: str, batch: str, length: str, predictions: str, precision: str):
    """Prints the times of a network's products."""
    with open(network, encoding="utf-8") as reader:
        counts = products(json.load(reader), int(batch), int(length), int(predictions))
    print(json.dumps(time_products(library, counts, precision)))


if __name__ == "__main__":
    main(*sys.argv[1:])
