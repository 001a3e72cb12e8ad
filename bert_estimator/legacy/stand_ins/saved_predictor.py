"""Predictions of a saved model in a session of its own: the module `tf.contrib.predictor`."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

_DEFAULT = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY


class Predictor:
    """Computes outputs from inputs, by name; `from_saved_model` and `from_estimator` make it."""

    def __init__(
        self,
        session: tf.Session,
        feed_tensors: Mapping[str, tf.Tensor],
        fetch_tensors: Mapping[str, tf.Tensor],
    ):
        self.graph = session.graph
        self.session = session
        self.feed_tensors = dict(feed_tensors)
        self.fetch_tensors = dict(fetch_tensors)

    def __call__(self, input_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the outputs by name; an input that has a default may be left out of the dict."""
        unknown = sorted(set(input_dict) - set(self.feed_tensors))
        if unknown:
            raise ValueError(
                f"input_dict has {unknown}, but the inputs are {sorted(self.feed_tensors)}"
            )
        feeds = {self.feed_tensors[name]: value for name, value in input_dict.items()}
        return self.session.run(self.fetch_tensors, feeds)

    def __str__(self):
        return f"Predictor with feeds {self.feed_tensors} and fetches {self.fetch_tensors}"


def from_saved_model(
    export_dir: str | bytes,
    signature_def_key: str | None = None,
    signature_def: Any = None,
    input_names: Mapping[str, str] | None = None,
    output_names: Mapping[str, str] | None = None,
    tags: str | Sequence[str] | None = None,
    graph: tf.Graph | None = None,
    config: Any = None,
) -> Predictor:
    """Loads a saved model for a signature, by default `serving_default`, or for names of inputs and
    outputs (name -> tensor's name); `tags` are a list, or have commas, by default `serve`."""
    is_named = input_names is not None or output_names is not None
    if (signature_def_key is not None) + (signature_def is not None) + is_named > 1:
        raise ValueError(
            "give one of signature_def_key, signature_def, and input_names with output_names"
        )
    if is_named and (input_names is None or output_names is None):
        raise ValueError("give both input_names and output_names")
    tags = tags or tf.saved_model.tag_constants.SERVING
    tags = tags.split(",") if isinstance(tags, str) else list(tags)
    session = tf.Session(graph=graph or tf.Graph(), config=config)
    with session.graph.as_default():
        meta_graph = tf.saved_model.load(session, tags, os.fsdecode(export_dir))
    # The signature is needed for its names of tensors alone.
    if not is_named:
        signature_def = signature_def or _signature(meta_graph, signature_def_key or _DEFAULT)
        input_names, output_names = (
            {name: info.name for name, info in side.items()}
            for side in (signature_def.inputs, signature_def.outputs)
        )
    tensors = [
        {name: session.graph.get_tensor_by_name(tensor) for name, tensor in names.items()}
        for names in (input_names, output_names)
    ]
    return Predictor(session, *tensors)


def from_estimator(
    estimator: Any,
    serving_input_receiver_fn: Any,
    output_key: str | None = None,
    graph: tf.Graph | None = None,
    config: Any = None,
) -> Predictor:
    """Loads the newest checkpoint of an estimator, for a key of the model's `export_outputs`, by
    default `serving_default`."""
    with tempfile.TemporaryDirectory() as folder:
        # Loading restores all variables into the session, so the folder may go afterwards.
        path = estimator.export_saved_model(folder, serving_input_receiver_fn)
        return from_saved_model(path, output_key, graph=graph, config=config)


def _signature(meta_graph, key):
    if key not in meta_graph.signature_def:
        names = sorted(meta_graph.signature_def)
        raise ValueError(f"the saved model does not have the signature {key!r}; it has {names}")
    return meta_graph.signature_def[key]
