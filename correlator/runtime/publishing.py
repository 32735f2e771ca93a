"""Gives messages of the program to receivers, and waits until the receivers have stored them (docs/publishing.md)."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import msgspec

from correlator.connector import TakesFromProgram
from correlator.core.mapping import MAX_ID_BYTES
from correlator.core.messages import to_message
from correlator.errors import NotDone, UsageError, quoted
from correlator.events import UNIQUE_ID, Message
from correlator.runtime.life import Life
from correlator.runtime.receiver import Receiver

_ROOM_S = 0.2
"""Seconds for which a thread of the event loop waits at a time until the receiver takes a message."""


class Publisher:
    """Publishes for an `Engine`, whose methods `publish` and `published` document arguments and errors. Any thread may
    call it.

    Args:
        life: says whether the engine runs.
        receivers: returns the receivers by id.
        in_engine: returns whether the calling thread is one of the engine's own.
    """

    def __init__(
        self, life: Life, receivers: Callable[[], Mapping[str, Receiver]], in_engine: Callable[[], bool]
    ) -> None:
        self._life = life
        self._receivers = receivers
        self._in_engine = in_engine

    def publish(
        self,
        to: str,
        event: Any,
        unique_id: str | None,
        key: str | None,
        properties: Mapping[str, Any] | None,
        timeout_s: float | None,
    ) -> None:
        """Give a message to a receiver, and wait until it is received for good."""
        receiver, source, message = self._prepared(to, event, unique_id, key, properties)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while (done := source.offer(message)) is None:
            if not source.wait_for_room(_left(until)) and _left(until) <= 0:
                raise _late(receiver, "as many messages wait as may (max_waiting)", "It was not taken")
        try:
            done.result(None if until is None else _left(until))
        except TimeoutError as error:
            raise _late(receiver, f"it is not stored after {timeout_s:g} s", "It may be stored later") from error

    async def published(
        self,
        to: str,
        event: Any,
        unique_id: str | None,
        key: str | None,
        properties: Mapping[str, Any] | None,
    ) -> None:
        """Do the same without blocking the event loop."""
        _, source, message = self._prepared(to, event, unique_id, key, properties)
        done: Future[None] | None
        while (done := source.offer(message)) is None:
            await asyncio.to_thread(source.wait_for_room, _ROOM_S)
        await asyncio.wrap_future(done)

    def _prepared(
        self, to: str, event: Any, unique_id: str | None, key: str | None, properties: Mapping[str, Any] | None
    ) -> tuple[Receiver, TakesFromProgram, Message]:
        receiver = self._receiver(to)
        message = _message(receiver, event, unique_id, key, properties)
        if message.destination is not None:  # a received message has none: it would go there when it is sent on
            message = msgspec.structs.replace(message, destination=None)
        return receiver, _program_of(receiver), message

    def _receiver(self, name: str) -> Receiver:
        self._life.refuse_unless_running(name)
        if self._in_engine():
            what, todo = "publish was called in a handler, and would wait for itself", "Call send"
            raise UsageError("E8317", f"receiver {quoted(name)}", what, "", todo)
        receivers = self._receivers()
        if name not in receivers:
            known = ", ".join(name for name, one in receivers.items() if one.program is not None) or "none"
            what = "there is no such receiver"
            raise UsageError("E8317", f"receiver {quoted(name)}", what, f"Receivers of the program: {known}")
        return receivers[name]


def _message(
    receiver: Receiver, event: Any, unique_id: str | None, key: str | None, properties: Mapping[str, Any] | None
) -> Message:
    """Make the message that a receiver gets.

    Raises:
        UsageError: E8318 for a unique id that the receiver cannot use.
        MappingError: E5201, E5202 for an object that cannot become a message.
    """
    if unique_id is None:
        return to_message(event, key, properties)
    where, template = f"receiver {receiver.settings.id}", receiver.settings.unique_message_id
    if template != f"${{property.{UNIQUE_ID}}}":
        what = f"takes its unique ids from {quoted(template)}"
        raise UsageError("E8318", where, what, "unique_id would have no effect", "Leave it out")
    if not isinstance(unique_id, str):
        raise UsageError("E8318", where, f"a unique id of type {type(unique_id).__name__}", "Text")
    message = to_message(event, key, {**(properties or {}), UNIQUE_ID: unique_id})
    size = len(unique_id.encode())
    if not 0 < size <= MAX_ID_BYTES:
        raise UsageError("E8318", where, f"a unique id of {size} bytes", f"1 to {MAX_ID_BYTES} bytes")
    return message


def _program_of(receiver: Receiver) -> TakesFromProgram:
    if receiver.program is None:
        where, what = f"receiver {receiver.settings.id}", "receives from a broker, not from the program"
        todo = "Publish to a receiver of a connection of type program"
        raise UsageError("E8317", where, what, "", todo)
    return receiver.program


def _left(until: float | None) -> float:
    return _ROOM_S if until is None else max(0.0, until - time.monotonic())


def _late(receiver: Receiver, what: str, allowed: str) -> NotDone:
    todo = "Publish it again, with the same unique id"
    return NotDone("E8316", f"receiver {receiver.settings.id}", what, allowed, todo)
