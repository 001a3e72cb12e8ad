"""What a call leaves behind in its process: nothing, but for what docs/tpu_estimator.md lists."""

import contextlib
import csv
import itertools
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from fixtures import DATA, TF1
from tiny_run import bert_config, words, write_records
from toy import input_fn, make_estimator, make_model_fn

from bert_estimator.interchange import conversion, open_source
from bert_estimator.jobs.pretraining import pretraining_config, pretraining_job
from bert_estimator.serving.embedder import Embedder
from bert_estimator.tokenization import SPECIAL_TOKENS, FullTokenizer, vocabulary, write_vocab
from bert_estimator.tpu import serving
from bert_estimator.tpu.program import compile_report, devices
from input_pipelines.creation.pools import WorkerPool
from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.embedded import default_data
from input_pipelines.tasks import table_files
from input_pipelines.text.documents import split_files

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
    handlers = {name: getattr(logger, "handlers", ()) for name, logger in loggers.items()}
    settings = devices.import_jax().config.values
    return {
        "environment": dict(os.environ),
        # What C code has set, too.
        "environment of children": sorted(subprocess.check_output(["env", "-0"]).split(b"\0")),
        "children": multiprocessing.active_children(),
        "start of children": multiprocessing.get_start_method(),
        # TensorFlow's writers of events keep a daemon each.
        "threads": [thread for thread in threading.enumerate() if not thread.daemon],
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "limits": {
            n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if "RLIMIT_" in n
        },
        "recursion": sys.getrecursionlimit(),
        "csv": csv.field_size_limit(),
        "NumPy": (np.geterr(), np.get_printoptions()),
        "graph": len(tf.get_default_graph().get_operations()),
        "directory": os.getcwd(),
        "umask": umask,
        "locale": locale.setlocale(locale.LC_ALL),
        "path": list(sys.path),
        "warnings": list(warnings.filters),
        "levels": {name: level for name, level in levels.items() if level},
        "handlers": {name: list(handlers) for name, handlers in handlers.items() if handlers},
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


def convert(tmp_path):
    for to in ("hf", "tf1"):
        source = DATA / "hf_pretraining" if to == "tf1" else TF1
        conversion.convert(open_source(str(source)), str(tmp_path / to), to)


def convert_to_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    conversion.convert(open_source(str(DATA / "hf_classifier")), str(tmp_path / "onnx"), "onnx")


def embed(tmp_path):
    assert len(Embedder(str(DATA / "hf_encoder"))(["A text."])) == 1


def read_table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("text,label\n" + "long " * 50_000 + ",1\n")
    assert len(list(table_files.read_rows(str(path)))) == 1


def train_vocabulary(tmp_path):
    vocabulary.train_vocabulary(["one two three two one"] * 9, 30)


def create_records(tmp_path):
    write_records(tmp_path, "train.tfrecord", words(30))


def create_records_by_workers(tmp_path):
    path, vocab_file = tmp_path / "text.txt", str(tmp_path / "vocab.txt")
    path.write_text("w1 w2 w3.\nw4 w5 w6.\n\n" * 9)
    write_vocab([*SPECIAL_TOKENS, ".", *words(9)], vocab_file)
    with WorkerPool(1) as pool:
        write_pretraining_records(
            split_files([str(path)]),
            FullTokenizer(vocab_file),
            vocab_file,
            [str(tmp_path / "train.tfrecord")],
            CreationSettings(max_seq_length=16, max_predictions_per_seq=4),
            masking="dynamic",
            pool=pool,
        )


def make_embedded_data(tmp_path):
    default_data.make(str(tmp_path), 200, 32, 4, 1, 1, masking="dynamic")


WITHOUT_ESTIMATORS = [
    convert,
    convert_to_onnx,
    create_records,
    create_records_by_workers,
    embed,
    make_embedded_data,
    read_table,
    train_vocabulary,
]


@pytest.mark.parametrize("call", WITHOUT_ESTIMATORS)
def test_calls_without_an_estimator(tmp_path, call):
    with unchanged():
        call(tmp_path)


def test_compile_only(tmp_path, tpu_compiler):
    network = tmp_path / "bert_config.json"
    network.write_text(json.dumps(bert_config(30)))
    flags = {
        "bert_config_file": network,
        "output_dir": tmp_path / "out",
        "tpu_topology": "v3:1x1",
        "train_batch_size": 4,
        "max_seq_length": 16,
        "max_predictions_per_seq": 4,
        "num_train_steps": 9,
        "num_warmup_steps": 1,
    }
    argv = ["run", "--compile_only", "--use_tpu", *(f"--{n}={v}" for n, v in flags.items())]
    with unchanged():
        pretraining_job.compile_steps(pretraining_config.resolve(argv))
    assert (tmp_path / "out" / "compile_report.json").exists()
