"""The flags of the commands that read text, which say how."""

from absl import flags

from input_pipelines.documents import SPLITTING, TextOptions


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


def options(values: flags.FlagValues) -> TextOptions:
    """Returns what the flags ask for."""
    return TextOptions(values.text_field, values.split_sentences, values.document_per_file)
