"""Which weights of a network are trained, and at which rate, by the depth of their layer.

The depth is 0 for the embeddings, with what brings them to the hidden size; it counts the layers
from 1; and it is more by one than the last layer's for the pooler and the heads, which are of the
task: networks for masked words and ELECTRAs come without a pooler.

This module does not import TensorFlow, so wrong flags are reported before it is loaded.
"""

import re
from collections.abc import Callable

from bert_estimator.bert_config import BertConfig
from bert_estimator.system.errors import ArgumentError

ALL = "all"
TRAINABLE = re.compile(rf"{ALL}|head|last:([1-9]\d{{0,5}})")  # the values of `trainable`


def trained_layers(trainable: str, config: BertConfig) -> int | None:
    """Returns how many of a network's last layers are trained besides its head; None if all weights
    are. "head" is the pooler and the heads, and "last:4" the last four layers, too."""
    if trainable == ALL:
        return None
    number, layers = int(TRAINABLE.fullmatch(trainable)[1] or 0), config.num_hidden_layers
    if number:
        rule = f"so the last of them cannot be trained without the others; give {ALL}, or head"
        _check_own_weights("trainable", trainable, config, rule)
    if number > layers:
        rule = f"cannot be more than the network's num_hidden_layers, which is {layers}; give {ALL}"
        raise ArgumentError("trainable", rule, trainable)
    return number


def trained(trainable: str, config: BertConfig) -> Callable[[str], bool] | None:
    """Returns a function of a variable's name that says whether it is trained, or None if all are;
    see `trained_layers`."""
    number, layers = trained_layers(trainable, config), config.num_hidden_layers
    return None if number is None else lambda name: _depth(name, layers) > layers - number


def rate_scale(layerwise_lr_decay: float, config: BertConfig) -> Callable[[str], float] | None:
    """Returns a function of a variable's name that gives its rate's factor, or None if all are 1,
    as ELECTRA is fine-tuned (Clark et al., 2020, section 3.1 and its code): 1 for the pooler and
    the head, layerwise_lr_decay^2 for the last layer, one power more for each layer further down,
    and for the embeddings last."""
    if layerwise_lr_decay == 1.0:
        return None
    rule = "and so have one rate; leave it out"
    _check_own_weights("layerwise_lr_decay", layerwise_lr_decay, config, rule)
    top = config.num_hidden_layers + 1

    def factor(name):
        depth = _depth(name, config.num_hidden_layers)
        return 1.0 if depth == top else layerwise_lr_decay ** (top + 1 - depth)

    return factor


def _depth(name, num_hidden_layers):
    """Returns the depth of a variable of a name, see the top of this module."""
    if layer := re.search(r"/encoder/layer_(\d+)/", name):
        return int(layer[1]) + 1
    is_embedding = "/embeddings/" in name or "/embedding_hidden_mapping_in/" in name
    return 0 if is_embedding else num_hidden_layers + 1


def _check_own_weights(argument, value, config, rule):
    """Raises ArgumentError if the layers of a network cannot differ, since they share weights."""
    if config.num_hidden_groups is not None:
        shared = "the layers of the network share their weights (num_hidden_groups),"
        raise ArgumentError(argument, f"{shared} {rule}", value)
