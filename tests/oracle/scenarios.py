"""All scenarios in which local mode is compared with TensorFlow 2.15's TPUEstimator."""

import call_scenarios  # noqa: F401  (importing a module registers its scenarios)
import evaluate_scenarios  # noqa: F401
import train_scenarios  # noqa: F401
import validation_scenarios  # noqa: F401
from harness import SCENARIOS


def run(name, api, folder):
    """Runs one scenario in an empty directory and returns its observations, JSON values."""
    return SCENARIOS[name](api, folder)
