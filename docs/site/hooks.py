"""Adds the Markdown files of the top level to the site; README.md is its first page."""

import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGES = {"README.md": "index.md"}


def on_files(files, config):
    """Returns mkdocs' files with the files of the top level."""
    for path in ROOT.glob("*.md"):
        name = PAGES.get(path.name, path.name)
        files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown, **_):
    """Returns a page whose links lead to the site's pages, which are all in one directory."""
    return re.sub(
        r"\]\((?:docs/|\.\./)?([\w.]+)",
        lambda link: f"]({PAGES.get(link[1], link[1])}",
        markdown,
    )
