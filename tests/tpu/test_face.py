"""What `bert_estimator.tpu` offers: the names that editors see, and the examples of docstrings."""

import doctest
import importlib
import pathlib

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu

STUB = pathlib.Path(tpu.__file__).with_suffix(".pyi")


def test_what_editors_follow_is_what_programs_get():
    seen = {}
    exec(STUB.read_text(encoding="utf-8"), seen)
    del seen["__builtins__"]
    assert {name: getattr(tpu, name) for name in seen} == seen
    assert sorted(seen.keys() - tpu._OF_THIS_PROJECT) == tpu.__all__ == dir(tpu)
    assert seen.keys() > tpu._OF_THIS_PROJECT


@pytest.mark.parametrize(
    ("name", "text"),
    [("add_metrics", "Use eval_metrics of the model_fn"), ("nonsense", "nonsense")],
)
def test_other_names_are_errors(name, text):
    with pytest.raises(AttributeError, match=text):
        getattr(tpu, name)


# The first one makes the estimator that others use.
EXAMPLES = [
    "estimator.TPUEstimator",
    "config.RunConfig",
    "config.TPUConfig",
    "spec.TPUEstimatorSpec",
    "verbs.progress.LogListener",
    "train_eval.train_and_evaluate.train_and_evaluate",
    "early_stopping.stop_if_lower_hook",
    "serving.build_raw_serving_input_receiver_fn",
    "summary.scalar",
]


def test_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"tf": tf, "tpu": tpu}
    runner = doctest.DocTestRunner()
    for path in EXAMPLES:
        module, _, name = path.rpartition(".")
        shown = getattr(importlib.import_module(f"bert_estimator.tpu.{module}"), name)
        (example,) = [
            test
            for test in doctest.DocTestFinder(recurse=False).find(shown, name, globs=names)
            if test.examples
        ]
        runner.run(example, clear_globs=False)
        names |= example.globs
    assert runner.summarize(verbose=False).failed == 0, capsys.readouterr().out
    assert runner.tries > 20
