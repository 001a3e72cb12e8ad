"""Entities in sequences of tags, and the scores of predicted entities.

A tag is O for a word outside of all entities. Else it is a prefix, a hyphen and the entity's type,
such as B-PER; if there is only one type, it may be the prefix alone. These schemes are in use:

    IOB1   I within an entity; B only at a word that begins an entity right after another entity of
           the same type (CoNLL-2003 as it is distributed)
    IOB2   B at the first word of every entity, and I at the others (CoNLL-2002)
    IOBES  also E at the last word, and S at the word of an entity of one word
    BILOU  IOBES with L for E, and U for S
    BMES   IOBES with M for I; also BMEWO, with W for S

One rule reads all of them, and reads broken sequences as conlleval (the script of CoNLL-2000) and
seqeval do: a word goes on with the entity of the word before it if both have the same type, its
own prefix is I or E, and the prefix before is B or I. Any other word with a tag other than O begins
an entity.
"""

import re
from collections.abc import Iterable, Sequence

OUTSIDE = "O"
_SCHEMES = ("BIES", "BILU", "BMES", "BMEW")  # the prefixes of each
_IN_IOBES = {**dict(zip("BIES", "BIES", strict=True)), "L": "E", "U": "S", "M": "I", "W": "S"}

Entity = tuple[str, int, int]  # type, place of its first word, place after its last word

_TYPED = re.compile(r"[A-Z]-.+", re.DOTALL)


class TagError(ValueError):
    """A tag does not belong to the scheme of the others; `tag` is the tag."""

    def __init__(self, message: str, tag: str):
        super().__init__(message)
        self.tag = tag


def are_entity_tags(labels: Iterable[str]) -> bool:
    """Returns whether labels are the tags of a scheme, and not classes of single words, such as
    parts of speech; raises TagError for one label beside tags of another scheme."""
    inside = [label for label in labels if label != OUTSIDE]
    begins = any(label in ("B", "I") or label.startswith(("B-", "I-")) for label in inside)
    # U-Bahn and M are words and sizes, unless there are tags for beginnings.
    schemes = _SCHEMES if begins else _SCHEMES[:1]
    typed, strangers = [], []
    # Each tag narrows the schemes down that are left; a tag of none of them is a stranger.
    for label in inside:
        is_typed = _TYPED.fullmatch(label) is not None
        fitting = [s for s in schemes if label[:1] in s] if is_typed or len(label) == 1 else []
        schemes = fitting or schemes
        if not fitting:
            strangers.append(label)
        elif is_typed:
            typed.append(label)
    if typed and strangers:
        raise TagError(
            f"the tag {strangers[0]!r} stands beside {typed[0]!r}, which is a tag of IOB1, IOB2, "
            "IOBES, BILOU or BMES; so it must be O, or begin with "
            f"{' or '.join(', '.join(f'{prefix}-' for prefix in scheme) for scheme in schemes)}",
            strangers[0],
        )
    return bool(inside) and not strangers


def entities(tags: Sequence[str]) -> list[Entity]:
    """Returns the entities of a sentence, in order, from tags for which `are_entity_tags` holds."""
    result: list[Entity] = []
    before = OUTSIDE, ""
    for place, tag in enumerate(tags):
        prefix, kind = _IN_IOBES.get(tag[:1], OUTSIDE), tag[2:]
        if prefix != OUTSIDE:
            goes_on = prefix in "IE" and before in (("B", kind), ("I", kind))
            first = result.pop()[1] if goes_on else place
            result.append((kind, first, place + 1))
        before = prefix, kind
    return result


def scores(
    labelled: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> tuple[float, float, float]:
    """Returns (precision, recall, F1) of the entities of sentences; 0 if there are not any."""
    num_labelled = num_predicted = num_correct = 0
    for ours, theirs in zip(labelled, predicted, strict=True):
        truth, guess = entities(ours), entities(theirs)
        num_labelled += len(truth)
        num_predicted += len(guess)
        # A predicted entity is correct if a labelled entity has its type, its first and its last
        # word.
        num_correct += len(set(truth) & set(guess))
    return (
        num_correct / max(num_predicted, 1),
        num_correct / max(num_labelled, 1),
        2 * num_correct / max(num_labelled + num_predicted, 1),
    )
