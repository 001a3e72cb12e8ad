"""Tests the tables of tf.contrib.learn.datasets.base."""

import numpy as np
import pytest

from bert_estimator.legacy.stand_ins import data


def test_with_and_without_a_header(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("2,2,a,b\n1.5,2,1\n3,4.5,0\n")
    dataset = data.load_csv_with_header(str(path), np.int64, np.float32)
    np.testing.assert_array_equal(dataset.data, np.array([[1.5, 2], [3, 4.5]], np.float32))
    assert dataset.data.dtype == np.float32 and dataset.target.tolist() == [1, 0]
    path.write_text("7,1.5\n8,2.5\n")
    dataset = data.load_csv_without_header(str(path), np.int64, np.float32, target_column=0)
    assert dataset.target.tolist() == [7, 8] and dataset.data.tolist() == [[1.5], [2.5]]


def test_a_header_that_does_not_fit(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("3,1,a\n1,2\n")
    with pytest.raises(ValueError, match="its first line says 3 rows; it has 1"):
        data.load_csv_with_header(str(path), np.int64, np.float32)


def test_a_file_is_downloaded_once(tmp_path):
    source = tmp_path / "source.csv"
    source.write_text("1,2\n")
    for _ in range(2):
        path = data.maybe_download("t.csv", str(tmp_path / "data"), source.as_uri())
        source.unlink(missing_ok=True)
        with open(path) as file:
            assert file.read() == "1,2\n"
