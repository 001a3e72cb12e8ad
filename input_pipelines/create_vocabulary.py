"""Trains a WordPiece vocabulary, or a SentencePiece model, from text files.

```
python -m input_pipelines.create_vocabulary --input_file=corpus/*.txt \\
    --vocab_file=vocab.txt --vocab_size=30522
```
"""

import os
import sys

from absl import app, flags

from bert_estimator.tokenization import train_sentencepiece, train_vocabulary, write_vocab
from bert_estimator.tpu import lock
from input_pipelines import command_line
from input_pipelines.documents import find_files, read_documents


def define_flags() -> None:
    flags.DEFINE_string("input_file", None, "Text files or globs, comma-separated.", required=True)
    flags.DEFINE_string("vocab_file", None, "The vocabulary to write.", required=True)
    flags.DEFINE_integer("vocab_size", 30522, "Number of tokens, the special ones included.")
    flags.DEFINE_enum(
        "model_type",
        "wordpiece",
        ["wordpiece", "unigram", "bpe"],
        "WordPiece (vocab.txt), or SentencePiece's unigram or byte-pair model (.model).",
    )
    flags.DEFINE_bool("do_lower_case", True, "Lower-case the text and strip accents.")


def create(values: flags.FlagValues) -> str:
    """Does what the flags say; returns a summary in words.

    Raises:
      ValueError: a flag or the text is not fit; the message says which.
      FileNotFoundError: the directory of the vocabulary does not exist.
      OSError: the vocabulary cannot be written.
      lock.InUseError: another process writes it.
    """
    if not os.path.isdir(os.path.dirname(values.vocab_file) or "."):
        raise FileNotFoundError(
            f"--vocab_file: the directory of {values.vocab_file!r} does not exist. Create it first."
        )
    documents = read_documents(find_files(values.input_file.split(",")))
    sentences = (sentence for document in documents for sentence in document)
    is_model = values.vocab_file.endswith(".model")
    if is_model != (values.model_type != "wordpiece"):
        raise ValueError(
            f"--vocab_file={values.vocab_file}: a SentencePiece model's name ends in .model, a "
            f"WordPiece vocabulary's does not, and --model_type is {values.model_type}"
        )
    size, do_lower_case = values.vocab_size, values.do_lower_case
    with lock.held_for(values.vocab_file):
        if is_model:
            kind = values.model_type
            train_sentencepiece(sentences, values.vocab_file, size, kind, do_lower_case)
        else:
            write_vocab(train_vocabulary(sentences, size, do_lower_case), values.vocab_file)
    return f"{values.vocab_size} tokens in {values.vocab_file}."


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code, as of `command_line.exit_code`."""
    return command_line.exit_code("create_vocabulary", create, argv)


if __name__ == "__main__":
    define_flags()
    app.define_help_flags()
    sys.exit(main(sys.argv))
