"""The documents of text files, as tests compare them."""

from collections.abc import Iterator

from input_pipelines.text.documents import read_pieces


def read_documents(*args, **kwargs) -> Iterator[list[str]]:
    """Yields the sentences of each of `read_pieces`."""
    return (piece.sentences for piece in read_pieces(*args, **kwargs))
