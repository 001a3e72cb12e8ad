"""How the tests run: in which order, with how little collecting of garbage, and what is reported.

It does not load TensorFlow. The fixtures of all tests, in `support/around_tests.py`, do.
"""

import atexit
import gc
import os
import pathlib
import shutil
import tempfile

# The processes of one run of the tests share the programs that they compile, and no test finds what
# an earlier run compiled. jax reads the variable when it is loaded, which TensorFlow may do.
if "PYTEST_XDIST_WORKER" not in os.environ:  # pytest-xdist's processes take the first one's
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="compiled_programs_")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

os.environ.pop("TPU_NAME", None)  # what to run on is each test's own choice

HERE = pathlib.Path(__file__).parent

# The files that take longest, the longest first.
LONG_FILES = (
    "test_stopped_runs.py",
    "test_run_classifier.py",
    "oracle/test_local_mode.py",
    "test_run_pretraining.py",
    "serving/test_predictor.py",
    "test_pretraining.py",
    "jobs/test_rollbacks.py",
    "test_classification.py",
    "interchange/test_conversion.py",
    "interchange/test_round_trip.py",
    "test_killed_evaluations.py",
    "jobs/test_compile_only.py",
    "test_wrong_input.py",
    "tpu/step/test_session_step.py",
    "legacy/test_scripts.py",
    "tpu/step/test_xla_step.py",
    "tpu/program/test_hosts.py",
    "test_tagging_runs.py",
    "test_modeling.py",
    "serving/test_text_model.py",
    "input_pipelines/test_embedded_task.py",
    "test_broken_disks.py",
    "test_combinations.py",
    "recipes/test_hand_over.py",
    "tpu/verbs/test_interrupts.py",
    "serving/test_answer_model.py",
    "serving/test_graph_sentencepiece.py",
    "interchange/test_hub.py",
    "test_run_squad.py",
    "tpu/test_train_eval.py",
    "tpu/test_tf1_idioms.py",
    "tpu/verbs/test_evaluation.py",
    "tpu/verbs/test_prediction.py",
    "tpu/verbs/test_kept_evaluation.py",
)


def pytest_configure(config):
    # A graph has so many objects that Python's garbage collector would run all the time: with
    # Python's own thresholds (700, 10, 10) it takes up to 9 % of a file's time.
    gc.set_threshold(20_000, 10, 10)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # xdist would begin with the most cases instead
    shares_tests_out = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
    if not shares_tests_out:
        config.pluginmanager.import_plugin("around_tests")


def pytest_collection_finish():
    """Spares the garbage collector what has been loaded: it would look at it for each graph."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    """Puts the long files first, if pytest-xdist shares the files out to several processes.

    The processes then end at about the same time: none is left alone with a long file.
    """
    if hasattr(config, "workerinput"):
        place = {HERE / name: number for number, name in enumerate(LONG_FILES)}
        items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_terminal_summary(terminalreporter):
    """Says how many cases were skipped for want of the XLA runtime, and what it wants."""
    skipped = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    for_want = [reason for reason in skipped if "needs the XLA runtime: " in reason]
    if for_want:
        missing = for_want[0].partition("needs the XLA runtime: ")[2]
        terminalreporter.write_line(f"{len(for_want)} cases were skipped: {missing}")
