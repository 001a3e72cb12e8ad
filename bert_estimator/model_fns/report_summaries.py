"""The report of an evaluation as TensorBoard shows it: tables, and curves of precision and recall.

The tables of `classification_report.lines` are summaries of the text plugin: `report/labels`,
`report/confusion` and `report/calibration`. `precision_recall/<label>` is a curve of the plugin
pr_curves, for each label against all others. TensorBoard is not needed to write them.

Letters: L labels, T thresholds.
"""

import html
import re
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.model_fns import classification_report as report

_TABLES = ("labels", "confusion", "calibration")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|>])")


def summaries(
    kind: str, labels: Sequence[str], counted: Mapping[str, np.ndarray]
) -> list[tf.Summary.Value]:
    """Returns the summaries of an evaluation; none if there are no "thresholds" among the counts.

    Args:
      kind: one of `classification_report.KINDS`.
      labels: the labels' names.
      counted: the values of `classification_report.counts`.
    """
    if report.THRESHOLDS not in counted:
        return []
    tables = "\n".join(report.lines(kind, labels, counted)).split("\n\n")
    values = [_table(f"report/{name}", table) for name, table in zip(_TABLES, tables, strict=True)]
    for place, label in enumerate(labels):
        name = f"precision_recall/{report.cell(label)}"
        values.append(_curve(name, *counted[report.THRESHOLDS][:, place].T))
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


def _curve(tag, without, with_label):
    """Returns the curve of a label.

    Args:
      tag: its tag.
      without, with_label: float64 [T], the numbers of examples by the last threshold that the
        label's probability reaches.
    """
    false_positives, true_positives = (np.cumsum(n[::-1])[::-1] for n in (without, with_label))
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


def _share(part, whole):
    whole = np.broadcast_to(whole, part.shape)
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _curve_data(num_thresholds):
    """Returns what the plugin wants to know: a message whose field 2 is the number of thresholds.

    A whole number in a message has seven bits in a byte, the lowest first.
    """
    data, rest = bytes([2 << 3]), num_thresholds
    while rest > 127:
        data, rest = data + bytes([128 | rest & 127]), rest >> 7
    return data + bytes([rest])


def _value(tag, tensor, plugin, content=b""):
    value = tf.Summary.Value(tag=tag, tensor=tensor)
    value.metadata.plugin_data.plugin_name = plugin
    value.metadata.plugin_data.content = content
    return value
