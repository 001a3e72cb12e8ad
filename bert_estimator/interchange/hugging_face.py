"""Hugging Face's BERT: config.json, model.safetensors and vocab.txt (or tokenizer.json).

transformers calls tensors by its modules' attributes, and stores a dense layer's weights as
[outputs, inputs], while TensorFlow's kernel is [inputs, outputs]. Heads:

    BertForPreTraining             cls/predictions, cls/seq_relationship
    BertForMaskedLM                cls/predictions
    BertForNextSentencePrediction  cls/seq_relationship
    BertForSequenceClassification  output_weights, output_bias
    BertForTokenClassification     output_weights, output_bias of a tagging network; no pooler
    BertForQuestionAnswering       cls/squad/output_weights, cls/squad/output_bias; no pooler
    BertModel                      no head
"""

import os
import re
from collections.abc import Mapping

import numpy as np

from bert_estimator.interchange import (
    hugging_face_config,
    hugging_face_tokenizer,
    network_variables,
    safetensors_files,
)
from bert_estimator.interchange.network_variables import (
    ANSWER,
    CLASSIFIER,
    MASKED_LM,
    NEXT_SENTENCE,
)
from bert_estimator.interchange.source import HUGGING_FACE, TAGGING, Source
from bert_estimator.tokenization import Tokenizer

_ARCHITECTURES = {
    (MASKED_LM, NEXT_SENTENCE): "BertForPreTraining",
    (MASKED_LM,): "BertForMaskedLM",
    (NEXT_SENTENCE,): "BertForNextSentencePrediction",
    (CLASSIFIER,): "BertForSequenceClassification",
    (ANSWER,): "BertForQuestionAnswering",
    (): "BertModel",
}

# From google-research/bert's names to transformers' names: one pattern after the other.
_RENAMED = (
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"^output_(weights|bias)$", r"classifier/\1"),
    (r"^cls/squad/output_(weights|bias)$", r"qa_outputs/\1"),
    (r"/output_(weights|bias)$", r"/\1"),
    (r"_embeddings$", r"_embeddings/weight"),
    (r"/(kernel|gamma|weights)$", r"/weight"),
    (r"/beta$", r"/bias"),
)

# Tensors that older files hold a second time: name -> the weight that they repeat.
_COPIES = {
    "cls.predictions.decoder.weight": "bert/embeddings/word_embeddings",
    "cls.predictions.decoder.bias": "cls/predictions/output_bias",
}
_POSITION_IDS = "bert.embeddings.position_ids"


def is_model(folder: str) -> bool:
    """Returns whether a directory holds a model with safetensors."""
    files = (safetensors_files.FILE, safetensors_files.INDEX)
    return any(os.path.exists(os.path.join(folder, name)) for name in files)


def open_directory(folder: str, path: str) -> Source:
    """Opens a model.

    Args:
      folder: its directory.
      path: what the user called it.

    Raises:
      ValueError: a file is missing or damaged; a tensor is unknown, missing, or has another shape
        than config.json says; or the network cannot be built here.
    """
    path_of_config = os.path.join(folder, hugging_face_config.CONFIG)
    values = hugging_face_config.read_json(path_of_config)
    config = hugging_face_config.config_of(values, path_of_config)
    stored_shapes, read_stored = safetensors_files.open_directory(folder)
    stored = {_current_name(name, stored_shapes): name for name in stored_shapes}
    heads = network_variables.head_shapes(config, 0).values()
    known = [*network_variables.encoder_shapes(config), *(n for head in heads for n in head)]
    theirs = {name: tensor_name(name) for name in known if tensor_name(name) in stored}

    def read(name):
        value = read_stored(stored[theirs[name]])
        return value.T if _is_transposed(name) else value

    shapes = {name: stored_shapes[stored[theirs[name]]] for name in theirs}
    shapes = {k: v[::-1] if _is_transposed(k) else v for k, v in shapes.items()}
    left_out = sorted(set(stored) - set(theirs.values()))
    _check_copies(left_out, stored, read_stored, theirs, read, path)
    unknown = [stored[n] for n in left_out if n not in _COPIES and n != _POSITION_IDS]
    if unknown:
        raise ValueError(f"{path}: holds tensors that are unknown here: {', '.join(unknown)}")
    found = network_variables.check(config, shapes, path)
    do_lower_case, max_seq_length = hugging_face_tokenizer.read_settings(folder)
    return Source(
        path=path,
        format=HUGGING_FACE,
        shapes=shapes,
        read=read,
        left_out=tuple(stored[name] for name in left_out),
        config=config,
        vocab_file=hugging_face_tokenizer.find_vocabulary(folder),
        labels=hugging_face_config.labels_of(values, path_of_config) if CLASSIFIER in found else (),
        kind=hugging_face_config.kind_of(values, path_of_config) if CLASSIFIER in found else None,
        do_lower_case=do_lower_case,
        max_seq_length=max_seq_length,
    )


def write(
    folder: str, source: Source, weights: Mapping[str, np.ndarray], tokenizer: Tokenizer
) -> None:
    """Writes a directory that `transformers` opens with `from_pretrained`.

    Args:
      folder: an empty directory.
      source: `Source` of the model, with its configuration and its vocabulary.
      weights: name -> float32 array: the source's weights.
      tokenizer: the tokenizer of the source's vocabulary.

    Raises:
      ValueError: the weights are not a BERT with heads that transformers has in one model; the
        vocabulary is not WordPiece; or there are labels, but not one for each output.
    """
    shapes = {name: list(value.shape) for name, value in weights.items()}
    heads = network_variables.check(source.config, shapes, source.path)
    if heads not in _ARCHITECTURES:
        raise ValueError(f"transformers has no BERT with the heads {', '.join(heads)} in one model")
    hugging_face_tokenizer.write(folder, source, tokenizer)
    tensors = {
        tensor_name(name): value.T if _is_transposed(name) else value
        for name, value in weights.items()
    }
    if not heads:
        tensors = {name.removeprefix("bert."): value for name, value in tensors.items()}
    safetensors_files.write(os.path.join(folder, safetensors_files.FILE), tensors)
    num_labels = shapes.get(CLASSIFIER, [0])[0]
    architecture = _ARCHITECTURES[heads]
    if CLASSIFIER in heads and source.kind == TAGGING:
        architecture = hugging_face_config.TOKEN_CLASSIFIER
    hugging_face_config.write(folder, source, architecture, num_labels, tokenizer.pad_id)


def tensor_name(name: str) -> str:
    """Returns transformers' name of one of google-research/bert's variables."""
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name.replace("/", ".")


def _current_name(name, names):
    """Returns the name that a stored tensor has in today's BertForPreTraining and its siblings."""
    if not any(n.startswith("bert.") for n in names):  # a BertModel without a head
        name = f"bert.{name}"
    # The first conversions of google-research/bert's models have these names.
    return re.sub(r"LayerNorm\.(gamma|beta)$", lambda m: f"LayerNorm.{_OLD[m[1]]}", name)


_OLD = {"gamma": "weight", "beta": "bias"}


def _is_transposed(name):
    return name.endswith("/kernel")


def _check_copies(left_out, stored, read_stored, theirs, read, path):
    """Raises ValueError if a tensor differs from the weight that it should repeat."""
    for name in left_out:
        original = _COPIES.get(name)
        if original in theirs and not np.array_equal(read_stored(stored[name]), read(original)):
            raise ValueError(
                f"{path}: {name} differs from {theirs[original]}; the network uses one weight for "
                "both"
            )
