"""Messages that end the process (trap T26, bad input 110): found, kept as a dead letter, and nothing else is."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from correlator.core import faults
from correlator.core.batch_context import Delivered, Effects
from correlator.core.commit import StateEntry, Suspect, SuspectCommit, Write
from correlator.core.steps import ConfiguredStep
from correlator.events import Message
from correlator.ports import StateView
from correlator.storage import inspect
from correlator.storage.database import reading
from correlator.storage.store import SqlStore
from correlator.testing.memory import MemoryBroker
from correlator.testing.store import Disk, ModelStore
from tests.runtime.flows import Aborts, Hears, Keeps, Note
from tests.runtime.stepped import stepped, work
from tests.runtime.world import AT_LEAST_ONCE, Queues, World, monitor, numbered, receiver, sender
from tests.storage.values import opened

COUNT = 40
POISON = "m17"
SURVIVORS = [f"m{number}" for number in range(1, COUNT + 1) if number != 17]
ABORTED = -6


class Dies(BaseException):
    """Ends a thread as a signal would end the process: nothing of ours handles it."""


class Pipeline:
    """Sends on what it gets; dies of one message.

    Args:
        poison: its body.
    """

    name = "copies"
    receivers: Sequence[str] = ("in",)
    senders: Sequence[str] = ("out",)
    max_bytes = 1 << 20
    planned_s = 0.0
    steps = ()

    def __init__(self, poison: str, error: Callable[[], BaseException] = Dies, max_rows: int = 16) -> None:
        self.max_rows = max_rows
        self._poison = poison.encode()
        self._error = error

    def open(self) -> None:
        """Nothing to open."""

    def process(self, batch: Sequence[Delivered], state: StateView, engine_time: float) -> Effects:
        """A copy of each."""
        del state, engine_time
        if any(one.message.body == self._poison for one in batch):
            raise self._error()
        return Effects(sends=[("out", Message(one.message.body)) for one in batch])

    def conclude(self, state: StateView, engine_time: float) -> Effects:
        """Nothing."""
        del state, engine_time
        return Effects()

    def close(self) -> None:
        """Nothing to close."""


def ended(world: World, **options: Any) -> bool:
    """Run an engine until it fails, or until all is handled; whether it failed."""
    engine = world.engine(receiver(), sender(), **options)
    at_broker = (world.broker.waiting, world.broker.unacknowledged)

    def done() -> bool:
        return not any(count("queue:in") for count in at_broker) and engine.checkpoint() and not world.received_rows()

    try:
        engine.start()
        world.wait(lambda: engine.failure is not None or done())
    except Dies:
        engine.stop(drain=False)
        return True
    failed = engine.failure is not None
    engine.stop(drain=not failed)
    return failed


def sent_once(world: World) -> list[str]:
    """Bodies that arrived; a repeat under the same id (sent, and not yet deleted when the process died) counts once."""
    return list(dict(zip(world.ids(), world.sent(), strict=True)).values())


def noted(world: World) -> int:
    """What the store holds noted."""
    with reading(world.store) as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM suspect").scalar())


def lives_until_it_stays_up(world: World, **options: Any) -> int:
    for deaths in range(20):
        if not ended(world, **options):
            return deaths
    raise AssertionError("it died 20 times")


def an_order(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, **order: Any
) -> tuple[Queues, dict[str, Any]]:
    """Messages in a queue, one of which aborts the process, and what runs an engine over it."""
    queues = Queues(tmp_path)
    queues.publish(numbered(COUNT))
    store = f"sqlite:///{tmp_path / 'engine.db'}" if database == "sqlite" else request.getfixturevalue("postgres")()
    aborts = f"{Aborts.__module__}:{Aborts.__name__}"
    return queues, {"store": store, "broker": queues.url, "wanted": COUNT - 1, "batch": 7, "monitor": aborts, **order}


@pytest.mark.kill9
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_t26_110_a_message_that_aborts_the_process_is_quarantined(children, request, tmp_path, database):
    queues, order = an_order(request, tmp_path, database)
    assert [children.run(**order)["exit"] for _ in range(4)] == [ABORTED, ABORTED, ABORTED, 0]
    assert queues.bodies() == [f"{number}:{body}" for number, body in enumerate(SURVIVORS, 1)]
    (letter,) = (row.letter for row in inspect.dead_letters(order["store"]))
    assert (letter.kind, letter.origin, letter.receiver, letter.number) == ("poison", "main", "in", 17)
    assert letter.message.body == b"m17"
    assert letter.reason.startswith("E5502 context main: the process died 3 times while it handled message 17 of")
    assert children.run(**order)["exit"] == 0
    assert len(inspect.dead_letters(order["store"])) == 1


@pytest.mark.kill9
def test_t26_110_at_least_once_each_copy_that_the_broker_brings_is_found(children, request, tmp_path):
    """The process may die before the broker is acknowledged, so that the message comes again, under a new number."""
    queues, order = an_order(request, tmp_path, "sqlite", receive="AT_LEAST_ONCE", send="AT_LEAST_ONCE")
    exits = [children.run(**order)["exit"]]
    while exits[-1] == ABORTED and len(exits) < 10:
        exits.append(children.run(**order)["exit"])
    assert exits[-1] == 0
    assert {body.partition(":")[2] for body in queues.bodies()} == set(SURVIVORS)
    letters = [row.letter for row in inspect.dead_letters(order["store"])]
    assert {letter.message.body for letter in letters} == {b"m17"}
    assert len({letter.number for letter in letters}) == len(letters) == (len(exits) - 1) // 3


def test_t26_the_dead_letter_is_told(any_world, script, logs):
    def die(monitor: Any, message: Message) -> None:
        del monitor
        if message.body == b"m3":
            raise Dies

    script.message = die
    any_world.publish(*numbered(5))
    assert lives_until_it_stays_up(any_world, monitors=[Keeps]) == 3
    told = [line for line in logs if "E5502" in line["event"]]
    assert [line["log_level"] for line in told] == ["error"]
    assert [reason.split(" ")[0] for reason in any_world.dead_letters()] == ["E5502"]
    assert script.of("Keeps")[-4:] == ["m1", "m2", "m4", "m5"]
    assert noted(any_world) == 0


def test_t26_several_of_them_are_found_one_after_the_other(world, script):
    def die(monitor: Any, message: Message) -> None:
        del monitor
        if message.body in (b"m3", b"m4", b"m9"):
            raise Dies

    script.message = die
    world.publish(*numbered(12))
    lives_until_it_stays_up(world, monitors=[Keeps])
    assert len(world.dead_letters()) == 3
    survivors = [f"m{number}" for number in range(1, 13) if number not in (3, 4, 9)]
    engine = world.engine(receiver(), sender(), monitors=[Keeps])
    with engine:
        (keeps,) = engine.contexts["main"].context.monitors.instances
        assert keeps.bodies == survivors


def test_t26_another_context_handles_the_message_all_the_same(world, script):
    def die(monitor: Any, message: Message) -> None:
        if isinstance(monitor, Keeps) and message.body == b"m2":
            raise Dies

    script.message = die
    world.publish(*numbered(3))
    lives_until_it_stays_up(world, monitors=[Keeps, monitor(Hears, context="audit")])
    assert script.of("Hears")[-3:] == ["m1", "m2", "m3"]
    assert script.of("Keeps")[-2:] == ["m1", "m3"]


def test_t26_a_handler_that_fails_by_an_exception_is_never_quarantined(world, script):
    """`on_error: stop` means that somebody looks at it, however often the engine is started."""

    def fail(monitor: Any, message: Message) -> None:
        del monitor
        if message.body == b"m2":
            raise ValueError("not yet")

    script.message = fail
    world.publish(*numbered(3))
    assert ended(world, monitors=[Keeps])
    for _ in range(5):
        engine = world.engine(receiver(), sender(), monitors=[Keeps])
        with pytest.raises(Exception, match="E5500"):
            engine.start()
    script.message = lambda monitor, message: None
    assert not ended(world, monitors=[Keeps])
    assert world.dead_letters() == []
    assert script.of("Keeps")[-3:] == ["m1", "m2", "m3"]


def test_t26_an_event_from_inside_that_ends_the_process(world, script):
    def tell(keeps: Any, message: Message) -> None:
        if isinstance(keeps, Keeps):
            keeps.send(Note(text=message.body.decode()), to="channel:audit")

    def die(monitor: Any, note: Note) -> None:
        if isinstance(monitor, Hears) and note.text == "m2":
            raise Dies

    script.message, script.note = tell, die
    world.publish(*numbered(3))
    deaths = lives_until_it_stays_up(world, monitors=[Keeps, monitor(Hears, context="audit")])
    assert deaths <= 4
    (letter,) = (row.letter for row in inspect.dead_letters(world.store))
    assert (letter.origin, letter.receiver, letter.number, letter.message.body) == ("audit", "", 0, b'{"text":"m2"}')
    assert [what for what in script.of("Hears") if what.startswith("note")][-2:] == ["note m1", "note m3"]


def test_t26_110_a_pipeline_finds_the_message_by_halving(world):
    world.publish(*numbered(COUNT))
    deaths = lives_until_it_stays_up(world, processors=[Pipeline(POISON)])
    assert 3 <= deaths <= 7
    assert sent_once(world) == SURVIVORS
    (letter,) = (row.letter for row in inspect.dead_letters(world.store))
    assert (letter.kind, letter.origin, letter.message.body, letter.number) == ("poison", "copies", b"m17", 17)


class Sums(Pipeline):
    """Keeps the sum of the numbers for each last digit, and sends it."""

    steps = (ConfiguredStep("copies/sums", {"kind": "sums"}, "", "", lambda key, data: int(data)),)

    def process(self, batch: Sequence[Delivered], state: StateView, engine_time: float) -> Effects:
        """The sums after each message."""
        super().process(batch, state, engine_time)
        sums = {key: int(value) for key, value in state.items("step:copies/sums")}
        sends = []
        for one in batch:
            key = one.message.body[-1:]
            sums[key] = sums.get(key, 0) + int(one.message.body[1:])
            sends.append(("out", Message(b"%s=%d" % (key, sums[key]))))
        entries = [StateEntry("step:copies/sums", key, b"%d" % total) for key, total in sums.items()]
        return Effects(sends, [one for one in entries if state.get(one.owner, one.key) != one.value])


def test_keyed_state_counts_each_message_once_however_its_batch_was_halved(world):
    world.publish(*numbered(COUNT))
    assert lives_until_it_stays_up(world, processors=[Sums(POISON)]) >= 3
    expected, sums = [], {}
    for body in SURVIVORS:
        sums[body[-1]] = sums.get(body[-1], 0) + int(body[1:])
        expected.append(f"{body[-1]}={sums[body[-1]]}")
    assert sent_once(world) == expected
    stored = inspect.state(world.store)["step:copies/sums"]
    assert stored == {key.encode(): str(total).encode() for key, total in sums.items()}


def test_t26_a_pipeline_notes_what_waited_but_for_what_it_leaves_out_and_forgets_it_then():
    """Else it would go on noting in normal life, and a kill would cast suspicion on what is handled already."""
    disk, broker, parts = Disk(), MemoryBroker(), (receiver(), sender())
    broker.publish("queue:in", numbered(3))
    with pytest.raises(Dies):
        work(stepped(disk, broker, *parts, processors=[Pipeline("m2")]))
    store = ModelStore(disk)
    alone = Suspect("copies", "in", 2, 2, 1)
    store.commit(opened(store).commit + 1, [SuspectCommit(contexts=["copies"], suspects=[alone])])
    notes: list[list[int]] = []

    def committed(epoch: int, number: int, writes: Sequence[Write]) -> None:
        notes.extend([one.first for one in write.suspects] for write in writes if isinstance(write, SuspectCommit))

    engine = stepped(disk, broker, *parts, processors=[Pipeline("m2")], committed=committed)
    work(engine)
    assert notes == [[2, 1], [2, 3], [2]]
    engine.checkpointer.ask()
    work(engine)
    assert [one.number for one in disk.dead_letters] == [2]
    assert [one.body for one in broker.received("queue:out")] == [b"m1", b"m3"]
    assert disk.suspects == []


def test_t26_a_pipeline_that_fails_by_an_exception_is_not_quarantined(world):
    world.publish(*numbered(COUNT))
    for _ in range(8):
        assert ended(world, processors=[Pipeline(POISON, ValueError)])
    assert not ended(world, processors=[Pipeline("none")])
    assert world.dead_letters() == []
    assert sent_once(world) == [f"m{number}" for number in range(1, COUNT + 1)]


def test_t26_a_note_about_what_is_handled_already_is_forgotten(world, script):
    """The process died between the checkpoint that held its dead letter and the end of the next start's notes."""
    with world.engine(receiver(), sender(), monitors=[Keeps]):
        pass
    store = SqlStore(world.store, "world")
    stale = Suspect("main", "in", 7, 7, 5)
    store.commit(opened(store).commit + 1, [SuspectCommit(contexts=["main"], suspects=[stale])])
    store.close()
    world.publish(*numbered(3))
    assert not ended(world, monitors=[Keeps])
    assert noted(world) == 0
    assert script.of("Keeps") == ["m1", "m2", "m3"]


class Watched(Pipeline):
    """Records for each batch of a start its messages, and the notes in the store meanwhile."""

    def __init__(self, disk: Disk, max_bytes: int) -> None:
        super().__init__("", max_rows=4)
        self.max_bytes = max_bytes
        self.seen: list[tuple[list[int], list[int]]] = []
        self._disk = disk

    def process(self, batch: Sequence[Delivered], state: StateView, engine_time: float) -> Effects:
        """Look."""
        noted = [number for one in self._disk.suspects for number in range(one.first, one.last + 1)]
        self.seen.append(([one.number for one in batch], noted))
        return super().process(batch, state, engine_time)


@pytest.mark.parametrize("found", [None, Suspect("copies", "in", 1, 8, 0)])
@pytest.mark.parametrize("max_bytes", [1 << 20, 25])
@pytest.mark.parametrize("unmapped", [(), (1,), (2, 3), (1, 2, 3, 4, 5), (8,)])
def test_exactly_what_is_in_a_batch_is_noted(found, max_bytes, unmapped):
    """Given stored messages that no longer map, and bytes that end a batch early, then nobody else is accused."""
    disk, broker = Disk(), MemoryBroker()
    bodies = [b"no order" if number in unmapped else b'{"id": %d}' % number for number in range(1, 9)]
    broker.publish("queue:in", [Message(body) for body in bodies])
    reader = receiver(reliability=AT_LEAST_ONCE)
    engine = stepped(disk, broker, reader, sender(), processors=[Pipeline("")])
    for _ in range(10):
        engine.receivers["in"].step()
        engine.writer.step()
    disk.suspects = [] if found is None else [found]
    watched = Watched(disk, max_bytes)
    typed = dataclasses.replace(reader, event="tests.runtime.flows:Order")
    work(stepped(disk, broker, typed, sender(), processors=[watched]))
    sound = [number for number in range(1, 9) if number not in unmapped]
    assert [number for batch, _ in watched.seen for number in batch] == sound
    for batch, noted in watched.seen:
        assert [number for number in noted if number in sound] == batch
        if found is None:
            assert noted == batch


def test_t26_normal_life_notes_nothing(world, script):
    passed: list[str] = []
    faults.install(passed.append)
    for first in (1, 21):
        world.publish(*numbered(20, first=first))
        assert not ended(world, monitors=[Keeps])
    assert "ck.tx.meta" in passed
    assert not [name for name in passed if "suspects" in name or name == "ck.tx.absolve"]


def test_t26_a_start_after_a_crash_notes_a_portion_and_forgets_it(world, script, gate):
    """Two transactions for up to a thousand messages in each context."""
    script.message = lambda monitor, message: gate.wait() and None
    world.publish(*numbered(20))
    engine = world.engine(receiver(), sender(), monitors=[Keeps], interval=3600.0)
    engine.start()
    world.wait(lambda: world.received_rows() == 20)
    gate.set()
    world.crash(engine)
    passed: list[str] = []
    faults.install(passed.append)
    assert not ended(world, monitors=[Keeps])
    assert passed.count("rec.tx.suspects") == 1
    assert passed.count("rec.tx.suspects.clear") == 2
