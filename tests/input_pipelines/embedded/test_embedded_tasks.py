"""The labelled tasks of the embedded corpus: balanced, split, the same every time."""

import collections

import pytest

from input_pipelines.embedded import embedded_corpus, embedded_tasks
from input_pipelines.tasks import baselines


@pytest.fixture(scope="module")
def tasks(corpus):
    """Returns the tasks by name."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(embedded_corpus, "load", lambda: corpus)
        return {name: make() for name, make in embedded_tasks.TASKS.items()}


@pytest.mark.parametrize("name", embedded_tasks.TASKS)
def test_a_task_is_balanced_and_words_alone_tell_nothing(tasks, name):
    task = tasks[name]
    for side in (task.train, task.held_out):
        assert collections.Counter(example.label for example in side).most_common(1)[0][1] * 2 == (
            len(side)
        )
        words = [collections.Counter(), collections.Counter()]
        for example in side:
            text = f"{example.text_a} {example.text_b or ''}"
            words[example.label].update(text.replace(".", "").split())
        assert words[0] == words[1]
    assert len(task.train) > 5000 and len(task.held_out) > 500


@pytest.mark.parametrize("name", embedded_tasks.TASKS)
def test_no_example_is_on_both_sides(tasks, name):
    task = tasks[name]
    sides = [{(e.text_a, e.text_b) for e in side} for side in (task.train, task.held_out)]
    # A sentence may be another one with its parts exchanged.
    assert len(sides[0] & sides[1]) <= 0.003 * len(sides[1])


def test_what_is_held_out_was_held_out_of_pretraining(corpus, tasks):
    for side in ("train", "held_out"):
        sentences = {s.rstrip(".!?:") for document in getattr(corpus, side) for s in document}
        written = {e.text_a for e in getattr(tasks["word_order"], side) if e.label == 1}
        assert written <= sentences


def test_examples(tasks):
    written, changed = tasks["word_order"].held_out[:2]
    words = written.text_a.split()
    rotations = [words[i:] + words[:i] for i in range(2, len(words) - 1)]
    assert (written.label, changed.label) == (1, 0)
    assert changed.text_a.split() in rotations
    own, other = tasks["summary"].train[:2]
    assert own.text_a == other.text_a and own.text_b != other.text_b
    assert "(" in own.text_a


def test_a_task_is_the_same_every_time(monkeypatch):
    """A part of the standard library is enough to show it."""
    sources = embedded_corpus.sources
    monkeypatch.setattr(embedded_corpus, "sources", lambda root: sources(root)[::8])
    task = embedded_tasks.TASKS["summary"]()
    assert len(task.train) > 100 and task.held_out
    assert embedded_tasks.TASKS["summary"]() == task


@pytest.mark.parametrize(
    ("written", "words", "tags"),
    [
        ("If reinit_subcommands is set,", "if reinit subcommands is set", "01200"),
        ("calls os.path.join() (see e.g. PEP 8).", None, None),
        ('a NodeVisitor\'s "sys.path"', "a node visitor sys path", "01212"),
        ("The sub-commands don't matter.", "the sub-commands don't matter", "0000"),
        ("__debug__ and HTTPServer", "debug and httpserver", "100"),
    ],
)
def test_names_become_words(written, words, tags):
    sentence = embedded_tasks.tag(written)
    if words is None:
        assert sentence.words[:4] == ("calls", "os", "path", "join")
        assert sentence.tags[:4] == (0, 1, 2, 2)
        assert "e.g" not in sentence.words
        return
    assert sentence.words == tuple(words.split())
    assert "".join(map(str, sentence.tags)) == tags


def test_the_task_is_the_same_every_time_and_held_out_apart(corpus, monkeypatch):
    monkeypatch.setattr(embedded_corpus, "load", lambda: corpus)
    task = embedded_tasks.load_tags()
    assert task.labels == ("O", "B-CODE", "I-CODE")
    assert len(task.train) > 2000 and len(task.held_out) > 100
    for side in (task.train, task.held_out):
        assert all(1 in s.tags and len(s.words) == len(s.tags) <= 40 for s in side)
    # Words by themselves tell little.
    assert baselines.usual_tags_score(task.train, task.held_out, task.labels) < 0.2
