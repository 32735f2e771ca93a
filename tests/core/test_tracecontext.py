"""The trace context of a received message goes with what it causes: to senders, to channels, into the store and back."""

from typing import Any

import msgspec
import pytest

from correlator import Message, Monitor, event, on
from correlator.core.commit import QueueRun
from correlator.core.context import Context
from correlator.core.messages import decode_event
from correlator.core.outbox import Outbox
from correlator.core.queue import Run
from correlator.core.recovery import ReceiveLog, restored_runs
from correlator.core.routes import Routes
from correlator.core.tracecontext import LONGEST_STATE, TraceContext, carrying, context_of
from correlator.reliability import Reliability
from correlator.runtime.names import resolve

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED = f"00-{TRACE}-{SPAN}-00"


@event
class Heard:
    """What one context sends to another."""

    text: str


class Sends(Monitor):
    """Sends on what it gets, in each way."""

    @on(Message)
    def message(self, message: Message) -> None:
        self.send(message.body, to="out")
        self.send(message.body, to="quick", properties={"traceparent": "its own"})
        self.send(message, to="out")
        self.send(Heard(text=message.body.decode()), to="channel:audit")
        self.wait(1.0, self.later)

    def later(self) -> None:
        self.send(b"later", to="out")


class Audits(Monitor):
    """Sends what another context tells it."""

    @on(Heard)
    def heard(self, heard: Heard) -> None:
        self.send(heard.text.encode(), to="out")


class Spans:
    """Notes the spans, and gives each its own id."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []

    def begin(self, context: TraceContext, receiver: str, number: int) -> TraceContext:
        self.made.append((context.parent, receiver, number))
        return TraceContext(f"00-{TRACE}-{len(self.made):016x}-01", context.state)

    def end(self, failure: str) -> None:
        self.made.append(("end", failure))


def a_context(monitor: Monitor, name: str = "main", routes: Routes | None = None, **options: Any) -> Context:
    routes = routes or Routes()
    routes.outboxes = routes.outboxes or {
        sender: Outbox(sender, mode, "src:S01", f"queue:{sender}", "id", "source")
        for sender, mode in (("out", Reliability.EXACTLY_ONCE), ("quick", Reliability.BEST_EFFORT))
    }
    context = Context(name, routes, resolve, **options)
    routes.subscribe(name, context.queue)
    context.load(monitor, "stop")
    return context


def received(*messages: Message, first: int = 1) -> Run:
    return Run("in", first, messages, messages, stored=True)


def message(text: str, parent: Any = PARENT, **more: Any) -> Message:
    return Message(text.encode(), {} if parent is None else {"traceparent": parent, **more})


def sends(context: Context) -> list[Message]:
    return context.staging.take_sends().get("out", [])


@pytest.mark.parametrize("parent", [PARENT, UNSAMPLED, PARENT.replace("00-", "cc-", 1)])
def test_a_context_is_read(parent):
    context = context_of(message("a", parent, tracestate="vendor=1"))
    assert context == TraceContext(parent, "vendor=1")
    assert context.sampled is parent.endswith("01")


@pytest.mark.parametrize(
    "parent",
    [
        None,
        "",
        b"00-" + TRACE.encode(),
        7,
        True,
        PARENT.upper(),
        PARENT.replace("00-", "ff-", 1),
        PARENT[:-1],
        PARENT + "0",
        PARENT + "\n",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"{PARENT},{PARENT}",
        "x" * 1_000_000,
    ],
)
def test_a_malformed_context_is_none(parent):
    assert context_of(message("a", parent)) is None
    assert carrying(Message(b"b"), context_of(message("a", parent))) == Message(b"b")


@pytest.mark.parametrize("state", [None, 7, b"vendor=1", "x" * (LONGEST_STATE + 1)])
def test_a_malformed_state_is_left_out(state):
    assert context_of(message("a", tracestate=state)) == TraceContext(PARENT)


def test_what_a_handler_sends_carries_the_context_of_its_cause():
    context = a_context(Sends())
    audit = a_context(Audits(), "audit", context._binding._routes)
    context.queue.deliver(received(message("a", tracestate="vendor=1"), message("b", None), message("c", UNSAMPLED)))
    assert context.work(10, 0.0) == 3
    carried = {"traceparent": PARENT, "tracestate": "vendor=1"}
    unsampled = {"traceparent": UNSAMPLED}
    assert [(one.body, one.properties) for one in sends(context)] == [
        (b"a", carried),
        (b"a", carried),
        (b"b", {}),
        (b"b", {}),
        (b"c", unsampled),
        (b"c", unsampled),
    ]
    quick = [one.message.properties for one in context._binding._routes.outboxes["quick"].take(10)]
    assert [one["traceparent"] for one in quick] == ["its own"] * 3
    audit.work(10, 0.0)
    assert [one.properties for one in sends(audit)] == [carried, {}, unsampled]
    context.work(10, 2.0)
    assert [(one.body, one.properties) for one in sends(context)] == [(b"later", {})] * 3


def test_an_event_that_waits_in_a_channel_keeps_its_context_in_a_checkpoint():
    context = a_context(Sends())
    audit = a_context(Audits(), "audit", context._binding._routes)
    context.queue.deliver(received(message("a", tracestate="vendor=1")))
    context.work(10, 0.0)
    stored = msgspec.msgpack.encode(audit.cut().queue)
    again = a_context(Audits(), "audit")
    queue = msgspec.msgpack.decode(stored, type=list[QueueRun])
    runs = restored_runs("audit", queue, ReceiveLog(()), {}, lambda recorded: decode_event(resolve, recorded))
    again.restore(audit.cut(), runs, 0.0)
    again.work(10, 0.0)
    assert [one.properties for one in sends(again)] == [{"traceparent": PARENT, "tracestate": "vendor=1"}]


def test_a_checkpoint_of_an_older_version_has_no_contexts():
    older = msgspec.msgpack.encode(["", 0, 1, [("tests.core.test_tracecontext:Heard", b"\x80")]])
    assert msgspec.msgpack.decode(older, type=QueueRun).trace is None


def test_a_span_is_made_for_sampled_messages_only_and_its_context_is_sent():
    spans = Spans()
    context = a_context(Sends(), tracer=spans)
    audit = a_context(Audits(), "audit", context._binding._routes, tracer=spans)
    context.queue.deliver(
        received(message("a", UNSAMPLED), message("b", tracestate="v=1"), message("c", None), first=7)
    )
    context.work(10, 0.0)
    assert spans.made == [(PARENT, "in", 8), ("end", "")]
    assert [one.properties.get("traceparent") for one in sends(context)] == [
        UNSAMPLED,
        UNSAMPLED,
        f"00-{TRACE}-{1:016x}-01",
        f"00-{TRACE}-{1:016x}-01",
        None,
        None,
    ]
    audit.work(10, 0.0)
    assert spans.made[2:] == [(PARENT, "", 0), ("end", "")]  # the event waits with the context of its cause


@pytest.mark.parametrize("on_error", ["stop", "skip", "dead_letter"])
def test_a_span_tells_that_a_handler_has_failed(on_error):
    class Fails(Monitor):
        @on(Message)
        def message(self, message: Message) -> None:
            raise ValueError(message.body.decode())

    spans = Spans()
    context = Context("main", Routes(), resolve, tracer=spans)
    context.load(Fails(), on_error)
    context.queue.deliver(received(message("boom"), message("again")))
    if on_error == "stop":
        with pytest.raises(Exception, match="boom"):
            context.work(10, 0.0)
    else:
        context.work(10, 0.0)
    failures = [failure for what, failure in [one for one in spans.made if one[0] == "end"]]
    assert ["boom" in failures[0], *("again" in one for one in failures[1:])] == [True] * len(failures)
    assert len(failures) == (1 if on_error == "stop" else 2)
    assert context._calls.span is None
