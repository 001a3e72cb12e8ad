"""Pretrains BERT: masked words and next sentence, with LAMB or AdamW.

    python run_pretraining.py --use_tpu --precision=bfloat16

trains a small BERT on English text that every Python carries, in about two minutes on two cores,
and evaluates it on held-out text. With --input_file and --bert_config_file it is
google-research/bert's run_pretraining.py, flags and records included.
"""

import dataclasses
import os
import sys
import time

from absl import flags as absl_flags

from bert_estimator import console, flags
from bert_estimator.recipes import embedded
from bert_estimator.run_directory import RunDirectory

_INPUT_FLAGS = ("input_file", "bert_config_file")
_STEPS_A_SUMMARY = 10
_MOST_STEPS_A_LOG_LINE = 100


def define_flags():
    """Returns the flags of this script, unparsed."""
    values = absl_flags.FlagValues()
    flags.define(values, output_dir="runs/pretraining")
    absl_flags.DEFINE_string(
        "input_file", None, "Training records: TFRecord files or patterns, comma-separated.",
        flag_values=values,
    )
    absl_flags.DEFINE_string(
        "eval_input_file", None, "Records to evaluate on; those of --input_file by default.",
        flag_values=values,
    )
    for name, default, text in (
        ("max_seq_length", 128, "Length of the records' sequences, in tokens."),
        ("max_predictions_per_seq", 20, "Most masked positions in a sequence."),
        ("num_train_steps", 100000, "Global step training ends at."),
        ("num_warmup_steps", 10000, "Steps of linear warm-up."),
        ("max_eval_steps", 100, "Most evaluation batches."),
    ):
        absl_flags.DEFINE_integer(name, default, text, flag_values=values)
    for name, text in (
        ("legacy_schedule_jump", "google-research/bert's schedule: decays from step 0, and drops "
         "where warm-up ends."),
        ("lamb_bias_correction", "LAMB with Adam's bias correction."),
    ):
        absl_flags.DEFINE_boolean(name, False, text, flag_values=values)
    return values


@dataclasses.dataclass(frozen=True)
class Config:
    """The run, resolved: a field for each flag, and where each value came from.

    `embedded` is true where no data was given and the embedded corpus is used.
    """

    output_dir: str
    input_file: str | None
    eval_input_file: str | None
    bert_config_file: str | None
    init_checkpoint: str | None
    max_seq_length: int
    max_predictions_per_seq: int
    do_train: bool
    do_eval: bool
    train_batch_size: int
    eval_batch_size: int
    learning_rate: float
    num_train_steps: int
    num_warmup_steps: int
    save_checkpoints_steps: int
    iterations_per_loop: int
    max_eval_steps: int
    use_tpu: bool
    tpu_name: str | None
    num_tpu_cores: int | None
    precision: str
    optimizer: str
    micro_batch_size: int | None
    random_seed: int
    legacy_schedule_jump: bool
    lamb_bias_correction: bool
    embedded: bool
    sources: dict

    def settings(self):
        """Returns flag name -> value."""
        fields = dataclasses.asdict(self)
        return {k: v for k, v in fields.items() if k not in ("embedded", "sources")}


def resolve(argv):
    """Parses and checks a command line; returns a `Config`.

    Raises:
      flags.FlagError: naming the flag, what is allowed, and what to do.
    """
    values = define_flags()
    given = flags.parse(values, argv)
    use_embedded = not any(name in given for name in _INPUT_FLAGS)
    names = [f.name for f in dataclasses.fields(Config) if f.name not in ("embedded", "sources")]
    settings = {name: values[name].value for name in names}
    sources = {name: "flag" if name in given else "default" for name in names}
    if use_embedded:
        for name, value in embedded.FLAGS.items():
            if name not in given:
                settings[name], sources[name] = value, "embedded default"
    if settings["optimizer"] is None:
        settings["optimizer"] = "adamw"
    if not settings["do_train"] and not settings["do_eval"]:
        # `--nodo_train` alone means: only evaluate.
        settings["do_train"] = settings["do_train"] is None
        settings["do_eval"] = settings["do_eval"] is None
    settings = {k: bool(v) if k in ("do_train", "do_eval") else v for k, v in settings.items()}
    config = Config(**settings, embedded=use_embedded, sources=sources)
    check(config)
    return config


def check(config):
    """Checks all that can be known before TensorFlow is loaded."""
    flags.check_common(config)
    flags.check(
        config.do_train or config.do_eval, "do_train", False,
        "nothing to do: --do_eval is off too; leave one of them on",
    )
    for name in ("max_seq_length", "max_predictions_per_seq", "num_train_steps", "max_eval_steps"):
        flags.check(getattr(config, name) > 0, name, getattr(config, name), "must be positive")
    flags.check(
        0 <= config.num_warmup_steps < config.num_train_steps,
        "num_warmup_steps",
        config.num_warmup_steps,
        f"must be from 0 to --num_train_steps={config.num_train_steps} exclusive",
    )
    flags.check(
        config.max_predictions_per_seq <= config.max_seq_length,
        "max_predictions_per_seq",
        config.max_predictions_per_seq,
        f"cannot be more than --max_seq_length={config.max_seq_length}",
    )
    if not config.embedded:
        for name in _INPUT_FLAGS:
            flags.check(
                getattr(config, name), name, getattr(config, name),
                f"is needed: {' and '.join('--' + n for n in _INPUT_FLAGS)} go together. With "
                "neither, the embedded corpus is used",
            )
    else:
        flags.check(
            config.eval_input_file is None, "eval_input_file", config.eval_input_file,
            "needs --input_file and --bert_config_file: the embedded corpus has its own held-out "
            "text",
        )
    for name in ("input_file", "eval_input_file"):
        flags.check_patterns(name, getattr(config, name))
    flags.check_writable_directory("output_dir", config.output_dir)


def run(config):
    """Trains and evaluates as configured; prints what came of it and where everything is."""
    directory = RunDirectory(config.output_dir)
    settings = config.settings()
    if not config.do_train:
        del settings["input_file"]  # google-research/bert evaluates on the records of this flag
    directory.check_config(settings)

    # Loaded only now, since it takes seconds: wrong flags have been reported by here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow.compat.v1 as tf

    from bert_estimator import pretraining, tpu
    from bert_estimator.bert_config import BertConfig
    from bert_estimator.tpu import devices
    from input_pipelines import default_data, manifest, pretraining_input, record_reader, unigram

    console.set_up(tf.get_logger())
    if config.embedded:
        bert_config = BertConfig(vocab_size=embedded.DATA["vocab_size"], **embedded.BERT_CONFIG)
    else:
        try:
            bert_config = BertConfig.from_json_file(config.bert_config_file)
        except ValueError as error:
            raise flags.FlagError(f"--bert_config_file: {error}") from None
    flags.check(
        config.max_seq_length <= bert_config.max_position_embeddings,
        "max_seq_length",
        config.max_seq_length,
        f"cannot be more than the network's max_position_embeddings, which is "
        f"{bert_config.max_position_embeddings}",
    )
    train_files, eval_files = config.input_file, config.eval_input_file or config.input_file
    if config.embedded:
        try:
            data = default_data.make(
                os.path.join(config.output_dir, "data"),
                max_seq_length=config.max_seq_length,
                max_predictions_per_seq=config.max_predictions_per_seq,
                may_replace=not directory.holds_checkpoint(),
                **embedded.DATA,
            )
        except ValueError as error:
            raise flags.FlagError(f"--output_dir: {error}") from None
        train_files, eval_files = data.train_files, data.held_out_files
    records = {}
    for name, files in (("input_file", train_files), ("eval_input_file", eval_files)):
        try:
            records[name] = record_reader.open_pretraining_records(
                files,
                config.max_seq_length,
                config.max_predictions_per_seq,
                bert_config.vocab_size,
            )
        except ValueError as error:
            raise flags.FlagError(f"--{name}: {error}") from None
    vocabularies = manifest.vocabularies([f for each in records.values() for f in each.files])
    flags.check(
        len(vocabularies) < 2,
        "eval_input_file",
        config.eval_input_file,
        "its records were made with another vocabulary than those of --input_file",
    )
    if config.do_train:
        digest = manifest.digest(records["input_file"].files)
        directory.check_config(config.settings(), digest)
        directory.write_config(config.settings(), config.sources, digest)

    def input_fn(files, is_training):
        return pretraining_input.input_fn_builder(
            files,
            config.max_seq_length,
            config.max_predictions_per_seq,
            is_training=is_training,
            seed=config.random_seed,
            precision=config.precision,
            vocab_size=bert_config.vocab_size,
        )

    if config.tpu_name:
        try:
            cores = len(devices.find(config.tpu_name))
        except RuntimeError as error:
            raise flags.FlagError(f"--tpu_name={config.tpu_name}: {error}") from None
        flags.check_divides(config, cores, f"the {cores} cores of --tpu_name={config.tpu_name}")
        flags.check(
            config.num_tpu_cores in (None, cores),
            "num_tpu_cores",
            config.num_tpu_cores,
            f"--tpu_name={config.tpu_name} has {cores} cores; leave the flag out",
        )
    estimator = tpu.TPUEstimator(
        model_fn=pretraining.model_fn_builder(
            bert_config,
            config.optimizer,
            config.learning_rate,
            config.num_train_steps,
            config.num_warmup_steps,
            precision_name=config.precision,
            micro_batch_size=config.micro_batch_size,
            random_seed=config.random_seed,
            initial_checkpoint=config.init_checkpoint,
            summary_dir=config.output_dir,
            legacy_schedule_jump=config.legacy_schedule_jump,
            lamb_bias_correction=config.lamb_bias_correction,
        ),
        config=tpu.RunConfig(
            master=config.tpu_name,
            model_dir=config.output_dir,
            tf_random_seed=config.random_seed,
            save_checkpoints_steps=config.save_checkpoints_steps,
            log_step_count_steps=min(_MOST_STEPS_A_LOG_LINE, config.iterations_per_loop),
            tpu_config=tpu.TPUConfig(
                iterations_per_loop=config.iterations_per_loop,
                num_shards=config.num_tpu_cores,
                experimental_host_call_every_n_steps=_STEPS_A_SUMMARY,
            ),
        ),
        params={},
        use_tpu=config.use_tpu,
        train_batch_size=config.train_batch_size,
        eval_batch_size=config.eval_batch_size,
        units_per_example={"tokens": config.max_seq_length},
    )
    eval_batches = -(-records["eval_input_file"].num_records // config.eval_batch_size)
    eval_steps = min(config.max_eval_steps, eval_batches)

    baseline = {}
    if config.embedded:
        counts = manifest.read_token_counts(data.token_counts_file)
        baseline["unigram_baseline"] = unigram.unigram_cross_entropy(
            eval_files, counts, max_records=eval_steps * config.eval_batch_size
        )

    def evaluate():
        results = estimator.evaluate(input_fn(eval_files, is_training=False), steps=eval_steps)
        directory.add_evaluation({**results, **baseline})

    start_step = estimator.global_step()
    if config.do_train:
        directory.forget_metrics_after(start_step)
    if config.do_train and config.do_eval and start_step == 0:
        evaluate()
    if config.do_train:
        if start_step >= config.num_train_steps:
            print(
                f"Nothing left to train: {config.output_dir} is at step {start_step}. Give a "
                "larger --num_train_steps to go on, or another --output_dir to start anew."
            )
        else:
            start = time.perf_counter()
            estimator.train(
                input_fn(train_files, is_training=True),
                hooks=[tpu.LogListener(directory.add_metrics)],
                max_steps=config.num_train_steps,
            )
            print(f"Training took {time.perf_counter() - start:.0f} s.")
    if config.do_eval:
        evaluate()
        print(_summary(directory.evaluations()))
    print(
        f"Checkpoint: {estimator.latest_checkpoint()}  summaries: {config.output_dir}  "
        f"metrics: {directory.metrics_path}  curves: {directory.write_curves()}"
    )


def _summary(evaluations):
    """Returns what evaluation found, in words: the held-out loss against start and baseline."""
    first, last = evaluations[0], evaluations[-1]
    loss = last["eval_masked_lm_loss"]
    lines = [
        f"Held-out text at step {last['step']}: masked-LM loss {loss:.3f} nats, accuracy "
        f"{last['eval_masked_lm_accuracy']:.3f}; next-sentence loss "
        f"{last['eval_next_sentence_loss']:.3f}, accuracy "
        f"{last['eval_next_sentence_accuracy']:.3f}."
    ]
    if first["step"] == 0 and last["step"] > 0:
        start = first["eval_masked_lm_loss"]
        lines.append(f"  masked-LM loss at the start: {start:.3f} ({start - loss:.3f} above)")
    if "eval_unigram_baseline" in last:
        baseline = last["eval_unigram_baseline"]
        lines.append(
            f"  unigram baseline of the same tokens: {baseline:.3f} ({baseline - loss:.3f} above)"
        )
    return "\n".join(lines)


def main(argv):
    """Runs the script; returns its exit code: 0, 2 for flags or files that cannot work, 1 for any
    other failure, or 128 + the signal's number."""
    if any(a in ("--help", "-help", "-h", "--helpfull") for a in argv[1:]):
        print(__doc__, define_flags().get_help(), sep="\n")
        return 0
    return console.exit_code("run_pretraining.py", lambda: run(resolve(argv)))


if __name__ == "__main__":
    console.leave(main(sys.argv))
