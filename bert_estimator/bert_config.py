"""The configuration of a network: a checked form of google-research/bert's bert_config.json."""

import dataclasses
import difflib
import json
import math

from bert_estimator.storage import remote

# name -> (num_hidden_layers, hidden_size). A head has size 64, and the intermediate size is 4 H.
# Sources: Turc et al. (2019) for tiny to medium, Devlin et al. (2018) for base and large.
PRESETS = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}

# As in google-research/bert, "gelu" is the tanh form. "gelu_erf" is the exact function, which
# Hugging Face calls "gelu". From "silu" on, the names are Hugging Face's.
HIDDEN_ACTS = (
    *("gelu", "gelu_erf", "relu", "tanh", "linear"),
    *("silu", "quick_gelu", "mish", "relu6", "leaky_relu"),
)

# Beyond these sizes nothing can be built, and the attempt would take hours or all memory.
_MOST = {"num_hidden_layers": 4096}
_MOST_OF_OTHERS = 2**31 - 1
_ABOVE_0 = ("initializer_range", "layer_norm_eps")

# Keys of ALBERT's albert_config.json for variants that it never published, and the only values that
# the network here has.
_FIXED_KEYS = {
    "inner_group_num": 1,
    "net_structure_type": 0,
    "gap_size": 0,
    "num_memory_blocks": 0,
    "down_scale_factor": 1,
}

# The configurations of the Chinese and multilingual models have these keys, but no network has ever
# read them.
_IGNORED_KEYS = (
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Holds the sizes of a network, by the keys of google-research/bert's bert_config.json.

    Four keys are not google-research/bert's; without them the network is its BERT.

    Attributes:
      classifier_dropout: dropout rate of the head for classes, numbers and tags. google-research's
        BERT, ALBERT and ELECTRA have 0.1 there, whatever the other two rates are.
      embedding_size: width of the embeddings, which a dense layer brings to hidden_size (ALBERT and
        ELECTRA); None means hidden_size, without this layer.
      num_hidden_groups: how many layers have weights of their own, which neighbours share (ALBERT);
        None means that no layers share weights.
      layer_norm_eps: what layer norm adds to the variance.

    Raises:
      ValueError: a value is out of its range; the text names the key.
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    classifier_dropout: float = 0.1
    embedding_size: int | None = None
    num_hidden_groups: int | None = None
    layer_norm_eps: float = 1e-12

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # None stands for what other sizes give.
            if value is None and field.default is None:
                continue
            is_size = field.type in (int, int | None)
            # JSON may have an int for a rate, such as 0; a bool is an int for Python.
            is_int = isinstance(value, int) and not isinstance(value, bool)
            is_float = is_int or (isinstance(value, float) and math.isfinite(value))
            most = _MOST.get(field.name, _MOST_OF_OTHERS)
            if is_size and not (is_int and value > 0):
                allowed = "a positive integer"
            elif is_size and value > most:
                allowed = f"at most {most}"
            elif "dropout" in field.name and not (is_float and 0 <= value < 1):
                allowed = "a number, at least 0 and below 1"
            elif field.name in _ABOVE_0 and not (is_float and value > 0):
                allowed = "a number above 0"
            else:
                continue
            raise ValueError(f"bert_config: {field.name}={value!r} must be {allowed}.")
        if self.hidden_act not in HIDDEN_ACTS:
            raise ValueError(
                f"bert_config: hidden_act={self.hidden_act!r} is not known; "
                f"choose one of {', '.join(HIDDEN_ACTS)}."
            )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"bert_config: hidden_size={self.hidden_size} is not a multiple of "
                f"num_attention_heads={self.num_attention_heads}; change one of them."
            )

        if (self.num_hidden_groups or 1) > self.num_hidden_layers:
            raise ValueError(
                f"bert_config: num_hidden_groups={self.num_hidden_groups} is more than "
                f"num_hidden_layers={self.num_hidden_layers}; change one of them."
            )

    def embedding_width(self) -> int:
        """Returns the width of the embeddings."""
        return self.embedding_size or self.hidden_size

    def num_own_layers(self) -> int:
        """Returns how many layers have weights of their own."""
        return self.num_hidden_groups or self.num_hidden_layers

    def num_parameters(self) -> int:
        """Returns how many weights the encoder and the pooler have."""
        hidden, inner, width = self.hidden_size, self.intermediate_size, self.embedding_width()
        rows = self.vocab_size + self.type_vocab_size + self.max_position_embeddings
        embeddings = (rows + 2) * width
        # ALBERT and ELECTRA have a dense layer after the embeddings.
        if width != hidden:
            embeddings += (width + 1) * hidden
        attention = 4 * (hidden + 1) * hidden + 2 * hidden
        feed_forward = (hidden + 1) * inner + (inner + 1) * hidden + 2 * hidden
        pooler = (hidden + 1) * hidden
        return embeddings + self.num_own_layers() * (attention + feed_forward) + pooler

    def group_of(self, layer: int) -> int:
        """Returns the number of a layer's weights, which it may share with its neighbours."""
        return layer * self.num_own_layers() // self.num_hidden_layers

    @classmethod
    def preset(cls, name: str, vocab_size: int) -> "BertConfig":
        """Returns a published configuration by name; PRESETS has the names.

        Raises:
          ValueError: the name is unknown.
        """
        if name not in PRESETS:
            raise ValueError(f"No preset {name!r}; choose one of {', '.join(PRESETS)}.")
        num_hidden_layers, hidden_size = PRESETS[name]
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            num_hidden_layers=num_hidden_layers,
            num_attention_heads=hidden_size // 64,
            intermediate_size=4 * hidden_size,
        )

    @classmethod
    def from_dict(cls, json_object: dict, source: str = "bert_config") -> "BertConfig":
        """Builds a configuration from a dict; errors name `source`.

        Raises:
          ValueError: a key is unknown or missing, or a value is out of its range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        values = {key: value for key, value in json_object.items() if key not in _IGNORED_KEYS}
        for key, value in _FIXED_KEYS.items():
            if values.pop(key, value) != value:
                raise ValueError(
                    f"{source}: {key}={json_object[key]!r}, but the network supports {value} only, "
                    "as all published ALBERTs have."
                )
        for key in values:
            if key not in known:
                # A key that nobody reads would change nothing: it is likely misspelt.
                nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
                raise ValueError(
                    f"{source}: unknown key {key!r}; did you mean {nearest!r}? "
                    f"The keys are {', '.join(known)}."
                )
        if "vocab_size" not in values:
            raise ValueError(f"{source}: the key 'vocab_size' is missing; add it.")
        try:
            return cls(**values)
        except ValueError as error:
            raise ValueError(str(error).replace("bert_config", source, 1)) from None

    @classmethod
    def from_json_file(cls, path: str) -> "BertConfig":
        """Builds a configuration from a JSON file; errors name the file.

        Raises:
          ValueError: the file does not hold a JSON object, or its keys or values are wrong.
        """
        return cls.from_dict(remote.read_json(str(path)), source=str(path))

    def to_dict(self) -> dict:
        """Returns the configuration as a dict of JSON values.

        Keys that are None are left out, and google-research/bert's layer_norm_eps, which has no key
        there.
        """
        usual = {"layer_norm_eps": BertConfig.layer_norm_eps}
        return {k: v for k, v in dataclasses.asdict(self).items() if v not in (None, usual.get(k))}

    def to_json_string(self) -> str:
        """Returns the configuration as the text of a bert_config.json."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"
