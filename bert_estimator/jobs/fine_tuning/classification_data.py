"""What fine-tuning reads: the network, a task's examples as features, and baselines to compare."""

import dataclasses
import functools
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.command_line.choices import EMBEDDED_TAGGING_TASKS
from bert_estimator.jobs.fine_tuning import model_labels, opened_network
from bert_estimator.jobs.fine_tuning.classification_config import ClassificationConfig
from bert_estimator.jobs.fine_tuning.model_labels import LabelsOfFiles
from bert_estimator.tokenization import unknown_warning
from input_pipelines.embedded import embedded_tasks
from input_pipelines.tasks import examples, tag_files, task_data, task_table
from input_pipelines.tasks.baselines import bag_of_words_accuracy, usual_tags_score
from input_pipelines.tasks.features import Batches
from input_pipelines.tasks.long_texts import LongTexts
from input_pipelines.tasks.task_data import TaskData

# Labels times words, of all examples and of the vocabulary: up to here, a bag of words takes
# seconds.
_MOST_COUNTED = 5_000_000


@dataclasses.dataclass(frozen=True)
class ClassificationData:
    """Holds a task's data and the network that fits it; see `FineTuning.load`."""

    bert_config: BertConfig
    task: TaskData
    baselines: Callable[[], dict[str, float]]
    baseline_metric: str = "accuracy"

    @property
    def vocab_file(self) -> str:
        return self.task.vocab_file

    @property
    def deciding_metric(self) -> str:
        return self.task.metrics[0]

    @property
    def train(self) -> Batches | None:
        return self.task.train

    def digest(self) -> str:
        return self.task.digest()


def load(config: ClassificationConfig) -> ClassificationData:
    """Reads the network and the task that a configuration names."""
    config, bert_config, tokenizer = opened_network.open_network(config)
    read = _read_embedded if config.embedded else _read_files
    return read(config, bert_config, tokenizer)


def _read_files(config, bert_config, tokenizer):
    run = None if config.plan.compile_only else config.output_dir
    # A network that has learned labels says their order, and the kind of the task if no flag does.
    model = model_labels.network(run, config.network.init_checkpoint)
    config = _with_kind(config, model)
    is_run = not config.plan.compile_only
    try:
        if config.data.task_kind == "tagging":
            return _read_tags(config, bert_config, tokenizer, model)
        task = _task(config.data, model)
        if task.kind != "regression":
            used = _labels_used(config.data, task, config.evaluates())
            task = dataclasses.replace(task, labels=_ordered(config, model, task.kind, used))
        data = task_data.load_table(
            task,
            tokenizer,
            config.data.vocab_file,
            config.data.max_seq_length,
            train=config.do_train or config.plan.compile_only,
            evaluate=is_run and config.evaluates(),
            predict=is_run and config.do_predict,
            long_texts=LongTexts(config.data.long_texts, config.data.doc_stride),
        )
    # The text begins with the file, which tells the flag that names it.
    except ValueError as error:
        raise flags.FlagError(f"--{_flag_at_fault(config, error)}: {error}") from None
    _print_what_is_lost(data)

    baselines = functools.partial(_baselines, data, bert_config.vocab_size)
    return ClassificationData(bert_config, data, baselines)


def _baselines(data, vocab_size):
    """Returns the accuracy of the baselines of a classification; of no other kind."""
    majority = data.majority()
    if majority is None:
        return {}
    baselines = {"majority class": majority}
    num_labels, held_out = len(data.labels), next(iter(data.evaluate.values()))
    if data.train is not None and (
        num_labels * (data.train.lengths.sum() + vocab_size) <= _MOST_COUNTED
    ):
        accuracy = bag_of_words_accuracy(data.train, held_out, num_labels, vocab_size)
        baselines["bag of words"] = accuracy
    return baselines


def _with_kind(config, model):
    """Returns the configuration; the kind is the network's if only the network says it."""
    is_said = config.data.task_name or config.is_given("task_kind") or config.do_train
    if is_said or config.plan.compile_only or model is None or model.kind is None:
        return config
    config = flags.changed(config, task_kind=model.kind)
    config.check()  # other flags may not fit this kind
    return config


def _task(data, model):
    if data.task_name:
        return task_table.named(data.task_name, data.language).of(data.data_dir)
    files = data.train_file, data.eval_file, data.predict_file
    second = data.text_b_column
    # Only an export goes without files: the network says whether it reads pairs.
    if not any(files) and second is None and model is not None:
        if model.is_pair is None:
            tf.logging.warning(
                "Nothing beside %s says whether it reads pairs of texts; it is exported for single "
                "texts. For pairs, add --text_b_column=text_b.",
                model.path,
            )
        second = task_table.TEXT_B_NAMES[0] if model.is_pair else None
    return task_table.own_task(
        data.task_kind,
        *files,
        data.text_a_column,
        second,
        data.label_column,
        encoding=data.encoding,
    )


def _labels_used(data, task, evaluates):
    """Returns the labels of a task's files."""
    if data.task_name:
        place = f"{data.data_dir}: --task_name={data.task_name}"
        return LabelsOfFiles(task.labels, place, True)
    if data.train_file:
        return LabelsOfFiles(examples.discover_labels(task), data.train_file, True)
    if task.evaluate and evaluates:
        return LabelsOfFiles(examples.evaluation_labels(task), data.eval_file, False)
    return LabelsOfFiles((), "", False)


def _ordered(config, model, kind, used):
    trains = config.do_train or config.plan.compile_only
    return model_labels.of_task(model, kind, used, trains, config.network.allow_partial_init)


def _tags_used(data, columns, evaluates):
    """Returns the tags of the files of sentences."""
    if data.train_file:
        tags = tag_files.discover_tags(data.train_file, columns)
        return LabelsOfFiles(tags, data.train_file, True)
    if data.eval_file and evaluates:
        tags = tag_files.discover_tags(data.eval_file, columns, are_all=False)
        return LabelsOfFiles(tags, data.eval_file, False)
    return LabelsOfFiles((), "", False)


def _read_tags(config, bert_config, tokenizer, model):
    is_run = not config.plan.compile_only
    files = {
        "train": config.data.train_file,
        "evaluate": config.data.eval_file if is_run and config.evaluates() else None,
        "predict": config.data.predict_file if is_run and config.do_predict else None,
    }
    numbers = [config.data.text_a_column, config.data.label_column]
    # Columns are names, or numbers from 1.
    numbers = [n and (int(n) - 1 if n.isdecimal() else n) for n in numbers]
    columns = tag_files.Columns(*numbers, config.data.encoding)
    used = _tags_used(config.data, columns, config.evaluates())
    tags = _ordered(config, model, config.data.task_kind, used)
    data, sentences = task_data.load_tags(
        tags,
        files,
        columns,
        tokenizer,
        config.data.vocab_file,
        config.data.max_seq_length,
        trains=config.do_train or config.plan.compile_only,
    )
    _print_what_is_lost(data)
    return _with_usual_tags(bert_config, data, sentences.get("train"), sentences.get("evaluate"))


def _with_usual_tags(bert_config, data, train, held_out):
    def baselines():
        if train is None:
            return {}
        return {"each word's usual tag": usual_tags_score(train, held_out, data.labels)}

    return ClassificationData(bert_config, data, baselines, data.metrics[0])


def _print_what_is_lost(data):
    sides = {"training": {"": data.train}, "evaluation": data.evaluate, "prediction": data.predict}
    for side, by_name in sides.items():
        for name, features in by_name.items():
            if features is None:
                continue
            what = f"{side}{name and ' ' + name}"
            if cuts := features.describe_cuts():
                print(f"For {what}, {cuts}.")
            if warning := unknown_warning(features.unknown_share, f"the tokens for {what}"):
                print(warning)


def _flag_at_fault(config, error):
    """Returns the flag of the file that the message of an error begins with."""
    if config.data.task_name:
        return "data_dir"
    names = ("train_file", "eval_file", "predict_file", "init_checkpoint", "output_dir")
    values = flags.values_of(config)
    at_fault = (name for name in names if str(error).startswith(f"{values[name]}:"))
    return next(at_fault, "train_file")


def _read_embedded(config, bert_config, tokenizer):
    asked = config.data
    is_tagging = asked.task_name in EMBEDDED_TAGGING_TASKS
    make = embedded_tasks.load_tags if is_tagging else embedded_tasks.TASKS[asked.task_name]
    task, of_text = make(), (tokenizer, asked.vocab_file, asked.max_seq_length)
    if is_tagging:
        data = task_data.of_embedded_tags(task, *of_text)
    else:
        long_texts = LongTexts(asked.long_texts, asked.doc_stride)
        data = task_data.of_embedded(task, *of_text, long_texts)
    what = "sentences" if is_tagging else "examples"
    print(
        f"Task: {task.question} {len(task.train)} {what} to train on, {len(task.held_out)} held "
        f"out. Start: {opened_network.start_in_words(config)}."
    )
    _print_what_is_lost(data)
    if is_tagging:
        return _with_usual_tags(bert_config, data, task.train, task.held_out)
    baselines = functools.partial(_baselines, data, bert_config.vocab_size)
    return ClassificationData(bert_config, data, baselines)
