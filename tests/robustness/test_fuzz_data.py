"""The parsers of text, tags, questions and plans, fed with what nobody meant; see test_fuzz.py."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
from fuzzing import bytes_of, changed, damaged, fuzzed
from hypothesis import configuration
from hypothesis import strategies as st
from tiny_run import words

from bert_estimator.command_line import flags, provenance
from bert_estimator.command_line.provenance import read_command_line
from bert_estimator.jobs.fine_tuning import question_answering_config
from bert_estimator.jobs.run import Rollbacks
from bert_estimator.system import json_files
from bert_estimator.tokenization import SPECIAL_TOKENS, entities, open_tokenizer, write_vocab
from input_pipelines.tasks import answers, squad_files, squad_metrics, tag_files
from input_pipelines.tasks.answers import Search
from input_pipelines.tasks.features import TagFeatures
from input_pipelines.tasks.squad_files import SquadError
from input_pipelines.tasks.table_files import TableError
from input_pipelines.tasks.tag_files import Columns
from input_pipelines.tasks.windows import Windows
from input_pipelines.text import documents, text_files


@pytest.fixture(scope="module", autouse=True)
def nothing_in_the_working_directory(tmp_path_factory):
    configuration.set_hypothesis_home_dir(tmp_path_factory.mktemp("hypothesis"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    write_vocab([*SPECIAL_TOKENS, *words(9), "what", "?", "a", "##a"], str(path))
    return open_tokenizer(str(path), do_lower_case=True)


def question(name, **changes):
    values = {"id": name, "question": "what w1?", "answers": [{"text": "w2", "answer_start": 3}]}
    return {**values, **changes}


CONTEXTS = [
    {"context": "w1 w2 w3\u2028w4 a\u0301a 中文 w5", "qas": [question("q1"), question("q2")]},
    {"context": "w6 w7", "qas": [question("q3", is_impossible=True, answers=[])]},
]
QUESTIONS = {"version": "v2.0", "data": [{"title": "t", "paragraphs": CONTEXTS}]}


@fuzzed(st.tuples(bytes_of(QUESTIONS), st.integers(0, 2**31)))
def test_questions(tmp_path, tokenizer, data, capsys):
    """What is read can be laid out, answered and scored, whatever is in it."""
    path = tmp_path / "a.json"
    path.write_bytes(data[0])
    for version_2 in (True, False):
        try:
            asked = squad_files.read(str(path), True, version_2)
            asked = squad_files.answerable(squad_files.located(asked, str(path)), str(path))
        except SquadError as error:
            assert str(error).startswith(str(path))
            continue
        windows = Windows(asked, tokenizer, 16, 4, 3)
        batch = windows.batch(np.arange(-1, len(windows)))
        assert batch["input_ids"].shape == (len(windows) + 1, 16)
        assert batch["end_positions"].max() < 16
        logits = np.random.default_rng(data[1]).normal(size=(2, len(windows), 16))
        search = Search(3, 5, version_2, 0.0)
        predictions = list(answers.predict(windows, list(zip(*logits, strict=True)), search))
        assert [prediction.id for prediction in predictions] == [q.id for q in asked]
        scores = answers.evaluate(windows, predictions, version_2)
        assert sorted(scores) == sorted(answers.metric_names(windows, version_2))
        assert all(0 <= scores[name] <= 100 for name in ("f1", "exact_match"))
        answers.write(str(tmp_path), predictions, version_2)
        json_files.read(str(tmp_path / "nbest_predictions.json"))


@fuzzed(st.tuples(st.text(max_size=30), st.lists(st.text(max_size=30), max_size=3)))
def test_scores_of_answers(data):
    for version_2 in (True, False):
        score = squad_metrics.score(*data, version_2)
        assert 0 <= score.f1 <= 1


CONLL = "-DOCSTART- -X- O\n\nw1 NN B-A\nw2 NN I-A\nw3 NN O\n\nw4\u2028 NN O\n".encode()
TAGGED = b'{"words": ["w1", "w2"], "tags": ["B-A", "O"]}\n{"words": ["w3"], "tags": ["I-A"]}\n'
COLUMNS = st.one_of(st.none(), st.integers(-3, 9), st.sampled_from(["words", "tags", "x"]))


@fuzzed(st.tuples(damaged(CONLL), st.one_of(damaged(TAGGED), bytes_of([1])), COLUMNS, COLUMNS))
def test_tagged_words(tmp_path, tokenizer, data):
    """What is read can be laid out, and its tags can be written beside it."""
    for name, content in (("a.conll", data[0]), ("a.tsv", data[0]), ("a.jsonl", data[1])):
        path = tmp_path / name
        path.write_bytes(content)
        for columns in (Columns(), Columns(data[2], data[3])):
            try:
                names = tag_files.discover_tags(str(path), columns)
                sentences = tag_files.read_sentences(str(path), columns, names)
                unread = tag_files.read_sentences(str(path), columns, None)
            except TableError as error:
                assert str(error).startswith(str(path))
                continue
            assert [s.words for s in sentences] == [s.words for s in unread]
            tags = [[names[tag] for tag in sentence.tags] for sentence in sentences]
            features = TagFeatures(sentences, tokenizer, 8)
            assert features.batch(np.arange(len(features)))["input_ids"].shape[1] == 8
            lines = list(tag_files.tagged_lines(str(path), columns, tags))
            again = tmp_path / f"again{path.suffix}"
            again.write_text("\n".join(lines) + "\n", encoding="utf-8")
            if name == "a.jsonl":
                key = Columns(columns.words, tag_files.PREDICTED)
                assert tag_files.read_sentences(str(again), key, names) == sentences


TAGS = st.lists(
    st.one_of(
        st.sampled_from(["O", "B-A", "I-A", "E-A", "S-A", "L-A", "U-A"]),
        st.sampled_from(["B-", "-", "I", "", "B-A-B"]),
        st.text(max_size=4),
    ),
    max_size=9,
)  # fmt: skip


@fuzzed(st.tuples(TAGS, TAGS))
def test_tags(data):
    gold, predicted = (tags[: min(map(len, data))] for tags in data)
    try:
        if not entities.are_entity_tags({*gold, *predicted}):
            return
    except entities.TagError as error:
        assert error.tag in {*gold, *predicted}
        return
    for _, start, end in entities.entities(gold):
        assert 0 <= start < end <= len(gold)
    entities.scores([gold], [predicted])


TEXTS = (
    b"w1 w2. w3!\nw4\n\nw5 w6\n",
    b'<doc id="1" url="" title="w1 &amp; w2">\nw1\n\nw3 w4.\n</doc>\n<doc id="2">\nw5\n</doc>\n',
    b'{"text": "w1 w2.\\nw3", "id": 3}\n{"text": null}\n{"text": "w4"}\n',
    "\ufeffw1 é中\r\n\x0b w2\x85\n\0\n".encode(),
)
PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, "": bytes}


@fuzzed(
    st.tuples(
        st.sampled_from(TEXTS).flatmap(damaged),
        st.sampled_from(["", ".jsonl", ".txt"]),
        st.sampled_from(sorted(PACKED)),
        st.one_of(st.none(), st.binary(max_size=5)),
        st.integers(0, 200),
    )
)
def test_texts(tmp_path, data):
    content, ending, packing, broken, place = data
    path = tmp_path / f"a{ending}{packing}"
    packed = bytearray(PACKED[packing](content))
    if broken is not None:
        packed[place : place + len(broken)] = broken
    path.write_bytes(packed)
    for options in (
        documents.TextOptions(),
        documents.TextOptions(split_sentences="yes"),
        documents.TextOptions(document_per_file=True, text_field="id"),
    ):
        try:
            documents.is_plain(str(path), options)
            for piece in documents.pieces_of_file(str(path), options=options):
                assert piece.sentences and all(piece.sentences)
        except ValueError as error:
            assert str(error).startswith(str(path))
    assert text_files.packing(str(path)) == packing


PLAN = {"do_train": True, "learning_rate": 1e-3, "train_file": "a", "doc_stride": 4}
RUN = {"flags": {"doc_stride": {"value": 3, "from": "flag"}, "recipe": {"from": "default"}}}


@fuzzed(st.one_of(bytes_of(PLAN), bytes_of(RUN), changed(PLAN).map(lambda v: repr(v).encode())))
def test_a_file_of_flags(tmp_path, data):
    path = tmp_path / "a.json"
    path.write_bytes(data)
    try:
        read_command_line(
            question_answering_config.QuestionAnsweringConfig, ["script", f"--config={path}"]
        )
        for argument in provenance.file_arguments(str(path)):
            assert argument.startswith("--")
    except flags.FlagError as error:
        assert str(error)


@fuzzed(bytes_of({"rollbacks": [{"step": 4, "skipped": 3}, {"step": 4, "skipped": 1}]}))
def test_rollbacks(tmp_path, data):
    (tmp_path / "rollbacks.json").write_bytes(data)
    try:
        for step, number in Rollbacks(str(tmp_path), 1).skipped:
            assert isinstance(step, int) and isinstance(number, int)
    except flags.FlagError as error:
        assert "rollbacks.json cannot be read" in str(error)
