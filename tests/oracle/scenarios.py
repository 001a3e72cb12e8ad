"""All scenarios in which local mode is compared with TensorFlow 2.15's TPUEstimator."""

# Importing a module registers its scenarios.
import call_scenarios  # noqa: F401
import checkpoint_scenarios  # noqa: F401
import cluster_scenarios  # noqa: F401
import estimator_scenarios  # noqa: F401
import evaluate_scenarios  # noqa: F401
import export_scenarios  # noqa: F401
import failure_scenarios  # noqa: F401
import predict_scenarios  # noqa: F401
import surface_scenarios  # noqa: F401
import train_eval_scenarios  # noqa: F401
import train_scenarios  # noqa: F401
import validation_scenarios  # noqa: F401
import warm_start_scenarios  # noqa: F401
from harness import SCENARIOS


def run(name, api, folder):
    """Runs one scenario in an empty directory and returns its observations, JSON values."""
    return SCENARIOS[name](api, folder)
