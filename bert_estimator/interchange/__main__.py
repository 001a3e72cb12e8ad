"""Converts BERT between google-research/bert's checkpoints and Hugging Face's files.

    python -m bert_estimator.interchange uncased_L-12_H-768_A-12.zip bert-base-uncased

SOURCE is a TF1 checkpoint's path without .index, a directory, or a zip archive; TARGET a directory
to make. What was written is read again: its weights must be the source's bit for bit, and the
logits on a fixed batch the same.
"""

import argparse
import os
import sys

from bert_estimator.command_line import console
from bert_estimator.command_line.flags import FlagError


def run(args):
    """Converts as the command line says; prints what came of it.

    Raises:
      FlagError: the source or the target cannot work.
    """
    # Loaded only now, since it takes seconds: a wrong command line has been reported by here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow.compat.v1 as tf

    from bert_estimator.bert_config import BertConfig
    from bert_estimator.interchange import conversion, open_source, weights_table
    from bert_estimator.interchange.source import HUGGING_FACE, TF1

    console.set_up(tf.get_logger())
    try:
        source = open_source(args.source)
        config = source.config
        if args.bert_config_file:
            config = BertConfig.from_json_file(args.bert_config_file)
        if config is None:
            raise ValueError(
                f"{args.source}: there is no bert_config.json beside it; give --bert_config_file"
            )
        to = args.to or (HUGGING_FACE if source.format == TF1 else TF1)
        vocab_file = args.vocab_file or source.vocab_file
        differences = conversion.convert(source, config, vocab_file, args.target, to)
    except (ValueError, OSError) as error:
        raise FlagError(str(error)) from None
    rows = [(name, shape, weights_table.RESTORED) for name, shape in source.shapes.items()]
    rows += [(name, "", weights_table.UNUSED) for name in source.left_out]
    print(weights_table.text(f"{args.source} ({source.format}) -> {args.target} ({to})", rows))
    print("Weights read back bit for bit. Greatest difference on a fixed batch:")
    for name, difference in differences.items():
        print(f"  {name:20} {difference:g}")
    if vocab_file is None:
        print("There is no vocab.txt beside the source, and so none beside the target.")


def main(argv):
    """Runs the command; returns its exit code: 0, 2 for a source or target that cannot work, 1 for
    any other failure."""
    parser = argparse.ArgumentParser(
        prog="python -m bert_estimator.interchange",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--to", choices=["tf1", "hf"], help="the other format by default")
    parser.add_argument("--bert_config_file", help="where none lies beside the source")
    parser.add_argument("--vocab_file", help="where none lies beside the source")
    args = parser.parse_args(argv[1:])
    return console.exit_code("interchange", lambda: run(args), "No target was made.")


if __name__ == "__main__":
    console.leave(main(sys.argv))
