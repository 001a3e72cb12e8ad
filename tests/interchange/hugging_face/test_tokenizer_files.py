"""Settings of Hugging Face's tokenizers: settings of BERT's tokenizer, and others."""

import json
import pathlib
import re

import fixtures
import pytest

from bert_estimator.interchange import open_source
from bert_estimator.tokenization import load_vocab, train_sentencepiece

FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
BACKEND = {"tokenizer_class": "TokenizersBackend"}
OTHER = "text would be cut into other tokens than the model knows"


def model(tmp_path, config=None, **settings):
    """Copies a model, and writes settings into its config.json and its tokenizer_config.json."""
    folder = fixtures.changed(tmp_path, "hf_encoder", **(config or {}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def refused(folder, message):
    return pytest.raises(ValueError, match="^" + re.escape(f"{folder}/{message}"))


CLASSES = (
    "Allowed are BertTokenizer, BertTokenizerFast, ElectraTokenizer, ElectraTokenizerFast, "
    "DistilBertTokenizer, DistilBertTokenizerFast, AlbertTokenizer, AlbertTokenizerFast; and "
    "PreTrainedTokenizerFast and TokenizersBackend if there is a tokenizer.json. If the model's "
    "text was cut by one of these, write it there"
)


@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_other_classes_are_refused(tmp_path, file, name):
    values = {"tokenizer_class": name}
    is_config = file == "config.json"
    folder = model(tmp_path, values) if is_config else model(tmp_path, **values)
    message = f'{file}: tokenizer_class="{name}" is not supported: {OTHER}. {CLASSES}'
    with refused(folder, message):
        open_source(str(folder))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"word_tokenizer_type": "mecab"}, 'word_tokenizer_type="mecab" is not supported: OTHER. '),
        ({"subword_tokenizer_type": "character"}, 'subword_tokenizer_type="character" is not '),
        (
            {"do_basic_tokenize": False},
            "do_basic_tokenize=false is not supported: OTHER. Allowed is true. To use it all the "
            "same, take do_basic_tokenize out of the file",
        ),
        (
            {"tokenize_chinese_chars": False},
            "tokenize_chinese_chars=false is not supported: OTHER. Allowed is true. To use it all "
            "the same, take tokenize_chinese_chars out of the file",
        ),
        (
            {"never_split": ["[CLS]", "<e>"]},
            'never_split=["<e>"] is not supported: OTHER. Allowed are [PAD], [UNK], [CLS], [SEP], '
            "[MASK]. To use it all the same, take never_split out of the file",
        ),
        (
            {"truncation_side": "left"},
            'truncation_side="left" is not supported: long texts would lose their end '
            'instead of their beginning. Allowed is "right". To use it all the same, take '
            "truncation_side out of the file",
        ),
        (
            {"padding_side": "left"},
            'padding_side="left" is not supported: tokens would have other position ids: this '
            'project pads after the text. Allowed is "right". To use it all the same, take '
            "padding_side out of the file",
        ),
    ],
)
def test_settings_that_cut_text_otherwise_are_refused(tmp_path, settings, message):
    folder = model(tmp_path, **settings)
    with refused(folder, f"tokenizer_config.json: {message.replace('OTHER', OTHER)}"):
        open_source(str(folder))


def test_settings_of_bert_are_not_refused(tmp_path):
    folder = model(
        tmp_path,
        {"tokenizer_class": "BertJapaneseTokenizer"},  # tokenizer_config.json counts
        tokenizer_class="BertTokenizer",
        do_basic_tokenize=True,
        word_tokenizer_type="basic",
        subword_tokenizer_type="wordpiece",
        never_split=["[UNK]"],
        truncation_side="right",
        padding_side="right",
    )
    assert open_source(str(folder)).do_lower_case is None


@pytest.mark.parametrize(
    ("model_part", "message"),
    [
        (
            {"vocab": {"[PAD]": 0, "[UNK]": 1, "[SEP]": 2, "[CLS]": 3}},
            'its vocabulary differs from vocab.txt beside it: the token of the id 2 is "[SEP]" '
            'here, and "[CLS]" in vocab.txt. Remove the file that the model was not trained with',
        ),
        (
            {"vocab": {"[PAD]": 0, "[UNK]": 1}},
            "its vocabulary differs from vocab.txt beside it: the token of the id 2 is missing he"
            're, and "[CLS]" in vocab.txt. Remove',
        ),
        (
            {"type": "Unigram", "vocab": []},
            'its model is "Unigram", but vocab.txt beside it is WordPiece. Remove the file that',
        ),
    ],
)
def test_two_vocabularies_are_refused(tmp_path, model_part, message):
    folder = fixtures.changed(tmp_path, "hf_encoder")
    fixtures.with_tokenizer_json(folder, model=model_part)
    with refused(folder, f"tokenizer.json: {message}"):
        open_source(str(folder))


@pytest.mark.parametrize("name", ["\u2028", ""])
def test_a_token_that_is_a_line_separator(tmp_path, name):
    # BERT-Base, Chinese, has it. Its name is "" where lines of vocab.txt are stripped.
    folder = fixtures.changed(tmp_path, "hf_encoder")
    tokens = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    tokens[-1] = "\u2028"
    content = "\n".join([*tokens, ""]).encode()
    (folder / "vocab.txt").write_bytes(content)
    ids = {token: number for number, token in enumerate([*tokens[:-1], name])}
    fixtures.with_tokenizer_json(folder, model={"vocab": ids})
    assert list(load_vocab(open_source(str(folder)).vocab_file)) == tokens
    if name:
        (folder / "vocab.txt").unlink()
        assert pathlib.Path(open_source(str(folder)).vocab_file).read_bytes() == content


def test_a_sentencepiece_model_beside_a_wordpiece_vocabulary_is_refused(tmp_path):
    folder = fixtures.changed(tmp_path, "hf_albert")
    fixtures.with_tokenizer_json(folder)
    (folder / "vocab.txt").unlink()
    pieces = str(folder / "spiece.model")
    train_sentencepiece(["some words of few letters"] * 9, pieces, vocab_size=17)
    message = 'its model is "WordPiece", but spiece.model beside it is SentencePiece. Remove the'
    with refused(folder, f"tokenizer.json: {message}"):
        open_source(str(folder))


@pytest.mark.parametrize(
    ("settings", "normalizer", "expected"),
    [
        ({}, {"strip_accents": None}, (True, None)),
        ({}, {"strip_accents": True}, (True, None)),
        ({}, {"strip_accents": False}, "lacks it, which means true. The two must agree. Write t"),
        ({"strip_accents": False}, {"strip_accents": False}, (True, False)),
        # BertTokenizer's own setting counts.
        ({"strip_accents": False}, {"strip_accents": None}, (True, False)),
        (FAST, {"strip_accents": False}, (True, False)),
        (FAST, {"strip_accents": True}, (True, None)),
        ({**BACKEND, "strip_accents": True}, {"strip_accents": False}, "says true. The two must"),
        ({}, {"lowercase": True}, (True, None)),
        ({}, {"lowercase": False}, "lacks it, which means true. The two must agree. Write there h"),
        ({"do_lower_case": False}, {"lowercase": False}, (False, None)),
        # transformers' BertTokenizer takes it from tokenizer_config.json.
        ({"do_lower_case": False}, {"lowercase": True}, (False, None)),
        ({"do_lower_case": True}, {"lowercase": False}, (True, None)),
        (FAST, {"lowercase": False}, (False, None)),
        (FAST, {"lowercase": True}, (True, None)),
        ({**BACKEND, "do_lower_case": True}, {"lowercase": False}, "says true. The two must"),
    ],
)
def test_the_casing_that_two_files_tell(tmp_path, settings, normalizer, expected):
    folder = model(tmp_path, **settings)
    fixtures.with_tokenizer_json(folder, normalizer=normalizer)
    if isinstance(expected, tuple):
        assert open_source(str(folder)).casing == expected
        return
    (name,) = normalizer
    other = {"lowercase": "do_lower_case"}.get(name, name)
    start = f"tokenizer.json: normalizer: {name}=false, but {other} of tokenizer_config.json "
    with refused(folder, start + expected):
        open_source(str(folder))
