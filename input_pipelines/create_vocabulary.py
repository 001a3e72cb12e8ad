"""Trains a WordPiece vocabulary, or a SentencePiece model, from text files.

```
python -m input_pipelines.create_vocabulary --input_file=corpus/*.txt \\
    --vocab_file=vocab.txt --vocab_size=30522
```
"""

import sys

from absl import app, flags

from bert_estimator.tokenization import train_sentencepiece, train_vocabulary, write_vocab
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
      OSError: the vocabulary cannot be written.
    """
    documents = read_documents(find_files(values.input_file.split(",")))
    sentences = (sentence for document in documents for sentence in document)
    is_model = values.vocab_file.endswith(".model")
    if is_model != (values.model_type != "wordpiece"):
        raise ValueError(
            f"--vocab_file={values.vocab_file}: a SentencePiece model's name ends in .model, a "
            f"WordPiece vocabulary's does not, and --model_type is {values.model_type}"
        )
    size, do_lower_case = values.vocab_size, values.do_lower_case
    if is_model:
        train_sentencepiece(sentences, values.vocab_file, size, values.model_type, do_lower_case)
    else:
        write_vocab(train_vocabulary(sentences, size, do_lower_case), values.vocab_file)
    return f"{values.vocab_size} tokens in {values.vocab_file}."


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
