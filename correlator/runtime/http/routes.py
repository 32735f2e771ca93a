"""The routes of the HTTP server, as an application of the interface ASGI. They change nothing in the engine."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import msgspec

from correlator.runtime.http.events import KIND, MOST_STREAMS, Streams
from correlator.runtime.http.metrics import exposition
from correlator.runtime.status import Status
from correlator.runtime.timeline import Timeline
from correlator.serving import (
    Answer,
    Receive,
    RequestHeaders,
    Scope,
    Send,
    bears,
    begin,
    is_for_this_machine,
    respond,
    told,
    values_of,
)

LONGEST_PATH = 2048
_OPEN = ("/ping", "/ready")
"""What clients without the token may ask."""
Route = Callable[[bool], Answer]
"""Makes the answer; the argument says whether the client may see all."""


class Routes:
    """Refuses what it does not serve, and calls the function of a route.

    Args:
        status: returns the status of the engine.
        token: what a client must send as `Authorization: Bearer TOKEN` to see more than `/ping` and `/ready`; `None` to
            show all to every program of this machine.
        timeline: the changes of state that `/events` sends.
    """

    def __init__(self, status: Callable[[], Status], token: str | None, timeline: Timeline) -> None:
        self._status = status
        self._token = token
        self._streams = Streams(timeline)
        self._routes: dict[str, Route] = {
            "/ping": lambda _: Answer(200, b"ok\n"),
            "/ready": self._ready,
            "/status": lambda _: _json(200, status().to_dict()),
            "/metrics": lambda _: Answer(200, *exposition(status())),
            "/events": lambda _: self._events(),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        answer = self._answer(scope["method"], scope["path"], scope["headers"])
        if answer.kind != KIND or scope["method"] != "GET":
            await respond(send, answer, scope["method"])
            return
        await begin(send, answer, streamed=True)
        last = values_of(scope["headers"], b"last-event-id")
        await self._streams.send(last[0].decode("latin-1") if last else None, receive, send)

    def _answer(self, method: str, path: str, headers: RequestHeaders) -> Answer:
        if len(path) > LONGEST_PATH:
            return told(414, f"the path has more than {LONGEST_PATH} characters")
        if self._token is None and not is_for_this_machine(headers):
            return told(421, "Host is none of 127.0.0.1, ::1 and localhost, and there is no token")
        route = self._routes.get(path)
        if route is None:
            near = get_close_matches(path, self._routes, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(self._routes)}"
            return told(404, f"there is no such route. {hint}")
        if method not in ("GET", "HEAD"):
            return told(405, "this route is only read", {"allow": "GET, HEAD"})
        trusted = self._token is None or bears(headers, [self._token])
        if not trusted and path not in _OPEN:
            return told(401, "send Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"})
        return route(trusted)

    def _events(self) -> Answer:
        if self._streams.full:
            return told(503, f"there are {MOST_STREAMS} streams of events already")
        return Answer(200, b"", KIND, {"x-accel-buffering": "no"})

    def _ready(self, trusted: bool) -> Answer:  # as every route
        status = self._status()
        reasons = status.not_ready()
        more = {"reasons": reasons, "paused": status.paused_parts()} if trusted else {}
        return _json(503 if reasons else 200, {"ready": not reasons} | more)


def _json(status: int, value: Any) -> Answer:
    return Answer(status, msgspec.json.encode(value), "application/json")
