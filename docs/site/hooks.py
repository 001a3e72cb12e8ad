"""Adds the Markdown files of the top level to the site, and the pages of the API reference.

README.md is the site's first page. A page of the reference lists public names; mkdocstrings puts
their docstrings there.
"""

import importlib
import inspect
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGES = {"README.md": "index.md"}

# Page -> (its title, modules whose public names it has).
REFERENCE = {
    "api_tpu.md": (
        "The TPUEstimator framework",
        ["tpu", "tpu.early_stopping", "tpu.serving", "tpu.summary"],
    ),
    "api_network.md": (
        "The network and its precision",
        ["modeling", "bert_config", "heads", "precision", "layers.dropout", "memory_needed"],
    ),
    "api_optimization.md": ("Optimizers", ["optimization"]),
    "api_pipelines.md": (
        "Records, batches, weights and vectors",
        [
            "input_pipelines.creation.pretraining_records",
            "input_pipelines.records.pretraining_input",
            "input_pipelines.tasks.task_data",
            "input_pipelines.tasks.features_input",
            "interchange",
            "serving.predictor",
            "serving.embedder",
            "serving.filler",
            "serving.client",
        ],
    ),
}


def module_name(short):
    """Returns the whole name of a module that REFERENCE names."""
    return short if short.startswith("input_pipelines.") else f"bert_estimator.{short}"


def public_names(module):
    """Returns name -> where it is defined, for the public functions and classes of a module.

    They are in its `__all__`; without it, they are what it defines and do not begin with "_".
    """
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    values = {name: getattr(module, name) for name in names}
    return {
        name: f"{value.__module__}.{value.__qualname__}"
        for name, value in values.items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and (hasattr(module, "__all__") or value.__module__ == module.__name__)
    }


def on_files(files, config):
    """Returns mkdocs' files with the files of the top level and the API reference."""
    from mkdocs.structure.files import File  # the tests read this module without mkdocs

    pages = {
        PAGES.get(path.name, path.name): path.read_text(encoding="utf-8")
        for path in ROOT.glob("*.md")
    }
    pages |= {name: _reference(*page) for name, page in REFERENCE.items()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def _reference(title, modules):
    """Returns the Markdown of a page of the reference."""
    lines = [f"# {title}"]
    for short in modules:
        module = importlib.import_module(module_name(short))
        options = "members: [], show_root_heading: false"
        lines += [f"## {module.__name__}", _directive(module.__name__, options)]
        for name, place in public_names(module).items():
            lines.append(_directive(place, f"heading: {name}, heading_level: 3"))
    return "\n\n".join(lines) + "\n"


def _directive(place, options):
    """Returns what mkdocstrings replaces by the docstrings of an object."""
    return f"::: {place}\n    options: {{{options}}}"


def on_page_markdown(markdown, page, **_):
    """Returns a page whose links lead to the site's pages, which are all in one directory."""
    if page.file.src_uri in REFERENCE:
        return markdown
    return re.sub(
        r"\]\((?:docs/|\.\./)?([\w.]+)",
        lambda link: f"]({PAGES.get(link[1], link[1])}",
        markdown,
    )
