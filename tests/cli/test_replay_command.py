"""`replay`: what was recorded is done again, compared, and nothing is opened (docs/rules.md, section A7)."""

import json

import pytest

from tests.cli.commands import assert_fails, run, write
from tests.cli.conftest import ENGINE, trade


@pytest.fixture
def recorded(place):
    """After a run of ten trades with an input log; neither the brokers' files nor the stores are there any more."""
    write(place / "recording.yaml", [ENGINE, "input_log: input.log"])
    assert run("run", "recording.yaml", cwd=place).returncode == 0
    for name in ("trades.db", "broker.db"):
        for path in (place / "store").glob(f"{name}*"):
            path.unlink()
    (place / "data" / "trades.jsonl").unlink()
    return place


def outputs(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a7_1_a_replay_without_connections_configuration_or_store(recorded):
    result = run("replay", "input.log.1", "--out", "outputs.jsonl", "--json", cwd=recorded)
    assert (result.returncode, result.stderr) == (0, "")
    (row,) = json.loads(result.stdout)
    assert (row["ended"], row["events"] >= 10, row["outputs"], row["dead letters"]) == ("in order", True, 10, 0)
    assert [json.loads(one["body"]) for one in outputs(recorded / "outputs.jsonl")] == [
        json.loads(trade(number)) for number in range(10)
    ]
    assert [one["sequence"] for one in outputs(recorded / "outputs.jsonl")] == list(range(1, 11))
    assert [path.name for path in (recorded / "store").iterdir() if path.suffix == ".db"] == []


def test_a7_1_with_the_configuration_and_what_is_expected(recorded):
    assert run("replay", "input.log.1", "--out", "outputs.jsonl", cwd=recorded).returncode == 0
    arguments = ("replay", "input.log.1", "--config", "recording.yaml", "--expect", "outputs.jsonl")
    result = run(*arguments, cwd=recorded)
    assert (result.returncode, result.stderr) == (0, "")
    lines = outputs(recorded / "outputs.jsonl")
    lines[4]["body"] = "something else"
    write(recorded / "outputs.jsonl", [json.dumps(line) for line in lines])
    assert_fails(run(*arguments, cwd=recorded), "E2044", 6, "outputs.jsonl:5", "expected '")
    write(recorded / "outputs.jsonl", [json.dumps(line) for line in lines[:4]])
    assert_fails(run(*arguments, cwd=recorded), "E2044", 6, "expected 'nothing'")


def test_a7_1_the_file_with_what_is_expected_is_not_overwritten(recorded):
    write(recorded / "outputs.jsonl", ['{"what": "other messages"}'])
    before = (recorded / "outputs.jsonl").read_bytes()
    result = run("replay", "input.log.1", "--out", "./outputs.jsonl", "--expect", "outputs.jsonl", cwd=recorded)
    assert_fails(result, "E2004", 2, "--out", "the same file as --expect")
    assert (recorded / "outputs.jsonl").read_bytes() == before
    result = run("replay", "input.log.1", "--out", "new.jsonl", "--expect", "new.jsonl", cwd=recorded)
    assert_fails(result, "E2004", 2, "--out", "the same file as --expect")


def test_a7_2_connections_are_refused(recorded):
    result = run("replay", "input.log.1", "--allow-connections", cwd=recorded)
    assert_fails(result, "E2042", 2, "received and sent already")


def test_a7_1_other_code_is_noticed(recorded):
    code = (recorded / "positions.py").read_text().replace(", 0) + 1", ", 0) + 2")
    write(recorded / "positions.py", [code])
    assert_fails(run("replay", "input.log.1", cwd=recorded), "E4321", 6, "the replay differs after checkpoint")


def test_a7_1_another_configuration_is_refused(recorded):
    write(recorded / "other.yaml", [ENGINE.replace("queue:out", "queue:elsewhere")])
    assert_fails(run("replay", "input.log.1", "--config", "other.yaml", cwd=recorded), "E4322", 6)


@pytest.mark.parametrize(
    ("arguments", "code", "status"),
    [
        (("replay", "nothing.log"), "E2041", 2),
        (("replay", "engine.yaml"), "E4320", 6),
        (("replay",), "E2005", 2),
        (("replay", "input.log.1", "--expect", "nothing.jsonl"), "E2041", 2),
        (("replay", "input.log.1", "--expect", "positions.py"), "E2041", 2),
        (("replay", "input.log.1", "--out", "nowhere/outputs.jsonl"), "E2041", 2),
    ],
)
def test_a7_1_bad_arguments(recorded, arguments, code, status):
    assert_fails(run(*arguments, cwd=recorded), code, status)
