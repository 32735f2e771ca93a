"""Events that the program of the engine publishes (docs/publishing.md)."""

import asyncio
import threading

import pytest

from connectors.program import ProgramConnection
from connectors.program.source import ProgramSource
from correlator import Engine, Message, Monitor, Reliability, on
from correlator.core import faults
from correlator.errors import ConfigError, ConnectionLost, MappingError, NotDone, UsageError
from correlator.settings import (
    BridgeSettings,
    CheckpointSettings,
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)
from correlator.testing.memory import MemoryBroker
from tests.runtime.flows import SCRIPT

PATIENCE_S = 60.0
WEB = ReceiverSettings(
    id="web",
    connection="program",
    destination="queue:web",
    reliability=Reliability.EXACTLY_ONCE,
    max_batch_interval_ms=0,
)


class Program:
    """Engines whose receiver `web` gets what the test publishes, and sends it to `queue:out`."""

    def __init__(self, store):
        self.store = store
        self.broker = MemoryBroker()

    def engine(self, *receivers, **more):
        settings = {
            "bridges": (BridgeSettings(name="b", from_=("web",), to=("out",)),),
            "connections": {"program": ConnectionSettings(type="program")},
            "checkpoint": CheckpointSettings(interval=0.02),
            **more,
        }
        out = SenderSettings(
            id="out", connection="memory", destination="queue:out", reliability=Reliability.EXACTLY_ONCE
        )
        of_engine = EngineSettings(
            name="program", store=self.store, receivers=receivers or (WEB,), senders=(out,), **settings
        )
        made = ProgramConnection("program", settings["connections"]["program"])
        return Engine(of_engine, connections={"memory": self.broker.connection(), "program": made})

    def pause(self, engine):
        """Pause the receiver, and wait until it has noticed."""
        engine.pause("web")
        self.wait(lambda: engine.receivers["web"].waits_for == "pause")

    def wait(self, condition):
        for _ in range(int(PATIENCE_S / 0.005)):
            if self.broker.wait_until(condition, 0.005):
                return
        raise AssertionError(f"waited {PATIENCE_S} s in vain")

    def wait_for(self, *bodies):
        self.wait(lambda: len(self.broker.received("queue:out")) >= len(bodies))
        assert [one.body.decode() for one in self.broker.received("queue:out")] == list(bodies)


@pytest.fixture
def program(tmp_path):
    yield Program(f"sqlite:///{tmp_path / 'engine.db'}")
    faults.install(None)


def test_what_is_published_is_in_the_store_when_publish_returns(program):
    """The engine is killed before it has sent anything; the next one sends it."""
    engine = program.engine(checkpoint=CheckpointSettings(interval=3600.0))
    engine.start()
    engine.publish({"number": 1}, to="web", unique_id="1", key="k", properties={"a": 1})
    engine.stop(drain=False)
    with program.engine():
        program.wait_for('{"number":1}')
    [sent] = program.broker.received("queue:out")
    assert (sent.key, sent.properties["a"]) == ("k", 1)


class SendsOn(Monitor):
    """Sends on what it gets."""

    @on(Message)
    def one(self, message: Message) -> None:
        """Send it to the sender `out`."""
        self.send(message, to="out")


def test_the_destination_of_a_published_message_does_not_lead_it_elsewhere_when_it_is_sent_on(program):
    with program.engine(bridges=(), monitors=(MonitorSettings(type=f"{__name__}:SendsOn"),)) as engine:
        engine.publish(Message(b"a", {"n": 1}, "k", "queue:elsewhere"), to="web", unique_id="a")
        engine.publish(Message(b"b", destination="queue:elsewhere"), to="web")
        program.wait_for("a", "b")
    assert not program.broker.received("queue:elsewhere")
    assert (program.broker.received("queue:out")[0].key, program.broker.received("queue:out")[0].properties["n"]) == (
        "k",
        1,
    )


def test_a_repeat_with_the_same_id_takes_effect_once(program):
    for _ in range(2):
        with program.engine() as engine:
            engine.publish(b"a", to="web", unique_id="a")
            engine.publish(b"a", to="web", unique_id="a")
            engine.publish(b"b", to="web", unique_id="b")
    with program.engine():
        program.wait_for("a", "b")


def test_coroutines_wait_without_blocking_and_are_committed_together(program):
    async def run():
        async with program.engine() as engine:
            numbers = range(500)
            await asyncio.gather(*(engine.published(str(n).encode(), to="web", unique_id=str(n)) for n in numbers))
            return engine.status().receivers["web"][1].batches

    batches = asyncio.run(run())
    program.wait_for(*map(str, range(500)))
    assert batches < 100


def test_publish_waits_while_as_many_wait_as_may(program):
    few = ReceiverSettings(
        id="web",
        connection="program",
        destination="queue:web",
        reliability=Reliability.EXACTLY_ONCE,
        options={"max_waiting": 2},
    )

    async def run(engine):
        program.pause(engine)
        several = [asyncio.create_task(engine.published(str(n).encode(), to="web")) for n in range(5)]
        await asyncio.sleep(0)  # each of them is taken, or waits for room
        with pytest.raises(NotDone, match="E8316 receiver web: as many messages wait as may"):
            await asyncio.to_thread(engine.publish, b"x", to="web", timeout_s=0.001)
        engine.resume("web")
        await asyncio.gather(*several)

    with program.engine(few) as engine:
        asyncio.run(run(engine))


def test_a_publish_ends_with_an_error_if_the_engine_stops_or_the_time_passes(program):
    engine = program.engine()
    with pytest.raises(NotDone, match="E8309"):
        engine.publish(b"early", to="web")
    engine.start()
    program.pause(engine)
    with pytest.raises(NotDone, match=r"E8316 receiver web: it is not stored after 0.001 s"):
        engine.publish(b"late", to="web", timeout_s=0.001)
    ended = []

    def publish():
        try:
            engine.publish(b"never", to="web")
        except NotDone as error:
            ended.append(str(error))

    thread = threading.Thread(target=publish)
    thread.start()
    source = engine.receivers["web"].program
    while source.backlog().messages < 2:
        pass
    engine.stop(drain=False)
    thread.join(PATIENCE_S)
    assert ended[0].startswith("E8315 receivers.web: the receiver has ended, and it did not take the message.")
    with pytest.raises(NotDone, match="E8309"):
        engine.publish(b"after", to="web")


class Publishes(Monitor):
    """Calls the method of the engine that the test has put here."""

    engine: Engine | None = None

    @on(Message)
    def message(self, message: Message) -> None:
        try:
            SCRIPT.publish()
        except UsageError as error:
            SCRIPT.refusal = error


def test_a_handler_cannot_publish(program):
    monitors = (MonitorSettings(type=Publishes),)
    with program.engine(bridges=(), monitors=monitors) as engine:
        SCRIPT.refusal = None
        SCRIPT.publish = lambda: engine.publish(b"again", to="web")
        engine.publish(b"a", to="web", unique_id="a")
        program.wait(lambda: SCRIPT.refusal is not None)
    assert str(SCRIPT.refusal).startswith("E8317 receiver 'web': publish was called in a handler")


def test_what_waits_for_a_receiver_that_is_removed_is_not_taken(program):
    late = ReceiverSettings(id="late", connection="program", destination="queue:late")
    with program.engine(monitors=(MonitorSettings(type="tests.runtime.flows:Hears"),)) as engine:
        engine.add_receiver(late)
        engine.pause("late")
        program.wait(lambda: engine.receivers["late"].waits_for == "pause")
        ended = []
        waiting = threading.Thread(target=lambda: ended.append(_refusal(engine, "late")))
        waiting.start()
        program.wait(lambda: engine.receivers["late"].program.backlog().messages == 1)
        engine.remove("late")
        waiting.join(PATIENCE_S)
    (error,) = ended
    assert error.startswith("E8315 receivers.late: the receiver has ended, and it did not take the message.")


def _refusal(engine, receiver):
    with pytest.raises(NotDone) as refused:
        engine.publish(b"", to=receiver)
    return str(refused.value)


def test_what_cannot_be_published_is_refused(program):
    brokers = ReceiverSettings(id="broker", connection="memory", destination="queue:in")
    own_id = ReceiverSettings(
        id="own", connection="program", destination="queue:own", unique_message_id="${body.number}"
    )
    every = BridgeSettings(name="b", from_=("web", "broker", "own"), to=("out",))
    with program.engine(WEB, brokers, own_id, bridges=(every,)) as engine:
        for to, match in (("broker", "receives from a broker"), ("none", "Receivers of the program: web, own")):
            with pytest.raises(UsageError, match=f"E8317 receiver .*{match}"):
                engine.publish(b"", to=to)
        with pytest.raises(UsageError, match="E8318 receiver own: takes its unique ids from"):
            engine.publish({"number": 1}, to="own", unique_id="1")
        for unique_id in ("", "é" * 256 + "x"):
            with pytest.raises(UsageError, match="E8318 receiver web: a unique id of (0|513) bytes. 1 to 512"):
                engine.publish(b"", to="web", unique_id=unique_id)
        with pytest.raises(UsageError, match="E8318 receiver web: a unique id of type int"):
            engine.publish(b"", to="web", unique_id=7)
        with pytest.raises(MappingError, match="E5201"):
            engine.publish(object(), to="web")
        with pytest.raises(MappingError, match="E5202"):
            engine.publish(b"", to="web", properties={"a": object()})


def test_a_cancelled_caller_withdraws_nothing(program):
    async def run():
        async with program.engine() as engine:
            await asyncio.to_thread(program.pause, engine)
            task = asyncio.create_task(engine.published(b"a", to="web"))
            await asyncio.sleep(0)
            task.cancel()
            engine.resume("web")
            await engine.published(b"b", to="web")

    asyncio.run(run())
    program.wait_for("a", "b")


# --- the source alone ---


def test_what_is_taken_and_not_acknowledged_comes_again_first():
    source = ProgramSource("receivers.web", 10, 4, 1000)
    with pytest.raises(ConnectionLost, match="E7055"):
        source.receive(1, 0)
    source.connect()
    done = [source.offer(Message(str(number).encode())) for number in range(6)]
    first = source.receive(3, 0)
    assert [one.body for one in first.messages] == [b"0", b"1", b"2"]
    assert [one.body for one in source.receive(9, 0).messages] == [b"3"]
    assert source.receive(9, 0).messages == ()
    source.acknowledge([first.tokens[1]])
    assert [one.done() for one in done] == [False, True, False, False, False, False]
    source.reject(first.tokens)
    assert [one.body for one in source.receive(1, 0).messages] == [b"0"]
    source.connect()
    again = source.receive(9, 0)
    assert [one.body for one in again.messages] == [b"0", b"2", b"3", b"4"]
    source.acknowledge(first.tokens)
    source.close()
    source.close()
    for number in (0, 2, 3, 4):
        assert "it may have stored the message or not" in str(done[number].exception(0))
    assert "it did not take the message" in str(done[5].exception(0))
    with pytest.raises(NotDone, match="E8315"):
        source.offer(Message(b""))


def test_a_batch_ends_at_its_bytes():
    source = ProgramSource("receivers.web", 10, 10, 1000)
    source.connect()
    for size in (600, 600, 600):
        source.offer(Message(b"x" * size))
    assert [len(source.receive(9, 0).messages) for _ in range(3)] == [2, 1, 0]


def test_there_are_no_senders():
    connection = ProgramConnection("program", ConnectionSettings(type="program"))
    with pytest.raises(ConfigError, match=r"E1216 senders.out.connection: a program takes no messages"):
        connection.sink(SenderSettings(id="out", connection="program"))
