"""What the HTTP server shows of an engine, and how it lets the engine be controlled."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from correlator.runtime.effective import InUse
from correlator.runtime.status import Status, TakenCheckpoint
from correlator.runtime.timeline import Timeline


class Shown(NamedTuple):
    """An engine, as the HTTP server uses it. The thread of the server calls the functions.

    Attributes:
        status: returns the status.
        timeline: the last changes of state.
        paths: returns the paths through a receiver or sender (`paths_through`).
        checkpoints: returns the last checkpoints of this life, the newest last.
        order: carries out a request of the control socket (`RequestHandler.answer`).
        in_use: returns what the engine runs with (`effective.in_use`).
        store: the URL of the store; `None` for an engine without one, or with one that a program has passed in.
    """

    status: Callable[[], Status]
    timeline: Timeline
    paths: Callable[[str], list[dict[str, object]]]
    checkpoints: Callable[[], Sequence[TakenCheckpoint]]
    order: Callable[[bytes, Callable[[], bool]], dict[str, Any]]
    in_use: InUse
    store: str | None
