"""The routes of the HTTP server, as an application of the interface ASGI. Only `/control` changes anything."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import NamedTuple

import msgspec

from correlator.errors import CorrelatorError
from correlator.runtime.control.protocol import LONGEST_REQUEST, STORE_HEADER, Problem
from correlator.runtime.control.server import answer_to
from correlator.runtime.http import stored
from correlator.runtime.http.answers import Asked, RequestRefused, as_json
from correlator.runtime.http.events import KIND, MOST_STREAMS, Streams, gone
from correlator.runtime.http.files import page_files
from correlator.runtime.http.metrics import Others, exposition
from correlator.runtime.http.shown import Shown
from correlator.serving import Receive, Response, Scope, Send, bears, begin, is_for_this_machine, respond, told
from correlator.storage.database import digest_of

LONGEST_PATH = 2048
READ_S = 5.0
"""Seconds that a client may take to send the body of its request."""
MOST_ORDERS = 4
"""Number of orders that the engine carries out at a time for clients of the server."""
MOST_WRONG = 10
"""Number of wrong tokens in a minute; the answer to further wrong tokens is 429."""
ORDERS = ("pause", "resume", "drain", "checkpoint", "loglevel", "discard", "replay")
"""The commands of the control socket that `/control` takes."""
_STATUSES = {"E2047": HTTPStatus.BAD_REQUEST, "E8307": HTTPStatus.NOT_FOUND, "E2070": HTTPStatus.INTERNAL_SERVER_ERROR}
"""The status of an answer for some problems; for all others it is 409."""
_CLOSED = "the engine has no http.token, so nobody may do this over HTTP"


class Route(NamedTuple):
    """A route.

    Attributes:
        make: makes the answer. It may read the body.
        methods: the methods that it has.
        open: whether clients without the token get an answer, too.
    """

    make: Callable[[Asked, Receive], Awaitable[Response]]
    methods: tuple[str, ...] = ("GET", "HEAD")
    open: bool = False


class Router:
    """Refuses what it does not serve, and calls the function of a route. The event loop of the server uses it.

    Args:
        shown: the engine.
        token: what a client must send as `Authorization: Bearer TOKEN` to see more than `/ping` and `/ready`, and to
            change anything. `None` shows everything except messages and state to every program of this machine.
    """

    def __init__(self, shown: Shown, token: str | None) -> None:
        self._shown = shown
        self._token = token
        self._streams = Streams(shown)
        self._wrong: deque[float] = deque(maxlen=MOST_WRONG)
        self._orders = asyncio.Semaphore(MOST_ORDERS)
        self._reading = asyncio.Lock()
        status = shown.status
        store = {} if shown.store is None else {STORE_HEADER: digest_of(shown.store)}
        others = Others()
        self._routes = {
            "/ping": Route(_plainly(lambda _: Response(200, b"ok\n")), open=True),
            "/ready": Route(_plainly(self._ready), open=True),
            "/status": Route(_plainly(lambda _: as_json(200, status().to_dict())._replace(headers=store))),
            "/metrics": Route(_plainly(lambda _: Response(200, *exposition(status(), others)))),
            "/events": Route(_plainly(self._events)),
            "/paths": Route(_plainly(self._paths)),
            "/checkpoints": Route(_plainly(self._checkpoints)),
            "/settings": Route(self._settings),
            "/letters": Route(partial(self._stored, stored.letters)),
            "/letter": Route(partial(self._private, stored.letter)),
            "/state": Route(partial(self._private, stored.state)),
            "/control": Route(self._control, ("GET", "HEAD", "POST")),
        }
        self._files = {
            path: Route(_plainly(lambda _, answer=answer: answer), open=True)  # type: ignore[misc]
            for path, answer in page_files().items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        asked = Asked(
            scope["method"],
            scope["path"],
            scope["query_string"].decode("latin-1"),
            scope["headers"],
            self._token is None or bears(scope["headers"], [self._token]),
        )
        try:
            answer = await self._route(asked).make(asked, receive)
        except RequestRefused as refused:
            answer = refused.answer
        if answer.kind == KIND and asked.method == "GET":
            await begin(send, answer, streamed=True)
            await self._streams.send(asked, receive, send)
        else:
            await respond(send, answer, asked.method)

    def _route(self, asked: Asked) -> Route:
        """The route of a request. Raises `RequestRefused`."""
        if len(asked.path) + len(asked.query) > LONGEST_PATH:
            raise RequestRefused(told(414, f"the path has more than {LONGEST_PATH} characters"))
        if self._token is None and not is_for_this_machine(asked.headers):
            raise RequestRefused(told(421, "Host is none of 127.0.0.1, ::1 and localhost, and there is no token"))
        route = self._routes.get(asked.path) or self._files.get(asked.path)
        if route is None:
            near = get_close_matches(asked.path, self._routes, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(self._routes)}"
            raise RequestRefused(told(404, f"there is no such route. {hint}"))
        if asked.method not in route.methods:
            what = "this route is only read" if "POST" not in route.methods else "this route has no such method"
            raise RequestRefused(told(405, what, {"allow": ", ".join(route.methods)}))
        if not asked.trusted and not route.open:
            raise RequestRefused(self._untrusted(asked))
        return route

    def _untrusted(self, asked: Asked) -> Response:
        if asked.all(b"authorization"):
            now = monotonic()
            if len(self._wrong) == MOST_WRONG and now - self._wrong[0] < 60:
                return told(429, "too many wrong tokens came within a minute", {"retry-after": "60"})
            self._wrong.append(now)
        return told(401, "send Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"})

    # --- what it shows ---

    def _events(self, asked: Asked) -> Response:
        asked.parameters("status")
        if self._streams.full:
            return told(503, f"there are {MOST_STREAMS} streams of events already")
        return Response(200, b"", KIND, {"x-accel-buffering": "no"})

    def _ready(self, asked: Asked) -> Response:
        status = self._shown.status()
        reasons = status.not_ready()
        more = {"reasons": reasons, "paused": status.paused_parts()} if asked.trusted else {}
        return as_json(503 if reasons else 200, {"ready": not reasons} | more)

    def _paths(self, asked: Asked) -> Response:
        part = asked.parameters("part").get("part", "")
        known = self._shown.status().reliabilities
        if part not in known:
            near = get_close_matches(part, known, n=1)
            return told(404, "no receiver or sender has this id" + (f". Did you mean {near[0]}?" if near else ""))
        return as_json(200, {"paths": self._shown.paths(part)})

    def _checkpoints(self, asked: Asked) -> Response:
        asked.parameters()
        return as_json(200, {"checkpoints": [one._asdict() for one in reversed(self._shown.checkpoints())]})

    async def _settings(self, asked: Asked, _: Receive) -> Response:
        """The settings only for clients with a token: they name addresses, users, code and columns."""
        asked.parameters()
        return as_json(200, await asyncio.to_thread(self._shown.in_use, with_settings=self._token is not None))

    async def _stored(self, read: Callable[[str, Asked], Response], asked: Asked, _: Receive) -> Response:
        """Read the store in another thread, one client at a time."""
        url = self._shown.store
        if url is None:
            return told(404, "the engine has no store")
        async with self._reading:
            try:
                return await asyncio.to_thread(read, url, asked)
            except CorrelatorError as error:
                return told(503, str(error))

    async def _private(self, read: Callable[[str, Asked], Response], asked: Asked, receive: Receive) -> Response:
        """Read the store as `_stored` does, for data that the store hides from other users of this machine."""
        return told(403, _CLOSED) if self._token is None else await self._stored(read, asked, receive)

    # --- what it lets do ---

    async def _control(self, asked: Asked, receive: Receive) -> Response:
        """Carry out a request in the form of the control socket.

        The answer to a GET says which commands are possible, and whether there is a store to read.
        """
        if asked.method != "POST":
            commands = () if self._token is None else ORDERS
            return as_json(200, {"commands": commands, "store": self._shown.store is not None})
        if self._token is None:
            return told(403, _CLOSED)
        kinds = asked.all(b"content-type")
        if [one.partition(b";")[0].strip().lower() for one in kinds] != [b"application/json"]:
            return told(415, "send Content-Type: application/json")
        body = await _body(receive)
        if _command(body) not in ORDERS:
            return told(400, f"there is no such command. There are {', '.join(ORDERS)}")
        if self._orders.locked():
            return told(503, f"the engine carries out {MOST_ORDERS} orders already", {"retry-after": "1"})
        async with self._orders:
            return await self._carry_out(body, receive)

    async def _carry_out(self, body: bytes, receive: Receive) -> Response:
        left = threading.Event()
        work = asyncio.ensure_future(asyncio.to_thread(answer_to, body, lambda: not left.is_set(), self._shown.order))
        ended = asyncio.ensure_future(gone(receive))
        try:
            await asyncio.wait([work, ended], return_when=asyncio.FIRST_COMPLETED)
            left.set()
            answer = await work
        finally:
            ended.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ended
        return as_json(200 if answer.problem is None else _status_of(answer.problem), answer)


def _plainly(make: Callable[[Asked], Response]) -> Callable[[Asked, Receive], Awaitable[Response]]:
    """Make a route that neither waits nor reads a body."""

    async def route(asked: Asked, _: Receive) -> Response:
        return make(asked)

    return route


async def _body(receive: Receive) -> bytes:
    """The body of a request. Raises `RequestRefused`."""
    body, more = b"", True
    try:
        async with asyncio.timeout(READ_S):
            while more:
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > LONGEST_REQUEST:
                    raise RequestRefused(
                        told(413, f"the body has more than {LONGEST_REQUEST} bytes", {"connection": "close"})
                    )
    except TimeoutError:
        what = f"the body has not come within {READ_S:g} s"
        raise RequestRefused(told(408, what, {"connection": "close"})) from None
    return body


class _Named(msgspec.Struct):
    """The name of the command of a request."""

    command: str


_named = msgspec.json.Decoder(_Named)


def _command(body: bytes) -> str:
    """The name of the command of a request; empty if it cannot be read. In this case the answer of the control socket
    says why.
    """
    try:
        return _named.decode(body).command
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def _status_of(problem: Problem) -> int:
    return _STATUSES.get(problem.code, HTTPStatus.CONFLICT)
