"""Processes that use the connectors are killed at random points: nothing is lost, nothing is stored twice."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.embedded import EmbeddedConnection
from correlator.events import Message
from correlator.settings import ConnectionSettings
from tests import forked
from tests.connectors import worker
from tests.connectors.worker import LAST, body_of
from tests.contract.worlds import EmbeddedWorld

pytestmark = pytest.mark.kill9

KILLS = 6


def run_and_kill(arguments: list[str], lines_before_kill: int | None) -> list[str]:
    """The lines that the worker printed until it was killed, or until it ended."""
    reading, writing = os.pipe()
    process = forked.start(worker.command, ["worker", *arguments], Path.cwd(), os.environ, writing, 2)
    os.close(writing)
    lines = []
    with os.fdopen(reading) as printed:
        for line in printed:
            lines.append(line.strip())
            if len(lines) == lines_before_kill:
                process.kill()
    process.join()
    assert process.exitcode == 0 or lines_before_kill is not None
    process.close()
    return lines


def kill_senders(kind: str, option: str, destination: str, seed: int) -> None:
    """Send 1 to LAST with drawn kills; each life begins after the last confirm, or well before it."""
    chance = random.Random(seed)
    confirmed = 0
    for kill in range(KILLS + 1):
        first = max(1, confirmed + 1 - chance.choice([0, 0, 25, 100]))
        arguments = ["send", kind, option, destination, str(first)]
        lines = run_and_kill(arguments, chance.randint(1, 12) if kill < KILLS else None)
        confirmed = max([confirmed, *map(int, lines)])
    assert confirmed == LAST


def kill_receivers(kind: str, option: str, destination: str, seed: int) -> None:
    """Receive 1 to LAST with drawn kills; acknowledged messages never come again, all others come in order."""
    chance = random.Random(seed)
    acknowledged = 0
    for kill in range(KILLS + 1):
        arguments = ["receive", kind, option, destination, str(kill)]
        lines = run_and_kill(arguments, chance.randint(1, 25) if kill < KILLS else None)
        last = acknowledged
        for line in lines:
            if line == "acked":
                acknowledged = last
            elif line != "got":
                numbers = [int(body[5:-1]) for body in line.split()[1:]]
                # A batch may have been acknowledged without the worker living to tell.
                first_expected = last + 1
                assert numbers[0] >= first_expected
                assert numbers[0] <= first_expected + 40
                assert kill > 0 or numbers[0] == first_expected
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
                last = numbers[-1]
    assert acknowledged == LAST


@pytest.mark.parametrize("seed", [1, 2])
def test_embedded_senders_on_sqlite(tmp_path: Path, seed: int) -> None:
    store = f"sqlite:///{tmp_path}/broker.db"
    kill_senders("embedded", f"store={store}", "queue:out", seed)
    assert [m.body for m in EmbeddedWorld(store).collect("queue:out", LAST)] == list(map(body_of, range(1, LAST + 1)))


@pytest.mark.postgres
def test_embedded_senders_on_postgres(postgres: Callable[[], str]) -> None:
    store = postgres()
    kill_senders("embedded", f"store={store}", "queue:out", 3)
    assert [m.body for m in EmbeddedWorld(store).collect("queue:out", LAST)] == list(map(body_of, range(1, LAST + 1)))


@pytest.mark.parametrize("seed", [1, 2])
def test_file_senders(tmp_path: Path, seed: int) -> None:
    kill_senders("file", f"path={tmp_path}", "queue:out.jsonl", seed)
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert lines == list(map(body_of, range(1, LAST + 1)))


def test_embedded_receivers_on_sqlite(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/broker.db"
    EmbeddedWorld(store).publish("queue:in", [Message(body_of(n)) for n in range(1, LAST + 1)])
    kill_receivers("embedded", f"store={store}", "queue:in", 4)
    connection = EmbeddedConnection("c", ConnectionSettings(type="embedded", options={"store": store}))
    assert not connection.browse("queue:in", 10)
    assert (
        len(list((tmp_path / "broker.db.consumers").iterdir())) <= 1
    )  # of the killed only the last may have left its file


@pytest.mark.postgres
def test_embedded_receivers_on_postgres(postgres: Callable[[], str]) -> None:
    store = postgres()
    EmbeddedWorld(store).publish("queue:in", [Message(body_of(n)) for n in range(1, LAST + 1)])
    kill_receivers("embedded", f"store={store}", "queue:in", 5)


def test_file_receivers(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"".join(body_of(n) + b"\n" for n in range(1, LAST + 1)))
    kill_receivers("file", f"path={tmp_path}", "queue:in.jsonl", 6)
