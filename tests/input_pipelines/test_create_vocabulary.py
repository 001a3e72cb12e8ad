import os
import subprocess
import sys

from bert_estimator.tokenization import load_vocab, open_tokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def create(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "input_pipelines.create_vocabulary", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_writes_a_vocabulary_of_the_size_asked(tmp_path, documents):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("\n".join(document) for document in documents))
    vocab_file = str(tmp_path / "vocab.txt")
    done = create(f"--input_file={text}", f"--vocab_file={vocab_file}", "--vocab_size=80")
    assert (done.returncode, done.stdout) == (0, f"80 tokens in {vocab_file}.\n"), done.stderr
    assert list(load_vocab(vocab_file))[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

    done = create(f"--input_file={text}", f"--vocab_file={vocab_file}", "--vocab_size=20")
    assert done.returncode == 1
    assert done.stderr.startswith("create_vocabulary: vocab_size is 20, but the special tokens")


def test_an_empty_glob_is_named(tmp_path):
    done = create(f"--input_file={tmp_path}/*.txt", f"--vocab_file={tmp_path}/vocab.txt")
    assert done.returncode == 1
    assert f"{tmp_path}/*.txt" in done.stderr


def test_writes_a_sentencepiece_model(tmp_path, documents):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("\n".join(document) for document in documents))
    flags = [f"--input_file={text}", "--vocab_size=40", "--model_type=bpe"]
    done = create(*flags, f"--vocab_file={tmp_path}/spm.model")
    assert done.returncode == 0, done.stderr
    assert open_tokenizer(f"{tmp_path}/spm.model").vocab_size == 40
    done = create(*flags, f"--vocab_file={tmp_path}/vocab.txt")
    assert done.returncode == 1
    assert "a SentencePiece model's name ends in .model" in done.stderr
