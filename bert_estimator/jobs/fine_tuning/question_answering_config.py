"""The configuration of run_squad.py: its flags, and their checks.

Names, meanings and defaults of the flags are google-research/bert's. This module does not import
TensorFlow, so wrong flags are reported before it is loaded.
"""

import dataclasses

from bert_estimator.command_line import flags, provenance
from bert_estimator.command_line.provenance import read_command_line
from bert_estimator.jobs import used_network
from bert_estimator.jobs.fine_tuning.fine_tuning_config import (
    FineTuningConfig,
    ResultFlags,
    TextFlags,
    plan_of_embedded,
)
from bert_estimator.jobs.job_config import find_output_dir
from bert_estimator.recipes import embedded

_SPECIAL_TOKENS = 3  # [CLS] question [SEP] window [SEP]
_ids = flags.rule(
    lambda inputs: inputs == "ids",
    "must be ids: a model that answers questions takes texts in bert-predict and bert-serve, which "
    "turn them into ids",
)


@flags.group(flags.COMMON)
class QuestionFlags(TextFlags):
    """Says which questions a run reads, and how they become windows."""

    train_file: str | None = flags.field(
        None,
        "Train on the questions of this file, in the layout of SQuAD 1.1 or 2.0.",
        flags.check_file,
        may_differ=flags.EVALUATING,
    )
    version_2_with_negative: bool = flags.field(
        False, "Allow questions without answer, as SQuAD 2.0 has them.", heading=flags.DATA
    )
    max_seq_length: int = flags.field(
        384,
        "Set the length of a question with a window of its context, in tokens.",
    )
    doc_stride: int = flags.field(
        128,
        "Start each window so many tokens of the context after the window before it.",
        flags.positive,
        heading=flags.DATA,
    )
    max_query_length: int = flags.field(
        64, "Cut questions to this many tokens.", flags.positive, heading=flags.DATA
    )

    def check(self) -> None:
        """Raises FlagError if a window does not have room for the context, or does not overlap."""
        least = self.max_query_length + _SPECIAL_TOKENS + 1
        flags.check(
            self.max_seq_length >= least,
            "max_seq_length",
            self.max_seq_length,
            f"must be at least {least}, so that a token of the context has room beside "
            f"--max_query_length={self.max_query_length} and {_SPECIAL_TOKENS} special tokens",
        )
        room = _room(self.max_seq_length, self.max_query_length)
        flags.check(
            self.doc_stride <= room,
            "doc_stride",
            self.doc_stride,
            f"must be at most {room}, the tokens of the context beside the longest question: "
            "windows would not overlap",
        )


@flags.group(flags.CHECKPOINTS, may_differ=True)
class AnswerFlags(ResultFlags):
    """Says how a run evaluates and predicts, and what it exports."""

    export_inputs: str | None = flags.field(
        None, "Export a model that takes ids, which is the default.", _ids
    )
    n_best_size: int = flags.field(
        20,
        "Look at this many starts and ends of each window, and keep as many answers.",
        flags.positive,
    )
    max_answer_length: int = flags.field(
        30, "Give answers of at most this many tokens.", flags.positive
    )
    null_score_diff_threshold: float = flags.field(
        0.0,
        "Say that there is no answer if its score is above the best answer's by more than this.",
    )


@flags.group(flags.TASKS, may_differ=True)
class QuestionAnsweringConfig(FineTuningConfig):
    """Holds the flags of a run of run_squad.py, with one seed."""

    output_dir: str = flags.field(
        "runs/squad",
        "Write checkpoints, events, metrics, curves and answers into this directory.",
        heading=flags.COMMON,
    )
    data: QuestionFlags = flags.member(QuestionFlags)
    evaluation: AnswerFlags = flags.member(AnswerFlags)
    do_predict: bool = flags.field(
        False,
        "Predict, into predictions.json, nbest_predictions.json and null_odds.json.",
    )

    def check(self) -> None:
        """Checks all that can be checked before TensorFlow is loaded."""
        super().check()
        self.data.check()
        self.check_network_and_hosts()

    def of_length(self, max_seq_length: int) -> "QuestionAnsweringConfig":
        settings = flags.values_of(self) | {"max_seq_length": max_seq_length}
        sources = dict(self.sources)
        # A network's own length may be too short for the stride that was checked at first.
        _fit_stride(settings, sources)
        lengths = {name: settings[name] for name in ("max_seq_length", "doc_stride")}
        config = flags.changed(self, **lengths, sources=sources)
        config.data.check()
        return config


def resolve(argv: list[str]) -> list[QuestionAnsweringConfig]:
    """Parses and checks a command line; returns the configurations of the seeds."""
    settings, sources = read_command_line(QuestionAnsweringConfig, argv)
    settings["output_dir"], mirror = find_output_dir(settings["output_dir"])
    used = used_network.recall(QuestionAnsweringConfig, settings, sources, "max_query_length")
    data_flags = QuestionAnsweringConfig.DATA_FLAGS
    is_embedded = not any(sources[name] == provenance.FLAG for name in data_flags)
    if is_embedded and used:
        verbs = [name for name in QuestionAnsweringConfig.VERBS if settings[name]]
        if verbs != ["do_export"]:
            what = "give --eval_file to evaluate, --predict_file to predict"
            used_network.check_data(used, what)
        # A network that others trained is exported by the script's own settings.
        is_embedded = bool(used.recorded) and not any(map(used.recorded.get, data_flags))
    if is_embedded:
        plan = plan_of_embedded(embedded.ANSWER_FLAGS, settings, sources)
        provenance.apply(plan, provenance.EMBEDDED, settings, sources)
    # It comes after the plan and the recalled flags, any of which may set the lengths.
    _fit_stride(settings, sources)
    fields = {"embedded": is_embedded, "sources": sources, "mirror": mirror}
    run = flags.build(QuestionAnsweringConfig, settings, **fields)
    run.check()
    return run.runs()


def _room(max_seq_length, max_query_length):
    """Returns how many tokens of a context a window has beside the longest question."""
    return max_seq_length - max_query_length - _SPECIAL_TOKENS


def _fit_stride(settings, sources):
    """Halves the room of a window for a stride that nobody asked for, if that stride is longer."""
    room, stride = _room(settings["max_seq_length"], settings["max_query_length"]), "doc_stride"
    if sources[stride] != provenance.FLAG and 0 < room < settings[stride]:
        sources[stride] = dataclasses.replace(sources[stride], scaled_from=settings[stride])
        settings[stride] = max(1, room // 2)
