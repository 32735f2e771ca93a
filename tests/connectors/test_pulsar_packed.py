"""Entries of several messages: in whatever order these are acknowledged and given back, the backlog ends.

The broker is a model of what Pulsar does: it knows entries only. An entry is done when the client has acknowledged all
messages of one delivery of it; when one of them is given back, all of it is delivered once more. The source is the real
one, with a clock that moves when it waits. Each deliberate bug below must leave a backlog, or do something twice.
"""

from collections import Counter
from random import Random
from types import SimpleNamespace

import pulsar
import pytest

from connectors.pulsar import PulsarConnection, source
from connectors.pulsar.source import PulsarSource
from connectors.pulsar.unsettled import Unsettled
from correlator.errors import ConnectionLost
from correlator.settings import ConnectionSettings, ReceiverSettings

SCHEDULES = 60
STEPS = 60
ROUNDS = 400


class Entry:
    def __init__(self, number, size):
        self.number = number
        self.size = size
        self.redeliveries = 0


class Name:
    """The message id of the client, which belongs to one delivery."""

    def __init__(self, entry, index, unacknowledged):
        self.entry = entry
        self.index = index
        self.unacknowledged = unacknowledged

    def ledger_id(self):
        return 1

    def entry_id(self):
        return self.entry.number

    def batch_index(self):
        return self.index if self.entry.size > 1 else -1

    def partition(self):
        return -1


class Sent:
    def __init__(self, name):
        self.name = name
        self.redeliveries = name.entry.redeliveries

    def message_id(self):
        return self.name

    def has_null_value(self):
        return False

    def data(self):
        return b"%d:%d" % (self.name.entry.number, self.name.index)

    def properties(self):
        return {"odd": str(self.name.index % 2)}

    def partition_key(self):
        return ""

    def event_timestamp(self):
        return 1

    publish_timestamp = event_timestamp

    def redelivery_count(self):
        return self.redeliveries


class PackingBroker:
    """The broker, its client and the consumer.

    Attributes:
        backlog: the entries that are not done.
    """

    def __init__(self, random):
        self.random = random
        self.now = 0.0
        self.backlog = set()
        self.queue = []
        self.coming = set()

    def publish(self, number, size):
        entry = Entry(number, size)
        self.backlog.add(entry)
        self.deliver(entry)

    def deliver(self, entry):
        unacknowledged = set(range(entry.size))
        self.queue += [Sent(Name(entry, index, unacknowledged)) for index in range(entry.size)]

    # --- as link and consumer ---

    def open(self):
        pass

    def close(self):
        pass

    def subscribe(self, *_):
        return self

    def is_connected(self):
        return True

    def receive(self, wait_ms):
        if self.coming and self.random.random() < 0.5:
            for entry in sorted(self.coming & self.backlog, key=lambda one: one.number):
                entry.redeliveries += 1
                self.deliver(entry)
            self.coming = set()
        if not self.queue:
            self.now += max(1, wait_ms) / 1000
            raise pulsar.exceptions.Timeout
        return self.queue.pop(0)

    def acknowledge(self, name):
        name.unacknowledged.discard(name.index)
        if not name.unacknowledged:
            self.backlog.discard(name.entry)

    def negative_acknowledge(self, name):
        self.coming.add(name.entry)


def check(monkeypatch, seed, selector=None):
    """Run one schedule. Raises `AssertionError` for a backlog that stays, and for a message that is processed twice."""
    random = Random(seed)
    broker = PackingBroker(random)
    monkeypatch.setattr(source, "PulsarLink", lambda *_: broker)
    monkeypatch.setattr(source, "time", SimpleNamespace(monotonic=lambda: broker.now))
    settings = ReceiverSettings(
        id="r",
        connection="c",
        destination="queue:q",
        max_batch_size=random.choice((3, 10, 1000)),
        selector=selector,
        options={"acknowledge_rejected_messages": True} if selector else {},
    )
    one = PulsarConnection("c", ConnectionSettings(type="pulsar")).source(settings)
    one.connect()
    done, held, wanted = Counter(), [], set()
    for number in range(random.randint(1, 4)):
        size = random.choice((1, 2, 3, 5))
        broker.publish(number, size)
        wanted |= {b"%d:%d" % (number, index) for index in range(size) if selector is None or index % 2}

    def settle(chunk, *, gives_back):
        if gives_back:
            one.reject(chunk.tokens)
        else:
            one.acknowledge(chunk.tokens)
            done.update(message.body for message in chunk.messages)

    for _ in range(STEPS):
        chunk = one.receive(random.choice((1, 1, 2, 10)), 0.1)
        if chunk.messages:
            held.append(chunk)
        if held and random.random() < 0.6:
            settle(held.pop(random.randrange(len(held))), gives_back=random.random() < 0.4)
    for _ in range(ROUNDS):
        while held:
            settle(held.pop(), gives_back=False)
        if not broker.backlog and set(done) == wanted:
            break
        chunk = one.receive(10, 30.0)
        held += [chunk] if chunk.messages else []
    assert not broker.backlog, "the backlog does not end"
    assert done == Counter(wanted), "not all were done once"


@pytest.mark.parametrize("selector", [None, "odd = '1'"])
def test_the_backlog_of_packed_entries_ends_in_whatever_order_they_are_settled(monkeypatch, selector):
    for seed in range(SCHEDULES):
        check(monkeypatch, seed, selector)


# --- deliberate bugs ---

original = SimpleNamespace(
    arrived=Unsettled.arrived, acknowledged=Unsettled.acknowledged, given_back=Unsettled.given_back
)


def forgets_what_is_done(self, at):
    name = original.acknowledged(self, at)
    self._done.clear()
    return name


def keeps_the_first_name(self, at, name):
    before = self._held.get(at)
    arrival = original.arrived(self, at, name)
    if before is not None and at in self._held:
        self._held[at] = before
    return arrival


def does_not_know_what_is_broken_up(self, at, due):
    original.given_back(self, at, due)
    self._broken_up.clear()


def drops_what_is_done(self, consumer, message):
    """A bug: drop a processed message without an acknowledgement for the new delivery."""
    quiet = SimpleNamespace(acknowledge=lambda _: None)
    return taken(self, quiet, message)


taken = PulsarSource._taken


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (Unsettled, "acknowledged", forgets_what_is_done),
        (Unsettled, "arrived", keeps_the_first_name),
        (Unsettled, "given_back", does_not_know_what_is_broken_up),
        (PulsarSource, "_taken", drops_what_is_done),
    ],
)
def test_a_deliberate_bug_is_found(monkeypatch, owner, name, bug):
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises((AssertionError, ConnectionLost)):
        for seed in range(SCHEDULES):
            check(monkeypatch, seed)
