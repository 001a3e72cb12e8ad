import errno
import functools
import os
import subprocess
import sys

import pytest
from commands import MAINS

from bert_estimator.tokenization import load_vocab, open_tokenizer, vocabulary
from input_pipelines import create_vocabulary

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def create(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "input_pipelines.create_vocabulary", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_writes_a_vocabulary_of_the_size_asked(tmp_path, text_file):
    vocab_file = str(tmp_path / "vocab.txt")
    done = create(f"--input_file={text_file}", f"--vocab_file={vocab_file}", "--vocab_size=80")
    assert (done.returncode, done.stdout) == (
        0,
        f"80 tokens in {vocab_file}; 0 % of the words of the text are [UNK].\n",
    ), done.stderr
    assert list(load_vocab(vocab_file))[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

    done = create(f"--input_file={text_file}", f"--vocab_file={vocab_file}", "--vocab_size=20")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("create_vocabulary: --vocab_size=20: the special tokens")


def test_what_happens_later_is_1(tmp_path, text_file, monkeypatch, capsys):
    """The disk may be full, for instance."""

    def write(vocab, vocab_file):
        raise OSError(errno.ENOSPC, "No space left on device", vocab_file)

    monkeypatch.setattr(create_vocabulary, "write_vocab", write)
    argv = [f"--input_file={text_file}", f"--vocab_file={tmp_path}/v", "--vocab_size=80"]
    assert create_vocabulary.main(["program", *argv]) == 1
    message = f"create_vocabulary: error: {tmp_path}/v: No space left on device. Free space there"
    assert capsys.readouterr().err.startswith(message)


def test_writes_a_sentencepiece_model(tmp_path, text_file):
    arguments = [f"--input_file={text_file}", "--vocab_size=40", "--model_type=bpe"]
    done = create(*arguments, f"--vocab_file={tmp_path}/spm.model")
    assert done.returncode == 0, done.stderr
    assert open_tokenizer(f"{tmp_path}/spm.model").vocab_size == 40
    done = create(*arguments, f"--vocab_file={tmp_path}/vocab.txt")
    assert done.returncode == 2
    assert "Give the name of a SentencePiece model the ending .model" in done.stderr


def test_says_of_how_much_text_a_model_is(tmp_path, monkeypatch, capsys):
    few = functools.partial(vocabulary.WordCounts, most_words=8)
    monkeypatch.setattr(vocabulary, "WordCounts", few)
    (tmp_path / "a.txt").write_text("the cat\n" * 50 + " ".join("bdfgijk"))
    flags = [f"--input_file={tmp_path}/a.txt", f"--vocab_file={tmp_path}/a.model"]
    assert MAINS["vocabulary"](["vocabulary", *flags, "--model_type=bpe", "--vocab_size=12"]) == 0
    said = "a.model, from its most frequent words, 97.72 % of the text."
    assert said in capsys.readouterr().out


THAI = "\u0e01\u0e32\u0e23" * 100  # a text without spaces, which WordPiece takes for one word


@pytest.mark.parametrize(
    ("text", "share"), [(THAI, "100"), (f"{THAI} a b", "33.3"), (f"{THAI} a b c d", "20")]
)
def test_says_how_much_of_the_text_is_unknown(tmp_path, capsys, text, share):
    (tmp_path / "a.txt").write_text(f"{text}\n" * 3, encoding="utf-8")
    size = 11 + 2 * text.count(" ")
    flags = [f"--input_file={tmp_path}/a.txt", f"--vocab_file={tmp_path}/vocab.txt"]
    assert MAINS["vocabulary"](["vocabulary", *flags, f"--vocab_size={size}"]) == 0
    out = capsys.readouterr().out
    assert f"; {share} % of the words of the text are [UNK]." in out
    assert ("WARNING: " in out) == (share != "20")
    # Its records say the same.
    more = ["--max_seq_length=16", "--max_predictions_per_seq=4", "--masking=dynamic"]
    records = [*flags, *more, f"--output_file={tmp_path}/a.tfrecord"]
    assert MAINS["records"](["records", *records]) == 0
    out = capsys.readouterr().out
    assert f"tokens, {share} % [UNK], " in out and ("WARNING: " in out) == (share != "20")
