"""Trains a WordPiece vocabulary, or a SentencePiece model, from text files.

```
python -m input_pipelines.create_vocabulary --input_file=corpus/*.txt \\
    --vocab_file=vocab.txt --vocab_size=30522
```
"""

import functools

from absl import flags

from bert_estimator.command_line.flags import named
from bert_estimator.system import lock
from bert_estimator.system.ticker import Progress
from bert_estimator.tokenization import (
    count_words,
    train_sentencepiece,
    unknown_warning,
    unknown_words_share,
    vocabulary_of,
    write_vocab,
)
from input_pipelines import arguments, remote_output
from input_pipelines.text import document_filter, text_flags
from input_pipelines.text.documents import find_files, read_documents, total_bytes

_LARGEST = 10_000_000  # tokens; the largest published vocabularies have a tenth


def define_flags() -> None:
    """Defines the flags of this command."""
    flags.DEFINE_string(
        "input_file",
        None,
        "Read these text files, globs or directories, comma-separated.",
        required=True,
    )
    text_flags.define()
    flags.DEFINE_string("vocab_file", None, "Write the vocabulary to this file.", required=True)
    flags.DEFINE_integer(
        "vocab_size", 30522, "Make this number of tokens, the special tokens included."
    )
    flags.DEFINE_enum(
        "model_type",
        "wordpiece",
        ["wordpiece", "unigram", "bpe"],
        "Train a WordPiece vocabulary (vocab.txt), or a unigram or byte-pair (bpe) model of "
        "SentencePiece (.model).",
    )
    text_flags.define_casing()


def create(values: flags.FlagValues) -> str:
    """Creates the vocabulary that the flags ask for; returns a summary in words."""
    return remote_output.create(values, "vocab_file", functools.partial(_create, values))


def _create(values, path, there):
    """Trains it in a file of this machine; returns what `remote_output.create` asks for."""
    del there
    arguments.check_names_a_file("vocab_file", path)
    if not 0 < values.vocab_size <= _LARGEST:
        rule = f"must be from 1 to {_LARGEST}"
        raise ValueError(f"--vocab_size={values.vocab_size}: {rule}")
    options = text_flags.options(values)
    chosen = options.new_filter()
    with named("input_file"):
        files = find_files(values.input_file.split(","))
        progress = Progress("Reading text", total_bytes(files), "B")
    arguments.check_output("vocab_file", path, files)
    # The text is read only below, when all flags have been checked: this is a generator.
    documents = read_documents(files, progress, options, chosen)
    sentences = (sentence for document in documents for sentence in document)
    is_model = path.endswith(".model")
    if is_model != (values.model_type != "wordpiece"):
        raise ValueError(
            f"--vocab_file={path}: --model_type is {values.model_type}. Give the name "
            "of a SentencePiece model the ending .model, and a WordPiece vocabulary another one"
        )
    size = values.vocab_size
    casing = {"do_lower_case": values.do_lower_case, "strip_accents": values.strip_accents}
    share, unknown = 1.0, 0.0
    with lock.held_for(path):
        if is_model:
            kind = values.model_type
            share = train_sentencepiece(sentences, path, size, kind, **casing)
        else:
            counted = count_words(sentences, **casing)
            vocab = vocabulary_of(counted, size)
            unknown = unknown_words_share(counted, vocab)
            write_vocab(vocab, path)
    left_out = document_filter.in_words(chosen.left_out)
    left_out = left_out and f" Left out: {left_out}."
    part = ""
    if share < 1:
        part = f", from a random {100 * share:.2g} % of the sentences"
        if values.model_type == "bpe":
            part = f", from its most frequent words, {100 * share:.2f} % of the text"
    elif not is_model:
        part = f"; {100 * unknown:.3g} % of the words of the text are [UNK]"
    warning = unknown_warning(unknown, "the words of the text")
    summary = f"{values.vocab_size} tokens in {path}{part}.{left_out}"
    return "\n".join(filter(None, [summary, warning])), [path]


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code (see `console.exit_code`)."""
    return arguments.exit_code("create_vocabulary", __doc__, create, argv)


def command() -> None:
    """Runs the console command `bert-vocabulary`."""
    arguments.run(define_flags, main)


if __name__ == "__main__":
    command()
