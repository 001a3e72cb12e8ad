"""docs/site/ makes a site of README.md and the pages of docs/."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

import bert_estimator

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent
CONFIG, HOOKS = (ROOT / "docs" / "site" / name for name in ("mkdocs.yml", "hooks.py"))


def test_the_menu_has_every_page():
    pages = {path.name for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]}
    reference = re.findall(r'^    "(\w+\.md)": \(', HOOKS.read_text(encoding="utf-8"), re.MULTILINE)
    menu = re.findall(r": (\w+\.md)$", CONFIG.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(reference) == 4
    assert sorted(menu) == sorted(pages - {"README.md"} | {"index.md", *reference})


def test_what_follows_an_empty_line_is_not_indented_a_little():
    """On GitHub it would belong to the item of a list before it; on the site it ends the list."""
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"\n\n {1,3}\S.*", text), page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mkdocs") is None, reason="needs mkdocs: pip install -e '.[docs]'")
def test_the_site_is_built(tmp_path):
    """Broken links and anchors are errors, and the pages do not fetch anything."""
    process = subprocess.run(
        ["mkdocs", "build", "--strict", "--config-file", CONFIG, "--site-dir", tmp_path / "site"],
        env={**os.environ, "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    pages = {path.name: path.read_text() for path in (tmp_path / "site").glob("*.html")}
    assert {"index.html", "pretraining.html", "WORKSPACE.html"} <= set(pages)
    for name in ("estimator.TPUEstimator", "base_estimator.Estimator.train"):
        assert f'id="bert_estimator.tpu.{name}"' in pages["api_tpu.html"]
    for name, page in pages.items():
        assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?://', page), name
        # A list or a table without an empty line before it stays a paragraph.
        assert not re.findall(r"<p>(?:(?!</p>).)*?\n(?:- |\d+\. |\|)", page, re.DOTALL), name
    assert (tmp_path / "site" / "main_job.svg").exists()
    assert not (tmp_path / "site" / "site").exists()
