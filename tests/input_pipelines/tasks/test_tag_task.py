"""The embedded task of tags, and the baseline of words by themselves."""

import pytest

from bert_estimator.tokenization import SPECIAL_TOKENS, FullTokenizer, write_vocab
from input_pipelines.embedded import embedded_corpus, embedded_tags
from input_pipelines.tasks import baselines, tag_task
from input_pipelines.tasks.tag_files import Sentence


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
    sentence = embedded_tags.tag(written)
    if words is None:
        assert sentence.words[:4] == ("calls", "os", "path", "join")
        assert sentence.tags[:4] == (0, 1, 2, 2)
        assert "e.g" not in sentence.words
        return
    assert sentence.words == tuple(words.split())
    assert "".join(map(str, sentence.tags)) == tags


def test_the_task_is_the_same_every_time_and_held_out_apart(corpus, monkeypatch):
    monkeypatch.setattr(embedded_corpus, "load", lambda: corpus)
    task = embedded_tags.load_tags()
    assert task.tags == ("O", "B-CODE", "I-CODE")
    assert len(task.train) > 2000 and len(task.held_out) > 100
    for side in (task.train, task.held_out):
        assert all(1 in s.tags and len(s.words) == len(s.tags) <= 40 for s in side)
    # Words by themselves tell little.
    assert baselines.usual_tags_score(task.train, task.held_out, task.tags) < 0.2


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        (("O", "B-X", "L-X", "U-X"), ""),
        (("B", "M", "E", "S"), ""),
        (("NN", "VB"), "The tags NN, VB are not of IOB2 or another scheme, so words are"),
        (("0", "1", "2", "3", "4", "5"), "The tags 0, 1, 2, 3, 4, ... are not of IOB2 or"),
    ],
)
def test_tags_that_are_not_of_a_scheme_are_said(tmp_path, capsys, tags, said):
    write_vocab([*SPECIAL_TOKENS, "a"], str(tmp_path / "vocab.txt"))
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"))
    sentence = Sentence(("a",) * len(tags), tuple(range(len(tags))))
    task = tag_task.EmbeddedTags("", tags, [sentence], [sentence])
    data = tag_task.of_embedded_tags(task, tokenizer, "", 16)
    assert data.metrics[0] == ("accuracy" if said else "entity_f1")
    out = capsys.readouterr().out
    assert out.startswith(said) and bool(out) == bool(said)
    assert ("Numbers do not say what they mean" in out) == (tags[0] == "0")
