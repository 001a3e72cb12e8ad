# ruff: noqa: RUF001

import pytest

from input_pipelines.tasks import tag_files

CHARACTERS = [list("他在北京大学。"), list("1997年，AI很好")]
IDEOGRAPHS = [[*"他在北京大学", "."], ["1997", *"年，", "iPhone", *"很好"]]


@pytest.mark.parametrize(
    ("sentences", "form"),
    [
        (CHARACTERS, "characters"),
        (CHARACTERS * 20 + [["2008"]], "characters"),  # a slip
        (IDEOGRAPHS, "ideographs"),
        ([list("カレーを食べる。")], "characters"),
        ([["他", "在", "北京大学", "。"]], "spaces"),
        ([["東京", "に", "行く"]], "spaces"),
        ([["Ada", "lives", "here", "."]], "spaces"),
        ([["a", "b"]], "spaces"),  # letters of another script
        ([["그는", "갔다"], ["การ"]], "spaces"),
        ([], "spaces"),
    ],
)
def test_what_words_are(sentences, form):
    assert tag_files.form_of_words(sentences) == form
    if form != "spaces":
        for sentence in sentences:
            assert tag_files.words_of("".join(sentence), form) in (
                sentence,
                list("".join(sentence)),
            )
    for sentence in sentences:
        if form != "characters":
            assert tag_files.words_of(" ".join(sentence), form) == sentence


@pytest.mark.parametrize(
    ("text", "of_ideographs", "of_spaces"),
    [
        ("他在 北京。", ["他", "在", "北", "京", "。"], ["他在", "北京。"]),
        ("用iPhone 15", ["用", "iPhone", "15"], ["用iPhone", "15"]),
        ('他说:"好"', ["他", "说", ":", '"', "好", '"'], ['他说:"好"']),
        ("\U00020000ｶﾅ", ["\U00020000", "ｶ", "ﾅ"], ["\U00020000ｶﾅ"]),
        (" \u3000\n", [], []),
    ],
)
def test_texts(text, of_ideographs, of_spaces):
    assert tag_files.words_of(text, "ideographs") == of_ideographs
    assert tag_files.words_of(text, "spaces") == of_spaces == text.split()
    assert tag_files.words_of(text, "characters") == list("".join(text.split()))


def test_recorded():
    assert tag_files.recorded_form({}, "task.json") == "spaces"
    assert tag_files.recorded_form({"words": "characters"}, "task.json") == "characters"
    with pytest.raises(ValueError, match=r"task\.json: words must be one of spaces, cha.*not 'x'"):
        tag_files.recorded_form({"words": "x"}, "task.json")
