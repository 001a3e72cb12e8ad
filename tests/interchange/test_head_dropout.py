"""The dropout of the head, by every format in which a network says it; there and back."""

import json

import fixtures
import pytest

from bert_estimator.interchange import __main__ as command
from bert_estimator.interchange import open_source
from bert_estimator.interchange.hugging_face import config_json

GOOGLE = {"vocab_size": 9, "hidden_dropout_prob": 0.3}
BERT = {**GOOGLE, "model_type": "bert"}
ELECTRA = {**BERT, "model_type": "electra"}
ALBERT = {**BERT, "model_type": "albert"}


@pytest.mark.parametrize(
    ("values", "dropout"),
    [
        (GOOGLE, 0.1),  # google-research's scripts have it fixed
        ({**GOOGLE, "classifier_dropout": 0.0}, 0.0),
        ({**GOOGLE, "classifier_dropout": 0.9}, 0.9),
        (BERT, 0.3),
        ({**BERT, "classifier_dropout": None}, 0.3),
        ({**BERT, "classifier_dropout": 0.0}, 0.0),
        ({**BERT, "classifier_dropout": 0.9}, 0.9),
        ({"model_type": "bert"}, 0.1),
        (ELECTRA, 0.3),
        ({**ELECTRA, "classifier_dropout": None}, 0.3),
        ({**ELECTRA, "classifier_dropout": 0.2}, 0.2),
        (ALBERT, 0.1),
        ({**ALBERT, "classifier_dropout_prob": None}, 0.3),
        ({**ALBERT, "classifier_dropout_prob": 0.0}, 0.0),
        ({**ALBERT, "classifier_dropout": 0.9}, 0.1),  # which transformers does not read
    ],
    ids=json.dumps,
)
def test_what_a_configuration_says(tmp_path, values, dropout):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    assert config_json.read_any_config(str(path)).classifier_dropout == dropout


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("hf_classifier", "classifier_dropout"),
        ("hf_electra", "classifier_dropout"),
        ("hf_albert", "classifier_dropout_prob"),
    ],
)
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_conversions_keep_it(tmp_path, model, key, dropout):
    source = fixtures.changed(tmp_path, model, **{key: dropout})
    for name, before in (("tf1", source), ("hf", "tf1"), ("tf1 again", "hf")):
        arguments = ["interchange", str(tmp_path / before), str(tmp_path / name)]
        assert command.main(arguments) == 0
        assert open_source(str(tmp_path / name)).config.classifier_dropout == dropout
    assert json.loads((tmp_path / "hf" / "config.json").read_text())[key] == dropout
