"""The routes of the HTTP server, as an application of the interface ASGI. They change nothing in the engine."""

import hmac
import ipaddress
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import msgspec

from correlator.runtime.http.events import KIND, MOST_STREAMS, Receive, Send, Streams
from correlator.runtime.http.metrics import exposition
from correlator.runtime.status import Status
from correlator.runtime.timeline import Timeline

LONGEST_PATH = 2048
_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
_TEXT = "text/plain; charset=utf-8"
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:]+\]|[^:\[\]]+)(:\d{1,5})?")
_OPEN = ("/ping", "/ready")
"""What clients without the token may ask."""
Scope = Mapping[str, Any]


class Answer(NamedTuple):
    """What a client gets."""

    status: int
    body: bytes
    kind: str = _TEXT
    headers: Mapping[str, str] = {}


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
        streamed = answer.kind == KIND
        length = {} if streamed else {"content-length": str(len(answer.body))}
        headers = {"content-type": answer.kind, **length, **_HEADERS, **answer.headers}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
        if streamed and scope["method"] == "GET":
            last = _all(scope["headers"], b"last-event-id")
            await self._streams.send(last[0].decode("latin-1") if last else None, receive, send)
            return
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})

    def _answer(self, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> Answer:
        if len(path) > LONGEST_PATH:
            return _told(414, f"the path has more than {LONGEST_PATH} characters")
        if self._token is None and not _is_of_this_machine(_all(headers, b"host")):
            # Otherwise a page of the web could read this in a browser, under a name that it makes mean 127.0.0.1.
            return _told(421, "Host is none of 127.0.0.1, ::1 and localhost, and there is no token")
        route = self._routes.get(path)
        if route is None:
            near = get_close_matches(path, self._routes, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(self._routes)}"
            return _told(404, f"there is no such route. {hint}")
        if method not in ("GET", "HEAD"):
            return _told(405, "this route is only read", {"allow": "GET, HEAD"})
        trusted = self._token is None or _has(_all(headers, b"authorization"), self._token)
        if not trusted and path not in _OPEN:
            return _told(401, "send Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"})
        return route(trusted)

    def _events(self) -> Answer:
        if self._streams.full:
            return _told(503, f"there are {MOST_STREAMS} streams of events already")
        return Answer(200, b"", KIND, {"x-accel-buffering": "no"})

    def _ready(self, trusted: bool) -> Answer:  # as every route
        status = self._status()
        reasons = status.not_ready()
        more = {"reasons": reasons, "paused": status.paused_parts()} if trusted else {}
        return _json(503 if reasons else 200, {"ready": not reasons} | more)


def _all(headers: list[tuple[bytes, bytes]], wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]


def _is_of_this_machine(hosts: list[bytes]) -> bool:
    found = _HOST.fullmatch(hosts[0].decode("latin-1")) if len(hosts) == 1 else None
    if found is None:
        return False
    try:
        return found["name"] == "localhost" or ipaddress.ip_address(found["name"].strip("[]")).is_loopback
    except ValueError:
        return False


def _has(given: list[bytes], token: str) -> bool:
    return len(given) == 1 and hmac.compare_digest(given[0], f"Bearer {token}".encode())


def _json(status: int, value: Any) -> Answer:
    return Answer(status, msgspec.json.encode(value), "application/json")


def _told(status: int, what: str, headers: Mapping[str, str] = {}) -> Answer:
    return Answer(status, f"{what}\n".encode(), headers=headers)
