"""Fills in masked words, and says how well a network expects texts.

    python -m bert_estimator.serving.fill uncased_L-12_H-768_A-12 "The [MASK] of a class."

MODEL is any network with the head for masked words that its pretraining has trained: the directory
of a run of run_pretraining.py, a checkpoint of google-research/bert, a directory of Hugging Face, a
zip archive, or a directory with an ONNX model. Texts are arguments or lines, in which a tab stands
between the two texts of a pair. Each gets a line of JSON with the best words for each [MASK]:

    {"masks": [[{"word": "name", "probability": 0.41}, {"word": "body", "probability": 0.07}]]}

or with --score, for which each token is masked in turn (Salazar et al., 2020):

    {"pseudo_log_likelihood": -21.5, "num_tokens": 9, "pseudo_perplexity": 10.9}

A text that cannot be answered (without [MASK], with more tokens than the network has positions, not
UTF-8) gets {"error": "line 7: ..."}, and the exit code is then 1.
"""

import collections
import contextlib
import io
import math
import os
import sys

from bert_estimator.command_line import console
from bert_estimator.serving import commands, embed
from bert_estimator.system import memory


def _arguments(argv):
    """Returns the parsed arguments; flags that would have no effect are errors."""
    what = "open the network in this directory or checkpoint"
    parser = commands.parser("bert_estimator.serving.fill", __doc__, what, takes_file=False)
    add = parser.add_argument
    add("texts", metavar="TEXT", nargs="*", help="take this text (default: the lines of a file)")
    add("--input_file", help="read lines from this file (default: standard input)")
    add("--top", type=int, help="give so many words for each [MASK] (default 5)")
    add("--score", action="store_true", help="give the pseudo-perplexity of each text instead")
    embed.add_network_flags(parser)
    args = parser.parse_intermixed_args(argv[1:])
    if args.score and args.top is not None:
        parser.error(f"--top={args.top}: --score lists no words; leave one of the two out")
    if args.top is not None and args.top < 1:
        parser.error(f"--top={args.top}: must be at least 1")
    if args.texts and args.input_file is not None:
        parser.error(f"--input_file={args.input_file}: the texts are arguments; leave them out")
    # `console` refuses a NUL, which cannot be in a path.
    if files := [text for text in args.texts if "\0" not in text and os.path.isfile(text)]:
        parser.error(f"{files[0]}: is a file, not a text; for its lines, --input_file={files[0]}")
    return args


def _lines_of(args):
    if not args.texts:
        return commands.lines_of(args.input_file)
    lines = b"".join(os.fsencode(text).replace(b"\n", b" ") + b"\n" for text in args.texts)
    return contextlib.nullcontext(io.BufferedReader(io.BytesIO(lines)))


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code, as `commands.exit_code` does."""
    args = _arguments(argv)

    def answer():
        options = embed.network_options(args)
        with _lines_of(args) as reader:
            with commands.opening():
                # Loaded only now, since it takes seconds: a wrong command line has been reported.
                from bert_estimator.serving.filler import TOP, Filler

                # The pooling is of no use, whatever the files beside the weights ask for.
                filler = Filler(args.model, "mean", **options)
            if args.score:
                return _score(filler, reader)
            together, top = commands.BATCHES_TOGETHER * args.batch_size, args.top or TOP
            return commands.write_answers(
                reader, sys.stdout, together, None, lambda texts: filler.fill(texts, top)
            )

    return commands.exit_code("fill", argv, answer)


def _score(filler, reader):
    """Writes the scores of lines, and says what all of them have together; returns the number of
    lines that got an error."""
    totals = collections.Counter()

    def score(texts):
        scores = filler.score(texts)
        for of_text in scores:
            totals.update(of_text)
        return scores

    errors = commands.write_answers(reader, sys.stdout, filler.batch_size, None, score)
    if count := totals["num_tokens"]:
        perplexity = math.exp(-totals["pseudo_log_likelihood"] / count)
        print(f"Pseudo-perplexity of all {count} tokens: {perplexity:.4g}", file=sys.stderr)
    return errors


def command() -> None:
    """Runs the console command `bert-fill`."""
    console.run(main, memory.keep_freed_memory)


if __name__ == "__main__":
    command()
