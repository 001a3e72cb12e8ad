"""What requests and answers look like: TensorFlow Serving's REST shapes, and texts for vectors.

A string may be `{"b64": "..."}`, as TensorFlow Serving's clients write bytes; they are UTF-8. If a
model has one input, its strings may stand in the place of objects. If it has one output, the output
stands in the place of objects.
"""

import base64
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from bert_estimator.serving.commands import Text
from bert_estimator.serving.server.models import Inputs, Opened
from bert_estimator.system import json_files
from bert_estimator.tokenization import MASK

_MOST_MASKS = 4096  # in a request
# The output from which each verb makes results, and what it is good for.
_RESULTS = {
    "classify": ("probabilities", "classes"),
    "regress": ("number", "numbers"),
    "fill": ("masks", "masked words"),
}


def _is_b64(value):
    return isinstance(value, dict) and value.keys() == {"b64"}


def _decoded(value):
    if not _is_b64(value) or not isinstance(value["b64"], str):
        return value
    try:
        return base64.b64decode(value["b64"], validate=True).decode("utf-8")
    except ValueError as error:
        raise ValueError(f"b64 must be UTF-8 in base64: {error}") from None


def _feature(value):
    # A feature of a tf.Example is a list.
    return _decoded(value[0] if isinstance(value, list) and len(value) == 1 else value)


def _few(value):
    # pydantic makes an error of each wrong value; a body has room for a million of them.
    if isinstance(value, dict) and len(value) > 2:
        raise ValueError("has more than two inputs; no model has more")
    return value


def _named(value):
    # The input of a model with one input is text_a.
    is_alone = type(value) in (str, list) or _is_b64(value)
    return {"text_a": value} if is_alone else _few(value)


def _two(value):
    if isinstance(value, list) and len(value) != 2:
        raise ValueError("a list must have the two texts of a pair")
    return value


# The last argument of each validator is what the schema shows: a string may be in base64.
_Written = str | dict[Literal["b64"], str]
_String = Annotated[str, BeforeValidator(_decoded, _Written)]
_Strings = Annotated[list[_String], Field(fail_fast=True)]
_Instance = Annotated[dict[str, _String], BeforeValidator(_named, _Written | dict[str, _Written])]
_Columns = Annotated[
    dict[str, _Strings], BeforeValidator(_named, list[_Written] | dict[str, list[_Written]])
]
_Feature = Annotated[str, BeforeValidator(_feature, _Written | list[_Written])]
_Features = Annotated[dict[str, _Feature], BeforeValidator(_few)]
_TEXT, _PAIR = "<text>", "<pair>"  # tags, which no key of a body is
_Pair = Annotated[tuple[_String, _String], Tag(_PAIR)]
_TextOrPair = Annotated[
    Annotated[_String, Tag(_TEXT)] | _Pair,
    Discriminator(lambda value: _PAIR if isinstance(value, list) else _TEXT),
    BeforeValidator(_two),
]


class Body(BaseModel):
    """Holds what a request asks; a docstring below is what the description of requests shows."""

    @classmethod
    def read(cls, data: bytes) -> "Body":
        """Returns what a body asks; raises ValueError if it has another shape."""
        if not data:
            raise ValueError("the body is empty; it must be an object in JSON")
        values = json_files.parse(data, "the body", dict, len(data))
        if unknown := values.keys() - cls.model_fields:
            known = ", ".join(cls.model_fields)
            unknown = json_files.shown(min(unknown))
            raise ValueError(f"the key {unknown} is not known; known are {known}")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ValueError(_said(error.errors(include_url=False)[0])) from None


class Predict(Body):
    """Asks for all outputs of a model: `predictions` for `instances`, `outputs` for `inputs`."""

    signature_name: Literal["", "serving_default", "tensorflow/serving/predict"] | None = None
    instances: Annotated[list[_Instance], Field(fail_fast=True)] | None = None
    inputs: _Columns | None = None

    @model_validator(mode="after")
    def _check(self):
        if (self.instances is None) == (self.inputs is None):
            raise ValueError("the body must have instances or inputs, and not both")
        return self

    def texts(self, inputs: Inputs) -> list[Text]:
        """Returns the texts; raises ValueError if they are not texts of a model's inputs."""
        if self.inputs is None:
            return _texts(self.instances, inputs, "instances")
        _check_names(self.inputs, inputs, "inputs")
        columns = self.inputs.values()
        if len(set(map(len, columns))) > 1:
            raise ValueError("inputs: the lists have different lengths")
        rows = (dict(zip(self.inputs, row, strict=True)) for row in zip(*columns, strict=True))
        return _texts(rows, inputs, "inputs")


class _Examples(Body):
    context: _Features | None = None  # what all examples share
    examples: Annotated[list[_Features], Field(fail_fast=True)]

    def texts(self, inputs: Inputs) -> list[Text]:
        """Returns the texts; raises ValueError if they are not texts of a model's inputs."""
        rows = ({**(self.context or {}), **example} for example in self.examples)
        return _texts(rows, inputs, "examples")


class Classify(_Examples):
    """Asks for `results`: a list of [label, probability] for each text."""

    signature_name: Literal["", "classify", "tensorflow/serving/classify"] | None = None


class Regress(_Examples):
    """Asks for `results`: the number of each text."""

    signature_name: Literal["", "regress", "tensorflow/serving/regress"] | None = None


class Fill(Body):
    """Asks for `predictions`: for each `[MASK]` of a text, the `top` words, most probable first."""

    instances: Annotated[list[_Instance], Field(fail_fast=True)]
    top: Annotated[int, Field(ge=1, le=100)] = 5  # how many words for each

    def texts(self, inputs: Inputs) -> list[tuple[Text, int]]:
        """Returns the texts, each with `top`; raises ValueError as `Predict` does, and if they have
        too many masks, whose answers would fill the memory."""
        texts = _texts(self.instances, inputs, "instances")
        if (number := sum("".join(text).count(MASK) for text in texts)) > _MOST_MASKS:
            raise ValueError(f"instances: {number} {MASK} are more than {_MOST_MASKS}; send fewer")
        return [(text, self.top) for text in texts]


class Embed(Body):
    """Asks for `vectors`, or by `Accept: application/x-npy` for an array in NumPy's format."""

    texts: Annotated[list[_TextOrPair], Field(fail_fast=True)]
    model: str | None = None  # for vectors; by default the first


BODIES = {body.__name__.lower(): body for body in (Predict, Classify, Regress, Fill, Embed)}


def _said(error):
    """Returns an error of pydantic as a sentence."""
    places = [place for place in error["loc"] if place not in (_TEXT, _PAIR)]
    where = "".join(f"[{p}]" if isinstance(p, int) else f".{p:.60}" for p in places)
    what = error["msg"]
    if error["type"] == "value_error":
        what = str(error["ctx"]["error"])
    elif error["type"] != "missing":
        what += f", not {json_files.shown(error['input'])}"
    return f"{where.lstrip('.')}: {what}" if where else what


def _texts(rows: Iterable[dict[str, str]], inputs: Inputs, what: str) -> list[Text]:
    texts, names = [], set(inputs.names)
    for number, row in enumerate(rows):
        if row.keys() != names:  # of which the last may be missing
            _check_names(row, inputs, f"{what}[{number}]")
        parts = tuple(row[name] for name in inputs.names if name in row)
        texts.append(parts if len(parts) > 1 else parts[0])
    return texts


def _check_names(names, inputs, what):
    """Raises ValueError if strings of these names are not a text."""
    missing = [name for name in inputs.names[: inputs.num_needed] if name not in names]
    unknown = names.keys() - set(inputs.names)
    if missing or unknown:
        wrong = f"lacks {missing[0]}" if missing else f"has {json_files.shown(min(unknown))}"
        raise ValueError(f"{what}: {wrong}; an instance has {inputs.shown()}")


def predictions(answers: Sequence[dict[str, Any]], is_columnar: bool) -> dict[str, Any]:
    """Returns the body of the answer to :predict, of an output name -> value for each text."""
    # TensorFlow Serving leaves out the name of an output if it is the only one.
    is_single = len(answers) > 0 and len(answers[0]) == 1
    if not is_columnar:
        return {"predictions": [next(iter(a.values())) if is_single else a for a in answers]}
    names = answers[0] if answers else ()
    columns = {name: [answer[name] for answer in answers] for name in names}
    return {"outputs": next(iter(columns.values())) if is_single else columns}


def check_results(verb: str, opened: Opened) -> None:
    """Raises ValueError if a model's outputs are not what a verb gives."""
    needed, what = _RESULTS[verb]
    outputs = (*opened.outputs, "masks") if opened.fill else opened.outputs
    if needed not in outputs or opened.kind == "tagging":
        raise ValueError(f"{verb}: is for models of {what}, not of {opened.kind}; use :predict")


def results(answers: Sequence[dict[str, Any]], verb: str) -> dict[str, Any]:
    """Returns the body of the answer to :classify or :regress, of an output name -> value for each
    text."""
    if verb == "regress":
        return {"results": [answer["number"] for answer in answers]}
    pairs = [zip(answer["labels"], answer["probabilities"], strict=True) for answer in answers]
    return {"results": [list(map(list, pairs_of_text)) for pairs_of_text in pairs]}
