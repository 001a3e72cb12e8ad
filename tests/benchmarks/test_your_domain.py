"""Tests the benchmark of a domain: what it reads, learns and leaves out, its tables and picture."""

import json
import os

import pytest

from benchmarks import public_record, your_domain
from tests.benchmarks.test_public_record import NETWORK, cache  # noqa: F401 (a fixture)
from tests.docs.test_docs import PAGES
from tests.support.pictures import words


@pytest.fixture
def domain(cache):  # noqa: F811
    model = os.path.join(cache, *NETWORK)
    return your_domain.Domain(cache, model, "films", ["films", "tweets"])


def test_held_out_texts_are_not_read(domain, monkeypatch):
    commands = []
    monkeypatch.setattr(public_record, "processor_minutes", commands.append)
    flags = domain.records()
    for name, texts in (
        ("input_file", domain.texts),
        ("eval_input_file", sorted({text for text, _ in domain.held_out})),
    ):
        with open(flags[name].replace(".tfrecord", ".txt"), encoding="utf-8") as reader:
            assert reader.read().split("\n\n") == [*texts, ""]
    assert not set(domain.texts) & {text for text, _ in domain.held_out}
    assert len(commands) == 2
    for path in flags.values():
        open(path, "w").close()
    domain.records()
    assert len(commands) == 2  # records that are there are kept


def test_own_words_come_before_the_records(cache, monkeypatch):  # noqa: F811
    commands = []
    monkeypatch.setattr(public_record, "processor_minutes", commands.append)
    model = os.path.join(cache, *NETWORK)
    domain = your_domain.Domain(cache, model, "films", ["films"], 300)
    domain.records()
    vocabulary, *records = commands
    (own,) = (flag.partition("=")[2] for flag in vocabulary if flag.startswith("--output_dir="))
    assert {f"--extend={model}", "--num_words=300"} <= {*vocabulary}
    assert len(records) == 2
    assert all(f"--vocab_file={own}" in command for command in records)


def test_both_starts_learn_the_same_ratings(domain, monkeypatch):
    calls = []

    def fine_tune(cache, model, side, parts, rate, seed):  # noqa: F811
        calls.append((model, side, parts))
        return {"pearson": 0.5, "minutes": 1}, [], []

    monkeypatch.setattr(public_record, "fine_tune", fine_tune)
    for model in (None, "adapted"):
        domain.fine_tune(your_domain.HERE, model, 20, 1)
    domain.fine_tune(your_domain.HERE, None, 20, 2)
    (published, side, parts), (adapted, *same), (*_, others) = calls
    assert published.endswith(os.path.join(*NETWORK)) and adapted == "adapted"
    assert (
        same == [side, parts] and side == "this project --num_train_epochs=320 --max_seq_length=128"
    )
    assert len(parts[0]) == len(others[0]) == 20 and parts[0] != others[0]
    assert parts[1] == others[1] == domain.held_out


LOSSES = {"steps": 7, "start": 10.3, "unigram": 6.9}


def run(monkeypatch, cache, *arguments):  # noqa: F811
    """Runs the benchmark with made-up measurements; returns what was measured."""
    measured = []

    def pretrain(domain, by, trained, epochs, seed):
        measured.append((trained, seed))
        loss = 4.0 if trained == your_domain.HEAD else 3.0
        others = LOSSES if by == your_domain.HERE else {}
        return {**others, "loss": loss + seed / 10, "minutes": 2}

    def fine_tune(domain, by, model, number, seed):
        measured.append((model and os.path.basename(model), number, seed))
        gain = 0.05 * seed if model else 0
        gain -= 0.3 * (by == your_domain.THERE)
        return {"pearson": round(0.5 + number / 1000 + gain, 4), "minutes": 1}

    monkeypatch.setattr(your_domain.Domain, "pretrain", pretrain)
    monkeypatch.setattr(your_domain.Domain, "fine_tune", fine_tune)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setenv("TRANSFORMERS_PYTHON", "python")
    paths = [f"--{name}={cache}/{name}" for name in ("cache", "results", "picture")]
    paths[0] = f"--cache={cache}"
    your_domain.main([*paths, "--task", "films", *arguments])
    return measured


def test_transformers_alone_is_not_drawn(monkeypatch, cache, capsys):  # noqa: F811
    run(monkeypatch, cache, "--trained_by", your_domain.THERE, "--labels", "20", "--seeds", "1")
    assert "| transformers | films, 5 times | 1 |" in capsys.readouterr().out
    assert not os.path.exists(f"{cache}/picture")


def test_cells_are_measured_once_and_shown(monkeypatch, cache, capsys):  # noqa: F811
    arguments = ["--labels", "20", "all", "--trained_by", your_domain.HERE, "--seeds", "1"]
    adapted = "all-5-epochs-seed-1"
    assert run(monkeypatch, cache, *arguments) == [
        (your_domain.HEAD, 1), (your_domain.WHOLE, 1),
        (None, 20, 1), (adapted, 20, 1), (None, 73, 1), (adapted, 73, 1),
    ]  # fmt: skip
    assert len(run(monkeypatch, cache, *arguments, "2")) == 6
    # The published network learns once, whatever the other network reads.
    control = run(monkeypatch, cache, *arguments, "--domain", "tweets", "products")
    assert control == [
        (your_domain.HEAD, 1), (your_domain.WHOLE, 1), (adapted, 20, 1), (adapted, 73, 1),
    ]  # fmt: skip
    with open(f"{cache}/results", encoding="utf-8") as reader:
        assert len(json.load(reader)["cells"]) == 16
    assert "9 own words" not in capsys.readouterr().out
    run(monkeypatch, cache, *arguments, "--own_words", "9")
    lines = capsys.readouterr().out.splitlines()

    assert [line for line in lines if line.startswith("| films |") and "own words" not in line] == [
        "| films | films, 5 times | this project | a new head alone | 2 | 6.9 |"
        " 4.150 (4.100 to 4.200) | 2.0 |",
        "| films | films, 5 times | this project | all weights | 2 | 6.9 |"
        " 3.150 (3.100 to 3.200) | 2.0 |",
        "| films | tweets and products, 5 times | this project | a new head alone | 1 |"
        " 6.9 | 4.100 (4.100 to 4.100) | 2.0 |",
        "| films | tweets and products, 5 times | this project | all weights | 1 | 6.9 |"
        " 3.100 (3.100 to 3.100) | 2.0 |",
        "| films | 20 | this project | films, 5 times | 2 |"
        " 0.520 (0.520 to 0.520) | 0.595 (0.570 to 0.620) | 0.075 (0.050 to 0.100) |",
        "| films | 20 | this project | tweets and products, 5 times | 1 |"
        " 0.520 (0.520 to 0.520) | 0.570 (0.570 to 0.570) | 0.050 (0.050 to 0.050) |",
        "| films | 73 | this project | films, 5 times | 2 |"
        " 0.573 (0.573 to 0.573) | 0.648 (0.623 to 0.673) | 0.075 (0.050 to 0.100) |",
        "| films | 73 | this project | tweets and products, 5 times | 1 |"
        " 0.573 (0.573 to 0.573) | 0.623 (0.623 to 0.623) | 0.050 (0.050 to 0.050) |",
    ]
    assert len([line for line in lines if "| films with 9 own words, 5 times |" in line]) == 4
    run(monkeypatch, cache, "--noadam_bias_correction", "--labels", "20", "--seeds", "1")
    assert "films, 5 times, --noadam_bias_correction | 1 | 0.520" in capsys.readouterr().out
    there = run(monkeypatch, cache, *arguments, "--trained_by", your_domain.THERE)
    adapted = "transformers-5-epochs-seed-1"
    assert there == [
        (your_domain.WHOLE, 1), (None, 20, 1), (adapted, 20, 1), (None, 73, 1), (adapted, 73, 1),
    ]  # fmt: skip
    out = capsys.readouterr().out
    assert "| films | films, 5 times | transformers | all weights | 1 |  | 3.100 (" in out
    assert "| films | 20 | transformers | films, 5 times | 1 | 0.220 (0.220 to 0.220) |" in out
    with open(f"{cache}/picture", encoding="utf-8") as reader:
        drawn = words(reader.read())
    for text in ("as it is", "after reading films", "5 times", "rated texts to learn from"):
        assert text in drawn


@pytest.mark.skipif(not os.path.exists(your_domain.RESULTS), reason="it was not measured yet")
def test_the_page_has_the_figures_and_the_picture_of_the_results():
    with open(your_domain.RESULTS, encoding="utf-8") as reader:
        cells = json.load(reader)["cells"]
    for table in (your_domain.losses_table(cells), your_domain.scores_table(cells)):
        assert table in PAGES["docs/your_domain.md"]
    with open(your_domain.PICTURE, encoding="utf-8") as reader:
        drawn = your_domain.charts.svg(lambda figure: your_domain.draw(figure, cells))
        assert sorted(words(reader.read())) == sorted(words(drawn))


@pytest.mark.slow
def test_a_network_reads_and_learns(cache, monkeypatch):  # noqa: F811
    monkeypatch.setattr(your_domain, "LENGTH", 24)  # the positions of the tiny network
    model = os.path.join(cache, *NETWORK)
    domain = your_domain.Domain(cache, model, "films", ["films"])
    here = your_domain.HERE
    losses = domain.pretrain(here, your_domain.WHOLE, 8, 1)
    assert losses["steps"] == 8 * len(domain.texts) // 64
    assert 0 < losses["loss"] < losses["start"]
    adapted = domain.adapted(here, your_domain.WHOLE, 8, 1)
    for start in (None, adapted):
        scores = domain.fine_tune(here, start, 60, 1)
        assert scores.keys() == {"pearson", "minutes"} and -1 <= scores["pearson"] <= 1
    head = domain.pretrain(here, your_domain.HEAD, 8, 1)
    assert head["start"] == losses["start"] and head["loss"] < head["start"]


@pytest.mark.slow
@pytest.mark.skipif("TRANSFORMERS_PYTHON" not in os.environ, reason="TRANSFORMERS_PYTHON not set")
def test_a_network_reads_and_learns_in_transformers(cache):  # noqa: F811
    model = os.path.join(cache, *NETWORK)
    domain = your_domain.Domain(cache, model, "films", ["films"])
    there = your_domain.THERE
    losses = domain.pretrain(there, your_domain.WHOLE, 8, 1)
    assert 0 < losses["loss"] < losses["start"]
    adapted = domain.adapted(there, your_domain.WHOLE, 8, 1)
    scores = domain.fine_tune(there, adapted, 60, 1)
    assert scores.keys() == {"pearson", "minutes"} and -1 <= scores["pearson"] <= 1
