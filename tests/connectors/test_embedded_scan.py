"""How consumers with selectors find their messages in the embedded broker, over many small pages (rule S4.3)."""

import random
from collections import Counter

import pytest

from connectors.embedded import EmbeddedConnection, scan
from correlator.events import Message
from correlator.settings import ConnectionSettings
from correlator.testing.contract import outgoing, receiver, sender

QUEUE = "queue:work"
SELECTORS = ("n < 2", "n = 2 OR n = 3", None, "n > 2")


class Consumer:
    """A source, and the numbers of the messages that it holds, by token."""

    def __init__(self, connection, name, selector):
        self.source = connection.source(receiver(QUEUE, name, 7, selector=selector))
        self.source.connect()
        self.selector = selector
        self.held = []

    def takes(self, n):
        return {"n < 2": n < 2, "n = 2 OR n = 3": n in (2, 3), None: True, "n > 2": n > 2}[self.selector]


@pytest.mark.parametrize("page", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_s4_3_every_message_is_taken_by_who_selects_it(tmp_path, monkeypatch, page, seed):
    """Four consumers take drawn steps. Others find what a consumer gives back or loses with its connection."""
    monkeypatch.setattr(scan, "PAGE", page)
    monkeypatch.setattr(scan, "PAGES", 2)
    rng = random.Random(seed)
    connection = EmbeddedConnection(
        "local", ConnectionSettings(type="embedded", options={"store": f"sqlite:///{tmp_path}/broker.db"})
    )
    sink = connection.sink(sender(QUEUE))
    sink.connect()
    consumers = [Consumer(connection, f"c{at}", selector) for at, selector in enumerate(SELECTORS)]
    sent, done = 0, Counter()
    for step in range(120):
        one = rng.choice(consumers)
        action = rng.choice(("send", "receive", "receive", "receive", "acknowledge", "reject", "reconnect"))
        if action == "send" and step < 80:
            batch = [Message(b"%d" % (sent + at), {"n": rng.randrange(5)}) for at in range(rng.randint(1, 6))]
            assert not any(sink.send(outgoing(QUEUE, batch, "life", sent + 1)))
            sent += len(batch)
        elif action == "receive":
            chunk = one.source.receive(rng.randint(1, 4), 0.0)
            assert all(one.takes(message.properties["n"]) for message in chunk.messages)
            assert [int(m.body) for m in chunk.messages] == sorted(int(m.body) for m in chunk.messages)
            if chunk.messages:
                one.held.append((chunk.tokens, [int(message.body) for message in chunk.messages]))
        elif action == "acknowledge" and one.held:
            tokens, numbers = one.held.pop(0)
            one.source.acknowledge(tokens)
            done.update(numbers)
        elif action == "reject" and one.held:
            one.source.reject(one.held.pop()[0])
        elif action == "reconnect":
            one.source.connect()
            one.held.clear()
    for one in consumers[:2] + consumers[3:]:
        one.source.close()
    rest = consumers[2]
    for tokens, numbers in rest.held:
        rest.source.acknowledge(tokens)
        done.update(numbers)
    while (chunk := rest.source.receive(7, 0.0)).messages:
        rest.source.acknowledge(chunk.tokens)
        done.update(int(message.body) for message in chunk.messages)
    rest.source.close()
    sink.close()
    assert done == Counter(range(sent))
