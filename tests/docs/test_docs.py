"""README.md and the pages of docs/ say what is true: links, flags, code."""

import pathlib
import re
import subprocess

import legacy_script
import pytest
import tensorflow.compat.v1 as tf

import bert_estimator
from bert_estimator.command_line import flags as command_line_flags
from bert_estimator.jobs.fine_tuning.classification_config import ClassificationConfig
from bert_estimator.jobs.fine_tuning.question_answering_config import QuestionAnsweringConfig
from bert_estimator.jobs.pretraining.pretraining_config import PretrainingConfig
from input_pipelines.create_pretraining_data import RecordsConfig
from input_pipelines.create_text import TextConfig
from input_pipelines.create_vocabulary import VocabularyConfig
from input_pipelines.tasks import task_table

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
    assert loss_of(capsys.readouterr().out) < 0.1


# What TensorFlow 1.15.5 and 2.15.0 print for the script of docs/estimator_removed.md, the former
# with 0.26208982.
UPSTREAM_LOSS = 0.26208973


def old_script():
    (script,) = re.findall(r"```python\n(.*?)```", PAGES["docs/estimator_removed.md"], re.DOTALL)
    return script


def loss_of(printed):
    return float(re.search(r"'loss': (?:np\.float32\()?([\d.e-]+)", printed).group(1))


@pytest.mark.slow  # a process of its own: the runner changes TensorFlow for the whole process
def test_the_old_script_runs_as_it_is(tmp_path):
    arguments = (tmp_path, old_script(), "--model_dir=run")
    process = legacy_script.run(*arguments, process=subprocess.run)
    assert loss_of(process.stdout) == pytest.approx(UPSTREAM_LOSS, rel=1e-6)
    assert (tmp_path / "run" / "model.ckpt-100.index").exists()


def test_the_old_script_runs_with_one_changed_import(tmp_path, capsys):
    assert not hasattr(tf, "estimator")  # the reason for the page
    # This does what the page's `sed` does.
    script = re.sub(r"tf\.estimator\.(tpu\.)?", "tpu.", old_script())
    script = re.sub("(?m)^import tensorflow.*", r"\g<0>\nfrom bert_estimator import tpu", script)
    program = {"__name__": "new_script"}
    exec(compile(script, "new_script.py", "exec"), program)
    try:
        program["FLAGS"](["new_script.py", f"--model_dir={tmp_path}"], known_only=True)
        program["main"](None)
    finally:
        delattr(program["FLAGS"], "model_dir")
    assert loss_of(capsys.readouterr().out) == pytest.approx(UPSTREAM_LOSS, rel=1e-6)


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


def test_the_metrics_of_own_files_are_listed():
    rows = re.findall(r"^ +\| `(\w+)`(.*?) \| (.*) \|$", PAGES["docs/fine_tuning.md"], re.MULTILINE)
    listed = {
        (kind, bool(tags)): tuple(re.findall(r"`(\w+)`", names)) for kind, tags, names in rows
    }
    expected = {(kind, False): names for kind, names in task_table.OWN_METRICS.items()}
    assert listed == {**expected, ("tagging", True): task_table.ENTITY_METRICS}


def our_flags():
    """Returns the flags of the scripts, and of the commands that prepare their data."""
    ours = {"flagfile"}
    scripts = (PretrainingConfig, ClassificationConfig, QuestionAnsweringConfig)
    for config_class in (*scripts, RecordsConfig, TextConfig, VocabularyConfig):
        ours |= set(command_line_flags.define(config_class))
    return ours


def defaults():
    """Returns flag name -> its defaults, as the scripts' help prints them."""
    found = {}
    for config_class in (PretrainingConfig, ClassificationConfig, QuestionAnsweringConfig):
        for name, flag in command_line_flags.define(config_class)._flags().items():
            found.setdefault(name, set()).add(str(flag.default))
    return found


def comparisons():
    """Yields the cells (there, here, what differs) of the tables of docs/coming_from.md."""
    for row in re.findall(r"^\|(.*)\|$", PAGES["docs/coming_from.md"], re.MULTILINE):
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) == 3 and cells[0] not in ("there", "---"):
            yield cells


def test_what_other_projects_flags_become_are_flags():
    rows, ours = list(comparisons()), our_flags()
    assert len(rows) > 80
    for there, here, _ in rows:
        assert there and here
        for name in re.findall(r"`--(\w+)", here):
            assert name in ours, (there, name)


def test_defaults_that_are_compared_are_ours():
    """In the second column `--name=number` says a flag's default, except for NVIDIA's decay."""
    compared = 0
    for there, here, _ in comparisons():
        for name, value in re.findall(r"`--(\w+)=([\d.e-]+)`", here):
            if name != "learning_rate_decay_power":
                assert float(value) in map(float, defaults()[name] - {"None"}), (there, name)
                compared += 1
    assert compared >= 7


def test_every_page_is_linked_from_the_readme():
    linked = set(re.findall(r"\]\(([^)#]+)\)", README))
    assert {page for page in PAGES if page != "README.md"} <= linked
