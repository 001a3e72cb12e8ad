"""ALBERTs whose layers share weights in another way in other projects."""

import dataclasses
import re

import fixtures
import numpy as np
import pytest

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_variables, open_source
from bert_estimator.interchange.__main__ import main
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.interchange.hugging_face import config_json
from bert_estimator.interchange.source import ALBERT, GOOGLE, TRANSFORMERS, check_layer_groups
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab


def network(layers, groups):
    return BertConfig(
        vocab_size=len(SPECIAL_TOKENS),
        hidden_size=4,
        num_hidden_layers=layers,
        num_attention_heads=1,
        intermediate_size=4,
        max_position_embeddings=4,
        embedding_size=2,
        num_hidden_groups=groups,
    )


PROJECTS = (GOOGLE, TRANSFORMERS)


@pytest.mark.parametrize("project", PROJECTS)
@pytest.mark.parametrize("sizes", [(1, 1), (12, 1), (12, 4), (24, 24), (4, 2), (5, 3)])
def test_groups_that_all_projects_count_alike(sizes, project):
    check_layer_groups(network(*sizes), project, "here")


@pytest.mark.parametrize(
    ("sizes", "project", "message"),
    [
        (
            (18, 14),
            TRANSFORMERS,
            "here: num_hidden_layers=18 with num_hidden_groups=14 cannot be exchanged with "
            "transformers: layer 9 has the weights of group 7 here, and of group 6 there, where "
            "fractions are rounded (both count from 0). Train a network with another number of "
            "groups, such as 1",
        ),
        ((22, 22), GOOGLE, "here: num_hidden_layers=22 with num_hidden_groups=22 ca"),
    ],
)
def test_groups_that_another_project_counts_otherwise(sizes, project, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        check_layer_groups(network(*sizes), project, "here")


def test_a_config_json_with_other_groups_there_is_refused():
    values = {"model_type": "albert", "num_hidden_layers": 18, "num_hidden_groups": 14}
    with pytest.raises(ValueError, match=r"^here: .*=14 cannot be exchanged with transformers"):
        config_json.config_of(values, "here")


@pytest.mark.parametrize(
    ("to", "sizes", "project"),
    [("hf", (18, 14), TRANSFORMERS), ("tf1", (22, 22), GOOGLE)],
)
def test_a_run_with_other_groups_there_is_not_converted(tmp_path, capsys, to, sizes, project):
    config = network(*sizes)
    shapes = network_variables.encoder_shapes(config)
    tf1_checkpoint.save(
        str(tmp_path / "model.ckpt-1"), {k: np.zeros(s, np.float32) for k, s in shapes.items()}
    )
    (tmp_path / "bert_config.json").write_text(config.to_json_string())
    write_vocab(SPECIAL_TOKENS, str(tmp_path / "vocab.txt"))
    source = open_source(str(tmp_path))
    source.check_network(source.config)  # it is used here
    assert main(["interchange", str(tmp_path), str(tmp_path / "new"), f"--to={to}"]) == 2
    assert f"cannot be exchanged with {project}: layer " in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_checkpoint_of_albert_with_other_groups_is_not_used(tmp_path):
    config = network(22, 22)
    weights = {k: np.zeros(s) for k, s in network_variables.encoder_shapes(config).items()}
    fixtures.write_tf1(tmp_path, network(1, 1), weights)  # which checks groups, but not weights
    source = open_source(str(tmp_path))
    assert source.architecture == ALBERT and len(source.shapes) == len(weights)
    source = dataclasses.replace(source, config=config)
    with pytest.raises(ValueError, match="=22 cannot be exchanged with google-research/albert"):
        source.with_files(None, "vocab.txt")
