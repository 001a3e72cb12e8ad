"""What requests and answers look like: TensorFlow Serving's REST shapes, and texts for vectors.

    :predict             {"instances": [{"text_a": "A text."}]}    ->  {"predictions": [{...}]}
                         {"inputs": {"text_a": ["A text."]}}       ->  {"outputs": {"label": [...]}}
    :classify, :regress  {"examples": [{"text_a": "A text."}]}     ->  {"results": [...]}
    /embed               {"texts": ["A text.", ["A", "pair"]]}     ->  {"vectors": [[...], ...]}

A string may be `{"b64": "..."}`, as TensorFlow Serving's clients write bytes; they are UTF-8. If a
model has one input, its strings may stand in the place of objects. If it has one output, the output
stands in the place of objects.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any, NamedTuple

from bert_estimator.serving.commands import Text
from bert_estimator.system import json_files

_SIGNATURES = {
    "predict": "serving_default",
    "classify": "classify",
    "regress": "regress",
}
_KEYS = {
    "predict": ("instances", "inputs"),
    "classify": ("examples", "context"),
    "regress": ("examples", "context"),
}
# The output from which each verb makes results, and what it is good for.
_RESULTS = {"classify": ("probabilities", "classes"), "regress": ("number", "numbers")}


class RequestError(Exception):
    """A request is refused with HTTP's number for it; the text says why and what is allowed."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Inputs(NamedTuple):
    """Says which one or two strings a text of a model consists of."""

    names: tuple[str, ...]
    num_needed: int  # how many of them a request has to give, from the first

    def shown(self) -> str:
        """Returns them in words."""
        optional = self.names[self.num_needed :]
        return " and ".join(self.names[: self.num_needed]) + "".join(
            f", and may have {name}" for name in optional
        )


class Request(NamedTuple):
    """Holds what a request asks."""

    texts: list[Text]  # strings, or pairs of strings
    is_columnar: bool = False  # the answer has a list for each output, not an object for each text


def read(data: bytes, verb: str, inputs: Inputs) -> Request:
    """Returns what a body asks of a model by "predict", "classify" or "regress"; raises
    RequestError for any other body."""
    values = _object(data, ("signature_name", *_KEYS[verb]))
    signature = values.get("signature_name") or _SIGNATURES[verb]
    if signature not in (_SIGNATURES[verb], f"tensorflow/serving/{verb}"):
        raise RequestError(
            400, f"signature_name: {_shown(signature)} is not here; use {_SIGNATURES[verb]!r}"
        )
    if verb != "predict":
        return Request(_examples(values, inputs))
    if ("instances" in values) == ("inputs" in values):
        raise RequestError(400, "the body must have instances or inputs, and not both")
    if "instances" in values:
        rows = enumerate(_list(values["instances"], "instances"))
        return Request([_row(row, inputs, f"instances[{number}]") for number, row in rows])
    return Request(_columns(values["inputs"], inputs), is_columnar=True)


def read_texts(data: bytes) -> tuple[list[Text], str | None]:
    """Returns the texts of a request for vectors, and the name of the model if it has one, or
    raises RequestError."""
    values = _object(data, ("texts", "model"))
    texts = []
    for number, text in enumerate(_list(values.get("texts"), "texts")):
        what = f"texts[{number}]"
        if isinstance(text, list):
            if len(text) != 2:
                raise RequestError(400, f"{what}: a list must have the two texts of a pair")
            texts.append(tuple(_string(part, what) for part in text))
        else:
            texts.append(_string(text, what))
    model = values.get("model")
    return texts, None if model is None else _string(model, "model")


def predictions(answers: Sequence[dict[str, Any]], is_columnar: bool) -> dict[str, Any]:
    """Returns the body of the answer to :predict, of an output name -> value for each text."""
    # TensorFlow Serving leaves out the name of an output if it is the only one.
    is_single = len(answers) > 0 and len(answers[0]) == 1
    if not is_columnar:
        return {"predictions": [next(iter(a.values())) if is_single else a for a in answers]}
    names = answers[0] if answers else ()
    columns = {name: [answer[name] for answer in answers] for name in names}
    return {"outputs": next(iter(columns.values())) if is_single else columns}


def check_results(verb: str, outputs: Sequence[str], kind: str) -> None:
    """Raises RequestError if a model's outputs are not what :classify or :regress gives."""
    needed, what = _RESULTS[verb]
    if needed not in outputs or kind == "tagging":
        raise RequestError(400, f"{verb}: is for models of {what}, not of {kind}; use :predict")


def results(answers: Sequence[dict[str, Any]], verb: str) -> dict[str, Any]:
    """Returns the body of the answer to :classify or :regress, of an output name -> value for each
    text."""
    if verb == "regress":
        return {"results": [answer["number"] for answer in answers]}
    pairs = [zip(answer["labels"], answer["probabilities"], strict=True) for answer in answers]
    return {"results": [list(map(list, pairs_of_text)) for pairs_of_text in pairs]}


def _object(data, keys):
    """Returns the object that a body holds, which has no other keys."""
    if not data:
        raise RequestError(400, "the body is empty; it must be an object in JSON")
    try:
        values = json_files.parse(data, "the body", dict, len(data))
    except json_files.JsonError as error:
        raise RequestError(400, str(error)) from None
    if unknown := values.keys() - set(keys):
        raise RequestError(
            400, f"the key {_shown(min(unknown))} is not known; known are {', '.join(keys)}"
        )
    return values


def _examples(values, inputs):
    context = values.get("context")
    if context is not None and not isinstance(context, dict):
        raise RequestError(400, f"context: must be an object, not {_shown(context)}")
    texts = []
    for number, example in enumerate(_list(values.get("examples"), "examples")):
        what = f"examples[{number}]"
        if not isinstance(example, dict):
            raise RequestError(400, f"{what}: must be an object, not {_shown(example)}")
        features = {}
        # The context has the features that all examples share, as in TensorFlow Serving.
        for name, value in {**(context or {}), **example}.items():
            if isinstance(value, list) and len(value) == 1:
                (value,) = value  # a feature of a tf.Example is a list
            features[name] = value
        texts.append(_row(features, inputs, what))
    return texts


def _row(row, inputs, what):
    """Returns the text of an instance, which is an object, or the string of a single input."""
    if isinstance(row, str) or (isinstance(row, dict) and row.keys() == {"b64"}):
        if inputs.num_needed > 1:
            raise RequestError(400, f"{what}: must be an object with {inputs.shown()}")
        return _string(row, what)
    if not isinstance(row, dict):
        raise RequestError(
            400, f"{what}: must be an object with {inputs.shown()}, not {_shown(row)}"
        )
    _check_names(row, inputs, what)
    parts = [_string(row[name], f"{what}: {name}") for name in inputs.names if name in row]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _check_names(names, inputs, what):
    """Raises RequestError if strings of these names are not a text."""
    missing = [name for name in inputs.names[: inputs.num_needed] if name not in names]
    unknown = names.keys() - set(inputs.names)
    if missing or unknown:
        wrong = f"lacks {missing[0]}" if missing else f"has {_shown(min(unknown))}"
        raise RequestError(400, f"{what}: {wrong}; an instance has {inputs.shown()}")


def _columns(columns, inputs):
    """Returns the texts of inputs in columns."""
    if isinstance(columns, list) and inputs.num_needed == 1:
        columns = {inputs.names[0]: columns}
    if not isinstance(columns, dict):
        raise RequestError(400, f"inputs: must be an object with {inputs.shown()}")
    _check_names(columns, inputs, "inputs")
    columns = {name: _list(column, f"inputs: {name}") for name, column in columns.items()}
    if len({len(column) for column in columns.values()}) > 1:
        raise RequestError(400, "inputs: the lists have different lengths")
    num_texts = max(map(len, columns.values()), default=0)
    rows = [{name: column[i] for name, column in columns.items()} for i in range(num_texts)]
    return [_row(row, inputs, f"inputs[{number}]") for number, row in enumerate(rows)]


def _list(value, what):
    if not isinstance(value, list):
        given = "is missing; it must be" if value is None else "must be"
        raise RequestError(400, f"{what}: {given} a list")
    return value


def _string(value, what):
    """Returns a string, which may be in base64."""
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True).decode("utf-8")
        except (binascii.Error, ValueError) as error:
            raise RequestError(400, f"{what}: b64 must be UTF-8 in base64: {error}") from None
    if not isinstance(value, str):
        raise RequestError(400, f"{what}: must be a string, not {_shown(value)}")
    return value


def _shown(value):
    return json_files.shown(value)
