"""What question answering reads: the network, the windows of questions, and baselines."""

import dataclasses
from collections.abc import Callable

from bert_estimator import tokenization
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.jobs.fine_tuning import opened_network
from bert_estimator.jobs.fine_tuning.question_answering_config import (
    QuestionAnsweringConfig,
    QuestionFlags,
)
from input_pipelines.embedded import embedded_tasks
from input_pipelines.tasks import squad_files, squad_metrics
from input_pipelines.tasks.squad_files import Question
from input_pipelines.tasks.windows import Windows


@dataclasses.dataclass(frozen=True)
class QuestionAnsweringData:
    """Holds the windows of the questions, and the network that fits them; see `FineTuning.load`."""

    bert_config: BertConfig
    vocab_file: str
    casing: tokenization.Casing  # of the windows' text
    # Windows are None if the configuration does not ask for them.
    train: Windows | None
    evaluate: Windows | None
    predict: Windows | None
    # Without arguments: name -> F1 on `evaluate`.
    baselines: Callable[[], dict[str, float]]
    baseline_metric: str = "f1"
    deciding_metric: str = "f1"

    def digest(self) -> str:
        """Returns a hash of the training data; "" without it."""
        return "" if self.train is None else self.train.digest().hex()


def load(config: QuestionAnsweringConfig) -> QuestionAnsweringData:
    """Reads the network and the questions that a configuration names."""
    config, bert_config, tokenizer = opened_network.open_network(config)
    flags.check(
        bert_config.type_vocab_size > 1,
        "bert_config_file",
        config.network.bert_config_file,
        "has type_vocab_size 1, but a question and its context are 2 segments; give a network that "
        "was made for pairs",
    )
    read = _read_embedded if config.embedded else _read_files
    return read(config, bert_config, tokenizer)


def _read_files(config, bert_config, tokenizer):
    is_run = not config.plan.compile_only

    def windows(flag, is_read, needs_answers, is_training=False):
        if not is_read:
            return None
        path, version_2 = getattr(config.data, flag), config.data.version_2_with_negative
        with flags.named(flag):
            questions = squad_files.read(path, needs_answers, version_2)
            if needs_answers:
                questions = squad_files.located(questions, path)
            # Published files have a few answers that are not in the context: they cannot be
            # learned.
            if is_training:
                questions = squad_files.answerable(questions, path)
            result = _windows(config.data, questions, tokenizer, path)
        if needs_answers and result.num_lost:
            print(
                f"{path}: the answers of {result.num_lost} of {len(questions)} questions do not "
                "have tokens in the context; in the loss they count as no answer."
            )
        return result

    # The configuration says which files are read; --compile_only reads only what a step is made of.
    train = windows(
        "train_file", config.do_train or config.plan.compile_only, True, is_training=True
    )
    evaluate = windows("eval_file", is_run and config.evaluates(), True)
    predict = windows("predict_file", is_run and config.do_predict, False)

    def baselines():
        # In SQuAD 1.1 every question has an answer, so giving none scores nothing.
        if not config.data.version_2_with_negative:
            return {}
        return {"no answer": _f1(evaluate.questions, {})}

    return QuestionAnsweringData(
        bert_config, config.data.vocab_file, tokenizer.casing, train, evaluate, predict, baselines
    )


def _read_embedded(config, bert_config, tokenizer):
    train, held_out = (
        _windows(config.data, side, tokenizer, "the embedded questions")
        for side in embedded_tasks.load_questions()
    )
    print(
        f"Questions on docstrings: {len(train.questions)} to train on, {len(held_out.questions)} "
        f"held out. Start: {opened_network.start_in_words(config)}."
    )

    def baselines():
        sentences = embedded_tasks.nearest_sentences(held_out.questions)
        return {
            "no answer": _f1(held_out.questions, {}),
            "nearest sentence": _f1(held_out.questions, sentences),
        }

    return QuestionAnsweringData(
        bert_config,
        config.data.vocab_file,
        tokenizer.casing,
        train,
        held_out,
        held_out,
        baselines,
    )


def _windows(
    lengths: QuestionFlags, questions: list[Question], tokenizer: tokenization.Tokenizer, path: str
) -> Windows:
    """Makes windows, and prints what they leave out."""
    windows = Windows(
        questions, tokenizer, lengths.max_seq_length, lengths.doc_stride, lengths.max_query_length
    )
    if windows.num_cut:
        print(
            f"{path}: {windows.num_cut} of {len(questions)} questions were cut to "
            f"--max_query_length={lengths.max_query_length} tokens."
        )
    warning = tokenization.unknown_warning(windows.unknown_share, f"the tokens of {path}")
    if warning:
        print(warning)
    return windows


def _f1(questions, predictions):
    """Returns the F1 of predictions, id -> text; a question without prediction gets no answer."""
    golds = {question.id: question.golds() for question in questions}
    return squad_metrics.evaluate(dict.fromkeys(golds, "") | predictions, golds, True)["f1"]
