import hashlib

import numpy as np
import pytest

from input_pipelines.creation import tokenized_text
from input_pipelines.creation.tokenized_text import TokenizedText


def test_a_part(tmp_path, tokenizer):
    path = str(tmp_path / "part")
    assert not tokenized_text.is_written(path)
    documents = [["w0 w1a", "\u0000"], ["\u200b"], ["w1 w1"]]
    tokenized_text.write_part(documents, tokenizer, path)
    assert tokenized_text.is_written(path)
    text = TokenizedText([path])
    whole = text.load(lambda numbers: np.ones(len(numbers), bool))
    assert whole.ids.tolist() == [5, 6, 45, 6, 6]
    assert (whole.starts, whole.first_sentences) == ([0, 3, 5], [0, 1, 2])
    expected = np.zeros(50, np.int64)
    expected[[5, 6, 45]] = 1, 3, 1
    np.testing.assert_array_equal(text.token_counts, expected)
    written = "w0 w1a\n\u0000\n\n\u200b\n\nw1 w1\n\n"
    assert text.sha256 == hashlib.sha256(written.encode()).hexdigest()
    assert (text.num_documents, text.num_sentences, text.num_tokens) == (2, 2, 5)
    assert text.num_read == 3
    assert [text.tokens_of_words(least) for least in (1, 2, 3)] == [5, 2, 0]  # w1a is long


SENTENCE = "W1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12."  # 13 tokens


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ["W1. W2. W3. W4. W5. W6. W7. W8. W9. W10. W11. W12."],
            [24],
        ),  # not longer than a sentence
        ([f"{SENTENCE} {SENTENCE}"], [13, 13]),
        ([f"{SENTENCE} {SENTENCE} W5", "w6. W7"], [13, 13, 1, 3]),
        ([" ".join(["w1"] * 80)], [80]),  # one sentence
        ([" ".join(["w1"] * 81)], [6] * 13 + [3]),  # nothing is a sentence of so many tokens
        ([" ".join(["w1ab"] * 27)], [6] * 13 + [3]),
        ([" ".join(["w1abc"] * 21)], [4] * 21),  # between words
        (["w1" + "a" * 90], [6] * 15 + [1]),
        ([f"{SENTENCE} " + "W1 " * 81, "w2"], [13] + [6] * 13 + [3, 1]),
    ],
)
def test_long_lines_are_split(tmp_path, tokenizer, monkeypatch, lines, expected):
    monkeypatch.setattr(tokenized_text, "_NO_SENTENCE", 80)
    lengths = {}
    for longest in (24, None):
        path = str(tmp_path / f"{longest}")
        tokenized_text.write_part([lines], tokenizer, path, longest=longest)
        text = TokenizedText([path])
        whole = text.load(lambda numbers: np.ones(len(numbers), bool))
        lengths[longest] = np.diff(whole.starts).tolist()
        lengths[str(longest)] = whole.ids.tolist(), text.sha256
    assert lengths[24] == expected and len(lengths[None]) == len(lines)
    assert lengths["24"] == lengths["None"]  # all text, in order


def test_any_documents_of_several_parts(tmp_path, tokenizer, documents):
    paths = []
    for number, some in enumerate([documents[:2], [], documents[2:3], ["\u200b"], documents[3:]]):
        paths.append(str(tmp_path / f"{number}"))
        tokenized_text.write_part(some, tokenizer, paths[-1])
    text = TokenizedText(paths)
    assert (text.num_documents, text.num_sentences, text.num_tokens) == (6, 30, 120)
    assert text.token_counts.sum() == 120
    for chosen in ([0, 3, 5], [2], [], range(6)):
        part = text.load(lambda numbers, chosen=chosen: np.isin(numbers, list(chosen)))
        assert part.numbers == list(chosen)
        assert part.ids.tolist() == [
            token for number in chosen for s in documents[number] for token in tokenizer.encode(s)
        ]
        assert part.first_sentences == [5 * number for number in range(len(chosen) + 1)]
        assert part.starts == [4 * number for number in range(5 * len(chosen) + 1)]
    other = TokenizedText(paths[:-1])
    assert other.sha256 != text.sha256
