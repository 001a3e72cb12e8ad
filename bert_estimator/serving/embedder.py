"""Texts to vectors: what any layer of a network says of a text, or of each of its tokens.

Letters: B texts of a batch, F sequence length, H hidden size, n number of layers asked for.
"""

from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator import interchange, memory_needed, modeling
from bert_estimator.command_line.choices import LEAST_TOKENS, LONG_TEXTS, POOLINGS
from bert_estimator.interchange import network_variables, weights
from bert_estimator.interchange.hugging_face import config_json
from bert_estimator.interchange.onnx import model_directory, runtime
from bert_estimator.layers import primitives
from bert_estimator.serving import commands
from bert_estimator.serving.commands import Text
from bert_estimator.storage import remote
from bert_estimator.system import paths
from input_pipelines.tasks.features import Features
from input_pipelines.tasks.long_texts import CUT, WINDOWS, LongTexts

_LEAST_NORM = 1e-12  # as in torch.nn.functional.normalize
_VECTORS, _TOKENS = "vectors", "tokens"  # what is fetched from an ONNX model


class Embedder:
    """Opens a network, whatever format it is stored in, and gives vectors for texts.

    ```
    embedder = Embedder("uncased_L-12_H-768_A-12", pooling="mean")
    vectors = embedder(["A text.", ("A first text.", "The second text of a pair.")])
    ```

    It may be called from one thread at a time.

    Args:
      path: what `interchange.open_source` opens: the directory of a run, a checkpoint of
        google-research/bert or a directory of Hugging Face, or a zip archive of either. Or a
        directory with an ONNX model, which gives the last layer alone.
      pooling: how the vectors of a text's tokens become one vector: "mean" or "max" over all
        tokens, with [CLS] and [SEP] but without padding; "cls", the vector of [CLS]; or "pooled",
        the pooler's output, which the next-sentence task has trained. None means what the files of
        sentence-transformers beside the weights say, and then vectors are scaled to the length 1 if
        they say this, too; without such files, it means "mean".
      layers: numbers of layers, whose vectors are put side by side. 1 is the first layer and 0 the
        sum of the embeddings; -1 is the last layer. They do not matter for "pooled".
      max_seq_length: tokens of a text, with the special tokens. None means the length that the
        network was trained on, or else its number of positions.
      batch_size: the most texts that are computed at a time.
      vocab_file: used instead of the vocabulary beside the weights.
      bert_config_file: the network's configuration, if none lies beside the weights; another
        network than lies there is an error.
      do_lower_case: whether text is lower-cased; None means what the files beside the weights say,
        or else what the capitals of the vocabulary say.
      strip_accents: whether accents are taken away; None means what these files say, or else what
        is usual: as do_lower_case says, and always for SentencePiece.
      checkpoint: which checkpoint of a run, as for `interchange.open_source`.
      long_texts: what is read of longer texts, one of `choices.LONG_TEXTS`; for "windows", a text's
        vector is the mean of its windows' vectors, with their tokens as weights, and is scaled then
        if vectors are scaled. None means what the files beside the weights say, or else "cut".
      doc_stride: how many tokens after one another windows begin; None means half of a window.

    Attributes:
      width: the number of elements of a vector: n * H, or H for "pooled".
      pooling: as above, resolved.
      is_normalized: whether the vectors have the length 1.
      batch_size, max_seq_length: as above, resolved.
      long_texts: the `tasks.long_texts.LongTexts` of long_texts and doc_stride.
      num_cut: how many texts were longer so far.

    Raises:
      ValueError: the path does not hold a whole network with its vocabulary, a weight is not
        finite, or an argument does not fit the network; the message says which. Or the files of
        sentence-transformers ask for what is not computed here.
    """

    def __init__(
        self,
        path: str,
        pooling: str | None = None,
        layers: Sequence[int] = (-1,),
        max_seq_length: int | None = None,
        batch_size: int = commands.BATCH_SIZE,
        vocab_file: str | None = None,
        bert_config_file: str | None = None,
        do_lower_case: bool | None = None,
        checkpoint: str | None = None,
        strip_accents: bool | None = None,
        long_texts: str | None = None,
        doc_stride: int | None = None,
    ):
        commands.check_batch_size(batch_size)
        if pooling not in (None, *POOLINGS):
            raise ValueError(f"pooling={pooling!r}: must be one of {', '.join(POOLINGS)}")
        folder = _onnx_directory(path)
        if folder is None:
            source = interchange.open_source(path, checkpoint)
        elif checkpoint is None:
            source = model_directory.open_directory(folder, path)
        else:
            raise ValueError(
                f"{path}: is an ONNX model, not the directory of a run; leave --checkpoint out"
            )
        config = bert_config_file and config_json.read_any_config(bert_config_file)
        source = source.with_files(config or None, vocab_file)
        self._config, self._source = source.config, source
        self.is_normalized = pooling is None and bool(source.is_normalized)
        self.pooling = pooling or _pooling_of(source)
        if folder is None:
            self._check_weights()
        self._tokenizer = source.open_tokenizer(do_lower_case, strip_accents)
        self._layers = _layer_numbers(layers, self._config.num_hidden_layers)
        self.max_seq_length = _length(max_seq_length, source)
        self.long_texts = _long_texts(long_texts, doc_stride, source, self.max_seq_length)
        self.width = self._config.hidden_size * (1 if self.pooling == "pooled" else len(layers))
        self.batch_size = batch_size
        self.most_windows: int | None = None  # of a call; a server sets it
        self.num_cut = 0
        step = memory_needed.Computation(batch_size, self.max_seq_length)
        needed = memory_needed.of_running(source.config, step)
        memory_needed.check(needed, path, "give a smaller batch_size or max_seq_length")
        if folder is None:
            self._open_weights()
        else:
            self._open_onnx(folder)

    def __call__(self, texts: Sequence[Text]) -> np.ndarray:
        """Returns a vector for each text, in order: float32 [number of texts, width].

        Args:
          texts: strings, and tuples of two strings for pairs, in any order.

        Raises:
          ValueError: texts is a single string, a text is neither a string nor a pair of strings, or
            a vector is not finite; the message says which text.
        """
        commands.check_list(texts)
        features = self._features(texts)
        commands.check_windows(len(features), len(texts), self.most_windows)
        vectors = np.zeros([len(features), self.width], np.float32)
        for numbers, feed in self._batches(features):
            vectors[numbers] = self._session.run(self._vectors, feed)
        if len(features) > len(texts):
            by_text = features.by_text(vectors)
            vectors = np.float32([np.average(rows, 0, weights) for rows, weights in by_text])
        _check_finite(vectors)
        if self.is_normalized:
            # A vector of zeros stays as it is.
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _LEAST_NORM)
        self.num_cut += features.num_cut
        return vectors

    def tokens(self, texts: Sequence[Text]) -> list[tuple[list[str], np.ndarray]]:
        """Returns the vectors of each text's tokens.

        Args:
          texts: as for a call.

        Returns:
          For each text, its tokens with [CLS] and [SEP], and float32 [n, number of tokens, H].

        Raises:
          ValueError: as a call does; or long texts are read in windows.
        """
        commands.check_list(texts)
        if self.long_texts.choice == WINDOWS:
            raise ValueError(
                "long_texts='windows' is for vectors of texts: a token may be in several windows; "
                "open the network with long_texts='cut' or 'head_tail'"
            )
        features = self._features(texts)
        answer_of: dict[int, tuple[list[str], np.ndarray]] = {}
        for numbers, feed in self._batches(features):
            layers = self._session.run(self._token_vectors, feed)
            ids = feed[self._inputs["input_ids"]]
            for row, number in enumerate(numbers):
                length = features.lengths[number]
                tokens = self._tokenizer.convert_ids_to_tokens(ids[row, :length].tolist())
                answer_of[number] = tokens, np.stack([layer[row, :length] for layer in layers])
        answers = [answer_of[number] for number in range(len(texts))]
        _check_finite([vectors for _, vectors in answers])
        self.num_cut += features.num_cut
        return answers

    def close(self) -> None:
        """Closes the network; the embedder cannot be called after that."""
        self._session.close()

    def _features(self, texts: Sequence[Text]) -> Features:
        examples = [self._example(number, text) for number, text in enumerate(texts)]
        return Features(examples, self._tokenizer, self.max_seq_length, self.long_texts)

    def _batches(self, features: Features) -> Iterator[tuple[np.ndarray, Mapping]]:
        """Yields (numbers of texts, feed) for the batches of texts."""
        for numbers in commands.batches_by_length(features.lengths, self.batch_size):
            yield numbers, self._feed(features, numbers)

    def _feed(self, features, numbers):
        batch = features.batch(numbers, features.lengths[numbers].max())
        return {tensor: batch[name] for name, tensor in self._inputs.items()}

    def _example(self, number, text):
        is_pair = isinstance(text, tuple | list)
        if is_pair and self._config.type_vocab_size < 2:
            raise ValueError(
                f"texts[{number}] is a pair, but the network has one type of segment only"
            )
        return commands.example_of(number, text, is_pair, "a string or a pair of strings")

    def _check_weights(self):
        # The heads are not used, and so not checked.
        shapes = {n: s for n, s in self._source.shapes.items() if n.startswith("bert/")}
        network_variables.check(self._config, shapes, self._source.path)
        self._check_pooler(any(name.startswith(network_variables.POOLER) for name in shapes))

    def _open_weights(self):
        """Opens the network in TensorFlow."""
        self._session = tf.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            self._inputs, self._vectors, self._token_vectors = self._graph()
        weights.load_all(self._source, self._session)

    def _open_onnx(self, folder):
        """Opens an ONNX model; its session is called as TensorFlow's."""
        model, last = runtime.Model(folder), self._config.num_hidden_layers
        self._onnx_outputs = model.outputs
        self._check_pooler(runtime.POOLED in model.outputs)
        if set(self._layers) != {last}:
            raise ValueError(
                f"layers: {self._source.path} is an ONNX model, which gives its last layer alone, "
                f"-1 or {last}. For other layers, open the model that it was made from"
            )
        self._inputs = {name: name for name in runtime.FEATURES}
        self._vectors, self._token_vectors = _VECTORS, _TOKENS

        def run(fetch: str, feed: Mapping[str, np.ndarray]) -> np.ndarray | list[np.ndarray]:
            if fetch == runtime.MASKED:  # of `Filler`
                return model.run(feed, [fetch])[fetch]
            if fetch == _VECTORS and self.pooling == "pooled":
                return model.run(feed, [runtime.POOLED])[runtime.POOLED]
            hidden = model.run(feed, [runtime.HIDDEN])[runtime.HIDDEN]
            # The last layer is every layer that was asked for.
            layers = [hidden] * len(self._layers)
            if fetch == _TOKENS:
                return layers
            vectors = _pool_arrays(self.pooling, hidden, feed["input_mask"])
            return np.concatenate([vectors] * len(layers), axis=-1)

        self._session = runtime.Session(run)

    def _check_pooler(self, has_pooler):
        if self.pooling == "pooled" and not has_pooler:
            raise ValueError(
                f"pooling='pooled': {self._source.path} does not have a pooler, since its task "
                "does not use it; use another pooling"
            )

    def _graph(self):
        """Adds the network to the current graph: (inputs, vectors [B, width], layers [B, F, H])."""
        inputs = {name: tf.placeholder(tf.int32, [None, None], name) for name in runtime.FEATURES}
        with primitives.portable():  # batches of all shapes, none of which has to be compiled
            self._model = model = modeling.BertModel(
                self._config,
                is_training=False,
                input_ids=inputs["input_ids"],
                input_mask=inputs["input_mask"],
                token_type_ids=inputs["segment_ids"],
            )
        outputs = [model.get_embedding_output(), *model.get_all_encoder_layers()]
        layers = [outputs[number] for number in self._layers]
        if self.pooling == "pooled":
            return inputs, model.get_pooled_output(), layers
        parts = [_pool(self.pooling, layer, inputs["input_mask"]) for layer in layers]
        return inputs, tf.concat(parts, axis=-1), layers


def _onnx_directory(path):
    """Returns the directory of an ONNX model, copied here if it is remote; or None."""
    if paths.is_remote(path) and remote.check(f"{path}/{runtime.FILE}"):
        return remote.local_directory(path)
    return path if runtime.is_model(path) else None


def _pool_arrays(pooling, layer, input_mask):
    """Pools arrays as `_pool` does tensors."""
    if pooling == "cls":
        return layer[:, 0]
    is_token = (input_mask > 0)[..., np.newaxis]
    if pooling == "max":
        return np.where(is_token, layer, -np.inf).max(axis=1)
    assert pooling == "mean", pooling
    return np.where(is_token, layer, 0).sum(axis=1) / is_token.sum(axis=1)


def _pool(pooling: str, layer: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
    """Returns [B, H] of a layer [B, F, H]: a vector for each text."""
    if pooling == "cls":
        return layer[:, 0, :]
    mask = tf.cast(input_mask[:, :, tf.newaxis], tf.float32)
    if pooling == "max":
        return tf.reduce_max(layer * mask + (1.0 - mask) * layer.dtype.min, axis=1)
    assert pooling == "mean", pooling
    return tf.reduce_sum(layer * mask, axis=1) / tf.reduce_sum(mask, axis=1)


def _pooling_of(source: interchange.Source) -> str:
    """Returns the pooling that the files beside the weights ask for, or the usual one."""
    if source.pooling not in (None, *POOLINGS):
        raise ValueError(
            f"{source.path}: sentence-transformers' files beside the weights ask for "
            f"{source.pooling}, which is not computed here. For vectors of another kind, give the "
            f"pooling (--pooling): {', '.join(POOLINGS)}"
        )
    return source.pooling or "mean"


def _layer_numbers(layers: Sequence[int], num_layers: int) -> list[int]:
    """Returns the layers counted from the embeddings, which are 0."""
    if isinstance(layers, int | str):
        raise ValueError(f"layers={layers!r}: must be a list of numbers of layers")
    for layer in layers:
        if not isinstance(layer, Integral) or not -num_layers - 1 <= layer <= num_layers:
            raise ValueError(
                f"layers: {layer!r} is not a layer of the network: its layers are 1 to "
                f"{num_layers}, or from the end -1 to -{num_layers}; 0 is the sum of the embeddings"
            )
    if not layers:
        raise ValueError("layers: name at least one layer")
    # The embeddings are layer 0, so that a network has one more number than it has layers, and -1
    # is the last layer.
    return [layer % (num_layers + 1) for layer in layers]


def _length(max_seq_length: int | None, source: interchange.Source) -> int:
    """Returns the length of a text in tokens."""
    positions = source.config.max_position_embeddings
    if max_seq_length is None:
        return min(source.max_seq_length or positions, positions)
    is_whole = isinstance(max_seq_length, Integral)
    if not is_whole or not LEAST_TOKENS <= max_seq_length <= positions:
        raise ValueError(
            f"max_seq_length={max_seq_length!r}: must be from {LEAST_TOKENS} to {positions}, the "
            "number of the network's positions"
        )
    return max_seq_length


def _long_texts(choice, doc_stride, source, max_seq_length):
    """Returns what is read of longer texts."""
    if choice not in (None, *LONG_TEXTS):
        raise ValueError(f"long_texts={choice!r}: must be one of {', '.join(LONG_TEXTS)}")
    choice = choice or source.long_texts or CUT
    stride = source.doc_stride if doc_stride is None else doc_stride
    if doc_stride is not None and choice != WINDOWS:
        raise ValueError(f"doc_stride={doc_stride!r}: is for long_texts='windows'")
    # The network's own stride may be too long for windows of another length.
    if choice == WINDOWS and stride is not None and not 1 <= stride <= max_seq_length - 2:
        raise ValueError(
            f"doc_stride={stride!r}: must be from 1 to {max_seq_length - 2}, the tokens of a window"
        )
    return LongTexts(choice, stride)


def _check_finite(vectors: Any) -> None:
    """Raises ValueError if an element is not finite."""
    for number, vector in enumerate(vectors):
        if not np.isfinite(vector).all():
            raise ValueError(f"the network's output for texts[{number}] is not finite")
