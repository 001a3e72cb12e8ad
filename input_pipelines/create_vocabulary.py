"""Trains a WordPiece vocabulary, or a SentencePiece model, from text files.

```
python -m input_pipelines.create_vocabulary --input_file=corpus/*.txt \\
    --vocab_file=vocab.txt --vocab_size=30522
```
"""

import functools

from bert_estimator.command_line import console, flags
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
from input_pipelines.text import document_filter
from input_pipelines.text.documents import read_pieces, total_bytes

_LARGEST = 10_000_000  # tokens; the largest published vocabularies have a tenth


@flags.group()
class VocabularyConfig:
    """Holds the flags of this command."""

    texts: arguments.TextInput = flags.member(arguments.TextInput)
    vocab_file: str | None = flags.field(
        None, "Write the vocabulary to this file.", heading=arguments.NEEDED
    )
    vocab_size: int = flags.field(
        30522,
        "Make this number of tokens, the special tokens included.",
        flags.rule(lambda value: 0 < value <= _LARGEST, f"must be from 1 to {_LARGEST}"),
    )
    model_type: str = flags.field(
        "wordpiece",
        "Train a WordPiece vocabulary (wordpiece: vocab.txt), or a unigram or byte-pair (bpe) "
        "model of SentencePiece (.model).",
        flags.one_of(("wordpiece", "unigram", "bpe")),
    )
    casing: arguments.CasingFlags = flags.member(arguments.CasingFlags)


def create(config: VocabularyConfig) -> str:
    """Creates the vocabulary that the flags ask for; returns a summary in words."""
    return remote_output.create(config, "vocab_file", functools.partial(_create, config))


def _create(config, path, there):
    """Trains it in a file of this machine; returns what `remote_output.create` asks for."""
    del there
    arguments.check_names_a_file("vocab_file", path)
    options = config.texts.options
    chosen = options.new_filter()
    files = config.texts.files()
    with flags.named("input_file"):
        progress = Progress("Reading text", total_bytes(files), "B")
    arguments.check_output("vocab_file", path, files)
    # The text is read only below, when all flags have been checked: this is a generator.
    pieces = read_pieces(files, progress, options, chosen)
    sentences = (sentence for piece in pieces for sentence in piece.sentences)
    is_model = path.endswith(".model")
    if is_model != (config.model_type != "wordpiece"):
        raise ValueError(
            f"--vocab_file={path}: --model_type is {config.model_type}. Give the name "
            "of a SentencePiece model the ending .model, and a WordPiece vocabulary another one"
        )
    size = config.vocab_size
    lower, strip = config.casing.do_lower_case, config.casing.strip_accents
    casing = {"do_lower_case": lower is not False, "strip_accents": strip}
    share, unknown = 1.0, 0.0
    with lock.held_for(path):
        if is_model:
            kind = config.model_type
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
        if config.model_type == "bpe":
            part = f", from its most frequent words, {100 * share:.2f} % of the text"
    elif not is_model:
        part = f"; {100 * unknown:.3g} % of the words of the text are [UNK]"
    warning = unknown_warning(unknown, "the words of the text")
    summary = f"{config.vocab_size} tokens in {path}{part}.{left_out}"
    return "\n".join(filter(None, [summary, warning])), [path]


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code (see `console.exit_code`)."""
    return arguments.exit_code("create_vocabulary", __doc__, VocabularyConfig, create, argv)


def command() -> None:
    """Runs the console command `bert-vocabulary`."""
    console.run(main)


if __name__ == "__main__":
    command()
