"""Converts BERT: google-research/bert's checkpoints and Hugging Face's files, both ways; TF Hub's
modules are read, and ONNX models are written.

    python -m bert_estimator.interchange uncased_L-12_H-768_A-12.zip bert-base-uncased

SOURCE is a TF1 checkpoint's path without .index, a directory, or a zip archive; TARGET is a
directory to make. A checkpoint becomes Hugging Face's files, unless --to says otherwise, and the
other formats become a checkpoint. Of the directory of a run, the checkpoint is converted that the
run's predictions and its exported model come from: the best one if the run kept one, else the
newest.

The written files are read again: their weights must equal the source's bit for bit, and so must
the logits on a fixed batch. An ONNX model is for onnxruntime alone: its logits must equal the
source's to 1e-4.
"""

import argparse
import os

from bert_estimator.command_line import console, flags
from bert_estimator.command_line.flags import FlagError
from bert_estimator.system import disk_files


def run(args: argparse.Namespace) -> None:
    """Converts as the command line says, and prints a summary."""
    # Loaded only now, since it takes seconds: a wrong command line has been reported by here.
    import tensorflow.compat.v1 as tf

    from bert_estimator.interchange import conversion, open_source, weights
    from bert_estimator.interchange.hugging_face import config_json
    from bert_estimator.interchange.source import HUGGING_FACE, ONNX, TF1

    console.set_up(tf.get_logger())
    for name in ("bert_config_file", "vocab_file"):
        flags.check_file(name, getattr(args, name))
    try:
        source = open_source(args.source, args.checkpoint)
        path = args.bert_config_file
        config = config_json.read_any_config(path) if path else None
        source = source.with_files(config, args.vocab_file)
        to = args.to or (HUGGING_FACE if source.format == TF1 else TF1)
        differences = conversion.convert(source, args.target, to)
        left_out = conversion.names_left_out(source, to)
    except (ValueError, OSError) as error:
        raise FlagError(disk_files.in_words(error)) from None
    rows = [
        (name, shape, weights.UNUSED if name in left_out else weights.RESTORED)
        for name, shape in source.shapes.items()
    ]
    rows += weights.rows_left_out(source)
    # The path of an unpacked archive says nothing to a user.
    read = args.source if os.path.isfile(args.source) else source.checkpoint or args.source
    print(weights.table(f"{read} ({source.format}) -> {args.target} ({to})", rows))
    read_back = "" if to == ONNX else "Weights read back bit for bit. "
    print(f"{read_back}Greatest difference on a fixed batch:")
    for name, difference in differences.items():
        print(f"  {name:20} {difference:g}")


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code: 0, 2 for a source or target that cannot work, 1 for
    any other failure."""
    parser = console.parser("bert_estimator.interchange", __doc__)
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument(
        "--to",
        choices=["tf1", "hf", "onnx"],
        help="write this format: a checkpoint, Hugging Face's files, or an ONNX model",
    )
    parser.add_argument(
        "--checkpoint",
        choices=["best", "newest"],
        help="convert this checkpoint of a run; for any other, give its path as SOURCE",
    )
    parser.add_argument(
        "--bert_config_file", help="take the network from this, if none lies beside SOURCE"
    )
    parser.add_argument("--vocab_file", help="use this vocabulary, not the one beside SOURCE")
    args = parser.parse_args(argv[1:])
    return console.exit_code(
        "interchange",
        argv,
        lambda: run(args),
        expected=(ValueError, OSError),
        when_stopped="No target was made.",
        doing="Converting",
    )


def command() -> None:
    """Runs the console command `bert-convert`."""
    console.run(main)


if __name__ == "__main__":
    command()
