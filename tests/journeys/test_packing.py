"""Runs of fine-tuning whose rows are packed equal runs whose rows are not, and on any cores."""

import json

import numpy as np
import pytest
from scripts import CLASSIFIER, SQUAD, TAGGER, WAYS
from tiny_run import go_back, variables_of

SCRIPTS = {"pairs": CLASSIFIER, "tags": TAGGER, "answers": SQUAD}
LENGTHS = {"pairs": 32, "tags": 40, "answers": 48}  # of a row, which holds three examples or so
QUICK = [("pairs", "TPU rules"), ("tags", "session"), ("pairs", "2 cores")]


pytestmark = pytest.mark.usefixtures("ways_on_cores")


@pytest.fixture(scope="module")
def data_of(tmp_path_factory):
    """Returns a function of a task and a rate of dropout, which writes data into a directory."""

    def write(task, rate):
        directory = tmp_path_factory.mktemp(f"{task}-{rate}", numbered=True)
        SCRIPTS[task].write_data(directory)
        path = directory / "bert_config.json"
        config = json.loads(path.read_text())
        config["hidden_dropout_prob"] = config["attention_probs_dropout_prob"] = rate
        if not rate:
            config["classifier_dropout"] = rate  # of tags it is drawn for rows
        config["max_position_embeddings"] = max(LENGTHS.values())
        path.write_text(json.dumps(config))
        return directory

    return write


def flags_of(task, data, folder, **changes):
    """Returns the flags of 5 steps of training, of an evaluation and predictions."""
    script = SCRIPTS[task]
    verbs = {"do_train": True, "do_eval": True, "do_predict": True, **script.steps(5)}
    names = {"pairs": "dev.tsv", "tags": "dev.conll", "answers": "dev.json"}
    # AdamW would make much of rounding in weights whose gradient is nearly 0.
    rule = {"optimizer": "lars", "learning_rate": 0.05}
    own = {"predict_file": data / names[task], "max_seq_length": LENGTHS[task]}
    return script.flags(data, folder, **(own | verbs | rule | changes))


def trained(task, data, folder, **changes):
    """Runs a task; returns the weights, the metrics and the predictions."""
    assert SCRIPTS[task].main(flags_of(task, data, folder, **changes)) == 0
    weights = variables_of(folder, 5)
    lines = (folder / "eval_results.txt").read_text().splitlines()
    metrics = dict(line.split(" = ") for line in lines)
    predictions = next(
        path for name in ("test_results*", "predictions.json") for path in folder.glob(name)
    )
    del metrics["loss"]  # depends on which examples are in a batch
    return weights, {name: float(value) for name, value in metrics.items()}, predictions.read_text()


def assert_equal(one, other, task):
    weights, metrics, predictions = one
    for name, value in other[0].items():
        np.testing.assert_allclose(weights[name], value, atol=1e-5, err_msg=name)
    assert metrics == pytest.approx(other[1], abs=1e-4)
    if task == "pairs":
        values = [np.array(text.split(), float) for text in (predictions, other[2])]
        np.testing.assert_allclose(*values, atol=1e-4)
    else:
        assert predictions == other[2]


def cases(tasks, quick=QUICK):
    return [
        pytest.param(task, way, marks=() if (task, way) in quick else pytest.mark.slow)
        for task in tasks
        for way in WAYS
    ]


# The softmax over an answer's places has the places of padding, too, unless rows are packed.
@pytest.mark.parametrize(("task", "way"), cases(["pairs", "tags"]))
def test_packed_rows_give_what_rows_of_one_example_give(task, way, data_of, tmp_path):
    data = data_of(task, 0.0)
    unpacked = trained(task, data, tmp_path / "unpacked", pack=False)
    packed = trained(task, data, tmp_path / "packed", **WAYS[way])
    assert_equal(packed, unpacked, task)


@pytest.mark.parametrize(("task", "way"), cases(SCRIPTS, quick=[("pairs", "2 cores")]))
def test_dropout_of_packed_rows_is_the_same_on_any_cores(task, way, data_of, tmp_path):
    data = data_of(task, 0.2)
    expected = trained(task, data, tmp_path / "session")
    assert_equal(trained(task, data, tmp_path / "other", **WAYS[way]), expected, task)


@pytest.mark.parametrize(
    "way",
    [way if way == "TPU rules" else pytest.param(way, marks=pytest.mark.slow) for way in WAYS],
)
def test_a_killed_run_goes_on_as_it_would_have_gone_on(way, data_of, tmp_path):
    data, flags = data_of("pairs", 0.2), {"save_checkpoints_steps": 2, **WAYS[way]}
    expected = trained("pairs", data, tmp_path, **flags)
    go_back(tmp_path)
    np.testing.assert_equal(trained("pairs", data, tmp_path, **flags), expected)
