"""The windows and answers of a graph are what evaluation and prediction make."""

import random

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.serving.graph import answer_model, answer_search, graph_characters
from bert_estimator.serving.graph.answer_model import AnswerText, Settings
from bert_estimator.serving.graph.text_model import TextDifferenceError
from bert_estimator.tokenization import FullTokenizer, write_vocab
from input_pipelines.tasks.answers import Search
from input_pipelines.tasks.squad_files import Question
from input_pipelines.tasks.windows import Windows
from tests.serving.graph.test_graph_offsets import STRANGE
from tests.serving.graph.test_graph_sentencepiece import golden, needs_text
from tests.serving.graph.test_graph_wordpiece import NASTY


def questions():
    """Returns questions on contexts of any length, of strange characters and of equal words."""
    generator, strings = random.Random(5), NASTY["strings"]
    contexts = [" ".join(strings[first : first + 11]) for first in range(0, len(strings), 11)]
    contexts += ["".join(generator.choices(STRANGE, k=n)) for n in (3, 30, 60, 200)]
    contexts += ["the cat sat. " * 9, "a a a a a a a", "", " \n", "\u00ad", "x"]
    texts = [generator.choice(strings) for _ in contexts]
    texts[:3] = ["", " \u3000 ", " ".join(strings[:9])]
    rows = zip(texts, contexts, strict=True)
    return [Question(f"q{i}", *row, None) for i, row in enumerate(rows)]


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocab.txt")
    write_vocab(NASTY["vocab"], path)
    return path


SEARCHES = [
    (Search(3, 4, True, 0.5), 16, 3),
    (Search(), 64, 20),
    (Search(1, 30, True), 24, 7),
    (Search(30, 2), 12, 1),
]


def check(tokenizer, search, length, stride):
    """Compares the graph with prediction on all questions."""
    asked, sizes = questions(), (length, stride, 5)
    windows = Windows(asked, tokenizer, *sizes)
    assert len(windows) > len(asked)
    assert answer_model.check_questions(Settings(tokenizer, *sizes, search), windows) == len(asked)


@pytest.mark.parametrize(
    ("case", "casing"),
    [
        (SEARCHES[0], "uncased"),
        *(pytest.param(case, "uncased", marks=pytest.mark.slow) for case in SEARCHES[1:]),
        *(pytest.param(case, "cased", marks=pytest.mark.slow) for case in SEARCHES),
    ],
    ids=str,
)
def test_the_graph_does_what_prediction_does(vocab_file, case, casing):
    check(FullTokenizer(vocab_file, casing == "uncased"), *case)


@needs_text
@pytest.mark.parametrize(
    ("kind", "casing"),
    [
        ("unigram", "cased"),
        # Quick tests have the places of their pieces in the text, which is what differs.
        pytest.param("bpe", "uncased", marks=pytest.mark.slow),
        pytest.param("unigram", "uncased", marks=pytest.mark.slow),
        pytest.param("bpe", "cased", marks=pytest.mark.slow),
    ],
)
def test_sentencepiece(kind, casing):
    for case in SEARCHES[:2]:
        check(golden(kind, casing), *case)


@pytest.mark.parametrize(
    ("place", "name", "change", "message"),
    [
        (
            graph_characters,
            "with_marks",
            lambda own: lambda codes, tokens: tokens,
            "splits its context into other tokens than training, or takes them from other char",
        ),
        (
            answer_search,
            "windows_of",
            lambda own: lambda *args: own(*args[:-1], args[-1] - 1),
            r"has other windows than training \(input_ids\)",
        ),
        (
            answer_search,
            "_ordered",
            lambda own: lambda spans: own(spans._replace(end_logit=spans.start_logit)),
            "of the same random logits, the graph of the exported model makes the answer ",
        ),
    ],
    ids=["characters", "windows", "answers"],
)
@pytest.mark.slow
def test_a_difference_is_shown(vocab_file, monkeypatch, place, name, change, message):
    """What the graph does differently is told with the question."""
    monkeypatch.setattr(place, name, change(getattr(place, name)))
    with pytest.raises(TextDifferenceError, match=rf"^the question 'q\d+' \(.*\): .*{message}"):
        check(FullTokenizer(vocab_file), *SEARCHES[0])


def test_requests_of_any_size(vocab_file):
    """No questions, empty texts, and bytes that are not UTF-8."""
    settings = Settings(FullTokenizer(vocab_file), 16, 3, 5, Search(4, 4, True))
    with tf.Graph().as_default(), tf.Session() as session:
        text = AnswerText(settings)
        ids = tf.cast(text.ids["input_ids"], tf.float32)
        outputs = text.outputs({"start_logits": ids, "end_logits": ids})

        def answers(*rows):
            columns = list(zip(*rows, strict=True)) or [[], []]
            return session.run(outputs, dict(zip(text.texts.values(), columns, strict=True)))

        found = answers()
        assert {name: len(value) for name, value in found.items()} == dict.fromkeys(found, 0)
        found = answers((b"", b""), (b"a", b"a\xff b\xc3"), (b"a", "\u3000 ".encode()))
        assert found["answer"][0] == found["answer"][2] == b""
        assert found["n_best_probabilities"][0].tolist() == [1, 0, 0, 0, 0]
        clean = answers((b"a", b"a b"))
        for name in ("start", "end", "score", "null_odds", "n_best_starts", "n_best_ends"):
            np.testing.assert_array_equal(found[name][1], clean[name][0], err_msg=name)
        assert set(clean["n_best_answers"][0]) > {b"", b"a"}
