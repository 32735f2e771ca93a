"""A path at which requests become messages: what the thread of the server and the thread of a receiver share.

A request waits until its receiver takes it, and is held until the receiver acknowledges all of its messages. Then it is
settled, exactly once, and its clients get an answer that depends on the outcome.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from enum import Enum

from correlator.connector import Backlog, Held
from correlator.events import UNIQUE_ID, Message
from correlator.reliability import RECEIVING
from correlator.settings import ReceiverSettings

ANSWER_S = 10.0
"""Seconds after which a client is told to try again later, if its request is not settled by then."""
STANDSTILL_S = 1.0
"""Seconds without progress, beyond the interval of a batch, after which a store counts as standing still."""


class Outcome(Enum):
    """The outcome of a request."""

    STORED = "stored"
    CONFLICT = "conflict"
    GIVEN_BACK = "given back"


class Request:
    """The messages of one request, of which either all or none are stored, and the answer for its clients.

    Args:
        id_: identifies the request.
        digest: digest of the body, to distinguish a repeat from another request with the same id.
        messages: at least one.
        answer: done when the request is settled. It belongs to the event loop of the server.
    """

    __slots__ = ("answer", "digest", "id", "is_conflict", "is_settled", "messages", "size", "unacknowledged")

    def __init__(self, id_: str, digest: bytes, messages: Sequence[Message], answer: "asyncio.Future[Outcome]") -> None:
        self.id = id_
        self.digest = digest
        self.messages = messages
        self.answer = answer
        self.size = sum(len(message.body) for message in messages)
        self.unacknowledged = len(messages)
        self.is_conflict = False
        self.is_settled = False


class Endpoint:
    """The requests of one receiver that are under way. Any thread may call the methods.

    Args:
        receiver: settings of the receiver. Its limits bound the memory: at most two batches are under way.
        clock: returns monotonic seconds.
    """

    def __init__(self, receiver: ReceiverSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stores = RECEIVING[receiver.reliability].stored
        self._interval_s = receiver.max_batch_interval_ms / 1000
        self._progress_s = self._batch_began_s = self._batch_lasted_s = 0.0
        self._most_held = receiver.max_batch_size
        self._most_bytes_taken = receiver.max_batch_bytes
        self._most = 2 * receiver.max_batch_size
        self._most_bytes = 2 * max(receiver.max_batch_bytes, receiver.max_message_bytes)
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._held: Held[Request] = Held()
        self._count = 0
        self._bytes = 0
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Return whether a receiver takes requests."""
        return self._is_open

    @property
    def is_full(self) -> bool:
        """Return whether there is no room for another request."""
        return self._count >= self._most or self._bytes >= self._most_bytes

    # --- the thread of the server ---

    def reserve(self, size: int) -> bool:
        """Reserve room for the bytes of a body that is being read; return whether there is room."""
        with self._changed:
            if self._bytes and self._bytes + size > self._most_bytes:
                return False
            self._bytes += size
            return True

    def free(self, size: int) -> None:
        """Release bytes that `reserve` has reserved. Called in the thread of the server."""
        with self._changed:
            self._bytes -= size

    def put(self, request: Request) -> bool:
        """Let a request wait for the receiver; return whether there was room."""
        with self._changed:
            if not self._is_open or self._count >= self._most:
                return False
            self._count += len(request.messages)
            self._bytes += request.size
            self._waiting.append(request)
            self._changed.notify()
            return True

    def gives_up_at(self, arrived_s: float) -> float:
        """Return until when a client waits for its answer, as a time of the clock; later progress moves this time.

        A client waits for `ANSWER_S` at most. If the receiver stores messages, it waits only while there is progress: a
        batch may take twice as long as the last one, and a second or so in any case. In other modes the application
        may hold messages for as long as it likes.

        Args:
            arrived_s: the time at which the request arrived.
        """
        latest_s = arrived_s + ANSWER_S
        if not self._stores:
            return latest_s
        with self._changed:
            usual_s = max(self._interval_s + STANDSTILL_S, 2 * self._batch_lasted_s)
            return min(latest_s, max(arrived_s, self._progress_s) + usual_s)

    def withdraw(self, request: Request) -> None:
        """Withdraw a request that the receiver has not taken yet."""
        with self._changed:
            if request in self._waiting:
                self._waiting.remove(request)
                self._settle([request], Outcome.GIVEN_BACK)

    # --- the thread of the receiver ---

    def open(self) -> None:
        """Take requests from now on."""
        with self._changed:
            self._is_open = True

    def close(self) -> None:
        """Take no more requests, and give back all that are under way."""
        with self._changed:
            self._is_open = False
            self._settle([*self._held, *self._waiting], Outcome.GIVEN_BACK)
            self._held.clear()
            self._waiting.clear()

    def take(self, max_messages: int, timeout_s: float) -> tuple[Sequence[Message], Sequence[int]]:
        """Return the messages of the next requests with their tokens. All messages of a request are in one chunk, so
        that one commit stores them.
        """
        deadline = self._clock() + timeout_s
        with self._changed:
            room = min(max_messages, self._most_held - len(self._held))
            while not self._waiting or len(self._waiting[0].messages) > room:
                if not self._changed.wait(deadline - self._clock()) and self._clock() >= deadline:
                    return (), ()
            messages: list[Message] = []
            owners: list[Request] = []
            size = 0
            while self._waiting and len(self._waiting[0].messages) <= room - len(messages):
                request = self._waiting.popleft()
                messages += request.messages
                owners += [request] * len(request.messages)
                size += request.size
                if size >= self._most_bytes_taken:
                    break
            self._progress_s = self._clock()
            if not self._held:
                self._batch_began_s = self._progress_s
            return messages, self._held.hold(owners)

    def note_conflicts(self, ids: Collection[str]) -> None:
        """Note that held messages with these unique ids were dropped because other messages have the same ids."""
        with self._changed:
            for request in dict.fromkeys(self._held):
                found = (message.properties.get(UNIQUE_ID) for message in request.messages)
                request.is_conflict |= any(unique_id in ids for unique_id in found)

    def acknowledge(self, tokens: Iterable[int]) -> None:
        """Settle the requests that have no other held messages; ignore unknown tokens."""
        with self._changed:
            done: list[Request] = []
            released = self._held.release(tokens)
            for request in released:
                request.unacknowledged -= 1
                if not request.unacknowledged:
                    done.append(request)
            if released:
                self._progress_s = self._clock()
                self._batch_lasted_s = self._progress_s - self._batch_began_s
            self._settle([one for one in done if not one.is_conflict], Outcome.STORED)
            self._settle([one for one in done if one.is_conflict], Outcome.CONFLICT)

    def reject(self, tokens: Iterable[int]) -> None:
        """Give back the requests of these messages; ignore unknown tokens."""
        with self._changed:
            self._settle(self._held.release(tokens), Outcome.GIVEN_BACK)

    @property
    def backlog(self) -> Backlog:
        """Return the number of messages that wait."""
        with self._changed:
            return Backlog(
                sum(len(request.messages) for request in self._waiting), sum(request.size for request in self._waiting)
            )

    def _settle(self, requests: Iterable[Request], outcome: Outcome) -> None:
        fresh = [request for request in dict.fromkeys(requests) if not request.is_settled]
        for request in fresh:
            request.is_settled = True
            self._count -= len(request.messages)
            self._bytes -= request.size
        if fresh:
            answers = [request.answer for request in fresh]
            with suppress(RuntimeError):  # if the server has ended, its clients are gone
                answers[0].get_loop().call_soon_threadsafe(_answer, answers, outcome)


def _answer(answers: Sequence["asyncio.Future[Outcome]"], outcome: Outcome) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_result(outcome)
