import dataclasses
import json

import pytest

from bert_estimator.bert_config import PRESETS, BertConfig


def test_defaults_are_those_of_bert_base():
    assert BertConfig(vocab_size=30522).to_dict() == {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "classifier_dropout": 0.1,
    }


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads", "intermediate"),
    [
        ("tiny", 2, 128, 2, 512),
        ("mini", 4, 256, 4, 1024),
        ("small", 4, 512, 8, 2048),
        ("medium", 8, 512, 8, 2048),
        ("base", 12, 768, 12, 3072),
        ("large", 24, 1024, 16, 4096),
    ],
)
def test_presets(name, layers, hidden, heads, intermediate):
    config = BertConfig.preset(name, vocab_size=100)
    assert (config.vocab_size, config.num_hidden_layers, config.hidden_size) == (
        100,
        layers,
        hidden,
    )
    assert (config.num_attention_heads, config.intermediate_size) == (heads, intermediate)


def test_unknown_preset():
    with pytest.raises(ValueError, match=f"'huge'; choose one of {', '.join(PRESETS)}"):
        BertConfig.preset("huge", vocab_size=100)


@pytest.mark.parametrize("changes", [{}, {"embedding_size": 6, "num_hidden_groups": 2}])
def test_json_round_trip(tmp_path, changes):
    config = dataclasses.replace(BertConfig.preset("tiny", vocab_size=77), **changes)
    path = tmp_path / "bert_config.json"
    path.write_text(config.to_json_string())
    assert BertConfig.from_json_file(str(path)) == config
    assert BertConfig.from_dict(config.to_dict()) == config


def test_published_keys_the_network_never_read_are_accepted():
    config = BertConfig.from_dict({"vocab_size": 21128, "directionality": "bidi"})
    assert config == BertConfig(vocab_size=21128)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hiden_size": 8}, "unknown key 'hiden_size'; did you mean 'hidden_size'"),
        ({"vocab_size": 0}, "vocab_size=0 must be a positive integer"),
        ({"num_hidden_groups": 13}, "num_hidden_groups=13 is more than num_hidden_layers=12;"),
        ({"num_hidden_groups": 0}, "num_hidden_groups=0 must be a positive integer"),
        ({"embedding_size": "8"}, "embedding_size='8' must be a positive integer"),
        ({"num_hidden_group": 1}, "unknown key 'num_hidden_group'; did you mean 'num_hidden_g"),
        ({"inner_group_num": 2}, "inner_group_num=2, but the network supports 1 only, as all pub"),
        ({"net_structure_type": 1}, "net_structure_type=1, but the network supports 0 only"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers=2.0 must be a positive integer"),
        ({"type_vocab_size": True}, "type_vocab_size=True must be a positive integer"),
        ({"hidden_size": 100}, "hidden_size=100 is not a multiple of num_attention_heads=12"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob=1.0 must be a number, at least 0"),
        ({"attention_probs_dropout_prob": -0.1}, "attention_probs_dropout_prob=-0.1 must be"),
        ({"hidden_dropout_prob": "0.1"}, "hidden_dropout_prob='0.1' must be a number"),
        ({"classifier_dropout": 1.0}, "classifier_dropout=1.0 must be a number, at least 0"),
        ({"initializer_range": 0}, "initializer_range=0 must be a number above 0"),
        ({"layer_norm_eps": "1e-5"}, "layer_norm_eps='1e-5' must be a number above 0"),
        (
            {"hidden_act": "swish"},
            "hidden_act='swish' is not known; choose one of gelu, gelu_erf, relu",
        ),
    ],
)
def test_bad_values_name_the_file_and_the_key(tmp_path, change, message):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps({"vocab_size": 100, **change}))
    with pytest.raises(ValueError, match=f"^{path}: {message}"):
        BertConfig.from_json_file(str(path))
