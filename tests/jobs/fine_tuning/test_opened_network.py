"""How a fine-tuning cases its text: by a flag, the network's files, or the vocabulary."""

import dataclasses
import logging

import fixtures
import numpy as np
import pytest
from tiny_run import bert_config

from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line.flags import FlagError
from bert_estimator.jobs.fine_tuning import classification_config, opened_network
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab

LOWER = [a + b + c for a in "abcdefghij" for b in "klmnopqrst" for c in "uvwxyzabcde"]
VOCABULARIES = {"lower-cased": LOWER, "cased": [*LOWER, *(word.title() for word in LOWER)]}
ON, OFF = ["--do_lower_case"], ["--nodo_lower_case"]
KEEP, CORRECT, LOWER_IT = "give --nodo_lower_case", "correct do_lower_case", "give --do_lower_case"

# (vocabulary, what the network's files say, flags) -> the tokens of "aku Aku", and what is said.
TABLE = [
    ("lower-cased", None, [], ["aku", "aku"], None),
    ("lower-cased", None, ON, ["aku", "aku"], None),
    ("lower-cased", None, OFF, ["aku", "[UNK]"], LOWER_IT),
    ("lower-cased", True, [], ["aku", "aku"], None),
    ("lower-cased", True, ON, ["aku", "aku"], None),
    ("lower-cased", True, OFF, ["aku", "[UNK]"], LOWER_IT),  # an error of `facts`
    ("lower-cased", False, [], ["aku", "[UNK]"], CORRECT),
    ("lower-cased", False, ON, ["aku", "aku"], None),  # an error of `facts`
    ("lower-cased", False, OFF, ["aku", "[UNK]"], CORRECT),
    ("cased", None, [], ["aku", "Aku"], None),
    ("cased", None, ON, None, KEEP),
    ("cased", None, OFF, ["aku", "Aku"], None),
    ("cased", True, [], ["aku", "aku"], CORRECT),
    ("cased", True, ON, ["aku", "aku"], CORRECT),
    ("cased", True, OFF, ["aku", "Aku"], None),  # an error of `facts`
    ("cased", False, [], ["aku", "Aku"], None),
    ("cased", False, ON, None, KEEP),
    ("cased", False, OFF, ["aku", "Aku"], None),
]


@pytest.mark.parametrize("names_vocabulary", [False, True])
@pytest.mark.parametrize(("kind", "said", "argv", "tokens", "way"), TABLE)
def test_the_casing_of_a_start(tmp_path, caplog, kind, said, argv, tokens, way, names_vocabulary):
    """Lower-cased text is cut in the same way in every row that runs."""
    words, folder = VOCABULARIES[kind], tmp_path / "model"
    folder.mkdir()
    write_vocab([*SPECIAL_TOKENS, *words], str(tmp_path / "vocab.txt"))
    facts = {"vocab_file": str(tmp_path / "vocab.txt"), "do_lower_case": said}
    config = BertConfig(**bert_config(len(words)))
    fixtures.write_tf1(folder, config, {"w": np.zeros(2, np.float32)}, **facts)
    argv = [*argv, f"--init_checkpoint={folder}", f"--output_dir={tmp_path}/run"]
    argv += ["--max_seq_length=16"]
    argv += [f"--vocab_file={folder}/vocab.txt"] * names_vocabulary
    (config,) = classification_config.resolve(["", "--task_name=word_order", *argv])
    config = dataclasses.replace(config, embedded=False)
    if tokens is None:
        with pytest.raises(FlagError, match=f"^--vocab_file: .* To keep capitals, {way}.$"):
            opened_network.open_network(config)
        return
    _, _, tokenizer = opened_network.open_network(config)
    assert tokenizer.tokenize("aku Aku") == tokens
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [way in text for text in warnings] == ([True] if way else [])


CASED = VOCABULARIES["cased"]


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (None, ["aku", "aku"]),  # without a vocabulary beside it
        (["[unused1]", *CASED[1:]], ["aku", "aku"]),
        (CASED[::-1], ["aku", "Aku"]),  # of another vocabulary its files say nothing
    ],
)
def test_the_casing_of_a_start_with_a_vocabulary_of_the_flags(tmp_path, caplog, words, tokens):
    folder, vocab_file = tmp_path / "model", None
    folder.mkdir()
    if words is not None:
        write_vocab([*SPECIAL_TOKENS, *words], vocab_file := str(tmp_path / "words.txt"))
    write_vocab([*SPECIAL_TOKENS, *CASED], str(tmp_path / "vocab.txt"))
    config = BertConfig(**bert_config(len(CASED)))
    facts = {"vocab_file": vocab_file, "do_lower_case": True}
    fixtures.write_tf1(folder, config, {"w": np.zeros(2, np.float32)}, **facts)
    argv = [f"--init_checkpoint={folder}", f"--output_dir={tmp_path}/run", "--max_seq_length=16"]
    argv += [f"--vocab_file={tmp_path}/vocab.txt", "--task_name=word_order"]
    (config,) = classification_config.resolve(["", *argv])
    _, _, tokenizer = opened_network.open_network(dataclasses.replace(config, embedded=False))
    assert tokenizer.tokenize("aku Aku") == tokens
    warned = f"correct do_lower_case in {folder}/task.json" in caplog.text
    assert warned == (tokens == ["aku", "aku"])
