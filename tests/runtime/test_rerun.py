"""A rerun: unchanged code does the same again, changed code is compared (docs/rules.md, section A7)."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from correlator import Message, Monitor, event, every, on
from correlator.core.context import Context
from correlator.core.messages import encode_event
from correlator.core.queue import Run
from correlator.core.routes import Routes
from correlator.core.tape import CutTaken
from correlator.errors import RecoveryRefused
from correlator.runtime.comparison import SentLine, compare_sends, line_of
from correlator.runtime.names import resolve
from correlator.runtime.replay import Cause, Replayed, opened, replay, settings_in
from correlator.runtime.rerun import _Lane, rerun
from correlator.storage.states import shown_state
from tests.runtime.replayed import Audits, Counts
from tests.runtime.test_replay import both, logs_of, repeated, settled
from tests.runtime.world import World, monitor, numbered, receiver, sender, the_monitor

COUNT = 60


class Code:
    """The part of the code below that changes."""

    factor = 1
    tells = False
    fails_at = b""


@event
class Told:
    """From one context to the other."""

    total: int


class Sums(Monitor, persistent=True):
    """Adds up."""

    total: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        """Add, send, and tell."""
        if message.body == Code.fails_at:
            raise ValueError("not this one")
        self.total += Code.factor
        self.send(b'{"total": %d}' % self.total, to="out", key=message.body.decode()[-1])
        if Code.tells:
            self.send(Told(total=self.total), to="channel:second")


class Hears(Monitor, persistent=True):
    """In the second context."""

    told: list[int] = []

    @on(Told)
    def hear(self, told: Told) -> None:
        """Keep it."""
        self.told.append(told.total)


class Beats(Monitor):
    """Has a timer that the recorded code did not have."""

    @every(0.001)
    def beat(self) -> None:
        """Send."""
        self.send(b"beat", to="out")


@pytest.fixture(autouse=True)
def code(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Changes the code for one test."""

    def change(name: str, *, value: Any) -> None:
        monkeypatch.setattr(Code, name, value)

    return change


def lines(replayed: Replayed) -> list[SentLine]:
    return [line_of(output) for output in replayed.outputs]


def differences(before: Replayed, now: Replayed) -> list[Any]:
    return compare_sends(lines(before), lines(now), [])[1]


def recorded(world: World, tmp_path: Path, *monitors: Any, count: int = 10) -> Path:
    """The log of a life with some messages."""
    with world.engine(receiver(), sender(), monitors=list(monitors), input_log=str(tmp_path / "input.log")):
        world.publish(*numbered(count))
        world.wait(lambda: settled(world) and len(world.sent()) >= count)
    return logs_of(tmp_path)[0]


# --- the code has not changed ---


def test_a7_4_unchanged_code_does_the_same(world, tmp_path):
    """Two contexts that talk to each other, timers, spawned monitors, dead letters; tests of replays do it in all cases."""
    engine = world.engine(receiver(), sender(), input_log=str(tmp_path / "input.log"), **both())
    world.publish(*numbered(COUNT))
    waits = (COUNT - COUNT // 10) // 3
    with engine:
        counts = the_monitor(engine, Counts)
        world.wait(lambda: settled(world) and len(counts.late) == waits and counts.ticks)
    now = repeated(logs_of(tmp_path)[0]), rerun(logs_of(tmp_path)[0])
    assert [{one.cause.receiver for one in replayed.outputs} for replayed in now] == [{"in"}] * 2
    assert [sorted({one.cause.number for one in replayed.outputs}) for replayed in now] == [
        [number for number in range(1, COUNT + 1) if number % 10 != 7]
    ] * 2


# --- the code has changed ---


def test_changed_sends_are_compared_by_their_cause(world, tmp_path, code):
    log = recorded(world, tmp_path, Sums)
    before = replay(log)
    code("factor", value=2)
    with pytest.raises(RecoveryRefused, match="E4321"):
        replay(log)
    now = rerun(log)
    found = differences(before, now)
    assert [(one.kind, one.cause.number, str(one.fields[0].field)) for one in found] == [
        ("different", number, "body.total") for number in range(1, 11)
    ]
    assert (found[2].fields[0].before, found[2].fields[0].after) == ("3", "6")


def test_events_that_the_life_did_not_have_reach_their_context(world, tmp_path, code):
    log = recorded(world, tmp_path, Sums, monitor(Hears, context="second"))
    assert told(replay(log)) == []
    code("tells", value=True)
    assert told(rerun(log)) == list(range(1, 11))


def test_events_that_the_life_had_may_change_or_vanish(world, tmp_path, code):
    code("tells", value=True)
    log = recorded(world, tmp_path, Sums, monitor(Hears, context="second"))
    assert told(replay(log)) == told(rerun(log)) == list(range(1, 11))
    code("factor", value=3)
    assert told(rerun(log)) == list(range(3, 31, 3))
    code("tells", value=False)
    assert told(rerun(log)) == []


def test_an_event_takes_the_place_of_its_equal():
    """Also if contexts have sent others of its class before; an event of its class only when nobody sends it any more."""
    runs = [
        Run("", 0, (), (Told(total=total),), stored=True, recorded=encode_event(Told(total=total))) for total in (1, 2)
    ]
    lane = _Lane(Context("main", Routes(), resolve))
    lane.sent.extend(runs)
    assert lane.take_sent(encode_event(Told(total=3)), alike=False) is None
    assert lane.take_sent(encode_event(Told(total=2)), alike=False) is runs[1]
    assert lane.take_sent(encode_event(Told(total=3)), alike=True) is runs[0]
    assert not lane.sent


def told(replayed: Replayed) -> list[int]:
    (hears,) = (one for one in shown_state(replayed.state) if one.owner == "monitor:Hears")
    return hears.value["attributes"]["told"]


def test_a_new_timer_fires_when_it_is_due(world, tmp_path):
    with world.engine(receiver(), sender(), monitors=[Sums], input_log=str(tmp_path / "input.log")):
        for number in (1, 2, 3):  # between two of them a checkpoint passes, and so more than a period of the timer
            world.publish(f"m{number}")
            world.wait(lambda number=number: len(world.sent()) == number)
    (log,) = logs_of(tmp_path)
    settings = settings_in(opened(log)[0])
    beats = dataclasses.replace(settings, monitors=[*settings.monitors, monitor(Beats)])
    now = rerun(log, beats)
    found = differences(replay(log), now)
    assert len(found) == len(now.outputs) - 3 > 0
    assert {(one.kind, one.cause, one.now.body) for one in found} == {("additional", Cause("main"), "beat")}


def test_a_handler_that_stops_the_engine_ends_the_rerun(world, tmp_path, code):
    log = recorded(world, tmp_path, Sums)
    code("fails_at", value=b"m4")
    now = rerun(log)
    assert "E5500" in now.failure
    assert "not this one" in now.failure
    assert not now.in_order
    assert {one.kind for one in differences(replay_unchanged(log, code), now)} == {"missing"}


def replay_unchanged(log: Path, code: Any) -> Replayed:
    code("fails_at", value=b"")
    return replay(log)


# --- what does not belong together ---


def test_a_rerun_ends_with_a_checkpoint(world, tmp_path):
    log = recorded(world, tmp_path, Sums)
    numbers = [record.number for record in opened(log)[2] if isinstance(record, CutTaken)]
    assert rerun(log, through=numbers[0]).number == numbers[0]
    for number in (0, numbers[-1] + 1):
        with pytest.raises(RecoveryRefused, match=rf"E5602 .*checkpoint {number} is missing"):
            rerun(log, through=number)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"name": "another"}, "other name"),
        ({"receivers": ()}, "other receivers"),
        ({"monitors": [monitor(Sums, context="elsewhere")]}, "other contexts"),
    ],
)
def test_a_log_without_inputs_for_the_settings_is_refused(world, tmp_path, changes, what):
    log = recorded(world, tmp_path, Sums, count=2)
    with pytest.raises(RecoveryRefused, match=rf"E4322 .*{what}"):
        rerun(log, dataclasses.replace(settings_in(opened(log)[0]), **changes))


def test_state_that_the_code_cannot_read_is_refused(world, tmp_path):
    """As a start would be: a persistent monitor is gone."""
    recorded(world, tmp_path, Sums, count=2)
    with world.engine(receiver(), sender(), monitors=[Sums], input_log=str(tmp_path / "second.log")):
        pass
    log = next(tmp_path.glob("second.log*"))
    with pytest.raises(RecoveryRefused, match="E4202"):
        rerun(log, dataclasses.replace(settings_in(opened(log)[0]), monitors=[monitor(Audits)]))


# --- the comparison ---


def line(body: str, number: int = 0, key: str | None = None, **changes: Any) -> SentLine:
    fields = {
        "checkpoint": 1,
        "sender": "out",
        "sequence": 1,
        "destination": "queue:out",
        "key": key,
        "properties": {},
        "headers": {},
        "body": body,
        "cause": Cause("main", "in", number) if number else Cause("main"),
    }
    return SentLine(**{**fields, **changes})


@pytest.mark.parametrize(
    ("before", "now", "kinds"),
    [
        ([line("a", 1), line("b", 2)], [line("b", 2)], ["missing"]),
        ([line("a", 1)], [line("a", 1), line("a", 1)], ["additional"]),
        ([line("a", 1)], [line("b", 1)], ["different"]),
        ([line("a", 1)], [line("a", 2)], ["missing", "additional"]),
        ([line("a", 1, "k")], [line("a", 1, "l")], ["missing", "additional"]),
        ([line("a"), line("b"), line("c")], [line("b"), line("c"), line("d")], ["different"]),
        ([line("1", 1)], [line("1.0", 1)], ["different"]),
        ([line("true", 1)], [line("1", 1)], ["different"]),
        ([line('{"a": 1, "b": 2}', 1)], [line('{"b": 2, "a": 1}', 1)], []),
        ([line("a", 1, properties={"x": 1})], [line("a", 1, properties={"x": 2})], ["different"]),
        ([line("a", 1, headers={"type": "x"})], [line("a", 1)], ["different"]),
        ([line("a", 1, properties={"uniqueMessageId": "1:s"}, sequence=1)], [line("a", 1, sequence=9)], []),
    ],
)
def test_what_is_equal(before, now, kinds):
    equal, found = compare_sends(before, now, [])
    assert [one.kind for one in found] == kinds
    assert sum(equal.values()) == len(before) - sum(kind in ("missing", "different") for kind in kinds)


def test_a7_4_nothing_is_opened(world, tmp_path, monkeypatch):
    log = recorded(world, tmp_path, Sums, count=2)

    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr("socket.socket", refuse)
    monkeypatch.setattr("sqlite3.connect", refuse)
    assert len(rerun(log).outputs) == 2
    assert replay(log).in_order
