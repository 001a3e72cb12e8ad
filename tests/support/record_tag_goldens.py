"""Writes tests/data/tag_goldens.json: random tag sequences, and what seqeval says of them.

    python tests/support/record_tag_goldens.py

It needs seqeval. Each scheme has 100 entries of (labelled tags, predicted tags, entities of the
labelled tags, their last word included), most of them broken, and their precision, recall and F1.
"""

import json
import pathlib
import random
import warnings

from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

SCHEMES = {"IOB1": "BI", "IOB2": "BI", "IOBES": "BIES"}
TARGET = pathlib.Path(__file__).parent.parent / "data" / "tag_goldens.json"


def main():
    """Draws the sequences and writes the file."""
    warnings.simplefilter("ignore")  # seqeval warns of scores without entities
    generator = random.Random(20)
    goldens = {}
    for scheme, prefixes in SCHEMES.items():
        inside = [f"{prefix}-{kind}" for prefix in prefixes for kind in ("PER", "LOC", "a-b")]
        pairs = []
        for _ in range(100):
            truth = [generator.choice(["O", *inside]) for _ in range(generator.randint(1, 9))]
            guess = [
                tag if generator.random() < 0.7 else generator.choice(["O", *inside])
                for tag in truth
            ]
            pairs.append((truth, guess))
        truths, guesses = zip(*pairs, strict=True)
        goldens[scheme] = {
            "pairs": [
                (" ".join(truth), " ".join(guess), sorted(get_entities(truth)))
                for truth, guess in pairs
            ],
            "scores": [
                float(score(list(truths), list(guesses)))
                for score in (precision_score, recall_score, f1_score)
            ],
        }
    TARGET.write_text(json.dumps(goldens, separators=(",", ":")).replace("]],", "]],\n") + "\n")


if __name__ == "__main__":
    main()
