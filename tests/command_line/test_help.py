"""Tests what --help prints."""

import re

import pytest

from bert_estimator.command_line import flags
from bert_estimator.jobs.fine_tuning.classification_config import ClassificationConfig
from bert_estimator.jobs.fine_tuning.question_answering_config import QuestionAnsweringConfig
from bert_estimator.jobs.pretraining.pretraining_config import PretrainingConfig
from input_pipelines.create_pretraining_data import RecordsConfig
from input_pipelines.create_text import TextConfig
from input_pipelines.create_vocabulary import VocabularyConfig

CONFIGS = (PretrainingConfig, ClassificationConfig, QuestionAnsweringConfig)


@pytest.mark.parametrize("config", CONFIGS)
def test_every_flag_is_below_one_heading(config):
    headings = flags.by_heading(config)
    assert tuple(headings) == flags.HEADINGS
    names = [flag.name for fields in headings.values() for flag in fields]
    assert sorted(names) == sorted(flag.name for flag in flags.of(config))


@pytest.mark.parametrize("config", CONFIGS)
def test_a_flag_is_there_once_with_its_default_and_help(config):
    lines = flags.help_of_script(config, "What it does.").splitlines()
    assert lines[0] == "What it does." and max(map(len, lines)) <= 100
    for flag in flags.of(config):
        forms = (f"  --{flag.name}=", f"  --[no]{flag.name}")
        (line,) = [i for i, text in enumerate(lines) if f"{text} ".startswith(forms)]
        end = line + 1
        while lines[end].startswith("   "):
            end += 1
        of_flag = " ".join(" ".join(lines[line:end]).split())
        assert flag.metadata["help"] in of_flag
        has_default = flag.default not in (None, "") and flag.default is not False
        assert of_flag.endswith(f"(default: {str(flag.default).lower()})") == has_default


@pytest.mark.parametrize("config", [*CONFIGS, RecordsConfig, TextConfig, VocabularyConfig])
def test_the_help_of_a_flag_names_all_choices(config):
    for flag in flags.of(config):
        value = "?" if flags.kind_of(flag) is str else 0
        for check in flag.metadata["checks"]:
            try:
                check(flag.name, value)
            except flags.FlagError as error:
                choices = re.search(r"must be one of ([\w, ]+)", str(error))
                for choice in choices[1].split(", ") if choices else ():
                    assert choice in re.findall(r"\w+", flag.metadata["help"]), flag.name


def test_common_flags_come_first():
    lines = flags.help_of_script(PretrainingConfig, "").splitlines()
    headings = [line for line in lines if line.endswith(":")]
    assert headings[0] == "Common flags:" and headings[-1] == "Further flags:"
