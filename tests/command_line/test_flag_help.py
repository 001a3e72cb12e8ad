"""Tests what --help prints."""

import pytest

from bert_estimator.command_line import flag_help, flags
from bert_estimator.jobs.fine_tuning.classification_config import ClassificationConfig
from bert_estimator.jobs.fine_tuning.question_answering_config import QuestionAnsweringConfig
from bert_estimator.jobs.pretraining.config import PretrainingConfig

CONFIGS = (PretrainingConfig, ClassificationConfig, QuestionAnsweringConfig)


def test_every_flag_is_in_one_group_and_nothing_else_is():
    names = [name for group in flag_help.GROUPS.values() for name in group.split()]
    assert len(set(names)) == len(names)
    assert set(names) == {each.name for config in CONFIGS for each in flags.of(config)}


@pytest.mark.parametrize("config", CONFIGS)
def test_a_flag_is_there_once_with_its_default_and_help(config):
    lines = flag_help.text(config, "What it does.").splitlines()
    assert lines[0] == "What it does." and max(map(len, lines)) <= 100
    for each in flags.of(config):
        forms = (f"  --{each.name}=", f"  --[no]{each.name}")
        (line,) = [i for i, text in enumerate(lines) if f"{text} ".startswith(forms)]
        end = line + 1
        while lines[end].startswith("   "):
            end += 1
        of_flag = " ".join(" ".join(lines[line:end]).split())
        assert each.metadata["help"] in of_flag
        has_default = each.default not in (None, "") and each.default is not False
        assert of_flag.endswith(f"(default: {str(each.default).lower()})") == has_default


def test_common_flags_come_first():
    headings = [
        line for line in flag_help.text(PretrainingConfig, "").splitlines() if line.endswith(":")
    ]
    assert headings[0] == "Common flags:" and headings[-1] == "Further flags:"
