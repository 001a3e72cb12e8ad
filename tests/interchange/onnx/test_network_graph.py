"""Networks as ONNX graphs: their outputs, and what onnxruntime makes of their operations."""

import collections

import fixtures
import numpy as np
import pytest

from bert_estimator.bert_config import HIDDEN_ACTS, BertConfig
from bert_estimator.interchange.network_variables import ANSWER, CLASSIFIER, POOLER
from bert_estimator.interchange.onnx import model_directory, network_graph, runtime
from bert_estimator.interchange.weights import fixed_batch

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

ALBERT = {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2}
ELECTRA = {"embedding_size": 16, "hidden_act": "gelu_erf"}


def network(**changes):
    sizes = {
        "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 48, "max_position_embeddings": 24,
    }  # fmt: skip
    return BertConfig(**{**sizes, **changes})


def written(path, model):
    (path / runtime.FILE).write_bytes(model.SerializeToString())
    return str(path)


@pytest.mark.parametrize(
    ("changes", "heads", "has_pooler", "outputs"),
    [
        *(({"hidden_act": name}, (), True, [runtime.POOLED]) for name in HIDDEN_ACTS),
        ({"layer_norm_eps": 0.1}, (), True, [runtime.POOLED]),
        ({}, (CLASSIFIER,), True, [runtime.LOGITS, runtime.POOLED]),
        ({}, (CLASSIFIER,), False, [runtime.LOGITS]),
        ({}, (ANSWER,), True, [*runtime.ENDS, runtime.POOLED]),
        (ALBERT, (CLASSIFIER,), True, [runtime.LOGITS, runtime.POOLED]),
        ({**ALBERT, "embedding_size": None}, (ANSWER,), False, runtime.ENDS),
        (ELECTRA, (CLASSIFIER,), False, [runtime.LOGITS]),
        ({"type_vocab_size": 1}, (), False, []),
        ({"num_attention_heads": 32}, (), False, []),
    ],
)
def test_outputs_are_those_of_the_network(tmp_path, changes, heads, has_pooler, outputs):
    config = network(**changes)
    weights = fixtures.random_weights(config, heads, 3)
    if not has_pooler:
        weights = {name: v for name, v in weights.items() if not name.startswith(POOLER)}
    folder = written(tmp_path, network_graph.make(config, weights))
    batch = fixed_batch(config)
    with_holes = {**batch, "input_mask": batch["input_mask"] * (np.arange(24) % 5 != 3)}
    shorter = {name: value[:1, :7] for name, value in batch.items()}
    differences = model_directory.check(folder, config, weights, [batch, with_holes, shorter])
    assert set(differences) == {*outputs, runtime.HIDDEN}
    assert max(differences.values()) < 1e-5
    assert runtime.Model(folder).outputs[runtime.HIDDEN] == [None, None, 32]


def test_padding_gets_the_logits_that_predictions_have(tmp_path):
    config = network()
    weights = fixtures.random_weights(config, (ANSWER,))
    folder = written(tmp_path, network_graph.make(config, weights))
    batch = fixed_batch(config)
    for logits in runtime.Model(folder).run(batch, runtime.ENDS).values():
        assert (logits[batch["input_mask"] == 0] == -10000).all()
        assert (logits[batch["input_mask"] == 1] > -100).all()


@pytest.mark.parametrize(
    ("changes", "gelu", "attentions"),
    [
        ({}, "FastGelu", 2),
        ({"hidden_act": "gelu_erf"}, "BiasGelu", 2),
        # Of narrow embeddings, the first attention has no layer norm before it.
        (ALBERT, "FastGelu", 3),
        (ELECTRA, "BiasGelu", 1),
    ],
)
@pytest.mark.parametrize("heads", [(CLASSIFIER,), (ANSWER,), ()])
def test_onnxruntime_fuses_each_layer(tmp_path, changes, gelu, attentions, heads):
    config = network(**changes)
    model = network_graph.make(config, fixtures.random_weights(config, heads, 3))
    assert {node.domain for node in model.graph.node} == {""}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    providers = ["CPUExecutionProvider"]
    onnxruntime.InferenceSession(written(tmp_path, model) + "/model.onnx", options, providers)
    fused = onnx.load(str(tmp_path / "fused.onnx")).graph.node
    counts = collections.Counter(node.op_type for node in fused)
    layers = config.num_hidden_layers
    assert counts["Attention"] == attentions
    assert counts["Softmax"] == layers - attentions
    assert (counts["SkipLayerNormalization"], counts["LayerNormalization"]) == (2 * layers, 1)
    assert counts[gelu] == layers
    assert not counts["ReduceMean"] + counts["Erf"]


def test_a_network_that_onnx_cannot_hold_is_refused():
    config = BertConfig.preset("large", vocab_size=300_000)
    with pytest.raises(ValueError, match=r"^the network has 2\.4 GB of weights, and an ONNX file"):
        network_graph.make(config, {})
    network_graph.check_size(BertConfig.preset("large", vocab_size=30522))


def test_two_heads_are_refused():
    config = network()
    with pytest.raises(ValueError, match="the network has two heads, one for labels and one for"):
        network_graph.make(config, fixtures.random_weights(config, (CLASSIFIER, ANSWER)))
