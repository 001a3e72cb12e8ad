"""Results of benchmarks as rows of CSV files."""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
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
