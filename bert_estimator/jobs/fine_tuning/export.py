"""The SavedModels of fine-tuned networks: whether they take text besides ids, and their weights.

What the graph does with text is compared with what training does, on every text of the task's files
and before step 0, so that a difference is not found after the training. `docs/serving.md` lists the
signatures of the exported model, which are TensorFlow Serving's, and its outputs.

Letters: B texts, F sequence length; F is the length of a request's longest text.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from bert_estimator import precision, tokenization, tpu
from bert_estimator.command_line import flags
from bert_estimator.interchange import weights
from bert_estimator.serving.graph_wordpiece import GraphWordPiece
from bert_estimator.tpu import checkpoints
from input_pipelines.tasks.long_texts import CUT
from input_pipelines.tasks.task_data import TaskData

_BATCH = 256
_DEFAULT = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY


class TextInput(NamedTuple):
    """Holds what makes an export take text."""

    receiver: Callable[[], tpu.serving.ServingInputReceiver]  # serving_input_receiver_fn
    # A function of the model_fn that returns the model_fn to export, with outputs made for people.
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]


def text_input(export_inputs: str | None, task: TaskData, max_seq_length: int) -> TextInput | None:
    """Returns what makes the export of a task with labels take text, cut to a length in tokens, or
    None if it is to take ids alone; prints which, and raises FlagError if it cannot do as asked."""
    if export_inputs == "ids":
        print("The SavedModel takes ids.")
        return None
    # Without the flag, an export that cannot take text takes ids; with it, that is an error.
    if reason := _why_not(task):
        rule = (
            f"{reason}; give --export_inputs=ids: bert-predict and bert-serve turn texts into ids"
        )
        flags.check(export_inputs is None, "export_inputs", export_inputs, rule)
        print(f"The SavedModel takes ids: {reason}.")
        return None
    tokenizer = tokenization.reopen_tokenizer(task.vocab_file, task.casing)
    number = check_texts(tokenizer, task.texts())
    checked = f"splits all {number} texts of the task as training does"
    if not number:
        checked = "is not compared with training, since the task's files do not have texts"
    print(f"The SavedModel takes text, and {checked}.")
    return _text_input(tokenizer, task, max_seq_length)


def check_texts(tokenizer: tokenization.FullTokenizer, texts: Iterable[str]) -> int:
    """Compares the tokens of texts in the graph with the tokenizer's own; returns the number of
    texts, or raises FlagError."""
    number = 0
    with tf.Graph().as_default(), tf.Session() as session:
        placeholder = tf.placeholder(tf.string, [None])
        in_graph = GraphWordPiece(tokenizer)(placeholder)
        rest = iter(texts)
        while batch := list(itertools.islice(rest, _BATCH)):
            encoded = [text.encode(errors="surrogatepass") for text in batch]
            rows = session.run(in_graph, {placeholder: encoded}).to_list()
            for text, ids in zip(batch, rows, strict=True):
                if ids != tokenizer.encode(text):
                    raise flags.FlagError(
                        "--export_inputs=text: the graph of the exported model splits the text "
                        f"{text!r} into {tokenizer.convert_ids_to_tokens(ids)}, but training into "
                        f"{tokenizer.tokenize(text)}; give --export_inputs=ids"
                    )
            number += len(batch)
    return number


def _why_not(task):
    """Returns why a graph cannot take the texts of a task, or ""."""
    if task.kind == "tagging":
        return "a SavedModel takes text for classes and numbers, and not for tags"
    if (choice := task.long_texts.choice) != CUT:
        return f"a SavedModel that takes text cuts it, which is not --long_texts={choice}"
    if task.vocab_file.endswith(".model"):
        return f"a SavedModel splits text by WordPiece, and {task.vocab_file} is SentencePiece"
    return ""


def _text_input(tokenizer, task, max_seq_length):
    # The estimator calls the receiver before the model_fn, in the same graph.
    made = []

    def receiver():
        made[:] = [_inputs(tokenizer, task.is_pair, max_seq_length)]
        return tpu.serving.ServingInputReceiver(made[0].ids, made[0].texts, {"ids": made[0].ids})

    def wrap(model_fn):
        def with_named_outputs(features, labels, mode, params):
            spec = model_fn(features, labels, mode, params)
            outputs = _named_outputs(task.kind, task.labels, spec.predictions)
            outputs = _export_outputs(task.kind, made[0], outputs)
            return spec._replace(export_outputs=outputs)

        return with_named_outputs

    return TextInput(receiver, wrap)


class _Inputs(NamedTuple):
    """Holds what a model may be fed; each is computed from the one before it unless it is fed."""

    examples: tf.Tensor  # serialized `tf.Example`s, strings [B], which have the texts as features
    texts: dict[str, tf.Tensor]  # by name, strings [B]
    ids: dict[str, tf.Tensor]  # the features of the network by name


def _inputs(tokenizer: tokenization.FullTokenizer, is_pair: bool, max_seq_length: int) -> _Inputs:
    """Adds the inputs of a model of texts or pairs to the current graph; longer examples are cut to
    `max_seq_length` tokens."""
    names = ("text_a", "text_b")[: 2 if is_pair else 1]
    examples = tf.placeholder(tf.string, [None], "examples")
    parsed = tf.io.parse_example(
        examples, {name: tf.io.FixedLenFeature([], tf.string) for name in names}
    )
    texts = {name: tf.placeholder_with_default(parsed[name], [None], name) for name in names}
    features = features_of(tokenizer, list(texts.values()), max_seq_length)
    ids = {
        name: tf.placeholder_with_default(value, [None, None], name)
        for name, value in features.items()
    }
    return _Inputs(examples, texts, ids)


def features_of(
    tokenizer: tokenization.FullTokenizer, texts: Sequence[tf.Tensor], max_seq_length: int
) -> dict[str, tf.Tensor]:
    """Returns the features of texts or pairs, one or two tensors of strings [B], as
    `tasks.features.Features` makes them: `input_ids`, `input_mask`, `segment_ids`, int32 [B, F]."""
    number = tf.size(texts[0], out_type=tf.int64)
    tokens = GraphWordPiece(tokenizer)(tf.concat(texts, axis=0), most_words=max_seq_length)
    kept = _lengths(tf.split(tokens.row_lengths(), len(texts)), max_seq_length - 1 - len(texts))
    lengths = sum(kept) + 1 + len(texts)
    # Examples are padded to the longest only, since padding would take as much time as tokens. F is
    # 2 without any.
    longest = tf.reduce_max(tf.pad(lengths, [[0, 1]], constant_values=2))
    mask = tf.sequence_mask(lengths, longest, tf.int32)
    position = tf.range(tf.shape(mask, out_type=tf.int64)[1])[tf.newaxis]
    firsts = [tf.ones_like(kept[0]), kept[0] + 2][: len(texts)]  # where a text begins
    ids = tf.where_v2(tf.equal(position, 0), tokenizer.cls_id, tf.zeros_like(mask))
    for first, length in zip(firsts, kept, strict=True):
        is_sep = tf.equal(position, (first + length)[:, tf.newaxis])
        ids = tf.where_v2(is_sep, tokenizer.sep_id, ids)
    text = tokens.value_rowids()
    place = tf.range(tf.size(text, out_type=tf.int64)) - tf.gather(tokens.row_starts(), text)
    is_kept = tf.where_v2(place < tf.gather(tf.concat(kept, axis=0), text))
    text, place = tf.gather_nd(text, is_kept), tf.gather_nd(place, is_kept)
    at = tf.stack([text % number, place + tf.gather(tf.concat(firsts, axis=0), text)], axis=1)
    ids = tf.tensor_scatter_nd_update(ids, at, tf.gather_nd(tokens.flat_values, is_kept))
    segments = tf.zeros_like(mask)
    if len(texts) == 2:
        segments = tf.cast(position >= firsts[1][:, tf.newaxis], tf.int32) * mask
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


def _lengths(lengths, room):
    """Returns how many pieces are kept of each text, int64 [B]."""
    if len(lengths) == 1:
        return [tf.minimum(lengths[0], room)]
    # A pair loses pieces from the end of its longer text, or of the second if both are as long.
    first, second = lengths
    second = tf.minimum(second, tf.maximum(tf.cast(room // 2, tf.int64), room - first))
    return [tf.minimum(first, room - second), second]


def _named_outputs(kind, labels, outputs):
    """Returns a model's outputs, and what they mean, as strings or as a number."""
    if kind == "regression":
        return {**outputs, "number": outputs["logits"][:, 0]}
    names = tf.constant(list(labels))
    count = tf.shape(outputs["logits"])[0]
    named = {"labels": tf.tile(names[tf.newaxis], [count, 1])}
    if kind == "classification":
        named["label"] = tf.gather(names, tf.argmax(outputs["logits"], axis=-1))
    return {**outputs, **named}


class _OfExamples:
    """An export output for requests of `tf.Example`s, whatever else the model takes."""

    inputs: _Inputs

    def as_signature_def(self, receiver_tensors):
        """Returns the signature; raises ValueError, which leaves it out, for other receivers."""
        if receiver_tensors.keys() != self.inputs.texts.keys():
            raise ValueError("requests to classify and to regress have tf.Examples")
        return super().as_signature_def({"inputs": self.inputs.examples})


class _Classification(_OfExamples, tpu.serving.ClassificationOutput):
    pass


class _Regression(_OfExamples, tpu.serving.RegressionOutput):
    pass


def _export_outputs(kind, inputs, named):
    """Returns the outputs of all signatures by name, as an `EstimatorSpec` has them."""
    if kind == "regression":
        name, requests = "regress", _Regression(named["number"])
    else:
        name, requests = "classify", _Classification(named["probabilities"], named["labels"])
    requests.inputs = inputs
    return {_DEFAULT: tpu.serving.PredictOutput(named), name: requests}


class RoundingSaver(tf.train.Saver):
    """Restores variables of bfloat16 from float32, too, rounded to the nearest, as a cast does."""

    def restore(self, sess: tf.Session, save_path: str) -> None:
        """Restores all variables of the graph; adds no operations to it."""
        variables = tf.global_variables()
        checkpoints.check_restorable(save_path, variables, rounds=True)
        reader = tf.train.load_checkpoint(save_path)
        dtypes = {v.op.name: v.dtype.base_dtype.as_numpy_dtype for v in variables}
        weights.load(lambda name: reader.get_tensor(name).astype(dtypes[name]), variables, sess)


def rounded(model_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the model_fn to export, whose variables have the dtype in which it reads them."""

    def with_rounded_weights(features, labels, mode, params):
        # A run with --precision=bfloat16 has float32 weights, since training adds small updates to
        # them. Each step rounds them, and each request would, too, which takes a third of the time
        # of a single text (BERT-base). So an export rounds them once.
        with precision.stored_as_read():
            spec = model_fn(features, labels, mode, params)
        return spec._replace(
            scaffold_fn=lambda: tf.train.Scaffold(saver=RoundingSaver(sharded=True))
        )

    return with_rounded_weights
