"""Pretraining on one's own text with a SentencePiece vocabulary, by the commands that users run."""

import json
import math
import re

import log_lines
import numpy as np
import pytest
from batches import batches
from tiny_run import bert_config, metrics_of, pretraining_flags, steps_of

import run_pretraining
from input_pipelines import create_pretraining_data, create_vocabulary
from input_pipelines.records import manifest as manifests
from input_pipelines.records.pretraining_input import input_fn_builder
from input_pipelines.records.record_reader import RecordFiles

VOCAB_SIZE = 40


def run_command(module, **values):
    """Runs one of the commands that make data."""
    argv = [f"--{name}={value}" for name, value in values.items()]
    assert module.main([module.__name__, *argv]) == 0


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Makes a unigram model, records of whole words that are masked with it, and a network."""
    path = tmp_path_factory.mktemp("sentencepiece")
    text = "The quick cat sat on a mat.\nIt was, as cats are, content.\nDogs don't sit.\n\n"
    other = "A slow dog ran to the house.\nNobody was there, so it ran on.\nIt is late.\n\n"
    # Documents of other lines, since equal documents are held out together.
    numbers = [f"Line {i} of {j}.\n" for i in range(4) for j in "abc"]
    (path / "text.txt").write_text("".join(n + text + n + other for n in numbers))
    run_command(
        create_vocabulary,
        input_file=path / "text.txt",
        vocab_file=path / "spm.model",
        vocab_size=VOCAB_SIZE,
        model_type="unigram",
    )
    run_command(
        create_pretraining_data,
        input_file=path / "text.txt",
        output_file=path / "train.tfrecord",
        vocab_file=path / "spm.model",
        do_whole_word_mask=True,
        masked_lm_prob=0.3,  # of so short examples, so that words of letters fit
        max_seq_length=16,
        max_predictions_per_seq=4,
        dupe_factor=2,
        eval_fraction=0.2,
    )
    config = {**bert_config(0), "vocab_size": VOCAB_SIZE}
    (path / "bert_config.json").write_text(json.dumps(config))
    return path


def test_it_trains(data, tmp_path, capsys):
    flags = pretraining_flags(data, tmp_path, num_train_steps=4)
    with log_lines.collected() as logged:
        assert run_pretraining.main(["run_pretraining.py", *flags, "--do_train", "--do_eval"]) == 0
    said = r"train\.tfrecord\.json: --masking_unit=word: [\d.]+ % of the tokens"
    assert [text for _, text in logged if re.search(said, text)]
    assert steps_of(tmp_path)[-1] == 4
    losses = [record["loss"] for record in metrics_of(tmp_path) if "loss" in record]
    assert losses and all(map(math.isfinite, losses))
    out = capsys.readouterr().out
    held_out = f"{data}/heldout.train.tfrecord"
    assert f"Evaluation reads held-out records: {RecordFiles([held_out]).num_records} rec" in out
    assert "Held-out text at step 4: " in out
    counts = manifests.read_token_counts(manifests.token_counts_path(f"{data}/train.tfrecord"))
    evaluated = batches(input_fn_builder(held_out, 16, 4, False), {"batch_size": 8})
    ids, weights = (
        np.concatenate([batch[f"masked_lm_{name}"].ravel() for batch in evaluated])
        for name in ("ids", "weights")
    )
    expected = -np.log((counts[ids] + 1) / (counts + 1).sum()) @ weights / weights.sum()
    baseline = metrics_of(tmp_path)[-1]["eval_unigram_baseline"]
    assert baseline == pytest.approx(expected)
    assert f"  unigram baseline of the same tokens: {baseline:.3f} (" in out
