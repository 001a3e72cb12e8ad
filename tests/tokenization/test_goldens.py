"""WordPiece and SentencePiece on nasty strings, against what `record_goldens.py` says."""

import json
import os

import pytest

from bert_estimator.tokenization import FullTokenizer, SentencePieceTokenizer, write_vocab

DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "goldens")

with open(os.path.join(DIRECTORY, "tokens.json"), encoding="ascii") as file:
    GOLDENS = json.load(file)


@pytest.mark.parametrize("name", GOLDENS["tokens"])
def test_every_string(tmp_path, name):
    kind, casing = name.split("_")
    if kind == "wordpiece":
        write_vocab(GOLDENS["vocab"], str(tmp_path / "vocab.txt"))
        tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"), casing == "uncased")
    else:
        tokenizer = SentencePieceTokenizer(f"{DIRECTORY}/{kind}.model", casing == "uncased")
    found = {}
    for text, expected in zip(GOLDENS["strings"], GOLDENS["tokens"][name], strict=True):
        tokens = tokenizer.tokenize(text)
        if tokens != expected:
            found[text] = (tokens, expected)
    assert found == {}


def test_there_are_enough_of_them():
    assert len(set(GOLDENS["strings"])) >= 200
