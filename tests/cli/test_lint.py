"""`correlator lint`: everything at once, with its place, without opening anything."""

import json

import pytest

from connectors.pulsar import PulsarConnection
from correlator.cli import main
from tests.cli.commands import run, write
from tests.cli.conftest import ENGINE, MONITOR

PIPELINE = """
name: flights
store: sqlite:///store/flights.db
connections: {files: {type: file, path: data}}
receivers:
  - {id: departures, connection: files, destination: "queue:flights.csv"}
senders:
  - {id: delayed, connection: files, destination: "queue:delayed.jsonl"}
monitors:
  - {type: "positions:Positions"}
pipelines:
  - name: delays
    from: [departures]
    steps:
      - decode: {format: csv, schema: "carrier STRING, delay INT"}
      - monitor: {class: "keyed:Delays", key: carrier}
      - python: "keyed:function"
      - route: delayed
tests:
  - {name: t, given: [{body: "A,1", receiver: departures}], then: [{to: delayed}, {to: dead_letters}]}
"""
KEYED = """
import msgspec

from correlator import KeyedMonitor


class Departure(msgspec.Struct):
    carrier: str
    delay: int | None = None


class Delays(KeyedMonitor[Departure, Departure]):
    def on_event(self, row):
        return [row]


def function(batch):
    return batch


async def later(batch):
    return batch


number = 17
"""


SENDS_DELAYED = MONITOR.replace('to="out"', 'to="delayed"')


def lint(place, text, *options):
    write(place / "keyed.py", [KEYED])
    write(place / "lint.yaml", [text])
    if "id: delayed" in text and (place / "positions.py").read_text().strip() == MONITOR.strip():
        write(place / "positions.py", [SENDS_DELAYED])
    return run("lint", *options, "lint.yaml", cwd=place)


def codes(result):
    return [line.partition(" ")[0] for line in result.stdout.splitlines() if not line.startswith(" ")]


def test_a_good_file_has_no_findings(place):
    result = lint(place, PIPELINE)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_nothing_is_opened(place):
    assert lint(place, ENGINE).returncode == 0
    assert list((place / "store").iterdir()) == []


@pytest.mark.parametrize(
    ("before", "after", "code", "text"),
    [
        ("from: [departures]", "from: [departure]", "E1521", "Did you mean 'departures'?"),
        ("from: [departures]", "from: []", "E1521", "names no receiver"),
        ("route: delayed", "route: delayd", "E1522", "Did you mean 'delayed'?"),
        ("route: delayed", "route: {to: alerts}", "E1522", "Defined: delayed"),
        ("{to: delayed}", "{to: deleyed}", "E1523", "Did you mean 'delayed'?"),
        ("receiver: departures", "receiver: arrivals", "E1523", "Defined: departures"),
        ("name: delays", "name: main", "E1520", "a context of monitors"),
        ("keyed:Delays", "keyed:Delay", "E1501", "Did you mean 'Delays'?"),
        ("keyed:Delays", "kyed:Delays", "E1501", "No module named 'kyed'"),
        ("keyed:Delays", "positions:Positions", "E1503", "KeyedMonitor"),
        ("keyed:function", "keyed:number", "E1504", "function"),
        ("keyed:function", "keyed:later", "E4117", "is 'async def'"),
        ("positions:Positions", "keyed:Delays", "E1502", "Monitor"),
        ('Positions"}', 'Positions"}\n  - {type: "positions:Positions", context: b}', "E1506", "monitors[1].type"),
        ('csv"}', 'csv", reliability: APP_CONTROLLED}', "E1207", "receivers[0].reliability"),
        ("queue:flights.csv", "queue:flights.xml", "E1216", "receivers[0].destination"),
        ('csv"}', 'csv", event: "keyed:Delays"}', "E1505", "event class"),
        ('csv"}', 'csv", unique_message_id: "${nothing}"}', "E1060", "receivers[0].unique_message_id"),
        ("path: data", "path: data, colour: red", "E1020", "connections.files.colour"),
    ],
)
def test_mistakes_across_parts(before, after, code, text, place):
    assert before in PIPELINE
    result = lint(place, PIPELINE.replace(before, after))
    assert result.returncode == 2
    assert codes(result) == [code]
    assert text in result.stdout
    assert result.stdout.startswith(f"{code} lint.yaml:")


@pytest.mark.parametrize("template", ["const", "$body.number", "${header.id}"])
def test_an_id_that_is_always_the_same_or_missing_is_refused_by_lint_plan_and_run(template, place):
    text = PIPELINE.replace('csv"}', f'csv", reliability: EXACTLY_ONCE, unique_message_id: "{template}"}}')
    result = lint(place, text)
    assert (result.returncode, codes(result)) == (2, ["I1411", "E1060"])
    assert "receivers[0].unique_message_id" in result.stdout
    for command in ("plan", "run"):
        refused = run(command, "lint.yaml", cwd=place)
        assert (refused.returncode, refused.stderr.partition(" ")[0]) == (2, "E1060")


def test_a_persistent_monitor_without_a_store_is_refused_by_lint_and_plan(place):
    text = PIPELINE.replace("store: sqlite:///store/flights.db\n", "").replace(
        'csv"}', 'csv", reliability: BEST_EFFORT}'
    )
    result = lint(place, text.replace('delayed.jsonl"', 'delayed.jsonl", reliability: BEST_EFFORT'))
    assert (result.returncode, codes(result)) == (2, ["E1206"])
    assert "monitors[0].type" in result.stdout
    planned = run("plan", "lint.yaml", cwd=place)
    assert (planned.returncode, planned.stderr.partition(" ")[0]) == (2, "E1206")


def test_a_module_that_fails_shows_the_users_lines_only(place):
    write(place / "positions.py", ["def make():", "    raise OSError('no disk')", "make()"])
    result = lint(place, PIPELINE)
    assert result.returncode == 2
    assert "OSError: no disk" in result.stdout
    assert "positions.py:2 in make" in result.stdout
    assert "Traceback" not in result.stdout


OPTIONS = """
name: options
store: sqlite:///store/options.db
connections: {files: {type: file, path: data}}
receivers:
  - id: in
    connection: files
    destination: "%s"
    options:
      follow: false
      colour: red
senders:
  - id: out
    connection: files
    destination: "queue:out.jsonl"
    options:
      colour: red
monitors:
  - {type: "positions:Positions"}
"""


def test_an_error_in_an_option_names_its_own_line(place):
    result = lint(place, OPTIONS % "queue:in.jsonl")
    assert [line.partition(": ")[0] for line in result.stdout.splitlines()] == [
        "E1020 lint.yaml:11:15 receivers[0].options.colour",
        "E1020 lint.yaml:17:15 senders[0].options.colour",
    ]


@pytest.mark.parametrize("destination", ["in.jsonl", "queue:", "topic:"])
def test_a_destination_that_is_none_is_told_once(destination, place):
    result = lint(place, (OPTIONS % destination).replace("colour: red", "").replace("    options:\n      \n", ""))
    assert codes(result) == ["E1215"]


def test_files_do_not_see_each_others_modules(place):
    write(place / "keyed.py", [KEYED])
    write(place / "positions.py", [SENDS_DELAYED])
    write(place / "one.yaml", [PIPELINE])
    (place / "other").mkdir()
    write(place / "other" / "two.yaml", [PIPELINE])
    write(place / "other" / "keyed.py", ["number = 1"])
    result = run("lint", "one.yaml", "other/two.yaml", cwd=place)
    assert result.returncode == 2
    assert all(line.startswith(" ") or "other/two.yaml" in line for line in result.stdout.splitlines())


def test_warnings_and_hints(place):
    text = ENGINE + "duplicate_detection: {per_source_window_size: 10}\n"
    result = lint(place, text)
    assert result.returncode == 0
    assert codes(result) == ["I1411", "W1401"]


def test_a_sender_of_dead_letters_without_their_reasons(place):
    result = lint(
        place, PIPELINE.replace('jsonl"}', 'jsonl", reliability: EXACTLY_ONCE}') + "dead_letter_sender: delayed\n"
    )
    assert (result.returncode, codes(result)) == (0, ["W1543"])
    assert result.stdout.startswith("W1543 lint.yaml:")


def test_json(place):
    text = ENGINE.replace("name: trades", "nme: trades")
    result = lint(place, text, "--json")
    assert result.returncode == 2
    found = json.loads(result.stdout)
    assert [finding["code"] for finding in found if finding["severity"] == "error"] == ["E1020", "E1021"]
    (unknown,) = (finding for finding in found if finding["code"] == "E1020")
    assert (unknown["file"], unknown["line"], unknown["column"], unknown["path"]) == ("lint.yaml", 2, 1, "nme")
    assert unknown["allowed"] == "Did you mean 'name'?"


def test_json_of_nothing(place):
    assert json.loads(lint(place, PIPELINE, "--json").stdout) == []


def test_more_mistakes_than_a_message_shows(place):
    result = lint(place, PIPELINE + "\n".join(f"k{number}: 1" for number in range(100)))
    assert len(codes(result)) == 100


def test_a_check_makes_each_connection_once_and_closes_it(place, monkeypatch):
    write(place / "ids.yaml", ["name: e\nconnections: {p: {type: pulsar, client_id: mine}}"])
    made, make = [], PulsarConnection.__init__
    closed, close = [], PulsarConnection.close
    monkeypatch.setattr(
        PulsarConnection, "__init__", lambda self, *settings: (made.append(self), make(self, *settings))[1]
    )
    monkeypatch.setattr(PulsarConnection, "close", lambda self: (closed.append(self), close(self)))
    assert main.execute(["lint", str(place / "ids.yaml")]) == 0
    assert (len(made), made) == (1, closed)


def test_mistakes_in_steps_have_their_places_and_need_no_spark(place):
    steps = PIPELINE.replace("      - python", "      - where: delya > 5 and upper(carrier) = 'A'\n      - python")
    result = lint(place, steps.replace("key: carrier", "key: carier").replace("delay INT", "delay INTEGR"))
    assert result.returncode == 2
    assert codes(result) == ["I1526", "E1511", "E1511"]
    hint, schema, where = result.stdout.splitlines()
    assert hint.startswith("I1526 lint.yaml:12:3 pipelines: the expressions of 2 steps were not checked completely. ")
    assert hint.endswith(" correlator plan lint.yaml checks them with Spark.")
    assert schema.startswith(
        "E1511 lint.yaml:15:39 pipelines[0].steps[0].decode.schema: schema: 'INTEGR' is not a type."
    )
    assert where.startswith("E1511 lint.yaml:17:16 pipelines[0].steps[2].where: 'delya' is not a column.")
    assert where.endswith("Columns: carrier string, delay bigint. Did you mean 'delay'?")


@pytest.mark.parametrize("select", ["{a: carrier, b: delya}", "{columns: {a: carrier, b: delya}}"])
def test_both_forms_of_select_have_the_place_of_a_mistake(place, select):
    result = lint(place, PIPELINE.replace("      - monitor:", f"      - select: {select}\n      - monitor:"))
    column = 10 + len("      - select: ") + select.index("delya") - 9
    assert f"E1511 lint.yaml:16:{column} pipelines[0].steps[1].select" in result.stdout
    assert "b: 'delya' is not a column" in result.stdout


def test_a_field_of_a_monitor_that_is_no_column(place):
    result = lint(place, PIPELINE.replace("carrier STRING", "carriers STRING").replace("key: carrier", "key: carriers"))
    assert codes(result) == ["E1517"]
    assert "monitor.class: field 'carrier' of Departure is not a column" in result.stdout


def test_code_that_fails_is_imported_once_however_many_parts_name_it(place):
    """It may run long before it fails: two hundred parts that name it must not run it six hundred times."""
    write(place / "failing.py", ["open('runs', 'a').write('.')", "raise RuntimeError('broken')"])
    monitors = ["monitors:", *['  - {type: "failing:Monitor"}'] * 200]
    write(place / "many.yaml", ["name: many", "store: sqlite:///store/many.db", *monitors])
    result = run("lint", "many.yaml", cwd=place)
    assert result.stderr.count("E1501 ") + result.stdout.count("E1501 ") == 200
    assert (place / "runs").read_text() == "."
