"""Named hyperparameters with types: the class `tf.contrib.training.HParams`."""

import json
import numbers
import re
from typing import Any

from bert_estimator.system import json_files

# An assignment is name=value or name=[value,value]; it ends at the next comma outside of brackets.
# Commas or spaces separate the values of a list.
_ASSIGNMENT = re.compile(
    r"\s*(?P<name>[A-Za-z][\w.]*)\s*=\s*(?P<value>\[[^\]]*\]|[^,\[\]]*)(?:,|$)"
)


class HParams:
    """Holds hyperparameters as attributes; the first value of a hyperparameter, or the first
    element of its list, fixes its type."""

    def __init__(self, hparam_def: None = None, model_structure: Any = None, **kwargs):
        # The protocol buffer of hyperparameters went with `tf.contrib`.
        if hparam_def is not None:
            raise ValueError(
                "HParams: hparam_def is not supported; give the names and values, or parse_json"
            )
        self._model_structure = model_structure
        self._types = {}  # name -> (type, whether it is a list); the type None allows any value
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Adds a hyperparameter, whose name must be free."""
        if getattr(self, name, None) is not None:
            raise ValueError(f"HParams: the name {name} is taken")
        is_list = isinstance(value, list | tuple)
        if is_list and not value:
            raise ValueError(f"HParams: {name} is an empty list, so its elements have no type")
        first = value[0] if is_list else value
        self._types[name] = (None if first is None else type(first), is_list)
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Any) -> None:
        """Changes a hyperparameter to another value of its type."""
        of_type, is_list = self._types[name]
        if isinstance(value, list | tuple) != is_list:
            allowed = "a list" if is_list else "a single value"
            raise ValueError(f"HParams: {name} must be {allowed}, not {value!r}")
        if is_list:
            setattr(self, name, [_cast(name, of_type, element) for element in value])
        else:
            setattr(self, name, _cast(name, of_type, value))

    def del_hparam(self, name: str) -> None:
        """Removes a hyperparameter if it exists."""
        if name in self._types:
            del self._types[name]
            delattr(self, name)

    def parse(self, values: str) -> "HParams":
        """Changes the hyperparameters in a text such as "rate=0.1,units=[8,16]"; returns self."""
        position, seen = 0, set()
        while position < len(values):
            # Lists have commas, too, so the text is not split at them.
            match = _ASSIGNMENT.match(values, position)
            if match is None:
                raise ValueError(
                    f"HParams: cannot read {values[position:]!r}; write name=value,name=[v1,v2]"
                )
            name, value = match["name"], match["value"].strip()
            if name not in self._types:
                raise ValueError(f"HParams: {name} is unknown; the names are {sorted(self._types)}")
            if name in seen:
                raise ValueError(f"HParams: {name} is given twice in {values!r}")
            seen.add(name)
            of_type, is_list = self._types[name]
            if value.startswith("["):
                texts = filter(None, re.split(r"[,\s]+", value[1:-1]))
                self.set_hparam(name, [_parse(name, of_type, text) for text in texts])
            elif is_list:
                raise ValueError(f"HParams: {name} is a list: write {name}=[{value}]")
            else:
                self.set_hparam(name, _parse(name, of_type, value))
            position = match.end()
        return self

    def override_from_dict(self, values_dict: dict[str, Any]) -> "HParams":
        """Changes the hyperparameters in a dict; returns self."""
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    def parse_json(self, values_json: str) -> "HParams":
        """Changes the hyperparameters in a JSON object; returns self."""
        return self.override_from_dict(json_files.parse(values_json, "values_json"))

    def to_json(
        self,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Returns the hyperparameters as a JSON object, without functions."""
        values = {name: value for name, value in self.values().items() if not callable(value)}
        return json.dumps(values, indent=indent, separators=separators, sort_keys=sort_keys)

    def values(self) -> dict[str, Any]:
        """Returns a dict of all hyperparameters."""
        return {name: getattr(self, name) for name in self._types}

    def set_model_structure(self, model_structure: Any) -> None:
        """Sets what `get_model_structure` returns."""
        self._model_structure = model_structure

    def get_model_structure(self) -> Any:
        """Returns the value that was set, None at first."""
        return self._model_structure

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a hyperparameter, or the default if the name is unknown."""
        return getattr(self, key) if key in self._types else default

    def __contains__(self, key):
        return key in self._types

    def __str__(self):
        return ",".join(f"{name}={value}" for name, value in self.values().items())

    def __repr__(self):
        return f"{type(self).__name__}({sorted(self.values().items())})"


def _cast(name, of_type, value):
    """Converts a value to the type; raises ValueError if the value does not have that type."""
    # A bool is an int in Python, but not among hyperparameters.
    if of_type is None or (isinstance(value, of_type) and of_type is not int):
        return value
    if of_type is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    if of_type is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    raise ValueError(f"HParams: {name} must be of type {of_type.__name__}, not {value!r}")


def _parse(name, of_type, text):
    if of_type is bool:
        known = {"true": True, "1": True, "false": False, "0": False}
        if text.lower() not in known:
            raise ValueError(f"HParams: {name} must be true or false, not {text!r}")
        return known[text.lower()]
    if of_type in (int, float):
        try:
            return of_type(text)
        except ValueError:
            raise ValueError(
                f"HParams: {name} must be of type {of_type.__name__}, not {text!r}"
            ) from None
    return text
