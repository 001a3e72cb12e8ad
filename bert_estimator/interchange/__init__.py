"""BERT models in the formats that people have: TF1 checkpoints, and Hugging Face's files.

`open_source` reads all of them as a `Source`: variables under google-research/bert's names.
`python -m bert_estimator.interchange SOURCE TARGET` converts one format to the other.
"""

import importlib

# TensorFlow takes seconds to load, so the modules are loaded when a name is first used.
_MODULE_OF = {"Source": "source", "open_source": "opening"}

__all__ = sorted(_MODULE_OF)


def __getattr__(name):
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
