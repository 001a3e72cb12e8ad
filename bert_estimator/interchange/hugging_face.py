"""Hugging Face's BERT: config.json, model.safetensors and vocab.txt (or tokenizer.json).

transformers calls tensors by its modules' attributes, and stores a dense layer's weights as
[outputs, inputs], where TensorFlow's kernel is [inputs, outputs]. Heads:

    BertForPreTraining             cls/predictions, cls/seq_relationship
    BertForMaskedLM                cls/predictions
    BertForNextSentencePrediction  cls/seq_relationship
    BertForSequenceClassification  output_weights, output_bias
    BertModel                      none
"""

import json
import os
import re
import shutil

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import archive, network_variables, safetensors_files
from bert_estimator.interchange.network_variables import CLASSIFIER, MASKED_LM, NEXT_SENTENCE
from bert_estimator.interchange.source import HUGGING_FACE, Source
from bert_estimator.tokenization import is_cased

CONFIG, VOCABULARY, TOKENIZER = "config.json", "vocab.txt", "tokenizer_config.json"
_WHOLE_TOKENIZER = "tokenizer.json"

_ARCHITECTURES = {
    (MASKED_LM, NEXT_SENTENCE): "BertForPreTraining",
    (MASKED_LM,): "BertForMaskedLM",
    (NEXT_SENTENCE,): "BertForNextSentencePrediction",
    (CLASSIFIER,): "BertForSequenceClassification",
    (): "BertModel",
}

# google-research/bert's "gelu" is the tanh form, transformers' "gelu" the exact one. Of several
# names for one function the first is written.
_HIDDEN_ACTS = {
    "gelu": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
    "gelu_erf": ("gelu", "gelu_python"),
    "relu": ("relu",),
    "tanh": ("tanh",),
    "linear": ("linear",),
}

# What the network is built with, and transformers would let a configuration change.
_FIXED = {
    "model_type": "bert",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}

# google-research/bert's names to those of transformers, one pattern after the other.
_RENAMED = (
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"^output_(weights|bias)$", r"classifier/\1"),
    (r"/output_(weights|bias)$", r"/\1"),
    (r"_embeddings$", r"_embeddings/weight"),
    (r"/(kernel|gamma|weights)$", r"/weight"),
    (r"/beta$", r"/bias"),
)

# Tensors that older files hold twice: name -> the weight they repeat.
_COPIES = {
    "cls.predictions.decoder.weight": "bert/embeddings/word_embeddings",
    "cls.predictions.decoder.bias": "cls/predictions/output_bias",
}
_POSITION_IDS = "bert.embeddings.position_ids"


def is_model(folder):
    """Whether a directory holds a model with safetensors."""
    files = (safetensors_files.FILE, safetensors_files.INDEX)
    return any(os.path.exists(os.path.join(folder, name)) for name in files)


def is_config(path):
    """Whether a JSON file is a configuration of transformers, which says of what model it is."""
    with tf.io.gfile.GFile(path, "rb") as reader:
        return b'"model_type"' in reader.read()


def open_directory(folder, path):
    """Opens a model.

    Args:
      folder: its directory.
      path: what the user called it.

    Raises:
      ValueError: a file is missing or damaged, a tensor is unknown, missing or of another shape
        than config.json says, or the network is one that cannot be built here.
    """
    path_of_config = os.path.join(folder, CONFIG)
    values = _read_json(path_of_config)
    config = _config_of(values, path_of_config)
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
    network_variables.check(config, shapes, path)
    return Source(
        path=path,
        format=HUGGING_FACE,
        shapes=shapes,
        read=read,
        left_out=tuple(stored[name] for name in left_out),
        config=config,
        vocab_file=_vocab_file(folder),
        labels=_labels_of(values),
        do_lower_case=_read_casing(os.path.join(folder, TOKENIZER)),
    )


def write(folder, config, vocab_file, weights, labels=(), do_lower_case=None):
    """Writes a directory that `transformers` opens with `from_pretrained`.

    Args:
      folder: an empty directory.
      config: `BertConfig`.
      vocab_file: path to copy the vocabulary from, or None.
      weights: name -> float32 array, google-research/bert's names.
      labels: names of the classifier's outputs; LABEL_0, LABEL_1, ... where there is none for each.
      do_lower_case: how text met the vocabulary; None to tell it by the vocabulary's capitals.

    Raises:
      ValueError: the weights are no BERT with heads that transformers has in one model, or the
        vocabulary is none of WordPiece.
    """
    words = None if vocab_file is None else _read_words(vocab_file)
    shapes = {name: list(value.shape) for name, value in weights.items()}
    heads = network_variables.check(config, shapes, "The model to write")
    if heads not in _ARCHITECTURES:
        raise ValueError(f"transformers has no BERT with the heads {', '.join(heads)} in one model")
    architecture = _ARCHITECTURES[heads]
    tensors = {
        tensor_name(name): value.T if _is_transposed(name) else value
        for name, value in weights.items()
    }
    if not heads:
        tensors = {name.removeprefix("bert."): value for name, value in tensors.items()}
    safetensors_files.write(os.path.join(folder, safetensors_files.FILE), tensors)
    values = {
        "architectures": [architecture],
        **_FIXED,
        **config.to_dict(),
        "hidden_act": _HIDDEN_ACTS[config.hidden_act][0],
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }
    if CLASSIFIER in heads:
        number = shapes[CLASSIFIER][0]
        if len(labels) != number:
            labels = [f"LABEL_{i}" for i in range(number)]
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    _write_json(os.path.join(folder, CONFIG), values)
    if vocab_file is not None:
        shutil.copyfile(vocab_file, os.path.join(folder, VOCABULARY))
        if do_lower_case is None:
            do_lower_case = not is_cased(words)
        tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": do_lower_case}
        _write_json(os.path.join(folder, TOKENIZER), tokenizer)


def read_config(path):
    """Returns the `BertConfig` of a config.json of transformers.

    Raises:
      ValueError: the file is missing or no configuration, or the network cannot be built here.
    """
    return _config_of(_read_json(path), path)


def _read_json(path):
    try:
        with open(path, encoding="utf-8") as reader:
            return json.load(reader)
    except FileNotFoundError:
        raise ValueError(f"{path}: is missing beside the weights") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None


def _config_of(values, path):
    """Returns the `BertConfig` of what a config.json holds; raises ValueError, which names it."""
    for key, allowed in _FIXED.items():
        if values.get(key, allowed) != allowed:
            raise ValueError(f"{path}: {key}={values[key]!r}, but the network has {allowed!r} only")
    ours = {theirs: name for name, names in _HIDDEN_ACTS.items() for theirs in names}
    act = values.get("hidden_act", "gelu")
    if act not in ours:
        raise ValueError(f"{path}: hidden_act={act!r} is not known; known are {', '.join(ours)}")
    known = BertConfig(vocab_size=30522).to_dict()  # the defaults of transformers are the same
    known.update({key: value for key, value in values.items() if key in known})
    return BertConfig.from_dict({**known, "hidden_act": ours[act]}, source=path)


def _labels_of(values):
    """Returns the labels of a config.json that gives them names of their own, in their order."""
    names = values.get("id2label")
    if not isinstance(names, dict):
        return ()
    labels = tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(len(names)))
    return () if all(re.fullmatch(r"LABEL_\d+", label) for label in labels) else labels


def tensor_name(name):
    """Returns what transformers calls one of google-research/bert's variables."""
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name.replace("/", ".")


def _vocab_file(folder):
    """Returns the path of vocab.txt, or of one made of tokenizer.json, which is all that
    transformers 5 writes; None where there is no vocabulary, or one of another kind than words."""
    vocab_file, path = (os.path.join(folder, name) for name in (VOCABULARY, _WHOLE_TOKENIZER))
    if os.path.exists(vocab_file):
        return vocab_file
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as reader:
            values = json.load(reader)
        if values["model"]["type"] != "WordPiece":
            return None
        added = {token["content"]: token["id"] for token in values["added_tokens"]}
        tokens = {number: token for token, number in {**values["model"]["vocab"], **added}.items()}
        lines = [tokens[number] + "\n" for number in range(len(tokens))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: cannot be read as a tokenizer: {error!r}") from None
    vocab_file = os.path.join(archive.temporary_folder(), VOCABULARY)
    with open(vocab_file, "w", encoding="utf-8") as writer:
        writer.writelines(lines)
    return vocab_file


def _current_name(name, names):
    """The name that today's BertForPreTraining & co. would give a stored tensor."""
    if not any(n.startswith("bert.") for n in names):  # a BertModel alone
        name = f"bert.{name}"
    # As in the first conversions of google-research/bert's models.
    return re.sub(r"LayerNorm\.(gamma|beta)$", lambda m: f"LayerNorm.{_OLD[m[1]]}", name)


_OLD = {"gamma": "weight", "beta": "bias"}


def _is_transposed(name):
    return name.endswith("/kernel")


def _check_copies(left_out, stored, read_stored, theirs, read, path):
    """Raises ValueError unless what is stored twice is the same both times."""
    for name in left_out:
        original = _COPIES.get(name)
        if original in theirs and not np.array_equal(read_stored(stored[name]), read(original)):
            raise ValueError(
                f"{path}: {name} differs from {theirs[original]}; the network has one for both"
            )


def _read_casing(path):
    """Returns what a tokenizer_config.json says of lower-casing; None where it says nothing."""
    if not os.path.exists(path):
        return None
    values = _read_json(path)
    value = values.get("do_lower_case") if isinstance(values, dict) else None
    return value if isinstance(value, bool) else None


def _read_words(vocab_file):
    """Returns the tokens of a vocab.txt."""
    if vocab_file.endswith(".model"):
        raise ValueError(
            f"{vocab_file}: is SentencePiece's, and a BERT of transformers takes a WordPiece "
            "vocabulary (vocab.txt) only. To convert the weights alone, give no --vocab_file, and "
            "move a vocab.model that lies beside them elsewhere"
        )
    try:
        with open(vocab_file, encoding="utf-8") as reader:
            return reader.read().split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{vocab_file}: is no vocabulary, a UTF-8 text file with one token a line: {error}"
        ) from None


def _write_json(path, values):
    with open(path, "w", encoding="utf-8") as writer:
        writer.write(json.dumps(values, indent=2) + "\n")
