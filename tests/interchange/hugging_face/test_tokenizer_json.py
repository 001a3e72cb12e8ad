"""How a tokenizer.json cuts text: as BERT does, or in another way."""

import re

import fixtures
import pytest

from bert_estimator.interchange import open_source

OTHER = "text would be cut into other tokens than the model knows"


def model(tmp_path, **parts):
    folder = fixtures.changed(tmp_path, "hf_encoder")
    fixtures.with_tokenizer_json(folder, **parts)
    return folder


@pytest.mark.parametrize(
    ("parts", "shown", "allowed"),
    [
        ({"normalizer": None}, "normalizer: type=null", '"BertNormalizer"'),
        ({"normalizer": {"type": "Lowercase"}}, 'normalizer: type="Lowercase"', '"BertNormalizer"'),
        ({"normalizer": {"clean_text": False}}, "normalizer: clean_text=false", "true"),
        (
            {"normalizer": {"handle_chinese_chars": False}},
            "normalizer: handle_chinese_chars=false",
            "true",
        ),
        (
            {"pre_tokenizer": {"type": "WhitespaceSplit"}},
            'pre_tokenizer: type="WhitespaceSplit"',
            '"BertPreTokenizer"',
        ),
        ({"model": {"unk_token": "<unk>"}}, 'model: unk_token="<unk>"', '"[UNK]"'),
        (
            {"model": {"continuing_subword_prefix": "@@"}},
            'model: continuing_subword_prefix="@@"',
            '"##"',
        ),
        (
            {"model": {"max_input_chars_per_word": 50}},
            "model: max_input_chars_per_word=50",
            "100 or 200. To use it all the same, write this there",
        ),
    ],
)
def test_settings_that_cut_text_otherwise_are_refused(tmp_path, parts, shown, allowed):
    folder = model(tmp_path, **parts)
    message = (
        f"{folder}/tokenizer.json: {shown} is not supported with do_lower_case=true: {OTHER}. "
        f"Allowed is {allowed}"
    )
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        open_source(str(folder))


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("truncation", "long texts would lose their end instead of their beginning"),
        ("padding", "tokens would have other position ids: this project pads after the text"),
    ],
)
def test_the_other_side_is_refused(tmp_path, part, reason):
    folder = model(tmp_path, **{part: {"direction": "Left", "max_length": 8}})
    message = f'{part}: direction="Left" is not supported: {reason}. Allowed is "Right"'
    with pytest.raises(ValueError, match=f"^{folder}/tokenizer.json: {message}"):
        open_source(str(folder))


SINGLE, PAIR = (fixtures.TOKENIZER_JSON["post_processor"][key] for key in ("single", "pair"))


@pytest.mark.parametrize(
    "processor",
    [
        None,
        {"type": "RobertaProcessing"},
        {"type": "TemplateProcessing", "single": SINGLE[1:2], "pair": PAIR},
        {"type": "TemplateProcessing", "single": SINGLE, "pair": [*SINGLE, *SINGLE[1:]]},
        {"type": "TemplateProcessing", "single": 3, "pair": [3]},
        {"type": "BertProcessing", "cls": ["<s>", 0], "sep": ["[SEP]", 3]},
    ],
)
def test_other_special_tokens_around_texts_are_refused(tmp_path, processor):
    folder = model(tmp_path, post_processor=processor)
    message = (
        "post_processor: makes of a text, or of a pair of texts, something else than [CLS] A [SEP] "
        "and [CLS] A [SEP] B [SEP] with the segment 1 from B on, which alone is allowed. To use it "
        "all the same, write a TemplateProcessing for this there"
    )
    with pytest.raises(ValueError, match=re.escape(f"{folder}/tokenizer.json: {message}") + "$"):
        open_source(str(folder))


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"normalizer": {"strip_accents": True}},
        {"truncation": None},
        {"truncation": {"direction": "Right", "max_length": 8}},
        {"model": {"max_input_chars_per_word": 200}},
        {"post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]}},
    ],
)
def test_what_bert_does_is_not_refused(tmp_path, parts):
    folder = model(tmp_path, **parts)
    source = open_source(str(folder))
    assert (source.do_lower_case, source.vocab_file) == (True, str(folder / "vocab.txt"))
