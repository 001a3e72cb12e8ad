"""Tests that the benchmark of data creation measures what it says, on a small text."""

import json

from benchmarks import data_speed


def test_a_text_has_its_size_and_words_of_its_own(monkeypatch):
    english = [[f"The word {i} is in the line {j}." for j in range(i)] for i in range(1, 40)]
    monkeypatch.setattr(data_speed, "english", lambda: english)  # the own one takes seconds
    documents = list(data_speed.text_of(0.05))
    assert 50_000 <= sum(len(document.encode()) for document in documents) < 100_000
    assert all(document.endswith("\n\n") for document in documents)
    assert documents == list(data_speed.text_of(0.05))
    assert documents != list(data_speed.text_of(0.05, seed=1))


def test_the_last_line_is_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(data_speed, "VOCAB_SIZE", 400)
    monkeypatch.setattr(data_speed, "PASSES", 2)
    monkeypatch.setattr(data_speed.tempfile, "tempdir", str(tmp_path))
    data_speed.main(["--megabytes=0.05"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["examples"] > 200 and result["examples_per_sec_1_core"] > 0
    assert result["static_bytes"] > 3 * result["dynamic_bytes"] > 0
    assert result["speedup"] > 0 and result["worker_megabytes"] > 0
    assert not any(tmp_path.iterdir())
