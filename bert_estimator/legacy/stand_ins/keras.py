"""`tf.keras` as it was in TensorFlow 1; only this module imports the tf_keras package."""

import contextlib
import functools
import inspect
from typing import Any

from bert_estimator.legacy import modules as _modules

try:
    from tf_keras.api._v1.keras import *  # noqa: F403
    from tf_keras.src import backend as _backend
    from tf_keras.src import layers as _layers
    from tf_keras.src.applications import densenet as _densenet
    from tf_keras.src.applications import mobilenet_v2 as _mobilenet_v2
    from tf_keras.src.applications import resnet as _resnet
    from tf_keras.src.layers.normalization import batch_normalization as _batch_normalization
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


def _with_batch_normalizations_that_know_no_masks():
    """Lets a subclass of batch normalization override methods as they were before masks.

    Such subclasses take the moments over all cores, `_moments(self, inputs, reduction_axes,
    keep_dims)`. The layer now passes a mask, too, to three methods; only `_fused_batch_norm` may be
    called with its old positional arguments.
    """
    base = _batch_normalization.BatchNormalizationBase

    def without_mask(method):
        @functools.wraps(method)
        def called(self, *args, mask=None, **kwargs):
            return method(self, *args, **kwargs)

        return called

    def adapt(cls, **kwargs):
        super(base, cls).__init_subclass__(**kwargs)
        for name in ("_moments", "_calculate_mean_and_var", "_fused_batch_norm"):
            method = vars(cls).get(name)
            if inspect.isfunction(method) and not _takes(method, "mask"):
                setattr(cls, name, without_mask(method))

    original = base._fused_batch_norm

    @functools.wraps(original)
    def fused(self, inputs, *args, **kwargs):
        if len(args) == 1 and "training" not in kwargs:
            args, kwargs = (), {**kwargs, "training": args[0]}
        return original(self, inputs, *args, **{"mask": None, **kwargs} if not args else kwargs)

    base.__init_subclass__ = classmethod(adapt)
    base._fused_batch_norm = fused


def _takes(function, name):
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


_with_batch_normalizations_that_know_no_masks()
if not _modules.is_of_2():
    _without_name_scopes_of_cells()
    _with_constant_seeds()
    _with_the_last_layer_named(_densenet, "fc1000")
    _with_the_last_layer_named(_mobilenet_v2, "Logits")
    _with_the_last_layer_named(_resnet, "probs")
