"""Records what TensorFlow 2.15's TPUEstimator does in every scenario, as upstream.json.

Run it when a scenario is added or changed, with a Python that has the oracle:

    python3.11 -m venv oracle
    oracle/bin/pip install tensorflow==2.15.1
    oracle/bin/python tests/oracle/record.py [name ...]

With names (or beginnings of names) only those scenarios are recorded anew; without, all of them.
"""

import importlib.metadata
import json
import os
import sys
import tempfile
from types import SimpleNamespace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow.compat.v1 as tf
from scenarios import SCENARIOS, run

RECORD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "upstream.json")


def upstream():
    """The oracle's public names in one place, as `bert_estimator.tpu` has them."""
    of_tpu = "TPUEstimator TPUEstimatorSpec RunConfig TPUConfig InputPipelineConfig"
    others = (
        "BestExporter Estimator EstimatorSpec EvalSpec Exporter FinalExporter LatestExporter "
        "ModeKeys TrainSpec WarmStartSettings train_and_evaluate"
    )
    return SimpleNamespace(
        **{name: getattr(tf.estimator.tpu, name) for name in of_tpu.split()},
        **{name: getattr(tf.estimator, name) for name in others.split()},
        early_stopping=tf.estimator.experimental,
        InMemoryEvaluatorHook=tf.estimator.experimental.InMemoryEvaluatorHook,
        serving=SimpleNamespace(**{**vars(tf.estimator.export), **vars(tf.estimator.experimental)}),
    )


def main(beginnings):
    tf.logging.set_verbosity(tf.logging.ERROR)
    observed = {}
    if beginnings:
        with open(RECORD, encoding="utf-8") as record:
            observed = json.load(record)["scenarios"]
    for name in SCENARIOS:
        if beginnings and not name.startswith(tuple(beginnings)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                observed[name] = run(name, upstream(), folder)
                json.dumps(observed[name])
            except Exception as error:
                raise RuntimeError(f"scenario {name} did not run to its end") from error
        print(name)
    distributions = ["tensorflow", "tensorflow-estimator"]
    versions = {name: importlib.metadata.version(name) for name in distributions}
    scenarios = {name: observed[name] for name in SCENARIOS}
    with open(RECORD, "w", encoding="utf-8") as record:
        json.dump({"versions": versions, "scenarios": scenarios}, record, indent=1)
        record.write("\n")


if __name__ == "__main__":
    main(sys.argv[1:])
