"""Spans of an engine: one trace from the received message to what it causes, also across a crash (docs/opentelemetry.md)."""

import contextlib
import http.server
import socket
import threading

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from correlator import Engine
from correlator.errors import ConfigError
from correlator.runtime import observers, spans
from correlator.settings import EngineSettings, HttpSettings, OpenTelemetrySettings
from tests.runtime.flows import Forwards, Hears
from tests.runtime.test_sending import Refuses
from tests.runtime.world import BEST_EFFORT, message, monitor, receiver, sender, the_monitor
from tests.waiting import wait_until

TRACE, OTHER, SPAN = "0af7651916cd43dd8448eb211c80319c", "1" * 32, "b7ad6b7169203331"
SOMEWHERE = OpenTelemetrySettings(endpoint="http://127.0.0.1:1/v1/traces")


def parent(trace_id=TRACE, flags="01"):
    return f"00-{trace_id}-{SPAN}-{flags}"


def traced(text, trace_id=TRACE, flags="01"):
    return message(text, traceparent=parent(trace_id, flags))


@pytest.fixture
def made(monkeypatch):
    """Where the spans of the engines of this test go."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(exporter, "shutdown", lambda: None)  # it would refuse the spans of the next life
    monkeypatch.setattr(spans, "exporter_of", lambda _: exporter)
    return exporter


def finished(exporter):
    return sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)


def by_name(exporter):
    """The spans by what they do; every test here has one of each."""
    return {span.name.split()[0]: span for span in finished(exporter)}


def ids(span):
    """Trace and parent of a span."""
    return f"{span.context.trace_id:032x}", None if span.parent is None else f"{span.parent.span_id:016x}"


def linked(span):
    return [f"{link.context.trace_id:032x}" for link in span.links]


def traceparent_of(world, at="queue:out"):
    (found,) = [one.properties["traceparent"] for one in world.broker.received(at)]
    return found


def test_a_message_has_one_trace_from_its_producer_to_its_consumer(world, made):
    with world.engine(receiver(), sender(), monitors=[Forwards], opentelemetry=SOMEWHERE):
        world.publish(traced("a"))
        world.wait_for("1:a")
    spans_of = by_name(made)
    assert {name: span.kind for name, span in spans_of.items()} == {
        "receive": SpanKind.CONSUMER,
        "process": SpanKind.CONSUMER,
        "commit": SpanKind.INTERNAL,
        "send": SpanKind.PRODUCER,
    }
    process = spans_of["process"]
    own = f"{process.context.span_id:016x}"
    assert {name: ids(span) for name, span in spans_of.items()} == {
        "receive": (TRACE, SPAN),
        "process": (TRACE, SPAN),
        "commit": (TRACE, own),
        "send": (TRACE, own),
    }
    assert traceparent_of(world) == f"00-{TRACE}-{own}-01"
    assert process.attributes == {
        "messaging.operation.type": "process",
        "messaging.destination.name": "main",
        "correlator.receiver": "in",
        "correlator.number": 1,
        "correlator.recovered": False,
    }
    assert spans_of["send"].attributes["correlator.tries"] == 1
    assert process.resource.attributes["service.name"] == "world"
    assert all(span.start_time <= span.end_time for span in spans_of.values())


def test_several_messages_of_a_batch_are_linked(world, made):
    world.publish(traced("a"), traced("b", OTHER), message("c"))
    with world.engine(receiver(max_batch_size=3), sender(), monitors=[Forwards], opentelemetry=SOMEWHERE):
        world.wait_for("1:a", "2:b", "3:c")
    for span in finished(made):
        if span.name.startswith(("receive", "commit")):
            assert (span.parent, linked(span)) == (None, [TRACE, OTHER])
        else:
            assert ids(span)[0] in (TRACE, OTHER)
            assert linked(span) == []
    assert sorted(span.name.split()[0] for span in finished(made)) == [
        "commit",
        *["process"] * 2,
        "receive",
        *["send"] * 2,
    ]


def test_a_span_has_no_more_links_than_collectors_take(world, made, monkeypatch):
    monkeypatch.setattr(spans, "MOST_LINKS", 5)
    world.publish(*(traced(f"m{n}") for n in range(20)))
    with world.engine(receiver(max_batch_size=20), monitors=[Hears], opentelemetry=SOMEWHERE):
        world.wait(lambda: not world.broker.unacknowledged("queue:in"))
    (receive,) = [span for span in finished(made) if span.name == "receive queue:in"]
    assert len(receive.links) == 5
    assert receive.attributes["messaging.batch.message_count"] == 20


def test_the_library_is_not_asked_about_messages_that_nobody_samples(world, made, monkeypatch):
    monkeypatch.setattr(spans.Spans, "_begin", lambda *_: pytest.fail("a span"))
    with world.engine(receiver(), sender(), monitors=[Forwards], opentelemetry=SOMEWHERE):
        world.publish(traced("a", flags="00"), message("b"), message("c", traceparent="malformed"))
        world.wait_for("1:a", "2:b", "3:c")
    carried = [one.properties.get("traceparent") for one in world.broker.received("queue:out")]
    assert carried == [parent(flags="00"), None, None]
    assert finished(made) == []


def test_without_the_setting_the_context_is_carried_unchanged(world):
    with world.engine(receiver(), sender(), monitors=[Forwards]):
        world.publish(traced("a"))
        world.wait_for("1:a")
    assert traceparent_of(world) == parent()


@pytest.mark.parametrize(
    ("point", "restored"),
    [("rx.enqueue", True), ("ck.trigger", True), ("ck.release.before", None), ("tx.publish.before", None)],
)
def test_o13_a_crash_leaves_one_trace(world, made, point, restored):
    """Given a sampled message, when the engine fails at this point, then the next life continues its trace."""
    parts = {"monitors": [Forwards], "opentelemetry": SOMEWHERE, "interval": 3600.0}
    engine = world.engine(receiver(), sender(), **parts)
    engine.start()
    world.fail_at(point, RuntimeError("dies here"))
    world.publish(traced("a"))
    wait_until(lambda: engine.failure or the_monitor(engine, Forwards).count)
    if not engine.failure:
        engine.checkpointer.ask()
        wait_until(lambda: engine.failure)
    world.crash(engine)
    first = finished(made)
    made.clear()
    with world.engine(receiver(), sender(), **parts) as engine:
        engine.checkpoint()
        world.wait(lambda: len(world.sent()) == 1)
    again = [span for span in finished(made) if span.name == "process main"]
    assert [span.attributes["correlator.recovered"] for span in again] == ([] if restored is None else [restored])
    every = [*first, *finished(made)]
    assert {ids(span)[0] for span in every} == {TRACE}
    assert len({span.context.span_id for span in every}) == len(every)
    processed = [f"{span.context.span_id:016x}" for span in every if span.name == "process main"]
    assert traceparent_of(world) == f"00-{TRACE}-{processed[-1]}-01"


def test_a_failing_handler_is_an_error_of_its_span(world, made, script):
    def fail(_monitor, told):
        raise ValueError("boom")

    script.message = fail
    failing = monitor(Hears, on_error="skip")
    with world.engine(receiver("in", BEST_EFFORT), monitors=[failing], opentelemetry=SOMEWHERE) as engine:
        world.publish(traced("a"))
        world.wait(lambda: engine.handler_failures)
    span = by_name(made)["process"]
    assert span.status.status_code is StatusCode.ERROR
    assert "boom" in span.status.description


def test_a_refused_send_is_an_error_and_the_message_keeps_its_one_context(world, made):
    world.broker.faults = Refuses(b"1:a", times=2)
    with world.engine(receiver(), sender(retry_interval=0.01), monitors=[Forwards], opentelemetry=SOMEWHERE):
        world.publish(traced("a"))
        world.wait_for("1:a")
    sends = [span for span in finished(made) if span.name == "send queue:out"]
    assert [span.status.status_code for span in sends] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert [span.attributes["correlator.tries"] for span in sends] == [1, 2, 3]
    assert {ids(span) for span in sends} == {(TRACE, traceparent_of(world).split("-")[2])}


def test_spans_of_a_handler_are_below_that_of_its_message(world, made, script):
    seen = []
    script.message = lambda *_: seen.append(trace.get_current_span().get_span_context().span_id)
    with world.engine(receiver("in", BEST_EFFORT), monitors=[Hears], opentelemetry=SOMEWHERE):
        world.publish(traced("a"), message("b"))
        world.wait(lambda: len(seen) == 2)
    assert seen == [by_name(made)["process"].context.span_id, trace.INVALID_SPAN_ID]


class Collector(http.server.BaseHTTPRequestHandler):
    """A collector that keeps what it gets."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = ExportTraceServiceRequest.FromString(body)
        self.server.got.append((self.path, self.headers["Content-Type"], request))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def collector():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.got = []
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield server, OpenTelemetrySettings(endpoint=f"http://127.0.0.1:{server.server_port}/v1/traces")
        finally:
            server.shutdown()
            thread.join()


def test_a_collector_gets_the_spans_by_otlp(world):
    with (
        collector() as (server, settings),
        world.engine(receiver(), sender(), monitors=[Forwards], opentelemetry=settings),
    ):
        world.publish(traced("a"))
        world.wait_for("1:a")
    ((path, kind, request),) = server.got
    assert (path, kind) == ("/v1/traces", "application/x-protobuf")
    (resource,) = request.resource_spans
    assert {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"] == "world"
    (scope,) = resource.scope_spans
    assert sorted(span.name for span in scope.spans) == [
        "commit checkpoint",
        "process main",
        "receive queue:in",
        "send queue:out",
    ]
    assert {span.trace_id.hex() for span in scope.spans} == {TRACE}


@pytest.mark.parametrize("collector_is", ["silent", "gone"])
def test_a_collector_that_does_not_answer_does_not_hold_a_stop(world, monkeypatch, collector_is):
    monkeypatch.setattr(spans, "STOP_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        if collector_is == "gone":
            listening.close()
        settings = OpenTelemetrySettings(endpoint=f"http://127.0.0.1:{port}/v1/traces")
        with world.engine(receiver(), sender(), monitors=[Forwards], opentelemetry=settings):
            world.publish(traced("a"))
            world.wait_for("1:a")
        ending = [one for one in threading.enumerate() if one.name == "spans-end"]
        assert ending or collector_is == "gone"  # the stop has not waited for it
    for one in ending:
        one.join()


@pytest.mark.parametrize(
    "endpoint",
    [
        *(
            "",
            "127.0.0.1:4318",
            "ftp://x/",
            "http://",
            "http://a b/",
            "http://x:70000/",
            "http://u:p@x/",
            "http://x\n/",
        ),
        "http://127.0.0.1:4318",  # the library would send to "/", where no collector takes traces
    ],
)
def test_an_address_that_is_none_is_refused(endpoint):
    settings = EngineSettings(name="x", opentelemetry=OpenTelemetrySettings(endpoint=endpoint))
    with pytest.raises(ConfigError, match=r"E1611 opentelemetry\.endpoint") as refused:
        Engine(settings)
    assert "u:p" not in str(refused.value)


def test_packages_that_are_missing_are_named(monkeypatch):
    monkeypatch.setattr(observers, "_OTEL", ("no_such_package.trace", "opentelemetry.sdk"))
    with pytest.raises(ConfigError, match=r"E1612 opentelemetry: needs the packages no_such_package\.trace\..*otel"):
        Engine(EngineSettings(name="x", opentelemetry=SOMEWHERE)).start()


def test_a_variable_that_the_library_refuses_is_no_bug_and_nothing_is_left_open(monkeypatch):
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many")
    engine = Engine(EngineSettings(name="x", opentelemetry=SOMEWHERE, http=HttpSettings(port=0)))
    with pytest.raises(ConfigError, match=r"E1611 opentelemetry: cannot be used: .*OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"):
        engine.start()
    assert engine.http_address is None
