"""What a call leaves behind in its process: nothing, but for what docs/tpu_estimator.md lists."""

import contextlib
import itertools
import locale
import logging
import os
import random
import signal
import sys
import warnings

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import input_fn, make_estimator, make_model_fn

from bert_estimator.tokenization import vocabulary
from bert_estimator.tpu import serving
from bert_estimator.tpu.program import compile_report, devices

# The settings of jax that stay, since jax starts its devices once in a process.
STAY = {
    "jax_compilation_cache_dir",
    "jax_enable_preemption_service",
    "jax_num_cpu_devices",
    "jax_platforms",
}


def state_of_process():
    """Returns name -> value of what all code of a process shares."""
    umask = os.umask(0)
    os.umask(umask)
    loggers = {"": logging.getLogger(), **logging.root.manager.loggerDict}
    levels = {name: getattr(logger, "level", 0) for name, logger in loggers.items()}
    settings = devices.import_jax().config.values
    return {
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "umask": umask,
        "locale": locale.setlocale(locale.LC_ALL),
        "path": list(sys.path),
        "warnings": list(warnings.filters),
        "levels": {name: level for name, level in levels.items() if level},
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "streams": (sys.stdout, sys.stderr),
        "seeds": (random.getstate(), repr(np.random.get_state())),
        "devices of TensorFlow": tf.config.get_visible_devices(),
        "jax": {name: value for name, value in settings.items() if name not in STAY},
    }


def predictive(features, loss):
    return {"predictions": {"x": features["x"]}}


def receiver():
    return serving.build_raw_serving_input_receiver_fn({"x": tf.ones([4])})()


@contextlib.contextmanager
def unchanged():
    before = state_of_process()
    yield
    after = state_of_process()
    for name, value in before.items():
        assert after[name] == value, name


def test_estimators_on_each_runtime(tmp_path, rules, monkeypatch):
    made, make = [], tf.Session.__init__

    def counted(self, target="", graph=None, config=None):
        made.append(config)
        make(self, target, graph, config)

    monkeypatch.setattr(tf.Session, "__init__", counted)
    monkeypatch.setattr(tf.config, "set_visible_devices", None)  # which it must not call
    model_fn = make_model_fn(predictive)
    with unchanged():
        estimator = make_estimator(tmp_path, model_fn, predict_batch_size=4, **rules)
        estimator.train(input_fn, steps=2)
        estimator.evaluate(input_fn, steps=1)
        assert len(list(itertools.islice(estimator.predict(input_fn), 4))) == 4
        estimator.export_saved_model(str(tmp_path / "exported"), receiver)
    if "master" in rules:  # The cores' memory may be the GPUs'.
        assert made and all(config.device_count["GPU"] == 0 for config in made)


def test_programs_for_other_machines(tmp_path, xla_runtime):
    with unchanged():
        estimator = make_estimator(tmp_path / "model")
        estimator.lower(input_fn, 2)
        estimator.export_training_program(input_fn, str(tmp_path / "program"))


def test_compiling_for_a_tpu(tmp_path, tpu_compiler):
    with unchanged():
        cores = compile_report.find("v3:2x2")
        estimator = make_estimator(tmp_path, train_batch_size=len(cores))
        lowered = estimator.lower(input_fn, len(cores))
        compile_report.report(lowered, "v3:2x2", len(cores))
        with pytest.raises(ValueError, match="Examples of topologies"):
            compile_report.find("v3:nonsense")


def test_vocabularies():
    with unchanged():
        vocabulary.train_vocabulary(["one two three two one"] * 9, 30)
