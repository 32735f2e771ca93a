"""Each send of a life belongs to one input: the input and the handler that made it, also across contexts."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from correlator import Message, Monitor, StateTable, on
from correlator.core.tape import Batch, CutTaken, Record, Step
from correlator.runtime import lineage as lineages
from correlator.runtime import replay as replays
from correlator.runtime.inputlog import InputLog, read_log
from correlator.runtime.lineage import Handling, lineage
from correlator.runtime.replay import Cause, replay
from tests.runtime.flows import Hears, Keeps, Note
from tests.runtime.replayed import Asks, Audits, Counts
from tests.runtime.test_poison import Dies
from tests.runtime.test_replay import COUNT, both, logs_of, settled
from tests.runtime.world import BEST_EFFORT, World, monitor, numbered, receiver, sender, the_monitor

HOUR = 3600.0


class Begins(Monitor, persistent=True):
    """Sends when it begins, and in each handler; its tables have keys for both."""

    name: str = ""
    seen: StateTable[str, int]

    def onload(self) -> None:
        """Send."""
        self.seen["begun"] = 1
        self.send(b"onload", to="out")

    @on(Note)
    def note(self, note: Note) -> None:
        """Send, and end: the last method sends, too."""
        self.seen[note.text] = 1
        self.send(b"note", to="out")
        self.stop()

    def on_unload(self) -> None:
        """Send."""
        self.send(b"on_unload", to="out")


class Spawns(Monitor, persistent=True):
    """Spawns between two sends, and sends an event."""

    count: int = 0
    by_body: StateTable[str, list[int]]

    @on(Message)
    def message(self, message: Message) -> None:
        """Everything; a message `bad` fails after it has asked for all of it."""
        self.count += 1
        self.by_body[message.body.decode()] = [self.count]
        self.send(b"before", to="out")
        self.spawn(Begins, name="one")
        self.send(b"after", to="out")
        self.send(Note(text=message.body.decode()), to="channel:main")
        if message.body == b"bad":
            raise ValueError("not this one")


class Passes(Monitor, persistent=True):
    """Passes each message on to the context `second`."""

    count: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        """Pass on: two messages become equal events."""
        self.send(Note(text=message.body.decode()[0]), to="channel:second")


class Second(Monitor, persistent=True):
    """Sends what it is told."""

    count: int = 0

    @on(Note)
    def note(self, note: Note) -> None:
        """Send."""
        self.count += 1
        self.send(note.text.encode(), to="out")


def sends(lines: list[Handling]) -> list[tuple[str, int]]:
    return [(one.sender, one.number) for line in lines for call in line.calls for one in call.sends]


def complete(path: Path) -> list[Handling]:
    """The lineage of a log: each send of the replay, once, with its cause."""
    lines, again = list(lineage(path)), replay(path)
    assert [line.line for line in lines] == list(range(1, len(lines) + 1))
    assert Counter(sends(lines)) == Counter((one.sender, one.sent.sequence) for one in again.outputs)
    causes = {(one.sender, one.sent.sequence): (one.cause, one.checkpoint) for one in again.outputs}
    for line in lines:
        cause = Cause(line.input.context, line.input.receiver, line.input.number, line.input.event)
        for one in (one for call in line.calls for one in call.sends):
            assert causes[one.sender, one.number][0] == cause
    letters = [
        (one.kind, one.origin)
        for line in lines
        for one in (*line.dead_letters, *(x for c in line.calls for x in c.dead_letters))
    ]
    assert Counter(letters) == Counter((one.kind, one.origin) for one in again.dead_letters)
    assert sum(bool(line.input.receiver or line.input.event) for line in lines) >= again.events
    return lines


def recorded(world: World, tmp_path: Path, monitors: list[Any], *bodies: str, **options: Any) -> Path:
    engine = world.engine(receiver(), sender(), monitors=monitors, input_log=str(tmp_path / "input.log"), **options)
    with engine:
        world.publish(*bodies)
        world.wait(lambda: settled(world) and not any(len(one.queue) for one in engine.contexts.values()))
    (path,) = logs_of(tmp_path)
    return path


def rewritten(path: Path, records: list[Record]) -> Path:
    log = InputLog(path.with_name("rewritten.log"))
    for record in records:
        log.append(record)
    log.finish()
    return log.path


def test_every_send_has_one_input(world, tmp_path):
    """Two contexts, timers, spawned monitors, expressions and handlers that fail."""
    lines = complete(recorded(world, tmp_path, both()["monitors"], *numbered(COUNT)))
    handlers = {call.handler for line in lines for call in line.calls}
    names = ("Counts.message", "Counts.is_late", "Counts.tick", "Counts.check", "Audits.tally", "Once.heard")
    assert {f"tests.runtime.replayed:{name}" for name in names} <= handlers
    for line in lines:
        timer = any(call.handler.endswith(("is_late", "tick")) for call in line.calls)
        assert not timer or (line.input == lineages.Input(line.input.context) and len(line.calls) == 1)
    failed = [call for line in lines for call in line.calls if call.failure]
    assert [(call.sends, call.events, call.state, len(call.dead_letters)) for call in failed] == [([], [], [], 1)] * 6
    keys = [one.key for line in lines for call in line.calls for one in call.state if "Counts" in one.table]
    assert len(keys) == COUNT - 6
    assert set(keys) == set("012345689")


def test_the_events_between_contexts_lead_to_the_message(world, tmp_path):
    lines = complete(recorded(world, tmp_path, both()["monitors"], *numbered(COUNT)))
    by_line = {line.line: line for line in lines}
    told = [line for line in lines if line.input.event.endswith((":Tally", ":Checked"))]
    assert len(told) > COUNT // 4
    for line in told:
        before = by_line[line.sent_by]
        events = [(one.channel, one.event) for call in before.calls for one in call.events]
        assert (line.input.context, line.input.event) in events
        assert line.origin == before.origin
        assert line.origin.receiver == "in"


def test_a_spawned_monitor_sends_for_itself(world, tmp_path):
    """Also what it sends when it begins and ends, within the effects of another handler."""
    lines = complete(recorded(world, tmp_path, [Spawns], "x"))
    calls = {
        call.handler.split(":")[1]: (len(call.sends), [(one.table, one.key) for one in call.state])
        for line in lines
        for call in line.calls
        if call.sends
    }
    table = "table:Begins#main.1.seen"
    assert calls == {
        "Spawns.message": (2, [("table:Spawns#0.by_body", "x")]),
        "Begins.onload": (1, [(table, "begun")]),
        "Begins.note": (1, [(table, "x"), (table, "begun")]),  # its end removes its tables
        "Begins.on_unload": (1, []),
    }
    bodies = {one.sent.sequence: one.sent.message.body for one in replay(logs_of(tmp_path)[0]).outputs}
    by_handler = {
        call.handler.split(".")[-1]: [bodies[one.number] for one in call.sends] for line in lines for call in line.calls
    }
    assert by_handler["message"] == [b"before", b"after"]
    assert by_handler["onload"] == [b"onload"]


def test_a_failed_handler_has_done_nothing(world, tmp_path):
    path = recorded(world, tmp_path, [monitor(Spawns, on_error="dead_letter")], "bad", "x")
    bad, *_ = [line for line in complete(path) if line.input.receiver]
    (call,) = bad.calls
    assert (call.sends, call.events, call.state) == ([], [], [])
    assert "not this one" in call.failure
    assert [(one.kind, one.origin) for one in call.dead_letters] == [("handler", "Spawns")]


def test_equal_events_lead_each_to_its_message(world, tmp_path):
    lines = complete(recorded(world, tmp_path, [Passes, monitor(Second, context="second")], "a1", "b1", "a2"))
    passed = [(line.input.number, line.line) for line in lines if line.input.receiver and line.input.context == "main"]
    told = [(line.origin.number, line.sent_by) for line in lines if line.input.event.endswith(":Note")]
    assert told == passed


def test_a_log_may_have_the_work_on_an_event_before_the_work_that_sent_it(world, tmp_path):
    """The log has a stretch of work when it ends; the other context has handled the event before that."""
    monitors = [Passes, monitor(Second, context="second")]
    log = {"input_log": str(tmp_path / "input.log"), "interval": 3600.0}  # no checkpoint between the two contexts
    with world.engine(receiver(), sender(), monitors=monitors, **log) as engine:
        world.publish("a", "b")
        world.wait(lambda: the_monitor(engine, Second, "second").count == 2)
    (path,) = logs_of(tmp_path)
    records: list[Record] = []
    stretch: list[Record] = []
    for record in read_log(path):
        if isinstance(record, Batch | Step) and not (isinstance(record, Step) and record.taken.visible):
            stretch.append(record)
        else:
            records += sorted(stretch, key=_later)
            records.append(record)
            stretch = []
    told = [line for line in complete(rewritten(path, records)) if line.input.event.endswith(":Note")]
    assert [(line.origin.receiver, line.origin.number) for line in told] == [("in", 1), ("in", 2)]
    assert any(line.sent_by > line.line for line in told)


def _later(record: Record) -> int:
    """Batches first, then the work of the context that gets events."""
    return (1 if record.taken.context == "second" else 2) if isinstance(record, Step) else 0


def test_best_effort_sends_without_a_store(no_store, tmp_path):
    parts = (receiver("in", BEST_EFFORT), sender("quick", BEST_EFFORT))
    log = str(tmp_path / "input.log")
    with no_store.engine(*parts, monitors=[Asks, monitor(Asks, context="second")], input_log=log):
        no_store.publish(*numbered(20))
        no_store.wait(lambda: len(no_store.sent("queue:quick")) == 80)
    lines = complete(logs_of(tmp_path)[0])
    handlers = Counter(call.handler.split(":")[1] for line in lines for call in line.calls if call.sends)
    assert handlers == {"Asks.message": 40, "Asks.flushed": 40}
    assert all(line.checkpoint == 0 for line in lines)


def test_messages_that_no_handler_gets(world, script, tmp_path):
    """One that cannot be mapped, one that nobody listens for, and one that is set aside."""
    settings = receiver(event="tests.runtime.flows:Order", unhandled="dead_letter")
    with world.engine(settings, monitors=[Second], input_log=str(tmp_path / "input.log")) as engine:
        world.publish('{"id": 1}')
        world.wait(lambda: engine.checkpoint() and len(world.dead_letters()) == 1)
    (line,) = [line for line in complete(logs_of(tmp_path)[0]) if line.input.receiver]
    assert (line.calls, [one.kind for one in line.dead_letters]) == ([], ["unhandled"])


def test_a_message_that_was_set_aside_is_an_input(world, script, tmp_path):
    def die(keeps: Any, one: Message) -> None:
        raise Dies

    script.message = die
    world.publish("m1")
    for number in range(4):
        engine = world.engine(receiver(), sender(), monitors=[Keeps], input_log=str(tmp_path / f"life{number}.log"))
        try:
            engine.start()
            world.wait(lambda engine=engine: engine.failure or settled(world))
        except Dies:
            pass
        engine.stop(drain=engine.failure is None)
    (line,) = [line for line in complete(tmp_path / "life3.log.1") if line.input.receiver]
    assert (line.input.number, [one.kind for one in line.dead_letters]) == (1, ["poison"])


def test_a7_5_an_event_of_an_earlier_life_has_no_sender(world, script, gate, tmp_path):
    """Also if this life sends an equal event: that one follows it, and leads to its own message."""

    def pass_on(monitor: Any, message: Message) -> None:
        if isinstance(monitor, Hears):
            monitor.send(Note(text=message.body.decode()[0]), to="channel:second")
        else:
            gate.wait(120)

    script.message = pass_on
    monitors = [monitor(Hears), monitor(Keeps, context="second")]
    with world.engine(receiver(), monitors=monitors, interval=HOUR) as engine:
        world.publish("a", "b")
        world.wait(lambda: script.of("Hears") == ["a", "b"] and script.of("Keeps") == ["a"])
        number = engine.checkpointer.ask()
        world.wait(lambda: engine.contexts["second"].context.cut_requested)
        gate.set()
        assert engine.checkpointer.wait_answered(number, 20)
        world.publish("a2")  # stored, and handled again by the next life before it takes a checkpoint
        world.wait(lambda: world.received_rows() == 3)
        world.crash(engine)
    script.heard.clear()
    log = str(tmp_path / "input.log")
    with world.engine(receiver(), monitors=monitors, interval=HOUR, input_log=log):
        world.publish("c")
        world.wait(lambda: "note c" in script.of("Keeps"))
    lines = complete(logs_of(tmp_path)[0])
    sent_by = {line.line: line for line in lines if line.input.context == "main"}
    told = [line for line in lines if line.input.event.endswith(":Note")]
    assert [(line.origin.receiver, line.origin.number) for line in told] == [("", 0), ("", 0), ("in", 3), ("in", 4)]
    assert [line.sent_by for line in told[:2]] == [0, 0]
    assert [sent_by[line.sent_by].input.number for line in told[2:]] == [3, 4]


def test_a7_5_a_message_that_cannot_be_mapped_is_no_input(world, script, tmp_path):
    """Its receiver makes the dead letter, and no context gets it: it has no number, and the log does not have it."""
    settings = receiver(event="tests.runtime.flows:Order", max_batch_size=3)
    monitors = [Second, monitor(Hears, context="second")]
    with world.engine(settings, monitors=monitors, input_log=str(tmp_path / "input.log")):
        world.publish('{"id": 1}', "no json", '{"id": 2}')
        world.wait(lambda: "order 2" in script.of("Hears") and len(world.dead_letters()) == 1)
        world.wait(lambda: not world.received_rows())
    lines = [line for line in complete(logs_of(tmp_path)[0]) if line.input.receiver]
    assert Counter(line.input.number for line in lines) == {1: 2, 2: 2}
    assert not [line for line in lines if line.dead_letters]


def test_a7_5_a_stored_message_that_cannot_be_mapped_any_more_has_its_dead_letter(world, script, gate, tmp_path):
    """An earlier life has stored it, and its receiver has another type of events now."""
    script.message = lambda _monitor, _message: gate.wait(120)
    with world.engine(receiver(), monitors=[Keeps], interval=HOUR) as engine:
        world.publish("one", '{"id": 2}', "three")
        world.wait(lambda: world.received_rows() == 3 and script.of("Keeps"))
        world.crash(engine)
        gate.set()
    settings = receiver(event="tests.runtime.flows:Order")
    with world.engine(settings, monitors=[Keeps], input_log=str(tmp_path / "input.log")):
        world.wait(lambda: len(world.dead_letters()) == 2 and not world.received_rows())
    lines = [line for line in complete(logs_of(tmp_path)[0]) if line.input.receiver]
    letters = {line.input.number: [(one.kind, one.origin) for one in line.dead_letters] for line in lines}
    assert letters == {1: [("mapping", "in")], 2: [], 3: [("mapping", "in")]}


FEW = 5


@pytest.fixture
def few(monkeypatch):
    """Without checkpoints, few events and results may wait."""
    monkeypatch.setattr(lineages, "MOST_WAITING", FEW)


class Tells(Monitor):
    """Passes each message on to the context `second`."""

    @on(Message)
    def message(self, message: Message) -> None:
        """Pass on."""
        self.send(Note(text=message.body.decode()), to="channel:second")


class Replies(Monitor):
    """Sends what it is told."""

    @on(Note)
    def note(self, note: Note) -> None:
        """Send."""
        self.send(note.text.encode(), to="quick")


def without_checkpoints(no_store: World, tmp_path: Path, count: int) -> Path:
    parts = (receiver("in", BEST_EFFORT), sender("quick", BEST_EFFORT))
    monitors = [monitor(Tells), monitor(Replies, context="second")]
    with no_store.engine(*parts, monitors=monitors, input_log=str(tmp_path / "input.log")):
        for number in range(count):
            no_store.publish(f"m{number}")
            no_store.wait(lambda number=number: f"m{number}" in no_store.sent("queue:quick"))
    return logs_of(tmp_path)[0]


def test_a7_5_more_events_than_may_wait_lead_to_their_messages(no_store, tmp_path, few):
    """The events that were sent long ago are forgotten; those that arrive now are not among them."""
    count = 6 * FEW
    lines = complete(without_checkpoints(no_store, tmp_path, count))
    told = [(line.origin.receiver, line.origin.number) for line in lines if line.input.event.endswith(":Note")]
    assert told == [("in", number) for number in range(1, count + 1)]


def test_a7_5_results_that_nothing_explains_wait_in_bounded_memory(no_store, tmp_path, few, monkeypatch):
    """The inputs that sent the events are not in the log: each result waits for few others, then comes without them."""
    count = 6 * FEW
    path = without_checkpoints(no_store, tmp_path, count)
    records = [one for one in read_log(path) if not (isinstance(one, Step) and one.taken.context == "main")]
    taken = 0

    def counted(log: Path) -> Iterator[Record]:
        nonlocal taken
        for record in read_log(log):
            yield record
            taken += isinstance(record, Step) and record.handled

    monkeypatch.setattr(replays, "read_log", counted)
    told = []
    for line in lineage(rewritten(path, records)):
        if line.input.event.endswith(":Note"):
            told.append((line.sent_by, line.origin == line.input))
            assert taken <= line.line + FEW
    assert told == [(0, True)] * count


def test_lines_come_while_the_log_is_read(world, tmp_path, monkeypatch):
    """Each checkpoint gives its lines; so memory does not grow with the log."""
    monitors = [Passes, monitor(Second, context="second")]
    with world.engine(receiver(), sender(), monitors=monitors, input_log=str(tmp_path / "input.log")):
        for number in range(1, 4):
            world.publish(f"m{number}")
            world.wait(lambda number=number: len(world.sent()) == number)
    cuts = 0

    def counted(log: Path) -> Iterator[Record]:
        nonlocal cuts
        for record in read_log(log):
            yield record
            cuts += isinstance(record, CutTaken)

    monkeypatch.setattr(replays, "read_log", counted)
    seen = set()
    for line in lineage(logs_of(tmp_path)[0]):
        assert line.checkpoint == 0 or cuts < line.checkpoint
        seen.add(line.checkpoint)
    assert len(seen) >= 3


@pytest.mark.parametrize("monitors", [[Audits], [Counts]])
def test_a_life_without_messages(world, tmp_path, monitors):
    complete(recorded(world, tmp_path, monitors))
