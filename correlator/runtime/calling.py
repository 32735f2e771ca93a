"""The sink of a sender that calls a function with each message, and sends what the function returns (docs/calls.md).

Calls go through lanes: threads that make one call at a time. Messages with the same key are in the same lane, so the
calls for them keep their order. If a call fails, the sender pauses as after a lost connection, and then repeats only
the calls that have not succeeded.
"""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from correlator.configuration.imports import import_object
from correlator.connector import Sink, lane_of
from correlator.core.messages import to_message
from correlator.core.tracecontext import PARENT, STATE
from correlator.errors import CallAgain, ConfigError, ConnectionLost, SendRejected, printable, quoted
from correlator.events import Message, Outgoing
from correlator.handlers import refuse_deferred, refuse_result
from correlator.processes import Maker
from correlator.reliability import SENDING
from correlator.settings import CallSettings, SenderSettings

_ALLOWED = "A function, plain or 'async def', of a message and a key"
_MOST_TOLD = 500

_Number = tuple[str, int]
"""Source and sequence of a message."""
_Outcome = Message | SendRejected | None
"""What a call has led to: a message to send, a message that is given up, or nothing to send."""


def function_of(call: CallSettings, where: str) -> Callable[[Message, str], Any]:
    """Import the function of a sender.

    Args:
        call: the settings.
        where: the place of `call`, for messages.

    Raises `ConfigError` E1501 if the function cannot be imported, and the errors of `check_function`.
    """
    function = import_object(call.function, f"{where}.function")
    check_function(function, call, where)
    found: Callable[[Message, str], Any] = function
    return found


def check_function(function: Any, call: CallSettings, where: str) -> None:
    """Refuse an object that a sender cannot call with a message and a key.

    Raises:
        ConfigError: E1531; also for a plain function with a time-out.
        UsageError: E4117, a generator.
    """
    place = f"{where}.function"
    if not callable(function):
        raise ConfigError("E1531", place, f"{quoted(call.function)} is no function", _ALLOWED)
    try:
        inspect.signature(function).bind(Message(b""), "")
    except (TypeError, ValueError) as error:
        raise ConfigError("E1531", place, f"{quoted(call.function)} cannot be called: {error}", _ALLOWED) from error
    if inspect.iscoroutinefunction(function):
        return
    refuse_deferred(function, place)
    if call.timeout is not None:
        what = f"{quoted(call.function)} is a plain function, which nobody can stop"
        todo = "Leave 'timeout' out, and let the function limit its own waits"
        raise ConfigError("E1531", f"{where}.timeout", what, "A time-out of an 'async def' function", todo)


class CallingSink:
    """Calls a function with each message of a batch, then gives what the calls return to the sink of a connector.

    The thread of the sender calls the methods. The function runs in the threads of the lanes, which live as long as the
    calls of a batch; a coroutine runs in an event loop, which has a thread of its own from `connect` to `close`. All of
    these are daemons: a call that never returns keeps no process from ending.

    Args:
        settings: settings of the sender, with `call`.
        function: the function, from `function_of`.
        sink: sends the results.
        physical: translates a logical destination of a result, and returns any other destination unchanged.
    """

    def __init__(
        self,
        settings: SenderSettings,
        function: Callable[[Message, str], Any],
        sink: Sink,
        physical: Callable[[str], str] = str,
    ) -> None:
        assert settings.call is not None
        self._where = f"senders.{settings.id}"
        self._call = settings.call
        self._max_tries = settings.max_tries
        ids = (settings.unique_message_id_property, settings.message_source_id_property)
        self._stamped = ids if SENDING[settings.reliability].stamps_id else ()
        self._carried = (*ids, PARENT, STATE)
        self._physical = physical
        self._function = function
        self._sink = sink
        self._process = Maker()
        self._connected = False
        self._loop: _Loop | None = None
        self._outcomes: dict[_Number, _Outcome] = {}
        """What the calls of a batch have led to: they are not repeated if the batch is sent again."""
        self._failures: dict[_Number, int] = {}
        self._failed: BaseException | None = None
        """The error of the first call of a batch that has failed."""

    def connect(self) -> None:
        """Connect the sink, unless only calls have failed; see `Sink.connect`. `UsageError` E2050 in a forked child.

        The event loop of coroutines begins once: they may share a pool of connections that belongs to it.
        """
        if self._connected or self._loop is not None:
            self._process.check(self._where)
        if self._loop is None and inspect.iscoroutinefunction(self._function):
            self._process, self._loop = Maker(), _Loop(f"{self._where}-loop")
        if not self._connected:
            self._process = Maker()
            self._sink.connect()
            self._connected = True

    def send(self, batch: Sequence[Outgoing]) -> Sequence[SendRejected | None]:
        """Make the calls, and wait for all of them; then send the results.

        Raises `ConnectionLost` E7057 if calls have failed and must be repeated; in this case nothing of the batch is
        sent.
        """
        self._process.check(self._where)
        if not self._connected:
            raise ConnectionLost("E7003", self._where, "not connected")
        self._failed = None
        lanes: list[list[Outgoing]] = [[] for _ in range(self._call.concurrency)]
        for out in batch:
            if _number(out) not in self._outcomes:
                lanes[lane_of(out, len(lanes))].append(out)
        threads = [
            threading.Thread(target=self._run, args=(lane,), name=f"{self._where}-lane-{at}", daemon=True)
            for at, lane in enumerate(lanes)
            if lane
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed is not None:
            raise self._failed
        results = self._send_outcomes(batch)
        for out in batch:
            self._outcomes.pop(_number(out), None)
            self._failures.pop(_number(out), None)
        return results

    def _send_outcomes(self, batch: Sequence[Outgoing]) -> list[SendRejected | None]:
        """Send what the calls have led to. Raises `ConnectionLost` as `Sink.send`."""
        outcomes = [self._outcomes[_number(out)] for out in batch]
        results = [one if isinstance(one, SendRejected) else None for one in outcomes]
        to_send = [
            (at, self._sent(out, one))
            for at, (out, one) in enumerate(zip(batch, outcomes, strict=True))
            if isinstance(one, Message)
        ]
        if to_send:
            try:
                answers = self._sink.send([out for _, out in to_send])
            except ConnectionLost:
                self._connected = False
                raise
            for (at, _), answer in zip(to_send, answers, strict=True):
                results[at] = answer
        return results

    def close(self) -> None:
        """Close the sink, and end the event loop. In a forked child it does nothing."""
        if self._process.is_another_process:
            return
        self._connected = False
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()
        self._sink.close()

    # --- in the thread of a lane ---

    def _run(self, lane: Sequence[Outgoing]) -> None:
        """Make the calls of a lane, until one of them fails: later messages may have the same key."""
        for out in lane:
            try:
                self._outcomes[_number(out)] = self._called(out)
            except BaseException as failed:  # noqa: BLE001  # `send` raises it
                self._failed = self._failed or failed
                return

    def _called(self, out: Outgoing) -> _Outcome:
        """Call the function. Raises `ConnectionLost` if the call must be repeated."""
        name = self._call.function
        try:
            result = self._function(out.message, f"{out.sequence}:{out.source}")
            if self._loop is not None:
                result = self._loop.run(result, self._call.timeout)
            refuse_result(result, self._function, name)
            return None if result is None else to_message(result, None, None)
        except CallAgain as again:
            what = f"{name} wants message {out.sequence} again: {_told(again)}"
        except Exception as error:  # noqa: BLE001  # code of the user
            failures = self._failures[_number(out)] = self._failures.get(_number(out), 0) + 1
            if failures >= self._max_tries:
                what = f"{name} failed {failures} times: {_told(error)}"
                return SendRejected("E8112", f"{self._where} message {out.sequence}", what)
            what = f"{name} failed for message {out.sequence}, try {failures} of {self._max_tries}: {_told(error)}"
        raise ConnectionLost("E7057", self._where, what, "", "It is called again")

    def _sent(self, out: Outgoing, result: Message) -> Outgoing:
        """The result in the form for the sink: with the ids, the trace and the key of the message that led to it.

        If the sender makes unique ids, these replace ids that the result itself has, as for any other send.
        """
        carried, stamped = (
            {name: out.message.properties[name] for name in names if name in out.message.properties}
            for names in (self._carried, self._stamped)
        )
        message = Message(
            result.body,
            {**carried, **result.properties, **stamped},
            out.message.key if result.key is None else result.key,
            None,
            result.headers or out.message.headers,
        )
        destination = self._physical(result.destination) if result.destination else out.destination
        return msgspec.structs.replace(out, message=message, destination=destination)


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout_s: float | None) -> Any:
        """Wait for a coroutine, from another thread. Raises `TimeoutError` if it takes longer than `timeout_s`."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, timeout_s), self._loop).result()

    def close(self) -> None:
        """End the loop and its thread. No coroutine of `run` is under way."""
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        """Run the loop until `close`. `sys.exit` in a coroutine leaves `run_forever`, too; the loop then goes on, so
        that the caller of `run` gets this exit.
        """
        while not self._closing:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()


def _number(out: Outgoing) -> _Number:
    return out.source, out.sequence


def _told(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}".removesuffix(": "))[:_MOST_TOLD]
