"""Fine-tunes BERT to tell something of a text, or of a pair of texts.

    python run_classifier.py --use_tpu --precision=bfloat16

fine-tunes the checkpoint of run_pretraining.py, if it is there, on a labelled task made from what
every Python carries, within a minute or two on two cores, and prints the accuracy beside baselines.
With --task_name and --data_dir it is google-research/bert's run_classifier.py, for all of GLUE and
XNLI; with --train_file, --eval_file and --predict_file it reads one's own TSV, CSV or JSONL files.
"""

import contextlib
import os
import re
import shutil
import statistics
import sys
import types

from absl import flags as absl_flags

from bert_estimator.command_line import console, flags
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.recipes import embedded_classifier

KINDS = ("classification", "multi_label", "regression")
EMBEDDED_TASKS = ("word_order", "sentence_order", "neighbours", "summary")
TASK_NAMES = ("cola", "sst-2", "mrpc", "qqp", "sts-b", "mnli", "qnli", "rte", "wnli", "xnli")

_DATA_FLAGS = ("task_name", "data_dir", "train_file", "eval_file", "predict_file")
_FILE_FLAGS = ("train_file", "eval_file", "predict_file", "vocab_file")
# What only one's own files have need of.
_OWN_FLAGS = (
    "train_file", "eval_file", "predict_file", "text_a_column", "text_b_column", "label_column",
    "task_kind",
)  # fmt: skip
_LEAST_TOKENS = 5  # of a pair: [CLS], a token, [SEP], a token, [SEP]


def define_flags():
    """Returns the flags of this script, unparsed."""
    values = absl_flags.FlagValues()
    flags.define(values, output_dir="runs/classifier")
    for name, default, text in (
        ("task_name", None, f"One of {', '.join((*TASK_NAMES, *EMBEDDED_TASKS))}."),
        ("data_dir", None, "Directory with the task's files, as they are distributed."),
        ("language", "zh", "Language of XNLI."),
        ("train_file", None, "One's own examples: a .tsv, .csv or .jsonl file."),
        ("eval_file", None, "The same, to evaluate on."),
        ("predict_file", None, "The same, to predict for; labels are not needed."),
        ("text_a_column", None, "Column of the text: a name, or a number from 1 (no header)."),
        ("text_b_column", None, "Column of the second text."),
        ("label_column", None, "Column of the label."),
        ("task_kind", "classification", f"What labels are: {', '.join(KINDS)}."),
        ("vocab_file", None, "Vocabulary: WordPiece, or SentencePiece if it ends in .model."),
        ("class_weights", None, "Weights of the labels in the loss, comma-separated."),
    ):
        absl_flags.DEFINE_string(name, default, text, flag_values=values)
    for name, default, text in (
        ("max_seq_length", 128, "Tokens of an example; longer ones are cut."),
        ("predict_batch_size", 8, "Examples in a global prediction batch."),
        ("early_stopping_patience", 0, "End after so many checkpoints that are no better; 0: no."),
        ("num_seeds", 1, "Runs, with seeds from --random_seed on; prints median and spread."),
    ):
        absl_flags.DEFINE_integer(name, default, text, flag_values=values)
    for name, default, text in (
        ("num_train_epochs", 3.0, "Passes over the training examples."),
        ("warmup_proportion", 0.1, "Share of the training spent in linear warm-up."),
        ("layerwise_lr_decay", 1.0, "Factor of the learning rate from a layer to that below."),
    ):
        absl_flags.DEFINE_float(name, default, text, flag_values=values)
    for name, default, text in (
        ("do_predict", False, "Predict, into test_results.tsv."),
        ("do_export", False, "Export a SavedModel, into export/."),
        ("do_lower_case", True, "Lower-case the text: as the vocabulary was made."),
        ("keep_best_checkpoint", False, "Evaluate at every checkpoint; end with the best of them."),
    ):
        absl_flags.DEFINE_boolean(name, default, text, flag_values=values)
    return values


def resolve(argv):
    """Parses and checks a command line.

    Returns:
      The run as attributes: one for each flag; `sources`, where each value came from; `settings`,
      the flags as a dict; `embedded`, whether no data was given.

    Raises:
      flags.FlagError: naming the flag, what is allowed, and what to do.
    """
    values = define_flags()
    given = flags.parse(values, argv)
    settings = {name: values[name].value for name in values}
    sources = {name: "flag" if name in given else "default" for name in settings}
    settings["task_name"] = settings["task_name"] and settings["task_name"].lower()
    is_embedded = settings["task_name"] in EMBEDDED_TASKS or not any(
        name in given for name in _DATA_FLAGS
    )
    if is_embedded:
        checkpoint, vocab_file = embedded_classifier.main_job_checkpoint()
        plan = {"init_checkpoint": checkpoint, "vocab_file": vocab_file}
        if "vocab_file" in given or "init_checkpoint" in given:
            del plan["init_checkpoint"]
        for name, value in {**plan, **embedded_classifier.FLAGS}.items():
            if name not in given:
                settings[name], sources[name] = value, "embedded default"
    settings["optimizer"] = settings["optimizer"] or "adamw"
    settings["init_checkpoint"] = settings["init_checkpoint"] or None  # empty: from scratch
    verbs = ("do_train", "do_eval", "do_predict", "do_export")
    if not any(settings[name] for name in verbs):
        settings["do_train"] = settings["do_train"] is None
        settings["do_eval"] = settings["do_eval"] is None
    for name in ("do_train", "do_eval"):
        settings[name] = bool(settings[name])
    config = _resolved(settings, types.SimpleNamespace(sources=sources, embedded=is_embedded))
    _check_flags_that_are_read(config, given)
    check(config)
    return config


def _check_flags_that_are_read(config, given):
    """Raises FlagError for a flag given that the task has no use for: it would change nothing."""
    if config.embedded:
        what = f"--task_name={config.task_name} has texts and a network of its own"
        unread = (*_OWN_FLAGS, "data_dir", "language", "bert_config_file")
    elif config.task_name:
        what = f"--task_name={config.task_name} has its files in --data_dir"
        unread = (*_OWN_FLAGS, *(() if config.task_name == "xnli" else ("language",)))
    else:
        what, unread = "is for XNLI; your own files have any", ("language",)
    for name in unread:
        flags.check(name not in given, name, getattr(config, name), f"{what}; leave it out")


def _resolved(settings, of):
    """A run with these flags; the rest is that of another."""
    return types.SimpleNamespace(
        **settings, settings=settings, sources=of.sources, embedded=of.embedded
    )


def check(config):
    """Checks all that can be known before TensorFlow is loaded."""
    flags.check_common(config)
    flags.check(
        config.do_train or config.do_eval or config.do_predict or config.do_export,
        "do_train",
        False,
        "nothing to do: --do_eval, --do_predict and --do_export are off too; leave one of them on",
    )
    for name in ("num_train_epochs", "num_seeds"):
        flags.check(getattr(config, name) > 0, name, getattr(config, name), "must be positive")
    flags.check(
        config.max_seq_length >= _LEAST_TOKENS,
        "max_seq_length",
        config.max_seq_length,
        f"must be at least {_LEAST_TOKENS}: a pair of texts has three tokens besides its words",
    )
    patience = config.early_stopping_patience
    flags.check(patience >= 0, "early_stopping_patience", patience, "must not be negative")
    for name in ("layerwise_lr_decay", "warmup_proportion"):
        value = getattr(config, name)
        flags.check(0 <= value <= 1, name, value, "must be from 0 to 1")
    flags.check_choice("task_kind", config.task_kind, KINDS)
    for name in _FILE_FLAGS:
        flags.check_file(name, getattr(config, name))
    flags.check(
        not config.class_weights
        or all(re.fullmatch(r"[0-9]*\.?[0-9]+", part) for part in config.class_weights.split(",")),
        "class_weights",
        config.class_weights,
        "must be numbers, none below 0, with commas between them",
    )
    if not config.embedded:
        for name in ("vocab_file", "bert_config_file"):
            flags.check(getattr(config, name), name, None, "is needed, unless the task is embedded")
        _check_data_flags(config)
    if flags.find_hosts().number > 1:
        raise flags.FlagError("TF_CONFIG names several hosts; this script runs on one: unset it")
    flags.check_writable_directory("output_dir", config.output_dir)


def _check_data_flags(config):
    """The task's files are named by --task_name and --data_dir, or one by one."""
    if config.task_name or config.data_dir:
        flags.check_choice("task_name", config.task_name, (*TASK_NAMES, *EMBEDDED_TASKS))
        flags.check(config.data_dir, "data_dir", None, "is needed: it holds the task's files")
        flags.check(os.path.isdir(config.data_dir), "data_dir", config.data_dir, "is no directory")
        return
    for verb, name, is_read in (
        ("do_train", "train_file", True),
        ("do_eval", "eval_file", True),
        ("keep_best_checkpoint", "eval_file", config.do_train),
        ("early_stopping_patience", "eval_file", config.do_train),
        ("do_predict", "predict_file", True),
    ):
        flags.check(
            not (is_read and getattr(config, verb)) or getattr(config, name),
            name,
            None,
            f"is needed for --{verb}; or turn it off",
        )
    flags.check(
        config.train_file or config.task_kind == "regression",
        "train_file",
        None,
        "is needed also to evaluate and to predict: the labels are discovered in it",
    )


def run(config):
    """Trains, evaluates and predicts as configured, once or for each seed."""
    if config.num_seeds == 1:
        _run_once(config)
        return
    results = []
    for seed in range(config.random_seed, config.random_seed + config.num_seeds):
        output_dir = os.path.join(config.output_dir, f"seed-{seed}")
        changes = {"random_seed": seed, "output_dir": output_dir, "num_seeds": 1}
        results.append(_run_once(_resolved({**config.settings, **changes}, config)))
    for name in results[0]:
        values = [result[name] for result in results]
        print(
            f"{name} of {len(values)} seeds: median {statistics.median(values):.4f} "
            f"({min(values):.4f} to {max(values):.4f})"
        )


def _run_once(config):
    """Does one run; returns what evaluation found, as a dict of floats."""
    RunDirectory(config.output_dir).check_config(config.settings)

    # Loaded only now, since it takes seconds: wrong flags have been reported by here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow.compat.v1 as tf

    from bert_estimator.jobs import script_estimator
    from bert_estimator.jobs.fine_tuning import FineTuning
    from input_pipelines import classification_input

    console.set_up(tf.get_logger())
    master, batches = script_estimator.find_cores(config)
    config = _resolved({**config.settings, **batches}, config)
    bert_config, data, baselines = (_load_embedded if config.embedded else _load)(config)
    job = FineTuning(config, master, bert_config, data, classification_input.input_fn_builder)
    if config.do_train:
        job.train()
    results = job.evaluate(baselines) if config.do_eval else {}
    if config.do_predict:
        job.predict()
    if config.do_export:
        job.export()
    print(job.summary())
    return results


def _load(config):
    """Returns (network, data, baselines) of the files that the flags name."""
    from bert_estimator.jobs import script_estimator
    from input_pipelines import task_data, tasks

    bert_config = script_estimator.read_bert_config(config)
    script_estimator.check_length(config, bert_config)
    tokenizer = _open_tokenizer(config.vocab_file, config.do_lower_case, bert_config)
    does_evaluate = config.do_eval or config.keep_best_checkpoint or config.early_stopping_patience
    try:
        if config.task_name:
            task = tasks.named(config.task_name, config.language).of(config.data_dir)
        else:
            task = tasks.own_task(
                config.task_kind,
                config.train_file,
                config.eval_file,
                config.predict_file,
                config.text_a_column,
                config.text_b_column,
                config.label_column,
            )
        data = task_data.load(
            task,
            tokenizer,
            config.vocab_file,
            config.max_seq_length,
            train=config.do_train,
            evaluate=does_evaluate,
            predict=config.do_predict,
        )
    except ValueError as error:
        raise flags.FlagError(f"--{_flag_at_fault(config, error)}: {error}") from None
    for name, features in {"training": data.train, **data.evaluate, **data.predict}.items():
        if features is not None and features.num_cut:
            print(
                f"{features.num_cut} of {len(features)} {name} examples were cut to "
                f"--max_seq_length={config.max_seq_length} tokens."
            )
    majority = data.majority()
    return bert_config, data, {} if majority is None else {"majority class": majority}


def _open_tokenizer(vocab_file, do_lower_case, bert_config):
    from bert_estimator import tokenization

    try:
        tokenizer = tokenization.open_tokenizer(vocab_file, do_lower_case)
    except ValueError as error:
        raise flags.FlagError(f"--vocab_file: {error}") from None
    flags.check(
        tokenizer.vocab_size <= bert_config.vocab_size,
        "vocab_file",
        vocab_file,
        f"has {tokenizer.vocab_size} tokens, but the network only {bert_config.vocab_size}; give "
        "the two that belong together",
    )
    return tokenizer


def _flag_at_fault(config, error):
    """Returns the flag of the file that an error begins with."""
    if config.task_name:
        return "data_dir"
    files = ("train_file", "eval_file", "predict_file")
    found = (name for name in files if str(error).startswith(f"{getattr(config, name)}:"))
    return next(found, "train_file")


def _load_embedded(config):
    """Returns (network, data, baselines) of the embedded task."""
    from bert_estimator.bert_config import BertConfig
    from bert_estimator.jobs import script_estimator
    from input_pipelines import bag_of_words, default_data, embedded_task, task_data

    vocab_size = embedded_classifier.VOCAB_SIZE
    bert_config = BertConfig(vocab_size=vocab_size, **embedded_classifier.BERT_CONFIG)
    script_estimator.check_length(config, bert_config)
    # A copy stays with the run: a later main job may have another vocabulary.
    extension = os.path.splitext(config.vocab_file or "")[1]
    vocab_file = os.path.join(config.output_dir, "vocab" + (extension or ".txt"))
    if not os.path.exists(vocab_file) or not RunDirectory(config.output_dir).holds_checkpoint():
        if config.vocab_file:
            _open_tokenizer(config.vocab_file, config.do_lower_case, bert_config)
            with contextlib.suppress(shutil.SameFileError):
                shutil.copy(config.vocab_file, vocab_file)
        else:
            default_data.write_vocabulary(vocab_file, vocab_size)
    tokenizer = _open_tokenizer(vocab_file, config.do_lower_case, bert_config)
    task = embedded_task.load(config.task_name)
    data = task_data.of_embedded(task, tokenizer, vocab_file, config.max_seq_length)
    (held_out,) = data.evaluate.values()
    print(
        f"Task: {task.question} {len(data.train)} examples to train on, {len(held_out)} held out. "
        f"Start: {config.init_checkpoint or 'from scratch (run_pretraining.py makes a start)'}."
    )
    baselines = {
        "majority class": data.majority(),
        "bag of words": bag_of_words.accuracy(data.train, held_out, 2, vocab_size),
    }
    return bert_config, data, baselines


def main(argv):
    """Runs the script; returns its exit code: 0, 2 for flags or files that cannot work, 1 for any
    other failure, or 128 + the signal's number."""
    if any(a in ("--help", "-help", "-h", "--helpfull") for a in argv[1:]):
        print(__doc__, define_flags().get_help(), sep="\n")
        return 0
    return console.exit_code("run_classifier.py", lambda: run(resolve(argv)))


if __name__ == "__main__":
    console.leave(main(sys.argv))
