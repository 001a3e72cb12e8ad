"""Arguments that cannot work, for every command: what is said of each, before anything is begun.

A row is an argument that is added to arguments that work, and how the message goes on after the
name of the command; a message that begins with ":" comes after the argument.
"""

import os

import commands
import pytest

from bert_estimator.command_line.choices import OPTIMIZER_NAMES

BAD_ARGUMENTS = {
    "pretraining": [
     ("--num_train_steps=1e3", ": must be a whole number"),
     ("--num_train_steps=100000000000000000000", ": cannot be beyond 2147483647"),
     ("--num_train_steps=-100000000000000000000", ": cannot be beyond 2147483647"),
     ("--num_train_steps=0", ": must be positive"),
     ("--train_batch_size=2147483647", ": must be at most 16777216"),
     ("--train_batch_size=-8", ": must be positive"),
     ("--eval_batch_size=16777217", ": must be at most 16777216"),
     ("--iterations_per_loop=0", ": must be positive"),
     ("--save_checkpoints_steps=-1", ": must be positive"),
     ("--num_warmup_steps=-1", ": must be from 0 to --num_train_steps=10 exclusive"),
     ("--num_warmup_steps=10", ": must be from 0 to --num_train_steps=10 exclusive"),
     ("--max_eval_steps=0", ": must be positive"),
     ("--max_seq_length=-5", ": must be positive"),
     ("--max_seq_length=17", ": cannot be more than the network's max_position_embeddings, w"),
     ("--max_predictions_per_seq=0", ": must be positive"),
     ("--max_predictions_per_seq=17", ": cannot be more than --max_seq_length=16"),
     ("--random_seed=-1", ": must be from 0 to 2147483647"),
     ("--random_seed=2147483648", ": cannot be beyond 2147483647"),
     ("--num_tpu_cores=0", ": must be positive"),
     ("--num_tpu_cores=3", "--train_batch_size=8: must be a multiple of --num_tpu_cores=3"),
     ("--num_cores_per_replica=3", ": must be one of 1, 2, 4, 8, 16, 32, 64, 128"),
     ("--num_cores_per_replica=0", ": must be positive"),
     ("--micro_batch_size=0", ": must be positive"),
     ("--micro_batch_size=3", ": must divide --train_batch_size=8, or not be less"),
     ("--stage=1", ": is for a recipe; add --recipe"),
     ("--learning_rate=nan", ": must be a finite number"),
     ("--learning_rate=1e400", "--learning_rate=inf: must be a finite number"),
     ("--learning_rate=1e39", "--learning_rate=1e+39: must be a positive number of 32 bits"),
     ("--learning_rate=0", "--learning_rate=0.0: must be a positive number of 32 bits"),
     ("--learning_rate=-1", "--learning_rate=-1.0: must be a positive number of 32 bits"),
     ("--learning_rate=fast", ": must be a number"),
     ("--learning_rate_decay_power=0", "--learning_rate_decay_power=0.0: must be positive"),
     ("--output_dir=a\x00b", "the argument '--output_dir=a\\x00b' holds a NUL character; lea"),
     ("--output_dir=a\udce9b", "the argument '--output_dir=a\\udce9b' is not UTF-8; rename t"),
     ("--output_dir=runs/[x]", ": has the character [, with which TensorFlow takes the path"),
     ("--output_dir=", ": cannot be made: No such file or directory"),
     ("--output_dir=/dev/null", ": is a file, or below one; choose another directory"),
     ("--output_dir=/dev/null/a", ": is a file, or below one; choose another directory"),
     ("--output_dir=abc://a/b", "--output_dir: abc://a/b: this TensorFlow does not know abc://"),
     ("--output_dir=ram://a[/b", "--output_dir=ram://a[/b: has the character [, with which"),
     ("--take_over", "--take_over=True: is for a remote --output_dir; leave it out: a killed"),
     ("--vocab_file=abc://a/b", "--vocab_file: abc://a/b: this TensorFlow does not know abc:"),
     ("--init_checkpoint=ram://a/b", "--init_checkpoint=ram://a/b: ram://a/b is not there"),
     ("--output_dir=/proc/a", ": cannot be made: No such file or directory"),
     ("--input_file=", ": is needed: --input_file and --bert_config_file go together. Withou"),
     ("--input_file=none*", ": no file matches 'none*'; give record files or patterns"),
     ("--input_file=/", "--input_file: the directory '/' does not hold any file of training reco"),
     ("--eval_input_file=none", ": no file matches 'none'; give record files or patterns"),
     ("--bert_config_file=none", ": there is no such file"),
     ("--init_checkpoint=none", ": there is no such checkpoint. Give the path without .index"),
     ("--init_checkpoint=/dev/null", "--init_checkpoint: /dev/null: there is no such checkpo"),
     ("--init_checkpoint=/", "--init_checkpoint: /: holds neither a TF1 checkpoint (*.index)"),
     ("--vocab_file=none", ": there is no such file"),
     ("--tpu_name=nowhere", ": master='nowhere' does not name a TPU that this program can re"),
     ("--tpu_name=rehearse:100000000000000000000", ": master='rehearse:100000000000000000000"),
     ("--tpu_name=rehearse:2000", ": master='rehearse:2000': there can be from 1 to 1024 vir"),
     ("--tpu_name=rehearse:3", "--train_batch_size=8: must be a multiple of the 3 cores of -"),
     ("--tpu_name=grpc://1.2.3.4:8470", ": master='grpc://1.2.3.4:8470' is the address of a"),
     ("--precision=float64", ": must be one of float32, bfloat16; did you mean bfloat16?"),
     ("--optimizer=sgd", f": must be one of {', '.join(OPTIMIZER_NAMES)}"),
     ("--weight_decay=-1", "--weight_decay=-1.0: must be a number, at least 0"),
     ("--layerwise_lr_decay=-1", "--layerwise_lr_decay=-1.0: must be from 0 to 1"),
     ("--trainable=last:0", ": must be all, head, or last:N, such as last:4"),
     ("--trainable=last:2", ": cannot be more than the network's num_hidden_layers, which is 1;"),
     ("--objective=nsp", ": must be one of mlm, mlm_nsp, mlm_sop; did you mean mlm_nsp?"),
     ("--recipe=none", ": must be one of lamb_76min, lamb_76min_sqrt, lamb_32k, lamb_16k, la"),
     ("--scale=2", ": is for a recipe; add --recipe"),
     ("--use_tpu=maybe", ": must be true or false"),
     ("--unknown=1", "--unknown: no such flag; did you mean --init_checkpoint?"),
     ("--num_train_step=1", "--num_train_step: no such flag; did you mean --num_train_steps?"),
     ("x", "'x' is not a flag: flags are written --name=value"),
     ("--tpu_topology=v3:8", ": goes with --compile_only; add it"),
     ("--compile_only", "--compile_only=True: needs --tpu_topology, what to compile for, suc"),
     ("--export_program=/dev/null", ": is a file, or below one; choose another directory"),
    ],
    "classifier": [
     ("--num_seeds=0", ": must be positive"),
     ("--num_seeds=1001", ": must be at most 1000"),
     ("--num_train_epochs=0", "--num_train_epochs=0.0: must be positive"),
     ("--num_train_epochs=nan", ": must be a finite number"),
     ("--num_train_epochs=1e300", "--num_train_epochs=1e+300: gives 8e+300 steps, more than"),
     ("--num_train_epochs=-1", "--num_train_epochs=-1.0: must be positive"),
     ("--warmup_proportion=1.5", ": must be from 0 to 1"),
     ("--trainable=top", ": must be all, head, or last:N, such as last:4"),
     ("--trainable=last:2", ": cannot be more than the network's num_hidden_layers, which is 1;"),
     ("--early_stopping_patience=-1", ": must not be negative"),
     ("--max_seq_length=4", ": must be at least 5: a pair of texts has three tokens besides"),
     ("--max_seq_length=17", ": cannot be more than the network's max_position_embeddings, w"),
     ("--long_texts=window", ": must be one of cut, head_tail, windows; did you mean windows?"),
     ("--doc_stride=0", ": must be positive"),
     ("--doc_stride=3", ": is for --long_texts=windows; add it, or leave this out"),
     ("--predict_batch_size=0", ": must be positive"),
     ("--class_weights=1", ": must be a number for each of the labels high, low"),
     ("--class_weights=0,0", ": must be numbers, not below 0 and not all 0, with commas betw"),
     ("--class_weights=1,", ": must be numbers, not below 0 and not all 0, with commas betwe"),
     ("--class_weights=1,nan", ": must be numbers, not below 0 and not all 0, with commas be"),
     ("--class_weights=1,1e5", ": must be numbers, not below 0 and not all 0, with commas be"),
     ("--class_weights=1,-1", ": must be numbers, not below 0 and not all 0, with commas bet"),
     ("--label_smoothing=1", "--label_smoothing=1.0: must be at least 0 and below 1"),
     ("--train_file=none", ": there is no such file"),
     ("--eval_file=none", ": there is no such file"),
     ("--predict_file=none", ": there is no such file"),
     ("--vocab_file=none", ": there is no such file"),
     ("--vocab_file=/dev/null", ": there is no such file"),
     ("--data_dir=none", "--task_name: is needed with --data_dir: one of cola, sst-2, mrpc"),
     ("--task_name=none", ": must be one of cola, sst-2, mrpc, qqp, sts-b, mnli, qnli, rte"),
     ("--task_name=mrpc", "--train_file={folder}/run_classifier/train.tsv: --task_name=mrpc"),
     ("--task_kind=none", ": must be one of classification, multi_label, regression"),
     ("--language=zh", ": is for XNLI; your own files have any; leave it out"),
     ("--encoding=none", ": is not an encoding of text that Python knows; give one such as utf"),
     ("--encoding=hex", ": is not an encoding of text that Python knows; give one such as utf-"),
     ("--text_a_column=none", "--train_file: {folder}/run_classifier/train.tsv: its columns are"),
     ("--label_column=none", "--train_file: {folder}/run_classifier/train.tsv: its columns are"),
     ("--text_a_column=9", "--train_file: {folder}/run_classifier/train.tsv: columns given b"),
     ("--text_b_column=none", "--train_file: {folder}/run_classifier/train.tsv: its columns are"),
     ("--tpu_name=rehearse:3", "--train_batch_size=8: must be a multiple of the 3 cores of -"),
     ("--do_predict", "--predict_file: is needed for --do_predict; or turn it off"),
    ],
    "squad": [
     ("--doc_stride=0", ": must be positive"),
     ("--doc_stride=11", ": must be at most 10, the tokens of the context beside the longest que"),
     ("--max_query_length=0", ": must be positive"),
     ("--max_query_length=13", "--max_seq_length=16: must be at least 17, so that a token of th"),
     ("--max_seq_length=6", ": must be at least 7, so that a token of the context has room bes"),
     ("--max_seq_length=17", ": cannot be more than the network's max_position_embeddings, whic"),
     ("--n_best_size=0", ": must be positive"),
     ("--max_answer_length=0", ": must be positive"),
     ("--null_score_diff_threshold=nan", ": must be a finite number"),
     ("--label_smoothing=0.1", "--label_smoothing: no such flag; did you mean "),
     ("--num_train_epochs=0.01", "--num_train_epochs=0.01: the 64 examples do not make a step"),
     ("--train_file=none", ": there is no such file"),
     ("--eval_file=none", ": there is no such file"),
     ("--predict_file=/", ": there is no such file"),
     ("--do_predict", "--predict_file: is needed for --do_predict; or turn it off"),
    ],
    "vocabulary": [
     ("--vocab_size=100000000000000000000", ": cannot be beyond 2147483647"),
     ("--vocab_size=-1", ": must be from 1 to 10000000"),
     ("--vocab_size=x", "--vocab_size=x: must be a whole number"),
     ("--vocab_size=2147483647", ": must be from 1 to 10000000"),
     ("--vocab_file=", ": is not a file's name"),
     ("--vocab_file=/", ": is not a file's name"),
     ("--vocab_file=none/v", "--vocab_file: the directory of 'none/v' does not exist. Create"),
     ("--input_file=", "--input_file: no file matches ''. Give an existing file or glob."),
     ("--input_file=none*", "--input_file: no file matches 'none*'. Give an existing file or"),
     ("--split_sentences=x", "--split_sentences=x: must be one of auto, yes, no"),
     ("--model_type=x", "--model_type=x: must be one of wordpiece, unigram, bpe"),
     ("--model_type=bpe", "--vocab_file={output}: --model_type is bpe. Give the name of a Se"),
     ("more", "'more' is not a flag: flags are written --name=value"),
    ],
    "text": [
     ("--input_file=", "--input_file: no file matches ''. Give an existing file or glob."),
     ("--output_file=/", "--output_file=/: is not a file's name"),
     ("--output_file=/no/where/x", "--output_file: the directory of '/no/where/x' does not exist"),
     ("--deduplicate=x", "--deduplicate=x: must be one of no, exact, near"),
     ("--min_words=-1", "--min_words is -1; it must be 0 or more."),
     ("--min_letters=nan", ": must be a finite number"),
     ("--min_letters=2", "--min_letters is 2.0; it must be from 0 to 1."),
    ],
    "records": [
     ("--max_seq_length=4", "--max_seq_length is 4; it must be at least 5."),
     ("--max_predictions_per_seq=0", "--max_predictions_per_seq is 0; it must be from 1 to m"),
     ("--max_predictions_per_seq=17", "--max_predictions_per_seq is 17; it must be from 1 to"),
     ("--input_file=none://x", "--input_file: none://x: cannot be read: "),
     ("--eval_fraction=nan", "--eval_fraction=nan: must be "),
     ("--eval_fraction=2", "--eval_fraction=2.0: must be 0 or more, and less than 1"),
     ("--dupe_factor=0", "--dupe_factor is 0; it must be from 1 to 10000."),
     ("--masked_lm_prob=nan", ": must be a finite number"),
     ("--masked_lm_prob=0", "--masked_lm_prob is 0.0; it must be above 0 and at most 1."),
     ("--masked_lm_prob=2", "--masked_lm_prob is 2.0; it must be above 0 and at most 1."),
     ("--short_seq_prob=-1", "--short_seq_prob is -1.0; it must be from 0 to 1."),
     ("--objective=nsp", "--objective is nsp; it must be one of mlm, mlm_nsp, mlm_sop."),
     ("--across_documents", "--across_documents is True; it must be False, since the objective i"),
     ("--output_file=", "--output_file=: is not a file's name"),
     ("--output_file=none/a", "--output_file: the directory of 'none/a' does not exist. Crea"),
     ("--output_file=a,a", "--output_file: a file is named twice; name each file once"),
     ("--input_file=none", "--input_file: no file matches 'none'. Give an existing file or g"),
     ("--vocab_file=none", "--vocab_file: none: No such file or directory"),
     ("--vocab_file=/", "--vocab_file: /: holds neither a TF1 checkpoint (*.index) nor "),
     ("--vocab_file=/dev/null", "--vocab_file: /dev/null: its 0 lines lack [PAD], [UNK], [CL"),
    ],
    "predict": [
     ("--batch_size=0", "batch_size=0: must be from 1 to 65536"),
     ("--batch_size=x", "argument --batch_size: invalid int value: 'x'"),
     ("none", "none: No such file or directory"),
     ("--checkpoint=best", "unrecognized arguments: --checkpoint=best"),
     ("a\x00b", "the argument 'a\\x00b' holds a NUL character; leave it out"),
    ],
    "serve": [
     ("--port=-1", ": must be from 0, any free port, to 65535"),
     ("--port=65536", ": must be from 0, any free port, to 65535"),
     ("--port=x", "argument --port: invalid int value: 'x'"),
     ("--host=nowhere.invalid", ": is not an address: "),
     ("--host=192.0.2.1", ": is not an address of this machine; 127.0.0.1 is for programs on it, "),
     ("--batch_size=0", ": must be from 1 to 65536"),
     ("--max_texts=0", ": must be from 1 to 1048576"),
     ("--max_body_mib=1025", ": must be from 1 to 1024"),
     ("--max_queue=0", ": must be from 1 to 1048576"),
     ("--token_file=none", ": cannot be read: No such file or directory"),
     ("--nonsense=1", "unrecognized arguments: --nonsense=1"),
     ("--pooling=x", "argument --pooling: invalid choice: 'x' (choose from 'mean', 'cls', "),
     ("--layers=3", "layers: 3 is not a layer of the network: its layers are 1 to 2, or fro"),
     ("--layers=", "argument --layers: '' is not a list of layers; write numbers with commas"),
     ("--long_texts=x", "argument --long_texts: invalid choice: 'x' (choose from 'cut', 'head_t"),
     ("--doc_stride=3", "doc_stride=3: is for long_texts='windows'"),
     ("none", "none: there is no such checkpoint. Give the path of a checkpoint without "),
     ("a/hf_classifier", "{folder}/hf_classifier and a/hf_classifier would both be 'hf_classi"),
     ("a\x00b", "the argument 'a\\x00b' holds a NUL character; leave it out"),
    ],
    "embed": [
     ("--batch_size=0", "batch_size=0: must be from 1 to 65536"),
     ("--max_seq_length=4", "max_seq_length=4: must be from 5 to 24, the number of the netw"),
     ("--max_seq_length=25", "max_seq_length=25: must be from 5 to 24, the number of the net"),
     ("--layers=3", "layers: 3 is not a layer of the network: its layers are 1 to 2, or fro"),
     ("--layers=-4", "layers: -4 is not a layer of the network: its layers are 1 to 2, or f"),
     ("--layers=", "argument --layers: '' is not a list of layers; write numbers with commas"),
     ("--pooling=x", "argument --pooling: invalid choice: 'x' (choose from 'mean', 'cls', "),
     ("--long_texts=x", "argument --long_texts: invalid choice: 'x' (choose from 'cut', 'head_t"),
     ("--doc_stride=3", "doc_stride=3: is for long_texts='windows'"),
     ("--checkpoint=best", "{folder}/hf_classifier: is not the directory of a run, so that t"),
     ("--bert_config_file=none", "--bert_config_file=none: there is no such file"),
     ("--vocab_file=none", "--vocab_file=none: there is no such file"),
     ("--do_lower_case=x", "argument --do_lower_case: ignored explicit argument 'x'"),
     ("--vocab_file=a\x00b", "the argument '--vocab_file=a\\x00b' holds a NUL character; leav"),
    ],
    "fill": [
     ("--batch_size=0", "batch_size=0: must be from 1 to 65536"),
     ("--top=0", ": must be at least 1"),
     ("--top=x", "argument --top: invalid int value: 'x'"),
     ("--input_file=none", ": the texts are arguments; leave them out"),
     ("--checkpoint=best", "{folder}/tf1: does not hold a best checkpoint (best/best.json). run_"),
     ("--bert_config_file=none", "--bert_config_file=none: there is no such file"),
     ("--vocab_file=none", "--vocab_file=none: there is no such file"),
     ("a\x00b", "the argument 'a\\x00b' holds a NUL character; leave it out"),
    ],
    "run_program": [
     ("--steps=1", ": must be from 2 to 1000000; the first is not timed"),
     ("--steps=x", "argument --steps: invalid int value: 'x'"),
     ("--batches=none", "{folder}/program does not hold a complete exported program: program"),
     ("--tpu_name=a\x00b", "the argument '--tpu_name=a\\x00b' holds a NUL character; leave i"),
    ],
    "convert": [
     ("--to=x", "argument --to: invalid choice: 'x' (choose from 'tf1', 'hf', 'onnx')"),
     ("--checkpoint=best", "{folder}/hf_classifier: is not the directory of a run, so that t"),
     ("--bert_config_file=none", "--bert_config_file=none: there is no such file"),
     ("--vocab_file=none", "--vocab_file=none: there is no such file"),
     ("more", "unrecognized arguments: more"),
    ],
}  # fmt: skip


def message_of(err):
    """Returns the message on the last line, without the name of the command."""
    return err.splitlines()[-1].split(": ", 1)[1].removeprefix("error: ")


def test_all_commands_are_here():
    assert len({(c, a) for c, rows in BAD_ARGUMENTS.items() for a, _ in rows}) >= 200
    assert {*BAD_ARGUMENTS, "legacy"} == set(commands.MAINS)


@pytest.mark.parametrize(
    ("command", "argument", "message"),
    [
        pytest.param(command, argument, message, id=ascii(f"{command} {argument}"))
        for command, rows in BAD_ARGUMENTS.items()
        for argument, message in rows
    ],
)
def test_a_bad_argument(inputs, tmp_path, monkeypatch, request, command, argument, message):
    if argument.startswith("--tpu_name=rehearse"):
        request.getfixturevalue("xla_runtime")
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "output"
    argv = [*commands.arguments(command, inputs, output), argument]
    code, err = commands.call(command, argv)
    assert (code, "Traceback" in err) == (2, False), err
    expected = message.format(folder=inputs, output=output)
    assert message_of(err).startswith(argument + expected if expected[0] == ":" else expected)
    # Nothing stands in the way of the right command: nothing was trained or made.
    written = {name for _, _, names in os.walk(tmp_path) for name in names}
    assert written <= {"config.json", "bert_config.json", "task.json", "vocab.txt", "metrics.jsonl"}
    assert not written or "--init_checkpoint" in argument


OWN = ["--vocab_file={here}", "--bert_config_file={here}"]
# Flags of scripts that do not go together, or lack another one: these flags are all that is given.
ALONE = {
    "pretraining": [
        (
            ["--optimizer=lars", "--bfloat16_first_moments"],
            "--bfloat16_first_moments=True: needs --optimizer=lamb or adamw, not lars",
        ),
        (
            ["--optimizer=adamw", "--lamb_bias_correction"],
            "--lamb_bias_correction=True: needs --optimizer=lamb, not adamw",
        ),
        (["--nodo_train", "--nodo_eval"], "--do_train=False: nothing to do: --do_eval is off too"),
        (["--input_file=x"], "--bert_config_file: is needed: --input_file and --bert_config"),
        (["--eval_input_file={here}"], "--eval_input_file={here}: needs --input_file and"),
        (["--vocab_file={here}"], "--vocab_file={here}: needs --input_file and --bert_config_file"),
    ],
    "classifier": [
        (["--task_name=MRPC", *OWN], "--data_dir: is needed: it holds the task's files"),
        (
            ["--task_name=mrpc"],
            "--vocab_file: is needed, unless there is one beside --init_checkpoint",
        ),
        (["--train_file={here}", *OWN], "--eval_file: is needed for --do_eval; or turn it"),
        (["--eval_file={here}", "--do_eval", *OWN], "--train_file: is needed also to evalua"),
        (
            ["--task_kind=tagging", "--train_file={here}", "--text_b_column=2", *OWN],
            "--text_b_column=2: --task_kind=tagging has no second texts; leave it out",
        ),
        (
            ["--train_file={here}", "--do_train", "--keep_best_checkpoint", *OWN],
            "--eval_file: is needed for --keep_best_checkpoint; or turn it off",
        ),
        (
            ["--train_file={here}", "--do_train", "--early_stopping_patience=2", *OWN],
            "--eval_file: is needed for --early_stopping_patience; or turn it off",
        ),
        (
            ["--task_name=word_order", "--data_dir=glue"],
            "--data_dir=glue: --task_name=word_order has texts of its own; leave it out",
        ),
        (
            ["--task_kind=regression"],
            "--task_kind=regression: --task_name=word_order has texts of its own; leave it out",
        ),
        (
            ["--task_name=mrpc", "--data_dir=.", "--label_column=3", *OWN],
            "--label_column=3: --task_name=mrpc has its files in --data_dir; leave it out",
        ),
        (
            ["--task_kind=tagging", "--long_texts=windows", "--train_file={here}", *OWN],
            "--long_texts=windows: is for texts; a long sentence of tagged words is split",
        ),
        (
            ["--task_name=code_words", "--long_texts=head_tail"],
            "--long_texts=head_tail: is for texts; a long sentence of tagged words is split",
        ),
        (
            ["--long_texts=windows", "--doc_stride=31", "--max_seq_length=32"],
            "--doc_stride=31: must be at most 30, the tokens of a window: windows would not",
        ),
        (["--nodo_train", "--nodo_eval"], "--do_train=False: nothing to do: --do_eval, --do_pr"),
        (
            ["--do_export", "--export_inputs=words"],
            "--export_inputs=words: must be one of text, ids",
        ),
        (["--export_inputs=text"], "--export_inputs=text: is for --do_export; add it, or leave"),
        (
            ["--random_seed=2147483647", "--num_seeds=2"],
            "--num_seeds=2: would use the seed 2147483648 last; --random_seed can be at most",
        ),
    ],
    "squad": [
        (
            ["--train_file={here}"],
            "--vocab_file: is needed, unless there is one beside --init_checkpoint",
        ),
        (["--train_file={here}", *OWN], "--eval_file: is needed for --do_eval; or turn it"),
        (
            ["--train_file={here}", "--do_train", "--eval_steps=2", *OWN],
            "--eval_file: is needed for --eval_steps; or turn it off",
        ),
        (["--do_export", "--export_inputs=all"], "--export_inputs=all: must be ids: a model that"),
        (
            ["--do_export", "--export_inputs=text"],
            "--export_inputs=text: must be ids: a model that",
        ),
        (["--export_inputs=ids"], "--export_inputs=ids: is for --do_export; add it, or leave"),
        (["--nodo_train", "--nodo_eval"], "--do_train=False: nothing to do: --do_eval, --do_pr"),
    ],
}


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [(command, *row) for command, rows in ALONE.items() for row in rows],
)
def test_flags_that_do_not_go_together(capsys, tmp_path, monkeypatch, command, flags, message):
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "a_file"
    here.write_text("{}")
    script = f"run_{command}.py"
    assert commands.MAINS[command]([script, *(flag.format(here=here) for flag in flags)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{script}: {message.format(here=here)}")
    assert os.listdir(tmp_path) == ["a_file"]
