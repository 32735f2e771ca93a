"""The quick form of the campaign against a real RabbitMQ server, and that it can fail.

How it could be wrong: a kill meets no traffic, a cut hits nothing, the publisher loses without a word, a repeat comes
behind the comparison, the check cannot fail. Each has its test.
"""

import random
from dataclasses import replace

import pytest

from connectors.rabbitmq.link import RabbitLink
from connectors.rabbitmq.sink import RabbitSink
from connectors.rabbitmq.source import RabbitSource
from correlator import Reliability
from correlator.errors import ConnectionLost
from correlator.testing.network import Direction
from tests.connectors.campaign.board import body_of, name_of
from tests.connectors.campaign.publisher import Publisher
from tests.connectors.campaign.verdict import Verdict, judge
from tests.connectors.rabbit import LONG_S, lost_by, opened, receiver
from tests.connectors.rabbitmq_campaign import lines, rounds, traffic
from tests.connectors.rabbitmq_campaign.figures import Figures, Result
from tests.connectors.rabbitmq_campaign.lines import Line
from tests.connectors.rabbitmq_campaign.rounds import campaign, one_round
from tests.connectors.rabbitmq_campaign.traffic import BOARD, Kind, RabbitSite, Role, Round
from tests.harness import mutants
from tests.rabbit_server import RabbitServer

pytestmark = [pytest.mark.rabbitmq, pytest.mark.campaign]


@pytest.fixture
def place(rabbit: RabbitServer, tmp_path):
    return RabbitSite(rabbit=rabbit, directory=tmp_path, queues=(rabbit.queue(), rabbit.queue()), patience_s=LONG_S)


@pytest.fixture
def impatient(place):
    """A place with a short patience, for orders that never come through."""
    return replace(place, patience_s=5)


def cuts(faults, **more):
    return Round(seed="7", kind=Kind.CUTS, faults=faults, queue_type="classic", **more)


# --- it holds ---


@pytest.mark.kill9
def test_kills_and_cuts_lose_nothing_and_double_nothing(rabbit: RabbitServer, tmp_path):
    said = []
    result = campaign(rabbit, tmp_path, kills=1, cuts=25, seed=7, say=said.append)
    assert (result.violations, result.blind) == ([], []), result.lines()
    figures = result.figures
    assert figures.kills == figures.kills_in_traffic == 1
    assert figures.cuts.total() >= 25
    assert min(figures.cuts["request"], figures.cuts["reply"]) > 0
    assert figures.connections_lost + figures.publisher_lost >= figures.cuts.total()
    assert all(control.doubles for control in result.controls.values())
    assert len(said) == 4
    assert list(tmp_path.iterdir()) == []


def test_engines_that_left_something_in_the_queues_go_on(place, monkeypatch):
    answers = [{"test": 1}, {}]
    monkeypatch.setattr(rounds, "waiting", lambda _: answers.pop(0))
    figures = Figures()
    one_round(place, cuts(4), figures)
    assert figures.violations == answers == []


def test_what_stays_in_the_queues_is_a_violation(place, monkeypatch):
    monkeypatch.setattr(rounds, "waiting", lambda _: {"test": 1})
    figures = Figures()
    one_round(place, cuts(0), figures)
    assert [text.partition(": ")[2] for text in figures.violations] == [
        "both engines leave something in the queues: {'test': 1}"
    ]


# --- it can fail ---


def test_a_receiver_that_lets_repeats_pass_is_found(place):
    figures = Figures()
    with mutants.applied("no_duplicate_detection"):
        one_round(place, cuts(25), figures)
    assert figures.doubles > 0
    assert [text for text in figures.violations if "orders counted more than once: " in text]


def test_the_same_doubles_are_what_a_control_is_for(place):
    figures = Figures()
    one_round(place, cuts(200, counting=Reliability.AT_LEAST_ONCE), figures)
    assert figures.violations == []
    assert figures.doubles > 0
    assert figures.cuts.total() < 200


def test_a_publisher_that_loses_without_a_word_is_found(impatient, monkeypatch):
    class Lossy(Publisher):
        def _outgoing(self, number):
            return super()._outgoing(number if number != 17 else number - 1)

    monkeypatch.setattr(traffic, "Publisher", Lossy)
    figures = Figures()
    one_round(impatient, cuts(4), figures)
    assert any("Stalled: " in text for text in figures.violations)
    assert any("1 orders lost: 17" in text for text in figures.violations)


def test_a_sink_that_takes_a_lost_connection_for_a_confirm_is_found(impatient, monkeypatch):
    original = RabbitSink._arrived

    def arrived(self, link, flight):
        try:
            return original(self, link, flight)
        except ConnectionLost:
            self._flight = None
            return flight.results

    monkeypatch.setattr(RabbitSink, "_arrived", arrived)
    assert has_lost(impatient)


def test_a_source_that_does_not_wait_for_the_commit_is_found(impatient, monkeypatch):
    def consume(self, queue, prefetch, *, exclusive=False):
        self.ask(lambda channel, reply: channel.basic_consume(queue, print, auto_ack=True, callback=reply))

    monkeypatch.setattr(RabbitLink, "consume", consume)
    monkeypatch.setattr(RabbitSource, "acknowledge", lambda self, tokens: None)
    assert has_lost(impatient)


def has_lost(place):
    figures = Figures()
    one_round(place, cuts(25), figures)
    return any(" orders lost: " in text for text in figures.violations)


def test_an_engine_that_ends_is_a_violation(place, monkeypatch):
    def fails(self, order):
        raise ValueError(order.body)

    monkeypatch.setattr(traffic, "name_of", fails)
    figures = Figures()
    one_round(place, cuts(4), figures)
    assert any("HandlerFailed" in text for text in figures.violations), figures.violations


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ({"0": 1, "1": 1}, []),
        ({"0": 1}, ["1 orders lost: 1"]),
        ({"0": 3, "1": 1}, ["1 orders counted more than once: 0 (3 times)"]),
        ({"0": 1, "1": 1, "2": 1}, ["1 orders never published: 2"]),
        ({}, ["2 orders lost: 0, 1"]),
    ],
)
def test_what_is_held_against_the_state(counts, found):
    assert judge(counts, 2).violations() == found


def test_a_control_may_double_and_nothing_else():
    assert Verdict(["1"], {"0": 2}, {"x": 1}).violations(may_double=True) == [
        "1 orders lost: 1",
        "1 orders never published: x",
    ]


def test_a_body_that_is_not_the_one_of_its_number_is_none():
    assert [name_of(body_of(number)) for number in (0, 5, 1234)] == ["0", "5", "1234"]
    assert name_of(body_of(5)[:-1]) == repr(body_of(5)[:-1])
    assert name_of(b"") == "b''"


# --- it can tell that it proves nothing ---


@pytest.mark.parametrize(
    ("figures", "control", "why"),
    [
        (Figures(kills=3, kills_in_traffic=1, connections_lost=9), 1, "1 of 3 kills met traffic"),
        (Figures(kills=3, kills_in_traffic=3), 1, "no engine has noticed a fault"),
        (Figures(kills=3, kills_in_traffic=3, connections_lost=9), 0, "the control doubled nothing in 0 kills"),
    ],
)
def test_kills_that_prove_nothing(figures, control, why):
    result = Result(1, figures, {Kind.KILLS: Figures(doubles=control)})
    assert [text for text in result.blind if why in text] == result.blind != []


def test_cuts_that_prove_nothing():
    figures = Figures(connections_lost=9, cuts_in_handshakes=2)
    figures.cuts.update({"request": 2, "reply": 2, "none": 1})
    assert Result(1, figures).blind == ["2 of 5 cuts met a connection in use"]


def test_a_connection_of_which_too_little_passes_is_cut_and_told_apart(rabbit: RabbitServer, monkeypatch):
    monkeypatch.setattr(lines, "HANDSHAKES_CUT", 0.0)
    handshake = dict.fromkeys(Direction, 100_000)
    line = Line(Role.COUNTING_RECEIVER, rabbit.port, handshake, 1, random.Random(1))
    with (
        line.proxy,
        opened(rabbit.connection(port=line.proxy.port).source(receiver(rabbit.queue()))) as source,
    ):
        line.cut_often(lambda: None, lambda: False, 30)
        assert lost_by(source).code == "E7001"
    assert (line.cuts, line.idle_cuts, line.places) == (1, 1, [])


def test_a_kill_without_traffic_is_counted_as_such():
    BOARD.clear()
    figures = Figures()

    class Idle:
        connected = 3
        unconfirmed = 0

    figures.add_kill(Idle())
    assert (figures.kills, figures.kills_in_traffic, figures.kills_amid_sends) == (1, 0, 0)
