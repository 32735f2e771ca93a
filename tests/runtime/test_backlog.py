"""What the destinations still hold: asked of the source, in the thread of the receiver, at most once a second."""

import json

import pytest

from connectors.embedded import EmbeddedConnection
from connectors.file.connection import FileConnection
from correlator.connector import Backlog, TellsBacklog
from correlator.events import Message, Outgoing
from correlator.runtime.status import ReceiverCounters
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from correlator.testing.clock import ManualClock
from correlator.testing.memory import MemoryBroker, MemorySource
from correlator.testing.store import Disk
from tests.runtime.flows import Idles
from tests.runtime.stepped import stepped, work
from tests.runtime.test_status import a_status
from tests.runtime.world import receiver, sender


def taker(destination: str, **options) -> ReceiverSettings:
    return ReceiverSettings(id="in", connection="c", destination=destination, options=options)


def giver(destination: str) -> SenderSettings:
    return SenderSettings(id="out", connection="c", destination=destination)


def test_a_file_tells_its_unread_bytes(tmp_path):
    lines = [json.dumps({"n": n}) + "\n" for n in range(4)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    connection = FileConnection("c", ConnectionSettings(type="file", options={"path": str(tmp_path)}))
    source = connection.source(taker("queue:a.jsonl", follow=True))
    assert isinstance(source, TellsBacklog)
    source.connect()
    whole = sum(map(len, lines))
    assert source.backlog() == Backlog(size=whole)
    chunk = source.receive(3, 0.0)
    assert source.backlog() == Backlog(size=len(lines[3]))
    source.reject(chunk.tokens)
    assert source.backlog() == Backlog(size=whole)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(lines[0])
    assert source.backlog() == Backlog(size=whole + len(lines[0]))
    source.close()
    connection.close()


@pytest.mark.parametrize(("destination", "told"), [("queue:q", Backlog(messages=1)), ("topic:t", None)])
def test_the_embedded_broker_tells_the_messages_of_a_queue(destination, told, tmp_path):
    settings = ConnectionSettings(type="embedded", options={"store": f"sqlite:///{tmp_path}/broker.db"})
    connection = EmbeddedConnection("c", settings)
    source, sink = connection.source(taker(destination)), connection.sink(giver(destination))
    source.connect()
    sink.connect()
    sink.send([Outgoing(n, "s", destination, Message(b"x")) for n in (1, 2, 3)])
    chunk = source.receive(2, 1.0)
    assert len(chunk.messages) == 2
    assert source.backlog() == told
    source.acknowledge(chunk.tokens)
    assert source.backlog() == told
    for part in (source, sink, connection):
        part.close()


def test_the_status_sums_what_sources_tell():
    def status(*told):
        return a_status(
            1.0, receivers={str(at): ("receiving", ReceiverCounters(backlog=one)) for at, one in enumerate(told)}
        )

    assert status(None).backlog() == Backlog()
    assert status(None, Backlog(messages=2), Backlog(messages=3), Backlog(size=10)).backlog() == Backlog(5, 10)


def test_a_receiver_asks_once_a_second_and_at_its_end_not_at_all(monkeypatch):
    told = iter([Backlog(messages=7), None, Backlog(messages=3)])

    class Tells(MemorySource):
        def backlog(self):
            return next(told)

    monkeypatch.setattr("correlator.testing.memory.MemorySource", Tells)
    clock = ManualClock()
    engine = stepped(Disk(), MemoryBroker(), receiver("in"), sender(), processors=[Idles()], clock=clock)

    def backlog():
        work(engine, 3)
        return engine.status().receivers["in"][1].backlog

    assert backlog() == Backlog(messages=7)
    clock.advance(0.9)
    assert backlog() == Backlog(messages=7)
    clock.advance(0.1)
    assert backlog() is None
    clock.advance(1.0)
    assert backlog() == Backlog(messages=3)
    engine.stop(drain=False)


def test_a_file_that_has_ended_has_no_backlog(world, tmp_path):
    (tmp_path / "a.jsonl").write_text("1\n" * 5)
    files = FileConnection("files", ConnectionSettings(type="file", options={"path": str(tmp_path)}))
    connections = {"memory": world.broker.connection(), "files": files}
    one = receiver("in", connection="files", destination="queue:a.jsonl")
    with world.engine(one, sender(), processors=[Idles()], connections=connections) as engine:
        engine.run_until_ended()
        assert engine.status().backlog() == Backlog()
