"""The flags of the commands that read text: which formats, which documents, which language."""

import dataclasses

from absl import flags

from input_pipelines.text.documents import SPLITTING, TextOptions


def define() -> None:
    """Defines the flags, one for each attribute of `TextOptions`."""
    defaults = TextOptions()
    flags.DEFINE_string(
        "text_field",
        defaults.text_field,
        "Read the text from this key of JSON lines, or from this column of parquet.",
    )
    flags.DEFINE_enum(
        "split_sentences",
        defaults.split_sentences,
        list(SPLITTING),
        "Split texts into sentences (yes), or take each line for a sentence (no). auto splits the "
        "texts of all formats but plain text, which has a sentence in each line.",
    )
    flags.DEFINE_bool(
        "document_per_file",
        defaults.document_per_file,
        "Take each file of plain text for one document; by default, empty lines end documents.",
    )
    flags.DEFINE_integer(
        "min_words", defaults.min_words, "Leave out documents with fewer words than this."
    )
    flags.DEFINE_float(
        "min_letters",
        defaults.min_letters,
        "Leave out documents of which a smaller share of the characters, without spaces, are "
        "letters.",
    )
    flags.DEFINE_string(
        "language",
        defaults.language,
        "Leave out documents in other languages than this, such as en; py3langid detects them. By "
        "default, take all languages.",
    )


def define_casing() -> None:
    """Defines the flags of `tokenization.Casing`, for commands that tokenize."""
    flags.DEFINE_bool("do_lower_case", True, "Lower-case the text.")
    flags.DEFINE_bool(
        "strip_accents",
        None,
        "Strip accents from the text. By default, do so if it is lower-cased, and always for "
        "SentencePiece.",
    )


def options(values: flags.FlagValues) -> TextOptions:
    """Returns what the flags ask for; raises a ValueError that names a wrong flag."""
    values_of_flags = {
        field.name: values[field.name].value for field in dataclasses.fields(TextOptions)
    }
    try:
        options = TextOptions(**values_of_flags)
        options.new_filter()  # for its errors
    except ValueError as error:
        # The message begins with the name of an attribute, which is the name of its flag too.
        raise ValueError(f"--{error}") from None
    return options
