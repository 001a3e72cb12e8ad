"""`tf.keras` as it was in TensorFlow 1; only this module imports the tf_keras package."""

import contextlib
import functools
import inspect
import re
from typing import Any

import tensorflow.compat.v1 as _tf

from bert_estimator.legacy import NEEDS_KERAS
from bert_estimator.legacy import modules as _modules

try:
    from tf_keras.api._v1.keras import *  # noqa: F403
    from tf_keras.src import backend as _backend
    from tf_keras.src import layers as _layers
    from tf_keras.src import losses as _losses
    from tf_keras.src import optimizers as _optimizers
    from tf_keras.src.applications import densenet as _densenet
    from tf_keras.src.applications import mobilenet_v2 as _mobilenet_v2
    from tf_keras.src.applications import resnet as _resnet
    from tf_keras.src.layers.normalization import batch_normalization as _batch_normalization
    from tf_keras.src.layers.rnn import base_rnn as _base_rnn
    from tf_keras.src.layers.rnn import stacked_rnn_cells as _stacked_rnn_cells
    from tf_keras.src.optimizers import optimizer_v1 as _optimizer_v1
    from tf_keras.src.optimizers.legacy import adagrad as _adagrad
    from tf_keras.src.utils import generic_utils as _generic_utils
except ImportError as error:
    raise ImportError(NEEDS_KERAS) from error


class _Instead:
    """Stands for another object, with some of its members replaced."""

    def __init__(self, original: Any, **members: Any):
        self._original = original
        vars(self).update(members)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _without_name_scopes_of_cells():
    """Names the weights of recurrent layers as TensorFlow 1 does: `lstm/kernel`."""
    # They would be `lstm/lstm_cell/kernel`. The modules use name scopes for this alone.
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
    """Lets a subclass of batch normalization override methods as they were before masks."""
    base = _batch_normalization.BatchNormalizationBase

    # Such subclasses take the moments over all cores, `_moments(self, inputs, reduction_axes,
    # keep_dims)`. The layer now passes a mask, too, to three methods.
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

    # Subclasses may call only this one with its old positional arguments.
    original = base._fused_batch_norm

    @functools.wraps(original)
    def fused(self, inputs, *args, **kwargs):
        if len(args) == 1 and "training" not in kwargs:
            args, kwargs = (), {**kwargs, "training": args[0]}
        return original(self, inputs, *args, **{"mask": None, **kwargs} if not args else kwargs)

    base.__init_subclass__ = classmethod(adapt)
    base._fused_batch_norm = fused


def _with_losses_that_are_cosines():
    """Makes these losses the cosine, as in tf.keras of TensorFlow 1; in TensorFlow 2 and in the
    package keras they are its negative."""

    negative = _losses.cosine_similarity

    @functools.wraps(negative)
    def cosine_similarity(y_true, y_pred, axis=-1):
        loss = negative(y_true, y_pred, axis)
        return loss if _modules.means_keras_alone() else -loss

    class CosineSimilarity(_losses.LossFunctionWrapper):
        def __init__(self, axis=-1, reduction="auto", name="cosine_similarity"):
            super().__init__(cosine_similarity, reduction=reduction, name=name, axis=axis)

    CosineSimilarity.__module__ = _losses.__name__
    for module in (losses, _losses):  # noqa: F405
        module.cosine_similarity = module.cosine_proximity = module.cosine = cosine_similarity
        module.CosineSimilarity = CosineSimilarity


def _with_accumulators_that_start_at_0():
    """Gives an Adagrad that a string names, and so without settings, TensorFlow 1's start."""
    from_config = _adagrad.Adagrad.from_config.__func__

    def of_1(cls, config, custom_objects=None):
        return from_config(cls, {"initial_accumulator_value": 0.0, **config}, custom_objects)

    _adagrad.Adagrad.from_config = classmethod(of_1)


def _with_optimizers_of_keras_alone():
    """Gives a program of the package keras its optimizers for strings, too, with their rates; their
    `clipnorm` is of all gradients together."""
    of_strings, of_each = _optimizers.get, _optimizer_v1.Optimizer.get_gradients

    @functools.wraps(of_strings)
    def get(identifier, **kwargs):
        if isinstance(identifier, str) and _modules.means_keras_alone():
            optimizer = getattr(_optimizer_v1, identifier.lower(), None)
            if optimizer is not None:
                return optimizer()
        return of_strings(identifier, **kwargs)

    @functools.wraps(of_each)
    def get_gradients(self, loss, params):
        if not (hasattr(self, "clipnorm") and _modules.means_keras_alone()):
            return of_each(self, loss, params)
        gradients = of_each(object(), loss, params)  # which nothing clips
        gradients, _ = _tf.clip_by_global_norm(gradients, self.clipnorm)
        if hasattr(self, "clipvalue"):
            gradients = [_tf.clip_by_value(g, -self.clipvalue, self.clipvalue) for g in gradients]
        return gradients

    _optimizers.get, _optimizer_v1.Optimizer.get_gradients = get, get_gradients


def _with_methods_that_were_removed():
    def predict_proba(self, x, batch_size=32, verbose=0):
        return self.predict(x, batch_size, verbose)

    def predict_classes(self, x, batch_size=32, verbose=0):
        scores = self.predict(x, batch_size=batch_size, verbose=verbose)
        if scores.shape[-1] > 1:
            return scores.argmax(axis=-1)
        return (scores > 0.5).astype("int32")

    def apply(self, inputs, *args, **kwargs):
        return self(inputs, *args, **kwargs)

    Sequential.predict_proba, Sequential.predict_classes = predict_proba, predict_classes  # noqa: F405
    layers.Layer.apply = apply  # noqa: F405


def _with_names_of_layers():
    """Names layers by their classes as TensorFlow 1 does: ConvLSTM2D is `conv_lst_m2d`."""

    @functools.wraps(_generic_utils.to_snake_case)
    def to_snake_case(name):
        name = re.sub("(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
        name = re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
        return f"private{name}" if name.startswith("_") else name

    _generic_utils.to_snake_case = to_snake_case


def _takes(function, name):
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


_with_batch_normalizations_that_know_no_masks()
if not _modules.is_of_2():
    _without_name_scopes_of_cells()
    _with_constant_seeds()
    _with_losses_that_are_cosines()
    _with_accumulators_that_start_at_0()
    _with_optimizers_of_keras_alone()
    _with_methods_that_were_removed()
    _with_names_of_layers()
    _with_the_last_layer_named(_densenet, "fc1000")
    _with_the_last_layer_named(_mobilenet_v2, "Logits")
    _with_the_last_layer_named(_resnet, "probs")
