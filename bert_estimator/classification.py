"""The fine-tuning `model_fn`: one label, several labels or a number for a text or a pair of texts.

`bert_estimator.tagging` has the head for labels of words.

Letters: B examples of one core's batch, F sequence length, H hidden size, L labels.

Features (google-research/bert's names): `input_ids`, `input_mask`, `segment_ids` int32 [B, F];
`is_real_example` int32 [B], 0 for examples that only pad a batch and do not count, may be absent;
`label_ids`, which prediction does not need, depends on the kind of the task:

    classification   int32 [B], the number of the label
    multi_label      int32 [B, L], 1 for each label that holds
    regression       float32 [B], the number itself

The head is google-research/bert's: `output_weights` [L, H], `output_bias` [L] on the pooled first
token (Devlin et al., 2018, section 4.1), with dropout 0.1 in training.
"""

import dataclasses
import functools
import re
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from bert_estimator import modeling, tpu, update
from bert_estimator.bert_config import BertConfig
from bert_estimator.init_checkpoint import scaffold_fn
from bert_estimator.layers.dropout import Dropout
from bert_estimator.metrics import METRICS, Metric
from bert_estimator.precision import scope, to_float32

_DROPOUT = 0.1


@dataclasses.dataclass(frozen=True)
class Head:
    """Says what the head of the network predicts of an example, and how predictions are scored.

    Attributes:
      kind: one of `choices.TASK_KINDS`.
      num_labels: L; 1 for regression.
      metrics: the keys of `metrics.METRICS` that an evaluation reports; each must suit the kind.
      class_weights: if each label is one of several, a factor for each of the L labels; the loss
        is then the mean weighted by the factors. None means 1 for each.
    """

    kind: str
    num_labels: int
    metrics: tuple[str, ...] = ()
    class_weights: tuple[float, ...] | None = None

    def new_variables(self) -> str:
        """Returns a pattern of the variables that may be missing in `init_checkpoint`."""
        return "output_weights|output_bias"

    def input_of(self, model: modeling.BertModel) -> tf.Tensor:
        """Returns what the logits are computed from: [B, ..., H] in the compute dtype."""
        return model.get_pooled_output()

    def weights_of(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns float32 [B, ...]: 1 for each label that counts, and 0 for padding."""
        return update.example_weights(features)

    def is_one_of_several(self) -> bool:
        """Returns whether each label is one of L, so that the softmax tells its probabilities."""
        return self.kind == "classification"

    def eval_metrics(
        self, features: dict[str, tf.Tensor], logits: tf.Tensor, losses: tf.Tensor
    ) -> tuple[Callable[..., dict[str, Metric]], dict[str, tf.Tensor]]:
        """Returns (function, its arguments), the `eval_metrics` of the spec.

        Args:
          features: the features of an evaluation.
          logits: float32 [B, ..., L].
          losses: float32 [B, ...], the loss of each label.
        """
        tensors = {
            "logits": logits,
            "label_ids": features["label_ids"],
            "losses": losses,
            "weights": self.weights_of(features),
        }
        return self._metric_fn, tensors

    def _metric_fn(self, logits, label_ids, losses, weights):
        results = {name: METRICS[name](label_ids, logits, weights) for name in self.metrics}
        return {**results, "mean_loss": mean_loss(losses, weights)}


def mean_loss(losses: tf.Tensor, weights: tf.Tensor) -> Metric:
    """Computes the mean loss over labels; the loss of the spec is a mean over batches."""
    return tf.metrics.mean(losses, weights)


def model_fn_builder(
    bert_config: BertConfig,
    head: Head,
    rule: update.UpdateRule | None = None,
    *,
    precision: str = "float32",
    recompute: bool = False,
    use_one_hot_embeddings: bool = False,
    random_seed: int = 0,
    init_checkpoint: str | None = None,
    allow_partial_init: bool = False,
) -> Callable[..., tpu.TPUEstimatorSpec]:
    """Returns the `model_fn` for `TPUEstimator`.

    The loss is the mean over the examples of the global batch, or over their words (tagging):
    cross-entropy in nats of the softmax (classification, tagging) or of the sigmoids, averaged over
    the labels (multi_label), or the squared error (regression). Predictions are `logits`, float32
    [B, L], or [B, F, L] for tagging, and, except for regression, `probabilities` of this shape.

    Args:
      bert_config: `BertConfig`.
      head: `Head`.
      rule: `update.UpdateRule`; only training needs it.
      precision: "float32" or "bfloat16": what the network computes in.
      recompute, use_one_hot_embeddings: see `modeling.BertModel`.
      random_seed: seed of dropout.
      init_checkpoint: checkpoint whose weights training starts from, or None; the head starts
        from random weights if the checkpoint has no head. See `init_checkpoint.scaffold_fn`.
      allow_partial_init: whether the checkpoint may lack any variable of the model, and may hold
        variables that the model does not have.

    Raises:
      ArgumentError: from training or evaluation, if the checkpoint does not fit the model.
    """
    make_model = functools.partial(
        modeling.BertModel,
        bert_config,
        recompute=recompute,
        use_one_hot_embeddings=use_one_hot_embeddings,
    )

    def initial_weights(**options):
        return scaffold_fn(
            init_checkpoint,
            bert_config,
            new_head=head.new_variables(),
            allow_partial_init=allow_partial_init,
            **options,
        )

    def model_fn(features, labels, mode, params):
        del labels, params
        if mode == tpu.ModeKeys.TRAIN:

            def make_loss_fn(step):
                return _loss_fn(make_model, head, precision, features, random_seed, step)

            return rule.train_spec(make_loss_fn, features, initial_weights())
        logits = _logits(make_model, head, precision, features, None)
        if mode == tpu.ModeKeys.PREDICT:
            return tpu.TPUEstimatorSpec(mode, predictions=_predictions(head, logits))
        losses = _losses(head, logits, features["label_ids"])
        weights = head.weights_of(features) * _class_weights(head, features)
        return tpu.TPUEstimatorSpec(
            mode,
            loss=update.global_mean(losses, weights),
            eval_metrics=head.eval_metrics(features, logits, losses),
            # An evaluation before the first step needs these weights. If the model's own directory
            # has a checkpoint, the evaluation reads that instead.
            scaffold_fn=initial_weights(log=tf.logging.debug),
        )

    return model_fn


def layerwise_rate_scale(
    layerwise_lr_decay: float, num_hidden_layers: int
) -> Callable[[str], float] | None:
    """Returns the learning rate's factor by layer, which decays from the head to the embeddings.

    ELECTRA is fine-tuned this way (Clark et al., 2020, section 3.1 and its code).

    Args:
      layerwise_lr_decay: the factor from a layer to the layer below it, such as 0.8; 1 turns the
        decay off.
      num_hidden_layers: the number of layers of the network.

    Returns:
      None if layerwise_lr_decay is 1. Else a function of a variable's name that returns the factor
      of its rate: 1 for the pooler and the head, layerwise_lr_decay^2 for the last layer, and one
      power more for each layer further down; the embeddings come last.
    """
    if layerwise_lr_decay == 1.0:
        return None

    def rate_scale(name):
        layer = re.search(r"/encoder/layer_(\d+)/", name)
        if layer:
            depth = int(layer[1]) + 1
        else:
            depth = 0 if "/embeddings/" in name else num_hidden_layers + 2
        return layerwise_lr_decay ** (num_hidden_layers + 2 - depth)

    return rate_scale


def _logits(make_model, head, precision, features, dropout):
    """Returns the head's logits, float32 [B, ..., L]; without `dropout`, as outside of training."""
    with scope(precision):
        model = make_model(
            is_training=dropout is not None,
            input_ids=features["input_ids"],
            input_mask=features["input_mask"],
            token_type_ids=features["segment_ids"],
            dropout=dropout,
        )
        hidden = head.input_of(model)
        if dropout is not None:
            hidden = dropout(hidden, _DROPOUT)
        outer, width = hidden.shape.as_list()[1:-1], hidden.shape.as_list()[-1]
        with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
            weights = modeling.weight(
                "output_weights",
                [head.num_labels, model.config.hidden_size],
                model.config.initializer_range,
            )
            bias = tf.get_variable(
                "output_bias", [head.num_labels], tf.float32, initializer=tf.zeros_initializer()
            )
        logits = tf.matmul(tf.reshape(hidden, [-1, width]), weights, transpose_b=True)
    logits = tf.nn.bias_add(to_float32(logits), bias)
    return tf.reshape(logits, [-1, *outer, head.num_labels])


def _predictions(head, logits):
    if head.kind == "regression":
        return {"logits": logits}
    to_probabilities = tf.nn.softmax if head.is_one_of_several() else tf.nn.sigmoid
    return {"logits": logits, "probabilities": to_probabilities(logits)}


def _losses(head, logits, label_ids):
    """Returns the loss of each label, float32 [B, ...], before the label's weight is applied."""
    if head.is_one_of_several():
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label_ids, logits=logits)
    labels = tf.cast(label_ids, tf.float32)
    if head.kind == "multi_label":
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(losses, axis=-1)
    return tf.square(logits[:, 0] - labels)


def _class_weights(head, features):
    """Returns the factor of each label's loss, float32 [B, ...]; or 1 for all."""
    if head.class_weights is None:
        return 1.0
    return tf.gather(tf.constant(head.class_weights, tf.float32), features["label_ids"])


def _loss_fn(make_model, head, precision, features, random_seed, step):
    """Returns the function of a micro-batch that gives its share of the global batch's loss."""
    weights = head.weights_of(features)
    num_labelled = update.global_sum(weights)
    total = num_labelled
    if head.class_weights is not None:  # their sum may be below 1, and may be 0
        total = tpu.cross_replica_sum(tf.reduce_sum(weights * _class_weights(head, features)))
    core_first_row = tpu.replica_id() * features["input_ids"].shape.as_list()[0]

    def loss_fn(micro_features, first_row):
        dropout = Dropout(random_seed, step, core_first_row + first_row)
        logits = _logits(make_model, head, precision, micro_features, dropout)
        label_ids = micro_features["label_ids"]
        micro_weights = head.weights_of(micro_features)
        losses = _losses(head, logits, label_ids) * micro_weights
        loss = tf.reduce_sum(losses * _class_weights(head, micro_features))
        loss = tf.math.divide_no_nan(loss, total)
        if not head.is_one_of_several():
            return loss, {}
        correct = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), label_ids)
        correct = tf.reduce_sum(tf.cast(correct, tf.float32) * micro_weights)
        return loss, {"accuracy": correct / num_labelled}

    return loss_fn
