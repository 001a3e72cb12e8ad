"""What the scripts print."""

import io
import logging
import os
import subprocess
import sys
import types

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.saved_model.model_utils import export_output, export_utils

from bert_estimator.command_line import console
from bert_estimator.command_line.flags import FlagError
from bert_estimator.jobs.fine_tuning import export
from bert_estimator.system.errors import ArgumentError

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture
def logger():
    logger = logging.Logger("a script's")
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    console.set_up(logger)
    return logger


def test_lines_are_plain_and_chatter_is_left_out(logger):
    console.set_up(logger)  # a second time, as by a second run in one process
    logger.info("step %d", 3)
    logger.info("Graph was finalized.")
    logger.warning("no TPU")
    logger.debug("details")
    assert logger.handlers[0].stream.getvalue() == "step 3\nWARNING: no TPU\n"
    assert len(logger.filters) == 1
    assert not logger.propagate


def test_signatures_that_an_export_leaves_out_are_chatter(logger, monkeypatch):
    """TensorFlow combines all receivers with all outputs, and reports what does not fit."""
    monkeypatch.setattr(export_utils, "logging", logger)
    with tf.Graph().as_default():
        texts, ids = tf.placeholder(tf.string, [None]), tf.placeholder(tf.int64, [None])
        lengths = tf.strings.length(texts)
        classify = export._Classification(scores=tf.cast(lengths, tf.float32))
        classify.inputs = types.SimpleNamespace(texts={"texts": texts}, examples=texts)
        signatures = export_utils.build_all_signature_defs(
            {"texts": texts},
            {"serving_default": export_output.PredictOutput(lengths), "classify": classify},
            {"ids": {"ids": ids}},
        )
    assert signatures.keys() == {"serving_default", "classify"}
    assert logger.handlers[0].stream.getvalue() == ""
    logger.info("'%s' : %s", "a signature", "Another reason.")
    assert logger.handlers[0].stream.getvalue() == "'a signature' : Another reason.\n"


def test_a_logger_without_handlers_gets_one(capsys):
    logger = logging.Logger("a script's")
    console.set_up(logger)
    logger.info("step %d", 3)
    assert capsys.readouterr() == ("", "step 3\n")


def ended_by(error):
    def body():
        if error is not None:
            raise error

    return console.exit_code("script.py", ["script.py"], body, resumes=True)


class RecordError(ValueError):
    pass


class InUseError(RuntimeError):
    """Stands for the error of this name in `bert_estimator.system.lock`."""


class NoWholeCheckpointError(ValueError):
    """Stands for the error of this name in `bert_estimator.tpu.errors`."""


class NanLossDuringTrainingError(RuntimeError):
    def __str__(self):
        return "As TensorFlow's own, this does not show what it was made with."


IN_A_TRACEBACK = """Traceback (most recent call last):
  File "order.py", line 7, in read
    raise RecordError(
input_pipelines.records.record_reader.RecordError: a.tfrecord: record 7 is damaged.


 [[{{node PyFunc}}]]"""


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (None, 0, ""),
        (FlagError("--x=1: is wrong"), 2, "script.py: --x=1: is wrong\n"),
        (ArgumentError("x", "is wrong", 1), 2, "script.py: --x=1: is wrong\n"),
        (ArgumentError("x", "a.txt is missing"), 2, "script.py: --x: a.txt is missing\n"),
        (
            KeyboardInterrupt(),
            130,
            "script.py: stopped. The same command goes on from the last checkpoint.\n",
        ),
        (RecordError("a.tfrecord is cut"), 1, "script.py: error: a.tfrecord is cut\n"),
        (NanLossDuringTrainingError("The loss"), 1, "script.py: error: The loss\n"),
        (InUseError("process 7 writes there"), 2, "script.py: process 7 writes there\n"),
        (NoWholeCheckpointError("No checkpoint"), 1, "script.py: error: No checkpoint\n"),
        (
            RuntimeError(IN_A_TRACEBACK),
            1,
            "script.py: error: a.tfrecord: record 7 is damaged.\n",
        ),
    ],
)
def test_exit_codes_and_messages(capsys, error, code, text):
    assert ended_by(error) == code
    assert capsys.readouterr() == ("", text)


def test_what_cannot_go_on_says_so_when_it_is_stopped(capsys):
    def body():
        raise KeyboardInterrupt

    assert console.exit_code("script.py", ["x"], body, when_stopped="Nothing was made.") == 130
    assert capsys.readouterr() == ("", "script.py: stopped. Nothing was made.\n")


def test_a_bug_is_a_traceback_and_1(capsys):
    assert ended_by(ValueError("a bug")) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("ValueError: a bug\n")


def test_the_code_of_a_system_exit_is_kept(capsys):
    assert ended_by(SystemExit(143)) == 143
    assert capsys.readouterr() == ("", "")


def test_a_hung_thread_does_not_change_the_exit_code():
    program = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
from bert_estimator.command_line import console
threading.Thread(target=time.sleep, args=(60,), name="closing").start()
console.leave(7)
"""
    ended = subprocess.run([sys.executable, "-c", program, ROOT], timeout=30)
    assert ended.returncode == 7
