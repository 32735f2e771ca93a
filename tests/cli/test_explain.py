"""`correlator explain FILE`: every path of a file with its promise."""

import json
from pathlib import Path

import pytest

from correlator.cli import main
from tests.cli.commands import assert_fails, run, write
from tests.cli.conftest import ENGINE, MONITOR

FLIGHTS = Path(__file__).parents[2] / "config" / "flights.yaml"


def explained(file, capsys, *options):
    assert main.execute(["explain", str(file), "--json", *options]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def test_z9_monitors_may_send_to_every_sender(here, capsys):
    found = explained("engine.yaml", capsys)
    ways = [(one["receiver"], one["through"], one["sender"], one["grade"]) for one in found["paths"]]
    assert ways == [
        ("trades", "context main", "out", "ONCE"),
        ("trades", "context main", "files-default-sender", "MAY_LOSE"),
    ]
    assert found["paths"][1]["weakest"] == "sender 'files-default-sender'"


def test_t70_an_app_controlled_receiver_has_one_context(here, capsys):
    """The first one whose monitors hear of batches to be acknowledged."""
    (here / "desk.py").write_text(
        "from correlator import Message, Monitor, ReceivingSuspended, on\n\n\n"
        "class Watches(Monitor, persistent=True):\n    seen: int = 0\n\n\n"
        "class Acknowledges(Monitor):\n"
        "    @on(Message)\n    def message(self, message):\n        pass\n\n"
        "    @on(ReceivingSuspended)\n    def done(self, notice):\n        self.acknowledge_and_resume(notice.receiver)\n"
    )
    (here / "desk.yaml").write_text(
        "name: desk\nstore: sqlite:///desk.db\nconnections: {local: {type: embedded}}\n"
        'receivers: [{id: in, connection: local, destination: "queue:in", reliability: APP_CONTROLLED, unhandled: ignore}]\n'
        "monitors: [{type: desk:Watches}, {type: desk:Acknowledges, context: second},"
        " {type: desk:Acknowledges, context: third}]\n"
    )
    assert {one["through"] for one in explained("desk.yaml", capsys)["paths"]} == {"context second"}


def test_z9_pipelines_send_where_their_routes_say(capsys):
    found = explained(FLIGHTS, capsys)
    assert [(one["through"], one["sender"]) for one in found["paths"]] == [
        ("pipeline delays", "delayed"),
        ("pipeline delays", "alerts"),
    ]


def test_settings_say_where_they_come_from(here, capsys):
    write(here / "engine.yaml", [ENGINE.replace("senders:", "duplicate_detection: {expiry_time: 5s}\nsenders:")])
    found = {(one["part"], one["name"]): one for one in explained("engine.yaml", capsys)["settings"]}
    windows = [found["duplicate_detection", name] for name in ("per_source_window_size", "expiry_time")]
    assert [(one["value"], one["source"]) for one in windows] == [("2000", "default"), ("5 s", "file")]
    domain = found["receiver trades", "dup_detection_domain_id"]
    assert (domain["value"], domain["source"]) == ("files:queue:trades.jsonl", "from connection and destination")
    assert found["receiver trades", "unique_message_id"]["source"] == "file"
    assert found["receiver trades", "message_source_id"]["source"] == "default"
    assert ("sender files-default-sender", "default sender") in found


def test_a_default_sender_of_an_engine_without_monitors_is_said_to_be_unused(place, capsys):
    write(
        place / "pipelines.yaml",
        [
            "name: p\nconnections: {files: {type: file, path: .}, out: {type: file, path: .}}",
            'receivers: [{id: in, connection: files, destination: "queue:in.jsonl"}]',
            'senders: [{id: out, connection: out, destination: "queue:out.jsonl"}]',
            "pipelines: [{name: copy, from: [in], steps: [{route: out}]}]",
        ],
    )
    settings = explained(place / "pipelines.yaml", capsys)["settings"]
    values = {one["part"]: one["value"] for one in settings if one["name"] == "default sender"}
    assert values == {
        "sender files-default-sender": "not used: only monitors send to a default sender, and there are none"
    }


def test_a9_18_settings_of_the_command_line_are_explained(here, capsys):
    mode = "--set=receivers[0].reliability=AT_LEAST_ONCE"
    assert explained("engine.yaml", capsys, mode)["paths"][0]["grade"] == "MAY_REPEAT"
    window, domain = "--set=duplicate_detection.expiry_time=9s", "--set=receivers[0].dup_detection_domain_id=mine"
    settings = explained("engine.yaml", capsys, window, domain)["settings"]
    found = {(one["part"], one["name"]): (one["value"], one["source"]) for one in settings}
    assert found["duplicate_detection", "expiry_time"] == ("9 s", "command line")
    assert found["receiver trades", "dup_detection_domain_id"] == ("mine", "command line")
    assert found["receiver trades", "unique_message_id"][1] == "file"


def test_monitors_without_persistence_are_named(here, capsys):
    write(here / "positions.py", [MONITOR.replace("Positions(Monitor, persistent=True)", "Positions(Monitor)")])
    (note, _) = explained("engine.yaml", capsys)["paths"][0]["notes"]
    assert note.startswith("State of Positions is not part of checkpoints")


def test_as_text(here):
    result = run("explain", "engine.yaml", cwd=here)
    assert result.stdout.startswith("trades (EXACTLY_ONCE, files) -> context main -> out (EXACTLY_ONCE, broker)\n")
    assert "  Weakest link: receiver 'trades': " in result.stdout
    assert (result.returncode, result.stderr) == (0, "")


def test_a_default_sender_is_no_path_of_the_file_as_text(here):
    """Given a connection without a sender, then nothing alarms: what a crash may lose is lost only if a monitor sends."""
    text = run("explain", "engine.yaml", cwd=here).stdout
    assert "-> files-default-sender" not in text
    paragraph = (
        text[text.index("\nfiles-default-sender (BEST_EFFORT, files)\n") :].split("\n\n")[0].strip().splitlines()
    )
    assert paragraph[1:3] == [
        "  Not used unless a monitor sends to 'files-default-sender': the file has no sender for 'files'.",
        "  If a monitor does: A crash may lose messages.",
    ]
    assert text.count("A crash may lose messages") == 1


WITH_LETTERS = """
name: letters
store: sqlite:///letters.db
connections: {{files: {{type: file, path: .}}, to: {to}}}
receivers: [{{id: in, connection: files, destination: "queue:in.jsonl", reliability: EXACTLY_ONCE}}]
senders:
  - {{id: out, connection: to, destination: "queue:out.jsonl", reliability: EXACTLY_ONCE}}
  - {{id: failed, connection: to, destination: "queue:failed.jsonl", reliability: {mode}}}
bridges: [{{name: copy, from: [in], to: [out]}}]
dead_letter_sender: failed
"""


@pytest.mark.parametrize(
    ("to", "mode", "grade", "needed", "notes"),
    [
        ("{type: embedded}", "EXACTLY_ONCE", "ONCE", [], 1),
        ("{type: rabbitmq}", "EXACTLY_ONCE", "REPEATS_WITH_ID", ["consumers that drop repeats by the id"], 1),
        ("{type: embedded}", "AT_LEAST_ONCE", "MAY_REPEAT", [], 1),
        ("{type: file, path: .}", "EXACTLY_ONCE", "ONCE", [], 2),
    ],
)
def test_the_path_of_dead_letters_that_are_sent(here, capsys, to, mode, grade, needed, notes):
    write(here / "letters.yaml", [WITH_LETTERS.format(to=to, mode=mode)])
    found = explained("letters.yaml", capsys)
    assert [one["sender"] for one in found["paths"]] == ["out"]
    letters = found["dead_letters"]
    assert (letters["sender"], letters["grade"], letters["weakest"]) == ("failed", grade, "sender 'failed'")
    assert letters["needs"] == ["a store", *needed]
    assert len(letters["notes"]) == notes
    assert letters["notes"][-1] == "Dead letters about sends of 'failed' stay in the store"
    assert ("W1543" in letters["notes"][0]) == (notes == 2)


def test_the_path_of_dead_letters_as_text(here):
    write(here / "letters.yaml", [WITH_LETTERS.format(to="{type: embedded}", mode="EXACTLY_ONCE")])
    text = run("explain", "letters.yaml", cwd=here).stdout
    paragraph = text[text.index("dead letters -> ") :].split("\n\n")[0].splitlines()
    assert paragraph == [
        "dead letters -> failed (EXACTLY_ONCE, to)",
        "  No dead letter of the store is lost, and each arrives once.",
        "  Weakest link: sender 'failed': EXACTLY_ONCE, and its broker stores a repeat once.",
        "  Needs: a store.",
        "  Dead letters about sends of 'failed' stay in the store.",
    ]


def test_without_a_sender_dead_letters_have_no_path(here, capsys):
    assert explained("engine.yaml", capsys)["dead_letters"] is None


def test_a_code_is_a_code_and_a_file_is_a_file(here, capsys):
    assert main.execute(["explain", "e1020"]) == 0
    assert capsys.readouterr().out.startswith("E1020 (configuration error): ")
    assert_fails(run("explain", "E99", cwd=here), "E1001", 2, "E99")
    assert_fails(run("explain", "E9999", cwd=here), "E2010", 2)


@pytest.mark.parametrize(
    ("policy", "then"),
    [
        ("warn", "it is acknowledged like any other message and lost; the engine counts it and logs a warning (W5410)"),
        ("dead_letter", "it is acknowledged like any other message, and becomes a dead letter"),
        ("ignore", "it is acknowledged like any other message and lost"),
    ],
)
def test_what_nobody_handles_has_no_promise(here, policy, then):
    """Given a receiver without event, when monitors listen for events only, then no path of it is promised anything."""
    write(here / "engine.yaml", [ENGINE.replace('event: "positions:Trade"', f"unhandled: {policy}")])
    result = run("explain", "engine.yaml", cwd=here)
    first, *lines = result.stdout.splitlines()
    assert first == "trades (EXACTLY_ONCE, files) -> nobody"
    assert lines[:3] == [
        "  No monitor listens for Message: nobody handles a message.",
        f"  unhandled: {policy}: {then}.",
        "",
    ]
    found = json.loads(run("explain", "--json", "engine.yaml", cwd=here).stdout)
    assert found["paths"] == []
    assert [(one["receiver"], one["event"], one["unhandled"], one["then"]) for one in found["unhandled"]] == [
        ("trades", "Message", policy, then)
    ]


def test_a_receiver_of_an_engine_without_monitors_goes_to_nobody(here):
    monitors = 'monitors:\n  - {type: "positions:Positions"}'
    assert monitors in ENGINE
    write(here / "engine.yaml", [ENGINE.replace(monitors, "")])
    assert run("explain", "engine.yaml", cwd=here).stdout.startswith("trades (EXACTLY_ONCE, files) -> nobody\n")
