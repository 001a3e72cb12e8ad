"""What every format is read as: weights under google-research/bert's names."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line.choices import TASK_KINDS
from bert_estimator.tokenization import Casing, Tokenizer, check_rows, open_tokenizer

TF1, HUGGING_FACE, HUB, ONNX = "tf1", "hf", "hub", "onnx"

BERT, ALBERT, ELECTRA = ARCHITECTURES = ("bert", "albert", "electra")

# What the outputs of a classifier mean, as `bert_estimator.model_fns.classification` calls it.
CLASSIFICATION, MULTI_LABEL, REGRESSION, TAGGING = KINDS = TASK_KINDS

# Two networks whose weights have the same shapes can still differ in these.
_NOT_IN_SHAPES = ("num_attention_heads", "hidden_act", "layer_norm_eps")

# Projects that compute with rounded fractions which layers of an ALBERT share weights. For most
# numbers of layers and groups, the outcome is the same as here.
GOOGLE, TRANSFORMERS = "google-research/albert", "transformers"
# The group of layer i, of L layers with G groups.
_GROUP_OF = {
    GOOGLE: lambda i, L, G: int(i / L * G),
    TRANSFORMERS: lambda i, L, G: int(i / (L / G)),
}


@dataclasses.dataclass(frozen=True)
class Source:
    """A model that can be read, whatever format it is stored in.

    Attributes:
      path: what the user called the model.
      format: TF1, HUGGING_FACE, HUB or ONNX, whose weights cannot be read.
      shapes: name -> shape, a list of ints, of each weight, under google-research/bert's names.
      read: function name -> numpy array of that shape.
      checkpoint: path of the TF1 checkpoint that is read, without .index; None for the other
        formats.
      left_out: names of the stored tensors that are not weights: optimizer slots, counters, second
        copies.
      config: `BertConfig`, or None if there is no configuration beside the weights.
      vocab_file: path of the vocabulary, or None if there is no vocabulary beside the weights.
      labels: names of the classifier's outputs in their order; empty if they are not known.
      output_names: names of the numbers that a regression gives, in their order; empty if they are
        not known.
      kind: one of KINDS, or None if it is not known or there is no classifier.
      is_pair: whether the model was fine-tuned on pairs of texts. Here and below, None means that
        nothing beside the weights says so.
      do_lower_case: whether the model's text is lower-cased.
      strip_accents: whether accents are taken away from the model's text; None also for what is
        usual (see `tokenization.Casing`).
      casing_file: path of the file that says, or could say, these two; None if it is not known.
      max_seq_length: the longest sequence in tokens that the model was trained on.
      long_texts: what the model was trained to read of longer texts, one of `choices.LONG_TEXTS`.
      doc_stride: how many tokens after one another windows of longer texts begin; None also for
        half of a window.
      reading: how else texts are read and answers chosen: keys of `network_files.OF_READING`, and
        `doc_stride`, of contexts.
      pooling: how the vectors of a text's tokens become one vector, one of `choices.POOLINGS`, or
        what else the files beside the weights ask for.
      is_normalized: whether the vectors of texts have the length 1.
      version_2_with_negative: whether the model learned, as for SQuAD 2.0, that some questions have
        no answer.
      architecture: BERT, ALBERT or ELECTRA, if the files show it; None if only the configuration
        does, see `network_variables.architecture_of`.
    """

    path: str
    format: str
    shapes: dict
    read: Callable
    checkpoint: str | None = None
    left_out: tuple = ()
    config: BertConfig | None = None
    vocab_file: str | None = None
    labels: tuple = ()
    output_names: tuple = ()
    kind: str | None = None
    is_pair: bool | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    casing_file: str | None = None
    max_seq_length: int | None = None
    long_texts: str | None = None
    doc_stride: int | None = None
    reading: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pooling: str | None = None
    is_normalized: bool | None = None
    version_2_with_negative: bool | None = None
    architecture: str | None = None

    @property
    def casing(self) -> Casing | None:
        """How the model's text is cased; None if nothing beside the weights says so."""
        if self.do_lower_case is None:
            return None
        return Casing(self.do_lower_case, self.strip_accents)

    def check_network(self, config: BertConfig) -> None:
        """Checks that a checkpoint of another project gets a network that computes the same.

        Args:
          config: the configuration of the network that gets the weights.

        Raises:
          ValueError: it has the other GELU, or its layers share weights in another way.
        """
        if (self.format, self.architecture) == (TF1, ALBERT):
            check_layer_groups(config, GOOGLE, self.path)
        # In google-research/electra, "gelu" is the exact form, which is "gelu_erf" here; here
        # "gelu" is the tanh form.
        if (self.format, self.architecture, config.hidden_act) == (TF1, ELECTRA, "gelu"):
            raise ValueError(
                f'{self.path}: is an ELECTRA, whose hidden_act is "gelu_erf", but the '
                'configuration of the network has "gelu", which is the tanh form; change it there. '
                "If an earlier version of bert-convert wrote it, convert its source again instead"
            )

    def differences(self, config: BertConfig) -> Iterator[tuple[str, Any, Any]]:
        """Yields (key, its value here, its value there) of what makes another network.

        Only a configuration beside the weights can tell it."""
        if self.config is None:
            return
        # Shapes of weights do not show these keys. If layers share weights in either network, they
        # do not show how many layers there are, either.
        is_shared = {config.num_hidden_groups, self.config.num_hidden_groups} != {None}
        for key in (*_NOT_IN_SHAPES, *["num_hidden_layers"] * is_shared):
            ours, theirs = getattr(self.config, key), getattr(config, key)
            if ours != theirs:
                yield key, ours, theirs

    def with_files(self, config: BertConfig | None, vocab_file: str | None) -> "Source":
        """Returns this source with a network or a vocabulary in place of the one beside it.

        Args:
          config: `BertConfig`, which may differ from the one beside the weights in what matters in
            training only; None for that one.
          vocab_file: path of a vocabulary; None for the one beside the weights.

        Raises:
          ValueError: one of them is neither given nor beside the weights; the configuration is of
            another network than the one beside the weights; or `check_network` refuses it.
        """
        for key, ours, theirs in () if config is None else self.differences(config):
            raise ValueError(
                f"{self.path}: is a network with {key}={ours!r}, but --bert_config_file has "
                f"{theirs!r}, with which the weights would compute something else. Leave the flag "
                "out; or, if the configuration beside the weights is wrong, correct it there"
            )
        config = config or self.config
        vocab_file = vocab_file or self.vocab_file
        if config is None:
            raise ValueError(
                f"{self.path}: there is no bert_config.json beside it; give --bert_config_file"
            )
        if vocab_file is None:
            raise ValueError(
                f"{self.path}: there is no vocabulary (vocab.txt, or vocab.model for "
                "SentencePiece) beside it, and a model without one reads no text; give --vocab_file"
            )
        self.check_network(config)
        return dataclasses.replace(self, config=config, vocab_file=vocab_file)

    def open_tokenizer(
        self, do_lower_case: bool | None = None, strip_accents: bool | None = None
    ) -> Tokenizer:
        """Returns the tokenizer of the vocabulary.

        Args:
          do_lower_case: whether text is lower-cased; None for what the files beside it say,
            or else for what the vocabulary's capitals tell.
          strip_accents: whether accents are taken away; None for the same.

        Raises:
          ValueError: the vocabulary is damaged, has capitals that do_lower_case would take away,
            or has more tokens than the network.
        """
        asked = do_lower_case, strip_accents
        tokenizer = open_tokenizer(self.vocab_file, *asked, self.casing, self.casing_file)
        check_rows(self.vocab_file, tokenizer.vocab_size, self.config.vocab_size)
        return tokenizer


def check_layer_groups(config: BertConfig, project: str, path: str) -> None:
    """Raises ValueError if a layer of an ALBERT has other weights here than in GOOGLE or
    TRANSFORMERS."""
    layers, groups = config.num_hidden_layers, config.num_own_layers()
    for layer in range(layers):
        ours, theirs = config.group_of(layer), _GROUP_OF[project](layer, layers, groups)
        if ours != theirs:
            raise ValueError(
                f"{path}: num_hidden_layers={layers} with num_hidden_groups={groups} cannot be "
                f"exchanged with {project}: layer {layer} has the weights of group {ours} here, "
                f"and of group {theirs} there, where fractions are rounded (both count from 0). "
                "Train a network with another number of groups, such as 1"
            )
