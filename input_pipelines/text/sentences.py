"""Splits prose into sentences, by rules for languages of any script.

A sentence ends after the marks . ! ? and …, and after the quotes and brackets that close behind it,
if whitespace and a capital, a digit or a letter without case follow. It does not end after
abbreviations, initials and numbers of lists. Marks that have no other use, such as 。 ؟ ।, end it
wherever they are. Chinese and Japanese may be written with . ! and ? and without spaces: between
two of their characters these marks end a sentence, too, but . only in a paragraph without 。, since
names are written with it. A line ends a sentence, too, unless the text is broken into lines of
about the same length.
"""

# ruff: noqa: RUF001, SIM905

import re
from collections.abc import Iterator

_CLOSING = "\"'”’)\\]»」』）"
# The set of Unicode 14's Sentence_Terminal without . ! ? and wide full stops, and besides the marks
# of Khmer and Tibetan.
_FINAL = (
    "\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u0f0d\u0f0e"
    "\u104a\u104b\u1362\u1367\u1368\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945"
    "\u1aa8-\u1aab\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d\u1b7e\u1c3b\u1c3c\u1c7e\u1c7f\u203c\u203d"
    "\u2047-\u2049\u2e2e\u2e3c\u2e53\u2e54\u3002\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce"
    "\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe56\ufe57\uff01\uff1f\uff61"
    "\U00010a56\U00010a57\U00010f55-\U00010f59\U00010f86-\U00010f89\U00011047\U00011048"
    "\U000110be-\U000110c1\U00011141-\U00011143\U000111c5\U000111c6\U000111cd\U000111de\U000111df"
    "\U00011238\U00011239\U0001123b\U0001123c\U000112a9\U0001144b\U0001144c\U000115c2\U000115c3"
    "\U000115c9-\U000115d7\U00011641\U00011642\U0001173c-\U0001173e\U00011944\U00011946"
    "\U00011a42\U00011a43\U00011a9b\U00011a9c\U00011c41\U00011c42\U00011ef7\U00011ef8"
    "\U00016a6e\U00016a6f\U00016af5\U00016b37\U00016b38\U00016b44\U00016e98\U0001bc9f\U0001da88"
)
# A wide full stop before a digit is a decimal point.
_FINAL_MARK = rf"(?:[{_FINAL}]|[．﹒](?!\d))"
# Chinese characters, kana, and the marks among them that are letters.
_EASTERN = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff"
)
_ENDS_EASTERN = re.compile(rf"[{_EASTERN}][{_CLOSING}]*$")
_FULL_STOPS = "。．｡"
# The marks of a run match together or not at all, so that a run is looked at once.
_END = re.compile(
    rf"(?<![.!?…])[.!?…]+[{_CLOSING}]*(?=\s|(?P<eastern>[“‘「『《（(]?[{_EASTERN}]))"
    rf"|(?P<final>{_FINAL_MARK}+)[.!?]*[{_CLOSING}]*"
)
_ENDS_LINE = re.compile(rf"(?:[.!?:…]|{_FINAL_MARK})[\"'”’)\]»]*$")
_NEXT = re.compile(r"\s*[\"'“‘«(\[¿¡„—–-]*\s?(\S)")
_BEFORE_WORD = re.compile(r"[\s(\[\"'“‘«—]")
# Names and titles follow these, and never a sentence.
_BEFORE_NAMES = frozenset(
    (
        "mr mrs ms dr prof rev hon st sr jr gen col capt lt sgt maj cmdr adm gov sen rep pres "
        "supt messrs mme mlle hr fr bros e.g i.e cf vs viz al approx ca u.s u.k "
    ).split()
)
# Numbers follow these. Without a number they end a sentence.
_BEFORE_NUMBERS = frozenset(
    (
        "no nos nr fig figs eq eqs sec sect ch chap vol vols p pp art cl par para op ed jan feb "
        "mar apr jun jul aug sep sept oct nov dec "
    ).split()
)
_INITIAL = re.compile(r"(?:[A-Z]\.)*[A-Z]\.$")
_NUMBER_OF_A_LIST = re.compile(r"\(?(?:\d{1,3}|[ivx]{1,4}|[a-z])[.)]")
_LONGEST_NUMBER = len("(viii.")
_MOST_CLOSING = 20  # characters at the end of a line or a sentence
# A shorter line is a heading, or the last line of a paragraph.
_SHORTEST_BROKEN_LINE = 40


def split_text(text: str) -> Iterator[str]:
    """Yields the sentences of a text, without empty ones; whitespace becomes single spaces."""
    for paragraph in _paragraphs(text.splitlines()):
        yield from split(paragraph)


def split(paragraph: str) -> list[str]:
    """Splits a paragraph, which does not have line breaks, into sentences."""
    paragraph = " ".join(paragraph.split())
    sentences = []
    start = 0
    has_full_stops = any(mark in paragraph for mark in _FULL_STOPS)
    for match in _END.finditer(paragraph):
        end = match.end()
        if end < len(paragraph) and _ends_sentence(paragraph, start, match, has_full_stops):
            sentences.append(paragraph[start:end].strip())
            start = end
    if rest := paragraph[start:].strip():
        sentences.append(rest)
    return sentences


def _ends_sentence(paragraph, start, match, has_full_stops):
    """Returns whether a sentence that begins at `start` ends with the mark of a match, in a
    paragraph that has full stops of Chinese or has not."""
    if match["final"]:
        return True
    mark = match.group()
    if match["eastern"]:
        before = paragraph[max(start, match.start() - _MOST_CLOSING) : match.start()]
        is_mark = mark[0] in "!?" or (mark[0] == "." and mark[1:2] != "." and not has_full_stops)
        return is_mark and bool(_ENDS_EASTERN.search(before))
    following = _NEXT.match(paragraph, match.end())
    if following is None or following[1].islower():
        return False
    if mark != ".":
        return following[1].isalnum() or mark[0] != "."
    if not following[1].isalnum():
        return False
    # Only what is near is looked at, since a sentence may have any number of full stops.
    end = match.start() + 1
    word = paragraph[max(start, paragraph.rfind(" ", start, end) + 1) : end]
    word = _BEFORE_WORD.split(word)[-1]
    # "I" is an initial less often than it is a word.
    if _INITIAL.match(word) and word != "I.":
        return False
    is_short = end - start <= len(" ") + _LONGEST_NUMBER
    if is_short and _NUMBER_OF_A_LIST.fullmatch(paragraph[start:end].strip()):
        return False
    name = word.removesuffix(".").lower()
    return not (name in _BEFORE_NAMES or (name in _BEFORE_NUMBERS and following[1].isdigit()))


def _paragraphs(lines) -> Iterator[str]:
    """Joins lines that were broken within a sentence; an empty line ends a paragraph."""
    paragraph: list[str] = []
    for line in lines:
        line = line.strip()
        if line:
            paragraph.append(line)
        if paragraph and (not line or not _continues(line)):
            yield " ".join(paragraph)
            paragraph = []
    if paragraph:
        yield " ".join(paragraph)


def _continues(line):
    """Returns whether a sentence may go on in the next line."""
    if len(line) < _SHORTEST_BROKEN_LINE:
        return False
    word = line.rsplit(maxsplit=1)[-1].strip("(\"'“‘")
    is_short = word.removesuffix(".").lower() in _BEFORE_NAMES | _BEFORE_NUMBERS
    return is_short or not _ENDS_LINE.search(line[-_MOST_CLOSING:])
