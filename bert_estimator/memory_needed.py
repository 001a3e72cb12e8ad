"""How much of this machine's memory a run takes, from the sizes of its network: nothing is built.

At its peak, a process holds its libraries and, in bytes,

    weights      W, 4 for each of the network's weights: once for each copy of the table below
    moments      m * W, which the optimizer keeps: 2 * W for LAMB
    gradients    W in training
    checkpoint   (1 + m) * W, a copy of weights and moments that is written while training goes on
    activations  what the gradients need of a step. For each token and layer, these are matrices of
                 18.3 hidden sizes (10.3, and two of the inner size), and for each token that it
                 attends to and each head the weight of attention: before dropout, after it, and a
                 mask. For each masked word there are its logits and their gradients.

The checkpoint and the activations of a step share memory, since a step frees it. Virtual cores hold
weights and gradients each, and share the moments; the session of the host has all of them again.
If only the last layers are trained, moments and gradients are of these and of the heads alone, and
the other layers keep nothing.

The factors were fitted to `benchmarks/results/machine_memory.csv`. They are within 20 % of all its
rows, BERT-base and BERT-Large on TensorFlow 2.21 with the C library glibc.
"""

import dataclasses
import sys

from bert_estimator.bert_config import BertConfig
from bert_estimator.system import memory

_GIB = 1 << 30
# What a warning begins at, and what is refused: an estimate may be a fifth too high, and a system
# may have some memory on disk.
_NEARLY_ALL, _FAR_BEYOND = 0.8, 1.5

_LIBRARIES, _LIBRARIES_OF_CORES = 0.6 * _GIB, 0.9 * _GIB
_STEP = 0.3 * _GIB  # what a step takes besides
_COPIES_OF_A_CORE = 2  # of weights and gradients: before a step and after it
_BYTES_OF_LOGITS = 10  # for each logit of a masked word and its gradients


class TooLargeError(ValueError):
    """A network, or a batch of it, needs far more memory than this machine has."""


@dataclasses.dataclass(frozen=True)
class Computation:
    """Says what a network computes at a time.

    Attributes:
      rows: the sequences of a batch, of all cores together.
      length: tokens of a sequence.
      precision: "float32" or "bfloat16", in which the network computes.
      replicas: how many virtual cores, or groups of them, hold the network; 0 for a session.
      micro_batch_size: the most sequences that a replica computes at a time; None for all.
      recompute: whether layers are computed again for their gradients.
      predictions: masked words of a sequence.
      trained_layers: how many of the last layers are trained besides the heads; None for all of the
        network.
    """

    rows: int
    length: int
    precision: str = "float32"
    replicas: int = 0
    micro_batch_size: int | None = None
    recompute: bool = False
    predictions: int = 0
    trained_layers: int | None = None


def of_training(config: BertConfig, step: Computation, moments: float) -> int:
    """Returns the bytes that a process needs to train a network.

    Args:
      config: the network's sizes.
      step: its training step.
      moments: how many float32 values the optimizer keeps for each weight.
    """
    weights, trained = _weights(config), _trained(config, step)
    # The table at the top of this module explains these terms.
    state = weights + moments * trained
    rows, cores = step.rows, max(step.replicas, 1)
    if step.micro_batch_size:
        rows = min(rows, step.micro_batch_size * cores)
    logits = step.predictions * config.vocab_size * _BYTES_OF_LOGITS
    activations = rows * (step.length * _kept(config, step) + logits)
    if rows < step.rows:
        activations += cores * trained  # the sums of the gradients
    # The checkpoint and the activations of a step share memory, and so the larger one counts.
    if not step.replicas:
        return int(_LIBRARIES + state + trained + max(state, activations) + _STEP)
    # Virtual cores share the moments, and the session of the host has all of the state again.
    of_cores = cores * _COPIES_OF_A_CORE * (weights + trained) + 2 * moments * trained
    return int(_LIBRARIES_OF_CORES + 2 * state + of_cores + activations)


def of_running(config: BertConfig, step: Computation) -> int:
    """Returns the bytes that a process needs to evaluate a network, to predict or to embed.

    Args:
      config: the network's sizes.
      step: the largest batch.
    """
    logits = step.predictions * config.vocab_size * 4
    of_batch = step.rows * (step.length * _running(config, step) + logits)
    if step.replicas:
        return int(_LIBRARIES_OF_CORES + (2 + step.replicas) * _weights(config) + of_batch)
    return int(_LIBRARIES + _weights(config) + of_batch)


def of_conversion(config: BertConfig) -> int:
    """Returns the bytes that a process needs to convert a network and to compare the copy."""
    return int(_LIBRARIES + 4 * _weights(config))


def check(needed: int, what: str, remedy: str, least: int | None = None) -> str | None:
    """Compares what is needed with this machine's memory, and warns on stderr near it.

    Args:
      needed: bytes.
      what: what needs them, such as a flag with its value, or the path of a model.
      remedy: what to do if they are too many, a clause without a full stop.
      least: bytes that are needed in any case, if `needed` is the most that may be.

    Returns:
      A line that says both; None if the system does not tell how much memory it has.

    Raises:
      TooLargeError: the machine has far less.
    """
    available = memory.machine_bytes()
    if available is None:
        return None
    line = f"about {needed / _GIB:,.1f} GiB of this machine's {available / _GIB:.1f} GiB of memory"
    if least is not None:
        line = f"at most {line}"
    if (needed if least is None else least) > _FAR_BEYOND * available:
        raise TooLargeError(f"{what}: needs {line}; {remedy}")
    if needed > _NEARLY_ALL * available:
        print(f"Warning: {what}: needs {line}; if it does not fit, {remedy}.", file=sys.stderr)
    return line


def _weights(config):
    """Returns the bytes of the weights, with the heads of pretraining in float32."""
    return 4 * (config.num_parameters() + _of_heads(config))


def _of_heads(config):
    width = config.embedding_width()
    return (config.hidden_size + 3) * width + config.vocab_size + 2 * (config.hidden_size + 1)


def _trained(config, step):
    """Returns the bytes of the weights that are trained; the pooler is too small to count."""
    if step.trained_layers is None:
        return _weights(config)
    deeper = dataclasses.replace(config, num_hidden_layers=config.num_hidden_layers + 1)
    layer = deeper.num_parameters() - config.num_parameters()
    return 4 * (step.trained_layers * layer + _of_heads(config))


def _kept(config, step):
    """Returns the bytes that a training step keeps for a token of all layers."""
    layer, layers, frozen = _layer(config, step), config.num_hidden_layers, 0
    if step.trained_layers is not None:
        layers, frozen = step.trained_layers, _running(config, step)
    if step.recompute:
        return min(layers, 1) * 2 * layer + layers * config.hidden_size * _size(step) + frozen
    return layers * layer + frozen


def _layer(config, step):
    """Returns the bytes that a training step keeps for a token of a layer."""
    scores = config.num_attention_heads * step.length
    matrices = 10.3 * config.hidden_size + 2 * config.intermediate_size
    return matrices * _size(step) + scores * (4.85 + (0 if step.replicas else _size(step)))


def _running(config, step):
    """Returns the bytes that a layer takes for a token if nothing is kept for gradients."""
    scores = config.num_attention_heads * step.length
    matrices = 3 * config.hidden_size + 2 * config.intermediate_size
    return matrices * _size(step) + scores * (4 + _size(step) / 2)


def _size(step):
    return 2 if step.precision == "bfloat16" else 4
