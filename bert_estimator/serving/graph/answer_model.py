"""A model that answers questions, with text as its input: what its graph has around the network.

Signatures of the exported model:

    serving_default    strings [B] under `question` and `context`
    ids:windows        `input_ids`, `input_mask`, `segment_ids`, int32 [R, F]: windows of contexts

`serving_default` gives what run_squad.py predicts:

    answer              strings [B]: a part of the context, byte by byte; "" for "no answer"
    start, end          int32 [B], where the answer is: the number of the context's characters
                        before it, and up to its end; 0 for "no answer"
    score               float32 [B], the sum of the logits of the answer's ends
    probability         float32 [B], of the answer among the n best
    null_odds           float32 [B], if questions may have no answer: the score of "no answer" less
                        the score of the best span
    n_best_answers, n_best_starts, n_best_ends, n_best_probabilities
                        [B, N], best first; "" and zeros after the last. Their number N is
                        --n_best_size, and one more, if questions may have no answer

A character is a code point of Unicode, as in SQuAD's `answer_start`. The outputs of `ids:windows`
are the network's own, `start_logits` and `end_logits`, float32 [R, F].

Letters: B questions, R windows of all questions, F sequence length.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.serving.graph import answer_search, graph_characters, graph_tokenizer
from bert_estimator.serving.graph.answer_search import Contexts
from bert_estimator.serving.graph.text_model import TextDifferenceError
from bert_estimator.system.ticker import Progress
from bert_estimator.tokenization import Tokenizer
from input_pipelines.tasks import answers
from input_pipelines.tasks.answers import Prediction, Search
from input_pipelines.tasks.windows import Windows

_BATCH = 32


class Settings(NamedTuple):
    """Says how a model answers questions.

    Attributes:
      tokenizer: the tokenizer of the training.
      max_seq_length, doc_stride, max_query_length: as in `Windows`.
      search: how answers are searched.
    """

    tokenizer: Tokenizer
    max_seq_length: int
    doc_stride: int
    max_query_length: int
    search: Search


class AnswerText:
    """Adds the inputs of a model that answers questions to the current graph.

    Args:
      settings: how it answers questions.

    Attributes:
      texts: the placeholders of questions and contexts, by name.
      ids: the features by name, which may be fed instead.
      contexts: the `Contexts`.

    Raises:
      ValueError, ImportError: see `GraphTokenizer.with_offsets` and `graph_tokenizer.of`.
    """

    def __init__(self, settings: Settings):
        tokenizer, length = settings.tokenizer, settings.max_query_length
        self._search = settings.search
        names = ("question", "context")
        self.texts = {name: tf.placeholder(tf.string, [None], name) for name in names}
        in_graph = graph_tokenizer.of(tokenizer)
        queries = in_graph(self.texts["question"], most_words=length)[:, :length]
        characters = graph_characters.characters(self.texts["context"])
        tokens = in_graph.with_offsets(characters.codes)
        self.contexts = Contexts(self.texts["context"], characters, tokens)
        self._windows = answer_search.windows_of(
            queries, tokens.ids, tokenizer, settings.max_seq_length, settings.doc_stride
        )
        self.ids = {
            name: tf.placeholder_with_default(value, [None, settings.max_seq_length], name)
            for name, value in self._windows.features.items()
        }

    def outputs(self, predictions: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the outputs of `serving_default`.

        Args:
          predictions: the network's `start_logits` and `end_logits`, float32 [R, F].
        """
        logits = predictions["start_logits"], predictions["end_logits"]
        return answer_search.answers(self._windows, self.contexts, *logits, self._search)


def check_questions(settings: Settings, windows: Windows) -> int:
    """Compares the graph with what evaluation and prediction do: windows, offsets, answers.

    The network is not needed: its logits are replaced by random numbers.

    Args:
      settings: how the model answers questions.
      windows: the windows of the questions to compare.

    Returns:
      The number of questions.

    Raises:
      TextDifferenceError: the graph does something else with a question; the message shows it.
    """
    outputs: list[dict[str, np.ndarray]] = []
    logits = _logits_of_graph(settings, windows, outputs)
    predictions = answers.predict(windows, logits, settings.search)
    count = len(windows.questions)
    progress = Progress("Comparing answers to questions in the exported graph", count, "")
    for number, prediction in enumerate(progress.over(predictions)):
        _check_answer(windows.questions[number], prediction, outputs[number])
        outputs[number] = {}
    return count


def _logits_of_graph(settings, windows, answers):
    """Yields random logits of each window, and appends the graph's answers of each question."""
    with tf.Graph().as_default(), tf.Session() as session:
        text = AnswerText(settings)
        shape = tf.shape(text.ids["input_ids"])
        # Of few distinct numbers, some are equal.
        logits = [tf.round(8 * tf.random.stateless_normal(shape, [7, i])) / 8 for i in (0, 1)]
        logits = [tf.ensure_shape(row, [None, settings.max_seq_length]) for row in logits]
        outputs = text.outputs(dict(zip(("start_logits", "end_logits"), logits, strict=True)))
        fetches = text.ids, text.contexts.tokens, logits, outputs
        for first in range(0, len(windows.questions), _BATCH):
            numbers = range(first, min(first + _BATCH, len(windows.questions)))
            questions = [windows.questions[number] for number in numbers]
            columns = [question.text for question in questions], [q.context for q in questions]
            feeds = {
                placeholder: [text.encode(errors="surrogatepass") for text in column]
                for placeholder, column in zip(text.texts.values(), columns, strict=True)
            }
            ids, tokens, rows, outputs = session.run(fetches, feeds)
            for number in numbers:
                _check_tokens(windows, number, [_row(part, number - first) for part in tokens])
            _check_windows(windows, numbers, ids)
            answers += _by_question(outputs)
            yield from zip(*rows, strict=True)


def _by_question(outputs: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    for row in zip(*outputs.values(), strict=True):
        yield dict(zip(outputs, row, strict=True))


def _row(ragged, number):
    return ragged.values[slice(*ragged.row_splits[number : number + 2])]


def _check_tokens(windows, number, tokens):
    """Compares the tokens of a question's context: ids, starts and ends."""
    context = windows.contexts[number]
    expected = context.ids, context.starts, context.ends
    if not all(map(np.array_equal, tokens, expected)):
        raise TextDifferenceError(
            f"{_shown(windows.questions[number])}: the graph of the exported model splits its "
            "context into other tokens than training, or takes them from other characters: "
            f"{context.text!r}"
        )


def _check_windows(windows, numbers, ids):
    """Compares the windows of questions, whose numbers are a range."""
    rows = slice(windows.of_question(numbers[0]).start, windows.of_question(numbers[-1]).stop)
    expected = windows.batch(np.arange(rows.start, rows.stop))
    owners = windows.owners[rows]
    for name, value in ids.items():
        is_other = np.ones(len(owners), bool)
        if value.shape == expected[name].shape:
            is_other = (value != expected[name]).any(axis=1)
        if is_other.any():
            question = windows.questions[owners[is_other.argmax()]]
            raise TextDifferenceError(
                f"{_shown(question)}: the graph of the exported model has other windows than "
                f"training ({name}); the context is {question.context!r}"
            )


def _check_answer(question, prediction: Prediction, outputs):
    """Compares the answers of a question."""
    texts = tuple(text.decode(errors="surrogatepass") for text in outputs["n_best_answers"])
    count = int((outputs["n_best_probabilities"] > 0).sum())
    answer = outputs["answer"].decode(errors="surrogatepass")
    inside = question.context[outputs["start"] : outputs["end"]]
    odds = outputs.get("null_odds", np.float32(0))
    if (answer, inside, texts[: len(prediction.spans)], count, odds) != (
        prediction.answer,
        prediction.answer,
        tuple(span.text for span in prediction.spans),
        len(prediction.spans),
        np.float32(prediction.null_odds),
    ):
        raise TextDifferenceError(
            f"{_shown(question)}: of the same random logits, the graph of the exported model makes "
            f"the answer {answer!r}, and prediction makes {prediction.answer!r}, or other n-best "
            f"answers; the context is {question.context!r}"
        )


def _shown(question):
    return f"the question {question.id!r} ({question.text!r})"
