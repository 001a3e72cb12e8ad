"""Hugging Face's BERT, ALBERT and ELECTRA: config.json, model.safetensors, vocab.txt.

The weights may be in pytorch_model.bin, which is not written. The vocabulary may be in
tokenizer.json, or be SentencePiece's spiece.model (ALBERT).

transformers calls tensors by its modules' attributes, and stores a dense layer's weights as
[outputs, inputs], while TensorFlow's kernel is [inputs, outputs]. Heads:

    BertForPreTraining             cls/predictions, cls/seq_relationship
    BertForMaskedLM                cls/predictions
    BertForNextSentencePrediction  cls/seq_relationship
    BertForSequenceClassification  output_weights, output_bias
    BertForTokenClassification     output_weights, output_bias of a tagging network; no pooler
    BertForQuestionAnswering       cls/squad/output_weights, cls/squad/output_bias; no pooler
    BertModel                      no head

ALBERT has the same classes. ELECTRA has ElectraModel, ElectraForTokenClassification and
ElectraForQuestionAnswering, which do not have a pooler.
"""

import dataclasses
import os
import re
from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.interchange import network_variables
from bert_estimator.interchange.hugging_face import (
    config_json,
    safetensors_files,
    sentence_files,
    special_tokens,
    tokenizer_files,
    torch_files,
)
from bert_estimator.interchange.network_variables import (
    ANSWER,
    CLASSIFIER,
    MASKED_LM,
    NEXT_SENTENCE,
    POOLER,
)
from bert_estimator.interchange.source import (
    ALBERT,
    BERT,
    ELECTRA,
    HUGGING_FACE,
    TAGGING,
    TRANSFORMERS,
    Source,
    check_layer_groups,
)
from bert_estimator.system import json_files
from bert_estimator.system.errors import listed
from bert_estimator.tokenization import Tokenizer

# The end of the class that has these heads.
_CLASSES = {
    (MASKED_LM, NEXT_SENTENCE): "ForPreTraining",
    (MASKED_LM,): "ForMaskedLM",
    (NEXT_SENTENCE,): "ForNextSentencePrediction",
    (CLASSIFIER,): "ForSequenceClassification",
    (ANSWER,): "ForQuestionAnswering",
    (): "Model",
}
# Of ALBERT and ELECTRA, transformers does not have these, or has them with another network.
_MISSING_CLASSES = {
    BERT: (),
    ALBERT: ((NEXT_SENTENCE,),),
    ELECTRA: ((MASKED_LM, NEXT_SENTENCE), (MASKED_LM,), (NEXT_SENTENCE,), (CLASSIFIER,)),
}
# ELECTRA's discriminator, of which the encoder is read.
_ONLY_READ = {BERT: (), ALBERT: (), ELECTRA: (_CLASSES[MASKED_LM, NEXT_SENTENCE],)}
_PREFIX = {BERT: "Bert", ALBERT: "Albert", ELECTRA: "Electra"}

# Tensors that files may hold a second time: name -> the weight that they repeat.
_COPIES = {
    f"{scope}predictions.decoder.{end}": original
    for scope in ("cls.", "")
    for end, original in (
        ("weight", "bert/embeddings/word_embeddings"),
        ("bias", "cls/predictions/output_bias"),
    )
}
# Tensors that the network does not need: numbers from 0 up, and ELECTRA's pretraining.
_NOT_NEEDED = r"\w+\.embeddings\.position_ids|discriminator_predictions\..*"

# What torch puts before all names of a model that was saved with its wrappers.
_WRAPPERS = r"((module|_orig_mod)\.)*"

_GELU = ", which puts a GELU before the classifier where BERT has a tanh"


def is_model(folder: str) -> bool:
    """Returns whether a directory holds a model with safetensors."""
    files = (safetensors_files.FILE, safetensors_files.INDEX)
    return any(os.path.exists(os.path.join(folder, name)) for name in files)


def open_directory(folder: str, path: str) -> Source:
    """Opens the model of a directory; `path` is what the user called it."""
    path_of_config = os.path.join(folder, config_json.CONFIG)
    values = config_json.read_json(path_of_config)
    config = config_json.config_of(values, path_of_config)
    stored_shapes, read_stored = _stored(folder)
    architecture = config_json.model_type(values, path_of_config)
    # Two steps lead to transformers' names of today: `stored` is today's name -> the name in the
    # file. `theirs` is our name -> today's name, for the weights that are there.
    plain = _without_wrappers(stored_shapes)
    stored = {_current_name(name, plain, architecture): plain[name] for name in plain}
    heads = network_variables.head_shapes(config, 0).values()
    known = [*network_variables.encoder_shapes(config), *(n for head in heads for n in head)]
    theirs = {name: network_variables.to_transformers(name, architecture) for name in known}
    theirs = {name: tensor for name, tensor in theirs.items() if tensor in stored}

    def read(name):
        value = read_stored(stored[theirs[name]])
        return value.T if _is_transposed(name) else value

    shapes = {name: stored_shapes[stored[theirs[name]]] for name in theirs}
    shapes = {k: v[::-1] if _is_transposed(k) else v for k, v in shapes.items()}
    # Tied weights are stored twice in some files; a copy that differs would be another network.
    left_out = sorted(set(stored) - set(theirs.values()))
    _check_copies(left_out, stored, read_stored, theirs, read, path)
    unknown = [n for n in left_out if n not in _COPIES and not re.fullmatch(_NOT_NEEDED, n)]
    if unknown:
        names = listed([stored[name] for name in unknown])
        is_gelu = architecture == ELECTRA and "classifier.dense.weight" in unknown
        raise ValueError(
            f"{path}: holds tensors that are unknown here: {names}"
            + f". They are ElectraForSequenceClassification's{_GELU}" * is_gelu
        )
    # After the weights: unknown tensors tell more than an unknown class.
    _check_known(values, path_of_config, architecture)
    own_heads = network_variables.check(config, shapes, path)
    outputs = shapes[CLASSIFIER][0] if CLASSIFIER in own_heads else 0
    kind = config_json.kind_of(values, path_of_config, outputs) if outputs else None
    has_pooler = any(name.startswith(POOLER) for name in shapes)
    if outputs and kind is None and not has_pooler:
        kind = TAGGING  # all that a classifier without a pooler can be
    vocab_file = tokenizer_files.find_vocabulary(folder)
    casing, max_seq_length = tokenizer_files.read_settings(folder)
    source = Source(
        path=path,
        format=HUGGING_FACE,
        shapes=shapes,
        read=read,
        left_out=tuple(stored[name] for name in left_out),
        config=config,
        vocab_file=vocab_file,
        kind=kind,
        do_lower_case=casing and casing.do_lower_case,
        strip_accents=casing and casing.strip_accents,
        casing_file=os.path.join(folder, special_tokens.TOKENIZER),
        max_seq_length=max_seq_length,
        architecture=architecture,
        **config_json.task_of(values, path_of_config, outputs, kind),
    )
    # What sentence-transformers' files say comes before what the tokenizer's say.
    return dataclasses.replace(source, **sentence_files.read(folder))


def _stored(folder):
    files = safetensors_files if is_model(folder) else torch_files
    return files.open_directory(folder)


def write(
    folder: str, source: Source, weights: Mapping[str, np.ndarray], tokenizer: Tokenizer
) -> None:
    """Writes a network to an empty directory, which transformers opens with `from_pretrained`."""
    shapes = {name: list(value.shape) for name, value in weights.items()}
    model_class = class_of(source, shapes)
    write_description(folder, source, shapes, tokenizer, model_class)
    architecture = network_variables.architecture_of(source)
    tensors = {
        network_variables.to_transformers(name, architecture): (
            value.T if _is_transposed(name) else value
        )
        for name, value in weights.items()
    }
    # A model without a head has its names without the prefix, as transformers writes them.
    if model_class == _PREFIX[architecture] + _CLASSES[()]:
        tensors = {name.removeprefix(f"{architecture}."): v for name, v in tensors.items()}
    safetensors_files.write(os.path.join(folder, safetensors_files.FILE), tensors)
    if source.long_texts not in (None, "cut"):
        text = "%s was trained with --long_texts=%s, but transformers cuts longer texts."
        tf.logging.warning(text, source.path, source.long_texts)


def class_of(source: Source, shapes: Mapping[str, list[int]]) -> str:
    """Returns the class of transformers that has a network with its heads, or raises ValueError if
    it does not have one, or would compute or tokenize something else."""
    heads = network_variables.check(source.config, shapes, source.path)
    architecture = network_variables.architecture_of(source)
    if architecture == ALBERT:
        check_layer_groups(source.config, TRANSFORMERS, source.path)
    _check_class(source, heads, shapes, architecture)
    tokenizer_files.check_vocabulary(source)
    end = _CLASSES[heads]
    if CLASSIFIER in heads and source.kind == TAGGING:
        end = config_json.TOKEN_CLASSIFIER
    return _PREFIX[architecture] + end


def write_description(
    folder: str,
    source: Source,
    shapes: Mapping[str, list[int]],
    tokenizer: Tokenizer,
    model_class: str,
) -> None:
    """Writes what lies beside the weights: config.json and the files of the tokenizer."""
    tokenizer_files.write(folder, source, tokenizer)
    num_labels = shapes.get(CLASSIFIER, [0])[0]
    config_json.write(folder, source, model_class, num_labels, tokenizer.pad_id)
    sentence_files.write(folder, source)


def _check_known(values, path, architecture):
    """Raises ValueError if the classes that a config.json names are not those read here."""
    # Another class may have the same weights and put them to another use: BertForMultipleChoice
    # scores each choice with the weights of a regression.
    names = json_files.field(values, "architectures", list, path, default=[])
    ends = [end for heads, end in _CLASSES.items() if heads not in _MISSING_CLASSES[architecture]]
    ends += [config_json.TOKEN_CLASSIFIER, *_ONLY_READ[architecture]]
    known = [_PREFIX[architecture] + end for end in ends]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"{path}: architectures: {json_files.shown(unknown[0])} is not known here; with "
            f"model_type={architecture!r}, allowed are {', '.join(known)}. If the model is one of "
            "these, write its class there"
        )


def _check_class(source, heads, shapes, architecture):
    """Raises ValueError if transformers does not have a class with this network and these heads."""
    is_tagging = CLASSIFIER in heads and source.kind == TAGGING
    has_pooler = any(name.startswith(POOLER) for name in shapes)
    needs_pooler = NEXT_SENTENCE in heads or (CLASSIFIER in heads and not is_tagging)
    if needs_pooler and not has_pooler and architecture != ELECTRA:
        raise ValueError(
            f"{source.path}: transformers would give the heads {', '.join(heads)} a pooler of "
            "random weights, since the model does not have one; --to=tf1 writes it as it is"
            + '. If it labels words, say "kind": "tagging" in task.json beside it'
            * (CLASSIFIER in heads)
        )
    if heads not in _CLASSES or (heads in _MISSING_CLASSES[architecture] and not is_tagging):
        raise ValueError(
            f"transformers does not have an {architecture.upper()} with the heads "
            f"{', '.join(heads)} in one model"
            + f" but ElectraForSequenceClassification{_GELU}; --to=tf1 writes it"
            * (architecture == ELECTRA and heads == (CLASSIFIER,))
        )
    if architecture == ELECTRA and has_pooler:
        raise ValueError("transformers does not have an ELECTRA with a pooler; --to=tf1 writes it")
    if architecture == ALBERT and source.config.embedding_width() == source.config.hidden_size:
        raise ValueError(
            "transformers does not have an ALBERT whose embeddings have the hidden size without a "
            "layer between; --to=tf1 writes it"
        )


def _without_wrappers(names):
    """Returns name -> stored name, without the names of the modules that wrap a whole model."""
    # torch's DistributedDataParallel is `module.`, and what torch.compile returns is `_orig_mod.`.
    prefix = re.match(_WRAPPERS, next(iter(names), ""))[0]
    is_whole = all(name.startswith(prefix) for name in names)
    return {name.removeprefix(prefix) if is_whole else name: name for name in names}


def _current_name(name, names, architecture):
    """Returns the name that a stored tensor has in today's BertForPreTraining and its siblings."""
    prefix = f"{architecture}."
    if not any(n.startswith(prefix) for n in names):  # a BertModel without a head
        name = f"{prefix}{name}"
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
