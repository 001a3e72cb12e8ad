"""A written tokenizer.json against `FullTokenizer`: by `re`, and in slow tests by the package."""
# ruff: noqa: RUF001 - the strings are ambiguous on purpose

import dataclasses
import itertools
import json
import pathlib
import re
import unicodedata

import fixtures
import numpy as np
import pytest

from bert_estimator.interchange import open_source
from bert_estimator.interchange.hugging_face import tokenizer_json
from bert_estimator.tokenization import (
    SPECIAL_TOKENS,
    BasicTokenizer,
    Casing,
    FullTokenizer,
    write_vocab,
)

ROOT = pathlib.Path(__file__).parent.parents[2]
GOLDENS = ROOT / "tests" / "tokenization" / "goldens" / "tokens.json"
NASTY = json.loads(GOLDENS.read_text(encoding="ascii"))["strings"]
CASINGS = [Casing(*values) for values in itertools.product((True, False), repeat=2)]

# Class of characters -> (a character x, the words of "axb" uncased, and cased).
CHARACTERS = {
    "letter": ("z", ["azb"], ["azb"]),
    "capital": ("Z", ["azb"], ["aZb"]),
    "accent of its own": ("\u0301", ["ab"], ["a\u0301b"]),
    "letter with an accent": ("\u00dc", ["aub"], ["a\u00dcb"]),
    "letters of two accents": ("\u1ec6", ["aeb"], ["a\u1ec6b"]),
    "letter that becomes two": ("\u0130", ["aib"], ["a\u0130b"]),
    "sharp s": ("\u1e9e", ["a\u00dfb"], ["a\u1e9eb"]),
    "small sigma": ("\u03c3", ["a\u03c3b"], ["a\u03c3b"]),
    "syllable": ("\ud55c", ["a\u1112\u1161\u11abb"], ["a\ud55cb"]),
    "sound mark": ("\u304c", ["a\u304bb"], ["a\u304cb"]),
    "vowel sign": ("\u0941", ["ab"], ["a\u0941b"]),
    "vowel sign that takes space": ("\u093f", ["a\u093fb"], ["a\u093fb"]),
    "enclosing mark": ("\u20dd", ["a\u20ddb"], ["a\u20ddb"]),
    "mark of a new Unicode": ("\u1ac0", ["ab"], ["a\u1ac0b"]),
    "letter that is decomposed in a new Unicode": (
        "\U00011938",
        ["a\U00011935\U00011930b"],
        ["a\U00011938b"],
    ),
    "ideograph": ("\u4e2d", ["a", "\u4e2d", "b"], ["a", "\u4e2d", "b"]),
    "compatibility ideograph": ("\uf900", ["a", "\u8c48", "b"], ["a", "\uf900", "b"]),
    "first ideograph of extension E": ("\U0002b820", ["a", "\U0002b820", "b"], None),
    "ASCII sign": ("$", ["a", "$", "b"], None),
    "punctuation": ("\u3002", ["a", "\u3002", "b"], None),
    "sign that is decomposed": ("\u037e", ["a", ";", "b"], ["a", "\u037e", "b"]),
    "punctuation of a new Unicode": ("\u2e4f", ["a", "\u2e4f", "b"], None),
    "symbol": ("\u20ac", ["a\u20acb"], None),
    "space": ("\u00a0", ["a", "b"], None),
    "tab": ("\t", ["a", "b"], None),
    "line separator": ("\u2028", ["a", "b"], None),
    "vertical tab": ("\x0b", ["ab"], None),
    "next line": ("\x85", ["ab"], None),
    "nothing": ("\x00", ["ab"], None),
    "replacement character": ("\ufffd", ["ab"], None),
    "soft hyphen": ("\u00ad", ["ab"], None),
    "format character of a new Unicode": ("\u08e2", ["ab"], None),
    "private use": ("\uf0b7", ["a\uf0b7b"], None),
    "unassigned": ("\U000e0fff", ["a\U000e0fffb"], None),
}
SIGMAS = {
    "ΔΣ": "δς",
    "Σ": "σ",
    "ΔΣΔ": "δσδ",
    "ΔΣΣ": "δσς",
    "ΔΣ\u0301\u0301": "δς",
    "Δ\u0301\u00b7Σ": "δ\u00b7ς",
    "1Σ": "1σ",
    "ΔΣ中": "δς中",
}
TEXTS = {
    "Latin": "Größe, Maß; naïve cafés — “tiếng Việt” không dấu? ŁÓDŹ İstanbul ½ ﬁn \uf0b7 bullet",
    "Greek": "Ο ΟΔΥΣΣΕΥΣ ΕΦΥΓΕ. ΣΟΦΟΣ; ΆΣΣΟΣ ΣΤΗΣ ΑΘΗΝΑΣ· ΣΣ",
    "Cyrillic": "Ёжик в тумане: й, Й и ў — «Съешь ещё»",
    "Arabic": "هَذَا نَصٌّ، أَهُوَ ۔ نعم؟",
    "Hebrew": "שָׁלוֹם עֲלֵיכֶם׃ מה שלומך?",
    "Devanagari": "हिन्दी में लिखा हुआ। क्या?",
    "Thai": "น้ำกินได้ไหม ที่นี่ ๏",
    "Korean": "한국어 문장입니다. ㅎㅏㄴ \u1112\u1161\u11ab",
    "Japanese": "これは日本語ですが、ガギグゲゴ・ｶﾞ。",
    "Chinese": "中文句子，豈有此理。\U0002b820\U0002a6df!",
    "Bengali": "বাংলা লেখা। কি?",
    "Georgian": "ᲥᲐᲠᲗᲣᲚᲘ ქართული ჻",
}


def written(tmp_path, casing, tokens=()):
    """Returns (tokenizer, tokenizer.json's object) of a vocabulary."""
    path = str(tmp_path / "vocab.txt")
    write_vocab([*SPECIAL_TOKENS, *tokens], path)
    tokenizer = FullTokenizer(path, *casing)
    return tokenizer, tokenizer_json.written(tokenizer)


def in_python(pattern):
    """Returns a pattern of the file as Python's `re` has it."""
    return re.sub(r"\\x\{(\w+)\}", lambda found: f"\\U{int(found[1], 16):08X}", pattern)


def normalized(part, text):
    """Does what a normalizer of the file does."""
    kind = part["type"]
    if kind == "Sequence":
        for inner in part["normalizers"]:
            text = normalized(inner, text)
        return text
    if kind == "Lowercase":  # character by character, as the package does
        return "".join(char.lower() for char in text)
    if kind == "NFD":
        return unicodedata.normalize("NFD", text)
    pattern = in_python(part["pattern"]["Regex"])
    content = part["content"]
    if pattern.startswith("(?<="):  # `re` looks behind for a fixed length only
        pattern, content = pattern.replace("(?<=", "(", 1), rf"\1{content}"
        while re.search(pattern, text):
            text = re.sub(pattern, content, text)
        return text
    return re.sub(pattern, content, text)


def words(values, text):
    """Returns the words into which the parts of a file split a text."""
    parts = [normalized(values["normalizer"], text)]
    for split in values["pre_tokenizer"]["pretokenizers"]:
        pattern = in_python(split["pattern"]["Regex"])
        if split["behavior"] == "Isolated":
            pattern = f"({pattern})"
        parts = [piece for part in parts for piece in re.split(pattern, part) if piece]
    return parts


@pytest.fixture(scope="module", params=CASINGS, ids=str)
def casing(request):
    return request.param


@pytest.mark.parametrize("kind", CHARACTERS)
def test_every_kind_of_character(tmp_path, kind):
    character, uncased, cased = CHARACTERS[kind]
    for casing, expected in ((Casing(True), uncased), (Casing(False), cased or uncased)):
        _, values = written(tmp_path, casing)
        assert BasicTokenizer(*casing).tokenize(f"a{character}b") == expected
        assert words(values, f"a{character}b") == expected


def test_sigmas(tmp_path):
    _, values = written(tmp_path, Casing(True))
    for text, expected in SIGMAS.items():
        found = words(values, text)
        assert "".join(found) == expected, text
        assert BasicTokenizer().tokenize(text) == found


def test_strings_and_texts(tmp_path, casing):
    _, values = written(tmp_path, casing)
    for text in [*NASTY, *TEXTS.values()]:
        assert words(values, text) == BasicTokenizer(*casing).tokenize(text), ascii(text)


def test_what_was_written_is_read(tmp_path, casing):
    """Also if another Python wrote it, whose Unicode has other classes of characters."""
    _, values = written(tmp_path, casing)
    usual = Casing(casing[0], None if casing[0] == casing[1] else casing[1])
    assert tokenizer_json.casing_of(values) == usual
    older = json.loads(json.dumps(values).replace("\\\\x{2E4F}", "\\\\x{2E49}"))
    assert tokenizer_json.casing_of(older) == usual
    values["normalizer"]["normalizers"][1]["content"] = "_"
    assert tokenizer_json.casing_of(values) is None
    assert tokenizer_json.casing_of(fixtures.TOKENIZER_JSON) is None


def test_a_pair_of_files_that_do_not_agree_is_refused(tmp_path):
    source = open_source(str(fixtures.DATA / "hf_encoder"))
    fixtures.write_hugging_face(tmp_path, source)
    assert open_source(str(tmp_path)).casing == Casing(True)
    path = tmp_path / "tokenizer_config.json"
    for name, value in (("do_lower_case", False), ("strip_accents", False)):
        settings = json.loads(path.read_text())
        path.write_text(json.dumps({**settings, name: value}))
        with pytest.raises(ValueError, match=rf"tokenizer.json: normalizer: \w+=true, but {name} "):
            open_source(str(tmp_path))
        path.write_text(json.dumps(settings))


# What the package's own BertNormalizer and BertPreTokenizer do otherwise, with Unicode 14.0 here:
# (what happens here, what happens there) -> ranges of characters.
DIFFERENT = {
    ("a letter", "dropped"): "E000-F8FF F0000-FFFFD 100000-10FFFD",
    ("a sign", "a letter"): (
        "61D 9FD A76 C77 C84 1B7D-1B7E 2E43-2E4F 2E52-2E5D 10EAD 10F55-10F59 10F86-10F89 "
        "1144B-1144F 1145A-1145B 1145D 11660-1166C 116B9 1183B 11944-11946 119E2 11A3F-11A46 "
        "11A9A-11A9C 11A9E-11AA2 11C41-11C45 11C70-11C71 11EF7-11EF8 11FFF 12FF1-12FF2 "
        "16E97-16E9A 16FE2 1E95E-1E95F 2B820-2B91F"
    ),
    ("dropped", "a letter"): "890-891 8E2 110CD 13430-13438",
    ("a letter", "a sign"): "166D 111C9",
}
# The same if accents are stripped.
DIFFERENT_ACCENTS = {
    **DIFFERENT,
    ("a letter", "dropped"): "1734 E000-F8FF F0000-FFFFD 100000-10FFFD",
    ("a letter", "a sign"): "166D",
    ("dropped", "a sign"): "111C9",
    ("a letter", "another letter"): "11938",
    ("dropped", "a letter"): (
        "7FD 890-891 898-89F 8CA-8E2 9FE AFA-AFF B55 C04 C3C D00 D3B-D3C D81 EBA 180F 1885-1886 "
        "1ABF-1ACE 1DF6-1DFB A82C A8C5 A8FF A9BD 10D24-10D27 10EAB-10EAC 10F46-10F50 10F82-10F85 "
        "11070 11073-11074 110C2 110CD 111CF 1123E 1133B 11438-1143F 11442-11444 11446 1145E "
        "1182F-11837 11839-1183A 1193B-1193C 1193E 11943 119D4-119D7 119DA-119DB 119E0 11A01-11A0A "
        "11A33-11A38 11A3B-11A3E 11A47 11A51-11A56 11A59-11A5B 11A8A-11A96 11A98-11A99 11C30-11C36 "
        "11C38-11C3D 11C3F 11C92-11CA7 11CAA-11CB0 11CB2-11CB3 11CB5-11CB6 11D31-11D36 11D3A "
        "11D3C-11D3D 11D3F-11D45 11D47 11D90-11D91 11D95 11D97 11EF3-11EF4 13430-13438 16F4F 16FE4 "
        "1CF00-1CF2D 1CF30-1CF46 1E000-1E006 1E008-1E018 1E01B-1E021 1E023-1E024 1E026-1E02A "
        "1E130-1E136 1E2AE 1E2EC-1E2EF 1E944-1E94A"
    ),
}
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


@pytest.fixture(scope="module")
def package():
    """Starts the oracle's process once; returns a function of a request for words."""
    with fixtures.transformers_answering("words") as answer:
        yield lambda texts, **request: answer(texts=texts, **request)


def is_newer(code):
    """Returns whether a character is newer than this Python's Unicode; the package may know it."""
    return unicodedata.category(chr(code)) == "Cn"


@pytest.mark.slow
@fixtures.needs_transformers
def test_every_character_in_the_package(tmp_path, package, casing):
    _, values = written(tmp_path, casing)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(values))
    codes = [code for code in CODES if not (casing.do_lower_case and is_newer(code))]
    for first in range(0, len(codes), 100_000):
        some = codes[first : first + 100_000]
        for form in ("{0}", "a{0}b", "ΔΣ{0} {0}Σ ΔΣ{0}Δ"):
            texts = [form.format(chr(code)) for code in some]
            found = package(texts, file=str(path))
            tokenize = BasicTokenizer(*casing).tokenize
            different = [text for text, f in zip(texts, found, strict=True) if f != tokenize(text)]
            assert [ascii(text) for text in different] == []
    texts = [*NASTY, *TEXTS.values()]
    for text, found in zip(texts, package(texts, file=str(path)), strict=True):
        assert found == BasicTokenizer(*casing).tokenize(text), ascii(text)


@pytest.mark.slow
@fixtures.needs_transformers
def test_every_character_that_the_packages_own_normalizer_treats_otherwise(package, casing):
    if unicodedata.unidata_version != "14.0.0":
        pytest.skip("the table is of Unicode 14.0")
    lower, strips = casing
    settings = {"lowercase": lower, "strip_accents": strips}
    tokenize = BasicTokenizer(*casing).tokenize
    different = {}
    codes = [code for code in CODES if not (lower and is_newer(code))]
    texts = [f"a{chr(code)}b" for code in codes]
    for code, text, there in zip(codes, texts, package(texts, settings=settings), strict=True):
        here = tokenize(text)
        if here != there:
            kinds = kind(here), kind(there)
            kinds = ("a letter", "another letter") if kinds[0] == kinds[1] else kinds
            different.setdefault(kinds, []).append(code)
    expected = DIFFERENT_ACCENTS if strips else DIFFERENT
    assert {kinds: ranges(codes) for kinds, codes in different.items()} == expected


def kind(found):
    return "dropped" if found == ["ab"] else "a sign" if len(found) == 3 else "a letter"


def ranges(codes):
    """Returns codes as a text of their ranges."""
    groups = itertools.groupby(enumerate(codes), lambda pair: pair[1] - pair[0])
    runs = [[code for _, code in group] for _, group in groups]
    return " ".join(f"{r[0]:X}-{r[-1]:X}" if len(r) > 1 else f"{r[0]:X}" for r in runs)


def test_the_documented_ranges():
    text = (ROOT / "docs" / "tokens.md").read_text(encoding="utf-8")
    for stated in {*DIFFERENT.values(), *DIFFERENT_ACCENTS.values()}:
        missing = [part for part in stated.split() if not re.search(rf"\b{part}\b", text)]
        assert missing == []


@pytest.mark.slow
@fixtures.needs_transformers
@pytest.mark.parametrize("casing", [Casing(True), Casing(True, False), Casing(False)], ids=str)
def test_ids_of_ten_scripts(tmp_path, casing):
    """The directory that is handed over, opened by transformers, gives the ids of this project."""
    texts = [*TEXTS.values()]
    decomposed = unicodedata.normalize("NFD", "".join(texts).lower())
    tokens = sorted({char for char in "".join(texts) + decomposed if char.strip()})
    vocab_file = str(tmp_path / "words.txt")
    write_vocab([*SPECIAL_TOKENS, *tokens, *("##" + token for token in tokens)], vocab_file)
    source = open_source(str(fixtures.DATA / "hf_encoder"))
    source = dataclasses.replace(source, vocab_file=vocab_file, **casing._asdict())
    folder = tmp_path / "written"
    folder.mkdir()
    fixtures.write_hugging_face(folder, source)
    pairs = [[text, "x"] for text in texts]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    fixtures.transformers("ids", folder, tmp_path / "pairs.json", 200, tmp_path / "ids.npz")
    with np.load(tmp_path / "ids.npz") as found:
        tokenizer = FullTokenizer(vocab_file, *casing)
        for row, segments, text in zip(
            found["input_ids"], found["segment_ids"], texts, strict=True
        ):
            first, second = tokenizer.encode(text), tokenizer.encode("x")
            ids = [tokenizer.cls_id, *first, tokenizer.sep_id, *second, tokenizer.sep_id]
            assert row[: len(ids)].tolist() == ids, text
            assert segments.sum() == len(second) + 1
