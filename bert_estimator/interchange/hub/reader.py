"""TF Hub's BERT modules: saved_model.pb with variables/ and assets/, of TensorFlow 2 or 1.

A module of TensorFlow 2, such as bert_en_uncased_L-12_H-768_A-12/4, has the TensorFlow Model
Garden's names and shapes: a projection's weights are [H, N, D]. Its attributes `vocab_file` and
`do_lower_case` say how text is tokenized. A module of TensorFlow 1, which a file tfhub_module.pb
marks, has google-research/bert's names, and the signature `tokenization_info` instead.

Neither has a bert_config.json: the sizes are told by the weights, and what weights do not show by
the graph, unless a bert_config.json is put among the assets.

Letters: H hidden size, N attention heads, D size of a head.
"""

import dataclasses
import math
import os
import re
from collections import Counter

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2, trackable_object_graph_pb2

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_files, network_variables
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.interchange.source import HUB, Source
from bert_estimator.system import paths

MODEL, MODULE_OF_TF1, ASSETS, VARIABLES = (
    "saved_model.pb", "tfhub_module.pb", "assets", os.path.join("variables", "variables")
)  # fmt: skip
_ASSETS_OF_TF1 = "saved_model_assets"
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_WORDS = "bert/embeddings/word_embeddings"
_QUERY = "bert/encoder/layer_0/attention/self/query/kernel"
_TANH_FORM = 0.044715  # the factor of the cube in GELU's tanh form

# The Model Garden's names, of its first BERT encoder and of its later ones, and ours.
_DENSE, _NORM = r"(kernel|bias)$", r"(gamma|beta)$"
_LAYER = r"(?:transformer|encoder)/layer_(\d+)/"
_OURS = r"bert/encoder/layer_\1/"
_NAMES = (
    (r"word_embeddings/embeddings$", _WORDS),
    (
        r"(?:position_embedding/(?:position_)?embeddings|embedding_postprocessor/position_embeddings)$",
        "bert/embeddings/position_embeddings",
    ),
    (
        r"(?:type_embeddings/embeddings|embedding_postprocessor/type_embeddings)$",
        "bert/embeddings/token_type_embeddings",
    ),
    (
        rf"(?:embeddings|embedding_postprocessor)/layer_norm/{_NORM}",
        r"bert/embeddings/LayerNorm/\1",
    ),
    (rf"{_LAYER}self_attention/(query|key|value)/{_DENSE}", rf"{_OURS}attention/self/\2/\3"),
    (
        rf"{_LAYER}self_attention(?:_output|/attention_output)/{_DENSE}",
        rf"{_OURS}attention/output/dense/\2",
    ),
    (rf"{_LAYER}self_attention_layer_norm/{_NORM}", rf"{_OURS}attention/output/LayerNorm/\2"),
    (rf"{_LAYER}intermediate/{_DENSE}", rf"{_OURS}intermediate/dense/\2"),
    (rf"{_LAYER}output/{_DENSE}", rf"{_OURS}output/dense/\2"),
    (rf"{_LAYER}output_layer_norm/{_NORM}", rf"{_OURS}output/LayerNorm/\2"),
    (rf"pooler_transform/{_DENSE}", r"bert/pooler/dense/\1"),
    (rf"transform/dense/{_DENSE}", r"cls/predictions/transform/dense/\1"),
    (rf"transform/LayerNorm/{_NORM}", r"cls/predictions/transform/LayerNorm/\1"),
    (r"output_bias(?:/bias)?$", network_variables.MASKED_LM + "/output_bias"),
)


def is_model(folder: str) -> bool:
    """Returns whether a directory holds a SavedModel."""
    return os.path.isfile(os.path.join(folder, MODEL))


def folder_of(prefix: str) -> str | None:
    """Returns the module whose weights a checkpoint's path names, or None if there is no module."""
    folder = os.path.dirname(os.path.dirname(prefix))
    is_inside = os.path.abspath(prefix) == os.path.abspath(os.path.join(folder, VARIABLES))
    return folder if is_inside and is_model(folder) else None


def open_directory(folder: str, path: str) -> Source:
    """Opens the module of a directory; `path` is what the user called it."""
    model = _read_model(os.path.join(folder, MODEL))
    prefix = os.path.join(folder, VARIABLES)
    if not tf1_checkpoint.exists(prefix):
        raise ValueError(
            f"{path}: is a SavedModel without weights, such as TF Hub's modules that preprocess "
            "text; give the directory of BERT's own module"
        )
    checkpoint = tf1_checkpoint.open_prefix(prefix, path)
    # Checkpoints of TensorFlow 2 hold the graph of their objects as a tensor of this name.
    if _OBJECTS in checkpoint.left_out:
        shapes, read, facts = _open_tf2(prefix, model, path)
    elif os.path.isfile(os.path.join(folder, MODULE_OF_TF1)):
        shapes, read, facts = checkpoint.shapes, checkpoint.read, _facts_of_tf1(model)
    else:
        raise ValueError(
            f"{path}: is a SavedModel, but not a module of TF Hub's: {MODULE_OF_TF1}, which marks "
            "the modules of TensorFlow 1, is missing. Give the checkpoint that it was exported from"
        )
    if _WORDS not in shapes:
        raise ValueError(
            f"{path}: is a module, but not BERT's: none of its variables has the name of BERT's "
            f"word embeddings. Its variables begin with {', '.join(sorted(shapes)[:3])}"
        )
    assets = os.path.join(folder, ASSETS)
    beside = network_files.read(assets)
    if facts.vocabulary is not None:
        try:
            beside["vocab_file"] = paths.inside(assets, facts.vocabulary)
        except ValueError as error:
            raise ValueError(f"{path}: its vocabulary: {error}") from None
    if facts.do_lower_case is not None:
        beside["do_lower_case"] = facts.do_lower_case
    # A bert_config.json among the assets comes before what the graph shows.
    config = beside.pop("config") or _config_of(shapes, facts, path)
    # A module may have other variables, such as a head's.
    encoder = {name: shape for name, shape in shapes.items() if name.startswith("bert/")}
    network_variables.check(config, encoder, path)
    return Source(
        path=path,
        format=HUB,
        shapes=shapes,
        read=read,
        left_out=() if _OBJECTS in checkpoint.left_out else checkpoint.left_out,
        config=config,
        **beside,
    )


@dataclasses.dataclass(frozen=True)
class _Facts:
    """Holds what a module says of itself besides its weights; None is what it does not say."""

    num_attention_heads: int | None
    hidden_act: str | None
    vocabulary: str | None  # the name of a file among the assets
    do_lower_case: bool | None


def _read_model(path: str) -> saved_model_pb2.SavedModel:
    """Reads saved_model.pb."""
    with open(path, "rb") as reader:
        data = reader.read()
    try:
        model = saved_model_pb2.SavedModel.FromString(data)
    except DecodeError:
        raise ValueError(f"{path}: is damaged: it is not a SavedModel; download it again") from None
    if not model.meta_graphs:
        raise ValueError(f"{path}: is damaged: it does not hold a graph; download it again")
    return model


def _open_tf2(prefix, model, path):
    """Returns (shapes, function that reads a weight, `_Facts`) of a module of TensorFlow 2."""
    reader = tf1_checkpoint.open_reader(prefix, path)
    stored_shapes = reader.get_variable_to_shape_map()
    what = "the list of its weights"
    try:
        objects = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
            tf1_checkpoint.tensor(reader, _OBJECTS, what, path)
        )
    except DecodeError as error:
        raise ValueError(f"{path}: {what} cannot be read: {error}") from None
    # A checkpoint's keys are paths through its objects. The list of objects has the names that the
    # variables had in the graph, which `_ours` knows.
    attributes = [attribute for node in objects.nodes for attribute in node.attributes]
    keys = {}
    for attribute in attributes:
        name = _ours(attribute.full_name)
        if (
            attribute.checkpoint_key not in stored_shapes
            or not stored_shapes[attribute.checkpoint_key]
        ):
            continue  # a switch such as do_lower_case, or a counter
        # One variable may be reached on several paths, but has one key.
        if keys.setdefault(name, attribute.checkpoint_key) != attribute.checkpoint_key:
            raise ValueError(f"{path}: holds {name} twice, as {attribute.full_name}")
    shapes = {name: _flat(name, stored_shapes[key]) for name, key in sorted(keys.items())}

    def read(name):
        value = tf1_checkpoint.weight(reader, keys.get(name, name), name, path)
        return np.reshape(value, shapes[name])

    # The weights of a query are [H, N, D].
    query = stored_shapes.get(keys.get(_QUERY), [])
    child = _child(objects.nodes, "do_lower_case")
    lower = None
    if child is not None and child.attributes:
        key = child.attributes[0].checkpoint_key
        lower = tf1_checkpoint.tensor(reader, key, "do_lower_case", path)
    graph = model.meta_graphs[0]
    asset = _child(graph.object_graph_def.nodes, "vocab_file")
    is_asset = asset is not None and asset.WhichOneof("kind") == "asset"
    files = graph.asset_file_def
    index = asset.asset.asset_file_def_index if is_asset else len(files)
    # The network is in functions; the graph itself only calls them.
    functions = (node for f in graph.graph_def.library.function for node in f.node_def)
    return (
        shapes,
        read,
        _Facts(
            num_attention_heads=query[1] if len(query) == 3 else None,
            hidden_act=_activation([*graph.graph_def.node, *functions]),
            vocabulary=files[index].filename if index < len(files) else None,
            do_lower_case=None if lower is None else bool(lower),
        ),
    )


def _child(nodes, name):
    """Returns the first object that another object has as an attribute of a name, or None."""
    for node in nodes:
        for child in node.children:
            if child.local_name == name and child.node_id < len(nodes):
                return nodes[child.node_id]
    return None


def _ours(name):
    """Returns our name of a weight of the Model Garden's."""
    for pattern, ours in _NAMES:
        match = re.search(rf"(?:^|/){pattern}", name)
        if match:
            return match.expand(ours)
    return name


def _flat(name, shape):
    """Returns the shape that a weight has here: heads and their elements are one dimension."""
    shape = list(shape)
    if "/attention/" not in name or "LayerNorm" in name:
        return shape
    if name.endswith("/kernel") and len(shape) == 3:
        # A query, key or value is [H, N, D], and the attention's output is [N, D, H].
        inputs = shape[:1] if "/self/" in name else shape[:2]
        return [math.prod(inputs), math.prod(shape[len(inputs) :])]
    return [math.prod(shape)] if name.endswith("/bias") else shape


def _facts_of_tf1(model):
    """Returns what the graph of a module of TensorFlow 1 says."""
    graph = min(model.meta_graphs, key=lambda g: len(g.meta_info_def.tags))  # not for training
    nodes = {node.name: node for node in graph.graph_def.node}
    # The signature's outputs are constants: do_lower_case, and the path of the vocabulary, which is
    # an asset.
    info = graph.signature_def["tokenization_info"].outputs
    lower = _constant(nodes, info["do_lower_case"].name) if "do_lower_case" in info else None
    vocabulary = None
    if "vocab_file" in info:
        tensor = _origin(nodes, info["vocab_file"].name)
        for asset in _assets(graph):
            if _origin(nodes, asset.tensor_info.name) is tensor:
                vocabulary = asset.filename
    return _Facts(
        num_attention_heads=_heads(nodes),
        hidden_act=_activation(nodes.values()),
        vocabulary=vocabulary,
        do_lower_case=None if lower is None else bool(lower),
    )


def _assets(graph):
    """Returns the `AssetFileDef`s of a graph, which TensorFlow 1 keeps in a collection."""
    assets = list(graph.asset_file_def)
    for packed in graph.collection_def[_ASSETS_OF_TF1].any_list.value:
        asset = meta_graph_pb2.AssetFileDef()
        packed.Unpack(asset)
        assets.append(asset)
    return assets


def _origin(nodes, tensor):
    """Returns the node that a tensor comes from, through identities; None if it is missing."""
    node = nodes.get(tensor.split(":")[0])
    # A damaged graph may have a circle.
    for _ in range(len(nodes)):
        if node is None or node.op != "Identity":
            break
        node = nodes.get(node.input[0].split(":")[0])
    return node


def _constant(nodes, tensor):
    """Returns the value of a constant as a numpy array, or None if the tensor is not constant."""
    node = _origin(nodes, tensor)
    return None if node is None else _value(node)


def _value(node):
    """Returns the value of a node as a numpy array, or None if the node is not a constant."""
    if node.op != "Const":
        return None
    try:
        return tf.make_ndarray(node.attr["value"].tensor)
    except (TypeError, ValueError):  # a damaged value, or of a type that arrays do not have
        return None


def _heads(nodes):
    """Returns N of google-research/bert's graph, which splits H into [.., N, D]; None if
    unclear."""
    numbers = Counter()
    for node in nodes.values():
        if "attention/self" in node.name and node.op == "Reshape":
            shape = _origin(nodes, node.input[1])
            # A shape that is not static is a Pack of four scalars, the last two of which are
            # constants.
            if shape is not None and shape.op == "Pack" and len(shape.input) == 4:
                heads, size = (_constant(nodes, name) for name in shape.input[2:])
            else:
                value = _constant(nodes, node.input[1])
                heads, size = value[2:] if np.shape(value) == (4,) else (None, None)
            if heads is not None and size is not None:
                numbers[int(heads)] += 1
    return next(iter(numbers)) if len(numbers) == 1 else None


def _activation(nodes):
    """Returns the activation that a graph shows, by the name that `BertConfig` has; or None."""
    operations = {node.op for node in nodes}
    if operations & {"Erf", "Erfc"}:
        return "gelu_erf"
    # google-research/bert's GELU is the tanh form, whose factor is a constant of the graph.
    for node in nodes:
        if node.attr["dtype"].type == tf.float32.as_datatype_enum:
            value = _value(node)
            if value is not None and value.size == 1 and abs(value.item() - _TANH_FORM) < 1e-6:
                return "gelu"
    return "relu" if "Relu" in operations else None


def _config_of(shapes, facts, path):
    """Returns the `BertConfig` that a module's weights and graph show."""
    layers = {m[1] for m in (re.match(r"bert/encoder/layer_(\d+)/", n) for n in shapes) if m}
    needed = {
        "num_attention_heads": facts.num_attention_heads,
        "hidden_act": facts.hidden_act,
    }
    sizes = {
        "hidden_size": "bert/embeddings/LayerNorm/gamma",
        "intermediate_size": "bert/encoder/layer_0/intermediate/dense/bias",
        "max_position_embeddings": "bert/embeddings/position_embeddings",
        "type_vocab_size": "bert/embeddings/token_type_embeddings",
        "vocab_size": _WORDS,
    }
    needed |= {key: shapes[name][0] if shapes.get(name) else None for key, name in sizes.items()}
    missing = [key for key, value in needed.items() if value is None]
    if missing or not layers:
        raise ValueError(
            f"{path}: is a module, but its weights and its graph do not show "
            f"{', '.join(missing) or 'layers'} of a BERT. If the module is BERT's, put a "
            f"bert_config.json into its {ASSETS}/"
        )
    try:
        return BertConfig(num_hidden_layers=len(layers), **needed)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
