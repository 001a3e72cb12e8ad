"""The notebooks of docs/notebooks/ are tidy, and run."""

import ast
import json
import os
import pathlib

import pytest

import bert_estimator

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent
NOTEBOOKS = {path.stem: path for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")}
# In the order in which they run: the second starts from the network of the first. A run of the main
# job's length belongs to the benchmarks.
SHORT = {
    "main_job": ["--num_train_steps=20", "--max_eval_steps=2", "--iterations_per_loop=10"],
    "fine_tuning": ["--num_train_epochs=1"],
}


def code_cells(path):
    """Returns (the notebook as JSON, its cells with code)."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return notebook, [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_every_notebook_is_executed():
    assert sorted(NOTEBOOKS) == sorted(SHORT)


@pytest.mark.parametrize("name", SHORT)
def test_notebooks_are_kept_without_outputs(name):
    notebook, cells = code_cells(NOTEBOOKS[name])
    assert notebook["nbformat"] == 4
    for cell in cells:
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        ast.parse("".join(cell["source"]))
    assert cells[0]["metadata"]["tags"] == ["parameters"]
    for cell in notebook["cells"]:
        for link in ("".join(cell["source"])).split("](")[1:]:
            assert (NOTEBOOKS[name].parent / link.split(")")[0].split("#")[0]).exists(), link


@pytest.mark.slow
def test_notebooks_run(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="pip install -e '.[notebooks]'")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    printed = {}
    for name, flags in SHORT.items():
        notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
        parameters = next(cell for cell in notebook.cells if cell.cell_type == "code")
        parameters.source += f"\nflags += {flags}"
        client = nbclient.NotebookClient(
            notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
        printed[name] = "".join(o.text for o in outputs if o.get("name") == "stdout")
        if name == "main_job":
            (picture,) = [o for o in outputs if "image/svg+xml" in o.get("data", {})]
            assert picture.data["image/svg+xml"].startswith("<svg")
    assert "step    20: held-out masked-LM loss" in printed["main_job"]
    assert "unigram baseline:" in printed["main_job"]
    assert "accuracy = " in printed["fine_tuning"]
    assert "The path is not valid. {'label': '" in printed["fine_tuning"]
