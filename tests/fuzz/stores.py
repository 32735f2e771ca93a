"""Damaged SQLite stores of a real engine: an error with a code, or exactly what was stored.

A store without its log (`-wal`) may only be what it was, or be refused. SQLite takes the end of a damaged log for a
commit that a crash has cut off; so a store with a log may also be what it was after an earlier commit, if no checkpoint
is missing (the witness tells, E4311).
"""

import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self

from correlator.cli.inspect import VIEWS
from correlator.errors import CorrelatorError
from correlator.storage import checking, inspect
from correlator.storage.store import SqlStore
from correlator.testing.memory import MemoryBroker
from tests.fuzz.outcome import MOST_S, Outcome
from tests.runtime.flows import SCRIPT, Keeps
from tests.runtime.world import World, message, receiver, sender
from tests.storage import values

STORE = "engine.db"
LOG = f"{STORE}-wal"
NAME = "world"
DOMAIN = "memory:queue:in"
ORDERS = "tests.runtime.flows:Order"
Files = Mapping[str, bytes]


class Base(NamedTuple):
    """A store, and what it holds.

    Attributes:
        files: the content of its files by name.
        contents: what a start reads.
        earlier: what a start may read if the log is cut off: after each of the commits that are in the log alone.
        views: what the commands for an offline look show.
    """

    files: Files
    contents: Any
    earlier: list[Any]
    views: dict[str, Any]


class StoresCampaign:
    """Damages of the files of a few stores."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="correlator-fuzz-"))
        closed, open_ = written(self._directory)
        self._bases = [self._base(closed), self._base(open_)]
        assert LOG in open_
        assert self._bases[1].earlier
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._directory)

    def run(self, number: int, outcome: Outcome) -> None:
        """Damage a store, look at it, and start it."""
        random = Random(f"{self._seed}/{number}")
        base = random.choice(self._bases)
        name = random.choice([STORE] * 6 + [one for one in base.files if one != STORE])
        files = {**base.files, name: damaged(random, base.files[name])}
        outcome.cases += 1

        def judge(what: str, read: Callable[[str], object], right: Callable[[object], str | None]) -> None:
            def once() -> tuple[str, float]:
                return _outcome_of(read, self._written(files), right)

            answer, used_s = once()
            outcome.answers[f"{what.partition(' ')[0]} {answer.partition(' ')[0]}"] += 1
            if answer.startswith("!"):
                outcome.violated(number, f"{what} after damage of {name}: {answer}")
            outcome.timed(number, what, MOST_S, used_s, lambda: once()[1])

        may_lack = name == LOG
        view = random.choice([*base.views])
        judge(
            f"inspect {view}",
            lambda url: VIEWS_BY_NAME[view](url),
            lambda found: "unchanged" if found == base.views[view] else "earlier" if may_lack else None,
        )
        judge("check", checking.check, lambda _: "checked")

        def state(found: object) -> str | None:
            if found == base.contents:
                return "unchanged"
            return "earlier" if may_lack and found in base.earlier else None

        judge("start", started, state)

    def _base(self, files: Files) -> Base:
        views = {name: read(self._written(files)) for name, read in VIEWS_BY_NAME.items()}
        contents = started(self._written(files))
        earlier = [started(self._written(one)) for one in cut_logs(files)]
        return Base(files, contents, earlier, views)

    def _written(self, files: Files) -> str:
        """Write the files of a store into an empty directory; returns its address."""
        place = self._directory / "store"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(0o700)
        for name, content in files.items():
            file = place / name
            file.touch(0o600)
            file.write_bytes(content)
        return f"sqlite:///{place / STORE}"


def _outcome_of(read: Callable[[str], object], url: str, right: Callable[[object], str | None]) -> tuple[str, float]:
    """The answer of a call, and its CPU seconds."""
    began = time.thread_time()
    try:
        found = read(url)
    except CorrelatorError as error:
        answer: str | None = error.code
    except Exception as error:  # noqa: BLE001  # what the campaign looks for
        answer = f"!{type(error).__name__}: {str(error)[:300]}"
    else:
        answer = right(found)
    return answer or "!another state without an error", time.thread_time() - began


VIEWS_BY_NAME: dict[str, Callable[[str], object]] = {
    **{
        str(part): lambda url, view=view: [tuple(map(str, row)) for row in view.rows(url)]
        for part, view in VIEWS.items()
    },
    "instance": lambda url: str(inspect.instance(url)),
    "accepted-ids": lambda url: inspect.accepted_ids(url, DOMAIN),
}


def started(url: str) -> object:
    """What a start reads."""
    store = SqlStore(url, NAME)
    try:
        return values.contents(values.opened(store))
    finally:
        store.close()


def written(directory: Path) -> tuple[Files, Files]:
    """The files of a store that an engine has written and closed, and of one that it has open."""
    place = directory / "written"
    place.mkdir(0o700)
    world = World(f"sqlite:///{place / STORE}")
    stuck = MemoryBroker()
    stuck.down = True
    parts = (
        receiver("in"),
        receiver("orders", event=ORDERS),
        sender("out", connection="stuck", destination="queue:out"),
    )

    def connections() -> dict[str, Any]:
        return {"memory": world.broker.connection(), "stuck": stuck.connection("stuck")}

    def send(monitor: Any, got: Any) -> None:
        monitor.send(got, to="out")

    SCRIPT.__init__()  # type: ignore[misc]
    SCRIPT.message = send
    options = {"monitors": [Keeps], "stop_timeout": 0.1}
    try:
        with world.engine(*parts, connections=connections(), **options) as engine:
            world.publish(*(message(f"body {n} " + "x" * 40 * n, f"id{n}") for n in range(60)))
            world.publish(*(message("no JSON", f"bad{n}") for n in range(5)), to="queue:orders")
            world.wait(lambda: world.received_rows() == 0 and world.outbox_rows() == 60)
            world.crash(engine)
        engine = world.engine(*parts, connections=connections(), interval=3600.0, **options)
        with engine:
            for n in range(20):  # each a commit that no checkpoint follows
                world.publish(message(f"later {n}", f"later{n}"))
                world.wait(lambda n=n: world.received_rows() == n + 1)
            copy = directory / "copied"
            subprocess.run(["cp", "-r", place, copy], check=True)  # closing the files here would drop SQLite's locks
            world.crash(engine)
    finally:
        world.close()
        SCRIPT.__init__()  # type: ignore[misc]
    return _read(place), _read(copy)


def _read(place: Path) -> Files:
    wanted = {STORE, LOG, f"{STORE}.witness"}
    return {one.name: one.read_bytes() for one in sorted(place.iterdir()) if one.name in wanted}


def cut_logs(files: Files) -> Iterator[Files]:
    """The files with the log cut off behind each of its commits but the last one, and without the log."""
    log = files.get(LOG)
    if log is None:
        return
    (page_size,) = struct.unpack_from(">I", log, 8)
    salts = log[16:24]
    ends = [
        at + 24 + page_size
        for at in range(32, len(log) - 24 - page_size + 1, 24 + page_size)
        if log[at + 8 : at + 16] == salts and struct.unpack_from(">I", log, at + 4)[0]
    ]
    for end in (0, *ends[:-1]):
        yield {**files, LOG: log[:end]}


def damaged(random: Random, content: bytes) -> bytes:
    """A file as a faulty disk, a full disk or a wrong copy leaves it."""
    damages = (_flipped, _flipped, _flipped, _zeroed, _truncated, _overwritten, _swapped, _grown)
    return random.choice(damages)(random, bytearray(content))


def _flipped(random: Random, content: bytearray) -> bytes:
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    return bytes(content)


def _zeroed(random: Random, content: bytearray) -> bytes:
    size = random.choice((16, 512, 4096, 4096))
    at = random.randrange(max(1, len(content) // size)) * size
    content[at : at + size] = bytes(len(content[at : at + size]))
    return bytes(content)


def _truncated(random: Random, content: bytearray) -> bytes:
    size = random.choice((1, 512, 4096))
    return bytes(content[: random.randrange(len(content) // size + 1) * size])


def _overwritten(random: Random, content: bytearray) -> bytes:
    at, size = random.randrange(len(content)), random.choice((4, 100, 4096))
    content[at : at + size] = random.randbytes(len(content[at : at + size]))
    return bytes(content)


def _swapped(random: Random, content: bytearray) -> bytes:
    pages = max(1, len(content) // 4096)
    one, other = (random.randrange(pages) * 4096 for _ in range(2))
    content[one : one + 4096], content[other : other + 4096] = (
        content[other : other + 4096],
        content[one : one + 4096],
    )
    return bytes(content)


def _grown(random: Random, content: bytearray) -> bytes:
    return bytes(content) + random.choice((b"\0", random.randbytes(1))) * random.choice((1, 4096, 40_960))
