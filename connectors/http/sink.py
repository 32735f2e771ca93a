"""The sink of the connector `http`: each message is a request, and the status of the answer confirms or refuses it.

Messages go through lanes; a lane is one connection with one request at a time. Messages with the same key use the same
lane, so they keep their order. If a lane cannot continue, all lanes stop, and the engine sends the unanswered messages
again with the same ids; for that attempt the sink keeps the answers of the others.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote

from connectors.http.answers import Verdict, verdict, wait_s
from connectors.http.lane import Lane, Reply
from connectors.http.paths import target_of
from connectors.http.service import Service
from correlator.connector import TAKES_NOTHING, lane_of
from correlator.errors import ConnectionLost, SendRejected, printable, quoted
from correlator.events import Outgoing
from correlator.processes import Maker
from correlator.secrets import REDACTED

MOST_TOLD_BYTES = 4096
"""Most bytes of an answer that a dead letter quotes."""
_LOOK_S = 1.0
"""Seconds between two checks whether a request takes too long."""
_SHORT = 200
_MEANS = {Verdict.BUSY: TAKES_NOTHING, Verdict.AGAIN: "E7025", Verdict.HOLD: "E7002"}

_Number = tuple[str, int]
"""Source and sequence of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """How a sender calls the service.

    Attributes:
        where: the place of the sender.
        stamps_key: whether requests have an `Idempotency-Key`.
        token: sent as `Authorization: Bearer TOKEN`; "" for none.
        headers: names, in lower case, of properties that are sent as headers; the case of a property does not matter.
        content_type: content type of the bodies.
        lanes: largest number of requests at the same time.
        timeout_s: longest duration of a request in seconds.
    """

    where: str
    stamps_key: bool
    token: str = field(repr=False)
    headers: Sequence[str]
    content_type: str
    lanes: int
    timeout_s: float


class HttpSink:
    """Sends messages to a service. The thread of the sender calls the methods.

    Args:
        service: the service that gets the requests.
        calling: how the requests are made.
    """

    def __init__(self, service: Service, calling: Calling) -> None:
        self._service = service
        self._calling = calling
        self._where = calling.where
        self._lanes = [Lane(calling.where, service, calling.timeout_s) for _ in range(calling.lanes)]
        self._pool: ThreadPoolExecutor | None = None
        self._process = Maker()
        self._answered: dict[_Number, SendRejected | None] = {}
        """The results of messages whose batch is not complete: they are not sent again."""
        self._lost: ConnectionLost | None = None
        """The error for which the lanes stop."""

    def connect(self) -> None:
        """Connect one lane; the others connect when they are needed. Raises `UsageError` E2050 in a forked child.

        Raises `ConnectionLost` E7026 until the time is over for which the service wants no requests.
        """
        if self._pool is not None:
            self._process.check(self._where)
        self.close()
        self._process = Maker()
        self._service.check_free(self._where)
        self._lanes[0].open()
        self._pool = ThreadPoolExecutor(len(self._lanes), f"{self._where}-lane")

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Send the messages that are not refused, and wait for the answers. Raises `ConnectionLost`."""
        self._process.check(self._where)
        if self._pool is None:
            raise ConnectionLost("E7003", self._where, "not connected")
        self._lost = None
        results: list[SendRejected | None] = [None] * len(batch)
        queues: list[list[tuple[int, Outgoing]]] = [[] for _ in self._lanes]
        for at, out in enumerate(batch):
            queues[lane_of(out, len(queues))].append((at, out))
        begun = [
            self._pool.submit(self._run, lane, queue, results)
            for lane, queue in zip(self._lanes, queues, strict=True)
            if queue
        ]
        while (waiting := wait(begun, _LOOK_S)).not_done:
            for lane in self._lanes:
                lane.interrupt()
        for one in waiting.done:
            one.result()
        if self._lost is not None:
            self.close()
            raise self._lost
        for out in batch:
            self._answered.pop((out.source, out.sequence), None)
        return results

    def close(self) -> None:
        """Close all lanes. Does nothing in a forked child."""
        if self._process.is_another_process or self._pool is None:
            return
        self._pool.shutdown()
        self._pool = None
        for lane in self._lanes:
            lane.close()

    # --- in the thread of a lane ---

    def _run(self, lane: Lane, queue: Sequence[tuple[int, Outgoing]], results: list[SendRejected | None]) -> None:
        """Send the messages of a lane until one of the lanes cannot continue."""
        for at, out in queue:
            number = out.source, out.sequence
            if self._lost is not None:
                return
            if number in self._answered:
                results[at] = self._answered[number]
                continue
            try:
                results[at] = self._send(lane, out)
            except ConnectionLost as lost:
                self._lost = self._lost or lost
                return
            if out.source:  # the numbers of a session identify nothing: they begin anew with each call
                self._answered[number] = results[at]

    def _send(self, lane: Lane, out: Outgoing) -> SendRejected | None:
        """Send a message. Raises `ConnectionLost` unless the service has confirmed or refused it."""
        target = target_of(out.destination)
        place = f"{self._where} message {out.sequence}"
        if target is None:
            return SendRejected("E8104", place, f"{quoted(out.destination)} is not a path")
        if out.message.headers is not None and out.message.headers.delivery_delay_ms:
            return SendRejected("E8110", place, "a service cannot delay a message, which 'delivery_delay_ms' asks for")
        headers = self._headers_of(out)
        if isinstance(headers, str):
            return SendRejected("E8110", place, f"property {quoted(headers)} is not a text that a header can hold")
        self._service.check_free(self._where)
        reply = lane.post(self._service.base + target, headers, out.message.body)
        found = verdict(reply.status, has_key="Idempotency-Key" in headers)
        if found is Verdict.CONFIRMED:
            return None
        if found is not Verdict.REFUSED:
            until = time.monotonic() + wait_s(reply.retry_after, time.time())
            self._service.busy_until = max(self._service.busy_until, until)
            what = f"{self._service.name} answers message {out.sequence} with {self._told(reply, _SHORT)}"
            raise ConnectionLost(_MEANS[found], self._where, what, "", "The sender sends it again")
        code = "E8106" if reply.status == 413 else "E8102"
        return SendRejected(code, place, f"{self._service.name} answers {self._told(reply, MOST_TOLD_BYTES)}")

    def _headers_of(self, out: Outgoing) -> dict[str, str] | str:
        """Return the headers of a request, or the name of a property that cannot become one."""
        headers = {"Content-Type": self._calling.content_type}
        if self._calling.token:
            headers["Authorization"] = f"Bearer {self._calling.token}"
        if self._calling.stamps_key and out.source:
            headers["Idempotency-Key"] = f"{out.sequence}:{_in_a_header(out.source)}"
        properties = out.message.properties
        if self._calling.headers:  # names of headers have no case
            properties = {**{name.lower(): value for name, value in properties.items()}, **properties}
        for name in self._calling.headers:
            value = properties.get(name)
            if value is not None:
                if not isinstance(value, str) or not value.isascii() or not value.isprintable():
                    return name
                headers[name] = value
        return headers

    def _told(self, reply: Reply, most_bytes: int) -> str:
        """Return status and beginning of the body, without the token, which some services repeat."""
        said = reply.reason, reply.body.decode(errors="replace")
        if self._calling.token:
            said = said[0].replace(self._calling.token, REDACTED), said[1].replace(self._calling.token, REDACTED)
        return printable(f"{reply.status} {said[0]}: {said[1][:most_bytes]}".strip().rstrip(":"))


_in_a_header = lru_cache(maxsize=64)(quote)
