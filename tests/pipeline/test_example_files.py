"""The example files of `config`: `lint` finds nothing wrong with them, and their own tests pass; neither needs a server."""

import pytest

from correlator.cli import main
from tests.pipeline.conftest import CONFIG

FILES = sorted(file for file in CONFIG.glob("*.yaml"))


@pytest.fixture
def executed(session, tmp_path, monkeypatch, capsys):
    """Runs a command in this process, which has Spark already: its exit status and its standard output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RABBITMQ_PASSWORD", "unused")

    def executed(*arguments):
        status = main.execute([str(argument) for argument in arguments])
        return status, capsys.readouterr().out

    return executed


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_nothing_is_wrong_with_an_example(executed, file):
    status, out = executed("lint", file)
    assert status == 0, out


@pytest.mark.parametrize("file", [one for one in FILES if "    given:" in one.read_text()], ids=lambda file: file.stem)
def test_the_tests_of_an_example_pass(executed, file):
    status, out = executed("test", file)
    assert (status, out.count("ok ")) == (0, file.read_text().count("    given:")), out
