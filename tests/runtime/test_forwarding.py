"""Dead letters go out through a sender (docs/dead-letters.md): each once, with the reason, whatever happens."""

import pytest

from connectors.file import FileConnection
from correlator.core.deadletters import REASON, forwarded
from correlator.errors import ConfigError, NotDone
from correlator.events import SOURCE_ID, UNIQUE_ID, DeadLetter, Headers, Message
from correlator.runtime import forwarding
from correlator.runtime.engine import Engine
from correlator.settings import CallSettings, ConnectionSettings, EngineSettings
from correlator.storage import inspect
from tests.runtime.flows import Forwards, Hears, Keeps
from tests.runtime.test_dead_letters import fails_on_all, with_mapping_letter
from tests.runtime.test_failures import ORDER
from tests.runtime.test_killed import POINTS
from tests.runtime.test_returning import failing, numbers
from tests.runtime.test_sending import Refuses
from tests.runtime.world import (
    AT_LEAST_ONCE,
    BEST_EFFORT,
    EXACTLY_ONCE,
    Queues,
    message,
    monitor,
    numbered,
    receiver,
    sender,
)

LETTERS = "queue:letters"
TAKES = sender("letters")


def on_letters(engine_of, *parts, **options):
    return engine_of(*parts, TAKES, dead_letter_sender="letters", **options)


def told(world):
    """What arrived, with the properties that tell of the dead letter."""
    return [
        {name.removeprefix("dead_letter_"): value for name, value in one.properties.items() if "dead_letter" in name}
        | {"body": one.body.decode()}
        for one in world.broker.received(LETTERS)
    ]


# --- each kind ---


def test_a_message_that_cannot_be_mapped(any_world):
    with on_letters(any_world.engine, receiver(event=ORDER), monitors=[Keeps]):
        any_world.publish("not JSON")
        any_world.wait(lambda: told(any_world))
        any_world.wait(lambda: not numbers(any_world))
    (letter,) = told(any_world)
    assert letter.pop("reason").startswith("E5101")
    assert letter == {
        "number": 1,
        "kind": "mapping",
        "origin": "in",
        "receiver": "in",
        "unique_id": "not JSON",
        "body": "not JSON",
    }


@pytest.mark.parametrize("mode", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_message_on_which_a_handler_fails(any_world, script, mode):
    script.message = fails_on_all
    failing = monitor(Keeps, on_error="dead_letter")
    takes = sender("letters", mode)
    with any_world.engine(receiver(), takes, monitors=[failing], dead_letter_sender="letters"):
        any_world.publish(message("a", kind="order"), "b")
        any_world.wait(lambda: len(told(any_world)) == 2)
        any_world.wait(lambda: not numbers(any_world))
    first, _ = any_world.broker.received(LETTERS)
    assert first.properties["kind"] == "order"
    assert [(one["body"], one["kind"], one["origin"], one["message"]) for one in told(any_world)] == [
        ("a", "handler", "Keeps", 1),
        ("b", "handler", "Keeps", 2),
    ]
    assert (any_world.received_rows(), any_world.outbox_rows()) == (0, 0)


def test_a_send_that_the_broker_refuses(any_world):
    any_world.broker.faults = Refuses(b"2:m2", times=2)
    with on_letters(any_world.engine, receiver(), sender(max_tries=2), monitors=[Forwards]):
        any_world.publish("m1", "m2", "m3")
        any_world.wait(lambda: told(any_world))
        any_world.wait(lambda: not numbers(any_world))
    (letter,) = told(any_world)
    assert (letter["kind"], letter["origin"], letter["body"]) == ("send", "out", "2:m2")
    assert "receiver" not in letter


def test_a_letter_about_a_letter_stays_in_the_store(any_world, script):
    """Otherwise each refusal would bring about the next one."""
    script.message = fails_on_all
    any_world.broker.faults = Refuses(b"a", times=1000)
    failing = monitor(Keeps, on_error="dead_letter")
    with on_letters(any_world.engine, receiver(), monitors=[failing]) as engine:
        any_world.publish("a", "b")
        any_world.wait(lambda: told(any_world))
        any_world.wait(lambda: numbers(any_world) == [3])
        any_world.wait(lambda: engine.forwarder.idle)
    (row,) = inspect.dead_letters(any_world.store)
    assert (row.letter.kind, row.letter.origin) == ("send", "letters")
    assert [one["body"] for one in told(any_world)] == ["b"]


def test_the_message_lives_longer_than_the_one_that_failed():
    headers = Headers(correlation_id="c", time_to_live_ms=5, expiration=7, delivery_delay_ms=9, persistent=False)
    failed = Message(b"x", {"a": 1}, "key", "queue:elsewhere", headers)
    sent = forwarded(3, DeadLetter(kind="send", origin="out", reason="E1", message=failed))
    assert (sent.body, sent.key, sent.destination, sent.headers) == (b"x", "key", None, Headers(correlation_id="c"))
    assert sent.properties == {
        "a": 1,
        "dead_letter_number": 3,
        "dead_letter_kind": "send",
        "dead_letter_origin": "out",
        "dead_letter_reason": "E1",
        "dead_letter_destination": "queue:elsewhere",
    }


def test_letters_about_one_message_are_no_duplicates_of_one_another(any_world, script):
    """A receiver of the letters that deduplicates would drop the second one."""
    script.message = fails_on_all
    failing = [monitor(one, on_error="dead_letter") for one in (Keeps, Hears)]
    takes = sender("letters", AT_LEAST_ONCE)
    with any_world.engine(receiver(), takes, monitors=failing, dead_letter_sender="letters"):
        any_world.publish(message("a", source="s"))
        any_world.wait(lambda: len(told(any_world)) == 2)
    assert [one["unique_id"] for one in told(any_world)] == ["a", "a"]
    assert all(not {UNIQUE_ID, SOURCE_ID} & one.properties.keys() for one in any_world.broker.received(LETTERS))


def test_what_an_earlier_letter_told_is_left_out():
    """A program has sent the message again, with the properties that it had as a dead letter."""
    before = {"dead_letter_receiver": "in", "dead_letter_message": 3, "dead_letter_destination": "queue:x"}
    failed = Message(b"x", {"a": 1, **before})
    sent = forwarded(9, DeadLetter(kind="handler", origin="m", reason="E1", message=failed))
    assert sent.properties == {
        "a": 1,
        "dead_letter_number": 9,
        "dead_letter_kind": "handler",
        "dead_letter_origin": "m",
        "dead_letter_reason": "E1",
    }


# --- which ones, and when ---


def test_those_from_before_the_setting_go_out_too(world):
    with_mapping_letter(world)
    with on_letters(world.engine, receiver(event=ORDER), monitors=[Keeps]):
        world.wait(lambda: told(world))
        world.wait(lambda: not numbers(world))


def test_many_go_out_in_order(world, script, monkeypatch):
    monkeypatch.setattr(forwarding, "MOST", 3)
    engine = failing(world, script, *(f"m{at}" for at in range(10)))
    world.crash(engine)
    with on_letters(world.engine, receiver(), monitors=[Keeps]):
        world.wait(lambda: len(told(world)) == 10)
        world.wait(lambda: not numbers(world))
    assert [one["number"] for one in told(world)] == list(range(1, 11))


def test_a_full_outbox_keeps_the_others_in_the_store(world, script, monkeypatch):
    monkeypatch.setattr(forwarding, "MOST", 2)
    world.crash(failing(world, script, *(f"m{at}" for at in range(9))))
    world.broker.down = True
    takes = sender("letters", max_outstanding=3)
    with world.engine(receiver(), takes, monitors=[Keeps], dead_letter_sender="letters") as engine:
        world.wait(lambda: world.outbox_rows() >= 3)
        for _ in range(3):
            assert engine.checkpoint()
        assert (world.outbox_rows(), numbers(world)) == (4, [5, 6, 7, 8, 9])
        world.broker.down = False
        world.wait(lambda: len(told(world)) == 9)
    assert [one["number"] for one in told(world)] == list(range(1, 10))


def test_what_is_on_its_way_can_neither_go_back_nor_be_discarded(world, script):
    world.crash(failing(world, script, "a"))
    (held,) = world.hold_at("ck.trigger")
    with on_letters(world.engine, receiver(), monitors=[Keeps], interval=60.0) as engine:
        held.wait_reached()  # the checkpoint that the forwarder has asked for
        for order in (engine.replay_dead_letters, engine.discard_dead_letters):
            with pytest.raises(NotDone, match="E8311 dead letter 1: is just being brought back, discarded or sent"):
                order([1])
        held.open()
        world.wait(lambda: told(world))
        world.wait(lambda: engine.letters_sent)
        engine.discard_dead_letters([1])


def test_it_looks_for_the_end_of_a_checkpoint_that_wakes_nobody():
    """If an earlier checkpoint has the sends, the one that was ordered for them stores nothing, and releases nothing."""

    class Around:
        """The letters, the writer and the checkpointer, as the forwarder uses them."""

        done = False

        def reserve(self, _above):
            return True

        def submit(self, request, read):
            letter = DeadLetter(kind="handler", origin="m", reason="E1", message=Message(b"x"))
            read([] if request.above else [(1, letter)])

        def stage(self, _sends, _timeout):
            return 7

        def release(self):
            pass

        def answered(self, _order):
            return self.done

    around = Around()
    forwarder = forwarding.Forwarder("letters", around, around, around, lambda: False)
    assert forwarder.step() is None  # the writer wakes it
    assert forwarder.step() == 0
    assert forwarder.step() > 0
    assert not forwarder.idle
    around.done = True
    assert forwarder.step() is None
    assert forwarder.step() == 0
    assert forwarder.idle, "there is no second one"


def test_an_engine_that_ends_by_itself_has_sent_them(world, script, tmp_path):
    """The last ones arise when the source has ended already."""
    script.message = fails_on_all
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    files = FileConnection("files", ConnectionSettings(type="file", options={"path": str(tmp_path)}))
    connections = {"memory": world.broker.connection(), "files": files}
    reads = receiver(connection="files", destination="queue:in.jsonl")
    failing = monitor(Keeps, on_error="dead_letter")
    made = on_letters(world.engine, reads, monitors=[failing], interval=60.0, connections=connections)
    with made as engine:
        engine.run_until_ended()
        assert len(told(world)) == 2
    assert numbers(world) == []


STAGES = {stage: POINTS[stage] for stage in ("receive transaction", "checkpoint", "checkpoint transaction")}
STAGES["letters"] = ["ck.tx.dead_letter", "dl.tx.discard"]


@pytest.mark.kill9
@pytest.mark.parametrize("stage", STAGES)
def test_each_goes_out_once_though_engines_are_killed(children, tmp_path, store, stage):
    queues = Queues(tmp_path)
    flow = {"store": store, "broker": queues.url, "wanted": 40, "drained": True, "batch": 7, "interval": 0.05}
    flow |= {"monitor": "tests.runtime.flows:FailsOnThirds", "on_error": "dead_letter", "letters": True}
    queues.publish(numbered(40))
    for point in STAGES[stage]:
        ended = children.run(**flow, kill=point)
        assert ended["killed"], (point, ended)
    assert children.run(**flow)["exit"] == 0
    sent = [body.partition(":")[2] for body in queues.bodies()]
    letters = queues.bodies(LETTERS)
    failed = [f"m{number}" for number in range(3, 41, 3)]
    assert letters == failed
    assert sent == [f"m{number}" for number in range(1, 41) if number % 3]
    assert inspect.dead_letters(store) == []


# --- settings ---


@pytest.mark.parametrize(
    ("parts", "options", "text"),
    [
        ((), {}, "'letters' is not a sender. Defined: none"),
        ((sender("letter"),), {}, "Did you mean 'letter'"),
        ((sender("letters", BEST_EFFORT),), {}, "sender 'letters' is BEST_EFFORT and keeps nothing in the store"),
        ((sender("letters", destination=None),), {}, "sender 'letters' has no destination"),
        ((TAKES,), {"store": None}, "an engine without a store only logs messages that it gives up"),
        ((TAKES,), {"input_log": "in.log"}, "the engine records an input log"),
    ],
)
def test_a_sender_that_cannot_send_them_is_refused(world, parts, options, text):
    with pytest.raises(ConfigError, match=f"E1541 dead_letter_sender: .*{text}"):
        world.engine(receiver(), *parts, monitors=[Keeps], dead_letter_sender="letters", **options)


def test_a_receiver_of_the_same_queue_is_told(world, logs):
    sends = sender("sends", destination=LETTERS)
    with world.engine(receiver("letters"), sends, monitors=[Hears], dead_letter_sender="sends"):
        pass
    assert [one["event"][:26] for one in logs if "W1542" in one["event"]] == ["W1542 dead_letter_sender: "]


def with_reason(letter, key):
    return {"why": letter.properties[REASON]}


COLUMN = {"schema": "n BIGINT", "properties_column": "properties"}
WRITES = {
    "files": ("file", {"path": "."}, {"destination": "queue:letters.jsonl"}),
    "objects": ("objects", {"path": "."}, {"destination": "queue:letters/*.jsonl"}),
    "columns of objects": (
        "objects",
        {"path": "."},
        {"destination": "queue:l/*.parquet", "options": {"schema": "n BIGINT"}},
    ),
    "a lake": ("lake", {"path": ".", "format": "parquet"}, {"options": {"schema": "n BIGINT"}}),
    "tables": ("sql", {"database": "sqlite:///rows.db"}, {}),
    "a service": ("http", {"url": "http://localhost:1"}, {}),
}
CARRIES = {
    "a call": (
        "file",
        {"path": "."},
        {"destination": "queue:letters.jsonl", "call": CallSettings(function=f"{__name__}:with_reason")},
    ),
    "a column of objects": ("objects", {"path": "."}, {"destination": "queue:l/*.parquet", "options": COLUMN}),
    "a column of a lake": ("lake", {"path": ".", "format": "parquet"}, {"options": COLUMN}),
    "a header": (
        "http",
        {"url": "http://localhost:1"},
        {"options": {"headers": [REASON]}},
    ),
    "a broker": ("embedded", {"store": "sqlite:///broker.db"}, {}),
}


def warned(world, logs, type_, options, fields):
    """What a start says of a sender of dead letters."""
    placed = {"connections": {"placed": ConnectionSettings(type=type_, options=options)}}
    sends = sender("letters", connection="placed", **fields)
    engine = Engine(
        EngineSettings(name="e", store=world.store, senders=(sends,), dead_letter_sender="letters", **placed)
    )
    with engine:
        pass
    return [one["event"] for one in logs if "dead_letter_sender" in one["event"]]


@pytest.mark.parametrize("name", WRITES)
def test_a_sender_that_leaves_out_the_reason_is_told(world, logs, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (told,) = warned(world, logs, *WRITES[name])
    assert told.startswith("W1543 dead_letter_sender: sender 'letters' leaves out the properties")


@pytest.mark.parametrize("name", CARRIES)
def test_a_sender_that_carries_the_reason_is_not(world, logs, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert warned(world, logs, *CARRIES[name]) == []
