"""Answers of an exported model that takes text, from a process without this project."""

import json
import os
import sys

import forked
import numpy as np

from input_pipelines.tasks import squad_files

LOADS_A_SAVED_MODEL = """
import json, sys
import tensorflow as tf
if sys.argv[4:]:
    import tensorflow_text
model = tf.saved_model.load(sys.argv[1])
signature = model.signatures["serving_default"]
texts = json.load(open(sys.argv[2]))
found = signature(**{name: tf.constant(column) for name, column in texts.items()})
def example(values):
    lists = {name: tf.train.BytesList(value=[value.encode()]) for name, value in values.items()}
    features = {name: tf.train.Feature(bytes_list=values) for name, values in lists.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
examples = [example(dict(zip(texts, row))) for row in zip(*texts.values())]
for name in {"classify", "regress"} & set(model.signatures):
    answers = model.signatures[name](inputs=tf.constant(examples))
    found |= {f"{name} {key}": value for key, value in answers.items()}

def as_json(value):
    value = value.numpy().tolist() if hasattr(value, "numpy") else value
    if isinstance(value, list):
        return [as_json(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value
json.dump({name: as_json(value) for name, value in found.items()}, open(sys.argv[3], "w"))
assert not [name for name in sys.modules if name.startswith("bert_estimator")]
assert ("tensorflow_text" in sys.modules) == bool(sys.argv[4:])
"""


def answers_of(path, model, texts, *options):
    """Returns the outputs of a process that knows TensorFlow alone, or tensorflow-text as well."""
    (path / "texts.json").write_text(json.dumps(texts))
    arguments = [model, str(path / "texts.json"), str(path / "found.json")]
    forked.run([sys.executable, "-c", LOADS_A_SAVED_MODEL, *arguments, *options], check=True)
    return json.loads((path / "found.json").read_text())


def check_answers(path, run, file, *options, tolerance=1e-4):
    """Checks the exported model of a run of run_squad.py against the files of its prediction.

    Args:
      path: a directory to write into.
      run: the run's directory.
      file: the file of the questions that were predicted.
      options: see `answers_of`.
      tolerance: how far probabilities may be apart. Answers that are closer may change places.

    Returns:
      The model's outputs.
    """
    asked = squad_files.read(str(file), False, True)
    (export,) = os.listdir(run / "export")
    texts = {"question": [q.text for q in asked], "context": [q.context for q in asked]}
    found = answers_of(path, str(run / "export" / export), texts, *options)
    predictions, n_best = (
        json.loads((run / name).read_text(encoding="utf-8"))
        for name in ("predictions.json", "nbest_predictions.json")
    )
    odds = {}
    if (run / "null_odds.json").exists():
        odds = json.loads((run / "null_odds.json").read_text())
        expected = [odds[question.id] for question in asked]
        np.testing.assert_allclose(found["null_odds"], expected, atol=10 * tolerance)
    assert ("null_odds" in found) == bool(odds)
    num_clear = 0
    for number, question in enumerate(asked):
        row = {name: values[number] for name, values in found.items()}
        assert question.context[row["start"] : row["end"]] == row["answer"]
        bounds = zip(row["n_best_starts"], row["n_best_ends"], strict=True)
        assert [question.context[s:e] for s, e in bounds] == row["n_best_answers"]
        expected = {item["text"]: item["probability"] for item in n_best[question.id]}
        best = sorted(expected.values(), reverse=True)
        count = len(expected)
        assert row["n_best_probabilities"][count:] == [0] * (len(row["n_best_answers"]) - count)
        listed = zip(row["n_best_answers"][:count], row["n_best_probabilities"], strict=False)
        for text, probability in listed:
            # The last ones may be others that are as good.
            np.testing.assert_allclose(probability, expected.get(text, best[-1]), atol=tolerance)
        if count == 1 or best[0] - best[1] > 2 * tolerance:
            num_clear += 1
            answer = predictions[question.id]
            assert row["answer"] == answer
            np.testing.assert_allclose(row["probability"], expected[answer], atol=tolerance)
    assert num_clear > len(asked) / 2
    return found
