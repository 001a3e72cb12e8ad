"""The variables of BERT and its heads, with google-research/bert's names and their shapes."""

from collections.abc import Mapping

from bert_estimator.bert_config import BertConfig

MASKED_LM = "cls/predictions"
NEXT_SENTENCE = "cls/seq_relationship"
CLASSIFIER = "output_weights"
POOLER = "bert/pooler/"
ANSWER = "cls/squad"
# What brings embeddings to the hidden size, if they are narrower.
MAPPING = "bert/encoder/embedding_hidden_mapping_in"


def encoder_shapes(config: BertConfig) -> dict[str, list[int]]:
    """Returns name -> shape of the variables that `modeling.BertModel` makes."""
    hidden, inner, width = config.hidden_size, config.intermediate_size, config.embedding_width()
    shapes = {
        "bert/embeddings/word_embeddings": [config.vocab_size, width],
        "bert/embeddings/token_type_embeddings": [config.type_vocab_size, width],
        "bert/embeddings/position_embeddings": [config.max_position_embeddings, width],
        **_layer_norm("bert/embeddings", width),
    }
    if width != hidden:
        shapes.update(_dense(MAPPING, width, hidden))
    for index in range(config.num_own_layers()):
        layer = f"bert/encoder/layer_{index}"
        for name in ("query", "key", "value"):
            shapes.update(_dense(f"{layer}/attention/self/{name}", hidden, hidden))
        shapes.update(_dense(f"{layer}/attention/output/dense", hidden, hidden))
        shapes.update(_layer_norm(f"{layer}/attention/output", hidden))
        shapes.update(_dense(f"{layer}/intermediate/dense", hidden, inner))
        shapes.update(_dense(f"{layer}/output/dense", inner, hidden))
        shapes.update(_layer_norm(f"{layer}/output", hidden))
    shapes.update(_dense("bert/pooler/dense", hidden, hidden))
    return shapes


def head_shapes(config: BertConfig, num_labels: int) -> dict[str, dict[str, list[int]]]:
    """Returns head -> (name -> shape), for all heads that are known.

    Args:
      config: `BertConfig`.
      num_labels: rows of a classifier's `output_weights`.
    """
    hidden = config.hidden_size
    return {
        MASKED_LM: {
            **_dense("cls/predictions/transform/dense", hidden, config.embedding_width()),
            **_layer_norm("cls/predictions/transform", config.embedding_width()),
            "cls/predictions/output_bias": [config.vocab_size],
        },
        NEXT_SENTENCE: {
            "cls/seq_relationship/output_weights": [2, hidden],
            "cls/seq_relationship/output_bias": [2],
        },
        CLASSIFIER: {"output_weights": [num_labels, hidden], "output_bias": [num_labels]},
        ANSWER: {f"{ANSWER}/output_weights": [2, hidden], f"{ANSWER}/output_bias": [2]},
    }


def check(config: BertConfig, shapes: Mapping[str, list[int]], path: str) -> tuple[str, ...]:
    """Checks that variables are all the variables of a network and of its heads.

    The pooler may be missing: Hugging Face's models for masked words, for tags and for answers do
    not have it.

    Args:
      config: `BertConfig`.
      shapes: name -> shape of the variables found.
      path: the place of the variables, for errors.

    Returns:
      The heads that the variables belong to: a tuple of MASKED_LM, NEXT_SENTENCE, CLASSIFIER,
      ANSWER.

    Raises:
      ValueError: a variable is unknown, is missing, or has another shape; names all of them.
    """
    num_labels = shapes.get(CLASSIFIER, [0])[0]
    heads = head_shapes(config, num_labels)
    found = tuple(head for head, names in heads.items() if set(names) & set(shapes))
    expected = encoder_shapes(config)
    if not any(name.startswith(POOLER) for name in shapes):
        expected = {k: v for k, v in expected.items() if not k.startswith(POOLER)}
    for head in found:
        expected.update(heads[head])
    problems = [f"{name} {shapes[name]}: unknown" for name in shapes if name not in expected]
    for name, shape in expected.items():
        if name not in shapes:
            problems.append(f"{name} {shape}: missing")
        elif list(shapes[name]) != shape:
            problems.append(f"{name}: {list(shapes[name])}, but the configuration says {shape}")
    if problems:
        raise ValueError(
            f"{path} does not hold a BERT of its configuration:\n  " + "\n  ".join(problems)
        )
    return found


def _dense(scope, inputs, outputs):
    return {f"{scope}/kernel": [inputs, outputs], f"{scope}/bias": [outputs]}


def _layer_norm(scope, width):
    return {f"{scope}/LayerNorm/gamma": [width], f"{scope}/LayerNorm/beta": [width]}
