"""README.md and the pages of docs/ say what is true: links, flags, code."""

import pathlib
import re

import pytest

import bert_estimator

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
}
README = PAGES["README.md"]


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_code_sample_runs(capsys):
    (sample,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(sample, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    loss = float(re.search(r"'loss': (?:np\.float32\()?([\d.e-]+)", printed).group(1))
    assert loss < 0.1


def test_the_readme_is_short():
    assert README.count("\n") <= 160


def test_ci_runs_the_test_command_of_the_readme():
    assert len([line for line in README.splitlines() if "&& python -m pytest " in line]) == 1
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "grep -m 1 '&& python -m pytest ' README.md" in script


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[page]):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), target


def test_every_page_is_linked_from_the_readme():
    linked = set(re.findall(r"\]\(([^)#]+)\)", README))
    assert {page for page in PAGES if page != "README.md"} <= linked
