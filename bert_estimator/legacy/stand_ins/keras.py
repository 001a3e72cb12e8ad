"""`tf.keras` as it was in TensorFlow 1; only this module imports the tf_keras package."""

import contextlib
from typing import Any

from bert_estimator.legacy import modules as _modules

try:
    from tf_keras.api._v1.keras import *  # noqa: F403
    from tf_keras.src import backend as _backend
    from tf_keras.src import layers as _layers
    from tf_keras.src.applications import densenet as _densenet
    from tf_keras.src.applications import mobilenet_v2 as _mobilenet_v2
    from tf_keras.src.applications import resnet as _resnet
    from tf_keras.src.layers.rnn import base_rnn as _base_rnn
    from tf_keras.src.layers.rnn import stacked_rnn_cells as _stacked_rnn_cells
except ImportError as error:
    raise ImportError(
        "tf.keras of TensorFlow 1 needs the tf_keras package: pip install 'bert-estimator[legacy]' "
        "(a tf_keras of TensorFlow's own version)"
    ) from error


class _Instead:
    """Stands for another object, with some of its members replaced."""

    def __init__(self, original: Any, **members: Any):
        self._original = original
        vars(self).update(members)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _without_name_scopes_of_cells():
    """Names the weights of recurrent layers as TensorFlow 1 does: `lstm/kernel`.

    They would be `lstm/lstm_cell/kernel`: the modules use name scopes for this alone.
    """
    backend = _Instead(_backend, name_scope=lambda name: contextlib.nullcontext())
    _base_rnn.backend = _stacked_rnn_cells.backend = backend


def _with_the_last_layer_named(module, name):
    """Gives the only dense layer of an application's networks the name it had in TensorFlow 1."""

    def dense(*args, **kwargs):
        return layers.Dense(*args, **{**kwargs, "name": name})  # noqa: F405

    original = _layers.VersionAwareLayers
    module.VersionAwareLayers = lambda: _Instead(original(), Dense=dense)
    module.layers = module.VersionAwareLayers()


def _with_constant_seeds():
    """Gives a layer that is called again, such as a dropout with a seed, the same seed again."""
    _backend.RandomGenerator.make_legacy_seed = lambda self: self._seed


if not _modules.is_of_2():
    _without_name_scopes_of_cells()
    _with_constant_seeds()
    _with_the_last_layer_named(_densenet, "fc1000")
    _with_the_last_layer_named(_mobilenet_v2, "Logits")
    _with_the_last_layer_named(_resnet, "probs")
