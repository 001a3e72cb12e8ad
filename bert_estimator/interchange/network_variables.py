"""The variables of BERT, ALBERT and ELECTRA and of their heads: names and shapes.

Everywhere else weights have google-research/bert's names. ALBERT's shared layers are
`bert/encoder/layer_0` and so on, one for each group; what brings narrow embeddings to the hidden
size is `bert/encoder/embedding_hidden_mapping_in`, as google-research/albert calls it. Here are the
names that each project gives its weights, too.
"""

import re
from collections.abc import Iterable, Mapping

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange.source import ALBERT, BERT, ELECTRA, Source
from bert_estimator.system.errors import listed

MASKED_LM = "cls/predictions"
NEXT_SENTENCE = "cls/seq_relationship"
CLASSIFIER = "output_weights"
POOLER = "bert/pooler/"
ANSWER = "cls/squad"
# What brings embeddings to the hidden size, if they are narrower.
MAPPING = "bert/encoder/embedding_hidden_mapping_in"

_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)

# How BERT is split over the cores of a replica: by heads, feed-forward units, words.
#
# A matrix whose outputs are heads or feed-forward units is split by its columns; the matrix that
# takes them as inputs is split by its rows. Between the two every core works on its own share, and
# one sum over the cores closes each pair (Shoeybi et al., "Megatron-LM", 2019, section 3). The name
# of an optimizer slot contains its variable's name, so a slot is split as its variable is (all but
# the column statistics of Adafactor, which have another shape).
#
# Pairs of (pattern of variable names, axis that is split) for `tpu.TPUEstimator(sharding=...)`. If
# the cores do not divide the size of the vocabulary (BERT's 30522 tokens for 4 cores), the
# embeddings are split along the other axis, and each core has the whole bias.
SHARDING = (
    (r"attention/self/(query|key|value)/kernel", 1),
    (r"attention/self/(query|key|value)/bias", 0),
    (r"attention/output/dense/kernel", 0),
    (r"intermediate/dense/kernel", 1),
    (r"intermediate/dense/bias", 0),
    (r"layer_\d+/output/dense/kernel", 0),
    (r"embeddings/word_embeddings", 0),
    (r"embeddings/word_embeddings", 1),
    (r"cls/predictions/output_bias", 0),
    (r"cls/predictions/output_bias", None),
)


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
    """Returns head -> (name -> shape), for all heads that are known; a classifier has `num_labels`
    outputs."""
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
    """Checks that variables are all the variables of a network and of its heads, and returns these
    heads, of MASKED_LM, NEXT_SENTENCE, CLASSIFIER and ANSWER."""
    num_labels = shapes.get(CLASSIFIER, [0])[0]
    heads = head_shapes(config, num_labels)
    own_heads = tuple(head for head, names in heads.items() if set(names) & set(shapes))
    expected = encoder_shapes(config)
    # Hugging Face's models for masked words, for tags and for answers do not have a pooler.
    if not any(name.startswith(POOLER) for name in shapes):
        expected = {k: v for k, v in expected.items() if not k.startswith(POOLER)}
    for head in own_heads:
        expected.update(heads[head])
    problems = [f"{name} {shapes[name]}: unknown" for name in shapes if name not in expected]
    for name, shape in expected.items():
        if name not in shapes:
            problems.append(f"{name} {shape}: missing")
        elif list(shapes[name]) != shape:
            problems.append(f"{name}: {list(shapes[name])}, but the configuration says {shape}")
    if problems:
        sizes = ", ".join(f"{key}={getattr(config, key)}" for key in _SIZES)
        raise ValueError(
            f"{path} does not hold a BERT of its configuration, with {sizes} (a size that the file "
            "does not have is the default):\n  " + listed(problems, "\n  ")
        )
    return own_heads


def _dense(scope, inputs, outputs):
    return {f"{scope}/kernel": [inputs, outputs], f"{scope}/bias": [outputs]}


def _layer_norm(scope, width):
    return {f"{scope}/LayerNorm/gamma": [width], f"{scope}/LayerNorm/beta": [width]}


# google-research/albert's names of a layer's parts, and ours.
_ALBERT_LAYER = "bert/encoder/transformer/group_{}/inner_group_0/"
_ALBERT_PARTS = (
    ("attention_1/", "attention/"),
    ("LayerNorm/", "attention/output/LayerNorm/"),
    ("ffn_1/intermediate/output/dense/", "output/dense/"),
    ("ffn_1/intermediate/dense/", "intermediate/dense/"),
    ("LayerNorm_1/", "output/LayerNorm/"),
)
_ELECTRA_MAPPING = "electra/embeddings_project/"
# Scopes of an ELECTRA's pretraining that its discriminator's encoder does not need.
_ELECTRA_OTHERS = ("generator", "discriminator_predictions")


def architecture_of(source: Source) -> str:
    """Returns which of ARCHITECTURES a network is: by its files, or else by its configuration."""
    if source.architecture is not None:
        return source.architecture
    config = source.config
    if config.num_hidden_groups is not None:
        return ALBERT
    # An ELECTRA whose embeddings have the hidden size, such as the base one, and which was
    # fine-tuned here, is a BERT: it has the same variables.
    return BERT if config.embedding_width() == config.hidden_size else ELECTRA


def architecture_of_tf1_names(source: Source) -> str:
    """Returns which of ARCHITECTURES gives the names of weights in a TF1 checkpoint of a
    network."""
    architecture, activation = architecture_of(source), source.config.hidden_act
    if architecture != ELECTRA:
        return architecture
    # ELECTRA's names say that the network is ELECTRA's, and that its GELU is the exact form.
    if source.architecture == ELECTRA:
        return BERT if activation == "gelu" else ELECTRA
    # A run's network with narrow embeddings may have been fine-tuned from an ELECTRA, unless it has
    # another activation or the heads of BERT's pretraining; then it keeps BERT's names, as in the
    # run.
    is_bert = any(name.startswith((MASKED_LM, NEXT_SENTENCE)) for name in source.shapes)
    return ELECTRA if activation == "gelu_erf" and not is_bert else BERT


def from_tf1(name: str) -> str | None:
    """Returns our name of a variable in a checkpoint of any of these projects; None for what
    belongs to the pretraining of ELECTRA alone."""
    if name.startswith(_ELECTRA_OTHERS):
        return None
    if name.startswith(_ELECTRA_MAPPING):
        return f"{MAPPING}/{name.removeprefix(_ELECTRA_MAPPING)}"
    if name.startswith("electra/"):
        return f"bert/{name.removeprefix('electra/')}"
    layer = re.match(_ALBERT_LAYER.format(r"(\d+)"), name)
    if layer:
        rest = name[layer.end() :]
        for theirs, ours in _ALBERT_PARTS:
            if rest.startswith(theirs):
                return f"bert/encoder/layer_{layer[1]}/{ours}{rest.removeprefix(theirs)}"
    return name


def architecture_in_tf1(names: Iterable[str]) -> str | None:
    """Returns ELECTRA or ALBERT if names of a checkpoint's variables show it, else None."""
    for name in names:
        if name.startswith("electra/"):
            return ELECTRA
        if re.match(_ALBERT_LAYER.format(r"\d+"), name):
            return ALBERT
    return None


def to_tf1(name: str, architecture: str) -> str:
    """Returns the name that a project's own checkpoints have for one of our variables."""
    if architecture == ELECTRA:
        name = re.sub(f"^{MAPPING}/", _ELECTRA_MAPPING, name)
        return re.sub("^bert/", "electra/", name)
    layer = re.match(r"bert/encoder/layer_(\d+)/", name)
    if architecture == ALBERT and layer:
        rest = name[layer.end() :]
        # The first part of a feed-forward layer's name is the beginning of attention's, too.
        for theirs, ours in sorted(_ALBERT_PARTS, key=lambda part: -len(part[1])):
            if rest.startswith(ours):
                return _ALBERT_LAYER.format(layer[1]) + theirs + rest.removeprefix(ours)
    return name


# From google-research/bert's names to transformers' names: one pattern after the other.
_COMMON = (
    (r"^output_(weights|bias)$", r"classifier/\1"),
    (r"^cls/squad/output_(weights|bias)$", r"qa_outputs/\1"),
    (r"_embeddings$", r"_embeddings/weight"),
)
_ENDS = (
    (r"/(kernel|gamma|weights)$", r"/weight"),
    (r"/beta$", r"/bias"),
)
_TO_TRANSFORMERS = {
    BERT: (
        (r"/layer_(\d+)/", r"/layer/\1/"),
        *_COMMON,
        (r"/output_(weights|bias)$", r"/\1"),
        *_ENDS,
    ),
    ELECTRA: (
        (f"^{MAPPING}/", r"bert/embeddings_project/"),
        (r"/layer_(\d+)/", r"/layer/\1/"),
        *_COMMON,
        (r"^bert/", r"electra/"),
        *_ENDS,
    ),
    ALBERT: (
        (r"/layer_(\d+)/", r"/albert_layer_groups/\1/albert_layers/0/"),
        (r"/attention/self/", r"/attention/"),
        (r"/attention/output/dense/", r"/attention/dense/"),
        (r"/attention/output/LayerNorm/", r"/attention/LayerNorm/"),
        (r"/intermediate/dense/", r"/ffn/"),
        (r"/output/dense/", r"/ffn_output/"),
        (r"/output/LayerNorm/", r"/full_layer_layer_norm/"),
        (r"^bert/pooler/dense/", r"bert/pooler/"),
        (r"^cls/predictions/transform/", r"predictions/"),
        (r"^cls/predictions/output_bias$", r"predictions/bias"),
        (r"^cls/seq_relationship/output_(weights|bias)$", r"sop_classifier/classifier/\1"),
        *_COMMON,
        (r"^bert/", r"albert/"),
        *_ENDS,
    ),
}


def to_transformers(name: str, architecture: str) -> str:
    """Returns transformers' name of one of our variables."""
    for pattern, replacement in _TO_TRANSFORMERS[architecture]:
        name = re.sub(pattern, replacement, name)
    return name.replace("/", ".")
