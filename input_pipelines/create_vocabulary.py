"""Trains a WordPiece vocabulary, or a SentencePiece model, from text files; or adds words of the
text to a network's vocabulary.

```
python -m input_pipelines.create_vocabulary --input_file=corpus/*.txt \\
    --vocab_file=vocab.txt --vocab_size=30522
python -m input_pipelines.create_vocabulary --input_file=corpus/*.txt \\
    --extend=bert-base-uncased --num_words=500 --output_dir=bert-base-mine
```
"""

import collections
import functools
import os
from typing import ClassVar

from bert_estimator.command_line import console, flags
from bert_estimator.storage import staging
from bert_estimator.system import lock
from bert_estimator.system.ticker import Progress
from bert_estimator.tokenization import (
    FullTokenizer,
    count_words,
    own_words,
    train_sentencepiece,
    unknown_warning,
    unknown_words_share,
    vocabulary_of,
    write_vocab,
)
from input_pipelines import arguments, remote_output
from input_pipelines.text import document_filter
from input_pipelines.text.documents import TextOptions, read_pieces, total_bytes

_LARGEST = 10_000_000  # tokens; the largest published vocabularies have a tenth
# Defaults of flags that the other half of the command refuses.
_OF_TRAINING, _NUM_WORDS = {"vocab_size": 30522, "model_type": "wordpiece"}, 500


@flags.group()
class VocabularyConfig:
    """Holds the flags of this command."""

    # With the first flag, `create` says which flags are needed.
    OTHER_NEEDS: ClassVar[str] = "extend"

    texts: arguments.TextInput = flags.member(arguments.TextInput)
    vocab_file: str | None = flags.field(
        None, "Write the vocabulary to this file.", heading=arguments.NEEDED
    )
    vocab_size: int | None = flags.field(
        None,
        f"Make so many tokens (default: {_OF_TRAINING['vocab_size']}), special tokens included.",
        flags.rule(lambda value: 0 < value <= _LARGEST, f"must be from 1 to {_LARGEST}"),
    )
    model_type: str | None = flags.field(
        None,
        "Train a WordPiece vocabulary (wordpiece: vocab.txt), or a unigram or byte-pair (bpe) "
        "model of SentencePiece (.model) (default: wordpiece).",
        flags.one_of(("wordpiece", "unigram", "bpe")),
    )
    extend: str | None = flags.field(
        None,
        "Add words to the WordPiece vocabulary of this network (a checkpoint, a directory or an "
        "archive), and write the network with them, in its own format, into --output_dir.",
        flags.check_checkpoint,
    )
    output_dir: str | None = flags.field(None, "Write the network of --extend into this directory.")
    num_words: int | None = flags.field(
        None,
        f"Add so many words of --input_file (default: {_NUM_WORDS}), which save most pieces.",
        flags.positive,
    )
    words: str | None = flags.field(
        None,
        "Add the words of this file, one in each line, without --input_file.",
        flags.check_file,
    )
    casing: arguments.CasingFlags = flags.member(arguments.CasingFlags)


def create(config: VocabularyConfig) -> str:
    """Creates the vocabulary that the flags ask for; returns a summary in words."""
    if config.extend is not None:
        return _extend(config)
    rule = "needs --extend; add it, or leave this flag out"
    for name in ("output_dir", "words", "num_words"):
        flags.check(getattr(config, name) is None, name, getattr(config, name), rule)
    given = {name: getattr(config, name) or default for name, default in _OF_TRAINING.items()}
    config = flags.changed(config, **given)
    return remote_output.create(config, "vocab_file", functools.partial(_create, config))


def _create(config, path, there):
    """Trains it in a file of this machine; returns what `remote_output.create` asks for."""
    del there
    arguments.check_names_a_file("vocab_file", path)
    files = config.texts.files()
    arguments.check_output("vocab_file", path, files)
    sentences, chosen = _sentences(config, files)
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


def _sentences(config, files):
    """Returns the sentences of files, and the filter of their documents."""
    options = config.texts.options
    chosen = options.new_filter()
    with flags.named("input_file"):
        progress = Progress("Reading text", total_bytes(files), "B")
    # The text is read later, when all flags have been checked: this is a generator.
    pieces = read_pieces(files, progress, options, chosen)
    return (sentence for piece in pieces for sentence in piece.sentences), chosen


def _extend(config):
    """Writes the network of --extend with further words; returns a summary in words."""
    input_file, target, values = config.texts.input_file, config.output_dir, flags.values_of(config)
    flags.check(target, "output_dir", target, "is needed with --extend")
    for name in ("vocab_file", *_OF_TRAINING, "do_lower_case", "strip_accents"):
        rule = "is the network's with --extend; leave it out"
        flags.check(values[name] is None, name, values[name], rule)
    rule = "with --extend, give either this flag or --words"
    flags.check((input_file is None) != (config.words is None), "input_file", input_file, rule)
    of_text = {**flags.values_of(TextOptions()), "num_words": None} if config.words else {}
    for name, default in of_text.items():
        rule = "is for the text of --input_file; leave it out with --words"
        flags.check(values[name] == default, name, values[name], rule)
    files = config.texts.files() if input_file else []
    console.load_tensorflow()
    from bert_estimator.interchange import conversion, open_source
    from bert_estimator.interchange.own_words import extended
    from bert_estimator.interchange.source import HUGGING_FACE, TF1

    with flags.named("extend"):
        source = open_source(config.extend).with_files(None, None)
        tokenizer = source.open_tokenizer()
        rule = "has a SentencePiece model; words can be added to WordPiece (vocab.txt) alone"
        flags.check(isinstance(tokenizer, FullTokenizer), "extend", config.extend, rule)
    to = HUGGING_FACE if source.format == HUGGING_FACE else TF1
    with flags.named("output_dir"):
        conversion.check(source, target, to)  # before a long text is read
    counts, left_out = collections.Counter(), ""
    if input_file:
        sentences, chosen = _sentences(config, files)
        counts = count_words(sentences, tokenizer.do_lower_case, tokenizer.strips_accents).words
        words = own_words.worthwhile(counts, tokenizer, config.num_words or _NUM_WORDS)
        left_out = document_filter.in_words(chosen.left_out)
    else:
        with flags.named("words"):
            words = own_words.read(config.words, tokenizer)
    rule = "does not have a word that the vocabulary cuts into pieces"
    flag = "input_file" if input_file else "words"
    flags.check(words, flag, input_file or config.words, rule)
    vocab_file = os.path.join(staging.temporary_folder(), "vocab.txt")
    made = extended(source, tokenizer, words, vocab_file)
    with flags.named("output_dir"):
        conversion.convert(made, target, to)
    rows = made.config.vocab_size - source.config.vocab_size
    summary = (
        f"{target}: {config.extend} with {len(words)} further words, such as "
        f"{', '.join(words[:5])}; the network has {rows} rows of embeddings more."
    )
    if counts:
        both = tokenizer, made.open_tokenizer()
        before, after = (own_words.num_pieces(counts, each) for each in both)
        summary += f" The text has {after} pieces, {1 - after / before:.1%} less than {before}."
    return summary + (left_out and f" Left out: {left_out}.")


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code (see `console.exit_code`)."""
    return arguments.exit_code("create_vocabulary", __doc__, VocabularyConfig, create, argv)


def command() -> None:
    """Runs the console command `bert-vocabulary`."""
    console.run(main)


if __name__ == "__main__":
    command()
