"""The example files of `config` and of docs/steps.md: `lint` finds nothing wrong with them, and their own tests pass;
neither needs a server.
"""

import re
import runpy

import pytest

from correlator.cli import main
from correlator.testing.crashtest.levels import opened
from tests.crash.projects import assert_holds_at
from tests.pipeline.conftest import CONFIG
from tests.pipeline.protos import compiled

STEPS = CONFIG.parent / "docs" / "steps.md"
_EXAMPLE = re.compile(r"^```(?:yaml|py|proto)?\n(?:#|//) (?:FILE )?(\S+\.\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROTOC = "protoc --include_imports --descriptor_set_out=shop.desc shop.proto"

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


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("flights.yaml", "test_every_late_departure_is_reported_in_order"),
        ("weather.yaml", "test_departures_in_bad_weather_are_those_of_plain_python"),
        ("payments.yaml", "test_each_order_is_paid_or_unpaid_and_none_is_both"),
        ("pulsar-to-rabbitmq.yaml", "test_each_order_is_shipped_or_goes_back_to_the_shop"),
        ("spark-to-lake.yaml", "test_each_order_of_more_than_nothing_becomes_one_row"),
        ("outbox-to-lake.yaml", "test_each_departure_that_was_not_cancelled_becomes_one_row"),
    ],
)
def test_the_crash_tests_of_the_examples_hold(file, name, monkeypatch):
    monkeypatch.setenv("RABBITMQ_PASSWORD", "guest")
    found = runpy.run_path(str(CONFIG / "test_pipelines.py"))
    body = found[name].__wrapped__
    with opened("sim", CONFIG / file) as level:
        assert_holds_at(level, body, singles=10, drawn=4)


def test_the_examples_of_the_page_of_steps_pass_their_tests(executed, tmp_path):
    examples = [(tmp_path / name, text) for name, text in _EXAMPLE.findall(STEPS.read_text())]
    for path, text in examples:
        # For Spark, which runs already, a relative path counts from the directory in which it began.
        path.write_text(text.replace("{file: ", f"{{file: {tmp_path}/"))
        path.chmod(0o600)
    assert f"\n{_PROTOC}\n" in STEPS.read_text()
    compiled((tmp_path / "shop.proto").read_text(), tmp_path).rename(tmp_path / "shop.desc")
    files = [path for path, _ in examples if path.suffix == ".yaml"]
    assert len(files) > 10
    for file in files:
        status, out = executed("lint", file)
        assert status == 0, f"{file.name}: {out}"
        status, out = executed("test", file)
        assert (status, out.count("ok ")) == (0, file.read_text().count("    given:")), f"{file.name}: {out}"
