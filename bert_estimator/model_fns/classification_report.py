"""What an evaluation says of each label: precision, recall, confusions, calibration.

`count` counts the examples of a batch; `lines` is the report made of the counts of all batches.
`summaries` show it in TensorBoard, which is not needed to write them: the tables are summaries of
the text plugin, `report/labels`, `report/confusion` and `report/calibration`, and
`precision_recall/<label>` is a curve of the plugin pr_curves, for each label against all others.

Letters: N examples (words, for tagging), L labels, K bins of probability, T thresholds.
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.model_fns import metrics

NUM_BINS = 10
MOST_CURVES = 50  # Nobody looks at more curves, and the events would grow by megabytes.
NUM_THRESHOLDS = 201  # from 0 to 1, at equal distances, as in TensorBoard's own curves

CONFUSION, CALIBRATION, THRESHOLDS = NAMES = (metrics.CONFUSION, "calibration", "thresholds")
# Kinds of heads whose labels have probabilities.
KINDS = ("classification", "multi_label", "tagging")
_TABLES = ("labels", "confusion", "calibration")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|>])")
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def names(num_labels: int) -> tuple[str, ...]:
    """Returns the names of the counts that a report of so many labels is made of."""
    return NAMES if num_labels <= MOST_CURVES else NAMES[:2]


def count(kind: str, label_ids: np.ndarray, logits: np.ndarray) -> metrics.Counts:
    """Counts examples as `metrics.count` does, for what a report has beside the confusions.

    CALIBRATION is [K, 3], by the probability of what is predicted: number, sum of the
    probabilities, and number of right predictions. THRESHOLDS, for at most MOST_CURVES labels, is
    [T, L, 2], the numbers of examples without and with the label, by the last threshold that the
    label's probability reaches.
    """
    num_labels = logits.shape[1]
    if kind == "multi_label":  # Every label of an example is a prediction.
        holds, probabilities = label_ids > 0, _sigmoid(logits)
        probability, right = _sigmoid(np.abs(logits)), holds == (logits > 0)
    else:
        holds, probabilities = label_ids[:, np.newaxis] == np.arange(num_labels), _softmax(logits)
        probability, right = probabilities.max(axis=-1), logits.argmax(axis=-1) == label_ids
    columns = [
        np.histogram(probability, NUM_BINS, (0, 1), weights=np.asarray(column, np.float64))[0]
        for column in (np.ones_like(probability), probability, right)
    ]
    counts = {CALIBRATION: np.stack(columns, axis=-1)}
    if THRESHOLDS in names(num_labels):
        last = NUM_THRESHOLDS - 1
        threshold = (np.nan_to_num(probabilities) * last).astype(np.int64)  # NaN is below 0
        shape = [NUM_THRESHOLDS, num_labels, 2]
        counts[THRESHOLDS] = metrics.numbers_of(shape, threshold, np.arange(num_labels), holds)
    return counts


def _softmax(logits):
    with np.errstate(invalid="ignore"):  # of logits that are not finite
        exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _sigmoid(logits):
    return 0.5 * (1 + np.tanh(0.5 * logits))  # whose exponentials cannot be infinite


def lines(kind: str, labels: Sequence[str], counted: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yields the lines of a report: three tables, whose cells are separated by tabs."""
    confusions, calibration = counted[CONFUSION], counted[CALIBRATION]
    is_single = kind != "multi_label"
    labels = [cell(label) for label in labels]
    # The diagonal of the confusions is right; for multi_label, each label has a table of its own.
    if is_single:
        right, said = np.diag(confusions), confusions.sum(axis=0)
        number = confusions.sum(axis=1)
    else:
        right, said = confusions[:, 1, 1], confusions[:, :, 1].sum(axis=1)
        number = confusions[:, 1].sum(axis=1)
    rows = [_share(right, said), _share(right, number), _share(2 * right, said + number), number]
    yield "label\tprecision\trecall\tf1\tnumber"
    for label, *values in zip(labels, *rows, strict=True):
        yield _row(label, values)
    # As scikit-learn counts them. (Of several labels for a text, all count.)
    counts = np.flatnonzero(said + number) if is_single else np.arange(len(labels))
    means = [np.mean(row[counts]) if len(counts) else 0.0 for row in rows[:3]]
    yield _row("mean of the labels", [*means, number.sum()])
    yield ""
    if is_single:
        yield "\t".join(["label \\ predicted", *labels])
        for label, row in zip(labels, confusions, strict=True):
            yield "\t".join([label, *(f"{count:.0f}" for count in row)])
    else:
        yield "label\tholds, predicted\tholds, not predicted\tpredicted only\tneither"
        for label, table in zip(labels, confusions, strict=True):
            cells = (table[1, 1], table[1, 0], table[0, 1], table[0, 0])
            yield "\t".join([label, *(f"{count:.0f}" for count in cells)])
    yield ""
    yield "probability\tmean\tshare right\tnumber"
    for place, (count, probability, correct) in enumerate(calibration):
        if count:
            name = f"{place / NUM_BINS:.1f} to {(place + 1) / NUM_BINS:.1f}"
            yield _row(name, [probability / count, correct / count, count])
    yield f"expected calibration error\t{calibration_error(calibration):.4f}"


def cell(label: str) -> str:
    """Returns a label as a cell, with tabs, ends of lines and backslashes escaped as in Python."""
    return label.translate(_ESCAPES)


def calibration_error(calibration: np.ndarray) -> float:
    """Returns the mean distance of the probability and the share of right predictions in a bin,
    weighted by the bins' numbers (Guo et al., 2017, equation 5)."""
    total = calibration[:, 0].sum()
    return float(np.abs(calibration[:, 1] - calibration[:, 2]).sum() / total) if total else 0.0


def _share(part, whole):
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)


def _row(name, values):
    *shares, number = values
    return "\t".join([name, *(f"{share:.4f}" for share in shares), f"{number:.0f}"])


def summaries(
    kind: str, labels: Sequence[str], counted: Mapping[str, np.ndarray]
) -> list[tf.Summary.Value]:
    """Returns the summaries of an evaluation; none if "thresholds" are not among the counts."""
    if THRESHOLDS not in counted:
        return []
    tables = "\n".join(lines(kind, labels, counted)).split("\n\n")
    values = [_table(f"report/{name}", table) for name, table in zip(_TABLES, tables, strict=True)]
    for place, label in enumerate(labels):
        name = f"precision_recall/{cell(label)}"
        values.append(_curve_summary(name, *counted[THRESHOLDS][:, place].T))
    return values


def _table(tag, lines):
    """Returns a table of lines, whose cells have tabs between them."""
    rows = [[_as_markdown(cell) for cell in line.split("\t")] for line in lines.split("\n")]
    width = max(map(len, rows))
    cells = np.array([row + [""] * (width - len(row)) for row in rows], object)
    return _value(tag, tf.make_tensor_proto(cells, tf.string), "text")


def _as_markdown(text):
    """Returns what TensorBoard, which reads Markdown and HTML, shows as this text."""
    return _MARKDOWN.sub(r"\\\1", html.escape(text, quote=False))


def _curve_summary(tag, without, with_label):
    """Returns a label's curve, from the numbers of examples without and with it, float64 [T]."""
    # All that reach a later threshold reach this one, too.
    false_positives, true_positives = (np.cumsum(n[::-1])[::-1] for n in (without, with_label))
    # The plugin pr_curves reads the rows in this order.
    rows = [
        true_positives,
        false_positives,
        false_positives[0] - false_positives,
        true_positives[0] - true_positives,
        _share(true_positives, true_positives + false_positives),
        _share(true_positives, true_positives[0]),
    ]
    tensor = tf.make_tensor_proto(np.stack(rows), tf.float32)
    return _value(tag, tensor, "pr_curves", _curve_data(len(without)))


def _curve_data(num_thresholds):
    """Returns the plugin's message, whose field 2 is the number of thresholds."""
    data, rest = bytes([2 << 3]), num_thresholds
    # A whole number in a message has seven bits in a byte, the lowest first.
    while rest > 127:
        data, rest = data + bytes([128 | rest & 127]), rest >> 7
    return data + bytes([rest])


def _value(tag, tensor, plugin, content=b""):
    value = tf.Summary.Value(tag=tag, tensor=tensor)
    value.metadata.plugin_data.plugin_name = plugin
    value.metadata.plugin_data.content = content
    return value
