"""What the server counts, in Prometheus' text format, version 0.0.4."""

import bisect
import collections
from collections.abc import Iterable, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Labels = Mapping[str, str]


class Counter:
    """Counts events by their labels; `text` is the help of the metric."""

    kind = "counter"

    def __init__(self, name: str, text: str):
        self.name, self.text = f"bert_serve_{name}", text
        self._values: dict[tuple, float] = collections.defaultdict(float)

    def add(self, value: float = 1, **labels: str) -> None:
        """Adds to the count of the labels."""
        self._values[tuple(labels.items())] += value

    def lines(self) -> Iterable[str]:
        """Yields the lines of the metric, without its head."""
        for labels, value in self._values.items():
            yield f"{self.name}{_shown(labels)} {value:.15g}"


class Gauge(Counter):
    """Holds a value for each set of labels, which is set when the metrics are asked for."""

    kind = "gauge"

    def set(self, value: float, **labels: str) -> None:
        """Sets the value of the labels."""
        self._values[tuple(labels.items())] = value

    def clear(self) -> None:
        """Forgets all values."""
        self._values.clear()


class Histogram(Counter):
    """Counts values in buckets, which have upper bounds."""

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: tuple[float, ...] = _SECS):
        super().__init__(name, text)
        self._bounds = bounds
        self._counts: dict[tuple, list[int]] = {}

    def add(self, value: float = 1, **labels: str) -> None:
        """Counts a value."""
        super().add(value, **labels)
        counts = self._counts.setdefault(tuple(labels.items()), [0] * (len(self._bounds) + 1))
        counts[bisect.bisect_left(self._bounds, value)] += 1

    def lines(self) -> Iterable[str]:
        for labels, counts in self._counts.items():
            # A bucket counts the values of the buckets before it, too, as Prometheus wants it.
            total = 0
            for bound, count in zip((*self._bounds, "+Inf"), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_shown((*labels, ('le', str(bound))))} {total}"
            yield f"{self.name}_sum{_shown(labels)} {self._values[labels]:.15g}"
            yield f"{self.name}_count{_shown(labels)} {total}"


class Metrics:
    """Has the metrics of the server, whose help says what they count."""

    def __init__(self):
        # `text` shows the metrics in this order.
        self.requests = Counter("requests_total", "Requests that were answered.")
        self.request_secs = Histogram(
            "request_seconds", "Seconds from a request's headers to its answer."
        )
        self.texts = Counter("texts_total", "Texts that were answered.")
        self.batch_texts = Histogram("batch_texts", "Texts computed together.", _SIZES)
        self.batch_secs = Histogram("batch_seconds", "Seconds that a batch took to compute.")
        self.waited_secs = Histogram("waited_seconds", "Seconds that a request was in the queue.")
        self.waiting = Gauge("queue_texts", "Texts that wait.")
        self.cut = Gauge("cut_texts", "Texts of the open model that were cut to its length.")
        self.models = Gauge("model_info", "Models that are served: always 1.")

    def text(self) -> str:
        """Returns all metrics in Prometheus' format."""
        lines = []
        for metric in vars(self).values():
            lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}"]
            lines += metric.lines()
        return "\n".join(lines) + "\n"


def _shown(labels):
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""
