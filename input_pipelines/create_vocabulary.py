"""Trains a WordPiece vocabulary from text files.

```
python -m input_pipelines.create_vocabulary --input_file=corpus/*.txt \\
    --vocab_file=vocab.txt --vocab_size=30522
```
"""

import sys

from absl import app, flags

from bert_estimator.tokenization import train_vocabulary, write_vocab
from input_pipelines.documents import find_files, read_documents


def define_flags() -> None:
    flags.DEFINE_string("input_file", None, "Text files or globs, comma-separated.", required=True)
    flags.DEFINE_string("vocab_file", None, "The vocabulary to write.", required=True)
    flags.DEFINE_integer("vocab_size", 30522, "Number of tokens, the special ones included.")
    flags.DEFINE_bool("do_lower_case", True, "Lower-case the text and strip accents.")


def create(values: flags.FlagValues) -> str:
    """Does what the flags say; returns a summary in words.

    Raises:
      ValueError: a flag or the text is not fit; the message says which.
      OSError: the vocabulary cannot be written.
    """
    documents = read_documents(find_files(values.input_file.split(",")))
    sentences = (sentence for document in documents for sentence in document)
    vocab = train_vocabulary(sentences, values.vocab_size, values.do_lower_case)
    write_vocab(vocab, values.vocab_file)
    return f"{len(vocab)} tokens in {values.vocab_file}."


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    try:
        print(create(flags.FLAGS))
    except (ValueError, OSError) as error:
        sys.exit(f"create_vocabulary: {error}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
