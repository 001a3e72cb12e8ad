# ruff: noqa: RUF001

import pytest

from input_pipelines.text.sentences import split, split_text


@pytest.mark.parametrize(
    "sentences",
    [
        ["One.", "Two!", "Three?", "Four"],
        ["Mr. Smith met Dr. A. B. Jones in Washington, D.C. on Jan. 5.", "He left."],
        ["See Fig. 3 and pp. 4 to 6, e.g. the third.", "See cf. Miller 1990, i.e. that book."],
        ["It was version 3.14 of 2020.", "25 people came.", "It cost $1.5 million."],
        ['She said: "It works."', '"Does it?"', "(It does.)", "Then it stopped ..."],
        ["Is it here?!", "No... it is there.", "And so am I.", "We go on."],
        ["There is no number in this fig.", "The next one has it."],
        ["E. coli is small.", "J. R. R. Tolkien is not."],
        ["1. The first item of a list.", "2. The second item."],
        ["\u00c9t\u00e9 arrive.", "\u00c0 bient\u00f4t!", "\u00bfQu\u00e9?", "\u00a1Nada!"],
        ["\u042d\u0442\u043e \u0434\u043e\u043c.", "\u0422\u0430\u043c \u0441\u0430\u0434."],
        ["\u4eca\u5929\u5929\u6c14\u597d\u3002"],
    ],
)
def test_split(sentences):
    assert split(" ".join(sentences)) == sentences
    assert split("  ".join([*sentences, ""])) == sentences


def test_a_full_stop_that_is_wide_needs_no_space():
    assert split("\u4eca\u5929\u597d\u3002\u6211\u4eec\u8d70\uff01") == [
        "\u4eca\u5929\u597d\u3002",
        "\u6211\u4eec\u8d70\uff01",
    ]


MARKS = (
    *("\u0964", "\u0965", "\u06d4", "\u061f", "\u0589"),  # Hindi, Sanskrit, Urdu, Arabic, Armenian
    *("\u1362", "\u1367", "\u104b", "\u17d4", "\u17d5"),  # Amharic, Burmese, Khmer
    *("\u0f0d", "\u0f0e", "\u1803", "\u0700"),  # Tibetan, Mongolian, Syriac
    *("\u3002", "\uff01", "\uff1f", "\uff0e", "\uff61"),  # Chinese and Japanese
    *("\u203d", "\ua8ce", "\U00011047"),  # English, Saurashtra, Brahmi
)


@pytest.mark.parametrize("mark", MARKS, ids=ascii)
def test_marks_that_end_sentences_wherever_they_are(mark):
    letter = "\u0915"
    sentences = [f"{letter * 3}{mark}", f"{letter}{mark}{mark}!", f"{letter}{mark}\u201d", letter]
    for between in ("", " "):
        assert split(between.join(sentences)) == sentences
    assert split(f"{letter} {mark} {letter}") == [f"{letter} {mark}", letter]
    line = f"{letter * 30} {letter * 20}"
    assert list(split_text(f"{line}\n{line}{mark}\n{line}")) == [f"{line} {line}{mark}", line]


EASTERN = {
    "Chinese": ["今天天气很好,我们去公园.", "你想来吗?", "他说他很忙!", "我们走吧."],
    "Chinese, traditional": ["這裡很美.", "我們走吧!", "好嗎?", "好"],
    "rare ideographs": ["\U00020000\U00020001.", "\u3400\u3401!", "\U00030000\U00030001"],
    "runs of marks": ["真的吗?!", "不会吧!!!", "好.", "走"],
    "Japanese": ["今日はいい天気です.", "カレーを食べよう!", "スーパー.", "ｶﾅ?", "はい"],
    "quotes": ['他说:"好."', "我们走了(真的).", "“走吧!”", "《书》很好.", "(好)"],
    "mixed": ["我喜欢 Python 和 AI 技术.", "版本是 3.14 版.", "你呢?", "都好!"],
    "with wide marks": ["你好！", "好吗？", "他走了.", "再见"],
}


@pytest.mark.parametrize("name", EASTERN)
def test_ascii_marks_between_chinese_or_japanese_characters(name):
    sentences = EASTERN[name]
    assert split("".join(sentences)) == sentences
    assert split(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    "text",
    [
        *(
            "圆周率是3.14和2.71",
            "价格3.5元",
            "百度.com是网站",
            "用e.g.这个",
            "在U.S.的人",
            "他用Node.js写",
        ),
        *("1.今天的事", "我...我不知道", "我……我不知道", "我…我", "Yahoo!奇摩", "a.b", "第1.2节"),
        "约翰.史密斯来了。",  # a name in a text that has full stops
        "今天,明天,后天",  # a comma does not end a sentence
        "พ.ศ.นี้ดีมาก!จริง",  # Thai abbreviates with full stops
        "했다.그는 갔다",
    ],
)
def test_marks_that_do_not_end_sentences_in_eastern_text(text):
    assert split(text) == [text]


def test_a_wide_decimal_point_does_not_end_a_sentence():
    assert split("\u5186\u5468\u7387\u306f\uff13\uff0e\uff11\uff14") == [
        "\u5186\u5468\u7387\u306f\uff13\uff0e\uff11\uff14"
    ]


def test_nothing_is_lost():
    text = "A. B? c! (D) 'E.' F.G. \u2026 H... i. 5. J.K. Mr. L"
    assert " ".join(split(text)) == text
    assert split("") == split(" \t ") == []


def test_broken_lines_are_joined_and_short_lines_end():
    text = """A Heading

    This line of a paragraph is broken within a sentence, and it
    goes on here. It is also broken after the title of Mr.
    Smith, who went home.
    A short line
    stays alone
    """
    assert list(split_text(text)) == [
        "A Heading",
        "This line of a paragraph is broken within a sentence, and it goes on here.",
        "It is also broken after the title of Mr. Smith, who went home.",
        "A short line",
        "stays alone",
    ]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (f"data:{'x' * 10**6} foo. A next", 2),
        ("see No. 1 " * 10**5, 1),
        (f"{'.' * 10**6}x", 1),
        (f"{'.!' * 10**6}x", 1),
        ("." + '"' * 10**6 + "x. A", 2),
        (". " + '"' * 10**6, 1),
        ("A. B. " * 10**5, 1),
        ("A." * 10**5 + " Then", 1),
        ("\u0964" * 10**6 + "x", 2),
        ("x" * 50 + "\u3002" * 10**6 + ")" * 10**6 + "\nx", 2),
        ("\uff0e1" * 10**6, 1),
        ("好." * 10**5, 10**5),
        ("好..." * 10**5 + "好", 1),
        ("a.好" * 10**5, 1),
        ("好" + ")" * 10**6 + ".好", 1),
        ("好.。" * 10**5, 10**5),
        (f"{'(' * 10**6}x. A", 2),
        ("One. " * 10**5, 10**5),
        ("e.g.\n" * 10**5, 10**5),
    ],
    ids=lambda value: ascii(value[:8]) if isinstance(value, str) else str(value),
)
def test_time_is_linear(text, sentences):
    """Time that grows with the square of these lengths would be many minutes each."""
    assert sum(1 for _ in split_text(text)) == sentences
