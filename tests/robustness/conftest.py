import commands
import pytest
import scripts


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Returns a directory with what the arguments of `commands` name."""
    folder = tmp_path_factory.mktemp("inputs")
    commands.write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns directories with data for each script, by its name."""
    return scripts.write_data(tmp_path_factory)
