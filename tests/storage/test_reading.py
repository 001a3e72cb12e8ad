"""Texts on remote file systems: whose errors are whose."""

import pytest

from bert_estimator.storage import reading


@pytest.mark.parametrize(
    "error", [FileNotFoundError("other.txt"), ImportError("x"), ValueError("a protocol"), OSError()]
)
def test_an_error_of_the_block_is_not_the_file_s(tmp_path, error):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(type(error)) as raised, reading.opened(f"file://{tmp_path}/a.txt") as file:
        assert file.read() == b"text"
        raise error
    assert raised.value is error


def test_a_file_that_is_not_there_is_named(tmp_path):
    url = f"file://{tmp_path}/a.txt"
    with pytest.raises(ValueError, match=r"a\.txt: cannot be read"), reading.opened(url):
        pass
