"""Spans of OpenTelemetry: what an engine does with messages of a trace that somebody collects (docs/opentelemetry.md).

Only the property `traceparent` decides: an engine makes no span for a message without it, or without its flag
*sampled*, and calls nothing of the library for such a message. This module needs the packages of the extra `otel`; only
engines with the setting `opentelemetry` import it.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from opentelemetry.context import Context, attach, detach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from correlator.core.commit import OutboundSegment
from correlator.core.tracecontext import TraceContext, sampled_context_of
from correlator.errors import SendRejected
from correlator.events import Message, Outgoing
from correlator.settings import OpenTelemetrySettings, ReceiverSettings

MOST_LINKS = 128
"""Links of one span; a batch may have more sampled messages."""
STOP_S = 2.0
"""Seconds that a stop waits for the last spans to leave."""


def exporter_of(settings: OpenTelemetrySettings) -> SpanExporter:
    """Make the exporter that sends spans to the collector."""
    return OTLPSpanExporter(endpoint=settings.endpoint)


class Spans:
    """Makes the spans of one engine. A thread of the library sends them; while the collector cannot be reached, they
    are dropped.

    Any thread may call the methods, except `close`. Times are seconds since the epoch.

    Args:
        settings: where the collector listens.
        engine: name of the engine, the `service.name` of its spans.
        now: returns the time of day.

    Attributes:
        now: returns the time of day.
        recovering: whether messages are handled that a start has restored.
    """

    def __init__(self, settings: OpenTelemetrySettings, engine: str, now: Callable[[], float]) -> None:
        self.now = now
        self.recovering = True
        self._exporter = exporter_of(settings)
        self._provider = TracerProvider(resource=Resource.create({"service.name": engine}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("correlator")

    def received(self, receiver: ReceiverSettings, messages: Sequence[Message], began: float) -> None:
        """Note that a receiver has acknowledged a batch: a span `receive`."""
        if contexts := _sampled(messages):
            more = {"correlator.receiver": receiver.id, "messaging.batch.message_count": len(messages)}
            self._end(self._begin("receive", receiver.destination, SpanKind.CONSUMER, contexts, began, more))

    def processed(self, pipeline: str, messages: Iterable[Message], began: float) -> None:
        """Note that a pipeline has processed a batch: a span `process`."""
        if contexts := _sampled(messages):
            more = {"correlator.recovered": self.recovering}
            self._end(self._begin("process", pipeline, SpanKind.CONSUMER, contexts, began, more))

    def committed(self, outbound: Iterable[OutboundSegment], number: int, began: float) -> None:
        """Note that a checkpoint has stored and released sends: a span `commit`."""
        if contexts := _sampled(message for segment in outbound for message in segment.messages):
            more = {"correlator.checkpoint": number}
            self._end(self._begin("commit", "checkpoint", SpanKind.INTERNAL, contexts, began, more))

    def sent(
        self, sender: str, sends: Sequence[Outgoing], results: Sequence[SendRejected | None], tries: int, began: float
    ) -> None:
        """Note the answers of a broker to a batch of sends: a span `send` for each sampled message."""
        for one, refusal in zip(sends, results, strict=True):
            if contexts := _sampled([one.message]):
                more = {"correlator.sender": sender, "correlator.sequence": one.sequence, "correlator.tries": tries}
                span = self._begin("send", one.destination, SpanKind.PRODUCER, contexts, began, more)
                self._end(span, "" if refusal is None else str(refusal))

    def tracer(self, context: str) -> "ContextTracer":
        """Make the tracer of a context of monitors."""

        def begin(cause: TraceContext, more: dict[str, Any]) -> Span:
            more = {**more, "correlator.recovered": self.recovering}
            return self._begin("process", context, SpanKind.CONSUMER, [cause], self.now(), more)

        return ContextTracer(begin, self._end)

    def close(self) -> None:
        """Send the remaining spans for at most `STOP_S`, and drop the rest."""
        ending = threading.Thread(target=self._provider.shutdown, name="spans-end", daemon=True)
        ending.start()
        ending.join(STOP_S)
        if ending.is_alive():
            self._exporter.shutdown()  # ends the waits between its attempts

    def _begin(
        self, what: str, where: str, kind: SpanKind, causes: Sequence[TraceContext], began: float, more: dict[str, Any]
    ) -> Span:
        """Begin a span. A single message is its parent; several messages are its links."""
        spans = [_span_context(cause) for cause in causes[:MOST_LINKS]]
        single = len(spans) == 1
        attributes = {"messaging.operation.type": what, "messaging.destination.name": where, **more}
        return self._tracer.start_span(
            f"{what} {where}",
            set_span_in_context(NonRecordingSpan(spans[0]), Context()) if single else Context(),
            kind,
            attributes,
            [] if single else [Link(span) for span in spans],
            start_time=_ns(began),
        )

    def _end(self, span: Span, failure: str = "") -> None:
        if failure:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(_ns(self.now()))


class ContextTracer:
    """Implements `core.tracecontext.Tracer` for one context. While the handlers of a message run, its span is the
    current span of the library, so that the spans which they make become its children.

    Args:
        begin: begins the span of a message.
        end: ends it.
    """

    def __init__(self, begin: Callable[[TraceContext, dict[str, Any]], Span], end: Callable[[Span, str], None]) -> None:
        self._begin = begin
        self._finish = end
        self._span: Span | None = None
        self._token: Any = None

    def begin(self, context: TraceContext, receiver: str, number: int) -> TraceContext:
        """Begin the span of a message, below the one in `context`; returns the context for what its handlers send."""
        more = {"correlator.receiver": receiver, "correlator.number": number} if receiver else {}
        self._span = self._begin(context, more)
        self._token = attach(set_span_in_context(self._span))
        made = self._span.get_span_context()
        parent = f"00-{made.trace_id:032x}-{made.span_id:016x}-{made.trace_flags:02x}"
        return TraceContext(parent, context.state)

    def end(self, failure: str) -> None:
        """End the span that `begin` has begun: as failed if `failure`, what its handlers raised, is not empty."""
        assert self._span is not None
        detach(self._token)
        self._finish(self._span, failure)
        self._span = None


def _sampled(messages: Iterable[Message]) -> list[TraceContext]:
    contexts = [sampled_context_of(message) for message in messages]
    return [context for context in contexts if context is not None]


def _span_context(context: TraceContext) -> SpanContext:
    _, trace, span, flags = context.parent.split("-")
    state = TraceState.from_header([context.state]) if context.state else TraceState()
    return SpanContext(
        int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)), trace_state=state
    )


def _ns(seconds: float) -> int:
    return round(seconds * 1_000_000_000)
