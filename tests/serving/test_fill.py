"""The command that fills in masked words and scores texts."""

import io
import json
import math
import sys

import fixtures
import pytest

from bert_estimator.serving import fill
from bert_estimator.serving.filler import Filler

MODEL = str(fixtures.DATA / "hf_masked_lm")
LINES = b"word1 [MASK]\nword1\nword2 [MASK]\tword3 [MASK]\n\xff\n" + b"[MASK] " * 30 + b"\na\tb\tc"
ERRORS = {
    1: "line 2: does not have [MASK], in capitals, which stands for a word to fill in",
    3: "line 4: byte 0 is not UTF-8",
    4: "line 5: has 32 tokens with [CLS] and [SEP], but the network has 24 positions; shorten ",
    5: "line 6: has 2 tabs; a tab stands between the two texts of a pair",
}


def run(capsys, *arguments):
    """Returns the exit code, the lines of JSON, and the lines on stderr."""
    code = fill.main(["fill", MODEL, *arguments])
    out, err = capsys.readouterr()
    return code, list(map(json.loads, out.splitlines())), err.splitlines()


def test_texts_of_the_command_line(capsys):
    code, answers, err = run(capsys, "word1 [MASK]", "word2\tword3\n[MASK]", "--top=2")
    assert (code, err) == (0, [])
    expected = Filler(MODEL).fill(["word1 [MASK]", ("word2", "word3 [MASK]")], 2)
    for answer, other in zip(answers, expected, strict=True):
        (found,), (others,) = answer["masks"], other["masks"]
        assert [each["word"] for each in found] == [each["word"] for each in others]
        assert len(found) == 2
        assert found[0]["probability"] == pytest.approx(others[0]["probability"], abs=1e-6)


@pytest.mark.parametrize("texts", [[""], ["word1 [MASK]", ""], ["", ""], ["", "word1 [MASK]"]])
def test_an_empty_text_is_a_text(capsys, texts):
    code, answers, _ = run(capsys, *texts)
    assert code == 1 and len(answers) == len(texts)
    for number, (text, answer) in enumerate(zip(texts, answers, strict=True), 1):
        said = "" if text else f"line {number}: does not have [MASK], in capitals"
        assert answer.get("error", "").startswith(said) and bool(text) == ("masks" in answer)


@pytest.mark.parametrize("way", ["file", "standard input"])
def test_lines_and_those_that_cannot_be_answered(capsys, tmp_path, monkeypatch, way):
    (tmp_path / "texts").write_bytes(LINES)
    arguments = [f"--input_file={tmp_path}/texts"]
    if way == "standard input":
        arguments = []
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(LINES))))
    code, answers, err = run(capsys, *arguments)
    assert (code, err) == (1, ["4 lines were answered with an error."])
    assert len(answers) == 6
    for number, answer in enumerate(answers):
        if number in ERRORS:
            assert answer["error"].startswith(ERRORS[number])
    assert [[len(found) for found in answers[n]["masks"]] for n in (0, 2)] == [[5], [5, 5]]


def test_scores_and_what_all_texts_have_together(capsys, tmp_path):
    (tmp_path / "texts").write_text("word1 word2 word3\n \nword4\tword5 word6\n")
    code, answers, err = run(capsys, "--score", f"--input_file={tmp_path}/texts", "--batch_size=2")
    assert code == 1
    assert answers[1] == {"error": "line 2: does not have a word to score"}
    scores = Filler(MODEL).score(["word1 word2 word3", ("word4", "word5 word6")])
    for answer, score in zip((answers[0], answers[2]), scores, strict=True):
        assert answer == pytest.approx(score, rel=1e-5)
    total = sum(score["pseudo_log_likelihood"] for score in scores)
    assert err == [
        f"Pseudo-perplexity of all 6 tokens: {math.exp(-total / 6):.4g}",
        "1 line was answered with an error.",
    ]


def test_a_network_without_the_head_is_refused(capsys):
    assert fill.main(["fill", str(fixtures.DATA / "hf_classifier"), "[MASK]"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fill: ") and "does not have a head for masked words: it is an" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--score", "--top=3"], "--top=3: --score lists no words; leave one of the two out"),
        (["--top=-1"], "--top=-1: must be at least 1"),
        (["text", "--input_file=none"], "--input_file=none: the texts are arguments; leave them"),
        ([__file__], f"{__file__}: is a file, not a text; for its lines, --input_file={__file__}"),
    ],
)
def test_flags_that_do_not_go_together(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        fill.main(["fill", MODEL, *arguments])
    assert f"error: {message}" in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys):
    code, answers, err = run(capsys, "--input_file=none")
    assert (code, answers) == (2, [])
    assert err == ["fill: none: No such file or directory"]
