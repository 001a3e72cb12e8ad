"""Results of benchmarks as rows of CSV files."""

import csv
import os
import statistics
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def read(path: str) -> list[dict[str, Any]]:
    """Returns the rows of a file by column, as texts; an empty list if the file is not there."""
    if not os.path.exists(path):
        return []
    with open(path, newline="", encoding="utf-8") as reader:
        return list(csv.DictReader(reader))


def write(path: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a file of rows anew; its directory is made."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as writer:
        table = csv.DictWriter(writer, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


class Results:
    """Holds the rows of a CSV file, and adds measurements that are missing; the first `num_keys`
    columns say what is measured. Threads may share it."""

    def __init__(self, path: str, columns: Sequence[str], num_keys: int):
        self.rows = read(path)
        self._path, self._columns, self._keys = path, columns, columns[:num_keys]
        self._lock = threading.Lock()

    def find(self, *key: Any) -> list[dict[str, str]]:
        """Returns the rows whose first columns have these values."""
        wanted = [*zip(self._keys, map(str, key), strict=False)]
        return [row for row in self.rows if all(row[name] == value for name, value in wanted)]

    def row(self, key: Sequence[Any], measure: Callable[..., Mapping[str, Any]]) -> dict[str, str]:
        """Returns a row; if it is missing, `measure(*key)` returns its other columns."""
        for row in self.find(*key):
            return row
        row = {**dict(zip(self._keys, key, strict=True)), **measure(*key)}
        row = {name: str(row[name]) for name in self._columns}
        with self._lock:
            self.rows.append(row)
            write(self._path, self._columns, self.rows)
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        return row


def by_keys(rows: Iterable[Mapping[str, Any]], *names: str) -> dict[tuple, list[Mapping[str, Any]]]:
    """Returns the values of these columns -> the rows that have them, in the order of the rows."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def numbers(rows: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """Returns the values of a column as numbers."""
    return [float(row[name]) for row in rows]


def markdown(heads: str, rows: Iterable[Iterable[Any]]) -> str:
    """Returns a table in Markdown; bars are between its heads, as in its lines."""
    lines = [" | ".join(map(str, row)) for row in rows]
    rule = "|" + "---|" * len(heads.split(" | "))
    return "\n".join([f"| {heads} |", rule, *(f"| {line} |" for line in lines)])


def spread(values: Sequence[float]) -> str:
    """Returns the median of values and, in parentheses, the least and the greatest."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def span(values: Sequence[float]) -> str:
    """Returns the least and the greatest of values, as whole numbers."""
    return f"{min(values):.0f} to {max(values):.0f}"
