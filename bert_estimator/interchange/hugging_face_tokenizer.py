"""Hugging Face's files of a tokenizer: vocab.txt, tokenizer.json and tokenizer_config.json."""

import json
import os
import shutil

from bert_estimator.interchange import archive
from bert_estimator.interchange.hugging_face_config import read_json, write_json
from bert_estimator.interchange.source import Source
from bert_estimator.tokenization import CLS, MASK, PAD, SEP, UNK, Tokenizer

VOCABULARY, TOKENIZER = "vocab.txt", "tokenizer_config.json"
_WHOLE_TOKENIZER = "tokenizer.json"


def find_vocabulary(folder: str) -> str | None:
    """Returns the path of the directory's vocab.txt, or of a vocab.txt made from its
    tokenizer.json, which is all that transformers 5 writes; None if the directory has no
    vocabulary, or its tokenizer is not WordPiece.

    Raises:
      ValueError: tokenizer.json is damaged.
    """
    vocab_file, path = (os.path.join(folder, name) for name in (VOCABULARY, _WHOLE_TOKENIZER))
    if os.path.exists(vocab_file):
        return vocab_file
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as reader:
            values = json.load(reader)
        if values["model"]["type"] != "WordPiece":
            return None
        added = {token["content"]: token["id"] for token in values["added_tokens"]}
        tokens = {number: token for token, number in {**values["model"]["vocab"], **added}.items()}
        lines = [tokens[number] + "\n" for number in range(len(tokens))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: cannot be read as a tokenizer: {error!r}") from None
    vocab_file = os.path.join(archive.temporary_folder(), VOCABULARY)
    with open(vocab_file, "w", encoding="utf-8") as writer:
        writer.writelines(lines)
    return vocab_file


def read_settings(folder: str) -> tuple[bool | None, int | None]:
    """Returns (do_lower_case, model_max_length) of the directory's tokenizer_config.json; None for
    a setting that it does not have."""
    path = os.path.join(folder, TOKENIZER)
    values = read_json(path) if os.path.exists(path) else {}
    values = values if isinstance(values, dict) else {}
    lower, length = values.get("do_lower_case"), values.get("model_max_length")
    return (
        lower if isinstance(lower, bool) else None,
        # transformers writes a number beyond all lengths for "not known".
        length if type(length) is int and 0 < length < 1 << 31 else None,
    )


def write(folder: str, source: Source, tokenizer: Tokenizer) -> None:
    """Writes the vocabulary, and how text meets it.

    Args:
      folder: the directory.
      source: `Source`, with its vocabulary and its configuration.
      tokenizer: the tokenizer of that vocabulary, cased as the vocabulary tells.

    Raises:
      ValueError: the vocabulary is not WordPiece.
    """
    if source.vocab_file.endswith(".model"):
        raise ValueError(
            f"{source.vocab_file}: is a SentencePiece model, and transformers would cut text into "
            "other pieces: none of its tokenizers splits a comma from the digit before it, as "
            "ALBERT does. BERT converts with a WordPiece vocabulary (vocab.txt) only; --to=tf1 "
            "keeps the model beside the weights"
        )
    shutil.copyfile(source.vocab_file, os.path.join(folder, VOCABULARY))
    # If nothing says how text was cased, the vocabulary's capitals do.
    lower = tokenizer.do_lower_case if source.do_lower_case is None else source.do_lower_case
    longest = source.config.max_position_embeddings
    values = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lower,
        # Without it, transformers cuts no text, and fails at texts with more tokens than positions.
        "model_max_length": min(source.max_seq_length or longest, longest),
        "unk_token": UNK,
        "sep_token": SEP,
        "pad_token": PAD,
        "cls_token": CLS,
        "mask_token": MASK,
    }
    write_json(os.path.join(folder, TOKENIZER), values)
