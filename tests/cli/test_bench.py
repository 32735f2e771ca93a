"""`correlator bench`: the engine of a file on messages in memory, with figures; the user's store stays as it is."""

import json

import pytest

from correlator.testing.bench import STAGES, Figures
from tests.cli.commands import assert_fails, run, write
from tests.cli.conftest import ENGINE, trade

TESTED = """
name: tested
connections: {broker: {type: embedded}}
receivers:
  - {id: in, connection: broker, destination: "topic:in", reliability: BEST_EFFORT}
senders:
  - {id: out, connection: broker, destination: "queue:out", reliability: BEST_EFFORT, call: {function: "os:abort"}}
bridges:
  - {name: through, from: [in], to: [out]}
tests:
  - name: one
    given: ['{"a": 1}', {receiver: in, body: '{"a": 2}'}]
    then: []
"""


def test_an_engine_is_measured_and_nothing_of_the_user_is_touched(place):
    write(place / "many.jsonl", [trade(number) for number in range(300)])
    before = sorted(place.rglob("*"))
    command = ("bench", "engine.yaml", "--messages", "queue:trades.jsonl=many.jsonl", "--number", "400", "--json")
    result = run(*command, cwd=place)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert (figures["messages"], figures["duplicates"], figures["sent"]) == (400, 100, 300)
    assert "warning: 100 of 400 messages were dropped as duplicates" in result.stderr
    assert [*figures["cpu_us"]] == [*STAGES]
    assert figures["cpu_us"]["handle"] > 0
    assert figures["commits"] >= 2
    assert figures["disk_limit"] > 0
    assert figures["limit"].split(":")[0] in ("the code", "the disk", "neither")
    assert [one for one in sorted(place.rglob("*")) if "__pycache__" not in one.parts] == before


def test_messages_of_the_tests_of_a_file_without_a_store(tmp_path):
    write(tmp_path / "engine.yaml", [TESTED])
    result = run("bench", "engine.yaml", "--number", "100", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "100 in " in result.stdout
    assert "100 sent" in result.stdout
    assert "commits" not in result.stdout
    assert [one.name for one in tmp_path.iterdir()] == ["engine.yaml"]


def test_a_file_without_messages_and_one_with_another_store(place):
    assert_fails(run("bench", "engine.yaml", cwd=place), "E1070", 2, "--messages DESTINATION=FILE")
    write(place / "engine.yaml", [ENGINE.replace("sqlite:///store/trades.db", "postgresql://u:geheim99@127.0.0.1:1/d")])
    command = ("bench", "engine.yaml", "--messages", "queue:trades.jsonl=data/trades.jsonl")
    refused = run(*command, cwd=place)
    assert_fails(refused, "E1071", 2, "SQLite")
    assert "geheim99" not in refused.stderr


def figures(**changes):
    values = {"messages": 1000, "duplicates": 0, "dead_letters": 0, "sent": 1000, "seconds": 1.0, "commits": 10}
    spent = {"take": 100.0, "handle": 500.0, "commit": 100.0, "send": 100.0, "other": 0.0}
    return Figures(**{**values, "cpu_us": spent, "commit_s": 0.1, "disk_commits_per_second": 500.0, **changes})


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, "the code: a core is busy 80% of the time, most of it with 'handle'"),
        ({"commit_s": 0.95}, "the disk: a commit is under way 95% of the time"),
        ({"commit_s": 0.7}, "the code: a core is busy 80% of the time, most of it with 'handle'"),
        ({"seconds": 10.0}, "neither: a core and the disk are idle most of the time; give a larger --number"),
    ],
)
def test_what_limits(changes, limit):
    assert figures(**changes).limit == limit


def test_the_disk_alone():
    assert figures().disk_limit == 50_000
    assert figures(commits=0, commit_s=0.0).disk_limit is None
