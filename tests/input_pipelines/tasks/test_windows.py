"""Windows of questions: against an oracle of run_squad.py, and by hand."""

import pathlib

import numpy as np
import pytest

from bert_estimator.tokenization import SPECIAL_TOKENS, FullTokenizer, open_tokenizer, write_vocab
from input_pipelines.tasks import squad_files
from input_pipelines.tasks.long_texts import spans
from input_pipelines.tasks.squad_files import Answer, Question
from input_pipelines.tasks.windows import Windows
from tests.input_pipelines.tasks import squad_oracle as oracle

GOLDENS = pathlib.Path(__file__).parent / "squad_goldens"


@pytest.fixture(scope="module")
def golden_windows():
    questions = squad_files.read(str(GOLDENS / "questions.json"), True, True)
    tokenizer = open_tokenizer(str(GOLDENS / "vocab.txt"))
    return Windows(questions, tokenizer, oracle.LENGTH, oracle.STRIDE, oracle.QUERY_LENGTH)


def test_the_features_equal_the_oracle_s(golden_windows):
    windows = golden_windows
    assert len(windows.questions) == 200
    with np.load(GOLDENS / "features.npz") as goldens:
        np.testing.assert_array_equal(windows.owners, goldens["owners"])
        found = windows.batch(np.arange(len(windows)))
        for name in ("input_ids", "input_mask", "segment_ids", "start_positions", "end_positions"):
            expected = goldens[name].astype(np.int32).reshape(found[name].shape)
            np.testing.assert_array_equal(found[name], expected, err_msg=name)
        best = np.zeros_like(goldens["is_best"])
        for number in range(len(windows.questions)):
            first = windows.of_question(number).start
            for i, is_best in enumerate(windows.best_contexts(number)):
                place = windows.places[first + i]
                best[first + i, place : place + len(is_best)] = is_best
        np.testing.assert_array_equal(best, goldens["is_best"])
        assert found["start_positions"].astype(bool).sum() > 100
        assert len(windows) > 2 * len(windows.questions)


WORDS = [f"w{i}" for i in range(10)]
CONTEXT = " ".join(WORDS)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocab.txt")
    write_vocab([*SPECIAL_TOKENS, *WORDS, "q"], path)
    return FullTokenizer(path)


def question(name="a", text="q q", context=CONTEXT, answers=()):
    if answers:
        answers = tuple(Answer(each, context.index(each)) for each in answers)
    return Question(name, text, context, answers)


def test_windows_by_hand(tokenizer):
    windows = Windows([question(answers=["w5 w6"])], tokenizer, 11, 4, 2)
    assert list(zip(windows.starts, windows.sizes, strict=True)) == [(0, 6), (4, 6)]
    batch = windows.batch(np.array([1, -1, 0]))
    cls, sep, q = tokenizer.cls_id, tokenizer.sep_id, 15
    assert batch["input_ids"].tolist() == [
        [cls, q, q, sep, 9, 10, 11, 12, 13, 14, sep],
        [0] * 11,
        [cls, q, q, sep, 5, 6, 7, 8, 9, 10, sep],
    ]
    assert batch["segment_ids"].tolist() == [[0] * 4 + [1] * 7, [0] * 11, [0] * 4 + [1] * 7]
    assert batch["input_mask"].tolist() == [[1] * 11, [0] * 11, [1] * 11]
    # The first window ends within the answer.
    assert batch["start_positions"].tolist() == [5, 0, 0]
    assert batch["end_positions"].tolist() == [6, 0, 0]
    assert batch["unique_ids"].tolist() == [1, -1, 0]
    assert batch["is_real_example"].tolist() == [1, 0, 1]
    assert {str(value.dtype) for value in batch.values()} == {"int32"}
    # Tokens 4 and 5 have 1 and 0 tokens on one side in the first window, 0 and 1 in the second.
    best = [each.tolist() for each in windows.best_contexts(0)]
    assert best == [[True] * 5 + [False], [False] + [True] * 5]


def test_long_questions_are_cut_and_counted(tokenizer):
    windows = Windows([question(text="q q q"), question("b")], tokenizer, 16, 4, 2)
    assert windows.num_cut == 1
    assert windows.batch(np.array([0]))["input_ids"][0, :4].tolist() == [2, 15, 15, 3]


def test_positions_are_only_given_if_all_answers_are_known(tokenizer):
    known, unknown = question(), question("b", answers=None)
    assert "start_positions" in Windows([known], tokenizer, 16, 4, 2).batch(np.array([0]))
    assert "start_positions" not in Windows([known, unknown], tokenizer, 16, 4, 2).batch(
        np.array([0])
    )


def test_an_answer_without_tokens_is_counted(tokenizer):
    windows = Windows([question(context="w1 \u200b w2", answers=["\u200b"])], tokenizer, 16, 4, 2)
    assert windows.num_lost == 1
    assert windows.batch(np.array([0]))["start_positions"].tolist() == [0]


@pytest.mark.parametrize(
    ("num_tokens", "room", "stride", "expected"),
    [
        (0, 5, 2, [(0, 0)]),
        (5, 5, 2, [(0, 5)]),
        (6, 5, 2, [(0, 5), (2, 4)]),
        (9, 5, 2, [(0, 5), (2, 5), (4, 5)]),
        (9, 2, 5, [(0, 2), (2, 2), (4, 2), (6, 2), (8, 1)]),  # no token is passed over
    ],
)
def test_spans(num_tokens, room, stride, expected):
    assert spans(num_tokens, room, stride) == expected


def test_a_context_without_tokens_has_a_window(tokenizer):
    windows = Windows([question(context=" \t")], tokenizer, 8, 4, 2)
    batch = windows.batch(np.array([0]))
    assert batch["input_ids"].tolist() == [[2, 15, 15, 3, 3, 0, 0, 0]]
    assert [each.tolist() for each in windows.best_contexts(0)] == [[]]


def test_the_digest_tells_data_apart(tokenizer):
    def digest(*questions, length=16, stride=4, query_length=2):
        return Windows(questions, tokenizer, length, stride, query_length).digest()

    asked = question(answers=["w5"])
    others = [
        digest(question(answers=["w6"])),
        digest(asked, question("b")),
        digest(question(text="q", answers=["w5"])),
        digest(asked, length=12),
        digest(asked, length=12, stride=3),
        digest(asked, query_length=1),
        digest(question(answers=None)),
    ]
    assert digest(asked) == digest(question(answers=["w5"]))
    assert len({digest(asked), *others}) == 1 + len(others)
