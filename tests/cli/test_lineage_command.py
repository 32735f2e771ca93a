"""`lineage`: from a send to its cause, and from a message to what came of it."""

import json

import pytest

from tests.cli.commands import assert_fails, run, write
from tests.cli.conftest import ENGINE, fill


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """After a run of ten trades with an input log."""
    place = fill(tmp_path_factory.mktemp("life"))
    write(place / "recording.yaml", [ENGINE, "input_log: input.log"])
    assert run("run", "recording.yaml", cwd=place).returncode == 0
    return place


def lines(place, *arguments):
    result = run("lineage", "input.log.1", "--json", *arguments, cwd=place)
    assert (result.returncode, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


def numbers(found):
    return [
        (one["input"]["number"], [send["number"] for call in one.get("calls", ()) for send in call["sends"]])
        for one in found
    ]


def test_from_a_send_to_its_cause_and_back(recorded):
    everything = lines(recorded, "--config", "recording.yaml")
    assert sum(len(call.get("sends", ())) for one in everything for call in one.get("calls", ())) == 10
    (cause,) = lines(recorded, "--sender", "out", "--number", "4")
    assert numbers([cause]) == [(cause["input"]["number"], [4])]
    assert cause in everything
    assert numbers(lines(recorded, "--receiver", "trades", "--number", str(cause["input"]["number"]))) == numbers(
        [cause]
    )
    assert lines(recorded, "--receiver", "trades", "--id", cause["input"]["id"]) == [cause]
    assert lines(recorded, "--sender", "out", "--number", "11") == []
    assert lines(recorded, "--receiver", "trades", "--key", "none") == []
    assert cause["calls"][0]["handler"] == "positions:Positions.trade"


def test_as_text(recorded):
    result = run("lineage", "input.log.1", "--sender", "out", "--number", "4", cwd=recorded)
    (cause,) = lines(recorded, "--sender", "out", "--number", "4")
    taken = cause["input"]
    assert result.stdout.splitlines() == [
        f"{cause['line']} message {taken['number']} of trades (id {taken['id']}) in context main",
        "  positions:Positions.trade",
        "    gave message 4 to sender out, for queue:out",
    ]


def test_a_life_without_a_store_has_no_checkpoints_to_tell_of(tmp_path):
    place = fill(tmp_path)
    fleeting = ENGINE.replace("store: sqlite:///store/trades.db\n", "").replace("EXACTLY_ONCE", "BEST_EFFORT")
    write(place / "fleeting.yaml", [fleeting, "input_log: input.log"])
    module = place / "positions.py"
    module.write_text(module.read_text().replace(", persistent=True", ""))
    assert run("run", "fleeting.yaml", cwd=place).returncode == 0
    found = run("lineage", "input.log.1", "--sender", "out", "--number", "4", cwd=place).stdout.splitlines()
    assert found[0].endswith("in context main")
    assert found[2] == "    gave message 4 to sender out, for queue:out"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--number", "1"),
        ("--key", "a"),
        ("--id", "1"),
        ("--sender", "out", "--receiver", "trades"),
        ("--sender", "out", "--id", "1"),
    ],
)
def test_options_that_do_not_fit_together(recorded, arguments):
    assert_fails(run("lineage", "input.log.1", *arguments, cwd=recorded), "E2004", 2, "correlator lineage")


@pytest.mark.parametrize(("option", "name", "near"), [("--sender", "outt", "out"), ("--receiver", "trade", "trades")])
def test_a_name_that_the_log_does_not_know_is_refused(recorded, option, name, near):
    failed = run("lineage", "input.log.1", option, name, cwd=recorded)
    assert_fails(failed, "E2004", 2, f"correlator lineage {option}: '{name}'", f"Did you mean '{near}'?")


def test_other_code_and_other_files_are_refused(recorded):
    assert_fails(run("lineage", "nothing.log", cwd=recorded), "E2041", 2)
    assert_fails(run("lineage", "engine.yaml", cwd=recorded), "E4320", 6)
