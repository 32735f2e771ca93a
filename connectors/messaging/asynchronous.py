"""Sessions for programs with asyncio: the same objects, whose methods are awaited (docs/sessions.md).

Each session has a thread of its own, in which its calls run one after the other, so that the event loop never waits for
a broker. All objects belong to one event loop.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from connectors.messaging.connection import Connection
from connectors.messaging.consumer import Consumer, Fetched
from connectors.messaging.deliveries import AcknowledgeMode
from connectors.messaging.factory import ConnectionFactory
from connectors.messaging.producer import Producer
from connectors.messaging.session import Session
from correlator.errors import CorrelatorError
from correlator.events import Message

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Worker:
    """The thread of a session."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "asynchronous session")

    def begin(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[R]":
        """Run a call behind all earlier ones."""
        return asyncio.wrap_future(self._executor.submit(call, *args, **kwargs))

    async def close(self) -> None:
        """End the thread, when the calls that were begun have returned."""
        await asyncio.to_thread(self._executor.shutdown)


class _Of:
    """An object whose calls run in the thread of its session."""

    def __init__(self, worker: _Worker, of: Any) -> None:
        self._worker = worker
        self._of = of


def _awaited(
    method: Callable[Concatenate[T, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The method of an asynchronous object that runs a method in the thread of the session.

    If the awaiting task is cancelled, the call goes on, and its outcome stays unknown.
    """

    @functools.wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.shield(self._worker.begin(functools.partial(method, self._of), *args, **kwargs))

    return call


class AsyncConsumer(_Of):
    """A `Consumer` whose methods are awaited; `async for` receives until the end. It has no listeners."""

    def __init__(self, worker: _Worker, session: Session, consumer: Consumer) -> None:
        super().__init__(worker, consumer)
        self._session = session
        self._consumer = consumer
        self._turn = asyncio.Lock()
        self._under_way: asyncio.Future[Fetched | None] | None = None
        """The call of a `receive`; if that was cancelled, its message is for the next one."""

    async def receive(self, timeout_s: float | None = None) -> Message | None:
        """Receive as `Consumer.receive`, with its errors.

        In modes AUTO and DUPS_OK the message is acknowledged right after this has returned it. If the awaiting task is
        cancelled, no message is lost: the next `receive` returns it, or it comes again when the consumer is closed.
        """
        async with self._turn:
            if self._under_way is not None:
                left = await self._outcome(self._under_way)
                if left is not None:
                    return self._handed(left)
            self._under_way = self._worker.begin(self._consumer.fetch, timeout_s, self._session.stops)
            fetched = await self._outcome(self._under_way)
            return None if fetched is None else self._handed(fetched)

    async def close(self) -> None:
        """Close as `Consumer.close`. What a cancelled `receive` has left comes again."""
        self._session.end_waits()
        left, self._under_way = self._under_way, None
        if left is not None:
            with suppress(CorrelatorError):
                fetched = await asyncio.shield(left)
                if fetched is not None:
                    await self._worker.begin(self._consumer.give_back, fetched)
        await self._worker.begin(self._consumer.close)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Receive messages until the end of a file, or until the session or connection is closed or stopped."""
        while (message := await self.receive()) is not None:
            yield message

    async def _outcome(self, under_way: "asyncio.Future[Fetched | None]") -> Fetched | None:
        try:
            fetched = await asyncio.shield(under_way)
        except asyncio.CancelledError:
            self._session.end_waits()
            under_way.add_done_callback(_look_at)
            raise
        except BaseException:
            self._under_way = None
            raise
        self._under_way = None
        return fetched

    def _handed(self, fetched: Fetched) -> Message:
        # Not awaited: between the acknowledgement and the return of the message nothing may be cancelled.
        self._worker.begin(self._consumer.confirm, fetched).add_done_callback(_look_at)
        return fetched.message


def _look_at(done: "asyncio.Future[Any]") -> None:
    """Take note of an error that nobody awaits; the next call meets the lost connection itself."""
    if not done.cancelled():
        done.exception()


class AsyncProducer(_Of):
    """A `Producer` whose methods are awaited. Several tasks may send at a time."""

    send = _awaited(Producer.send)
    close = _awaited(Producer.close)


class AsyncSession(_Of):
    """A `Session` whose methods are awaited; closed by `close` or `async with`."""

    acknowledge = _awaited(Session.acknowledge)
    recover = _awaited(Session.recover)
    commit = _awaited(Session.commit)
    rollback = _awaited(Session.rollback)
    prepare = _awaited(Session.prepare)
    resolve = _awaited(Session.resolve)
    request = _awaited(Session.request)
    unsubscribe = _awaited(Session.unsubscribe)
    create_browser = _awaited(Session.create_browser)
    create_temporary_queue = _awaited(Session.create_temporary_queue)
    create_temporary_topic = _awaited(Session.create_temporary_topic)
    delete_temporary = _awaited(Session.delete_temporary)
    _create_consumer = _awaited(Session.create_consumer)
    _create_durable_consumer = _awaited(Session.create_durable_consumer)
    _create_shared_consumer = _awaited(Session.create_shared_consumer)
    _create_shared_durable_consumer = _awaited(Session.create_shared_durable_consumer)
    _create_producer = _awaited(Session.create_producer)

    def __init__(self, worker: _Worker, session: Session) -> None:
        super().__init__(worker, session)
        self._session = session

    async def create_consumer(self, *args: Any, **kwargs: Any) -> AsyncConsumer:
        """Make a consumer; arguments and errors as `Session.create_consumer`."""
        return self._consumer(await self._create_consumer(*args, **kwargs))

    async def create_durable_consumer(self, *args: Any, **kwargs: Any) -> AsyncConsumer:
        """Make a consumer; arguments and errors as `Session.create_durable_consumer`."""
        return self._consumer(await self._create_durable_consumer(*args, **kwargs))

    async def create_shared_consumer(self, *args: Any, **kwargs: Any) -> AsyncConsumer:
        """Make a consumer; arguments and errors as `Session.create_shared_consumer`."""
        return self._consumer(await self._create_shared_consumer(*args, **kwargs))

    async def create_shared_durable_consumer(self, *args: Any, **kwargs: Any) -> AsyncConsumer:
        """Make a consumer; arguments and errors as `Session.create_shared_durable_consumer`."""
        return self._consumer(await self._create_shared_durable_consumer(*args, **kwargs))

    async def create_producer(self, *args: Any, **kwargs: Any) -> AsyncProducer:
        """Make a producer; arguments and errors as `Session.create_producer`."""
        return AsyncProducer(self._worker, await self._create_producer(*args, **kwargs))

    async def close(self) -> None:
        """Close the session as `Session.close`; a `receive` that waits returns `None`, or raises E7501."""
        await asyncio.to_thread(self._session.close)
        await self._worker.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _consumer(self, consumer: Consumer) -> AsyncConsumer:
        return AsyncConsumer(self._worker, self._session, consumer)


class AsyncConnection:
    """A `Connection` whose sessions are awaited. Made by `connect`; closed by `close` or `async with`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sessions: list[AsyncSession] = []

    @classmethod
    async def connect(cls, factory: ConnectionFactory, *, client_id: str | None = None) -> Self:
        """Make a connection as `ConnectionFactory.create_connection`, with its errors."""
        return cls(await asyncio.to_thread(factory.create_connection, client_id=client_id))

    async def create_session(self, mode: AcknowledgeMode = AcknowledgeMode.AUTO) -> AsyncSession:
        """Make a session with a thread of its own; errors as `Connection.create_session`."""
        worker = _Worker()
        try:
            made = AsyncSession(worker, await worker.begin(self._connection.create_session, mode))
        except BaseException:
            await worker.close()
            raise
        self._sessions.append(made)
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
