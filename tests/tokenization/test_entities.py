"""Entities of tag sequences and their scores, against seqeval (support/record_tag_goldens.py)."""

import json
import pathlib

import pytest

from bert_estimator.tokenization import entities

GOLDENS = json.loads(
    (pathlib.Path(__file__).parent.parent / "data" / "tag_goldens.json").read_text()
)


@pytest.mark.parametrize("scheme", GOLDENS)
def test_entities_are_seqevals(scheme):
    pairs = GOLDENS[scheme]["pairs"]
    assert len(pairs) == 100
    for truth, _, expected in pairs:
        found = sorted(
            (kind, first, end - 1) for kind, first, end in entities.entities(truth.split())
        )
        assert found == list(map(tuple, expected)), truth


@pytest.mark.parametrize("scheme", GOLDENS)
def test_scores_are_seqevals(scheme):
    truths, guesses, _ = zip(*GOLDENS[scheme]["pairs"], strict=True)
    found = entities.scores(map(str.split, truths), map(str.split, guesses))
    assert found == pytest.approx(GOLDENS[scheme]["scores"], rel=1e-12)
    assert 0 < found[2] < 1


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("B-X I-X O B-X", [("X", 0, 2), ("X", 3, 4)]),
        ("I-X I-X B-X", [("X", 0, 2), ("X", 2, 3)]),  # IOB1
        ("S-X B-X I-X E-X O", [("X", 0, 1), ("X", 1, 4)]),
        ("I-X I-Y", [("X", 0, 1), ("Y", 1, 2)]),  # types differ
        ("E-X E-X", [("X", 0, 1), ("X", 1, 2)]),
        ("S-X I-X", [("X", 0, 1), ("X", 1, 2)]),
        ("B I O B", [("", 0, 2), ("", 3, 4)]),  # one type, without a name
        ("S-X B-X M-X E-X M-Y O", [("X", 0, 1), ("X", 1, 4), ("Y", 4, 5)]),  # BMES
        ("B E S B M M E", [("", 0, 2), ("", 2, 3), ("", 3, 7)]),  # words of Chinese
        ("W-X B-X M-X E-X", [("X", 0, 1), ("X", 1, 4)]),  # BMEWO
    ],
)
def test_entities_by_hand(tags, expected):
    assert entities.entities(tags.split()) == expected


def test_scores_of_nothing_are_0():
    assert entities.scores([["O"]], [["O"]]) == (0.0, 0.0, 0.0)
    assert entities.scores([], []) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (("O", "B-X", "I-X"), True),
        (("O", "B", "I"), True),
        (("S-X", "E-Y"), True),
        (("NOUN", "VERB", "O"), False),
        (("O", "ES", "IE"), False),  # languages: ES is not S, and not E
        (("O",), False),
        (("O", "B-X", "I-X", "L-X", "U-X"), True),
        (("O", "B-X", "M-X", "E-X", "S-X"), True),
        (("B", "M", "E", "S"), True),
        (("O", "B-X", "M-X", "E-X", "W-X"), True),
        (("S", "M", "L"), False),  # sizes
        (("U-Bahn", "W-Bahn", "O"), False),
        (("U-boat", "ship"), False),
        (("0", "1", "2"), False),
    ],
)
def test_which_labels_are_tags_of_entities(labels, expected):
    assert entities.are_entity_tags(labels) is expected


def test_a_tag_of_no_scheme_among_tags():
    with pytest.raises(
        entities.TagError, match=r"^the tag 'Q-X' stands beside 'B-X', which is a tag of"
    ):
        entities.are_entity_tags(("O", "B-X", "Q-X"))
    with pytest.raises(entities.TagError, match=r"^the tag 'L-X' .* begin with B-, I-, E-, S-$"):
        entities.are_entity_tags(("O", "B-X", "E-X", "I-X", "L-X"))


OTHER_SCHEMES = {"BILOU": ("IES", "ILU"), "BMES": ("IES", "MES"), "BMEWO": ("IES", "MEW")}


@pytest.mark.parametrize("scheme", OTHER_SCHEMES)
def test_other_schemes_have_the_entities_of_iobes(scheme):
    letters = str.maketrans(*OTHER_SCHEMES[scheme])
    for truth, guess, _ in GOLDENS["IOBES"]["pairs"]:
        for tags in (truth.split(), guess.split()):
            others = [tag if tag == "O" else tag[0].translate(letters) + tag[1:] for tag in tags]
            assert entities.entities(others) == entities.entities(tags)
