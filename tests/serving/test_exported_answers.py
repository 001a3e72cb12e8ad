"""Runs of run_squad.py export models that answer as their predictions do, without this project."""

import itertools
import json
import shutil

import pytest
import tensorflow.compat.v1 as tf
from kills import Killed, kill_before
from served import check_answers
from tiny_run import bert_config, questions, squad_flags, words, write_questions

import run_squad
from bert_estimator.tokenization import SPECIAL_TOKENS, open_tokenizer, write_vocab
from tests.serving.graph.test_graph_sentencepiece import GOLDENS, needs_fast, needs_text

CONTEXTS = [
    "",
    " \n\u3000",
    "w5",
    "\U0001f600 Caf\u00e9 w3, w4!  Cafe\u0301\u200b w5\tw6. \u6771\u4eac W7 ``w8'' \ufb01n \u0130x "
    * 6,
    "w1 w2 w3. " * 40,
    "\u00a0".join(f"w{number % 28}" for number in range(100)),
]
ASKED = ["", "w3 what", "\u3000", "w5 w6 w7 w8 w9", "\U0001f600"]

RUNS = {
    "2.0, on cores, the best checkpoint": {
        "version_2_with_negative": True,
        "use_tpu": True,
        "tpu_name": "rehearse:2",
        "eval_batch_size": 8,
        "predict_batch_size": 8,
        "keep_best_checkpoint": True,
    },
    "1.1, cased, bfloat16": {
        "do_lower_case": False,
        "precision": "bfloat16",
        "n_best_size": 4,
        "use_tpu": False,
    },
    "2.0, unigram": {
        "vocabulary": "unigram",
        "do_lower_case": False,
        "strip_accents": False,
        "version_2_with_negative": True,
        "n_best_size": 3,
        "null_score_diff_threshold": 1.0,
    },
    "1.1, byte pairs, bfloat16": {
        "vocabulary": "bpe",
        "do_lower_case": False,
        "strip_accents": False,
        "precision": "bfloat16",
    },
}


def write_data(path, vocabulary, version_2):
    """Writes questions, a vocabulary and a network; returns the flags that name them."""
    vocab_file = path / "vocab.txt"
    if vocabulary != "wordpiece":
        vocab_file = path / f"{vocabulary}.model"
        shutil.copy(GOLDENS.parent / vocab_file.name, vocab_file)
    else:
        tokens = [*words(30), *"cafeinx,.!`'", *(f"##{c}" for c in "cafeinx"), "\u6771", "\u00e9"]
        write_vocab([*SPECIAL_TOKENS, *tokens], str(vocab_file))
    size = open_tokenizer(str(vocab_file), None).vocab_size
    config = {**bert_config(0), "vocab_size": size, "initializer_range": 0.3}
    (path / "bert_config.json").write_text(json.dumps(config))
    for name, seed in (("train", 1), ("dev", 2)):
        write_questions(path / f"{name}.json", questions(16, seed, impossible=5 * version_2))
    pairs = [(context, question) for context in CONTEXTS for question in ASKED]
    strange = [
        (context, {"id": f"s{number}", "question": question, "answers": []})
        for number, (context, question) in enumerate(pairs)
    ]
    write_questions(path / "test.json", [*questions(8, 3), *strange])
    return {"vocab_file": vocab_file, "predict_file": path / "test.json"}


def flags_of(path, changes):
    changes = {"vocabulary": "wordpiece", "max_answer_length": 6, **changes}
    files = write_data(path, changes.pop("vocabulary"), "version_2_with_negative" in changes)
    verbs = dict.fromkeys(["do_train", "do_eval", "do_predict", "do_export"], True)
    return squad_flags(path, path / "run", **{**files, **verbs, **changes})


def main(flags):
    tf.summary.FileWriterCache.clear()
    assert run_squad.main(["run_squad.py", *flags]) == 0
    tf.summary.FileWriterCache.clear()


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    "2.0, on cores, the best checkpoint",
    "1.1, cased, bfloat16",
    pytest.param("2.0, unigram", marks=(needs_text, needs_fast)),
    pytest.param("1.1, byte pairs, bfloat16", marks=needs_text),
])  # fmt: skip
def test_exported_models_answer_as_predictions_do(tmp_path, request, capsys, name):
    changes = RUNS[name]
    if "tpu_name" in changes:
        request.getfixturevalue("xla_runtime")
    main(flags_of(tmp_path, changes))
    assert "The SavedModel takes text, and answers all 70 questions" in capsys.readouterr().out
    options = ("with tensorflow_text",) if "vocabulary" in changes else ()
    files = tmp_path, tmp_path / "run", tmp_path / "test.json"
    # The rounding of bfloat16 depends on the batch.
    tolerance = 0.02 if "precision" in changes else 1e-4
    found = check_answers(*files, *options, tolerance=tolerance)
    assert len(set(itertools.chain(*found["n_best_answers"]))) > 10


@pytest.mark.slow
def test_a_run_that_is_killed_in_its_export_exports_when_it_goes_on(tmp_path, monkeypatch):
    flags = flags_of(tmp_path, {"version_2_with_negative": True})
    builder = tf.saved_model.builder.SavedModelBuilder
    with monkeypatch.context() as patched, pytest.raises(Killed):
        kill_before(patched, builder, "save", lambda *_: True)
        main(flags)
    main(flags)
    check_answers(tmp_path, tmp_path / "run", tmp_path / "test.json")
