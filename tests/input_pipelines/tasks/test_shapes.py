"""Files as people have them: a row for each shape, with where it comes from and what is read."""

import dataclasses
import gzip
import io
import json
from typing import Any, NamedTuple

import pytest
from text_documents import read_documents

from input_pipelines.tasks import examples, squad_files, tag_files, task_table
from input_pipelines.text.documents import TextOptions


class Shape(NamedTuple):
    """A file, and what is expected of it; `options` are arguments of the reader."""

    source: str
    name: str
    content: bytes | str
    expected: Any
    options: dict[str, Any] = {}  # noqa: RUF012


def written(tmp_path, shape):
    content = shape.content
    if content is None:
        pytest.skip("needs pyarrow")
    (tmp_path / shape.name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(tmp_path / shape.name)


def holds(shape, read):
    """Asserts that a function reads what is expected, or refuses the file as expected."""
    if isinstance(shape.expected, str):
        with pytest.raises(ValueError) as caught:
            read()
        assert shape.expected in str(caught.value)
    else:
        assert read() == shape.expected


def parametrize(shapes):
    return pytest.mark.parametrize("shape", shapes, ids=[shape.source for shape in shapes])


def lines(*rows, **changes):
    return "".join(json.dumps({**row, **changes}, ensure_ascii=False) + "\n" for row in rows)


def parquet(rows, features=None, is_cut=False):
    """Returns a parquet file as `datasets` writes it; None without a pyarrow that works here."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return None
    table = pyarrow.Table.from_pylist(rows)
    if features:
        described = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": described})
    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream)
    return stream.getvalue()[:-9] if is_cut else stream.getvalue()


TWO = [("a", "x"), ("b", "y")]
CLASS_LABEL = {"names": ["neg", "pos"], "_type": "ClassLabel"}

TABLES = [
    Shape(
        "Quora's question pairs",
        "q.csv",
        '"id","question1","question2","is_duplicate"\n'
        '"0","Why ""x""?","How?","0"\n"1","A?","","1"\n',
        [('Why "x"?', "How?", "0"), ("A?", "", "1")],
        dict(label_column="is_duplicate"),
    ),
    Shape(
        "AG News",
        "train.csv",
        '"3","Bears","Short\\band"\n"1","A","B"\n',
        [("Bears", "Short\\band", "3"), ("A", "B", "1")],
        dict(text_a_column="2", text_b_column="3", label_column="1"),
    ),
    Shape("pandas' to_json", "p.json", '{"text":{"0":"a"},"label":{"0":"x"}}', "orient='records'"),
    Shape("capitals in a header", "c.csv", "Text,Label\na,x\nb,y\n", TWO),
    Shape(
        "UTF-16 without a mark",
        "u.tsv",
        "text\tlabel\r\na\tx\r\n".encode("utf-16-le"),
        "give --encoding=utf-16-le",
    ),
    Shape(
        "a workbook with another name",
        "w.csv",
        b"PK\x03\x04\x14\0\x06\0\x08\0\xff\xfe",
        "is not text, but a zip archive or a workbook",
    ),
    Shape(
        "LibreOffice",
        "l.csv",
        '\ufefftext,label\r\n"a\r\nb",x\r\nc,y\r\n',
        [("a\nb", "x"), ("c", "y")],
    ),
    Shape("an old Macintosh, with a last LF", "m.csv", "text,label\ra,x\rb,y\n", TWO),
    Shape("an old Macintosh, with a last CRLF", "m.tsv", "text\tlabel\ra\tx\rb\ty\r\n", TWO),
    Shape(
        "a decimal comma",
        "d.tsv",
        "text\tscore\na\t1,5\n",
        "with a decimal point",
        dict(kind="regression"),
    ),
    Shape(
        "pandas' to_csv with tabs and all quotes",
        "q.tsv",
        '"text"\t"label"\n"a"\t"x"\n',
        "Quotation marks are a part of the cells",
    ),
    Shape(
        "MySQL's quotes",
        "b.csv",
        'text,label\n"He said \\"hi\\"",x\n',
        "write each one within twice",
    ),
    Shape(
        "doccano's classes",
        "d.jsonl",
        lines({"text": "a", "label": ["x"]}, {"text": "b", "label": ["y"]}),
        TWO,
    ),
    Shape(
        "doccano with several classes",
        "d.jsonl",
        lines({"text": "a", "label": ["x", "y"]}),
        "give --task_kind=multi_label",
    ),
    Shape(
        "doccano's classes as several labels",
        "d.jsonl",
        lines({"text": "a", "label": ["x", "y"]}, {"text": "b", "label": []}),
        [("a", (1, 1)), ("b", (0, 0))],
        dict(kind="multi_label"),
    ),
    Shape(
        "prodigy, with answers that were refused",
        "p.jsonl",
        lines(
            *[{"text": text, "label": label, "answer": "accept"} for text, label in TWO],
            {"text": "c", "label": "x", "answer": "reject"},
            {"text": "d", "label": "z", "answer": "ignore"},
        ),
        TWO,
    ),
    Shape(
        "prodigy, whose answers are the labels",
        "p.jsonl",
        lines(
            {"text": "a", "label": "x", "answer": "accept"},
            {"text": "b", "label": "x", "answer": "reject"},
        ),
        [("a", "accept"), ("b", "reject")],
        dict(label_column="answer"),
    ),
    Shape(
        "answers that nobody refused",
        "a.jsonl",
        lines({"text": "a", "label": "x", "answer": "b"}, {"text": "b", "label": "y"}),
        TWO,
    ),
    *[
        Shape(
            f"CSV by hand, {row!r}",
            "s.csv",
            f"text,label\na,x\n{row}\n",
            "s.csv:3: a space stands between a comma and a quotation mark",
        )
        for row in ('"b", "y"', ' "b",y', 'b,  "y" ', 'b, "y, z"', 'b, "say ""y"""')
    ],
    *[
        Shape(
            f"some labels in {quotes}",
            "q.tsv",
            f"text\tlabel\na\tx\nb\t{quotes}x{quotes}\nc\ty\n",
            "which looks the same",
        )
        for quotes in ("'", '"')
    ],
    *[
        Shape(
            f"columns by number below a header, {labels[0]}",
            "h.csv",
            "review,sentiment\n" + "".join(f"t,{label}\n" for label in labels),
            "h.csv:1: columns given by number mean a file without header, but the first row has "
            "the label 'sentiment', as no other row has, and looks like a header",
            dict(text_a_column="1", label_column="2", **options),
        )
        for labels, options in [
            (["positive", "negative"] * 5, {}),
            (["1", "0"], {}),
            (["ab"] * 5 + ["c"] * 5, dict(kind="multi_label")),
        ]
    ],
    *[
        Shape(
            f"a first label that is alone, {row}",
            "n.csv",
            "t,rare\n" + f"t,{row}\n" * 4 + "t,z\n" * rest,
            [("t", "rare"), *[("t", row)] * 4, *[("t", "z")] * rest],
            dict(text_a_column="1", label_column="2"),
        )
        for row, rest in (("a", 2), ("2", 1), ("a", 0))
    ],
    Shape(
        "a class of which the first row is the only example",
        "n.csv",
        "It never came back,rare\n" + "t,a\n" * 5 + "t,b\n" * 5,
        [("It never came back", "rare"), *[("t", "a")] * 5, *[("t", "b")] * 5],
        dict(text_a_column="1", label_column="2"),
    ),
    Shape("gzip", "t.csv.gz", gzip.compress(b"text,label\na,x\nb,y\n"), TWO),
    Shape(
        "gzip with another name",
        "t.csv",
        gzip.compress(b"text,label\na,x\n"),
        "give it a name that ends in .gz",
    ),
    Shape(
        "the Hub's parquet",
        "t.parquet",
        parquet(
            [dict(text="a", label=1), dict(text="b", label=0)],
            {"label": CLASS_LABEL, "text": {"dtype": "string", "_type": "Value"}},
        ),
        [("a", "pos"), ("b", "neg")],
    ),
    Shape(
        "parquet with features of other forms",
        "t.parquet",
        parquet(
            [dict(text="a", label="x"), dict(text="b", label="y")], {"label": None, "text": [3]}
        ),
        TWO,
    ),
    Shape("pandas' parquet", "t.parquet", parquet([dict(text=a, label=b) for a, b in TWO]), TWO),
    Shape(
        "parquet, cut short",
        "t.parquet",
        parquet([dict(text="a", label="x")], is_cut=True),
        "is not complete",
    ),
]


@parametrize(TABLES)
def test_tables(tmp_path, shape):
    options = {"kind": "classification", **shape.options}

    def read():
        path = written(tmp_path, shape)
        task = task_table.own_task(train=path, evaluate=None, predict=None, **options)
        if task.kind != "regression":
            task = dataclasses.replace(task, labels=examples.discover_labels(task))
        return [
            tuple(
                task.labels[value] if isinstance(value, int) else value
                for value in dataclasses.astuple(example)
                if value is not None
            )
            for example in examples.read_examples(task, path, task.columns)
        ]

    holds(shape, read)


CONLL_U = """\
# text = Vamos al mar
1\tVamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2-3\tal\t_\t_\t_\t_\t_\t_\t_\t_
2\ta\ta\tADP\t_\t_\t4\tcase\t_\t_
3\tel\tel\tDET\t_\t_\t4\tdet\t_\t_
3.1\tir\tir\tVERB\t_\t_\t_\t_\t0:root\t_
4\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_

1\tS\u00ed\ts\u00ed\tINTJ\t_\t_\t0\troot\t_\t_
"""
OF_CONLL_U = [["Vamos/VERB", "a/ADP", "el/DET", "mar/NOUN"], ["S\u00ed/INTJ"]]
GERMEVAL = (
    "#\thttp://de.wikipedia.org/wiki/M [2009]\n1\tBei\tO\tO\n2\tHertha\tB-ORG\tO\n\n1\tJa\tO\tO\n"
)
APPLE = {"text": "Apple Inc. grows"}
OF_APPLE = [["Apple/B-ORG", "Inc/I-ORG", "./O", "grows/O"]]

TAGS = [
    Shape(
        "GermEval", "g.tsv", GERMEVAL, [["Bei/O", "Hertha/B-ORG"], ["Ja/O"]], dict(words=1, tags=2)
    ),
    Shape("GermEval without columns", "g.tsv", GERMEVAL, "the first column numbers the words"),
    Shape("CoNLL-U", "u.conllu", CONLL_U, OF_CONLL_U),
    Shape(
        "CoNLL-U, another column",
        "u.conllu",
        CONLL_U,
        [["Vamos/root", "a/case", "el/det", "mar/obl"], ["S\u00ed/root"]],
        dict(tags=7),
    ),
    Shape("CoNLL-U as .conll", "u.conll", CONLL_U, OF_CONLL_U, dict(words=1, tags=3)),
    Shape(
        "lemmas that look like CoNLL-U's ranges",
        "l.conll",
        "rise rose O\n3.5 3.5 B-PCT\npercent percent I-PCT\n1990-91 1990-91 B-DATE\n\n7-1 x O\n",
        [["rose/O", "3.5/B-PCT", "percent/I-PCT", "1990-91/B-DATE"], ["x/O"]],
        dict(words=1, tags=2),
    ),
    Shape(
        "times beside words",
        "t.tsv",
        "0.5\ta\tO\n1.25\tb\tB-X\n2\tc\tO\n",
        [["a/O", "b/B-X", "c/O"]],
        dict(words=1),
    ),
    Shape(
        "CoNLL-U, numbered from another number",
        "u.conllu",
        CONLL_U.replace("1\tVamos", "7\tVamos"),
        OF_CONLL_U,
    ),
    Shape(
        "MIT movies, the tag first",
        "m.bio",
        "O\twhat\nB-ACTOR\tsteve\n",
        [["what/O", "steve/B-ACTOR"]],
        dict(words=1, tags=0),
    ),
    Shape(
        "WNUT-17, a tab between sentences",
        "w.conll",
        "@paul\tO\nESB\tB-location\n\t\nx\tO\n",
        [["@paul/O", "ESB/B-location"], ["x/O"]],
    ),
    Shape(
        "tweets with spaces as words",
        "t.conll",
        "a O\n\u00a0 O\n\u200b O\nb B-X\n",
        [["a/O", "\u00a0/O", "\u200b/O", "b/B-X"]],
    ),
    Shape(
        "Label Studio's JSON-MIN",
        "l.json",
        json.dumps([{**APPLE, "label": [{"start": 0, "end": 9, "labels": ["ORG"]}]}]),
        OF_APPLE,
    ),
    Shape(
        "tokens without places",
        "p.jsonl",
        lines({"text": "A b", "tokens": [{"text": "A"}], "spans": [[0, 1, "X"]]}),
        'p.jsonl:1: the token {"text": "A"} needs the start and end of a part of \'text\'',
    ),
    Shape(
        "tokens beyond the text",
        "p.jsonl",
        lines({"text": "A b", "tokens": [{"start": 2, "end": 9}], "spans": []}),
        "needs the start and end of a part of 'text'",
    ),
    Shape(
        "a text without words",
        "p.jsonl",
        lines({"text": "", "spans": []}),
        "p.jsonl:1: 'text' is \"\"; it must have words",
    ),
    Shape("doccano's spans", "d.jsonl", lines({**APPLE, "label": [[0, 9, "ORG"]]}), OF_APPLE),
    Shape(
        "doccano's entities",
        "d.jsonl",
        lines({**APPLE, "entities": [{"start_offset": 0, "end_offset": 9, "label": "ORG"}]}),
        OF_APPLE,
    ),
    Shape(
        "prodigy",
        "p.jsonl",
        lines(
            {
                "text": "Hi Apple.",
                "tokens": [{"start": 0, "end": 2}, {"start": 3, "end": 9}],
                "spans": [{"start": 3, "end": 9, "label": "ORG"}],
            }
        ),
        [["Hi/O", "Apple./B-ORG"]],
    ),
    *[
        Shape(
            f"spans of a text with {what}",
            "d.jsonl",
            lines({"text": text, "label": [[start, end, "X"]]}),
            [expected],
        )
        for what, text, start, end, expected in [
            (
                "vowel signs",
                "\u0926\u093f\u0932\u094d\u0932\u0940 \u092e\u0947\u0902",
                0,
                6,
                ["\u0926\u093f\u0932\u094d\u0932\u0940/B-X", "\u092e\u0947\u0902/O"],
            ),
            ("a joiner", "\u0646\u200c\u0645 a", 0, 3, ["\u0646\u200c\u0645/B-X", "a/O"]),
            ("a soft hyphen", "Do\u00adnau a", 0, 6, ["Do\u00adnau/B-X", "a/O"]),
            ("marks of direction", "\u200fa\u200e! b", 0, 3, ["a/B-X", "!/O", "b/O"]),
            ("a mark of direction before it", "\u200fa b", 1, 2, ["a/B-X", "b/O"]),
            ("a space without width", "a\u200bb", 0, 1, ["a/B-X", "b/O"]),
            ("a picture", "\u2764\ufe0fa b", 0, 2, ["\u2764\ufe0f/B-X", "a/O", "b/O"]),
        ]
    ],
    Shape(
        "prodigy's tokens with a mark of direction",
        "p.jsonl",
        lines(
            {
                "text": "a\u200e b",
                "tokens": [{"start": 0, "end": 2}, {"start": 3, "end": 4}],
                "spans": [[0, 2, "X"]],
            }
        ),
        [["a\u200e/B-X", "b/O"]],
    ),
    Shape(
        "a span within a word",
        "d.jsonl",
        lines({**APPLE, "label": [[0, 3, "ORG"]]}),
        'the span [0, 3, "ORG"] must begin and end where words do; it overlaps the words ["Apple"]',
    ),
    Shape(
        "spans that overlap",
        "d.jsonl",
        lines({**APPLE, "label": [[0, 9, "A"], [6, 9, "B"]]}),
        "overlaps another span",
    ),
    Shape(
        "a text without spans", "d.jsonl", lines(APPLE), "give spans, or lists of words and tags"
    ),
    Shape(
        "datasets, with numbers",
        "d.jsonl",
        lines({"tokens": ["EU", "x"], "ner_tags": [3, 0]}),
        [["EU/3", "x/0"]],
    ),
    Shape(
        "datasets, parquet",
        "d.parquet",
        parquet(
            [{"tokens": ["EU", "x"], "ner_tags": [1, 0]}],
            {
                "ner_tags": {
                    "feature": {"names": ["O", "B-ORG"], "_type": "ClassLabel"},
                    "_type": "List",
                }
            },
        ),
        [["EU/B-ORG", "x/O"]],
    ),
    *[
        Shape(
            f"a header, {header}",
            "h.tsv",
            f"{header}\nEU\tNNP\nis\tVBZ\n".replace(" ", "\t"),
            "h.tsv:1: names the columns",
        )
        for header in ("word pos", "Form UPOS", "Wort Tag", "token ner_tags")
    ],
    Shape(
        "Windows",
        "w.conll",
        "K\u00f6ln B-LOC\r\n \r\nist O\r\n".encode("cp1252"),
        [["K\u00f6ln/B-LOC"], ["ist/O"]],
        dict(encoding="cp1252"),
    ),
]


@parametrize(TAGS)
def test_tags(tmp_path, shape):
    def read():
        path, columns = written(tmp_path, shape), tag_files.Columns(**shape.options)
        tags = tag_files.discover_tags(path, columns)
        sentences = tag_files.read_sentences(path, columns, tags)
        pairs = [zip(sentence.words, sentence.tags, strict=True) for sentence in sentences]
        return [[f"{word}/{tags[number]}" for word, number in sentence] for sentence in pairs]

    holds(shape, read)


@parametrize([shape for shape in TAGS if not isinstance(shape.expected, str)])
def test_predicted_tags_are_added_to_words_alone(tmp_path, shape):
    path, columns = written(tmp_path, shape), tag_files.Columns(**shape.options)
    tags = [[f"T{number}" for number, _ in enumerate(sentence)] for sentence in shape.expected]
    tagged = list(tag_files.tagged_lines(path, columns, tags))
    if tag_files.extension(path) == ".jsonl":
        rows = list(map(json.loads, tagged))
        words = [row["words"] if "words" in row else row["tokens"] for row in rows]
        assert words == [[word.rpartition("/")[0] for word in s] for s in shape.expected]
        assert [row["predicted_tags"] for row in rows] == tags
        return
    added = [line.replace("\t", " ").split(" ")[-1] for line in tagged]
    assert [tag for tag in added if tag.startswith("T")] == [t for s in tags for t in s]


CONTEXT = "Ada met Bob. Bob met Ada."
BOB = [{"text": "Bob", "answer_start": 8}]
ROW = {
    "id": "1",
    "context": CONTEXT,
    "question": "q",
    "answers": {"text": ["Bob"], "answer_start": [8]},
}
IS_BOB = [("1", "Bob", 8)]


def squad(answers=BOB, name: Any = "1", **changes):
    """Returns an article with a question."""
    question = {"id": name, "question": "q", "answers": answers, **changes}
    return {"title": "t", "paragraphs": [{"context": CONTEXT, "qas": [question]}]}


def data(*articles):
    return json.dumps({"version": "1", "data": articles})


QUESTIONS = [
    Shape("SQuAD 2.0 without is_impossible", "s.json", data(squad([])), [("1",)]),
    Shape(
        "DuReader, -1 for no answer",
        "d.json",
        data(squad([{"text": "", "answer_start": -1}])),
        [("1",)],
    ),
    Shape(
        "Haystack's annotations",
        "h.json",
        data(squad([{**BOB[0], "answer_id": 3, "answer_category": None}], 26, is_impossible=False)),
        [("26", "Bob", 8)],
    ),
    Shape(
        "pandas' whole numbers",
        "p.json",
        data(squad([{"text": "Bob", "answer_start": 8.0}])),
        IS_BOB,
    ),
    Shape("an array of articles", "a.json", json.dumps([squad()]), IS_BOB),
    Shape("an article a line", "a.jsonl", json.dumps(squad()) + "\n", IS_BOB),
    Shape(
        "answers as datasets has them, in SQuAD's layout",
        "a.json",
        data(squad({"text": ["Bob"], "answer_start": [8]})),
        IS_BOB,
    ),
    Shape("transformers' run_qa, questions under data", "q.json", data(ROW), IS_BOB),
    *[
        Shape(
            f"datasets, an empty text at {start} for no answer",
            "q.jsonl",
            lines(ROW, answers={"text": [""], "answer_start": [start]}),
            [("1",)],
        )
        for start in (0, -1)
    ],
    Shape("the Hub's parquet", "q.parquet", parquet([ROW]), IS_BOB),
    Shape("gzip", "s.json.gz", gzip.compress(data(squad()).encode()), IS_BOB),
]


@parametrize(QUESTIONS)
def test_questions(tmp_path, shape):
    def read():
        path = written(tmp_path, shape)
        questions = squad_files.located(squad_files.read(path, True, version_2=True), path)
        answers = [question.answers[:1] for question in questions]
        return [
            (question.id, *(part for answer in first for part in dataclasses.astuple(answer)))
            for question, first in zip(questions, answers, strict=True)
        ]

    holds(shape, read)


TEXTS = [
    Shape("the Hub's parquet", "w.parquet", parquet([{"text": "One. Two."}]), [["One.", "Two."]]),
    Shape("Windows", "w.txt", "K\u00f6ln.".encode("cp1252"), "iconv -f cp1252 -t utf-8"),
    Shape("UTF-16", "u.txt", "Ja.".encode("utf-16"), "if it is UTF-16, convert it to UTF-8"),
]


@parametrize(TEXTS)
def test_texts(tmp_path, shape):
    path = written(tmp_path, shape)
    holds(shape, lambda: list(read_documents([path], options=TextOptions(**shape.options))))
