"""Shows the progress of training: log lines, rates and the time left."""

import contextlib
import math
import time
import types
from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_estimator.system.ticker import format_secs
from bert_estimator.tpu import summary


class LogListener(tf.train.SessionRunHook):
    """A hook that has a function called with every log record of training.

    A record is a dict. Its keys are step, loss, the float tensors of one element if a host_call has
    a dict, steps_per_sec, examples_per_sec, `<unit>_per_sec`, input_wait (the share of the time
    that steps waited for input, 0 to 1), and eta_secs (only if the last step is known).

    Args:
      function: function of a record.
      first_step: whether it is called with the first step of a training from step 0, too. That
        record has no rates, since most of its time is compilation.

    Example, with the estimator in the example of `TPUEstimator`:

      >>> losses = []
      >>> listener = tpu.LogListener(lambda record: losses.append(record["loss"]))
      >>> estimator = estimator.train(input_fn, [listener], steps=2)
      >>> [float(loss) for loss in losses]
      [0.0]
    """

    def __init__(self, function: Callable[[dict], None], first_step: bool = False):
        self.after_log = function
        self.takes_first_step = first_step


class _Reached(NamedTuple):
    """Says when a step was reached, and with what."""

    step: int
    time: float  # in seconds, at the step's end
    waited_secs: float | None = 0.0  # of all steps until then; None if unknown
    loss: float | None = None  # before the first step
    scalars: Mapping[str, float] = types.MappingProxyType({})


class Progress:
    """Logs training at the end of each first loop that reaches or passes a multiple of
    `log_step_count_steps`: a record to `LogListener`s, its rates to the event file, and a line to
    the log, unless `log_every_secs` is given: then `ticker.every` asks `line` for the lines."""

    def __init__(self, config, batch_size, units_per_example, stop_step, listeners):
        self._every = config.log_step_count_steps
        self._lines_by_time = bool(config.log_every_secs)
        self._units = {}  # name -> number in a step
        if batch_size:
            self._units["examples"] = batch_size
            for unit, per_example in (units_per_example or {}).items():
                self._units[unit] = batch_size * per_example
        self._stop_step = stop_step
        self._listeners = [hook for hook in listeners if isinstance(hook, LogListener)]
        self._writer = summary.event_writer(config.model_dir) if config.model_dir else None
        self._in_hooks = False
        self._first_step = None  # once its record is with the listeners that take it

    def start(self, step: int) -> None:
        now = _Reached(step, time.perf_counter())
        self._start = self._recorded = self._shown = self._reached = now
        self._busy_since = now.time

    def before_loop(self) -> None:
        """Takes notice that the hooks have ended and a loop begins."""
        self._in_hooks, self._busy_since = False, time.perf_counter()

    def within_loop(
        self, step: int, loss: float, scalars: dict[str, float], waited_secs: float | None
    ) -> None:
        """Takes notice of a step that has ended, while its loop runs; see `after_loop`."""
        # A step that gradients are summed over does not raise the global step.
        if step > self._reached.step:
            self._reach(step, loss, scalars, waited_secs)

    def _reach(self, step, loss, scalars, waited_secs):
        self._busy_since = time.perf_counter()
        self._reached = _Reached(step, self._busy_since, waited_secs, loss, dict(scalars))

    def after_loop(
        self,
        step: int,
        loss: float,
        scalars: dict[str, float],
        waited_secs: float | None,
        last: bool = False,
    ) -> None:
        """Logs if that is due, as it always is at the last step; `waited_secs` is the total that
        steps waited for input, or None."""
        self._in_hooks = True
        # If the hooks ended the training, the step is reached already; the time since is theirs.
        if not last or step != self._reached.step:
            self._reach(step, loss, scalars, waited_secs)
        if not self._every:
            return
        # Intervals are counted in global steps, so that a resumed training logs the same steps.
        passed = step // self._every != self._recorded.step // self._every
        due = passed or (last and step > self._recorded.step)
        if (last or (due and not self._lines_by_time)) and step > self._shown.step:
            # `training` and `secs` are for who writes lines in another form: the legacy runner.
            further = {"secs": self._reached.time - self._shown.time}
            record = self._shown_record(self._reached)
            further["training"] = record
            tf.logging.info("%s", format_record(record, self._stop_step), extra=further)
        if not due:
            return
        record = self._record(self._recorded, self._reached)
        self._recorded = self._reached
        self._write_rates(record)
        for listener in self._listeners:
            # `after_first` gave them this step already.
            if not listener.takes_first_step or step != self._first_step:
                listener.after_log(record)

    def after_first(self, step: int, loss: float, scalars: dict[str, float]) -> None:
        """Gives the first step of a training from step 0 to the listeners that take it; it is
        called before `after_loop`."""
        if not self._every:
            return
        self._first_step = step
        for listener in self._listeners:
            if listener.takes_first_step:
                listener.after_log({"step": step, "loss": loss, **scalars})

    def line(self) -> str:
        """Returns a line that says how training goes on now; `ticker.every` asks for it."""
        reached = self._reached  # the training's thread may replace it meanwhile
        if reached.step > self._shown.step:
            return format_record(self._shown_record(reached), self._stop_step)
        secs = time.perf_counter() - self._busy_since
        of = f"/{self._stop_step}" if self._stop_step else ""
        if self._in_hooks:
            return f"step {reached.step}{of}: the hooks have taken {format_secs(secs)} so far"
        text = f"step {reached.step + 1}{of} has taken {format_secs(secs)} so far"
        return text + (", compilation included" if reached.step == self._start.step else "")

    def _shown_record(self, reached):
        """Returns the record of a step that is shown, with the rates since the line before it."""
        record = self._record(self._shown, reached)
        self._shown = reached
        return record

    def _record(self, before, reached):
        """Returns the record of a step, with the rates since the step `before`."""
        # On a coarse clock two steps may end at the same time.
        secs = max(reached.time - before.time, 1e-9)
        steps_per_sec = (reached.step - before.step) / secs
        record = {"step": reached.step, "loss": reached.loss, **reached.scalars}
        record["steps_per_sec"] = steps_per_sec
        for unit, per_step in self._units.items():
            record[f"{unit}_per_sec"] = steps_per_sec * per_step
        if reached.waited_secs is not None:
            record["input_wait"] = min(1.0, (reached.waited_secs - before.waited_secs) / secs)
        if self._stop_step is not None:
            # The mean since the start: at first it is too long, since it includes the compilation.
            done = reached.step - self._start.step
            mean = (reached.time - self._start.time) / done if done else None
            record["eta_secs"] = mean and mean * (self._stop_step - reached.step)
        return record

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error) -> None:
        lesser = (Exception,) if any(error) else ()  # The first error is the one to raise.
        with contextlib.suppress(*lesser):
            if self._writer:
                self._writer.flush()

    def _write_rates(self, record):
        if self._writer is None:
            return
        tags = {
            "global_step/sec": "steps_per_sec",
            "examples/sec": "examples_per_sec",
            "input_wait": "input_wait",
        }
        values = [
            tf.Summary.Value(tag=tag, simple_value=record[key])
            for tag, key in tags.items()
            if key in record
        ]
        self._writer.add_summary(tf.Summary(value=values), record["step"])


def format_record(record: dict, stop_step: int | None = None) -> str:
    """Returns a log record as one line: `step 100/2000  loss 6.1234  ...  ETA 1:23`."""
    parts = [f"step {record['step']}" + (f"/{stop_step}" if stop_step else "")]
    for key, value in record.items():
        if key in ("step", "eta_secs") or value is None:
            continue
        if key == "input_wait":
            parts.append(f"input wait {value:.1%}")
        elif key.endswith("_per_sec"):
            parts.append(f"{round_number(value, 4)} {key[: -len('_per_sec')]}/s")
        else:
            parts.append(f"{key} {round_number(value, 5)}")
    if record.get("eta_secs") is not None:
        parts.append(f"ETA {format_secs(record['eta_secs'])}")
    return "  ".join(parts)


def round_number(value: float, digits: int) -> str:
    """Returns a number as text, with `digits` significant digits, or more before the point."""
    if not math.isfinite(value) or value == 0:
        return str(value)
    if abs(value) < 1:
        return f"{value:.{digits}g}"
    before_point = len(str(int(abs(value))))
    return f"{value:,.{max(0, digits - before_point)}f}"
