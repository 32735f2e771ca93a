"""The tally of the embedded broker agrees with the stored messages after every kind of change."""

import random
from contextlib import suppress

import pytest

from connectors.embedded import tally, unused
from connectors.embedded.link import open_link
from connectors.embedded.sweeping import Round
from correlator.connector import Place, Subscriber, Work
from correlator.errors import ConnectionLost, SendRejected, UsageError
from correlator.settings import SenderSettings
from tests.connectors.embedded import connected, kill, message, outgoing
from tests.harness.service.tables import tables

QUEUES, TOPIC, SUBSCRIPTIONS = ("queue:a", "queue:b"), "topic:t", ("one", "two", "three")
CHANGES = (
    *("send", "take", "settle", "prepare", "resolve", "subscribe", "unsubscribe", "delete", "purge", "move", "retry"),
    *("limit", "expire", "sweep", "kill", "restart", "send", "take"),
)
LIMITS = ("REJECT_NEWEST", "REMOVE_OLDEST", "REMOVE_LOW_PRIORITY")


class Walk:
    """Random changes of one broker.

    Attributes:
        done: the names of the changes that nobody refused.
    """

    def __init__(self, broker, seed):
        self.broker = broker
        self.chance = random.Random(seed)
        self.done = []
        self._admin = broker.connection.administration()
        self._number = 0
        self._prepared = []
        self._begin()

    def _begin(self):
        self._client = self.broker.connection.attach(None)
        self._session = self._client.session()
        self._sources = {}

    def step(self):
        change = self.chance.choice(CHANGES)
        with suppress(UsageError, SendRejected, ConnectionLost):  # somebody uses the destination, or it is full
            getattr(self, change)()
            self.done.append(change)

    def messages(self, destination):
        made = []
        for _ in range(self.chance.randint(1, 4)):
            self._number += 1
            headers = {"persistent": self.chance.random() < 0.7, "priority": self.chance.randint(3, 5)}
            headers["delivery_delay_ms"] = self.chance.choice((None, None, 1, 100_000))
            headers["time_to_live_ms"] = self.chance.choice((None, 500_000))
            made.append(message("x" * self._number, {"n": self._number % 3}, **headers))
        return outgoing(*made, destination=destination)

    def send(self):
        sink = connected(self._session.sink(SenderSettings(id="s", connection="c", destination=None)))
        sink.send(self.messages(self.chance.choice((*QUEUES, TOPIC))))
        sink.close()

    def source(self):
        destination = self.chance.choice((*QUEUES, TOPIC))
        name = self.chance.choice(SUBSCRIPTIONS) if destination == TOPIC else ""
        key = destination, name
        if key not in self._sources:
            if name:
                kind = Subscriber(name, durable=True, shared=True)
                self._sources[key] = self.broker.subscriber(self._session, kind, destination)
            else:
                self._sources[key] = self.broker.source(self._session, destination)
        return self._sources[key]

    def taken(self):
        source = self.source()
        return source, source.receive(self.chance.randint(1, 3), 0.0).tokens

    def take(self):
        source, tokens = self.taken()
        end = self.chance.choice((source.acknowledge, source.acknowledge, source.reject, lambda _: None))
        end(tokens)

    def settle(self):
        self._session.settle(Work([self.taken()], self.messages(self.chance.choice((*QUEUES, TOPIC)))))

    def prepare(self):
        self._prepared.append(f"{self._number}-{len(self._prepared)}-{self.chance.random()}")
        self._session.prepare(self._prepared[-1], Work([self.taken()], self.messages(self.chance.choice(QUEUES))))

    def resolve(self):
        if self._prepared:
            self._session.resolve(self._prepared.pop(), commit=self.chance.random() < 0.6)

    def close_sources(self):
        for source in self._sources.values():
            source.close()
        self._sources = {}

    def subscribe(self):
        place = Place(TOPIC, self.chance.choice(SUBSCRIPTIONS))
        self._admin.subscribe(place, shared=True, selector=self.chance.choice((None, "n = 1")))

    def unsubscribe(self):
        self.close_sources()
        name = self.chance.choice(SUBSCRIPTIONS)
        if self.chance.random() < 0.5:
            self.broker.connection.unsubscribe(TOPIC, name)
        else:
            self._admin.delete(Place(TOPIC, name), force=True)

    def delete(self):
        self.close_sources()
        name = self.chance.choice((*QUEUES, TOPIC))
        if self.chance.random() < 0.5:
            self.broker.connection.delete(name)
        else:
            self._admin.delete(Place(name), force=True)

    def purge(self):
        self._admin.purge(Place(self.chance.choice((*QUEUES, TOPIC, "queue:mq.sys.dmq"))))

    def move(self):
        self._admin.move(*QUEUES, None, 3)

    def retry(self):
        self._admin.retry(None, 3)

    def limit(self):
        behavior = self.chance.choice(LIMITS)
        given = {"max_num_msgs": self.chance.choice((3, 6, -1)), "limit_behavior": behavior}
        self.broker.connection.update(self.chance.choice((*QUEUES, TOPIC)), given)

    def expire(self):
        self.execute("UPDATE broker_delivery SET expires = 1 WHERE expires > 0 AND number % 2 = 0")

    def sweep(self):
        self.execute(f"UPDATE broker_destination SET unused_since = unused_since - {unused.KEPT_MS}")
        link = open_link(self.broker.store)
        Round(link, lambda _: False).run()
        link.close()

    def execute(self, statement):
        link = open_link(self.broker.store)
        with link.transaction() as connection:
            connection.connection.cursor().execute(statement)
        link.close()

    def kill(self):
        for source in self._sources.values():
            kill(source)
        self._sources = {}

    def restart(self):
        self.close()
        self._begin()

    def close(self):
        self.close_sources()
        self._session.close()
        self._client.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_tally_is_what_is_stored_after_each_of_many_changes(broker, monkeypatch, seed):
    monkeypatch.setattr(tally, "FOLDED", 3)
    broker.send("first", destination=QUEUES[0])
    walk = Walk(broker, seed)
    for _ in range(120):
        walk.step()
        with tables(broker.store) as rows:
            wrong = [one for one in rows.contradictions() if "limit" not in one]  # limits are lowered, too
        assert wrong == [], walk.done
    assert set(walk.done) == set(CHANGES)
    walk.close()
