"""The names of the special tokens in Hugging Face's files."""

import json
import re

import fixtures
import pytest

from bert_estimator.interchange import open_source


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


def test_the_name_of_a_special_token_must_be_a_string(tmp_path):
    folder = fixtures.changed(tmp_path, "hf_encoder")
    (folder / "special_tokens_map.json").write_text('{"cls_token": 3}')
    with pytest.raises(ValueError, match=r"map.json: cls_token: must be a string, not 3$"):
        open_source(str(folder))
