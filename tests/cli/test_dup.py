"""`correlator dup explain`: what the store knows of an id."""

import json

import pytest

from correlator.cli import main
from tests.cli.commands import assert_fails, run, write
from tests.cli.conftest import ENGINE


@pytest.fixture
def done(after_a_run, monkeypatch):
    """After ten trades; the third came twice."""
    place = after_a_run(b"")
    monkeypatch.chdir(place)
    return place


def explained(capsys, *arguments):
    assert main.execute(["dup", "explain", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


@pytest.mark.parametrize("target", ["engine.yaml", "sqlite:///store/trades.db"])
def test_a8_3_an_id_in_its_window(target, done, capsys):
    (found,) = explained(capsys, target, "4")
    assert (found["domain"], found["duplicate"]) == ("files:queue:trades.jsonl", True)
    (seen,) = found["seen"]
    assert (seen["receiver"], seen["batch"], seen["source"]) == ("trades", 1, "trades.jsonl")
    assert (seen["place"], seen["position"], seen["of"]) == ("window", 4, 10)
    assert seen["newer_ids_until_it_leaves"] == 1994


def test_a8_15_a_repeat_was_seen_twice(done, capsys):
    (found,) = explained(capsys, "engine.yaml", "3")
    assert [one["place"] for one in found["seen"]] == ["time_queue", "window"]


def test_the_windows_are_those_of_the_file(done, capsys):
    write(
        done / "engine.yaml", [ENGINE.replace("senders:", "duplicate_detection: {per_source_window_size: 4}\nsenders:")]
    )
    (found,) = explained(capsys, "engine.yaml", "0")
    assert found["per_source_window_size"] == 4
    assert [one["place"] for one in found["seen"]] == ["time_queue"]
    assert "stays until that queue gets an id received after 120." in found["seen"][0]["leaves"]


def test_an_id_that_nobody_has_seen(done):
    result = run("dup", "explain", "engine.yaml", "77", cwd=done)
    assert result.stdout == "77 in domain files:queue:trades.jsonl: would be accepted\n"
    assert (result.returncode, result.stderr) == (0, "")


def test_as_text(done):
    lines = run("dup", "explain", "engine.yaml", "4", cwd=done).stdout.splitlines()
    assert lines[0] == "4 in domain files:queue:trades.jsonl: would be dropped as a duplicate"
    assert "by receiver trades in its batch 1 from source trades.jsonl" in lines[1]
    assert "in the window of its source, place 4 of 10; 1994 newer ids" in lines[2]


def test_a_domain_that_received_nothing_yet_is_known_by_the_file(done, capsys):
    more = ENGINE.replace(
        "senders:", "  - {id: more, connection: broker, destination: 'queue:more', reliability: EXACTLY_ONCE}\nsenders:"
    )
    write(done / "engine.yaml", [more])
    (found,) = explained(capsys, "engine.yaml", "4", "--domain", "broker:queue:more")
    assert found["duplicate"] is False


@pytest.mark.parametrize("domain", ["files:queue:trade.jsonl", "nothing"])
def test_a_domain_that_is_not_there(domain, done):
    hint = "Did you mean 'files:queue:trades.jsonl'?" if "trade" in domain else "Known: files:queue:trades.jsonl"
    result = run("dup", "explain", "engine.yaml", "4", "--domain", domain, cwd=done)
    assert_fails(result, "E2024", 2, repr(domain), hint)


def test_looking_makes_no_store(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    assert main.execute(["dup", "explain", "engine.yaml", "4"]) == 3
    assert capsys.readouterr().err.startswith("E3010 ")
    assert list((place / "store").iterdir()) == []
