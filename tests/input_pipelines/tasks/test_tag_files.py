"""Sentences of tagged words: formats, wrong files, and predicted tags in the same format."""

import json

import pytest

from input_pipelines.tasks import tag_files
from input_pipelines.tasks.table_files import TableError
from input_pipelines.tasks.tag_files import Columns, Sentence

TAGS = ("O", "B-X", "I-X")
CONLL = "-DOCSTART- -X- O\n\nEU NNP B-X\nrejects VBZ O\n\n\ncalls NNS I-X\n"
EXPECTED = [Sentence(("EU", "rejects"), (1, 0)), Sentence(("calls",), (2,))]


def written(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize(
    "content",
    [CONLL, CONLL.replace(" ", "\t"), CONLL.replace("\n", "\r\n"), CONLL.replace(" ", "  ")]
    + [CONLL.rstrip("\n"), "\ufeff" + CONLL],
    ids=["spaces", "tabs", "windows", "two spaces", "no end", "byte order mark"],
)
def test_conll(tmp_path, content):
    path = written(tmp_path, "a.conll", content)
    assert tag_files.read_sentences(path, Columns(), TAGS) == EXPECTED
    assert tag_files.discover_tags(path, Columns()) == ("O", "B-X", "I-X")


@pytest.mark.parametrize(
    ("number", "columns"),
    [
        (2, Columns()),
        (3, Columns(0, 2)),
        (4, Columns(tags=3)),
        (4, Columns(1, 3)),
        (1, Columns()),
        (5, Columns()),
        (10, Columns(1, 9)),
        (30, Columns(tags=29)),
    ],
)
def test_any_number_of_columns(tmp_path, number, columns):
    cells = [["a", "w", *["NN"] * 27, "O"], ["b", "v", *["NN"] * 27, "B-X"]]
    kept = [*range(number - 1), 29] if number > 1 else [0]
    for separator in (" ", "\t"):
        content = "".join(separator.join(row[c] for c in kept) + "\n" for row in cells)
        path = written(tmp_path, "a.txt", content)
        tags = TAGS if number > 1 else None
        (sentence,) = tag_files.read_sentences(path, columns, tags)
        assert sentence.words == (("w", "v") if columns.words else ("a", "b"))
        assert sentence.tags == ((0, 1) if number > 1 else None)


# Shapes of published files: what is not a word never fixes the columns, and gets no predicted tag.
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("-DOCSTART-\n\na NN O\n", ["a"]),
        ("-DOCSTART- -X- O O\n\na O\nb B-X\n", ["a", "b"]),
        ("-DOCSTART-\ta\tb\tc\n\na\tO\n", ["a"]),
        ("# newdoc\na O\nb O\n\n# newdoc\nc O\n", ["a", "b", "c"]),  # CoNLL-U's comments
        ("# id = 7\n# text = a b\na\tNN\tO\n\n# id = 8\nb\tNN\tO\n", ["a", "b"]),
        ("#\thttp://de.wikipedia.org\t[2009-10-17]\n1\ta\tO\tO\n", ["a"]),  # GermEval 2014
        ("# id 3 domain=de\na _ _ O\nb _ _ O\n", ["a", "b"]),  # MultiCoNER
        ("#begin document (a); part 000\na NN O\n\n#end document\n", ["a"]),  # CoNLL-2012
        ("a O\n\n# O\nb O\n", ["a", "#", "b"]),  # the word #
        ("a\tO\n\n#\tO\nb\tO\n", ["a", "#", "b"]),
        ("a O\n# O\n", ["a", "#"]),
        ("a DT O\nb # O\n\n# # O\n", ["a", "b", "#"]),  # the tag of # in the Penn Treebank
        ("#tag B-X\nb O\n\n#other O\n", ["#tag", "b", "#other"]),  # Twitter
        ("a O\n# newdoc\nb O\n", ["a", "#", "b"]),  # within a sentence it is a word
        ("# O\n", ["#"]),
        ("a O 1\n\n# O 2\n", ["a", "#"]),
    ],
)
def test_comments_and_boundaries(tmp_path, content, words):
    columns = Columns(
        words=1 if "wikipedia" in content else None, tags=1 if "O 1" in content else None
    )
    path = written(tmp_path, "a.conll", content)
    sentences = tag_files.read_sentences(path, columns, None)
    assert [word for sentence in sentences for word in sentence.words] == words
    names = tag_files.discover_tags(path, columns, are_all=False)
    assert sentences == [Sentence(s.words) for s in tag_files.read_sentences(path, columns, names)]
    tags = [["I-X"] * len(sentence.words) for sentence in sentences]
    lines = list(tag_files.tagged_lines(path, columns, tags))
    given = content.splitlines()
    assert len(lines) == len(given)
    assert sum(line.endswith("I-X") for line in lines) == len(words)
    for line, before in zip(lines, given, strict=True):
        assert line == before or line[: len(before)] == before
        assert line == before or line[len(before) :].strip() in ("I-X", "O")
    again = written(tmp_path, "b.conll", "\n".join(lines) + "\n")
    assert tag_files.read_sentences(again, columns, None) == sentences


def test_a_file_of_words_alone(tmp_path):
    content = "# newdoc\n#\na\n\n# text = b\n#b\n"
    path = written(tmp_path, "a.txt", content)
    sentences = tag_files.read_sentences(path, Columns(), None)
    assert [sentence.words for sentence in sentences] == [("#", "a"), ("#b",)]


@pytest.mark.parametrize(
    ("keys", "columns"),
    [
        (("words", "tags"), Columns()),
        (("tokens", "ner_tags"), Columns()),
        (("w", "t"), Columns("w", "t")),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.ndjson"])
@pytest.mark.parametrize("is_lines", [True, False])
def test_json(tmp_path, keys, columns, name, is_lines):
    rows = [
        {keys[0]: ["EU", "rejects"], keys[1]: ["B-X", "O"], "id": 7},
        {keys[0]: ["calls"], keys[1]: ["I-X"], "id": 8},
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows) if is_lines else json.dumps(rows)
    path = written(tmp_path, name, content)
    assert tag_files.read_sentences(path, columns, TAGS) == EXPECTED
    assert tag_files.extension(path) == ".jsonl"
    lines = list(tag_files.tagged_lines(path, columns, [["O", "B-X"], ["O"]]))
    assert [json.loads(line) for line in lines] == [
        {**rows[0], "predicted_tags": ["O", "B-X"]},
        {**rows[1], "predicted_tags": ["O"]},
    ]


def test_words_that_a_flag_names_stay_as_they_are(tmp_path):
    path = written(tmp_path, "a.jsonl", json.dumps({"mots": ["a", "b c"], "text": "a b c"}))
    (line,) = tag_files.tagged_lines(path, Columns("mots"), [["O", "B-X"]])
    expected = {"mots": ["a", "b c"], "text": "a b c", "predicted_tags": ["O", "B-X"]}
    assert json.loads(line) == expected


def test_a_tag_with_a_space_is_no_column(tmp_path):
    tags = ("O", "new york", "B-X", "a\u00a0b")
    for name, content in (("a.jsonl", '{"words": ["x"]}\n'), ("a.tsv", "\nx\tO\ny\tO\n")):
        tag_files.check_can_be_written(written(tmp_path, name, content), Columns(), tags)
    path = written(tmp_path, "a.conll", "\nx O\n\ty O\n")
    tag_files.check_can_be_written(path, Columns(), ("O", "B-X", "a\u00a0b"))
    message = f"{path}: spaces separate its columns, .* the tag 'new york' has a space in it"
    with pytest.raises(TableError, match=message):
        tag_files.check_can_be_written(path, Columns(), tags)


def test_words_may_hold_spaces_between_tabs(tmp_path):
    path = written(tmp_path, "a.tsv", "New York\tB-X\n\u00a0x y\tO\n")
    (sentence,) = tag_files.read_sentences(path, Columns(), TAGS)
    assert sentence.words == ("New York", "\u00a0x y")


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("a.csv", "a,b", Columns(), "{path}: the format is unknown; the name of a file of tagged"),
        ("a.conll", "", Columns(), "{path}: has 0 sentences"),
        ("a.conll", "a\n", Columns(), "{path}:1: has 1 columns; it must have 2 or more"),
        ("a.conll", "# a\n\na O\nb\n", Columns(), "{path}:4: has 1 columns, but line 3 has 2"),
        ("a.conll", "a\tO\nb O\n", Columns(), "{path}:2: has 1 columns, but .* by tabs"),
        ("a.conll", "a O\n", Columns(2), "{path}:1: has 2 columns; it must have 3 or more"),
        ("a.conll", "a O\n", Columns(-1), "{path}: columns are numbered from 1"),
        ("a.conll", "a\tO\n\tO\n", Columns(), "{path}:2: the word is empty"),
        ("a.conll", "a\tb\tO\na\t\t \n", Columns(0, 1), "{path}:2: has 1 columns"),
        ("a.conll", "a O\nb B-Z\n", Columns(), "{path}:2: the tag is 'B-Z'; it must be one of O, "),
        ("a.conll", "a O\n", Columns("words"), "{path}: the columns of a CoNLL file have no names"),
        ("a.conll", b"a O\n\xe9 O\n", Columns(), "{path}:2: is not UTF-8 at byte 1"),
        ("a.jsonl", "{}", Columns(), "{path}:1: its keys are , which do not include any of words"),
        ("a.jsonl", '{"words": []}', Columns(), "{path}:1: 'words' is .*; it must be a list of"),
        ("a.jsonl", '{"words": "a"}', Columns(), "{path}:1: 'words' is .*; it must be a list of"),
        ("a.jsonl", '{"words": [1]}', Columns(), "{path}:1: a word of 'words' is 1; it must be a"),
        (
            "a.jsonl",
            '{"words": ["a"], "tags": "O"}',
            Columns(),
            "{path}:1: the tags are .*; they must be a list",
        ),
        (
            "a.jsonl",
            '{"words": ["a"], "tags": ["O", "O"]}',
            Columns(),
            "{path}:1: has 1 words, but 2 tags; each word needs a tag",
        ),
        ("a.jsonl", '{"words": ["a"], "tags": [""]}', Columns(), "{path}:1: a tag is empty"),
        ("a.jsonl", '{"words": ["a"], "tags": [null]}', Columns(), "{path}:1: the label is null"),
        ("a.jsonl", '{"words": ["a"]}', Columns("w"), "{path}:1: has no key 'w'; it has words"),
        ("a.jsonl", '{"words": ["a"]}', Columns(0), "{path}: give the key of the words, since"),
    ],
)
def test_wrong_files(tmp_path, name, content, columns, message):
    path = written(tmp_path, name, content)
    with pytest.raises(TableError, match="^" + message.format(path=path)):
        tag_files.read_sentences(path, columns, TAGS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a O\nb O\n", "{path}:1: the tag is 'O' here and at all other words, so that there is"),
        (
            "a O\nb B-\u00d3\n\nc B-O\u0301\n",
            "{path}:4: the tag is .*, but in line 2 it is .*, which looks the same",
        ),
        *(
            (
                f"a O\nb\tB-X Y\n\nc\tB-X{unseen}Y\n".replace("a O", "a\tO"),
                "{path}:4: the tag is .*, but in line 2 it is .*, which looks the same",
            )
            for unseen in ("\u200b ", " \u200e", "\u00ad ", " \ufe0f", "\u00a0", "  ", "\ufeff ")
        ),
        ("a O\nb B-X\n\nc Q-X\n", "{path}:4: the tag 'Q-X' stands beside 'B-X'"),
    ],
)
def test_tags_that_cannot_be_learnt(tmp_path, content, message):
    path = written(tmp_path, "a.conll", content)
    with pytest.raises(TableError, match="^" + message.format(path=path)):
        tag_files.discover_tags(path, Columns())


def test_a_tag_that_looks_like_another_of_the_task(tmp_path):
    path = written(tmp_path, "a.conll", "a O\nb B-X\u200b\n")
    with pytest.raises(
        TableError, match=r'a.conll:2: the tag is "B-X\\u200b", which looks the same'
    ):
        tag_files.read_sentences(path, Columns(), TAGS)


def test_joined_files_have_byte_order_marks_within(tmp_path):
    path = written(tmp_path, "a.conll", "\ufeffa O\n\n\ufeff-DOCSTART- O\n\n\ufeffb B-X\n")
    found = tag_files.read_sentences(path, Columns(), TAGS)
    assert [sentence.words for sentence in found] == [("a",), ("b",)]
    assert tag_files.discover_tags(path, Columns()) == ("O", "B-X")
    tagged = list(tag_files.tagged_lines(path, Columns(), [["O"], ["O"]]))
    assert tagged == ["a O O", "", "-DOCSTART- O O", "", "b B-X O"]


def test_a_rare_tag_that_says_that_there_is_none(tmp_path, capsys):
    sentence = {"tokens": ["a"] * 40, "ner_tags": [0, 1] * 20}
    last = {"tokens": ["a", "b"], "ner_tags": [1, -100]}
    path = written(tmp_path, "a.jsonl", f"{json.dumps(sentence)}\n{json.dumps(last)}\n")
    assert set(tag_files.discover_tags(path, Columns())) == {"0", "1", "-100"}
    message = f"WARNING: {path}:2: the tag is '-100' here and 1 of 42 times in the file."
    assert message in capsys.readouterr().out


def test_rows_that_annotators_refused(tmp_path, capsys):
    """Their spans are not learned; a file to predict for has an answer for each row."""
    accepted, refused = [
        {"text": "a b", "spans": [[0, 1, label]], "answer": answer}
        for label, answer in (("X", "accept"), ("Z", "reject"))
    ]
    content = "".join(
        json.dumps(row) + "\n" for row in (accepted, refused, {**refused, "answer": "ignore"})
    )
    path = written(tmp_path, "a.jsonl", content)
    assert tag_files.discover_tags(path, Columns()) == ("O", "B-X")
    assert tag_files.read_sentences(path, Columns(), TAGS) == [Sentence(("a", "b"), (1, 0))]
    message = "left out 2 rows whose 'answer' is reject or ignore: annotators refused their labels"
    assert capsys.readouterr().out == f"{path}: {message}\n"
    sentences = tag_files.read_sentences(path, Columns(), None)
    assert (
        len(sentences) == len(list(tag_files.tagged_lines(path, Columns(), [["O", "O"]] * 3))) == 3
    )
