"""One call of a verb: everything that training and evaluation need to know of the estimator."""

import dataclasses
from collections.abc import Callable
from typing import Any

from bert_estimator.tpu import call
from bert_estimator.tpu.config import RunConfig
from bert_estimator.tpu.spec import EstimatorSpec, TPUEstimatorSpec


@dataclasses.dataclass(frozen=True)
class Job:
    """What one call of train or evaluate runs.

    Attributes:
      mode: a `ModeKeys` value.
      model_fn, params, config: the estimator's.
      tpu_rules: whether this call runs under the TPU's rules (on whichever runtime).
      batch_size: the global batch, or None where the estimator was given none.
      num_replicas: cores that share it.
      master: what names these cores; "" is the session runtime.
      units_per_example: see `TPUEstimator`.
    """

    mode: str
    model_fn: Callable
    params: Any
    config: RunConfig
    tpu_rules: bool
    batch_size: int | None
    num_replicas: int = 1
    master: str = ""
    units_per_example: dict | None = None

    def call_model_fn(self, features, labels):
        """Builds the model for one replica in the current graph; returns its spec."""
        batch_size = self.batch_size // self.num_replicas if self.batch_size else None
        spec = call.call_model_fn(
            self.model_fn,
            features,
            labels,
            self.mode,
            self._params(batch_size, use_tpu=self.tpu_rules),
            self.config,
        )
        if not isinstance(spec, EstimatorSpec | TPUEstimatorSpec):
            raise ValueError(
                "model_fn must return a TPUEstimatorSpec (or EstimatorSpec), not "
                f"{type(spec).__name__}"
            )
        return spec

    def input_params(self, start_step):
        """Returns the params for `input_fn`: with the batch size and a `TPUContext`."""
        context = call.TPUContext(num_replicas=self.num_replicas, global_step=start_step)
        entries = {"use_tpu": True} if self.tpu_rules else {}
        return self._params(self.batch_size, context=context, **entries)

    def _params(self, batch_size, **entries):
        if batch_size is not None:
            entries["batch_size"] = batch_size
        return call.with_entries(self.params, **entries)
