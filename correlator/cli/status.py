"""`correlator status`: shows what a running engine does; asks its HTTP server or its control socket."""

import http.client
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from correlator.cli import asking
from correlator.cli.arguments import ConfigurationFile, Overrides, Share
from correlator.cli.asking import place_of
from correlator.cli.output import Row, drawn_table, is_terminal, write_json, write_line, write_table
from correlator.configuration import read_file
from correlator.errors import ConnectionLost, UsageError, quoted
from correlator.pipeline.spec import PipelineFile
from correlator.runtime.control.protocol import STORE_HEADER, Ask
from correlator.settings import EngineSettings, HttpSettings
from correlator.storage.database import digest_of, location

COLUMNS = ("part", "status", "for", "messages", "in 1 s", "waiting", "dead letters", "why")
EVERY_S = 1.0
TIMEOUT_S = 5.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared, not listened at
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))

Shown = Mapping[str, Any]
_FAILS = 500
Look = Callable[[], Shown]


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator status` with `app`, the Typer application of all commands."""
    app.command()(status)


def status(
    file: ConfigurationFile,
    json: Annotated[bool, typer.Option("--json", help="Print the whole status, as JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it every second until Ctrl-C.")] = False,
    share: Share = None,
    overrides: Overrides = None,
) -> None:
    """Show what the running engine of a configuration file does.

    If the file has a section 'http' with a port, it asks the HTTP server of the engine; if not, the control socket.
    Lines of parts that are not connected or are paused come first. Exit status 4 if the engine does not answer.
    """
    look = _look_at(file, overrides or (), share)
    now = look()
    if json:
        write_json(now)
    elif not watch:
        write_line(headline(now))
        write_table("Parts", COLUMNS, rows(now, None, time.time()))
    elif is_terminal():
        _watch_terminal(look, now)
    else:
        _watch_lines(look, now)


def _look_at(file: Path, overrides: Sequence[str], share: int | None) -> Look:
    """Return the function that asks the engine for its status."""
    settings = read_file(file, PipelineFile, overrides=overrides).settings
    http = settings.http
    if http is not None and http.port:
        return lambda: _of(settings, *ask(http))
    place = place_of(file, settings, share)
    return lambda: asking.ask(place, Ask())


def _of(settings: EngineSettings, shown: Shown, store: str | None) -> Shown:
    """The answer, unless it is of an engine with another name or another store.

    The names of shares begin with that of the settings, and each share has a store of its own.
    """
    name, address = str(shown.get("name")), settings.store
    todo = "Give each engine a port of its own, or use the file with which the engine was started"
    if name != settings.name and (settings.shares is None or not name.startswith(settings.name)):
        what = f"engine {quoted(name)} answers at this port, and not {quoted(settings.name)}"
        raise UsageError("E2046", "http.port", what, "", todo)
    if store is not None and address is not None and settings.shares is None and store != digest_of(address):
        what = f"the engine {quoted(name)} at this port has another store than {quoted(location(address))}"
        raise UsageError("E2046", "http.port", what, "", todo)
    return shown


def ask(server: HttpSettings) -> tuple[Shown, str | None]:
    """The present answer of the engine, and the digest of its store's address; `None` without one, and if the engine
    does not tell it.

    Raises:
        ConnectionLost: E7050, no engine answers at this address within `TIMEOUT_S`.
        UsageError: E2046, the program that answers is no engine, or the engine has another token.
    """
    host = _ANY.get(server.host, server.host)
    where = f"http://{f'[{host}]' if ':' in host else host}:{server.port}/status"
    headers = {} if server.token is None else {"Authorization": f"Bearer {server.token}"}
    connection = http.client.HTTPConnection(host, server.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/status", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        what = f"no engine answers: {getattr(error, 'strerror', None) or error or type(error).__name__}"
        raise ConnectionLost("E7050", where, what, "", "Start it: correlator run FILE") from error
    finally:
        connection.close()
    if answer.status >= _FAILS:
        what = f"no engine answers: HTTP {answer.status}, as from an engine that is just ending"
        raise ConnectionLost("E7050", where, what, "", "Start it: correlator run FILE")
    try:
        shown = msgspec.json.decode(body) if answer.status == 200 else None  # OK
    except msgspec.DecodeError:
        shown = None
    if not isinstance(shown, dict) or "phase" not in shown:
        what = "the token is not that of the engine" if answer.status == 401 else f"no engine: HTTP {answer.status}"
        raise UsageError("E2046", where, what, "", "Use the file with which the engine was started")
    return shown, answer.getheader(STORE_HEADER)


def _watch_terminal(look: Look, now: Shown) -> None:
    before = None
    with Live(console=Console(file=sys.stdout), auto_refresh=False, screen=True) as live:
        while True:
            table = drawn_table(
                f"Ctrl-C ends this. {time.strftime('%H:%M:%SZ', time.gmtime())}",
                COLUMNS,
                rows(now, before, time.time()),
            )
            live.update(Group(Text(headline(now)), table), refresh=True)
            before, now = now, _next(look)


def _watch_lines(look: Look, now: Shown) -> None:
    before = None
    while True:
        write_line(headline(now))
        write_table("", COLUMNS, rows(now, before, time.time()))
        before, now = now, _next(look)


def _next(look: Look) -> Shown:
    time.sleep(EVERY_S)
    return look()


def headline(now: Shown) -> str:
    """Name and phase of the engine, what keeps it from being ready, and how many messages were not handled."""
    reasons, paused = now["not_ready"], now["paused"]
    dead = now["totals"]["dead_letters"]  # those of monitors are in no row of the table
    told = [] if reasons else ["ready"]
    told += [f"paused: {', '.join(paused)}"] if paused else []
    told += [f"{dead} dead letter{'s' if dead > 1 else ''} since the start"] if dead else []
    skips = now.get("handler_skips")  # an engine of an earlier version counts them as dead letters
    reused = sum(part.get("conflicts", 0) for part in now.get("receivers", {}).values())
    lost = f"{reused} message{'s' if reused > 1 else ''} with the unique id of another message dropped since the start"
    told += [lost] if reused else []
    told += [f"{skips} event{'s' if skips > 1 else ''} skipped since the start: a handler failed"] if skips else []
    told += [f"not ready: {'; '.join(reasons)}"] if reasons else []  # the last, as it is the longest
    return ", ".join([f"{now['name']}: {now['phase']}", *told])


def rows(now: Shown, before: Shown | None, wall: float) -> list[Row]:
    """The parts; parts that are not connected or are paused come first.

    Args:
        now: the present answer of the engine.
        before: its answer a second ago; `None` for no rates.
        wall: the time of day, in seconds since the epoch.
    """
    found: list[tuple[bool, Row]] = []
    for kind, counts in (("receivers", "received"), ("senders", "sent")):
        for name, part in now[kind].items():
            rate = _increase(now, before, kind, name, counts)
            status = "PAUSED" if part["paused"] and part["status"] == "OK" else part["status"]
            line = (
                f"{kind[:-1]} {name}",
                status,
                lasting(wall - part["since"]) if part["since"] else "",
                part[counts],
            )
            found.append((status == "OK", (*line, rate, _waiting(part), part["dead_letters"], _why(part))))
    for name, part in now["pipelines"].items():
        rate = _increase(now, before, "pipelines", name, "received")
        queued = now["contexts"].get(name, {}).get("queued")
        found.append((True, (f"pipeline {name}", "", "", part["received"], rate, queued, part["dead_letters"], "")))
    for name, part in now["contexts"].items():
        if name not in now["pipelines"]:
            found.append((True, (f"context {name}", "", "", None, None, part["queued"], None, "")))
    return [row for _, row in sorted(found, key=lambda one: one[0])]


def _increase(now: Shown, before: Shown | None, kind: str, name: str, counts: str) -> int | None:
    earlier = None if before is None else before[kind].get(name)
    if earlier is None:
        return None
    increase: int = now[kind][name][counts] - earlier[counts]
    return increase


def _waiting(part: Shown) -> object:
    """The number of messages that are not confirmed, or that the destination still holds."""
    if "outstanding" in part:
        return part["outstanding"]
    backlog = part["backlog"]
    if backlog is None:
        return None
    return backlog["messages"] if backlog["messages"] is not None else f"{backlog['size']:,} bytes"


def _why(part: Shown) -> str:
    paused = "paused" if part["paused"] else ""
    waits_for = "" if paused or part["error"] else part.get("waits_for")
    waits = f"waits for {waits_for}" if waits_for else ""
    return "; ".join(filter(None, (_full(part), paused, part["error"], waits)))


def _full(part: Shown) -> str:
    """That the outbox of a sender is full; an engine of an earlier version tells no limit."""
    limit = part.get("max_outstanding")
    return f"outbox full (max_outstanding {limit})" if limit is not None and part["outstanding"] >= limit else ""


def lasting(seconds: float) -> str:
    """A duration in the largest unit that fits: `4 min`, `3 h`. It is not negative, even if a clock was set back."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"
