"""Hugging Face's files of a tokenizer: vocab.txt, tokenizer.json and tokenizer_config.json."""

import os
import shutil

from bert_estimator import json_files, storage
from bert_estimator.interchange import architectures
from bert_estimator.interchange.hugging_face_config import write_json
from bert_estimator.interchange.source import Source
from bert_estimator.tokenization import CLS, MASK, PAD, SEP, UNK, Tokenizer

VOCABULARY, SENTENCE_PIECE = "vocab.txt", "spiece.model"
TOKENIZER = "tokenizer_config.json"
_WHOLE_TOKENIZER = "tokenizer.json"


def find_vocabulary(folder: str) -> str | None:
    """Returns the path of the directory's vocab.txt or spiece.model, or of a vocab.txt made from
    its tokenizer.json, which is all that transformers 5 writes; None if the directory has no
    vocabulary, or its tokenizer.json is not WordPiece.

    Raises:
      ValueError: tokenizer.json is damaged.
    """
    for name in (VOCABULARY, SENTENCE_PIECE):
        if os.path.exists(vocab_file := os.path.join(folder, name)):
            return vocab_file
    path = os.path.join(folder, _WHOLE_TOKENIZER)
    if not os.path.exists(path):
        return None
    tokens = _tokens(path)
    if tokens is None:
        return None
    vocab_file = os.path.join(storage.temporary_folder(), VOCABULARY)
    with open(vocab_file, "w", encoding="utf-8", newline="\n") as writer:
        writer.writelines(f"{token}\n" for token in tokens)
    return vocab_file


def _tokens(path):
    """Returns the tokens of a tokenizer.json in the order of their ids; None if its tokenizer is
    not WordPiece."""
    values = json_files.read(path)
    model = json_files.field(values, "model", dict, path)
    if model.get("type") != "WordPiece":
        return None
    ids = dict(json_files.field(model, "vocab", dict, path))
    added = json_files.field(values, "added_tokens", list, path, default=[])
    for token in json_files.items(added, dict, f"{path}: added_tokens"):
        ids[json_files.field(token, "content", str, path)] = token.get("id")
    tokens = {json_files.check(i, int, f"{path}: the id of {t!r}"): t for t, i in ids.items()}
    for number in range(len(ids)):
        if number not in tokens:
            raise ValueError(f"{path}: of its {len(ids)} tokens, none has the id {number}")
        if "\n" in tokens[number]:
            raise ValueError(f"{path}: the token {tokens[number]!r} holds a line end")
    return [tokens[number] for number in range(len(ids))]


def read_settings(folder: str) -> tuple[bool | None, int | None]:
    """Returns (do_lower_case, model_max_length) of the directory's tokenizer_config.json; None for
    a setting that it does not have.

    Raises:
      ValueError: the file is damaged, or asks for a tokenizer that is not google-research/bert's.
    """
    path = os.path.join(folder, TOKENIZER)
    values = json_files.read(path) if os.path.exists(path) else {}
    lower, length = values.get("do_lower_case"), values.get("model_max_length")
    # By default BertTokenizer is google-research/bert's, which strips accents if it lower-cases.
    usual = {"strip_accents": lower is not False, "tokenize_chinese_chars": True}
    for name, value in usual.items():
        given = values.get(name)
        if isinstance(given, bool) and given != value:
            shown = f"{name}={str(given).lower()}"
            raise ValueError(
                f"{path}: {shown} with do_lower_case={str(lower is not False).lower()} is not "
                "supported: text would be cut into other tokens than the model knows. To use it "
                f"all the same, take {name} out of the file"
            )
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
      ValueError: the vocabulary is SentencePiece, and the network is not an ALBERT.
    """
    is_pieces = source.vocab_file.endswith(".model")
    if is_pieces and architectures.of(source) != architectures.ALBERT:
        raise ValueError(
            f"{source.vocab_file}: is a SentencePiece model, and transformers would cut text into "
            "other pieces: none of its tokenizers splits a comma from the digit before it, as "
            "ALBERT does. BERT converts with a WordPiece vocabulary (vocab.txt) only; --to=tf1 "
            "keeps the model beside the weights"
        )
    # An ALBERT is written as it is published, with its SentencePiece model.
    name = SENTENCE_PIECE if is_pieces else VOCABULARY
    shutil.copyfile(source.vocab_file, os.path.join(folder, name))
    # If nothing says how text was cased, the vocabulary's capitals do.
    lower = tokenizer.do_lower_case if source.do_lower_case is None else source.do_lower_case
    longest = source.config.max_position_embeddings
    values = {
        "tokenizer_class": "AlbertTokenizer" if is_pieces else "BertTokenizer",
        "do_lower_case": lower,
        # Without it, transformers cuts no text, and fails at texts with more tokens than positions.
        "model_max_length": min(source.max_seq_length or longest, longest),
        "unk_token": "<unk>" if is_pieces else UNK,
        "sep_token": SEP,
        "pad_token": "<pad>" if is_pieces else PAD,
        "cls_token": CLS,
        "mask_token": MASK,
    }
    write_json(os.path.join(folder, TOKENIZER), values)
