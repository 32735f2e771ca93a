"""The quick form of the campaign against a real Pulsar broker, and that it can fail.

How it could be wrong: a kill meets no traffic, the publisher loses without a word, a repeat is stored and not seen, the
check cannot fail. Each has its test.
"""

import random
import signal
from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from connectors.pulsar.sink import PulsarSink
from correlator import Reliability
from tests.connectors.campaign.board import Board
from tests.connectors.campaign.publisher import Publisher
from tests.connectors.pulsar_campaign import rounds, traffic
from tests.connectors.pulsar_campaign.bridge import settings
from tests.connectors.pulsar_campaign.figures import Figures, Result
from tests.connectors.pulsar_campaign.rounds import campaign, one_round, plan
from tests.connectors.pulsar_campaign.storage import Stored
from tests.connectors.pulsar_campaign.traffic import Bridge, Control, Kind, Round, Traffic, fresh_place
from tests.connectors.rabbit import LONG_S
from tests.pulsar_server import PulsarServer

pytestmark = [pytest.mark.pulsar, pytest.mark.campaign]

UNDISTURBED = Round(seed="7", kind=Kind.BRIDGE, kills=0)


@pytest.fixture
def place(pulsar: PulsarServer, tmp_path):
    return fresh_place(pulsar, UNDISTURBED, tmp_path, LONG_S)


@pytest.fixture
def impatient(place):
    """A place with a short patience, for orders that never come through."""
    return replace(place, patience_s=10)


# --- it holds ---


@pytest.mark.kill9
def test_kills_of_the_bridge_lose_nothing_and_double_nothing(pulsar: PulsarServer, tmp_path):
    said = []
    result = campaign(pulsar, tmp_path, kills=0, process_kills=5, seed=7, say=said.append)
    assert (result.violations, result.blind) == ([], []), result.lines()
    assert result.figures.kills == {Kind.BRIDGE: 5}
    assert result.figures.kills_in_traffic[Kind.BRIDGE] >= 3
    without, at_least_once = (result.controls[Kind.BRIDGE, control] for control in Control)
    assert (without.stored_doubles > 0, without.counted_doubles) == (True, 0)
    assert (at_least_once.stored_doubles, at_least_once.counted_doubles > 0) == (0, True)
    assert len(said) == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.kill9
def test_a_kill_of_the_broker_loses_nothing_and_doubles_nothing(place):
    figures = Figures()
    one_round(place, Round(seed="7", kind=Kind.BROKER, kills=1), figures)
    assert (figures.violations, Result(7, figures).blind) == ([], [])
    assert figures.kills == figures.kills_in_traffic == {Kind.BROKER: 1}
    assert figures.connections_lost > 0
    assert figures.orders > 0


def test_a_bridge_that_left_something_unacknowledged_goes_on(place, monkeypatch):
    answers = [1, 0]
    boards = []
    original = rounds.run_undisturbed

    def run(*arguments):
        boards.append(arguments[-1].begun)
        original(*arguments)
        boards.append(arguments[-1].begun)

    monkeypatch.setattr(rounds, "unacknowledged", lambda _: answers.pop(0))
    monkeypatch.setattr(rounds, "run_undisturbed", run)
    figures = Figures()
    one_round(place, UNDISTURBED, figures)
    assert figures.violations == answers == []
    assert boards == [figures.orders - 1, figures.orders]


def test_what_stays_unacknowledged_is_a_violation(place, monkeypatch):
    monkeypatch.setattr(rounds, "unacknowledged", lambda _: 3)
    monkeypatch.setattr(rounds, "MOST_RUNS", 1)
    figures = Figures()
    one_round(place, UNDISTURBED, figures)
    assert [text.partition(": ")[2] for text in figures.violations] == ["the bridge has not acknowledged 3 messages"]


def test_each_kind_has_its_controls_before_its_rounds():
    planned = list(plan(1, {Kind.BRIDGE: 31, Kind.BROKER: 3}))
    assert [(one.kind, one.control, one.kills) for one in planned] == [
        (Kind.BRIDGE, Control.NO_DEDUPLICATION, 20),
        (Kind.BRIDGE, Control.AT_LEAST_ONCE, 20),
        (Kind.BRIDGE, None, 30),
        (Kind.BRIDGE, None, 1),
        (Kind.BROKER, Control.NO_DEDUPLICATION, 20),
        (Kind.BROKER, Control.AT_LEAST_ONCE, 20),
        (Kind.BROKER, None, 3),
    ]
    assert len({one.seed for one in planned}) == len(planned)


def test_a_control_leaves_out_one_thing_only():
    by_control = {
        control: (one.deduplication, one.reliability)
        for control in (None, *Control)
        for one in [replace(UNDISTURBED, control=control)]
    }
    assert by_control == {
        None: (True, Reliability.EXACTLY_ONCE),
        Control.NO_DEDUPLICATION: (False, Reliability.EXACTLY_ONCE),
        Control.AT_LEAST_ONCE: (True, Reliability.AT_LEAST_ONCE),
    }
    engine = settings("sqlite:///x.db", Reliability.AT_LEAST_ONCE)
    assert [one.reliability for one in (*engine.receivers, *engine.senders)] == ["AT_LEAST_ONCE", "EXACTLY_ONCE"]


# --- it can fail ---


def test_a_publisher_that_loses_without_a_word_is_found(impatient, monkeypatch):
    class Lossy(Publisher):
        def _outgoing(self, number):
            return super()._outgoing(number if number != 0 else 1)

    monkeypatch.setattr(traffic, "Publisher", Lossy)
    figures = Figures()
    one_round(impatient, UNDISTURBED, figures)
    found = [text.partition("): ")[2] for text in figures.violations]
    assert any("Stalled: " in text for text in found)
    assert any("in the state: 1 orders lost: 0" in text for text in found), found


def test_repeats_that_the_broker_does_not_drop_are_found(place, monkeypatch):
    """The publisher sends every order twice, the second time under another name."""
    original = PulsarSink.send

    def twice(sink, batch):
        assert not any(original(sink, [msgspec.structs.replace(one, source="other") for one in batch]))
        return original(sink, batch)

    monkeypatch.setattr(PulsarSink, "send", twice)
    figures = Figures()
    one_round(place, UNDISTURBED, figures)
    found = [text.partition("): ")[2] for text in figures.violations]
    assert len(found) == 1
    assert found[0].startswith(f"stored for the bridge: {figures.orders} orders counted more than once: 0 (2 times), ")


def test_a_bridge_that_ends_by_itself_is_a_violation(place, monkeypatch):
    class Dying(Bridge):
        def start(self):
            super().start()
            self._process.send_signal(signal.SIGTERM)

    monkeypatch.setattr(traffic, "Bridge", Dying)
    figures = Figures()
    one_round(place, UNDISTURBED, figures)
    assert any("BridgeEnded: with " in text for text in figures.violations), figures.violations


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ({"1:life": 1, "2:life": 1}, []),
        ({"1:life": 1, "2:life": 2}, ["messages stored more than once: ['2:life']"]),
        ({"1:life": 1, "3:life": 1}, ["the sender's messages [2] are not stored"]),
        ({"1:life": 1, "2:other": 1}, ["several sources of the messages of one sender: ['1:life', '2:other']"]),
    ],
)
def test_what_one_sender_cannot_have_stored(ids, found):
    stored = Stored(ids=Counter(ids))
    assert stored.violations(may_repeat=False) == found
    assert stored.violations(may_repeat=True) == [text for text in found if "more than once" not in text]


# --- it can tell that it proves nothing ---


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        (
            Figures(kills=Counter({Kind.BRIDGE: 3}), kills_in_traffic=Counter({Kind.BRIDGE: 1})),
            ["1 of 3 process kills met traffic"],
        ),
        (Figures(kills=Counter({Kind.BRIDGE: 3}), kills_in_traffic=Counter({Kind.BRIDGE: 2})), []),
        (
            Figures(kills=Counter({Kind.BROKER: 3}), kills_in_traffic=Counter({Kind.BROKER: 3})),
            ["the bridge has noticed no kill of the broker"],
        ),
    ],
)
def test_kills_that_prove_nothing(figures, why):
    assert Result(1, figures).blind == why


@pytest.mark.parametrize("control", Control)
def test_a_control_that_doubles_nothing_of_its_own(control):
    other = {
        Control.NO_DEDUPLICATION: Figures(counted_doubles=1),
        Control.AT_LEAST_ONCE: Figures(stored_doubles=1),
    }
    result = Result(1, controls={(Kind.BRIDGE, control): other[control]})
    assert result.blind == [f"the control {control} doubled nothing in 0 process kills: the check sees nothing"]


def test_a_kill_without_traffic_is_counted_as_such(place):
    board, figures = Board(), Figures()
    idle = Traffic(place, UNDISTURBED, random.Random(7), board)
    figures.add_kill(Kind.BRIDGE, idle)
    board.note(begun=2, counted="0")
    figures.add_kill(Kind.BRIDGE, idle)
    idle.strike(lambda: None)
    figures.add_kill(Kind.BRIDGE, idle)
    assert (figures.kills[Kind.BRIDGE], figures.kills_in_traffic[Kind.BRIDGE]) == (3, 1)
