"""`correlator test`: how messages are compared, and one file that runs through Spark."""

import pytest

from correlator.cli import main
from correlator.cli.inline_tests import MOST_ATTEMPTS, KeptState, compare, outcome
from correlator.configuration.files import ExpectedMessage, GivenMessage, InlineTest
from correlator.core.batch_context import Effects
from correlator.core.commit import StateEntry
from correlator.errors import TryAgain
from correlator.events import DeadLetter, Message
from tests.cli.commands import run, write


@pytest.mark.parametrize(
    ("expected", "sent", "differences"),
    [
        ([], {}, []),
        ([ExpectedMessage(to="a", body="x")], {"a": [b"x"]}, []),
        ([ExpectedMessage(to="a", body="x")], {"a": [b"y"]}, ["a 1: expected x, got y"]),
        ([ExpectedMessage(to="a", body="x")], {}, ["a: missing x"]),
        ([ExpectedMessage(to="a")], {"a": [b"anything"]}, []),
        ([], {"a": [b"x"], "b": [b"\xff"]}, ["a: not expected x", "b: not expected \\xff"]),
        ([ExpectedMessage(to="a", row={"n": "1", "s": "t"})], {"a": [b'{"n":1,"s":"t","z":0}']}, []),
        ([ExpectedMessage(to="a", row={"b": "true", "x": "null"})], {"a": [b'{"b":true,"x":null}']}, []),
        ([ExpectedMessage(to="a", row={"n": "2"})], {"a": [b'{"n":1}']}, ['a 1: expected n=2, got n=1 in {"n":1}']),
        ([ExpectedMessage(to="a", row={"n": "2"})], {"a": [b"no"]}, ["a 1: expected n=2, got n=nothing in no"]),
        ([ExpectedMessage(to="dead_letters", body="E5101")], {"dead_letters": [b"E5101 p: not json"]}, []),
        ([ExpectedMessage(to=to, body=to) for to in "aba"], {"b": [b"b"], "a": [b"a", b"a"]}, []),
    ],
)
def test_what_was_sent_is_held_against_what_was_expected(expected, sent, differences):
    assert compare(expected, sent) == differences


class Doubling:
    """Sends every body twice; makes a body `bad` a dead letter; sends at the end how many messages there were."""

    name = "doubling"
    receivers = ("r",)

    def process(self, batch, state, engine_time):
        bad = [one for one in batch if one.message.body == b"bad"]
        good = [one for one in batch if one not in bad]
        letters = [DeadLetter(kind="step", origin="p", reason="E5101 no", message=one.message) for one in bad]
        sends = [("s", Message(one.message.body * 2)) for one in good]
        return Effects(sends, [StateEntry("o", b"k", str(len(good)).encode())], letters)

    def conclude(self, state, engine_time):
        return Effects([("s", Message(value)) for _, value in state.items("o")])


def test_a_test_goes_through_the_pipelines_that_take_its_messages():
    given = ("a", "bad", GivenMessage(body="other", receiver="elsewhere"), GivenMessage(body="b", receiver="r"))
    test = InlineTest(name="t", given=given, then=())
    assert outcome([Doubling()], test) == {"s": [b"aa", b"bb", b"2"], "dead_letters": [b"E5101 no"]}


def test_properties_have_the_types_that_the_file_gives_them(tmp_path):
    lines = [
        "name: x",
        "connections: {c: {type: embedded}}",
        "receivers: [{id: r, connection: c, destination: 'queue:r'}]",
        "senders: [{id: s, connection: c, destination: 'queue:s'}]",
        "bridges: [{name: b, from: [r], to: [s], selector: 'euros > 100 AND express = TRUE'}]",
        "tests:",
        "  - name: only a number can be large",
        "    given:",
        "      - {body: a, properties: {euros: '500', express: true}}",
        "      - {body: b, properties: {euros: 500, express: true}}",
        "      - {body: c, properties: {euros: 500.5, express: 'true'}}",
        "    then: [{to: s, body: b}]",
    ]
    write(tmp_path / "x.yaml", lines)
    assert run("test", "x.yaml", cwd=tmp_path).stdout == "ok only a number can be large\n"


class Failing(Doubling):
    """Fails a number of times, in a way after which an engine computes the batch again."""

    def __init__(self, failures):
        self.failures = failures

    def process(self, batch, state, engine_time):
        if self.failures:
            self.failures -= 1
            raise TryAgain("W5512", "pipeline p", "Spark failed", "", 0.0)
        return super().process(batch, state, engine_time)


def test_a_batch_that_failed_is_computed_again():
    test = InlineTest(name="t", given=("a",), then=())
    assert outcome([Failing(MOST_ATTEMPTS - 1)], test) == {"s": [b"aa", b"1"]}
    with pytest.raises(TryAgain):
        outcome([Failing(MOST_ATTEMPTS)], test)


def test_state_that_is_deleted_is_gone():
    state = KeptState()
    state.keep([StateEntry("o", b"k", b"1"), StateEntry("o", b"l", b"2")])
    state.keep([StateEntry("o", b"k", None), StateEntry("p", b"k", None)])
    assert (state.get("o", b"k"), list(state.items("o")), list(state.items("p"))) == (None, [(b"l", b"2")], [])


def test_a_file_without_tests(tmp_path, capsys):
    file = write(tmp_path / "e.yaml", ["name: e"])
    assert main.execute(["test", str(file)]) == 2
    assert capsys.readouterr().err.startswith("E2015 ")


PIPELINE = """
name: delays
connections: {files: {type: file, path: data}}
receivers: [{id: departures, connection: files, destination: "queue:flights.csv"}]
senders: [{id: late, connection: files, destination: "queue:late.jsonl"}]
spark: {master: "local[1]"}
pipelines:
  - name: delays
    from: [departures]
    steps: [decode: {format: csv, schema: "carrier STRING, delay INT"}, where: delay > 15, route: late]
tests:
  - {name: late ones are sent, given: ["AA,20", "AA,3", "nonsense"], then: [{to: late, row: {delay: "20"}}, {to: dead_letters, body: E5101}]}
  - {name: wrong, given: ["AA,3"], then: [{to: late}]}
"""


@pytest.mark.spark
def test_a_file_through_spark(tmp_path):
    write(tmp_path / "delays.yaml", [PIPELINE])
    result = run("test", "delays.yaml", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stdout.splitlines() == ["ok late ones are sent", "failed wrong", "  late: missing a message"]
    assert list(tmp_path.iterdir()) == [tmp_path / "delays.yaml"]
