"""The names of the special tokens in Hugging Face's files, and tokens that the files add."""

import json
import re

import fixtures
import pytest

from bert_estimator.interchange import open_source
from bert_estimator.tokenization import SPECIAL_TOKENS, train_sentencepiece


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize(
    ("key", "usual"),
    [
        ("pad_token", "[PAD]"),
        ("unk_token", "[UNK]"),
        ("cls_token", "[CLS]"),
        ("sep_token", "[SEP]"),
        ("mask_token", "[MASK]"),
    ],
)
def test_special_tokens_under_other_names_are_refused(tmp_path, file, key, usual):
    folder = fixtures.changed(tmp_path, "hf_encoder")
    (folder / file).write_text(json.dumps({key: {"content": usual, "lstrip": False}}))
    assert open_source(str(folder)).vocab_file == str(folder / "vocab.txt")
    for given, shown in (("word1", '"word1"'), ({"content": "word1"}, '{"content": "word1"}')):
        (folder / file).write_text(json.dumps({key: given}))
        message = (
            f"{folder}/{file}: {key}={shown} is not supported: the model would get {usual} "
            f"instead. If the model was trained with {usual}, write that in the file"
        )
        with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
            open_source(str(folder))


SPECIALS = [{"content": token, "id": i} for i, token in enumerate(SPECIAL_TOKENS)]
DECODER = {str(i): {"content": token, "special": True} for i, token in enumerate(SPECIAL_TOKENS)}


def model(tmp_path, files, whole=None):
    folder = fixtures.changed(tmp_path, "hf_encoder")
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    if whole is not None:
        fixtures.with_tokenizer_json(folder, added_tokens=whole)
    return folder


@pytest.mark.parametrize(
    ("files", "whole", "place", "token"),
    [
        ({"added_tokens.json": {"[ENT]": 40}}, None, "added_tokens.json", '"[ENT]", which VOCAB l'),
        (
            {"tokenizer_config.json": {"added_tokens_decoder": {"40": {"content": "a\nb"}}}},
            None,
            "tokenizer_config.json: added_tokens_decoder",
            r'"a\nb", which VOCAB lacks, is not',
        ),
        (
            {"tokenizer_config.json": {"additional_special_tokens": ["[CLS]", "<e>"]}},
            None,
            "tokenizer_config.json: additional_special_tokens",
            '"<e>", which',
        ),
        (
            {"tokenizer_config.json": {"extra_special_tokens": {"e": {"content": "<e>"}}}},
            None,
            "tokenizer_config.json: extra_special_tokens",
            '"<e>", which',
        ),
        (
            {"special_tokens_map.json": {"additional_special_tokens": [{"content": "<e>"}]}},
            None,
            "special_tokens_map.json: additional_special_tokens",
            '"<e>", which',
        ),
        ({}, [*SPECIALS, {"content": "w", "id": 40}], "tokenizer.json: added_tokens", '"w", which'),
    ],
)
def test_added_tokens_are_refused(tmp_path, files, whole, place, token):
    folder = model(tmp_path, files, whole)
    token = token.replace("VOCAB", f"{folder}/vocab.txt")
    with pytest.raises(ValueError, match=re.escape(f"{folder}/{place}: the added token {token}")):
        open_source(str(folder))


def test_the_message_says_what_is_allowed_and_what_to_do(tmp_path):
    folder = model(tmp_path, {"added_tokens.json": {"word1": 6}})
    message = (
        '"word1" is not supported: transformers takes it out of a text as a whole, but here it '
        "would be cut into pieces. Allowed are [PAD], [UNK], [CLS], [SEP], [MASK]. To use the "
        "model for texts without this token all the same, take it out of the file"
    )
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        open_source(str(folder))


def test_a_vocabulary_of_tokenizer_json_alone_has_no_added_tokens(tmp_path):
    """As transformers 5 saves it; the tokens themselves may be in `added_tokens` only."""
    folder = model(tmp_path, {}, [*SPECIALS, {"content": "[NEW]", "id": 40}])
    (folder / "vocab.txt").unlink()
    with pytest.raises(ValueError, match=r'json: added_tokens: the added token "\[NEW\]" is not'):
        open_source(str(folder))


@pytest.mark.parametrize(
    ("files", "place", "message"),
    [
        (
            {"added_tokens.json": {"[MASK]": 40}},
            "added_tokens.json",
            "[MASK] has the id 40, but in VOCAB no token has it. The two must agree. Correct",
        ),
        (
            {"tokenizer_config.json": {"added_tokens_decoder": {"3": {"content": "[CLS]"}}}},
            "tokenizer_config.json: added_tokens_decoder",
            '[CLS] has the id 3, but in VOCAB this is the id of "[SEP]". The two must agree. Corr',
        ),
        (
            {"tokenizer_config.json": {"added_tokens_decoder": {"x": {"content": "[CLS]"}}}},
            "tokenizer_config.json: added_tokens_decoder",
            'the key "x" must be a token\'s id',
        ),
        ({"added_tokens.json": {"[MASK]": "4"}}, "added_tokens.json", "[MASK]: must be a whole n"),
    ],
)
def test_special_tokens_with_other_ids_are_refused(tmp_path, files, place, message):
    folder = model(tmp_path, files)
    message = message.replace("VOCAB", f"{folder}/vocab.txt")
    with pytest.raises(ValueError, match="^" + re.escape(f"{folder}/{place}: {message}")):
        open_source(str(folder))


def test_special_tokens_with_their_ids_are_not_refused(tmp_path):
    files = {
        "added_tokens.json": {"[MASK]": 4},
        "tokenizer_config.json": {
            "added_tokens_decoder": DECODER,
            "additional_special_tokens": [],
            "extra_special_tokens": {},
        },
        "special_tokens_map.json": {"additional_special_tokens": None, "cls_token": "[CLS]"},
    }
    folder = model(tmp_path, files, SPECIALS)
    assert open_source(str(folder)).vocab_file == str(folder / "vocab.txt")


def test_the_special_tokens_of_an_albert_are_its_pieces(tmp_path):
    folder = fixtures.changed(tmp_path, "hf_albert")
    (folder / "vocab.txt").unlink()
    pieces = folder / "spiece.model"
    train_sentencepiece(["some words of few letters"] * 9, str(pieces), vocab_size=17)
    ids = {"<pad>": 0, "<unk>": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    (folder / "added_tokens.json").write_text(json.dumps(ids))
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "[CLS]", "mask_token": None}
    (folder / "special_tokens_map.json").write_text(json.dumps(names))
    assert open_source(str(folder)).vocab_file == str(pieces)
    (folder / "special_tokens_map.json").write_text('{"unk_token": "[UNK]"}')
    with pytest.raises(
        ValueError, match=r'map.json: unk_token="\[UNK\]" is .*: the model would get <unk> instead'
    ):
        open_source(str(folder))
    (folder / "special_tokens_map.json").unlink()
    (folder / "added_tokens.json").write_text(json.dumps({**ids, "<e>": 17}))
    with pytest.raises(ValueError, match=r'"<e>", which .*spiece.model lacks, is .*, <pad>, <unk>'):
        open_source(str(folder))
