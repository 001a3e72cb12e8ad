"""Hugging Face's files of a tokenizer: vocab.txt, tokenizer.json and tokenizer_config.json."""

import itertools
import os
import shutil

from bert_estimator.interchange import network_variables
from bert_estimator.interchange.hugging_face import special_tokens, tokenizer_json
from bert_estimator.interchange.hugging_face.config_json import CONFIG, write_json
from bert_estimator.interchange.source import ALBERT, Source
from bert_estimator.storage import staging
from bert_estimator.system import json_files
from bert_estimator.tokenization import (
    SPECIAL_TOKENS,
    Casing,
    SentencePieceTokenizer,
    Tokenizer,
    load_vocab,
    reopen_tokenizer,
)

VOCABULARY, SENTENCE_PIECE = "vocab.txt", "spiece.model"

# Classes of transformers' tokenizers that cut text as google-research/bert or google-research/
# albert does, and the classes that do what tokenizer.json says.
_CLASSES = tuple(
    f"{name}Tokenizer{end}"
    for name in ("Bert", "Electra", "DistilBert", "Albert")
    for end in ("", "Fast")
)
_ANY_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
# Settings of tokenizer_config.json, and what they must be if they are there.
_FIXED = {
    "tokenize_chinese_chars": True,
    "do_basic_tokenize": True,
    "do_word_tokenize": True,
    "do_subword_tokenize": True,
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
    "truncation_side": "right",
    "padding_side": "right",
    # Of SentencePiece.
    "remove_space": True,
}
_OTHER_TOKENS = "text would be cut into other tokens than the model knows"
# Settings of tokenizer.json and of tokenizer_config.json: two names, and what to write there.
_CASED = "lowercase", "do_lower_case", "how the model's text was cased"
_STRIPPED = "strip_accents", "strip_accents", "whether the model's text lost its accents"
# What another setting would change, if not the tokens.
_REASONS = {
    "truncation_side": tokenizer_json.OTHER_END,
    "padding_side": tokenizer_json.OTHER_POSITIONS,
}


def find_vocabulary(folder: str) -> str | None:
    """Returns the path of a directory's vocab.txt or spiece.model, or of a vocab.txt made from its
    tokenizer.json; None if there is no vocabulary, or tokenizer.json is not WordPiece."""
    paths = [os.path.join(folder, name) for name in (VOCABULARY, SENTENCE_PIECE)]
    vocab_file = next(filter(os.path.exists, paths), None)
    path = os.path.join(folder, tokenizer_json.FILE)
    whole = tokenizer_json.read(folder)
    if vocab_file is not None:
        tokens = _tokens_of(vocab_file)
        special_tokens.check(folder, vocab_file, tokens)
        if whole is not None:
            _check_same(whole, path, vocab_file, tokens)
        return vocab_file
    if whole is None or not tokenizer_json.is_wordpiece(whole):
        special_tokens.check(folder, None, None)
        return None
    # transformers 5 writes tokenizer.json alone.
    tokens = tokenizer_json.tokens(whole, path)
    special_tokens.check(folder, path, tokens)
    vocab_file = os.path.join(staging.temporary_folder(), VOCABULARY)
    with open(vocab_file, "w", encoding="utf-8", newline="\n") as writer:
        writer.writelines(f"{token}\n" for token in tokens)
    return vocab_file


def _tokens_of(vocab_file):
    """Returns the tokens of a vocabulary in the order of their ids."""
    if vocab_file.endswith(".model"):
        pieces = SentencePieceTokenizer(vocab_file)
        return pieces.convert_ids_to_tokens(range(pieces.vocab_size))
    return list(load_vocab(vocab_file))


def _check_same(whole, path, vocab_file, tokens):
    """Raises ValueError if a tokenizer.json has another vocabulary than the file beside it."""
    remedy = "Remove the file that the model was not trained with"
    is_pieces = vocab_file.endswith(".model")
    if tokenizer_json.is_wordpiece(whole) == is_pieces:
        kind = json_files.shown(whole["model"].get("type"))
        raise ValueError(
            f"{path}: its model is {kind}, but {os.path.basename(vocab_file)} beside it is "
            f"{'SentencePiece' if is_pieces else 'WordPiece'}. {remedy}"
        )
    if is_pieces:
        return
    # Lines of vocab.txt are read without the spaces around them. A token that is only a space, such
    # as U+2028, may be written as "" by others; no text has it.
    theirs = [token.strip() for token in tokenizer_json.tokens(whole, path)]
    ours = [token.strip() for token in tokens]
    for number, (there, here) in enumerate(itertools.zip_longest(theirs, ours)):
        if there != here:
            there, here = (
                "missing" if token is None else json_files.shown(token) for token in (there, here)
            )
            raise ValueError(
                f"{path}: its vocabulary differs from {VOCABULARY} beside it: the token of the id "
                f"{number} is {there} here, and {here} in {VOCABULARY}. {remedy}"
            )


def read_settings(folder: str) -> tuple[Casing | None, int | None]:
    """Returns (casing, model_max_length) of the directory's tokenizer_config.json; None for what it
    does not say."""
    path = os.path.join(folder, special_tokens.TOKENIZER)
    values = json_files.read(path) if os.path.lexists(path) else {}
    whole = tokenizer_json.read(folder)
    name = _check_class(folder, values, path, whole is not None)
    _check_fixed(values, path)
    lower, strips, keeps = (
        setting if isinstance(setting := values.get(key), bool) else None
        for key in ("do_lower_case", "strip_accents", "keep_accents")
    )
    # Without do_lower_case and strip_accents there, tokenizer.json's count.
    if whole is not None and tokenizer_json.is_wordpiece(whole):
        is_any, in_whole = name in _ANY_CLASSES, tokenizer_json.lower_cases(whole)
        lower = _agreed(_CASED, folder, in_whole, lower, True, is_any) is not False
        tokenizer_json.check(whole, os.path.join(folder, tokenizer_json.FILE), lower)
        in_whole = tokenizer_json.strips_accents(whole)
        strips = _agreed(_STRIPPED, folder, in_whole, strips, lower, is_any)
    if os.path.exists(os.path.join(folder, SENTENCE_PIECE)):
        strips = False if keeps else None
    elif strips is not None:
        lower = lower is not False  # BertTokenizer lower-cases by default
        strips = None if strips == lower else strips
    length = values.get("model_max_length")
    return (
        None if lower is None and strips is None else Casing(lower is not False, strips),
        # transformers writes a number beyond all lengths for "not known".
        length if type(length) is int and 0 < length < 1 << 31 else None,
    )


def _check_fixed(values, path):
    """Raises ValueError if a tokenizer_config.json has a setting that is not supported."""
    for name, allowed in _FIXED.items():
        setting = values.get(name)
        if setting is not None and setting != allowed:
            raise ValueError(
                f"{path}: {name}={json_files.shown(setting)} is not supported: "
                f"{_REASONS.get(name, _OTHER_TOKENS)}. Allowed is {json_files.shown(allowed)}. "
                f"To use it all the same, take {name} out of the file"
            )
    never = json_files.field(values, "never_split", list, path, default=[])
    words = [word for word in never if word not in SPECIAL_TOKENS]
    if words:
        raise ValueError(
            f"{path}: never_split={json_files.shown(words)} is not supported: {_OTHER_TOKENS}. "
            f"Allowed are {', '.join(SPECIAL_TOKENS)}. To use it all the same, take never_split "
            "out of the file"
        )


def _check_class(folder, values, path, has_whole):
    """Returns the class of a directory's tokenizer, or None if its files do not name one."""
    name = json_files.field(values, "tokenizer_class", str, path, default=None)
    other = os.path.join(folder, CONFIG)
    # config.json may name the class, too.
    if name is None and os.path.exists(other):
        path = other
        name = json_files.field(json_files.read(path), "tokenizer_class", str, path, default=None)
    # A general class does what tokenizer.json says, which is checked; without the file, nobody
    # knows what it does.
    allowed = (*_CLASSES, *_ANY_CLASSES) if has_whole else _CLASSES
    if name is not None and name not in allowed:
        raise ValueError(
            f"{path}: tokenizer_class={json_files.shown(name)} is not supported: {_OTHER_TOKENS}. "
            f"Allowed are {', '.join(_CLASSES)}; and {' and '.join(_ANY_CLASSES)} if there is a "
            f"{tokenizer_json.FILE}. If the model's text was cut by one of these, write it there"
        )
    return name


def _agreed(setting, folder, in_whole, recorded, usual, is_any):
    """Returns a setting, or None for the usual one, from tokenizer.json (`in_whole`) and
    tokenizer_config.json (`recorded`); raises ValueError if they differ."""
    # transformers' BertTokenizer takes it from tokenizer_config.json, and does what is usual if
    # that does not say it. Its general classes (`is_any`) take it from tokenizer.json.
    if in_whole is None or in_whole == (usual if recorded is None else recorded):
        return recorded
    if is_any == (recorded is None):
        return in_whole if is_any else recorded
    said = f"says {str(recorded).lower()}"
    if recorded is None:
        said = f"lacks it, which means {str(usual).lower()}"
    key, name, advice = setting
    raise ValueError(
        f"{os.path.join(folder, tokenizer_json.FILE)}: normalizer: {key}={str(in_whole).lower()}, "
        f"but {name} of {special_tokens.TOKENIZER} {said}. The two must agree. Write there {advice}"
    )


def check_vocabulary(source: Source) -> None:
    """Raises ValueError if the vocabulary is SentencePiece, and the network is not an ALBERT."""
    is_pieces = source.vocab_file.endswith(".model")
    if is_pieces and network_variables.architecture_of(source) != ALBERT:
        raise ValueError(
            f"{source.vocab_file}: is a SentencePiece model, and transformers would cut text into "
            "other pieces: none of its tokenizers splits a comma from the digit before it, as "
            "ALBERT does. BERT converts with a WordPiece vocabulary (vocab.txt) only; --to=tf1 "
            "keeps the model beside the weights"
        )


def write(folder: str, source: Source, tokenizer: Tokenizer) -> None:
    """Writes the vocabulary, which `check_vocabulary` allows, and how text meets it; `tokenizer` is
    cased as the vocabulary tells."""
    is_pieces = source.vocab_file.endswith(".model")
    # If nothing says how text was cased, the vocabulary's capitals and accents do.
    casing = source.casing or tokenizer.casing
    tokenizer = reopen_tokenizer(source.vocab_file, casing)
    # An ALBERT is written as it is published, with its SentencePiece model.
    name = SENTENCE_PIECE if is_pieces else VOCABULARY
    # By vocab.txt alone, transformers would take whole words for the beginnings of others, too.
    if is_pieces or not tokenizer.wordpiece_tokenizer.whole_words:
        shutil.copyfile(source.vocab_file, os.path.join(folder, name))
    longest = source.config.max_position_embeddings
    values = {
        "tokenizer_class": "AlbertTokenizer" if is_pieces else _ANY_CLASSES[0],
        "do_lower_case": casing.do_lower_case,
        **_settings(casing, is_pieces),
        # Without it, transformers cuts no text, and fails at texts with more tokens than positions.
        "model_max_length": min(source.max_seq_length or longest, longest),
        **special_tokens.names(is_pieces),
    }
    write_json(os.path.join(folder, special_tokens.TOKENIZER), values)
    if not is_pieces:
        whole = tokenizer_json.written(tokenizer)
        write_json(os.path.join(folder, tokenizer_json.FILE), whole)


def _settings(casing, is_pieces):
    """Returns what else a tokenizer_config.json says, but for the lengths and special tokens."""
    if is_pieces:
        return {"keep_accents": casing.strip_accents is False}
    # Unlike BertTokenizer, the class that does what tokenizer.json says does not know of segments.
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return {"strip_accents": casing.strip_accents, "model_input_names": inputs}
