"""Whatever value a handler produces, it fails in that handler or not at all: never later, never in the next life."""

import contextlib
import datetime as dt
import json
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from correlator.core.expressions import at, match, wait
from correlator.errors import CorrelatorError, StateError, UsageError
from correlator.events import FlowControlMarker, Headers, Message
from correlator.runtime.engine import Engine
from correlator.settings import CheckpointSettings
from correlator.testing.memory import MemoryBroker
from correlator.testing.store import Disk
from tests.runtime.hostile import (
    DOING,
    Colour,
    Go,
    Hostile,
    Never,
    Payload,
    Plain,
    Spawned,
    local_event,
    local_monitor,
)
from tests.runtime.stepped import stepped, work
from tests.runtime.world import AT_LEAST_ONCE, BEST_EFFORT, EXACTLY_ONCE, monitor, receiver, sender

HERE = "tests.runtime.hostile"
SURROGATE = "\ud800"


class Text(str):
    """A kind of text."""

    __slots__ = ()


class Number(int):
    """A kind of number."""


class Bytes(bytes):
    """A kind of bytes."""


class Untellable(Exception):
    """Its text cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError


def endless() -> list[Any]:
    """A list that holds itself."""
    made: list[Any] = []
    made.append(made)
    return made


HASHABLE = [
    None,
    True,
    0,
    1,
    -(2**63) - 1,
    2**64,
    1.0,
    float("nan"),
    float("inf"),
    "",
    "text",
    SURROGATE,
    "a:b",
    Text("text"),
    Number(5),
    Bytes(b"x"),
    b"",
    b"bytes",
    (1, "a"),
    (SURROGATE, 1),
    ("a", 1),
    frozenset({1}),
    Decimal(1),
    Decimal("NaN"),
    Fraction(1, 2),
    1j,
    dt.date(2024, 1, 1),
    dt.datetime(2024, 1, 1),  # noqa: DTZ001  # without a zone, too
    dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    dt.timedelta(days=10**8),
    uuid.UUID(int=1),
    Colour.RED,
    Go,
    Spawned,
    Plain,
    int,
    object(),
    Never(number=1),
    Payload(number="no number"),  # type: ignore[arg-type]
    Payload(text=SURROGATE),
]
UNHASHABLE = [[], [1], [SURROGATE], [object()], {}, {"a": 1}, {"a": object()}, {1: 2}, {1}, bytearray(b"x")]
OTHERS = [Decimal("sNaN"), endless(), local_event(), local_event()(), local_monitor(), lambda: None, Message(b"x")]
NAMED = [*HASHABLE, *UNHASHABLE, *OTHERS]
values = st.sampled_from(NAMED) | st.recursive(
    st.none() | st.integers() | st.floats() | st.text(st.characters(), max_size=3) | st.binary(max_size=3),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.text(max_size=2), below, max_size=2),
    max_leaves=3,
)

Ask = Callable[[Any, Any], Any]


def attribute(name: str) -> Ask:
    return lambda one, value: setattr(one, name, value)


def table(name: str) -> list[Ask]:
    def increments(one: Any, value: Any) -> None:
        try:
            getattr(one, name)[value] += 1
        except KeyError:
            getattr(one, name)[value] = 1

    def deletes(one: Any, value: Any) -> None:
        with contextlib.suppress(KeyError):
            del getattr(one, name)[value]

    return [
        increments,
        deletes,
        lambda one, value: getattr(one, name).setdefault(value, 1),
        lambda one, value: getattr(one, name).update({value: 1}),
        lambda one, value: getattr(one, name).get(value),
    ]


def payload_that_changes(one: Any, value: Any) -> None:
    items = [1]
    one.send(Payload(items=items), to="channel:main")
    items.append(value)


def message_that_changes(one: Any, value: Any) -> None:
    properties: dict[str, Any] = {"a": 1}
    one.send(Message(b"x", properties), to="out")
    properties["b"] = value


def spawned_that_changes(one: Any, value: Any) -> None:
    items = [1]
    one.spawn(Spawned, items=items)
    items.append(value)


def basket_that_changes(one: Any, value: Any) -> None:
    kept = one.__dict__.setdefault("scratch", one.baskets.setdefault("a", []))
    kept.append(value)


def raises(one: Any, value: Any) -> None:
    one.text = "changed"
    raise ValueError(value)


def raises_untellable(one: Any, value: Any) -> None:
    del one, value
    raise Untellable


MARKER = FlowControlMarker(receiver="go", number=0)
HEADERS = ("message_id", "correlation_id", "reply_to", "type", "priority", "persistent", "time_to_live_ms")
ASKS: list[Ask] = [
    *[
        attribute(name)
        for name in ("handled", "text", "ratio", "items", "mapping", "pair", "moment", "texts", "baskets", "scratch")
    ],
    lambda one, value: delattr(one, "items"),
    lambda one, value: delattr(one, "texts"),
    lambda one, value: one.items.append(value),
    lambda one, value: one.mapping.update({"a": value}),
    lambda one, value: one.mapping.update({value: 1}),
    *[
        ask
        for name in ("texts", "numbers", "blobs", "flags", "days", "ids", "colours", "pairs", "baskets")
        for ask in table(name)
    ],
    lambda one, value: one.texts.update({"a": value}),
    lambda one, value: one.baskets.update({"a": value}),
    lambda one, value: one.baskets.setdefault("b", []).append(value),
    basket_that_changes,
    *[lambda one, value, to=to: one.send(value, to=to) for to in ("out", "quick", "channel:main", "channel:none")],
    lambda one, value: one.send(b"x", to=value),
    lambda one, value: one.send(b"x", to=f"channel:{value}"),
    lambda one, value: one.send(b"x", to="out", key=value),
    lambda one, value: one.send(b"x", to="out", destination=value),
    lambda one, value: one.send(b"x", to="out", properties=value),
    lambda one, value: one.send(b"x", to="out", properties={"a": value}),
    lambda one, value: one.send(b"x", to="quick", properties={value: 1}),
    lambda one, value: one.send(Message(value), to="out"),
    lambda one, value: one.send(Message(b"x", value), to="out"),
    lambda one, value: one.send(Message(b"x", {}, value, value), to="out"),
    lambda one, value: one.send(Message(b"x", headers=value), to="out"),
    *[
        lambda one, value, name=name: one.send(Message(b"x", headers=Headers(**{name: value})), to="out")
        for name in HEADERS
    ],
    *[
        lambda one, value, name=name: one.send(Payload(**{name: value}), to="channel:main")
        for name in ("number", "text", "price", "items")
    ],
    payload_that_changes,
    message_that_changes,
    spawned_that_changes,
    lambda one, value: one.spawn(value),
    lambda one, value: one.spawn(Plain, number=value),
    *[lambda one, value, name=name: one.spawn(Spawned, **{name: value}) for name in ("number", "items", "text")],
    lambda one, value: one.spawn(Spawned, **{str(value): 1}),
    lambda one, value: one.on_all(value, one.told),
    lambda one, value: one.on_all(match(value), one.told),
    *[
        lambda one, value, name=name: one.once(match(Payload, **{name: value}), one.told)
        for name in ("number", "text", "price", "items")
    ],
    lambda one, value: one.on_all(match(Payload).then(match(Never, number=value)), one.told),
    lambda one, value: one.on_all(match(Payload).then(match(value)), one.told),
    lambda one, value: one.on_all(wait(value), one.told),
    lambda one, value: one.on_all(match(Payload).then(match(Never)).within(value), one.told),
    lambda one, value: one.on_all(at(minute=value), one.told),
    lambda one, value: one.on_all(at(hour=value), one.told),
    lambda one, value: one.on_all(match(Never), value),
    lambda one, value: one.wait(value, one.timer),
    lambda one, value: one.wait(1, value),
    lambda one, value: one.subscribe(value),
    lambda one, value: one.unsubscribe(value),
    lambda one, value: one.cancel(value),
    lambda one, value: one.outstanding(value),
    lambda one, value: one.request_flush(value),
    lambda one, value: one.acknowledge_and_resume(value),
    lambda one, value: one.update_flow_control_window(MARKER, value),
    lambda one, value: one.update_flow_control_window(value, 5),
    lambda one, value: one.update_flow_control_window(FlowControlMarker(receiver="go", number=value), 5),
    lambda one, value: one.update_flow_control_window(FlowControlMarker(receiver=value, number=0), 5),
    raises,
    raises_untellable,
]
PARTS = (
    receiver("go", EXACTLY_ONCE, event=f"{HERE}:Go", flow_control=True),
    receiver("payloads", AT_LEAST_ONCE, event=f"{HERE}:Payload"),
    sender("out", EXACTLY_ONCE),
    sender("quick", BEST_EFFORT),
)


class Opens(Plain):
    """Lets every message in."""

    def onload(self) -> None:
        self.update_flow_control_window(FlowControlMarker(receiver="go", number=0), 1000)


def life(disk: Disk, broker: MemoryBroker, policy: str) -> Engine:
    checkpoints = CheckpointSettings(interval=0.001)
    return stepped(disk, broker, *PARTS, monitors=(monitor(Hostile, on_error=policy),), checkpoint=checkpoints)


def the_monitor(engine: Engine) -> Any:
    return next(one for one in engine.contexts["main"].context.monitors.instances if type(one) is Hostile)


def encoded(one: Any) -> bytes:
    """Its attributes as a start reads them: an int is a float where the annotation says so."""
    codec = one.state_codec()
    return bytes(codec.encode(codec.decode(codec.encode(one.attributes()))))


def checkpointed(engine: Engine, rounds: int = 12) -> None:
    """Let the parts work, then take a checkpoint."""
    work(engine, rounds)
    engine.checkpointer.ask()
    work(engine, rounds)
    assert engine.checkpointer.answered(engine.checkpointer._orders.placed)


def goes_on(engine: Engine, broker: MemoryBroker) -> int:
    """A good event is handled and becomes part of a checkpoint; returns how many were handled in all."""
    before = the_monitor(engine).handled
    broker.publish("queue:go", [Message(b'{"number": 1}')])
    engine.receivers["go"].grant(10**6)
    checkpointed(engine)
    assert the_monitor(engine).handled == before + 1
    return before + 1


@pytest.fixture(autouse=True)
def _nothing_is_done() -> Iterator[None]:
    yield
    DOING.action = None


def asked(ask: Ask, value: Any, policy: str, deliver: Callable[[MemoryBroker], None] | None = None) -> None:
    """Let a handler do this, and see that the engine, or after a stop the next life, goes on as if it had not."""
    disk, broker = Disk(), MemoryBroker()
    DOING.action = None
    engine = life(disk, broker, policy)
    handled = goes_on(engine, broker)
    number = engine.checkpointer.checkpoint.number
    DOING.action = lambda one: ask(one, value)
    engine.receivers["go"].grant(10**6)
    if deliver is None:
        broker.publish("queue:go", [Message(b"{}")])
    else:
        deliver(broker)
    try:
        work(engine, 12)
        engine.checkpointer.ask()
        work(engine, 12)
    except CorrelatorError:
        assert policy == "stop"
        assert engine.checkpointer.checkpoint.number in (number, number + 1)
        DOING.action = None
        engine = life(disk, broker, "dead_letter" if deliver else policy)  # what a program sent comes again
        assert the_monitor(engine).handled >= handled
        goes_on(engine, broker)
        return
    DOING.action = None
    assert engine.handler_failures <= 2
    if isinstance(the_monitor(engine).handled, int):
        goes_on(engine, broker)
    again = life(disk, broker, policy)
    assert encoded(the_monitor(again)) == encoded(the_monitor(engine))
    goes_on(again, broker)


@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_no_way_to_ask_fails_later_with_any_of_the_named_values(policy):
    """Every pair, each in a checkpoint of its own; the pairs of one way to ask follow one another in one life."""
    for ask in ASKS:
        disk, broker = Disk(), MemoryBroker()
        engine = life(disk, broker, policy)
        goes_on(engine, broker)
        for value in NAMED:
            DOING.action = lambda one, ask=ask, value=value: ask(one, value)
            engine.receivers["go"].grant(10**6)
            broker.publish("queue:go", [Message(b"{}")])
            checkpointed(engine, rounds=4)
        DOING.action = None
        goes_on(engine, broker)
        again = life(disk, broker, policy)
        assert encoded(the_monitor(again)) == encoded(the_monitor(engine))
        goes_on(again, broker)


@pytest.mark.parametrize("policy", ["stop", "skip", "dead_letter"])
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_value_fails_later_than_in_the_handler_that_made_it(policy, data):
    asked(data.draw(st.sampled_from(ASKS)), data.draw(values), policy)


BODIES = [
    {"number": 2**70},
    {"number": -(2**63) - 1},
    {"price": "sNaN"},
    {"price": "NaN"},
    {"price": "1e999999"},
    {"text": SURROGATE},
    {"items": [2**64]},
]


@pytest.mark.parametrize("policy", ["stop", "skip", "dead_letter"])
@pytest.mark.parametrize("body", BODIES, ids=str)
def test_no_value_that_a_hostile_program_sends_fails_later_than_in_the_monitor_that_waits_with_it(policy, body):
    """An expression keeps the event until another one comes, over checkpoints and lives."""
    content = Message(json.dumps(body).encode())
    asked(lambda one, value: None, None, policy, lambda broker: broker.publish("queue:payloads", [content]))


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_an_event_that_cannot_be_kept_is_the_failure_of_who_waits_with_it(policy):
    disk, broker = Disk(), MemoryBroker()
    engine = life(disk, broker, policy)
    work(engine, 12)
    broker.publish("queue:payloads", [Message(b'{"price": "sNaN"}')])
    work(engine, 12)
    assert engine.handler_failures == 1
    goes_on(engine, broker)
    letters = [(one.kind, one.receiver, one.message.body) for one in disk.dead_letters]
    assert letters == ([("handler", "payloads", b'{"price": "sNaN"}')] if policy == "dead_letter" else [])


LOCAL_EVENT, LOCAL_MONITOR = local_event(), local_monitor()


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.spawn(LOCAL_MONITOR),
        lambda one: one.on_all(match(LOCAL_EVENT), one.told),
        lambda one: one.once(match(Payload).then(match(LOCAL_EVENT)), one.told),
        lambda one: one.send(LOCAL_EVENT(), to="channel:main"),
    ],
    ids=["spawn", "listener", "expression", "channel"],
)
def test_a_class_that_no_later_start_could_import_is_refused_at_the_call(call):
    codes: list[str] = []

    def tries(one: Hostile) -> None:
        with pytest.raises(UsageError) as raised:
            call(one)
        codes.append(raised.value.code)

    asked(lambda one, value: tries(one), None, "stop")
    assert codes == ["E4118"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"items": [object()]}, "E4102"), ({"handled": "many"}, "E4103")],
)
def test_a_monitor_whose_first_attributes_no_store_takes_refuses_the_start(fields, code):
    engine = life(Disk(), MemoryBroker(), "stop")
    with pytest.raises(StateError, match=code):
        engine.contexts["main"].context.load(Hostile(**fields), "stop")


def test_an_event_changes_for_nobody_else_when_a_handler_changes_what_it_holds():
    """Given a list that was sent within an event, when the sender changes it, then who waits with the event has it."""
    broker = MemoryBroker()
    engine = life(Disk(), broker, "skip")
    DOING.action = lambda one: payload_that_changes(one, 2)
    engine.receivers["go"].grant(10**6)
    broker.publish("queue:go", [Message(b"{}")])
    work(engine, 12)
    (expression,) = engine.contexts["main"].context.monitors.instances[the_monitor(engine)].expressions.values()
    kept = [one.progress.events[1].items for one in expression.attempts if one.progress.events]
    assert kept == [[1]]
