"""The SavedModel of a network that answers questions, which takes questions and contexts.

`serving.answer_model` lists its signatures and outputs.
"""

from bert_estimator import tokenization
from bert_estimator.jobs.fine_tuning import question_answering_data, text_export
from bert_estimator.jobs.fine_tuning.question_answering_config import QuestionAnsweringConfig
from bert_estimator.jobs.fine_tuning.question_answering_data import QuestionAnsweringData
from bert_estimator.jobs.fine_tuning.text_export import TextParts
from bert_estimator.serving.graph import answer_model
from bert_estimator.serving.graph.answer_model import AnswerText, Settings


def takes_text(config: QuestionAnsweringConfig, data: QuestionAnsweringData) -> bool:
    """Returns whether an export is to take text; see `text_export.takes_text`."""

    def why_not():
        return text_export.why_not(data.vocab_file, data.casing, with_offsets=True)

    def check():
        settings = _settings(config, data)
        # Evaluation and prediction may have the same questions.
        sets = {id(windows): windows for windows in (data.train, data.evaluate, data.predict)}
        number = sum(
            answer_model.check_questions(settings, windows) for windows in sets.values() if windows
        )
        return f"answers all {number} questions of the task as prediction does from the same logits"

    return text_export.takes_text(config.export_inputs, why_not, check)


def text_parts(config: QuestionAnsweringConfig, data: QuestionAnsweringData) -> TextParts:
    """Returns what makes an export take text, if `takes_text` says that it can."""
    return text_export.windowed(lambda: AnswerText(_settings(config, data)))


def _settings(config, data):
    return Settings(
        tokenization.reopen_tokenizer(data.vocab_file, data.casing),
        config.max_seq_length,
        config.doc_stride,
        config.max_query_length,
        question_answering_data.search_of(config),
    )
