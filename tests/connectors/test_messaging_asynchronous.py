"""Sessions of programs with asyncio: nothing blocks the loop, and a cancelled `receive` loses nothing."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from functools import partial

import pytest

from connectors.messaging import AcknowledgeMode, ConnectionFactory
from connectors.messaging.asynchronous import AsyncConnection
from correlator.errors import SendRejected, UsageError
from correlator.events import Message
from correlator.testing.contract import PATIENCE_S
from tests.connectors.test_messaging import (
    AUTO,
    CLIENT,
    DUPS_OK,
    INDIVIDUAL,
    TRANSACTED,
    Memory,
    bodies,
    exit_code_of_child,
    numbered,
)
from tests.connectors.test_messaging_service import QUEUE, Service, until


@pytest.fixture(params=["service", "memory"])
def broker(request):
    return (Service() if request.param == "service" else Memory()).broker


async def send_one(connection):
    """Send a message by a session of its own."""
    await (await (await connection.create_session()).create_producer(QUEUE)).send(Message(b"1"))


def factory_of(broker):
    return ConnectionFactory(broker.connection)


def ran(program):
    """Run a program to its end. asyncio must have nothing to complain of, such as an error that nobody retrieved."""
    complaints = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        return await asyncio.wait_for(program, 3 * PATIENCE_S)

    gc.disable()  # all objects of the program stay in the youngest generation, which is quick to collect
    try:
        result = asyncio.run(watched())
        gc.collect(0)
    finally:
        gc.enable()
    assert complaints == []
    return result


def test_an_error_that_nobody_retrieves_is_seen():
    async def program():
        async def fail():
            raise ValueError("nobody retrieves this")

        task = asyncio.create_task(fail())
        task.itself = task  # only a collection removes it
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="nobody retrieves this"):
        ran(program())


async def cancelled(consumer, sender, message):
    """Cancel a receive while a message arrives; returns what it had at once, which an earlier one has left."""
    task = asyncio.create_task(consumer.receive())
    sending = asyncio.create_task(sender.send(message))
    await asyncio.sleep(0)
    task.cancel()
    await sending
    with suppress(asyncio.CancelledError):
        return [await task]
    return []


def test_messages_are_sent_and_received_while_the_loop_goes_on(broker):
    async def program():
        async with await AsyncConnection.connect(factory_of(broker)) as connection:
            receiving, sending = await connection.create_session(), await connection.create_session()
            consumer, producer = await receiving.create_consumer(QUEUE), await sending.create_producer(QUEUE)
            waiting = asyncio.create_task(consumer.receive())
            ids = await asyncio.gather(*[producer.send(message) for message in numbered(3)])
            assert all(one.startswith("ID:") for one in ids)
            first = await waiting
            return bodies([first, await consumer.receive(PATIENCE_S), await consumer.receive(PATIENCE_S)])

    assert ran(program()) == ["1", "2", "3"]


@pytest.mark.parametrize("mode", [AUTO, CLIENT, INDIVIDUAL, DUPS_OK])
@pytest.mark.parametrize("again", [True, False])
def test_a_cancelled_receive_loses_nothing(broker, mode, again):
    """Tasks are cancelled while a message arrives; each message is then received, or comes to another session."""

    async def program():
        found = []
        async with await AsyncConnection.connect(factory_of(broker)) as connection:
            sender = await (await connection.create_session()).create_producer(QUEUE)
            session = await connection.create_session(mode)
            consumer = await session.create_consumer(QUEUE)
            for message in numbered(20):
                found += await cancelled(consumer, sender, message)
                if again:
                    found.append(await consumer.receive(PATIENCE_S))
            for message in found:
                await session.acknowledge(message)
            await session.close()
            last = await (await connection.create_session()).create_consumer(QUEUE)
            while (left := await last.receive(0)) is not None:
                found.append(left)
        return bodies(found)

    assert sorted(ran(program()), key=int) == bodies(numbered(20))


def test_other_calls_do_not_wait_behind_a_cancelled_receive(broker):
    async def program():
        async with await AsyncConnection.connect(factory_of(broker)) as connection:
            session = await connection.create_session(CLIENT)
            consumer = await session.create_consumer(QUEUE)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.receive(), 0.01)
            await session.recover()

    ran(program())


def test_closing_ends_what_waits(broker):
    async def program():
        connection = await AsyncConnection.connect(factory_of(broker))
        consumer = await (await connection.create_session()).create_consumer(QUEUE)
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        await connection.close()
        (ended,) = await asyncio.gather(waiting, return_exceptions=True)
        assert ended is None or (isinstance(ended, UsageError) and ended.code == "E7501")  # it had not begun to wait
        await connection.close()

    ran(program())


def test_a_transaction_is_committed_and_refused():
    service = Service()

    async def program():
        async with await AsyncConnection.connect(factory_of(service.broker)) as connection:
            session = await connection.create_session(TRANSACTED)
            producer = await session.create_producer(QUEUE)
            await producer.send(Message(b"1"))
            await session.commit()
            await producer.send(Message(b"2", destination="nonsense"))
            with pytest.raises(SendRejected):
                await session.commit()
            reading = await (await connection.create_session()).create_consumer(QUEUE)
            return [message.body async for message in one_of(reading)]

    assert ran(program()) == [b"1"]


async def one_of(consumer):
    async for message in consumer:
        yield message
        await consumer.close()
        return


def test_what_a_cancelled_receive_has_left_comes_again_when_the_consumer_is_closed(broker):
    async def program():
        async with await AsyncConnection.connect(factory_of(broker)) as connection:
            session = await connection.create_session(CLIENT)
            consumer = await session.create_consumer(QUEUE)
            task = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0)
            await send_one(connection)
            task.cancel()
            await asyncio.wait([task])
            await consumer.close()
            last = await (await connection.create_session()).create_consumer(QUEUE)
            return await last.receive(PATIENCE_S)

    assert ran(program()).body == b"1"


def test_a_session_that_is_refused_leaves_no_thread():
    async def program():
        async with await AsyncConnection.connect(factory_of(Memory().broker)) as connection:
            with pytest.raises(UsageError, match="^E7509"):
                await connection.create_session(AcknowledgeMode.TRANSACTED)

    ran(program())


@pytest.mark.parametrize(("kind", "connections"), [(Service, 1), (Memory, 8)])
def test_sessions_that_tasks_make_at_once_leave_no_connection_over(kind, connections):
    made = []
    is_entered, goes_on = threading.Event(), threading.Event()
    broker = kind().broker

    def connect(*args):
        made.append(args)
        is_entered.set()
        assert goes_on.wait(PATIENCE_S)
        return broker.connection(*args)

    async def program():
        async with await AsyncConnection.connect(ConnectionFactory(connect)) as connection:
            making = [asyncio.create_task(connection.create_session()) for _ in range(8)]
            await asyncio.to_thread(is_entered.wait, PATIENCE_S)
            goes_on.set()
            await asyncio.gather(*making)

    ran(program())
    assert len(made) == connections


def test_a_connection_does_not_keep_the_sessions_that_are_closed(broker):
    async def program():
        async with await AsyncConnection.connect(factory_of(broker)) as connection:
            closed = await connection.create_session()
            await closed.close()
            kept = weakref.ref(closed)
            del closed
            await connection.create_session()
            return kept()

    assert ran(program()) is None


def test_a_cancelled_receive_ends_no_other_one_of_its_session(broker):
    async def program():
        async with await AsyncConnection.connect(factory_of(broker)) as connection:
            session = await connection.create_session()
            first, second = await session.create_consumer("queue:idle"), await session.create_consumer(QUEUE)
            cancelled, waiting = asyncio.create_task(first.receive()), asyncio.create_task(second.receive())
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            await send_one(connection)
            return await waiting

    assert ran(program()).body == b"1"


def test_a_consumer_is_closed_though_another_one_of_its_session_waits(broker):
    async def program():
        async with await AsyncConnection.connect(factory_of(broker)) as connection:
            session = await connection.create_session()
            consumer, other = await session.create_consumer(QUEUE), await session.create_consumer("queue:other")
            waiting = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0)
            await other.close()
            await send_one(connection)
            return await waiting

    assert ran(program()).body == b"1"


def test_what_receive_has_when_the_consumer_is_closed_is_received_once(broker):
    """The consumer is closed when its thread has a message, and the task does not know that yet."""

    async def program():
        async with await AsyncConnection.connect(factory_of(broker)) as connection:
            await send_one(connection)
            session = await connection.create_session()
            consumer = await session.create_consumer(QUEUE)
            task = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0)
            has_message = threading.Event()
            session._worker.begin(has_message.set)
            assert has_message.wait(PATIENCE_S)
            await consumer.close()
            last = await (await connection.create_session()).create_consumer(QUEUE)
            return (await task).body, await last.receive(0)

    assert ran(program()) == (b"1", None)


def test_a_close_that_was_cancelled_can_be_repeated(broker):
    async def program():
        async with await AsyncConnection.connect(factory_of(broker)) as connection:
            await send_one(connection)
            consumer = await (await connection.create_session(CLIENT)).create_consumer(QUEUE)
            for call in (consumer.receive, consumer.close):
                task = asyncio.create_task(call())
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            await consumer.close()
            last = await (await connection.create_session()).create_consumer(QUEUE)
            return await last.receive(PATIENCE_S)

    assert ran(program()).body == b"1"


def test_closing_a_consumer_ends_every_receive(broker):
    async def program():
        async with await AsyncConnection.connect(factory_of(broker)) as connection:
            consumer = await (await connection.create_session()).create_consumer(QUEUE)
            waiting = [asyncio.create_task(consumer.receive()) for _ in range(3)]
            await asyncio.sleep(0)
            await consumer.close()
            return await asyncio.gather(*waiting, return_exceptions=True)

    assert all(one is None or one.code == "E7501" for one in ran(program()))


def test_what_is_closed_refuses_every_call(broker):
    async def program():
        async with await AsyncConnection.connect(factory_of(broker)) as connection:
            session = await connection.create_session(CLIENT)
            consumer, producer = await session.create_consumer(QUEUE), await session.create_producer(QUEUE)
            await session.close()
            for call in (consumer.receive, session.recover, partial(producer.send, Message(b"1"))):
                with pytest.raises(UsageError, match="^E7501"):
                    await call()
            await session.close()

    ran(program())


def test_a_loop_over_messages_ends_when_the_session_is_closed_between_two_of_them(broker):
    async def program():
        async with await AsyncConnection.connect(factory_of(broker)) as connection:
            producer = await (await connection.create_session()).create_producer(QUEUE)
            for message in numbered(2):
                await producer.send(message)
            session = await connection.create_session()
            found = []
            async for message in await session.create_consumer(QUEUE):
                found.append(message)
                await session.close()
            return bodies(found)

    assert ran(program()) == ["1"]


@pytest.mark.parametrize("made", ["create_consumer", "create_producer"])
def test_what_a_cancelled_task_has_made_is_closed(broker, made):
    async def program():
        async with await AsyncConnection.connect(factory_of(broker)) as connection:
            session = await connection.create_session()
            task = asyncio.create_task(getattr(session, made)(QUEUE))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await session.recover()  # behind the call that makes it
            await session.recover()  # behind the call that closes it
            assert session._session._ends[0].closed

    ran(program())


def test_a_connection_that_a_cancelled_task_has_made_frees_its_client_id():
    service, entered, goes_on = Service(), threading.Event(), threading.Event()

    def connector(name, settings):
        entered.set()
        assert goes_on.wait(PATIENCE_S)
        return service.broker.connection(name, settings)

    async def program():
        task = asyncio.create_task(AsyncConnection.connect(ConnectionFactory(connector), client_id="desk"))
        await asyncio.to_thread(entered.wait, PATIENCE_S)
        task.cancel()
        await asyncio.wait([task])
        goes_on.set()

    ran(program())
    until(lambda: not service.broker.clients)


NEVER_CLOSES = """
import asyncio
from connectors.messaging import ConnectionFactory
from connectors.messaging.asynchronous import AsyncConnection
from correlator.testing.service import ServiceBroker


async def consumer():
    connection = await AsyncConnection.connect(ConnectionFactory(ServiceBroker().connection))
    return await (await connection.create_session()).create_consumer("queue:q")


async def waits(consumer):
    asyncio.create_task(consumer.receive())
    await asyncio.sleep(0)


loop = asyncio.new_event_loop()
loop.run_until_complete(waits(loop.run_until_complete(consumer())))
loop.close()
print("done", flush=True)
"""


def test_a_program_ends_though_a_receive_waits_whose_loop_has_ended():
    ended = subprocess.run([sys.executable, "-c", NEVER_CLOSES], capture_output=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"done\n")


def test_a_forked_child_may_close_and_nothing_else():
    async def child(connection, session, consumer):
        for call in (session.recover, consumer.receive, connection.create_session):
            with pytest.raises(UsageError, match="^E2050"):
                await call()
        await connection.close()

    connection = session = consumer = None

    async def program():
        nonlocal connection, session, consumer
        connection = await AsyncConnection.connect(factory_of(Memory().broker))
        session = await connection.create_session()
        consumer = await session.create_consumer(QUEUE)

    ran(program())
    assert exit_code_of_child(lambda: ran(child(connection, session, consumer))) == 0
    ran(connection.close())
