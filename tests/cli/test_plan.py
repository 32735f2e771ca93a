"""`correlator plan`: what a start would say, without starting (rules A1.7 to A1.13)."""

import json

import pytest

from correlator import Engine
from correlator.cli import main, plan
from correlator.cli.loading import importable
from correlator.core.differences import Difference, FieldChange, Verdict
from correlator.core.registry import Rule
from correlator.settings import ReceiverSettings
from tests.cli.commands import assert_fails, run, write
from tests.cli.conftest import ENGINE, MONITOR


@pytest.fixture
def done(after_a_run, monkeypatch):
    """After a first run."""
    place = after_a_run(b"")
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def planned(capsys):
    """Runs `plan --json`: its parts by kind and name, exit status, standard error."""

    def planned(*options):
        status = main.execute(["plan", "engine.yaml", "--json", *options])
        out, err = capsys.readouterr()
        return {f"{one['kind']} {one['name']}": one for one in json.loads(out)}, status, err

    return planned


def rewrite(place, *replacements, monitor=MONITOR):
    text = ENGINE
    for before, after in replacements:
        assert before in text
        text = text.replace(before, after)
    write(place / "engine.yaml", [text])
    write(place / "positions.py", [monitor])


def test_a1_9_before_the_first_start_everything_is_new(place, planned, monkeypatch):
    monkeypatch.chdir(place)
    parts, status, err = planned()
    assert {one["verdict"] for one in parts.values()} == {"new"}
    names = ("instance trades", "receiver trades", "sender out", "context main", "monitor Positions")
    assert {*names, "delivery trades to main"} == parts.keys()
    assert (status, err) == (0, "")
    assert list((place / "store").iterdir()) == []


def test_a1_11_nothing_changed(done, planned):
    parts, status, err = planned()
    assert {one["verdict"] for one in parts.values()} == {"unchanged"}
    assert parts["domain files:queue:trades.jsonl"]["note"].startswith(
        "10 of 11 stored ids are remembered by windows of 2000"
    )
    assert (status, err) == (0, "")


def test_a1_11_another_template_of_ids_makes_the_stored_ones_worthless(done, planned):
    rewrite(done, ("${body.number}", "${body.account}-${body.number}"))
    parts, status, _ = planned()
    assert (status, parts["receiver trades"]["verdict"]) == (0, "changed")
    assert parts["receiver trades"]["note"] == (
        "stored ids are of another template: repeats of messages received before are not recognised"
    )
    assert parts["domain files:queue:trades.jsonl"]["note"].endswith(
        "; receiver trades has another template, and does not recognise its stored ids"
    )


REFUSED = {
    "a part that is removed": (("  - {id: out,", "  - {id: other,"), "sender out", "E4301"),
    "another reliability": (
        ('queue:out", reliability: EXACTLY_ONCE', 'queue:out", reliability: AT_LEAST_ONCE'),
        "sender out",
        "E4302",
    ),
    "another destination": (("queue:trades.jsonl", "queue:others.jsonl"), "receiver trades", "E4302"),
    "monitor": (('  - {type: "positions:Positions"}', "  - {type: 'positions:Other'}"), "monitor Positions", "E4202"),
    "context": (('positions:Positions"', 'positions:Positions", context: b'), "monitor Positions", "E4313"),
    "instance": (("name: trades", "name: others"), "instance others", "E4310"),
}
OTHER = MONITOR + '\n\nclass Other(Positions, persistent=True):\n    """Another one."""\n'


@pytest.mark.parametrize(("change", "part", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_a1_7_to_a1_12_what_a_start_refuses(change, part, code, done, planned, capsys):
    rewrite(done, change, monitor=OTHER)
    before = (done / "store" / "trades.db").read_bytes()
    parts, status, err = planned()
    assert parts[part]["verdict"] == "refused"
    assert parts[part]["refusals"][0]["code"] == code
    assert parts[part]["refusals"][0]["todo"]
    assert status == 6
    assert (done / "store" / "trades.db").read_bytes() == before
    assert main.execute(["run", "engine.yaml", "--log-level", "ERROR"]) == 6
    assert set(capsys.readouterr().err.strip().splitlines()) <= set(err.strip().splitlines())


def test_a1_11_a_receiver_that_may_move(place, planned, monkeypatch, capsys):
    monkeypatch.chdir(place)
    explicit = ('"${body.number}"}', '"${body.number}", dup_detection_domain_id: mine}')
    rewrite(place, explicit)
    assert main.execute(["run", "engine.yaml", "--log-level", "ERROR"]) == 0
    capsys.readouterr()
    rewrite(place, explicit, ("queue:trades.jsonl", "queue:others.jsonl"))
    parts, status, _ = planned()
    assert (parts["receiver trades"]["verdict"], parts["receiver trades"]["rule"]) == ("moved", Rule.EXPLICIT)
    change = {"field": "destination", "before": "queue:trades.jsonl", "after": "queue:others.jsonl"}
    assert parts["receiver trades"]["changes"] == [change]
    assert status == 0


def test_a9_18_a_plan_is_that_of_a_run_with_the_same_settings(done, planned):
    destination = "--set=receivers[0].destination=queue:others.jsonl"
    parts, status, err = planned(destination)
    assert (parts["receiver trades"]["verdict"], parts["receiver trades"]["rule"]) == ("refused", Rule.DEFAULT_DOMAIN)
    assert status == 6
    assert "Set dup_detection_domain_id: 'files:queue:trades.jsonl'" in err
    explicit = "--set=receivers[0].dup_detection_domain_id=files:queue:trades.jsonl"
    parts, status, _ = planned(destination, explicit)
    assert (parts["receiver trades"]["verdict"], status) == ("moved", 0)


def test_another_context_is_given_what_comes_from_then_on(done, planned):
    monitors = '  - {type: "positions:Positions"}'
    rewrite(done, (monitors, f'{monitors}\n  - {{type: "positions:Other", context: b}}'), monitor=OTHER)
    parts, status, _ = planned()
    assert parts["delivery trades to main"]["verdict"] == "unchanged"
    assert parts["delivery trades to b"]["verdict"] == "new"
    assert parts["delivery trades to b"]["note"] == "gets the messages after number 10"
    assert status == 0


def test_a_context_that_has_not_handled_all_stays(place, planned, monkeypatch, capsys):
    """Given a context whose monitor fails at the first trade, when it is taken from the file, then no start is possible."""
    monkeypatch.chdir(place)
    monitors = '  - {type: "positions:Positions"}'
    fails = """

class Fails(Monitor):
    @on(Trade)
    def trade(self, trade: Trade) -> None:
        raise ValueError(trade.number)
"""
    rewrite(place, (monitors, f'{monitors}\n  - {{type: "positions:Fails", context: b}}'), monitor=MONITOR + fails)
    assert run("run", "engine.yaml", cwd=place).returncode == 1
    parts, status, _ = planned()
    assert (parts["delivery trades to b"]["verdict"], status) == ("unchanged", 0)
    rewrite(place)
    parts, status, err = planned()
    assert parts["delivery trades to b"]["verdict"] == "refused"
    (refusal,) = parts["delivery trades to b"]["refusals"]
    assert (refusal["code"], status) == ("E4315", 6)
    assert "has not handled 10 messages of receiver 'trades', and the configuration has no such context" in err
    assert main.execute(["run", "engine.yaml", "--log-level", "ERROR"]) == 6
    assert set(capsys.readouterr().err.strip().splitlines()) <= set(err.strip().splitlines())


def test_letters_of_what_nobody_handles_begin_now(done, planned):
    parts, status, _ = planned("--set=receivers[0].unhandled=dead_letter")
    assert parts["receiver trades"]["note"].startswith("messages that are received from now on become dead letters")
    assert status == 0


def test_a1_13_another_broker(done, planned):
    rewrite(done, ("store/broker.db", "store/elsewhere.db"))
    parts, status, _ = planned()
    assert {one["verdict"] for one in parts.values()} == {"unchanged"}
    assert status == 0


def test_windows_may_change_and_it_says_what_that_does(place, planned, monkeypatch):
    """All but what the newest batches hold until they are surely acknowledged."""
    monkeypatch.chdir(place)
    batches = ('"${body.number}"}', '"${body.number}", max_batch_size: 2}')
    rewrite(place, batches)
    assert run("run", "engine.yaml", cwd=place).returncode == 0
    rewrite(place, batches, ("senders:", "duplicate_detection: {per_source_window_size: 2, expiry_time: 0s}\nsenders:"))
    parts, status, _ = planned()
    note = parts["domain files:queue:trades.jsonl"]["note"]
    assert note.endswith("remembered by windows of 2 ids a source and 0 s")
    assert int(note.partition(" ")[0]) < 6
    assert status == 0


def test_state_that_no_longer_fits(done, planned):
    rewrite(done, monitor=MONITOR.replace("counts", "numbers"))
    parts, status, err = planned()
    assert parts["state Positions 0"]["refusals"][0]["code"] == "E4203"
    assert status == 6
    assert "E4203 monitor Positions" in err


def test_values_of_a_table_that_no_longer_fit(place, planned, monkeypatch):
    monkeypatch.chdir(place)
    with_table = MONITOR.replace("import Monitor,", "import Monitor, StateTable,").replace(
        "dict[str, int] = {}", "StateTable[str, int]"
    )
    rewrite(place, monitor=with_table)
    assert run("run", "engine.yaml", cwd=place).returncode == 0
    rewrite(place, monitor=with_table.replace("StateTable[str, int]", "StateTable[str, str]"))
    parts, status, err = planned()
    assert (status, parts["state Positions 0"]["refusals"][0]["code"]) == (6, "E4203")
    assert "E4203 table:Positions#0.counts" in err
    assert err.endswith(
        "Declare a type that takes the stored values, too: a union, or new fields with default values.\n"
    )
    refused = run("run", "engine.yaml", "--log-level", "ERROR", cwd=place)
    assert (refused.returncode, refused.stderr) == (6, err)
    rewrite(place, monitor=with_table.replace("StateTable[str, int]", "StateTable[str, int | str]"))
    assert planned()[1] == 0


def test_a_store_that_went_back(done, planned):
    (done / "store" / "trades.db.witness").write_text('{"name": "trades", "checkpoint": 1000}')
    parts, status, _ = planned()
    assert parts["instance trades"]["refusals"][0]["code"] == "E4311"
    assert status == 6


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("options.token", "geheim99", "***"),
        ("options.url", "amqp://u:geheim99@h/", "***"),
        ("max_batch_size", "7", "7"),
    ],
)
def test_secrets_of_the_past_are_hidden(field, value, shown):
    """An older secret stands in the store only, so the file's secrets do not contain it."""
    change = FieldChange(field, value, value)
    row = Difference(kind="receiver", name="r", verdict=Verdict.CHANGED, changes=[change])
    assert plan._as_json(row, str)["changes"] == [{"field": field, "before": shown, "after": shown}]
    assert plan._row(row, str)[3] == f"{field}: {shown} -> {shown}"


def test_what_only_the_connector_of_a_dynamic_part_refuses(place, planned, monkeypatch, capsys):
    """Given a receiver that code added, when its connection has another type that lacks its option, then no start is possible."""
    monkeypatch.chdir(place)
    extra = ("broker: {type", "extra: {type: file, path: data}\n  broker: {type")
    rewrite(place, extra)
    with importable(place / "engine.yaml"), Engine.from_yaml("engine.yaml") as engine:
        engine.add_receiver(
            ReceiverSettings(id="late", connection="extra", destination="queue:late.jsonl", options={"follow": True})
        )
    capsys.readouterr()
    parts, status, _ = planned()
    assert (parts["receiver late"]["verdict"], status) == ("unchanged", 0)
    rewrite(place, (extra[0], extra[1].replace("type: file, path: data", 'type: embedded, store: "sqlite:///b.db"')))
    before = (place / "store" / "trades.db").read_bytes()
    parts, status, err = planned()
    assert (parts["receiver late"]["refusals"][0]["code"], status) == ("E4305", 6)
    assert ("E4305 receiver 'late'" in err, "follow" in err) == (True, True)
    assert ((place / "store" / "trades.db").read_bytes(), (place / "b.db").exists()) == (before, False)
    assert main.execute(["run", "engine.yaml", "--log-level", "ERROR"]) == 6
    assert set(capsys.readouterr().err.strip().splitlines()) <= set(err.strip().splitlines())


def test_plain_lines(done):
    rewrite(done, ("queue:trades.jsonl", "queue:others.jsonl"))
    result = run("plan", "engine.yaml", cwd=done)
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert lines[0] == ["part", "verdict", "rule", "what"]
    assert ["receiver trades", "refused", Rule.DEFAULT_DOMAIN] in [line[:3] for line in lines]
    assert "destination: queue:trades.jsonl -> queue:others.jsonl" in result.stdout


def test_an_engine_without_a_store_has_nothing_to_compare(place):
    write(place / "engine.yaml", ["name: e"])
    assert_fails(run("plan", "engine.yaml", cwd=place), "E2011", 2)
