"""README.md does what it says."""

import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
    README = readme.read()


def test_the_code_sample_runs(monkeypatch, capsys):
    (sample,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(sample, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    loss = float(re.search(r"'loss': (?:np\.float32\()?([\d.e-]+)", printed).group(1))
    assert loss < 0.1


def test_ci_runs_the_test_command_of_the_readme():
    assert len([line for line in README.splitlines() if "&& python -m pytest " in line]) == 1
    with open(os.path.join(ROOT, ".ci", "run"), encoding="utf-8") as script:
        assert "grep -m 1 '&& python -m pytest ' README.md" in script.read()


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert os.path.exists(os.path.join(ROOT, target)), target


def test_flags_named_are_flags():
    import run_classifier
    import run_pretraining
    from input_pipelines import create_pretraining_data, create_vocabulary

    known = {*run_pretraining.define_flags(), *run_classifier.define_flags()}
    for module in (create_pretraining_data, create_vocabulary):
        with open(module.__file__, encoding="utf-8") as source:
            for kind, name in re.findall(r'DEFINE_(\w+)\(\s*"(\w+)"', source.read()):
                known |= {name, f"no{name}"} if kind == "bool" else {name}
    known |= {"help", "dist"}  # absl's and pytest's
    assert set(re.findall(r"--([a-z]\w+)", README)) <= known
