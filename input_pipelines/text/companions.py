"""Names of the files that this project's commands write beside records and texts.

A pattern of a user, such as `data/*`, may match them, but they are neither records nor text. This
module does not import TensorFlow.
"""

import os
import re

from bert_estimator.system import disk_files

HELD_OUT_PREFIX = "heldout."
"""The names of held-out records that lie beside training records begin so."""
MANIFEST_PREFIX, MANIFEST_SUFFIX = "manifest.", ".json"
COUNTS_PREFIX, COUNTS_SUFFIX = "token_counts.", ".npy"
RECORDS = ".tfrecord"
"""The names of record files in a directory have this in them."""

_UNFINISHED_PREFIX = "temporary."
_VOCABULARY = re.compile(r"vocab\.[0-9a-f]{64}\.(txt|model)")


def vocabulary_name(sha256: str, is_model: bool) -> str:
    """Returns the name of the copy of a vocabulary, or of a SentencePiece model."""
    return f"vocab.{sha256}.{'model' if is_model else 'txt'}"


def is_manifest(path: str) -> bool:
    """Returns whether a path has the name of a manifest."""
    name = os.path.basename(path)
    return name.startswith(MANIFEST_PREFIX) and name.endswith(MANIFEST_SUFFIX)


def is_companion(path: str) -> bool:
    """Returns whether a file lies beside training records without being one of them.

    It is a manifest, counts, a vocabulary, held-out records, or a file that is not complete.
    """
    return _is_about_records(path) or os.path.basename(path).startswith(HELD_OUT_PREFIX)


def is_text(path: str) -> bool:
    """Returns whether a file may be a user's text: not records, nor what lies beside them.

    What a killed command has left of its output is not text either. The names of held-out
    records do not count, since a text may be called `heldout.txt`, too.
    """
    name = os.path.basename(path)
    return not (RECORDS in name or name.endswith(disk_files.ENDING) or _is_about_records(path))


def _is_about_records(path):
    name = os.path.basename(path)
    is_counts = name.startswith(COUNTS_PREFIX) and name.endswith(COUNTS_SUFFIX)
    is_unfinished = name.startswith(_UNFINISHED_PREFIX) and name.endswith(".part")
    is_vocabulary = _VOCABULARY.fullmatch(name) is not None
    return is_manifest(path) or is_counts or is_unfinished or is_vocabulary
