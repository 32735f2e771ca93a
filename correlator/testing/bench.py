"""The command `correlator bench`: how fast the engine of a file could go on this machine, and what limits it.

The engine is real, with the code, the bridges, the pipelines and the modes of the file. Its brokers are in memory, so
they are never the limit. Its store is a new SQLite file on the disk of the store of the file.
"""

import itertools
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from correlator.cli.failures import say
from correlator.cli.loading import directory_of, importable
from correlator.cli.output import write_json, write_line, write_table
from correlator.configuration import Origin
from correlator.configuration.files import GivenMessage
from correlator.connector import NOTHING, Chunk, Source
from correlator.core.commit import Write
from correlator.errors import UsageError
from correlator.events import Message
from correlator.pipeline.runner import build_engine
from correlator.pipeline.spec import PipelineFile
from correlator.runtime.actor import Actor
from correlator.runtime.contexts import ContextActor
from correlator.runtime.engine import Engine
from correlator.runtime.receiver import Receiver
from correlator.runtime.sender import Sender
from correlator.settings import ReceiverSettings
from correlator.storage.database import parse
from correlator.storage.sqlite import path_of
from correlator.storage.store import SqlStore
from correlator.testing.command import lines_of
from correlator.testing.crashtest.configured import Configured
from correlator.testing.memory import MemoryBroker, MemoryConnection, MemorySource
from correlator.testing.store import StoreAround

STAGES = ("take", "handle", "commit", "send", "other")
_DISK_S = 0.2
"""Seconds of each measurement of the disk; there is one before the run and one after it."""
_PAGE = 4096
_BUSY = 0.5
"""Share of the time from which on a core or the disk counts as the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The result of a run.

    Attributes:
        messages: number of messages that were received.
        duplicates: number of messages that were dropped as duplicates.
        dead_letters: number of messages that became dead letters.
        sent: number of messages that were sent.
        seconds: time from the end of the start until everything was handled, sent, confirmed and in a checkpoint.
        cpu_us: CPU time of each stage for each message, in microseconds; Python runs one of its threads at a time.
        commits: number of transactions of the store; 0 without a store.
        commit_s: sum of the durations of these transactions, in seconds.
        disk_commits_per_second: number of times a second that this disk could append 4 KiB to a file and confirm it.
    """

    messages: int
    duplicates: int
    dead_letters: int
    sent: int
    seconds: float
    cpu_us: Mapping[str, float]
    commits: int
    commit_s: float
    disk_commits_per_second: float

    @property
    def messages_per_second(self) -> float:
        """Received messages for each second of the run."""
        return self.messages / self.seconds

    @property
    def cpu_share(self) -> float:
        """Share of the time in which a core was busy."""
        return sum(self.cpu_us.values()) * self.messages / 1e6 / self.seconds

    @property
    def commit_share(self) -> float:
        """Share of the time in which a transaction was under way."""
        return self.commit_s / self.seconds

    @property
    def disk_limit(self) -> float | None:
        """Messages a second if only the commits took time, at the rate that this disk can do; `None`
        without commits.
        """
        return self.messages / self.commits * self.disk_commits_per_second if self.commits else None

    @property
    def limit(self) -> str:
        """A text that says what limits the rate."""
        if self.commit_share > max(_BUSY, self.cpu_share):
            return f"the disk: a commit is under way {self.commit_share:.0%} of the time"
        if self.cpu_share < _BUSY:
            return "neither: a core and the disk are idle most of the time; give a larger --number"
        largest = max(STAGES, key=lambda stage: self.cpu_us[stage])
        return f"the code: a core is busy {self.cpu_share:.0%} of the time, most of it with '{largest}'"

    def as_json(self) -> dict[str, Any]:
        """Return all figures as values that JSON can hold."""
        derived = ("messages_per_second", "cpu_share", "commit_share", "disk_limit", "limit")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator bench` with `app`, the Typer application of all commands."""
    app.command("bench")(bench)


def bench(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration file.", show_default=False)],
    messages: Annotated[
        list[str] | None,
        typer.Option(
            "--messages",
            metavar="DESTINATION=FILE",
            help="Take each line of FILE as the body of a message for DESTINATION. May be repeated.",
            show_default=False,
        ),
    ] = None,
    number: Annotated[int, typer.Option(min=1, max=1_000_000, help="Messages for each destination.")] = 20_000,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure how fast the engine of a file could go on this machine, and what limits it.

    The messages are the lines of --messages, or those of the tests in the file, again and again. Nothing of the store
    and the brokers of the file is opened: brokers are in memory, the store is a new one beside that of the file. Your
    handlers run as they do in the engine. Senders with a 'call' send the message instead of calling the function.
    """
    with importable(file):
        configured = Configured(file)
        figures = measured(configured, _published(configured, messages or (), number))
    if figures.duplicates:
        say(
            f"warning: {figures.duplicates} of {figures.messages} messages were dropped as duplicates, since their id "
            "comes from the body; give more different messages, or a smaller --number"
        )
    if json:
        write_json(figures.as_json())
        return
    rate = f"{figures.messages_per_second:.0f} messages/s"
    write_line(f"{rate}: {figures.messages} in {figures.seconds:.2f} s, {figures.sent} sent")
    write_table("CPU time", ("stage", "us per message"), [(stage, round(figures.cpu_us[stage], 1)) for stage in STAGES])
    if figures.disk_limit is not None:
        write_line(
            f"{figures.commits} commits, {1000 * figures.commit_s / figures.commits:.1f} ms each; this disk alone: "
            f"{figures.disk_commits_per_second:.0f} commits/s, so at most {figures.disk_limit:.0f} messages/s"
        )
    write_line(f"limit: {figures.limit}")


def _published(
    configured: Configured, messages: Sequence[str], number: int
) -> Mapping[tuple[str, str], Sequence[Message]]:
    """Return the messages of each destination. Raises `UsageError` E1070 if there are none."""
    given: dict[tuple[str, str], list[Message]] = {}
    for destination, bodies in lines_of(messages):
        given.setdefault(configured.place(destination), []).extend(map(Message, bodies))
    for place, message in () if given else _of_tests(configured):
        given.setdefault(place, []).append(message)
    if not any(given.values()):
        todo = "Give --messages DESTINATION=FILE, or tests in the file"
        raise UsageError("E1070", str(configured.file), "there are no messages to measure with", "", todo)
    return {
        place: list(configured.messages(place, itertools.islice(itertools.cycle(ones), number), 1))
        for place, ones in given.items()
        if ones
    }


def _of_tests(configured: Configured) -> Iterator[tuple[tuple[str, str], Message]]:
    receivers = {one.id: _place(one, configured.settings) for one in configured.settings.receivers}
    for one in (one for test in configured.settings.tests for one in test.given):
        message = GivenMessage(body=one) if isinstance(one, str) else one
        place = receivers[message.receiver or next(iter(receivers))]
        yield place, Message(message.body.encode(), dict(message.properties), message.key)


def _place(receiver: ReceiverSettings, settings: PipelineFile) -> tuple[str, str]:
    return receiver.connection, settings.destinations.get(receiver.destination, receiver.destination)


def measured(configured: Configured, published: Mapping[tuple[str, str], Sequence[Message]]) -> Figures:
    """Run an engine on these messages until it has nothing left to do."""
    brokers = {name: MemoryBroker(features=one) for name, one in configured.brokers.items()}
    for receiver in configured.settings.receivers:
        name, destination = _place(receiver, configured.settings)
        with brokers[name].changed:  # a subscription of a topic gets only what is published from now on
            brokers[name].destination(destination).subscription(receiver.subscription)
    for (name, destination), messages in published.items():
        brokers[name].publish(destination, messages)
    with (
        tempfile.TemporaryDirectory(prefix=".correlator-bench-", dir=_disk(configured.settings)) as place,
        tempfile.TemporaryDirectory(prefix="correlator-") as control,  # the path of a socket must be short
    ):
        directory = Path(place)
        disk = _Disk(directory)
        disk.measure()
        settings = _own(configured.settings, directory, control)
        store = None if settings.store is None else TimedStore(SqlStore(settings.store, settings.name))
        begun = threading.Event()
        engine = build_engine(
            settings,
            [directory_of(configured.file)],
            Origin(configured.places),
            connections={name: EndingConnection(broker, name, begun) for name, broker in brokers.items()},
            **({} if store is None else {"store": store}),
        )
        with engine:
            before, began = _cpu_s(engine), time.perf_counter()
            commits, commit_s = (0, 0.0) if store is None else (store.commits, store.seconds)
            begun.set()
            engine.run_until_ended()
            seconds, after = time.perf_counter() - began, _cpu_s(engine)
            totals = engine.status().totals()
        disk.measure()
    received = max(1, totals["received"])
    return Figures(
        messages=received,
        duplicates=totals["duplicates dropped"],
        dead_letters=totals["dead letters"],
        sent=totals["sent"],
        seconds=seconds,
        cpu_us={stage: 1e6 * (after[stage] - before[stage]) / received for stage in STAGES},
        commits=0 if store is None else store.commits - commits,
        commit_s=0.0 if store is None else store.seconds - commit_s,
        disk_commits_per_second=disk.rate,
    )


def _disk(settings: PipelineFile) -> Path | None:
    """Return the directory of the store of the file if it is a SQLite file in a directory that exists, else `None`.

    Raises `UsageError` E1071 for another kind of store.
    """
    if settings.store is None:
        return None
    url = parse(settings.store)
    if url.get_backend_name() != "sqlite":
        what = "the store is not a SQLite file, and the measurement must not use your server"
        raise UsageError("E1071", "store", what, "", "Name a SQLite store in a copy of the file")
    directory = path_of(url).parent
    return directory if directory.is_dir() else None


def _own(settings: PipelineFile, directory: Path, control: str) -> PipelineFile:
    """Return the settings with places of their own, without servers, and without calls, which would
    reach other systems.
    """
    return replace(
        settings,
        senders=tuple(replace(one, call=None) for one in settings.senders),
        store=None if settings.store is None else f"sqlite:///{directory / 'store' / 'engine.db'}",
        input_log=None if settings.input_log is None else str(directory / "input.log"),
        control_directory=control,
        witness_directory=None,
        http=None,
        opentelemetry=None,
        status_interval=0.0,
    )


def _cpu_s(engine: Engine) -> dict[str, float]:
    """Return the CPU seconds of the threads of each stage so far."""
    spent = dict.fromkeys(STAGES, 0.0)
    for actor in engine.actors():
        if actor.ident is not None and not actor.join(0):
            spent[_stage(actor, engine)] += time.clock_gettime(time.pthread_getcpuclockid(actor.ident))
    spent["other"] = time.process_time() - sum(spent[stage] for stage in STAGES[:-1])
    return spent


def _stage(actor: Actor, engine: Engine) -> str:
    if isinstance(actor, Receiver):
        return "take"
    if isinstance(actor, ContextActor):
        return "handle"
    if isinstance(actor, Sender):
        return "send"
    return "commit" if actor in (engine.writer, engine.checkpointer) else "other"


class TimedStore(StoreAround):
    """A store that counts its transactions, and measures how long they take. The thread that owns the store uses it."""

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store)
        self.commits = 0
        self.seconds = 0.0

    def commit(self, number: int, writes: Sequence[Write]) -> None:
        """See `correlator.ports.Store`."""
        began = time.perf_counter()
        super().commit(number, writes)
        self.seconds += time.perf_counter() - began
        self.commits += 1


class EndingConnection(MemoryConnection):
    """A connection whose sources have messages after `begun` is set, and end when the broker has none left."""

    def __init__(self, broker: MemoryBroker, name: str, begun: threading.Event) -> None:
        super().__init__(broker, name)
        self._begun = begun

    def source(self, receiver: ReceiverSettings) -> Source:  # type: ignore[override]
        """Make a source that ends after the last message; it does not connect. See `connector.Connection`."""
        return EndingSource(super().source(receiver), self._begun)


class EndingSource:
    """A source in memory that ends after the last message."""

    def __init__(self, source: MemorySource, begun: threading.Event) -> None:
        self._source = source
        self._begun = begun
        self.connect = source.connect
        self.acknowledge = source.acknowledge
        self.reject = source.reject
        self.close = source.close

    def receive(self, max_messages: int, timeout_s: float) -> Chunk:
        """Take messages; see `connector.Source`. Before the end it waits only while messages are not acknowledged."""
        if not self._begun.wait(timeout_s):
            return NOTHING
        chunk = self._source.receive(max_messages, timeout_s if self._source.held_count else 0.0)
        return chunk._replace(ended=True) if not chunk.messages and not self._source.held_count else chunk


class _Disk:
    """Measures how many commits a second a disk can do: each appends a page to a file, and waits for the disk."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "disk"
        self._commits = 0
        self._seconds = 0.0

    def measure(self) -> None:
        """Commit again and again for `_DISK_S` seconds."""
        page = os.urandom(_PAGE)
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            began = time.perf_counter()
            while (passed := time.perf_counter() - began) < _DISK_S:
                os.write(descriptor, page)
                os.fdatasync(descriptor)
                self._commits += 1
        finally:
            os.close(descriptor)
        self._seconds += passed

    @property
    def rate(self) -> float:
        """Commits for each second of the measurements."""
        return self._commits / self._seconds
