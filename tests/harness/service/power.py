"""Losses of power: records all calls of the service on a SQLite file, and judges what a loss can leave on the disk.

Processes run one after another, and some of them are killed. The trace also holds the journal of their calls and
answers. An image is the content that the disk may have after a loss. Its tables are read as if a program received all
messages in them, so the judge of the other campaigns decides. On some images a real program continues, as after a new
start of the host.
"""

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from connectors.embedded import link
from connectors.embedded.content import read_message
from correlator.events import Message
from correlator.testing import files
from correlator.testing.power.disk import KINDS, Disk, Image
from correlator.testing.power.place import put
from correlator.testing.syscalls import library
from correlator.testing.syscalls.library import Action, CallFault
from correlator.testing.syscalls.trace import CallKind, CallRecord, Trace
from tests.harness.service import roles, topology
from tests.harness.service.campaign import FileStores, bury
from tests.harness.service.drain import drain
from tests.harness.service.journal import (
    Answered,
    Asked,
    Born,
    Ended,
    Event,
    Got,
    Journal,
    Restarted,
    decoded,
    now,
    read,
)
from tests.harness.service.judge import Breach, violations
from tests.harness.service.life import JOURNAL, fork
from tests.harness.service.roles import Worker
from tests.harness.service.tables import Tables, tables

DATABASE = "broker.db"
IMAGES_OF_A_RUN = 1500
RESTART_EVERY = 50
RESTART_OF_LOST_CLAIMS = 10
"""One in this number of images that lack a claim is used by a real program."""
STEPS = 6
KILLED_BEFORE = (20, 120)
"""A killed process dies before a call that changes a file; the number of the call is between these two."""
WAL_PAGES = 40
MOST_TOLD = 5
_DRAIN = 10_000
"""Number, in the journal, of a process that takes all messages out of an image."""
_LOST_BY_POWER = {"COUNT"}
"""Allowed violations: a claim need not be on the disk, so a delivery may not be counted."""
_DELIVERIES = (
    "SELECT n.name, s.name, d.state, d.deliveries, d.number, c.message_id, c.content FROM broker_delivery d"
    " JOIN broker_content c ON c.number = d.number JOIN broker_subscription s ON s.id = d.subscription"
    " JOIN broker_destination n ON n.id = s.destination WHERE d.state <> 3"
)
_PREPARED = (
    "SELECT t.name, n.name, d.number, c.message_id, c.content FROM broker_delivery d"
    " JOIN broker_content c ON c.number = d.number JOIN broker_subscription s ON s.id = d.subscription"
    " JOIN broker_destination n ON n.id = s.destination JOIN broker_tx t ON t.id = d.consumer WHERE d.state = 3"
)
_PREPARED_SENDS = (
    "SELECT t.name, p.destination, p.position + 1000000000, p.message_id, p.content FROM broker_tx_send p JOIN broker_tx t ON t.id = p.tx"
    " ORDER BY p.tx, p.position"
)


class PowerFigures(msgspec.Struct):
    """The figures of a campaign.

    Attributes:
        images: judged images.
        bad: images that contradict what programs observed.
        no_effect: images with everything that the processes had seen.
        without_claim: images in which a delivered message looks as if nobody had got it.
        restarts: images that a real program used.
        runs: recorded runs.
        kinds: images by kind.
        by_violation: bad images by the promise that they violate.
        told: some of the violations.
        seconds, cpu_seconds: duration and CPU time of the campaign.
    """

    images: int = 0
    bad: int = 0
    no_effect: int = 0
    without_claim: int = 0
    restarts: int = 0
    runs: int = 0
    kinds: Counter[str] = msgspec.field(default_factory=Counter)
    by_violation: Counter[str] = msgspec.field(default_factory=Counter)
    told: list[str] = []
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def line(self) -> str:
        """Return the figures as one line."""
        kinds = ", ".join(f"{kind} {self.kinds[kind]:,}" for kind in KINDS)
        violated = ", ".join(f"{name} {count:,}" for name, count in sorted(self.by_violation.items()))
        return (
            f"{self.images:,} images ({kinds}) of {self.runs} runs, {self.bad:,} bad{violated and f' ({violated})'}, "
            f"{self.no_effect:,} without effect, {self.without_claim:,} without a claim, {self.restarts:,} restarts, {self.seconds:.0f} s, "
            f"{self.cpu_seconds:.0f} s of CPU, {self.images / max(self.cpu_seconds, 0.001):.0f} images per second of CPU"
        )


def _send(worker: Worker) -> None:
    roles.send_to(worker, [topology.PLAIN, topology.DEPOT, topology.NEWS, *topology.LIMITED])


CAST: roles.Cast = {
    _send: 3,
    roles.feed: 3,
    roles.send_in_transactions: 2,
    roles.send_in_order: 1,
    roles.consume: 4,
    roles.consume_in_order: 1,
    roles.consume_shared: 2,
    roles.take_and_send: 4,
    roles.prepare: 3,
    roles.resolve: 1,
}
LIVES = 10


def record(directory: Path, trace: Path, seed: int) -> None:
    """Record the run of a seed, on the broker file in this directory."""
    rng = random.Random(f"service power {seed}")
    for life in range(1, LIVES + 1):
        role = roles.feed if life == 1 else rng.choices(list(CAST), list(CAST.values()))[0]
        fault = CallFault(action=Action.KILL, at=rng.randint(*KILLED_BEFORE)) if rng.random() < 0.4 else None
        bury(fork(trace.parent, partial(_live, directory, trace, seed, life, role, fault)))


def _live(directory: Path, trace: Path, seed: int, life: int, role: roles.Role, fault: CallFault | None) -> None:
    library.arm(directory, trace=trace, fault=fault)
    journal = Journal(library.mark, life)
    journal.add(Born(now(), life, role.__name__))
    worker = Worker(f"sqlite:///{directory / DATABASE}", life, journal, random.Random(f"{seed} {life}"), STEPS)
    worker.watch()
    role(worker)
    journal.add(Ended(now(), life))


def power(images: int, *, seed: int, most_bad: int = MOST_TOLD) -> PowerFigures:
    """Judge this number of images; end earlier if too many are bad."""
    figures = PowerFigures()
    began, used = time.monotonic(), os.times()
    content = FileStores().content
    with tempfile.TemporaryDirectory(prefix="correlator-service-power-") as place:
        campaign = _Campaign(Path(place), figures)
        while figures.images < images and figures.bad < most_bad:
            campaign.run(seed + figures.runs, content, min(images, figures.images + IMAGES_OF_A_RUN), most_bad)
    figures.seconds = round(time.monotonic() - began, 2)
    figures.cpu_seconds = round(sum(os.times()[:4]) - sum(used[:4]), 2)
    return figures


class _Campaign:
    def __init__(self, directory: Path, figures: PowerFigures) -> None:
        self._figures = figures
        self._directory = directory
        self._read, self._opened = directory / "read", directory / "opened"
        for place in (self._read, self._opened):
            place.mkdir(mode=0o700)

    def run(self, seed: int, content: bytes, until: int, most_bad: int) -> None:
        """Record a run, and pass over its trace until enough images are judged."""
        directory, trace = self._directory / "run", self._directory / "trace"
        directory.mkdir(mode=0o700)
        files.write(directory / DATABASE, [content])
        record(directory, trace, seed)
        records = list(Trace(trace, ends_anywhere=True))
        figures = self._figures
        figures.runs += 1
        for number in range(1, 1000):
            for where, image, events in _moments(records, content, seed, number):
                if figures.images >= until or figures.bad >= most_bad:
                    shutil.rmtree(directory)
                    trace.unlink()
                    return
                self._judge(where, image, events)

    def _judge(self, where: str, image: Image, events: Sequence[Event]) -> None:
        figures = self._figures
        figures.images += 1
        figures.kinds[image.kind] += 1
        figures.no_effect += not image.effective
        files_there = {name: content for name, content in image.files.items() if "/" not in name}
        found, lacks_a_claim = _seen(put(self._read, files_there), events)
        figures.without_claim += lacks_a_claim
        often = RESTART_OF_LOST_CLAIMS if lacks_a_claim else RESTART_EVERY
        if not found and (figures.without_claim if lacks_a_claim else figures.images) % often == 0:
            figures.restarts += 1
            found = self._restart(files_there, events)
        if found:
            figures.bad += 1
            figures.by_violation.update({one.id for one in found})
            if len(figures.told) < MOST_TOLD:
                figures.told.append(f"{where}, {image.kind}: " + "; ".join(map(str, found[:3])))

    def _restart(self, image: dict[str, bytearray], events: Sequence[Event]) -> list[Breach]:
        """Let a program continue from an image, as after a new start of the host."""
        shutil.rmtree(self._opened)
        self._opened.mkdir(mode=0o700)
        store = f"sqlite:///{put(self._opened, image) / DATABASE}"
        journal = self._opened / JOURNAL
        names = [one for one in events if isinstance(one, Asked) and one.call == "prepare"]

        def go_on() -> None:
            link.SqliteLink.note_boot = _note_another_boot  # type: ignore[method-assign]
            drain(self._opened, store, _DRAIN, [one.name for one in names])

        if bury(fork(self._opened, go_on)):
            log = (self._opened / "log").read_text(errors="replace").strip().splitlines()
            return [Breach("BROKEN", f"the next program ended with an error: {log[-1:]}")]
        with tables(store) as rows:
            found = [Breach("ROWS", what) for what in rows.contradictions()]
            found += [Breach("LEFT", what) for what in rows.left()]
        found += violations([*events, Restarted(now_of(events)), *read(journal)])
        return [one for one in found if one.id not in _LOST_BY_POWER]


def _note_another_boot(self: link.SqliteLink) -> None:
    self.boot = "another"


def now_of(events: Sequence[Event]) -> int:
    """Return a time just after the last event."""
    return max((event.at for event in events), default=0) + 1


def _moments(
    records: Sequence[CallRecord], content: bytes, seed: int, number: int
) -> Iterator[tuple[str, Image, list[Event]]]:
    """Pass over a trace once: yield an image of each moment at which a loss can omit something, and the events before.

    The first pass yields images that lack nothing.
    """
    disk, events = Disk({DATABASE: content}), list[Event]()
    for at, one in enumerate(records, 1):
        if one.kind is CallKind.MARK:
            events.append(decoded(one.content))
        elif one.kind is not CallKind.STRUCK:
            disk.apply(one)
        rng = random.Random(f"{seed} {number} {at}")
        kinds = [kind for kind in disk.kinds if (kind == "whole") is (number == 1)]
        if kinds and (number > 1 or rng.random() < 0.1):
            yield f"seed {seed} pass {number} after record {at}", disk.draw(rng.choice(kinds), rng), events


def _seen(image: Path, events: Sequence[Event]) -> tuple[list[Breach], bool]:
    """Return the violations of an image, and whether it lacks a claim."""
    try:
        with tables(f"sqlite:///{image / DATABASE}") as rows:
            found = [Breach("ROWS", what) for what in rows.contradictions()]
            taken = list(_taken_out(rows, events))
            lacks_a_claim = _lacks_a_claim(rows, events)
    except Exception as error:  # noqa: BLE001  # every exception is a finding
        return [Breach("BROKEN", f"the image cannot be read: {type(error).__name__} {error}")], False
    found += violations([*events, *taken])
    return [one for one in found if one.id not in _LOST_BY_POWER], lacks_a_claim


def _taken_out(rows: Tables, events: Sequence[Event]) -> Iterator[Event]:
    """Yield the events of a program that resolves all prepared transactions of an image, and receives
    all its messages.
    """
    at = now_of(events)
    yield Born(at, _DRAIN, "drain")
    there = {name for (name,) in rows.rows("SELECT name FROM broker_tx")}
    open_ = {name for (name,) in rows.rows("SELECT name FROM broker_tx WHERE state = 'PREPARED'")}
    prepared = [one for one in events if isinstance(one, Asked) and one.call == "prepare"]
    for op, one in enumerate(prepared, 1):
        yield Asked(at, _DRAIN, op, "resolve", [], [], one.name, one.commits)
        yield Answered(at + 1, _DRAIN, op, "" if one.name in there else "E7520")
    sends = [row[1:] for row in rows.rows(_PREPARED_SENDS) if row[0] in open_ and roles.commits(row[0])]
    held = [row[1:] for row in rows.rows(_PREPARED) if row[0] in open_ and not roles.commits(row[0])]
    others = [(_place(row), *row[4:]) for row in rows.rows(_DELIVERIES)]
    at += 2
    messages = [(place, number, of, read_message(content)) for place, number, of, content in (*others, *held, *sends)]
    for place, _, message_id, message in sorted(messages, key=lambda one: (-_priority(one[3]), one[1])):
        yield _got(at, place, message_id, message)
    yield Ended(at + 1, _DRAIN)
    yield Restarted(at + 2)


def _place(row: Sequence[Any]) -> str:
    """Return the place of a row of `_DELIVERIES`."""
    return topology.place_of(row[0], row[1]) if row[1] else str(row[0])


def _lacks_a_claim(rows: Tables, events: Sequence[Event]) -> bool:
    """Return whether a delivered message looks as if nobody had got it."""
    fresh = {(_place(row), roles.name_of(read_message(row[6]))) for row in rows.rows(_DELIVERIES) if row[2:4] == (0, 0)}
    return any((one.place, one.name) in fresh for one in events if isinstance(one, Got))


def _priority(message: Message) -> int:
    return (message.headers.priority if message.headers else None) or 0


def _got(at: int, place: str, message_id: str, message: Message) -> Got:
    properties = message.properties
    origin, subscription = (str(properties.get(f"{roles.DMQ}{name}", "")) for name in ("destination", "subscription"))
    return Got(
        at,
        _DRAIN,
        0,
        "CLIENT",
        place,
        roles.name_of(message),
        message_id,
        True,
        1_000_000,
        str(properties.get(f"{roles.DMQ}undelivered_reason", "")),
        topology.place_of(origin, subscription) if subscription else origin,
        int(str(properties.get(f"{roles.DMQ}delivery_count", 0))),
    )
