"""Shows the progress of training: log lines, a progress bar, rates and the time left."""

import math
import sys
import time
from collections.abc import Callable

import tensorflow.compat.v1 as tf


class LogListener(tf.train.SessionRunHook):
    """A hook that has a function called with every log record of training.

    A record is a dict. Its keys are step, loss, the one-value float tensors of a host_call that has
    a dict, steps_per_sec, examples_per_sec, `<unit>_per_sec`, input_wait (the share of the time
    that steps waited for input, 0 to 1), and eta_secs (only if the last step is known).

    Args:
      function: function of a record.
    """

    def __init__(self, function: Callable[[dict], None]):
        self.after_log = function


class Progress:
    """Writes a log line every `log_step_count_steps`, and a progress bar if stderr is a terminal.

    Args:
      config: the `RunConfig`.
      batch_size: examples in a global batch.
      units_per_example: dict such as {"tokens": 128}, to log rates of other units too; or None.
      stop_step: the step at which training ends, or None.
      listeners: list of hooks. Each `LogListener` among them gets every record.
    """

    def __init__(self, config, batch_size, units_per_example, stop_step, listeners):
        self._every = config.log_step_count_steps
        self._units = {}  # name -> number in a step
        if batch_size:
            self._units["examples"] = batch_size
            for unit, per_example in (units_per_example or {}).items():
                self._units[unit] = batch_size * per_example
        self._stop_step = stop_step
        self._listeners = [hook for hook in listeners if isinstance(hook, LogListener)]
        self._writer = (
            tf.summary.FileWriterCache.get(config.model_dir) if config.model_dir else None
        )
        self._bar = _Bar() if sys.stderr.isatty() else None

    def start(self, step: int) -> None:
        self._start_step = self._logged_step = step
        self._start_time = self._logged_time = time.perf_counter()
        self._logged_wait = 0.0

    def after_loop(
        self,
        step: int,
        loss: float,
        scalars: dict[str, float],
        waited_secs: float | None,
        last: bool = False,
    ) -> None:
        """Updates the progress bar, and logs if a log line is due.

        Args:
          step: the global step reached.
          loss: the loss of that step, float.
          scalars: dict of name -> float, of that step.
          waited_secs: how many seconds steps have waited for input in total, or None.
          last: whether this is the last step, which is always logged.
        """
        now = time.perf_counter()
        if self._bar:
            self._bar.show(step, self._stop_step, loss, self._eta_secs(step, now))
        if not self._every or step == self._logged_step:
            return
        # Intervals are counted in global steps, so that a resumed training logs the same steps.
        if not last and step // self._every == self._logged_step // self._every:
            return
        secs = max(now - self._logged_time, 1e-9)
        steps_per_sec = (step - self._logged_step) / secs
        record = {"step": step, "loss": loss, **scalars, "steps_per_sec": steps_per_sec}
        for unit, per_step in self._units.items():
            record[f"{unit}_per_sec"] = steps_per_sec * per_step
        if waited_secs is not None:
            record["input_wait"] = min(1.0, (waited_secs - self._logged_wait) / secs)
        if self._stop_step is not None:
            record["eta_secs"] = self._eta_secs(step, now)
        self._logged_step, self._logged_time, self._logged_wait = step, now, waited_secs
        if self._bar:
            self._bar.clear()
        tf.logging.info("%s", format_record(record, self._stop_step))
        self._write_rates(record)
        for listener in self._listeners:
            listener.after_log(record)

    def end(self) -> None:
        if self._bar:
            self._bar.clear()
        if self._writer:
            self._writer.flush()

    def _eta_secs(self, step, now):
        done = step - self._start_step
        if self._stop_step is None or not done:
            return None
        return (now - self._start_time) / done * (self._stop_step - step)

    def _write_rates(self, record):
        if self._writer is None:
            return
        tags = {"global_step/sec": "steps_per_sec", "examples/sec": "examples_per_sec"}
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
            parts.append(f"{_round(value, 4)} {key[: -len('_per_sec')]}/s")
        else:
            parts.append(f"{key} {_round(value, 5)}")
    if record.get("eta_secs") is not None:
        parts.append(f"ETA {format_secs(record['eta_secs'])}")
    return "  ".join(parts)


def format_secs(secs: float) -> str:
    """Returns seconds as `m:ss` or `h:mm:ss`."""
    minutes, secs = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"


def _round(value, digits):
    """Returns a number as text, with `digits` significant digits, or more before the point."""
    if not math.isfinite(value) or value == 0:
        return str(value)
    if abs(value) < 1:
        return f"{value:.{digits}g}"
    before_point = len(str(int(abs(value))))
    return f"{value:,.{max(0, digits - before_point)}f}"


class _Bar:
    _WIDTH = 30

    def show(self, step, stop_step, loss, eta_secs):
        text = f"step {step}  loss {loss:.4f}"
        if stop_step:
            filled = int(self._WIDTH * step / stop_step)
            bar = "#" * filled + "-" * (self._WIDTH - filled)
            eta = f"  ETA {format_secs(eta_secs)}" if eta_secs is not None else ""
            text = f"[{bar}] {step}/{stop_step}  loss {loss:.4f}{eta}"
        sys.stderr.write("\r\x1b[K" + text)
        sys.stderr.flush()

    def clear(self):
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
