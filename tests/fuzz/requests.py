"""Hostile bytes to the servers of a running engine: its HTTP server, its control socket, and a path for webhooks.

No request may end a server or the engine, be answered as a bug of ours (500, E2070), or be told the token.
"""

import contextlib
import json
import socket
import tempfile
import time
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from correlator.errors import CorrelatorError
from correlator.runtime.control.address import sockets_of
from tests.connectors.web import Web, raw
from tests.fuzz import mutations
from tests.fuzz.outcome import MOST_S, Outcome
from tests.runtime.flows import Keeps
from tests.runtime.serving import TOKEN, Client, served
from tests.runtime.world import AT_LEAST_ONCE, EXACTLY_ONCE, message, receiver, sender
from tests.waiting import answer_to, wait_until

PATIENCE_S = 30.0
_LOOK = 200
"""After so many cases the campaign looks whether all servers still answer."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "OPTIONS", "CONNECT", "TRACE", "get", "G" * 300, "", "\x00", "GET GET")
_PATHS = (
    "/", "/ping", "/ready", "/status", "/metrics", "/events", "/paths?part=in", "/letters", "/letter?number=1", "/state",
    "/control", "/orders", "/orders/", "//orders", "/page.js", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/%00", "/%ff",
    "/letters?above=-1", "/letters?most=99999999999999999999", "/letters?kind=\u00fc", "/state?owner=%00&key=%zz", "*",
    "http://example.org/ping", "/" + "a" * 3000, "/ping?" + "&" * 500, "/events?since=-1", "/paths?part=<b>", "?", "",
)  # fmt: skip
_HEADERS = (
    "Host: 127.0.0.1", "Host: 127.0.0.1", "Host: example.org", "Host:", "Host: a, b", "Authorization: Bearer " + TOKEN,
    "Authorization: Bearer " + TOKEN, "Authorization: Bearer x", "Authorization: " + "B" * 9000, "Cookie: a=b", "Content-Length: 5",
    "Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Length: 5, 5", "Content-Length: +5",
    "Transfer-Encoding: chunked", "Transfer-Encoding: chunked, chunked", "Transfer-Encoding: gzip", "Connection: close",
    "Connection: upgrade", "Upgrade: websocket", "Upgrade: h2c", "Expect: 100-continue", "Content-Type: application/json",
    "Content-Type: application/json; charset=\u00fc", "Content-Type: application/x-ndjson", "Idempotency-Key: k",
    "Idempotency-Key: " + "k" * 3000, "Idempotency-Key: \x01", "Content-Encoding: gzip", "Origin: null", "X\x00: y", ": y", "no colon",
    " folded", "webhook-id: a", "webhook-timestamp: 99999999999999999999", "webhook-signature: v1,====", "Accept: " + "," * 2000,
    "Last-Event-ID: " + "9" * 500,
)  # fmt: skip
_BODIES = (
    b"", b"x", b"{}", b"[]", b"null", b'{"a":1}', b'{"a":1}\n{"a":2}\n', b"\xff\xfe", b"[" * 5000, b'{"command":"checkpoint","timeout":1}',
    b'{"command":"pause","kind":"receiver","part":"none"}', b'{"command":"pause"}', b'{"command":"loglevel","level":"LOUD"}',
    b'{"command":"discard","numbers":[1e400]}', b'{"command":"replay","numbers":[-1]}', b'{"command":"drain","kind":"sender","part":"x","timeout":-1}',
    b'{"command":"checkpoint","command":"pause"}', b'{"command":"\\ud800"}', b'{"command":"status"}', b'{"command":"nothing"}',
    b"5\r\nhello\r\n0\r\n\r\n", b"-5\r\nhello\r\n", b"fffffffffffffffff\r\n", b'5;ext="\r\nhello\r\n0\r\nTrailer: x\r\n\r\n', b"a" * 9000,
)  # fmt: skip


_FIT = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"


class RequestsCampaign:
    """Requests that a client of a browser, of `curl` or of an attacker might send."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="correlator-fuzz-"))
            parts = receiver("in", EXACTLY_ONCE, event="tests.runtime.flows:Order"), sender("out", AT_LEAST_ONCE)
            options = {"store": f"sqlite:///{directory}/engine.db", "control_directory": f"{directory}/control"}
            running = served(*parts, monitors=[Keeps], token=TOKEN, **options)
            self._engine, broker, self._client = stack.enter_context(running)
            broker.publish("queue:in", [message("no JSON", "bad")])  # a dead letter, to be looked at
            wait_until(lambda: self._engine.status().totals()["dead letters"] == 1)
            self._control = sockets_of(self._engine.settings)[0]
            assert isinstance(self._client, Client)
            self._web = Web()
            stack.callback(self._web.close)
            self._web.source(options={"token": TOKEN}, reliability=EXACTLY_ONCE)
            assert Path(self._control).exists()
            self._look_for_all()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, number: int, outcome: Outcome) -> None:
        """Send the bytes of a case to one of the servers."""
        random = Random(f"{self._seed}/{number}")
        server = random.choice(("status", "status", "control", "web"))
        sent = _body(random) + random.choice((b"\n", b"\n", b"")) if server == "control" else _request(random)
        outcome.cases += 1
        try:
            answer, used_s = self._timed(server, sent)
        except OSError as error:
            answer, used_s = b"", 0.0
            outcome.violated(number, f"{server}: {type(error).__name__} {error}")
        outcome.timed(number, server, MOST_S, used_s, lambda: self._timed(server, sent)[1])
        words = answer.split(maxsplit=2)
        kind = words[1].decode("latin-1") if len(words) > 1 and words[0].startswith(b"HTTP/1.") else "nothing"
        if server == "control":
            kind = "answer" if answer else "nothing"
        outcome.answers[f"{server} {kind}"] += 1
        if (kind.startswith("5") and kind != "503") or b"E2070" in answer or b"Traceback" in answer:
            outcome.violated(number, f"{server}: {answer[:300]!r}")
        if TOKEN.encode() in answer:
            outcome.violated(number, f"{server}: tells the token")
        if number % _LOOK == 0:
            try:
                self._look_for_all()
            except (AssertionError, CorrelatorError, OSError) as error:
                outcome.violated(number, f"a server no longer answers: {error}")

    def _timed(self, server: str, sent: bytes) -> tuple[bytes, float]:
        """The answer, and the CPU seconds of all threads: of the server, of its engine and of the client."""
        began = time.process_time()
        answer = self._asked(server, sent)
        return answer, time.process_time() - began

    def _asked(self, server: str, sent: bytes) -> bytes:
        if server == "web":
            return raw(self._web.address, sent)
        if server == "status":
            return self._client.raw(sent)
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(PATIENCE_S)
            asking.connect(str(self._control))
            return answer_to(sent, asking)

    def _look_for_all(self) -> None:
        """Fail unless every server answers, and nothing has changed the engine."""
        assert self._client.ask("/ping")[:2] == (200, "ok\n")
        assert self._web.post(path="/other").status == 404
        assert b'"phase":"running"' in self._asked("control", b'{"command":"status"}\n')
        self._engine.raise_failure()
        status = self._engine.status()
        assert not status.paused, "a part is paused"
        assert status.totals()["dead letters"] == 1, "the dead letter has gone"


def _body(random: Random) -> bytes:
    body = random.choice(_BODIES)
    if random.random() < 0.3:
        body = json.dumps(
            {"command": random.choice(("pause", "events", "drain", "loglevel")), "part": _odd(random)}
        ).encode()
    return mutations.damaged(random, body) if random.random() < 0.3 else body


def _odd(random: Random) -> object:
    value = mutations.odd(random)
    return value if isinstance(value, str | int | float | list | dict | None) else str(value)


def _request(random: Random) -> bytes:
    """A request, or something like one."""
    if random.random() < 0.05:
        return random.randbytes(random.randrange(200))
    body = _body(random)
    if random.random() < 0.5:  # what only the routes can refuse
        method, path = random.choice((("GET", random.choice(_PATHS)), ("POST", "/control")))
        target = path.encode("ascii", errors="backslashreplace").decode()
        return f"{method} {target} HTTP/1.1\r\n{_FIT}Content-Length: {len(body)}\r\n\r\n".encode() + body
    headers = random.choices(_HEADERS, k=random.randrange(6))
    if random.random() < 0.7:
        headers = ["Host: 127.0.0.1", f"Authorization: Bearer {TOKEN}", "Content-Type: application/json", *headers[:2]]
    if random.random() < 0.7:
        headers.append(f"Content-Length: {len(body)}")
    version = random.choice(("HTTP/1.1",) * 8 + ("HTTP/1.0", "HTTP/2.0", "HTTP/9", "", "HTTP/1.1 x"))
    method = random.choice(("GET", "GET", "POST", "POST", random.choice(_METHODS)))
    ends = random.choice(("\r\n",) * 8 + ("\n", "\r", "\r\n\r\n"))
    head = ends.join([f"{method} {random.choice(_PATHS)} {version}", *headers, "", ""])
    request = head.encode("utf-8", errors="surrogatepass") + body
    if random.random() < 0.2:
        request = mutations.damaged(random, request)
    return request * (2 if random.random() < 0.05 else 1)
