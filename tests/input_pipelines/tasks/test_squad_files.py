"""The reader of SQuAD's files: what is read, and what is refused, with its place."""

import json

import pytest

from input_pipelines.tasks import squad_files
from input_pipelines.tasks.squad_files import (
    Answer,
    Question,
    SquadError,
    answerable,
    digest,
    located,
    read,
)

CONTEXT = "Ada met Bob. Bob met Ada."


def qa(name, *answers, **changes):
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": f"{name}?", "answers": answers, **changes}


def write(path, *questions, context=CONTEXT):
    article = {"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}
    path.write_text(json.dumps({"version": "1.1", "data": [article]}), encoding="utf-8")
    return str(path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "questions.json"


def test_questions_are_read(path):
    impossible = qa("c", is_impossible=True, plausible_answers=[{"text": "x", "answer_start": 0}])
    write(path, qa("a", ("Ada", 0), ("Bob", 8), is_impossible=False), impossible)
    first, second = read(str(path), needs_answers=True, version_2=True)
    assert first == Question("a", "a?", CONTEXT, (Answer("Ada", 0), Answer("Bob", 8)))
    assert second == Question("c", "c?", CONTEXT, ())
    assert first.golds() == ("Ada", "Bob") and second.golds() == ()
    assert first.context is second.context


def test_ids_may_be_whole_numbers(path):
    write(path, qa("a", ("Ada", 0), id=7), qa("b", ("Bob", 8), id="8"), qa("c", ("Ada", 0), id=-9))
    questions = read(str(path), needs_answers=True, version_2=False)
    assert [question.id for question in questions] == ["7", "8", "-9"]
    write(path, qa("a", ("Ada", 0), id=7), qa("b", ("Bob", 8), id="7"))
    with pytest.raises(SquadError, match=r"qas\[1\]: the id '7' occurs twice in the file"):
        read(str(path), needs_answers=True, version_2=False)


def test_large_files(path, monkeypatch):
    write(path, qa("a", ("Ada", 0)))
    monkeypatch.setattr(squad_files.json_files, "MOST_BYTES", 10)  # what other files may have
    assert len(read(str(path), needs_answers=True, version_2=False)) == 1
    monkeypatch.setattr(squad_files, "_MOST_BYTES", 10)
    with pytest.raises(SquadError, match="is longer than 10 bytes, the most that is read"):
        read(str(path), needs_answers=True, version_2=False)


def test_questions_to_predict_for_need_no_answers(path):
    bare = {"id": "b", "question": "b?"}
    write(path, qa("a", ("Ada", 0)), bare, qa("c"))
    for version_2 in (False, True):
        questions = read(str(path), needs_answers=False, version_2=version_2)
        assert [q.answers for q in questions] == [(Answer("Ada", 0),), None, None]


@pytest.mark.parametrize(
    ("change", "version_2", "message"),
    [
        ({"id": 3.5}, False, "data[0].paragraphs[0].qas[1]: id: must be a string, not 3.5"),
        ({"id": True}, False, "qas[1]: id: must be a string, not true"),
        ({"id": "a"}, False, "data[0].paragraphs[0].qas[1]: the id 'a' occurs twice in the file"),
        ({"question": None}, False, "qas[1]: question: must be a string, not null"),
        ({"answers": {}}, False, "qas[1]: answers: the key 'text' is missing; it must be"),
        ({"answers": [3]}, False, "qas[1].answers[0]: must be an object, not 3"),
        ({"answers": [{"text": "x"}]}, False, "answers[0]: the key 'answer_start' is missing; it"),
        (
            {"answers": [{"text": " ", "answer_start": 0}]},
            False,
            "qas[1].answers[0]: the text is ' '; it must have words",
        ),
        (
            {"answers": [{"text": "x", "answer_start": 1.5}]},
            False,
            "answers[0]: answer_start: must be a whole number, not 1.5",
        ),
        ({"answers": []}, False, "qas[1]: the question does not have answers"),
        (
            {"answers": [], "is_impossible": False},
            True,
            "qas[1]: the question does not have answers, nor is it impossible",
        ),
        ({"is_impossible": 1}, True, "qas[1]: is_impossible: must be true or false, not 1"),
        (
            {"is_impossible": True},
            False,
            "qas[1]: the question is impossible, as some of SQuAD 2.0 are; give version_2_with_n",
        ),
    ],
)
def test_a_question_that_cannot_be_read(path, change, version_2, message):
    write(path, qa("a", ("Ada", 0)), qa("b", ("Bob", 8), **change))
    with pytest.raises(SquadError) as error:
        read(str(path), needs_answers=True, version_2=version_2)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "has 0 questions; give a file with at least one"),
        ('{"question": "q"}', "1: the key 'context' is missing; it must be a string"),
        ('{"question": "q"}\n3', "1: the key 'context' is missing; it must be a string"),
        ("[{}, 3]", "1: the key 'context' is missing"),
        ("{}", "the key 'data' is missing; it must be a list"),
        ('{"data": [{"paragraphs": []}]}', "has 0 questions"),
        ('{"data": [{}]}', "data[0]: the key 'paragraphs' is missing"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "data[0].paragraphs[0]: the key 'context'"),
        ('{"data": [{"paragraphs": [{"context": ""}]}]}', "paragraphs[0]: the key 'qas' is miss"),
    ],
)
def test_a_file_that_cannot_be_read(path, content, message):
    path.write_text(content)
    with pytest.raises(SquadError) as error:
        read(str(path), needs_answers=True, version_2=False)
    assert str(error.value).startswith(f"{path}:") and message in str(error.value)


def row(name, *answers, **changes):
    """Returns a question as `datasets` writes it."""
    lists = {"text": [text for text, _ in answers], "answer_start": [start for _, start in answers]}
    return {
        "id": name,
        "title": "t",
        "context": CONTEXT,
        "question": "q?",
        "answers": lists,
    } | changes


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("layout", ["lines", "array", "indented", "mark"])
def test_rows_as_datasets_writes_them(tmp_path, name, layout):
    rows = [row("a", ("Ada", 0), ("Bob", 8)), row("c"), row(7, ("Bob", 13))]
    text = {
        "lines": "\n".join(map(json.dumps, rows)),
        "array": json.dumps(rows),
        "indented": json.dumps(rows, indent=2),
        "mark": "\ufeff\n" + "\r\n".join(map(json.dumps, rows)),
    }[layout]
    (tmp_path / name).write_text(text, encoding="utf-8")
    first, second, third = read(str(tmp_path / name), needs_answers=True, version_2=True)
    assert first == Question("a", "q?", CONTEXT, (Answer("Ada", 0), Answer("Bob", 8)))
    assert second.answers == () and third == Question("7", "q?", CONTEXT, (Answer("Bob", 13),))
    with pytest.raises(SquadError, match=r":\d+: the question is impossible, as some of SQuAD 2"):
        read(str(tmp_path / name), needs_answers=True, version_2=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": {"text": ["a"], "answer_start": []}}, "has 1 texts of answers, but 0 starts"),
        ({"answers": {"text": "a", "answer_start": 0}}, "answers: text: must be a list, not"),
        ({"answers": {"text": ["a"], "answer_start": ["b"]}}, "answers[0]: answer_start: must be"),
        ({"id": None}, "id: must be a string, not null"),
    ],
)
def test_a_row_that_cannot_be_read(path, changes, message):
    rows = [row("a", ("Ada", 0)), row("b", ("Ada", 0), **changes)]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SquadError) as error:
        read(str(path), needs_answers=True, version_2=True)
    assert str(error.value).startswith(f"{path}:2") and message in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SquadError, match=r"none\.json: cannot be read: No such file"):
        read(str(tmp_path / "none.json"), needs_answers=True, version_2=False)


@pytest.mark.parametrize(
    ("start", "found"),
    [(0, 0), (21, 21), (1, 0), (-5, 0), (10, 0), (11, 21), (20, 21), (99, 21), (10**30, 21)],
)
def test_answers_are_moved_to_where_they_occur(path, capsys, start, found):
    write(path, qa("a", ("Ada", start)))
    questions = read(str(path), needs_answers=True, version_2=False)
    (question,) = located(questions, str(path))
    assert question.answers == (Answer("Ada", found),)
    out = capsys.readouterr().out
    assert out == ("" if start == found else f"{path}: the first answer of 1 of 1 questions is not "
                   "at its answer_start; its nearest occurrence counts: a\n")  # fmt: skip


SPACED = "The  new\tYork\u00a0Times\n\nsays: a a a."


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (("new York Times", 5), ("new\tYork\u00a0Times", 5)),
        (("new  York\nTimes", 0), ("new\tYork\u00a0Times", 5)),
        (("Times says", 14), ("Times\n\nsays", 14)),
        ((" Times ", 14), ("Times", 14)),
        (("  new", 3), ("  new", 3)),
        (("a  a", 29), ("a a", 29)),
        (("a  a", 27), ("a a", 27)),
        (("newYork", 5), None),
        (("The . York", 0), None),
    ],
)
def test_white_space_of_an_answer_may_differ(path, capsys, answer, expected):
    write(path, qa("a", answer, ("b", 1)), context=SPACED)
    (question,) = located(read(str(path), needs_answers=True, version_2=False), str(path))
    first, second = question.answers
    assert second == Answer("b", 1)
    assert first == (Answer(answer[0], len(SPACED)) if expected is None else Answer(*expected))
    assert bool(capsys.readouterr().out) == (expected is not None and expected[1] != answer[1])


def test_questions_whose_answers_do_not_occur_are_left_out(path, capsys):
    write(path, qa("a", ("Eve", 0)), qa("b", ("Bob", 8)), qa("c", is_impossible=True))
    questions = read(str(path), needs_answers=True, version_2=True)
    questions = located(questions, str(path))
    assert [question.id for question in questions] == ["a", "b", "c"]
    assert [question.id for question in answerable(questions, str(path))] == ["b", "c"]
    assert capsys.readouterr().out == (
        f"{path}: skipped 1 of 3 questions, whose first answer does not occur in the context: a\n"
    )
    with pytest.raises(SquadError, match="no first answer of its questions occurs"):
        answerable(questions[:1], str(path))


def test_the_digest_tells_questions_apart():
    question = Question("a", "a?", CONTEXT, (Answer("Ada", 0),))
    others = [
        [],
        [question, question],
        [Question("a", "a?", CONTEXT, ())],
        [Question("a", "a?", CONTEXT, None)],
        [Question("a", "a?", CONTEXT, (Answer("Ada", 21),))],
        [Question("a", "b?", CONTEXT, (Answer("Ada", 0),))],
    ]
    assert digest([question]) == digest([squad_files.Question(*vars(question).values())])
    assert len({digest([question]), *map(digest, others)}) == 1 + len(others)
