"""What the server counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

_SECS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Has the metrics of one server, whose help says what they count."""

    def __init__(self):
        self.registry = CollectorRegistry()  # a process may have several servers

        def make(kind, name, text, *labels, **options):
            labels = ("model", *labels)
            return kind(name, text, labels, "bert_serve", registry=self.registry, **options)

        def secs(name, text, *labels):
            return make(Histogram, f"{name}_seconds", f"Seconds {text}.", *labels, buckets=_SECS)

        self.requests = make(Counter, "requests", "Requests that were answered.", "verb", "status")
        self.request_secs = secs("request", "from a request's headers to its answer", "verb")
        self.texts = make(Counter, "texts", "Texts that were answered.")
        self.batch_texts = make(Histogram, "batch_texts", "Texts of a batch.", buckets=_SIZES)
        self.batch_secs = secs("batch", "that a batch took to compute")
        self.waited_secs = secs("waited", "that a request was in the queue")
        self.waiting = make(Gauge, "queue_texts", "Texts that wait.")
        self.cut = make(Gauge, "cut_texts", "Texts that the open model cut to its length.")
        self.models = make(Info, "model", "Models that are served.")
