"""What lives leave behind stays bounded: a BEST_EFFORT sender has a new source in each of them.

The long form: `LIVES=10000 pytest tests/connectors/test_growth.py`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from sqlalchemy import Connection, text

from connectors.embedded import EmbeddedConnection, sending
from connectors.embedded.consumers import Lives
from connectors.embedded.link import open_link
from connectors.embedded.sending import Terms
from connectors.embedded.storing import NewMessage
from connectors.file.connection import FileConnection
from connectors.file.journal import MOST_LIVES
from correlator.events import Message, Outgoing
from correlator.reliability import Reliability
from correlator.settings import ConnectionSettings, SenderSettings
from correlator.storage.database import reading

LIVES = int(os.environ.get("LIVES", "250"))

TERMS = Terms(cast(Lives, None), set())
"""No destination of these tests is temporary, and none has a limit."""


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """The broker's database, without synchronous writes."""
    link = open_link(f"sqlite:///{tmp_path / 'broker.db'}")
    with link.transaction() as connection:
        yield connection
    link.close()


def rows(connection: Connection) -> int:
    return int(connection.execute(text("SELECT count(*) FROM broker_sender")).scalar_one())


def stored(connection: Connection, source: str, *sequences: int) -> int:
    """Store messages of a source; returns how many were new."""
    count = text("SELECT count(*) FROM broker_content")
    before = connection.execute(count).scalar_one()
    sending.store(connection, "queue:out", [NewMessage(source, one, "ID:x", b"x") for one in sequences], TERMS)
    return int(connection.execute(count).scalar_one()) - int(before)


def test_lives_leave_a_bounded_number_of_rows(connection):
    sending.store(connection, "topic:out", [NewMessage("steady", 7, "ID:x", b"x")], TERMS)
    for life in range(LIVES):
        source = sending.of_one_life(f"host:1:{life}:S01")
        sending.store(connection, "topic:out", [NewMessage(source, 1, "ID:x", b"x")], TERMS)
        assert rows(connection) <= sending.MOST_LIVES + 1
    numbers = connection.execute(text("SELECT source, last_sequence FROM broker_sender")).all()
    assert ("steady", 7) in [tuple(row) for row in numbers]


def test_a_repeat_within_a_life_is_still_dropped(connection):
    source = sending.of_one_life("host:1:2:S01")
    assert stored(connection, source, 1, 2) == 2
    assert stored(connection, source, 2, 3) == 1


def best_effort(connection, destination: str, life: int) -> None:
    """One life of a best-effort sender: it sends a message, connects again, and repeats the message."""
    sink = connection.sink(SenderSettings(id="out", connection="c", destination=destination))
    out = Outgoing(1, f"host:1:{life}:S01", destination, Message(b"1"))
    for _ in range(2):
        sink.connect()
        assert list(sink.send([out])) == [None]
    sink.close()


def reliable(connection, destination: str) -> None:
    settings = SenderSettings(id="o", connection="c", destination=destination, reliability=Reliability.EXACTLY_ONCE)
    sink = connection.sink(settings)
    sink.connect()
    assert list(sink.send([Outgoing(1, "steady", destination, Message(b"0"))])) == [None]
    sink.close()


def test_lives_over_the_embedded_broker(tmp_path):
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    connection = EmbeddedConnection("c", ConnectionSettings(type="embedded", options={"store": url}))
    reliable(connection, "queue:out")
    for life in range(LIVES):
        best_effort(connection, "queue:out", life)
    reliable(connection, "queue:out")
    assert len(connection.browse("queue:out", 10**9)) == LIVES + 1
    with reading(url) as looking:
        assert rows(looking) <= sending.MOST_LIVES + 1


def test_lives_over_a_file(tmp_path):
    connection = FileConnection("c", ConnectionSettings(type="file", options={"path": str(tmp_path)}))
    reliable(connection, "queue:out.jsonl")
    sizes = []
    for life in range(LIVES):
        best_effort(connection, "queue:out.jsonl", life)
        (sidecar,) = (tmp_path / ".positions").glob("*.written")
        sizes.append(sidecar.stat().st_size)
    reliable(connection, "queue:out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == b"0\n" + b"1\n" * LIVES
    kept = msgspec.json.decode(sidecar.read_bytes())
    assert (len(kept["lives"]), kept["sequences"]) == (MOST_LIVES, {"steady": 1})
    assert max(sizes[-10:]) < sizes[20] + 50
