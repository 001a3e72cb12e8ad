"""How the tests run: in which order, with how little collecting of garbage, and what is reported.

It does not load TensorFlow. The fixtures of all tests, in `support/around_tests.py`, do.
"""

import atexit
import gc
import os
import pathlib
import shutil
import signal
import tempfile

# The processes of one run of the tests share the programs that they compile, and no test finds what
# an earlier run compiled. jax reads the variable when it is loaded, which TensorFlow may do.
if "PYTEST_XDIST_WORKER" not in os.environ:  # pytest-xdist's processes take the first one's
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="compiled_programs_")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

# A shell's background jobs are born ignoring SIGINT, and so would be the programs that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.pop("TPU_NAME", None)  # what to run on is each test's own choice

HERE = pathlib.Path(__file__).parent

# The files that take longest, the longest first.
LONG_FILES = (
    "robustness/test_stopped_runs.py",
    "journeys/test_run_classifier.py",
    "journeys/test_packing.py",
    "journeys/test_unpatched.py",
    "oracle/test_local_mode.py",
    "journeys/test_adam_bias_correction.py",
    "journeys/test_packed_pretraining.py",
    "journeys/test_run_pretraining.py",
    "serving/test_predictor.py",
    "model_fns/test_pretraining.py",
    "jobs/test_rollbacks.py",
    "model_fns/test_classification.py",
    "interchange/test_conversion.py",
    "interchange/test_round_trip.py",
    "journeys/test_other_networks.py",
    "robustness/test_killed_evaluations.py",
    "jobs/test_compile_only.py",
    "robustness/test_weights_not_finite.py",
    "robustness/test_ends_of_hosts.py",
    "tpu/step/session/test_session_step.py",
    "legacy/test_scripts.py",
    "tpu/step/xla/test_xla_step.py",
    "cluster/test_hosts.py",
    "journeys/test_tagging_runs.py",
    "journeys/test_padding.py",
    "test_modeling.py",
    "jobs/fine_tuning/test_text_exports.py",
    "input_pipelines/embedded/test_embedded_tasks.py",
    "robustness/test_broken_disks.py",
    "robustness/test_cut_vocabularies.py",
    "robustness/test_wrong_input.py",
    "journeys/test_combinations.py",
    "recipes/test_hand_over.py",
    "tpu/verbs/test_interrupts.py",
    "serving/test_answer_predictor.py",
    "serving/test_checkpoint_model.py",
    "serving/test_sentence_models.py",
    "interchange/hub/test_reader.py",
    "journeys/test_run_squad.py",
    "tpu/train_eval/test_train_and_evaluate.py",
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
    """Puts the long files first, so that processes of pytest-xdist end at about the same time."""
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
