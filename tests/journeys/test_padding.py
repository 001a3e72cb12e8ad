"""Without a TPU, batches are as long as their longest text, and evaluations and predictions put
texts of like length together; what comes out is the same."""

import json

import numpy as np
import pytest
from scripts import CLASSIFIER, TAGGER
from tiny_run import variables_of

# The lengths of training are 8, 16 and so on.
MAX_SEQ_LENGTH = 48
OPTIONS = {
    "plain": {},
    "micro-batches": {"micro_batch_size": 2},
    "recompute": {"recompute": True},
    "both": {"micro_batch_size": 2, "recompute": True},
    "bfloat16": {"precision": "bfloat16"},
}


QUICK = [("tags", "both")]


@pytest.fixture(scope="module")
def task(request, tmp_path_factory):
    """Returns (the script, the directory of its data)."""
    script = {"pairs": CLASSIFIER, "tags": TAGGER}[request.param]
    data = tmp_path_factory.mktemp(request.param)
    script.write_data(data)
    config = json.loads((data / "bert_config.json").read_text())
    config["max_position_embeddings"] = MAX_SEQ_LENGTH
    (data / "bert_config.json").write_text(json.dumps(config))
    if request.param == "tags":
        lines = (data / "train.conll").read_text().split("\n\n")
        # A long sentence in a few of the batches.
        lines[3] = "\n".join(lines[:3]).replace("B-LOW", "O").replace("I-LOW", "O")
        (data / "train.conll").write_text("\n\n".join(lines))
    return script, data


@pytest.mark.parametrize(
    ("task", "option"),
    [
        pytest.param(task, option, marks=() if (task, option) in QUICK else pytest.mark.slow)
        for task in ("pairs", "tags")
        for option in OPTIONS
    ],
    indirect=["task"],
)
def test_training_evaluation_and_predictions_do_not_depend_on_the_padding(task, tmp_path, option):
    script, data = task
    steps, found = [], {}
    for use_tpu in (False, True):
        folder = tmp_path / str(use_tpu)
        changes = {
            "use_tpu": use_tpu,
            "max_seq_length": MAX_SEQ_LENGTH,
            "keep_best_checkpoint": True,
        }
        changes |= {"do_train": True, "do_eval": True, "do_predict": True, **script.steps(6)}
        changes["predict_file"] = data / ("dev.conll" if script is TAGGER else "dev.tsv")
        assert script.main(script.flags(data, folder, **changes, **OPTIONS[option])) == 0
        (results,) = folder.glob("test_results*")
        found[use_tpu] = variables_of(folder, 6), results.read_text(), metrics_of(folder)
        steps.append(found[use_tpu][0]["global_step"])
    assert steps == [6, 6]
    tolerance = 1e-2 if option == "bfloat16" else 1e-5
    for name, value in found[True][0].items():
        np.testing.assert_allclose(found[False][0][name], value, atol=tolerance, err_msg=name)
    for one, other in zip(found[False][2], found[True][2], strict=True):
        assert one == pytest.approx(other, abs=2e-2 if option == "bfloat16" else 1e-4)
    if script is TAGGER:
        assert option == "bfloat16" or found[False][1] == found[True][1]
    else:
        rows = [np.array(found[use_tpu][1].split(), float) for use_tpu in (False, True)]
        np.testing.assert_allclose(*rows, atol=2e-2 if option == "bfloat16" else 1e-4)


def metrics_of(directory):
    """Returns the numbers of eval_results.txt, but for the loss, a mean of batches' means."""
    lines = (directory / "eval_results.txt").read_text().splitlines()
    results = dict(line.split(" = ") for line in lines)
    assert {"loss", "mean_loss"} < set(results)
    return [float(results[name]) for name in sorted(set(results) - {"loss"})]
