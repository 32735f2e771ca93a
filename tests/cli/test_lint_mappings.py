"""What `lint` says about mappings and flow control (rules A9.19, A9.1)."""

import pytest

from tests.cli.commands import run, write

FILE = """
name: mapped
store: sqlite:///store/mapped.db
connections: {{local: {{type: embedded}}}}
receivers:
  - {{id: in, connection: local, destination: "queue:in", event: "quotes:Quote"{receiver}}}
senders:
  - {{id: out, connection: local, destination: "queue:out"{sender}}}
monitors:
  - {{type: "quotes:Quotes"}}
"""
QUOTES = """
from correlator import Monitor, event, on


@event
class Quote:
    symbol: str
    price: float = 0.0


class Quotes(Monitor):
    @on(Quote)
    def quote(self, quote: Quote) -> None:
        self.send(quote, to="out")
"""


def lint(place, receiver="", sender=""):
    write(place / "quotes.py", [QUOTES])
    write(place / "mapped.yaml", [FILE.format(receiver=receiver, sender=sender)])
    return run("lint", "mapped.yaml", cwd=place)


def test_a9_19_good_mappings_have_no_findings(place):
    result = lint(
        place,
        ', mapping: {symbol: "${property.symbol}", price: "${body.price}"}',
        ', time_to_live: 5s, mapping: {"property.symbol": "${event.symbol}", "header.priority": "${event.price}"}',
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


WRONG = [
    ('mapping: {symbol: "${header.colour}"}', "", "E1065 mapped.yaml:6", "receivers[0].mapping.symbol"),
    ('mapping: {symbol: "constant"}', "", "E1061 mapped.yaml:6", "receivers[0].mapping.symbol"),
    ('mapping: {symbol: "${key}", colour: "${key}"}', "", "E1062 mapped.yaml:6", "receivers[0].mapping.colour"),
    ('mapping: {price: "${body}"}', "", "E1063 mapped.yaml:6", "receivers[0].mapping"),
    ("", 'mapping: {"header.timestamp": "${event.price}"}', "E1067 mapped.yaml:8", "senders[0].mapping"),
    ("", 'mapping: {"header.message_id": "${event.price}"}', "E1067 mapped.yaml:8", "senders[0].mapping"),
    ("", 'mapping: {"header.colour": "${event.price}"}', "E1065 mapped.yaml:8", "senders[0].mapping"),
    ("", 'mapping: {"colour": "${event.price}"}', "E1066 mapped.yaml:8", "senders[0].mapping.colour"),
    ("", 'mapping: {"key": "${price}"}', "E1061 mapped.yaml:8", "senders[0].mapping.key"),
    ("", "time_to_live: 0s", "E1025 mapped.yaml:8", "senders[0].time_to_live"),
    ("max_extra_mapping_threads: 65", "", "E1022 mapped.yaml:6", "receivers[0].max_extra_mapping_threads"),
]


@pytest.mark.parametrize(("receiver", "sender", "code", "where"), WRONG)
def test_a9_19_a_mapping_that_cannot_work(place, receiver, sender, code, where):
    result = lint(place, *(f", {text}" if text else "" for text in (receiver, sender)))
    assert result.returncode == 2
    assert code in result.stdout
    assert where in result.stdout


PIPELINE = """
name: pipes
store: sqlite:///store/pipes.db
connections: {local: {type: embedded}}
receivers:
  - {id: in, connection: local, destination: "queue:in", flow_control: true}
senders:
  - {id: out, connection: local, destination: "queue:out"}
pipelines:
  - {name: p, from: [in], steps: [{decode: {format: json, schema: "a INT"}}, {route: out}]}
"""


def test_a9_1_flow_control_of_a_receiver_that_a_pipeline_takes(place):
    write(place / "pipes.yaml", [PIPELINE])
    result = run("lint", "pipes.yaml", cwd=place)
    assert result.returncode == 2
    assert "E1068 pipes.yaml:6" in result.stdout


def test_a_pipeline_leaves_no_message_unhandled(place):
    write(place / "pipes.yaml", [PIPELINE.replace("flow_control: true", "unhandled: dead_letter")])
    result = run("lint", "pipes.yaml", cwd=place)
    assert result.returncode == 2
    assert "E1069 pipes.yaml:6" in result.stdout


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("receiverFlowControl: true", "flow_control"),
        ("maxExtraMappingThreads: 2", "max_extra_mapping_threads"),
        ("logPerformanceBreakdown: true", "log_performance_breakdown"),
    ],
)
def test_original_names_are_recognised(place, old, new):
    result = lint(place, f", {old}")
    assert f"It is called '{new}' here" in result.stdout
