"""What the package sentence-transformers keeps beside a network: how its vectors of texts are made.

modules.json                        the steps: network, pooling, perhaps scaling to length 1
1_Pooling/config.json               how the vectors of tokens become one
sentence_bert_config.json           the length of texts, and whether they are lower-cased
config_sentence_transformers.json   texts that stand before every text
"""

import json
import os
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.interchange.source import Source
from bert_estimator.system import json_files, paths

MODULES, _SETTINGS = "modules.json", "sentence_bert_config.json"
_PROMPTS = "config_sentence_transformers.json"
_NETWORKS = ("Transformer", "BERT")
_POOLING, _NORMALIZE = "Pooling", "Normalize"
# Here -> there. Other poolings keep the package's names, and are not computed here.
_MODES = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
_MODE = "pooling_mode"


def read(folder: str) -> dict[str, Any]:
    """Returns what the files say, as fields of `Source`; an empty dict without modules.json."""
    path = os.path.join(folder, MODULES)
    if not os.path.exists(path):
        return {}
    modules = json_files.items(json_files.read(path, list), dict, path)
    types = [json_files.field(module, "type", str, path) for module in modules]
    names = [name.rpartition(".")[2] for name in types]
    is_normalized = names[-1:] == [_NORMALIZE]
    # The steps between the network and the scaling. `pooling` has their names if this project does
    # not compute them, such as a dense layer.
    steps = names[names[0] in _NETWORKS : len(names) - is_normalized] if names else []
    pooling = " and ".join(steps) or None
    if steps == [_POOLING]:
        place = json_files.field(modules[names.index(_POOLING)], "path", str, path)
        pooling = _pooling(os.path.join(folder, place, "config.json"))
    settings = _read_if_there(folder_of_network(folder) or folder, _SETTINGS)
    length = settings.get("max_seq_length")
    return {
        # A prompt would change every text, which is not done here: it is refused as an unknown
        # pooling is.
        "pooling": _prompt(folder) or pooling,
        "is_normalized": is_normalized,
        **({"max_seq_length": length} if type(length) is int and length > 0 else {}),
        # The package lower-cases first, and then has the tokenizer do what its own files say.
        **({"do_lower_case": True} if settings.get("do_lower_case") is True else {}),
    }


def folder_of_network(folder: str) -> str | None:
    """Returns the directory within one of sentence-transformers' where its early versions, such as
    0_Transformer, keep the network; None if it lies in the directory itself."""
    modules = os.path.join(folder, MODULES)
    if not os.path.exists(modules):
        return None
    for module in json_files.items(json_files.read(modules, list), dict, modules):
        place = json_files.field(module, "path", str, modules, default="")
        name = json_files.field(module, "type", str, modules).rpartition(".")[2]
        if place not in ("", ".") and name in _NETWORKS:
            return paths.inside(folder, place)
    return None


def _pooling(path):
    """Returns the pooling that a file names; if it names several, with " and " between them."""
    values = json_files.read(path)
    name = json_files.field(values, _MODE, str, path, default=None)  # of newer versions
    flags = [key for key, is_on in values.items() if key.startswith(f"{_MODE}_") and is_on is True]
    theirs = [name] if name else [flag.removeprefix(f"{_MODE}_") for flag in flags]
    if not theirs:
        raise ValueError(f"{path}: does not name a pooling ({_MODE})")
    ours = {there: here for here, there in _MODES.items()}
    return " and ".join(ours.get(mode, mode) for mode in theirs)


def _prompt(folder):
    """Returns a name for the text that stands before every text; None if there is no such text."""
    values, path = _read_if_there(folder, _PROMPTS), os.path.join(folder, _PROMPTS)
    name = json_files.field(values, "default_prompt_name", str, path, default=None)
    prompts = json_files.field(values, "prompts", dict, path, default={})
    return f"the prompt {json_files.shown(prompts[name])}" if prompts.get(name) else None


def _read_if_there(folder, name):
    path = os.path.join(folder, name)
    return json_files.read(path) if os.path.exists(path) else {}


def write(folder: str, source: Source) -> None:
    """Writes the files for a network that came with them."""
    if source.pooling is None:
        return
    if source.pooling not in _MODES:
        tf.logging.warning(
            "%s: what sentence-transformers' files ask for, %s, is not converted: only the "
            "network is.",
            source.path,
            source.pooling,
        )
        return
    # As sentence-transformers numbers and names them.
    steps = [("", "Transformer"), (f"1_{_POOLING}", _POOLING)]
    steps += [(f"2_{_NORMALIZE}", _NORMALIZE)] * bool(source.is_normalized)
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(steps)
    ]
    pooling = {f"{_MODE}_{there}": here == source.pooling for here, there in _MODES.items()}
    pooling = {"word_embedding_dimension": source.config.hidden_size, **pooling}
    length = source.max_seq_length or source.config.max_position_embeddings
    os.mkdir(os.path.join(folder, steps[1][0]))
    for name, values in (
        (MODULES, modules),
        (os.path.join(steps[1][0], "config.json"), pooling),
        (_SETTINGS, {"max_seq_length": length, "do_lower_case": False}),
    ):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as writer:
            writer.write(json.dumps(values, indent=2) + "\n")
