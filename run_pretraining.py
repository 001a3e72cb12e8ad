"""Pretrains BERT: masked words and next sentence, with LAMB or AdamW.

    python run_pretraining.py --use_tpu --precision=bfloat16

trains a small BERT on English text that every Python carries, in about two minutes on two cores,
and evaluates it on held-out text. With --input_file and --bert_config_file it is
google-research/bert's run_pretraining.py, flags and records included.
"""

import os
import sys
import time

from bert_estimator import compile_only, console, flags
from bert_estimator.pretraining_config import define_flags, resolve
from bert_estimator.recipes import embedded
from bert_estimator.run_directory import RunDirectory


def run(config):
    """Trains and evaluates as configured; prints what came of it and where everything is."""
    from bert_estimator.tpu import hosts

    here = flags.find_hosts()
    directory = RunDirectory(
        # Of several hosts the chief writes the run's own; the others keep theirs apart.
        config.output_dir if here.is_chief else f"{config.output_dir}/host-{here.index}"
    )
    settings = config.settings()
    if not config.do_train:
        del settings["input_file"]  # google-research/bert evaluates on the records of this flag
    if not config.compile_only:
        directory.check_config(settings)

    # Loaded only now, since it takes seconds: wrong flags have been reported by here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow.compat.v1 as tf

    from bert_estimator import script_estimator, tpu
    from bert_estimator.bert_config import BertConfig
    from input_pipelines import default_data, manifest, pretraining_input, record_reader, unigram

    console.set_up(tf.get_logger())
    if config.bert_config is not None:
        bert_config = BertConfig(**config.bert_config)
    else:
        bert_config = script_estimator.read_bert_config(config)
    script_estimator.check_length(config, bert_config)
    if config.compile_only:

        def lower(changed, cores):
            zeros = pretraining_input.shapes_input_fn(
                changed.max_seq_length, changed.max_predictions_per_seq, changed.precision
            )
            return _estimator(changed, bert_config).lower(zeros, cores)

        if not compile_only.run(config, lower):
            raise SystemExit(1)
        return
    estimator = _estimator(config, bert_config)
    train_files, eval_files = config.input_file, config.eval_input_file or config.input_file
    if config.embedded:
        try:
            with hosts.chief_first():
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
        vocab_file = data.vocab_file if config.embedded else None
        directory.write_network(bert_config.to_dict(), vocab_file)
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

    if config.export_program:
        estimator.export_training_program(
            input_fn(train_files, is_training=True), config.export_program
        )
        print(f"Run it: python -m bert_estimator.tpu.run_program {config.export_program}")
        return
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


def _estimator(config, bert_config):
    """Returns the estimator of a configuration."""
    from bert_estimator import pretraining, script_estimator

    return script_estimator.make(
        config,
        pretraining.model_fn_builder(
            bert_config,
            config.optimizer,
            config.learning_rate,
            config.num_train_steps,
            config.num_warmup_steps,
            precision_name=config.precision,
            micro_batch_size=config.micro_batch_size,
            recompute=config.recompute,
            use_one_hot_embeddings=config.use_one_hot_embeddings,
            random_seed=config.random_seed,
            initial_checkpoint=config.init_checkpoint,
            allow_partial_init=config.allow_partial_init,
            summary_dir=config.output_dir,
            decay_power=config.learning_rate_decay_power,
            legacy_schedule_jump=config.legacy_schedule_jump,
            optimizer_options=config.optimizer_options(),
        ),
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


def _run_all(stages):
    """Runs the stages one after the other, each from the last weights of the one before it."""
    for config in stages:
        if config.recipe:
            print(f"{config.recipe}, stage {config.stage}:\n{config.described()}", flush=True)
        run(config)
    if len(stages) > 1 and stages[0].compile_only:
        compile_only.print_total(stages)


def main(argv):
    """Runs the script; returns its exit code: 0, 2 for flags or files that cannot work, 1 for any
    other failure, or 128 + the signal's number."""
    if any(a in ("--help", "-help", "-h", "--helpfull") for a in argv[1:]):
        print(__doc__, define_flags().get_help(), sep="\n")
        return 0
    return console.exit_code("run_pretraining.py", lambda: _run_all(resolve(argv)))


if __name__ == "__main__":
    console.leave(main(sys.argv))
