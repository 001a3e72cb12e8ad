"""What the model_fns of fine-tuning share: the network, its initial weights, the outputs."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import modeling
from bert_estimator.bert_config import BertConfig
from bert_estimator.layers import embeddings, primitives
from bert_estimator.layers.dropout import Dropout
from bert_estimator.model_fns import update
from bert_estimator.model_fns.init_checkpoint import scaffold_fn
from bert_estimator.precision import to_float32


@dataclasses.dataclass(frozen=True)
class NetworkBuilder:
    """Says which network a model_fn builds, and what its weights are at first."""

    bert_config: BertConfig
    precision: str = "float32"  # or bfloat16: what the network computes in
    recompute: bool = False
    random_seed: int = 0  # of dropout
    # The length of the longest batch in tokens; training needs it if F is unknown.
    max_seq_length: int | None = None
    # For these two, see `init_checkpoint.scaffold_fn`; a head that the checkpoint lacks is random.
    init_checkpoint: str | None = None
    allow_partial_init: bool = False

    def build(
        self, features: Mapping[str, tf.Tensor], dropout: Dropout | None
    ) -> modeling.BertModel:
        """Builds the network; F may be unknown, and dropout is None outside of training."""
        is_fixed = features["input_ids"].shape.as_list()[1] is not None
        # XLA compiles parts of the network for each length. Training has a few lengths, again and
        # again, so this pays; an evaluation may have a new length in each batch.
        is_compiled = is_fixed or dropout is not None
        with contextlib.nullcontext() if is_compiled else primitives.portable():
            # Rows are packed if there are `position_ids` and `sequence_starts`.
            return modeling.BertModel(
                self.bert_config,
                is_training=dropout is not None,
                input_ids=features["input_ids"],
                input_mask=features["input_mask"],
                token_type_ids=features["segment_ids"],
                dropout=dropout,
                recompute=self.recompute,
                position_ids=features.get("position_ids"),
                sequence_starts=features.get("sequence_starts"),
            )

    def dropout_of(
        self, features: Mapping[str, tf.Tensor], step: tf.Tensor
    ) -> Callable[[tf.Tensor], Dropout]:
        """Returns a function of a micro-batch's first row in a core's batch that gives its dropout;
        `step` is the number of updates so far."""
        core_first_row = update.core_first_row(features)
        return lambda first_row: Dropout(
            self.random_seed, step, core_first_row + first_row, self.max_seq_length
        )

    def scaffold_fn(self, **options: Any) -> Callable[[], tf.train.Scaffold] | None:
        """Returns the `scaffold_fn` of a spec; see `init_checkpoint.scaffold_fn`."""
        return scaffold_fn(
            self.init_checkpoint,
            self.bert_config,
            allow_partial_init=self.allow_partial_init,
            **options,
        )


def output_logits(hidden: tf.Tensor, number: int, initializer_range: float) -> tf.Tensor:
    """Returns the logits of `output_weights` [number, H] and `output_bias` [number] on hidden
    values, [B, H] or [B, F, H] in the compute dtype: float32 [B, number] or [B, F, number]."""
    width = hidden.shape.as_list()[-1]
    with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
        weights = modeling.weight("output_weights", [number, width], initializer_range)
        bias = tf.get_variable(
            "output_bias", [number], tf.float32, initializer=tf.zeros_initializer()
        )
    logits = tf.matmul(tf.reshape(hidden, [-1, width]), weights, transpose_b=True)
    logits = tf.nn.bias_add(to_float32(logits), bias)
    length = [embeddings.length_of(hidden)] if hidden.shape.rank == 3 else []
    return tf.reshape(logits, [-1, *length, number])
