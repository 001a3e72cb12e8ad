"""A SentencePiece model as a protocol buffer, with the fields that this project looks at.

The package sentencepiece has a module for it, `sentencepiece_model_pb2`, but that module works with
a recent protobuf only, and TensorFlow below 2.21 needs an older one. Fields that are not described
here are kept when a model is serialized again.

Source: sentencepiece_model.proto of google/sentencepiece, for the fields' names, numbers, types and
defaults.
"""

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Values of `trainer_spec.model_type`, and of a piece's `type`.
UNIGRAM, CHAR = 1, 4
NORMAL, USER_DEFINED = 1, 4

_PACKAGE = "bert_estimator.sentencepiece"
# Message -> (name, number, type, default) of its fields; messages are named as types.
_FIELDS = {
    "Piece": [("piece", 1, "STRING", None), ("type", 3, "INT32", NORMAL)],
    "TrainerSpec": [
        ("model_type", 3, "INT32", UNIGRAM),
        ("treat_whitespace_as_suffix", 24, "BOOL", "false"),
        ("byte_fallback", 35, "BOOL", "false"),
    ],
    "NormalizerSpec": [
        ("precompiled_charsmap", 2, "BYTES", None),
        ("add_dummy_prefix", 3, "BOOL", "true"),
    ],
    "ModelProto": [
        ("pieces", 1, "Piece", None),
        ("trainer_spec", 2, "TrainerSpec", None),
        ("normalizer_spec", 3, "NormalizerSpec", None),
    ],
}
_REPEATED = {"pieces"}


def parse(model: bytes) -> Any:
    """Returns a serialized model as a message.

    It has `pieces`, each with `piece` and `type`; `trainer_spec` with `model_type`,
    `treat_whitespace_as_suffix` and `byte_fallback`; and `normalizer_spec` with
    `precompiled_charsmap` and `add_dummy_prefix`.

    Raises:
      google.protobuf.message.DecodeError: it is not a model.
    """
    return _model_class().FromString(model)


@functools.cache
def _model_class():
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="bert_estimator/sentencepiece_model.proto", package=_PACKAGE, syntax="proto2"
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, default in fields:
            is_repeated = field in _REPEATED
            added = message.field.add(name=field, number=number)
            added.label = field_type.LABEL_REPEATED if is_repeated else field_type.LABEL_OPTIONAL
            if kind in _FIELDS:
                added.type, added.type_name = field_type.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = field_type.Type.Value(f"TYPE_{kind}")
            if default is not None:
                added.default_value = str(default)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ModelProto"))
