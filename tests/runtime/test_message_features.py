"""Keys, expiry, loops, mappings and mapping threads, through an engine (rules A6.4, A6.5, A9.9, A9.19)."""

import pytest

from correlator import Message, Monitor, event, on
from correlator.events import Headers
from correlator.settings import MonitorSettings
from correlator.testing.clock import ManualClock
from correlator.testing.memory import Faults
from tests.runtime.flows import SCRIPT, Hears, Keeps
from tests.runtime.world import (
    APP_CONTROLLED,
    AT_LEAST_ONCE,
    BEST_EFFORT,
    EXACTLY_ONCE,
    message,
    numbered,
    receiver,
    sender,
)

ALL_RECEIVING = [BEST_EFFORT, AT_LEAST_ONCE, EXACTLY_ONCE, APP_CONTROLLED]


def expiring(text: str, expiration: int) -> Message:
    return Message(text.encode(), {"uniqueMessageId": text}, headers=Headers(expiration=expiration))


# --- rule A6.4 ---


def test_a6_4_the_key_travels_and_keeps_its_order(world, script):
    def passed_on(monitor, message):
        monitor.send(message.body, to="out", key=message.key)

    script.message = passed_on
    sent = [Message(b"%s%d" % (key.encode(), at), {}, key) for at in range(50) for key in "abc"]
    with world.engine(receiver(), sender(), monitors=[Keeps]):
        world.broker.publish("queue:in", sent)
        world.wait(lambda: len(world.sent()) == 150)
    arrived = world.broker.received("queue:out")
    for key in "abc":
        assert [one.body for one in arrived if one.key == key] == [one.body for one in sent if one.key == key]


# --- rule A6.5 ---


@pytest.mark.parametrize("mode", ALL_RECEIVING)
def test_a6_5_expired_messages_are_dropped_acknowledged_and_counted(world, script, logs, mode):
    """Given an outage of an hour, when the messages come at last, then those that lived shorter are dropped."""
    clock = ManualClock(1_000_000.0)
    now = 1_000_000_000
    script.suspended = lambda monitor, notice: monitor.acknowledge_and_resume("in")
    lives = {f"m{at}": now + (60_000 if at % 2 else 7_200_000) for at in range(10)}
    world.broker.publish("queue:in", [expiring(*one) for one in lives.items()])
    world.broker.publish("queue:in", [expiring("never", 0), message("free")])
    clock.advance(3600)
    with world.engine(receiver("in", mode), monitors=[Hears], clock=clock) as engine:
        world.wait(lambda: world.broker.waiting("queue:in") == world.broker.unacknowledged("queue:in") == 0)
        world.wait(lambda: "free" in script.of("Hears"))
        counters = engine.status().receivers["in"][1]
    heard = [one for one in script.of("Hears") if not one.startswith("suspended")]
    assert heard == ["m0", "m2", "m4", "m6", "m8", "never", "free"]
    assert (counters.received, counters.expired, counters.delivered) == (12, 5, 7)
    (line,) = [one for one in logs if one["event"].startswith("W5405")]
    assert (line["log_level"], line["count"], line["first"]) == ("warning", 5, "m1")


@pytest.mark.parametrize("mode", ALL_RECEIVING)
def test_a6_5_a_batch_of_expired_messages_alone_is_acknowledged(world, script, mode):
    script.suspended = lambda monitor, notice: monitor.acknowledge_and_resume("in")
    with world.engine(receiver("in", mode), monitors=[Hears]) as engine:
        world.broker.publish("queue:in", [expiring("a", 1), expiring("b", 2)])
        world.wait(lambda: engine.status().receivers["in"][1].expired == 2)
        world.wait(lambda: world.broker.unacknowledged("queue:in") == 0)
        world.publish("after")
        world.wait(lambda: "after" in script.of("Hears"))
    assert "suspended in" not in script.of("Hears")[: script.of("Hears").index("after")]


def test_a6_5_what_expired_leaves_no_id_behind(world, script):
    """It is dropped before duplicate detection: the same id may come again in a message that lives."""
    with world.engine(receiver(), monitors=[Keeps]) as engine:
        world.broker.publish("queue:in", [expiring("a", 1)])
        world.wait(lambda: engine.status().receivers["in"][1].expired == 1)
        world.publish("a")
        world.wait(lambda: script.of("Keeps") == ["a"])


def test_a6_5_a_sender_gives_its_messages_a_time_to_live(world, script):
    own = Message(b"own", headers=Headers(time_to_live_ms=5, persistent=False))
    script.message = lambda monitor, message: monitor.send(own if message.body == b"b" else message.body, to="out")
    with world.engine(receiver(), sender(time_to_live=1.5), monitors=[Keeps]):
        world.publish("a", "b")
        world.wait(lambda: len(world.sent()) == 2)
    headers = [one.headers for one in world.broker.received("queue:out")]
    assert [(one.time_to_live_ms, one.persistent) for one in headers] == [(1500, True), (5, False)]


# --- odd messages ---


def test_88_many_and_long_properties_are_taken(world, script):
    odd = [{f"p{number}": number for number in range(10_000)}, {"long": "x" * 1_000_000}]
    heard = []
    script.message = lambda monitor, message: heard.append(message.properties)
    with world.engine(receiver(), monitors=[Keeps]):
        world.broker.publish("queue:in", [Message(b"a", properties) for properties in odd])
        world.wait(lambda: heard == odd)


def test_99_gaps_and_steps_back_in_the_numbers_are_information_only(world, script):
    ids = [f"{number}:S01" for number in (1, 2, 9, 3, 100, 4)]
    with world.engine(receiver(), monitors=[Keeps]):
        world.publish(*(message(one, one, "S01") for one in ids))
        world.wait(lambda: script.of("Keeps") == ids)


@pytest.mark.parametrize("priority", [255, -1])
def test_102_any_priority_is_received_as_it_came(world, script, priority):
    heard = []
    script.message = lambda monitor, message: heard.append(message.headers.priority)
    with world.engine(receiver(), monitors=[Keeps]):
        world.broker.publish("queue:in", [Message(b"a", headers=Headers(priority=priority))])
        world.wait(lambda: heard == [priority])


def test_103_an_answer_to_a_forbidden_destination_is_a_dead_letter(world, script):
    class Forbids(Faults):
        def refused(self, sender, batch):
            return {at: "access refused" for at, one in enumerate(batch) if one.destination == "queue:forbidden"}

    world.broker.faults = Forbids()
    script.message = lambda monitor, message: monitor.send(b"answer", to="out", destination=message.headers.reply_to)
    asks = [Message(b"a", headers=Headers(reply_to=name)) for name in ("queue:forbidden", "queue:allowed")]
    with world.engine(receiver(), sender(), monitors=[Keeps]) as engine:
        world.broker.publish("queue:in", asks)
        world.wait_for("answer", at="queue:allowed")
        world.wait(lambda: engine.checkpoint() and world.dead_letters())
    (reason,) = world.dead_letters()
    assert reason.startswith("E8102")


@pytest.mark.parametrize("no_local", [False, True])
def test_105_messages_of_its_own_senders_are_counted(world, script, logs, no_local):
    def turns_in_circles(monitor, message):
        if message.body in (b"a", b"b"):
            monitor.send(b"echo of %s" % message.body, to="loop")

    script.message = turns_in_circles
    loop = sender("loop", EXACTLY_ONCE, destination="queue:in")
    with world.engine(receiver(no_local=no_local), loop, monitors=[Keeps]) as engine:
        world.publish("a", "b")
        world.wait(lambda: engine.status().receivers["in"][1].own == 2)
        world.publish("end")
        world.wait(lambda: "end" in script.of("Keeps"))
        world.wait(lambda: world.broker.unacknowledged("queue:in") == 0)
    heard = [one for one in script.of("Keeps") if one != "end"]
    assert heard == (["a", "b"] if no_local else ["a", "b", "echo of a", "echo of b"])
    assert len([one for one in logs if one["event"].startswith("W5406")]) == 1


def test_105_messages_of_others_are_not_its_own(world, script):
    with world.engine(receiver(no_local=True), sender(), monitors=[Keeps]) as engine:
        world.publish(message("a", "1:elsewhere", "elsewhere"), message("b"))
        world.wait(lambda: script.of("Keeps") == ["a", "b"])
        assert engine.status().receivers["in"][1].own == 0


# --- messages that cannot be mapped ---


@event
class Ratio:
    """An event whose code fails on some values."""

    name: str
    part: int = 1
    whole: int = 1

    def __post_init__(self) -> None:
        {"a": 1, "b": 2}[self.name]

    @property
    def uid(self) -> str:
        return f"{self.name}-{self.part // self.whole}"


class HearsRatios(Monitor, persistent=True):
    """Remembers what it heard."""

    @on(Ratio)
    def ratio(self, ratio: Ratio) -> None:
        SCRIPT.hear(self, ratio.name)


@pytest.mark.parametrize("threads", [0, 2])
def test_z8_a_message_on_which_the_code_of_its_event_fails_is_a_dead_letter(any_world, script, threads):
    ratios = receiver(event=f"{__name__}:Ratio", unique_message_id="${body.uid}", max_extra_mapping_threads=threads)
    monitors = [MonitorSettings(type=f"{__name__}:HearsRatios")]
    for last in ("a", "b"):
        with any_world.engine(ratios, monitors=monitors):
            if last == "a":
                any_world.publish('{"name": "unknown"}', '{"name": "a", "whole": 0}', '{"name": "a"}')
            else:
                any_world.publish('{"name": "b"}')
            any_world.wait(lambda last=last: last in script.of("HearsRatios"))
            any_world.wait(lambda: any_world.broker.unacknowledged("queue:in") == 0)
    assert script.of("HearsRatios") == ["a", "b"]
    made, asked = any_world.dead_letters()
    assert made == "E5102 receiver in: making the event raised KeyError: 'unknown'."
    assert asked.startswith("E5103 receiver in.unique_message_id: filling it in raised ZeroDivisionError: ")


@pytest.mark.parametrize("body", [b'{"id": "\xff"}', b"[" * 100_000], ids=["invalid UTF-8", "too deep"])
def test_z8_a_body_on_which_a_template_fails_is_a_dead_letter(any_world, script, body):
    with any_world.engine(receiver(unique_message_id="${body.id}"), monitors=[Keeps]):
        any_world.publish(Message(b'{"id": 1}'), Message(body), Message(b'{"id": 2}'))
        any_world.wait(lambda: len(script.of("Keeps")) == 2)
    assert any_world.stored_ids() == ["1", "2"]
    (reason,) = any_world.dead_letters()
    assert reason.startswith("E5103 receiver in.unique_message_id")


# --- rule A9.19 ---


@event
class Quote:
    """An event whose fields lie all over a message."""

    symbol: str
    price: float
    venue: str = "unknown"
    sent_at: int = 0


class Requotes(Monitor, persistent=True):
    """Sends on what it heard."""

    @on(Quote)
    def quote(self, quote: Quote) -> None:
        SCRIPT.hear(self, f"{quote.symbol} {quote.price} {quote.venue} {quote.sent_at}")
        self.send(quote, to="out")


FROM = {
    "symbol": "${property.symbol}",
    "price": "${body}",
    "venue": "${header.reply_to}",
    "sent_at": "${header.timestamp}",
}
TO = {
    "property.symbol": "${event.symbol}",
    "body": "${event.price}",
    "key": "${event.venue}",
    "header.type": "${event.symbol}",
}
REQUOTES = MonitorSettings(type=f"{__name__}:Requotes")


def test_a9_19_a_message_becomes_an_event_and_an_event_a_message(any_world, script):
    quotes = receiver(event=f"{__name__}:Quote", mapping=FROM)
    with any_world.engine(quotes, sender(mapping=TO), monitors=[REQUOTES]):
        headers = Headers(reply_to="XETRA", timestamp=12)
        good = Message(b"2.5", {"symbol": "SAP"}, None, None, headers)
        bad = Message(b'"much"', {"symbol": "IBM"}, None, None, headers)
        any_world.broker.publish("queue:in", [good, bad, good])
        any_world.wait(lambda: len(any_world.sent()) == 2)
        any_world.wait(any_world.dead_letters)
    assert script.of("Requotes") == ["SAP 2.5 XETRA 12"] * 2
    (reason,) = any_world.dead_letters()
    assert reason.startswith("E5102 receiver in: field 'price': 'much'")
    arrived = any_world.broker.received("queue:out")[0]
    assert (arrived.body, arrived.key, arrived.properties["symbol"]) == (b"2.5", "XETRA", "SAP")
    assert (arrived.headers.type, arrived.headers.persistent) == ("SAP", True)


def test_a9_19_mapped_events_are_mapped_again_after_a_crash(any_world, script, gate):
    quotes = receiver(event=f"{__name__}:Quote", mapping=FROM)
    engine = any_world.engine(quotes, sender(mapping=TO), monitors=[REQUOTES], interval=1000.0)
    with engine:
        any_world.broker.publish("queue:in", [Message(b"2.5", {"symbol": "SAP"})])
        any_world.wait(lambda: script.of("Requotes"))
        any_world.crash(engine)
    with any_world.engine(quotes, sender(mapping=TO), monitors=[REQUOTES]):
        any_world.wait_for("2.5")
    assert script.of("Requotes") == ["SAP 2.5 unknown 0"] * 2


def test_a9_16_without_event_and_mapping_messages_pass_through_as_they_are(world, script):
    headers = Headers(correlation_id="C", type="T", priority=3)
    sent = Message(b"\x00\xff", {"a": 1, "b": b"\x00"}, "key", None, headers)
    script.message = lambda monitor, message: monitor.send(message, to="out")
    with world.engine(receiver("in", AT_LEAST_ONCE), sender("out", AT_LEAST_ONCE), monitors=[PASSES]):
        world.broker.publish("queue:in", [sent])
        world.wait(lambda: world.broker.received("queue:out"))
    (arrived,) = world.broker.received("queue:out")
    assert (arrived.body, arrived.properties, arrived.key) == (sent.body, sent.properties, sent.key)
    assert (arrived.headers.correlation_id, arrived.headers.type, arrived.headers.priority) == ("C", "T", 3)


class Passes(Monitor):
    """Does what the script says with any message."""

    @on(Message)
    def message(self, message: Message) -> None:
        SCRIPT.message(self, message)


PASSES = MonitorSettings(type=f"{__name__}:Passes")


# --- rule A9.9 ---


@pytest.mark.parametrize("mode", ALL_RECEIVING)
@pytest.mark.parametrize("threads", [0, 4])
def test_a9_9_extra_threads_keep_the_order(world, script, mode, threads):
    script.suspended = lambda monitor, notice: monitor.acknowledge_and_resume("in")
    bodies = [f'{{"id": {number}}}' for number in range(2000)]
    bodies[700] = "not JSON"
    bodies[1500] = bodies[1499]
    settings = receiver(
        "in", mode, event="tests.runtime.flows:Order", max_extra_mapping_threads=threads, max_batch_size=900
    )
    with world.engine(settings, monitors=[Hears]) as engine:
        world.publish(*bodies)
        world.wait(lambda: world.broker.waiting("queue:in") == world.broker.unacknowledged("queue:in") == 0)
        world.wait(lambda: script.of("Hears")[-1:] in (["order 1999"], ["suspended in"]))
        counters = engine.status().receivers["in"][1]
    expected = [f"order {number}" for number in range(2000) if number not in (700, 1500)]
    if mode is not EXACTLY_ONCE:
        expected.insert(1499, "order 1499")
    assert [one for one in script.of("Hears") if one != "suspended in"] == expected
    assert counters.dead_letters == 1


@pytest.mark.parametrize("threads", [0, 2])
def test_a9_9_a_lost_connection_gives_up_what_was_mapped_ahead(no_store, script, threads):
    settings = receiver(
        "in", BEST_EFFORT, max_extra_mapping_threads=threads, max_batch_size=100, max_batch_interval_ms=100_000
    )
    with no_store.engine(settings, monitors=[Hears]) as engine:
        no_store.publish(*numbered(30))
        no_store.wait(lambda: no_store.broker.unacknowledged("queue:in") == 30)
        no_store.broker.drop_connections()
        no_store.wait(lambda: engine.receivers["in"].counters.connection_errors == 1)
        no_store.publish(*numbered(70, first=31))
        no_store.wait(lambda: len(script.of("Hears")) >= 100)
    assert script.of("Hears") == [f"m{number}" for number in range(1, 101)]
