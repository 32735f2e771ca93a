"""Sessions for programs with asyncio. The objects are the same, but their methods are awaited (docs/sessions.md).

Each session has a thread of its own, in which its calls run one after the other, so that the event loop never waits for
a broker. All objects belong to one event loop.
"""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from connectors.messaging.connection import Connection
from connectors.messaging.consumer import Consumer
from connectors.messaging.deliveries import AcknowledgeMode
from connectors.messaging.factory import ConnectionFactory
from connectors.messaging.failures import closed
from connectors.messaging.producer import Producer
from connectors.messaging.send_options import outside, seconds
from connectors.messaging.session import Session
from correlator.errors import UsageError
from correlator.events import Message
from correlator.processes import Maker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
W = TypeVar("W")
C = TypeVar("C", Connection, Consumer, Producer)


class _Worker:
    """The thread of a session. It is a daemon: the end of the program does not wait for a call that still waits."""

    def __init__(self) -> None:
        self.ended = False
        """Whether `close` was called."""
        self._maker = Maker()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="asynchronous session", daemon=True)
        self._thread.start()

    def begin(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[R]":
        """Run a call after all earlier ones. Raises `UsageError` E7501 after `close`, E2050 in a forked child."""
        self._maker.check("session")
        if self.ended:
            raise closed("session")
        outcome: Future[R] = Future()
        self._calls.put(functools.partial(_run, outcome, functools.partial(call, *args, **kwargs)))
        awaited = asyncio.wrap_future(outcome)
        awaited.add_done_callback(_retrieve)
        return awaited

    async def close(self) -> None:
        """End the thread, when the calls that were begun have returned."""
        self.ended = True
        self._calls.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _run(outcome: "Future[R]", call: Callable[[], R]) -> None:
    if outcome.set_running_or_notify_cancel():
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001  # the task that awaits the call gets the exception
            outcome.set_exception(error)


def _retrieve(done: "asyncio.Future[Any]") -> None:
    """Mark an error as seen. When the awaiting task was cancelled, asyncio would log it as never retrieved."""
    if not done.cancelled():
        done.exception()


class _Of:
    """An object whose calls run in the thread of its session."""

    def __init__(self, worker: _Worker, of: Any) -> None:
        self._worker = worker
        self._of = of


def _awaited(
    method: Callable[Concatenate[T, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Turn a method of a session, consumer or producer into a method to await, which runs in the thread of the session.

    If the awaiting task is cancelled, the call still completes, and the program does not learn its outcome.
    """

    @functools.wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.shield(self._worker.begin(functools.partial(method, self._of), *args, **kwargs))

    return call


async def _made(making: "asyncio.Future[C]", run: Callable[[Callable[[], None]], object]) -> C:
    """Await an object. If the task is cancelled, nobody gets the object, and `run` calls its `close`."""

    def close(done: "asyncio.Future[C]") -> None:
        if not done.cancelled() and done.exception() is None:
            with suppress(UsageError):  # the session is closed, and with it the object
                run(done.result().close)

    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(close)
        raise


def _making(
    method: Callable[Concatenate[T, P], C], wrapped: Callable[[_Worker, C], W]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, W]]:
    """Do the same as `_awaited` for a method that makes an object; the caller gets its asynchronous form."""

    @functools.wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> W:
        making = self._worker.begin(functools.partial(method, self._of), *args, **kwargs)
        return wrapped(self._worker, await _made(making, self._worker.begin))

    return call


class AsyncConsumer(_Of):
    """A `Consumer` whose methods are awaited; `async for` receives until the end. It has no listeners."""

    def __init__(self, worker: _Worker, consumer: Consumer) -> None:
        super().__init__(worker, consumer)
        self._consumer = consumer
        self._turn = asyncio.Lock()
        """Held from the beginning of a `receive` until the beginning of the acknowledgement of its message."""
        self._closes = False

    async def receive(self, timeout_s: float | None = None) -> Message | None:
        """Receive as `Consumer.receive`, with its errors.

        In mode AUTO the message is acknowledged right after this has returned it. If the awaiting task is cancelled, no
        message is lost: the next `receive` returns it, or the broker redelivers it when the consumer is closed.
        """
        deadline = time.monotonic() + seconds(self._consumer.where, timeout_s)
        async with self._turn:
            if self._closes:
                raise closed(self._consumer.where)
            message = await self._fetch(deadline)
            # Another consumer of the session may have ended the wait.
            while message is None and not self._is_at_end and time.monotonic() < deadline:
                message = await self._fetch(deadline)
            if message is not None:
                # Not awaited: between the acknowledgement and the return of the message nothing may be cancelled.
                # If it fails, the next call will meet the lost connection itself.
                self._worker.begin(self._consumer.confirm)
            return message

    async def close(self) -> None:
        """Close as `Consumer.close`. The broker redelivers a message that a cancelled `receive` has left."""
        self._closes = True
        self._consumer.end_waits()
        async with self._turn:
            await asyncio.shield(self._worker.begin(self._consumer.close))

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Receive messages until the end of a file, or until consumer, session or connection is closed."""
        try:
            while (message := await self.receive()) is not None:
                yield message
        except UsageError as error:
            if error.code != "E7501":
                raise

    async def _fetch(self, deadline: float) -> Message | None:
        timeout_s = max(0.0, deadline - time.monotonic())
        try:
            return await asyncio.shield(self._worker.begin(self._consumer.fetch, timeout_s, self._consumer.stops))
        except asyncio.CancelledError:
            self._consumer.end_waits()
            raise

    @property
    def _is_at_end(self) -> bool:
        return self._closes or self._consumer.closed or self._consumer.ended


class AsyncProducer(_Of):
    """A `Producer` whose methods are awaited. Several tasks may send at the same time.

    `close` waits until all earlier calls of the session have returned; only `AsyncSession.close` ends a `send` that
    waits for room in a full destination.
    """

    send = _awaited(Producer.send)
    close = _awaited(Producer.close)


class AsyncSession(_Of):
    """A `Session` whose methods are awaited; closed by `close` or `async with`."""

    create_consumer = _making(Session.create_consumer, AsyncConsumer)
    create_durable_consumer = _making(Session.create_durable_consumer, AsyncConsumer)
    create_shared_consumer = _making(Session.create_shared_consumer, AsyncConsumer)
    create_shared_durable_consumer = _making(Session.create_shared_durable_consumer, AsyncConsumer)
    create_producer = _making(Session.create_producer, AsyncProducer)
    create_browser = _awaited(Session.create_browser)
    acknowledge = _awaited(Session.acknowledge)
    recover = _awaited(Session.recover)
    commit = _awaited(Session.commit)
    rollback = _awaited(Session.rollback)
    prepare = _awaited(Session.prepare)
    resolve = _awaited(Session.resolve)
    request = _awaited(Session.request)
    unsubscribe = _awaited(Session.unsubscribe)
    create_temporary_queue = _awaited(Session.create_temporary_queue)
    create_temporary_topic = _awaited(Session.create_temporary_topic)
    delete_temporary = _awaited(Session.delete_temporary)

    def __init__(self, worker: _Worker, session: Session) -> None:
        super().__init__(worker, session)
        self._session = session

    async def close(self) -> None:
        """Close the session as `Session.close`; a `receive` that waits returns `None`, or raises E7501."""
        await asyncio.to_thread(self._session.close)
        await self._worker.close()

    @property
    def ended(self) -> bool:
        """Whether the session is closed, and its thread has ended or is about to end."""
        return self._worker.ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncConnection:
    """A `Connection` whose sessions are awaited. Made by `connect`; closed by `close` or `async with`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._making = asyncio.Lock()
        """Held while a session is made: each one is made in a thread of its own, and only one thread at a time may use
        the connection.
        """
        self._sessions: list[AsyncSession] = []

    @classmethod
    async def connect(cls, factory: ConnectionFactory, *, client_id: str | None = None) -> Self:
        """Make a connection as `ConnectionFactory.create_connection`, with its errors; E7540 for another factory."""
        if not isinstance(factory, ConnectionFactory):
            raise outside("connection.factory", factory, "A ConnectionFactory")
        make = functools.partial(factory.create_connection, client_id=client_id)
        making = asyncio.get_running_loop().run_in_executor(None, make)
        return cls(await _made(making, lambda close: Thread(target=close, name="close unwanted").start()))

    async def create_session(self, mode: AcknowledgeMode = AcknowledgeMode.AUTO) -> AsyncSession:
        """Make a session with a thread of its own; errors as `Connection.create_session`."""
        async with self._making:
            worker = _Worker()
            try:
                made = AsyncSession(worker, await worker.begin(self._connection.create_session, mode))
            except BaseException:
                await worker.close()
                raise
            self._sessions = [*(one for one in self._sessions if not one.ended), made]
        return made

    async def close(self) -> None:
        """Close all sessions and the connection. May be repeated."""
        for session in self._sessions:
            await session.close()
        self._sessions.clear()
        await asyncio.to_thread(self._connection.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
