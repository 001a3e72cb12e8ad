"""What transformers' config.json says of a task, through this project's own key, too."""

import json

import fixtures
import numpy as np
import pytest

from bert_estimator.interchange import network_variables, open_source
from bert_estimator.interchange.hugging_face import config_json
from bert_estimator.interchange.network_variables import ANSWER, CLASSIFIER

DEFAULTS = ("LABEL_0", "LABEL_1")
PAIRS = {"kind": "classification", "labels": DEFAULTS, "is_pair": True}
SQUAD = {"version_2_with_negative": True}


def write_google(folder, head, **facts):
    """Writes the fixture's network with the head of two outputs, and what it was trained for."""
    source = open_source(str(fixtures.TF1))
    weights = {k: v for k, v in fixtures.weights_of(source).items() if k.startswith("bert/")}
    for name, shape in network_variables.head_shapes(source.config, 2)[head].items():
        weights[name] = np.full(shape, 0.1, np.float32)
    folder.mkdir()
    facts = {"vocab_file": source.vocab_file, "do_lower_case": True, "max_seq_length": 9, **facts}
    fixtures.write_tf1(folder, source.config, weights, **facts)
    return open_source(str(folder))


def write_theirs(folder, source):
    folder.mkdir()
    fixtures.write_hugging_face(folder, source)
    return open_source(str(folder))


def facts_of(source):
    names = ("kind", "labels", "output_names", "is_pair", "do_lower_case", "max_seq_length")
    names += ("version_2_with_negative", "long_texts", "doc_stride")
    return {name: getattr(source, name) for name in names}


@pytest.mark.parametrize(
    ("head", "facts"),
    [
        (CLASSIFIER, PAIRS),
        (CLASSIFIER, {"kind": "multi_label", "labels": ("no", "yes"), "is_pair": False}),
        (CLASSIFIER, {"kind": "tagging", "labels": DEFAULTS}),
        (CLASSIFIER, {"kind": "regression", "output_names": ("valence", "arousal")}),
        (CLASSIFIER, {"kind": "regression", "output_names": DEFAULTS, "is_pair": True}),
        (CLASSIFIER, {"kind": "classification"}),
        (CLASSIFIER, {**PAIRS, "long_texts": "windows", "doc_stride": 4}),
        (CLASSIFIER, {"kind": "multi_label", "labels": DEFAULTS, "long_texts": "head_tail"}),
        (ANSWER, SQUAD),
        (ANSWER, {"version_2_with_negative": False}),
    ],
)
def test_the_facts_of_a_task_go_there_and_back(tmp_path, head, facts):
    source = write_google(tmp_path / "run", head, **facts)
    assert facts.items() <= facts_of(source).items()
    there = write_theirs(tmp_path / "hf", source)
    again = write_theirs(tmp_path / "hf_again", there)
    (tmp_path / "tf1").mkdir()
    values = {"vocab_file": there.vocab_file, **facts_of(there)}
    fixtures.write_tf1(tmp_path / "tf1", there.config, fixtures.weights_of(there), **values)
    for copy in (there, again, open_source(str(tmp_path / "tf1"))):
        assert facts_of(copy) == facts_of(source)


def test_only_facts_that_are_known_are_written(tmp_path):
    write_theirs(tmp_path / "hf", write_google(tmp_path / "run", CLASSIFIER))
    assert "bert_estimator" not in json.loads((tmp_path / "hf" / "config.json").read_text())


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ({}, DEFAULTS),
        ({"id2label": {"0": "a", "1": "b"}}, ("a", "b")),
        ({"architectures": ["BertForTokenClassification"]}, ()),
        ({"architectures": None}, ()),
    ],
)
def test_facts_of_another_training_do_not_count(tmp_path, changes, labels):
    """Transformers keeps them in a model that it trains with another head."""
    write_theirs(tmp_path / "hf", write_google(tmp_path / "run", CLASSIFIER, **PAIRS))
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    source = open_source(str(tmp_path / "hf"))
    assert (source.labels, source.is_pair) == (labels, None if changes else True)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (3, "bert_estimator: must be an object, not 3"),
        ({"is_pair": "yes"}, 'bert_estimator: is_pair: must be true or false, not "yes"'),
        ({"labels": ["a", "a"]}, "bert_estimator: labels: a label occurs twice"),
    ],
)
def test_facts_that_cannot_be(own, message):
    with pytest.raises(ValueError, match=f"^here: {message}$"):
        config_json.task_of({"bert_estimator": own}, "here", 2, None)


@pytest.mark.slow
@fixtures.needs_transformers
def test_transformers_keeps_the_facts(tmp_path):
    source = write_google(tmp_path / "run", CLASSIFIER, **PAIRS)
    write_theirs(tmp_path / "hf", source)
    fixtures.transformers("again", tmp_path / "hf", tmp_path / "saved")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "saved" / name).write_bytes((tmp_path / "hf" / name).read_bytes())
    assert facts_of(open_source(str(tmp_path / "saved"))) == facts_of(source)
