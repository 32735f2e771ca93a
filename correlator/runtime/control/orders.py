"""Carries out the requests of the control socket with the methods of the engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from correlator.errors import NotDone, UsageError, quoted
from correlator.runtime import logs
from correlator.runtime.control.protocol import (
    Ask,
    AskSettings,
    Discard,
    Drain,
    Follow,
    Pause,
    Replay,
    Request,
    Resume,
    SetLevel,
    TakeCheckpoint,
    decode_request,
)
from correlator.runtime.status import CheckpointCounters, Status
from correlator.runtime.timeline import Timeline

MOST_ENTRIES = 500
"""Entries of the timeline in one answer."""
COMMANDS = ("status", "settings", "pause", "resume", "drain", "checkpoint", "loglevel", "discard", "replay", "events")


class Controlled(Protocol):
    """An engine, as the control socket uses it. Threads of the socket call all methods, several at a time."""

    timeline: Timeline

    @property
    def receivers(self) -> Mapping[str, object]:
        """The receivers by id, static and dynamic, at this moment."""
        ...

    @property
    def senders(self) -> Mapping[str, object]:
        """The senders by id, static and dynamic, at this moment."""
        ...

    def status(self) -> Status:
        """States and counters at this moment; the threads of the engine go on counting meanwhile."""
        ...

    def pause(self, part_id: str) -> None:
        """Pause a receiver or sender. Returns at once; without effect while it is paused.

        Raises `UsageError` E8307 if there is no such part, `NotDone` E8309 while the engine starts or stops.
        """
        ...

    def resume(self, part_id: str) -> None:
        """End the pause of a part, if there is one. Returns at once, and raises as `pause`."""
        ...

    def drain(self, part_id: str, timeout: float, *, wanted: Callable[[], bool]) -> bool:
        """Wait until a part has nothing left to do, and a checkpoint has recorded that; returns whether in time.

        Args:
            part_id: a receiver, which is paused first, or a sender.
            timeout: longest wait in seconds.
            wanted: the wait ends as soon as this returns `False`.

        Raises as `pause`, and `UsageError` E8308 for a sender that is paused.
        """
        ...

    def order_checkpoint(self, timeout: float) -> CheckpointCounters:
        """Take a checkpoint and wait for it; return the counters of the checkpoints.

        Raises `UsageError` E2011 without a store, `NotDone` E8310 if it is not done within `timeout` seconds.
        """
        ...

    def discard_dead_letters(self, numbers: Sequence[int]) -> None:
        """Delete dead letters by number; numbers that are not there have no effect.

        Raises `UsageError` E2011 without a store, `NotDone` E8311 while somebody else works on one of them.
        """
        ...

    def replay_dead_letters(self, numbers: Sequence[int], timeout: float) -> list[int]:
        """Bring the messages of dead letters back; return the numbers of the dead letters whose messages are back."""
        ...


class RequestHandler:
    """Answers requests. Any number of threads may call `answer`.

    Args:
        engine: the engine.
        in_use: returns what the engine runs with (`effective.in_use`).
    """

    def __init__(self, engine: Controlled, in_use: Callable[[], dict[str, Any]]) -> None:
        self._engine = engine
        self._in_use = in_use

    def answer(self, line: bytes, wanted: Callable[[], bool]) -> dict[str, Any]:
        """Carry a request out and return its result.

        Args:
            line: the request.
            wanted: returns whether somebody still waits for the result.

        Raises:
            UsageError: E2047, the request cannot be understood; or the engine refuses it.
            NotDone: E8310, the request was not carried out within its time.
        """
        request = _parsed(line)
        result: dict[str, Any]
        match request:
            case Ask():
                result = self._engine.status().to_dict()
            case AskSettings():
                result = self._in_use()
            case Pause() | Resume():
                result = self._turn(request)
            case Drain():
                result = self._drain(request, wanted)
            case TakeCheckpoint():
                result = msgspec.to_builtins(self._engine.order_checkpoint(request.timeout))
            case SetLevel():
                before = logs.set_level(request.level, request.logger)
                self._engine.timeline.add("log_level", logger=request.logger, before=before, level=request.level)
                result = {"logger": request.logger, "before": before, "level": request.level}
            case Discard():
                self._engine.discard_dead_letters(request.numbers)
                result = {"numbers": request.numbers}
            case Replay():
                result = {"numbers": self._engine.replay_dead_letters(request.numbers, request.timeout)}
            case Follow():
                result = self._news(request)
        return result

    def _turn(self, request: Pause | Resume) -> dict[str, Any]:
        self._known(request.kind, request.part)
        if isinstance(request, Pause):
            self._engine.pause(request.part)
        else:
            self._engine.resume(request.part)
        return self._told(request.kind, request.part)

    def _drain(self, request: Drain, wanted: Callable[[], bool]) -> dict[str, Any]:
        self._known(request.kind, request.part)
        if not self._engine.drain(request.part, request.timeout, wanted=wanted):
            shown = self._told(request.kind, request.part)
            left = shown["state"] if request.kind == "receiver" else f"{shown['outstanding']} messages wait"
            todo = "Check correlator status, and repeat the command"
            what = f"has work left after {request.timeout:g} s ({left})"
            raise NotDone("E8310", f"{request.kind} {request.part}", what, "What it does goes on", todo)
        return self._told(request.kind, request.part)

    def _known(self, kind: str, part_id: str) -> None:
        """Refuse the id of a part of the other kind. The engine itself refuses unknown ids, even while it has no parts
        yet.
        """
        others, other = (self._engine.senders, "sender") if kind == "receiver" else (self._engine.receivers, "receiver")
        if part_id in others:
            what, todo = f"is a {other}", f"correlator {other} FILE {part_id} …"
            raise UsageError("E8307", quoted(part_id), what, f"The command is about a {kind}", todo)

    def _told(self, kind: str, part_id: str) -> dict[str, Any]:
        """The status of a part, which may have been removed meanwhile."""
        shown: dict[str, Any] = self._engine.status().to_dict()[f"{kind}s"].get(part_id, {})
        return {kind: part_id, **shown}

    def _news(self, request: Follow) -> dict[str, Any]:
        news = self._engine.timeline.read(request.after, MOST_ENTRIES, request.wait)
        return {
            "events": [entry.to_dict() for entry in news.entries],
            "missed": news.missed,
            "after": news.after,
            "open": news.open,
        }


def _parsed(line: bytes) -> Request:
    try:
        return decode_request(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        allowed = f"Commands: {', '.join(COMMANDS)}"
        todo = "Use the commands of the version of correlator that the engine runs"
        raise UsageError("E2047", "request", f"cannot be understood: {error}", allowed, todo) from error
