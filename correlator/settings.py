"""The settings of an engine with their defaults. This module is the only place that holds a default.

The engine reads settings once, at its start, and never changes them. Durations are seconds as `float`, sizes are bytes
as `int`; the configuration file writes both with units. The `repr` of settings leaves out what may hold a password.
"""

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from correlator.reliability import Reliability

Seconds = Annotated[float, msgspec.Meta(ge=0, extra={"unit": "duration"})]
SomeSeconds = Annotated[float, msgspec.Meta(ge=0.001, extra={"unit": "duration"})]
Bytes = Annotated[int, msgspec.Meta(ge=0, extra={"unit": "size"})]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Token = Annotated[str, msgspec.Meta(min_length=32)]
Concurrency = Annotated[int, msgspec.Meta(ge=1, le=256)]
FewThreads = Annotated[int, msgspec.Meta(ge=0, le=64)]
CountOrZero = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]
ShareCount = Annotated[int, msgspec.Meta(ge=1, le=1000)]
LeaseSeconds = Annotated[float, msgspec.Meta(ge=1, le=3600, extra={"unit": "duration"})]
Identifier = Annotated[str, msgspec.Meta(min_length=1, max_length=200, extra={"identifier": True})]
Template = Annotated[str, msgspec.Meta(extra={"template": True})]
SelectorText = Annotated[str, msgspec.Meta(extra={"selector": True})]
ImportPath = Annotated[str, msgspec.Meta(extra={"import_path": True})]
RemainingKeys = Annotated[Mapping[str, Any], msgspec.Meta(extra={"remaining_keys": True})]
OnError = Literal["stop", "dead_letter", "skip"]
OnMappingError = Literal["dead_letter", "stop", "drop"]
OnUnhandled = Literal["dead_letter", "warn", "ignore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When the engine takes checkpoints.

    Attributes:
        interval: longest time from the end of one checkpoint to the beginning of the next. If nothing has changed, the
            engine takes no checkpoint. If sends wait for a checkpoint while no context has anything to handle, the
            engine takes it after a tenth of this time; it waits longer if checkpoints would take more than a fifth of
            the time.
    """

    interval: SomeSeconds = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """A connection to a broker.

    Attributes:
        type: name of the connector, which is an entry point of the group `correlator.connectors`.
        default_receiver_reliability: mode of the receivers of the file that use this connection and name no mode.
        default_sender_reliability: mode of the senders of the file that use this connection and name no mode, and of
            its default sender. A connection without configured senders has a default sender with the id
            `CONNECTION-default-sender`.
        options: options of the connector, such as its address. In the file these keys stand beside `type`.
    """

    type: str
    default_receiver_reliability: Reliability = Reliability.BEST_EFFORT
    default_sender_reliability: Reliability = Reliability.BEST_EFFORT
    options: RemainingKeys = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateDetectionSettings:
    """The windows of duplicate detection (docs/guarantees.md). 0 disables a window; both at 0 are refused.

    Attributes:
        per_source_window_size: how many ids of each source, the newest ones, its window remembers.
        expiry_time: the age at which an id is evicted from the time queue of its domain. The age is the difference, in
            engine time, to the newest id of that queue.
    """

    per_source_window_size: CountOrZero = 2000
    expiry_time: Seconds = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """A receiver, which takes messages from a destination.

    Attributes:
        id: unique among all receivers and senders, static and dynamic, for the life of the store.
        connection: name of a connection.
        destination: `queue:NAME`, `topic:NAME` or a logical name of `destinations`.
        reliability: the reliability mode (docs/guarantees.md).
        event: import path `module:Class` of the event class that message bodies become. Without it monitors get a
            `Message`. A receiver of a pipeline needs none.
        unique_message_id: template of the unique id of a message for duplicate detection; the property
            `uniqueMessageId` by default.
        message_source_id: template of the id of the message's producer; the property `messageSourceId` by default.
        dup_detection_domain_id: the duplicate detection domain; by default `connection:destination` for a queue and
            `connection:id` for a topic.
        max_batch_size: the most messages in a batch, and the most unacknowledged messages that the receiver holds.
        max_batch_bytes: bytes of message bodies at which a batch is closed.
        max_batch_interval_ms: how long a batch waits for more messages after its first one, in milliseconds.
        max_message_bytes: a message with a larger body becomes a dead letter (E5001).
        on_mapping_error: what happens to a message that cannot be mapped: it becomes a dead letter (`dead_letter`), it
            stops the engine (`stop`), or the engine logs and drops it (`drop`).
        mapping: from which part of the message each field of `event` gets its value (docs/mapping.md). Without it the
            body is the event, as JSON.
        unhandled: what happens to a message that no monitor listens for: it becomes a dead letter (`dead_letter`), the
            engine counts it and logs a warning (`warn`), or nothing happens (`ignore`). The receiver acknowledges it in
            each case.
        flow_control: deliver only as many messages as the application allows with `update_flow_control_window`.
        no_local: drop messages that this engine's own senders sent.
        selector: take only messages for which this condition over headers and properties is true (docs/receiving.md).
        durable_topic_subscription_name: name of the subscription under which the broker keeps a topic's messages while
            the engine is down; the receiver's id by default.
        max_extra_mapping_threads: threads that map messages while the receiver's own thread goes on receiving.
        log_performance_breakdown: log regularly what the receiver's thread spends its time on (docs/status.md).
        options: options of the connector for this receiver.
    """

    id: Identifier
    connection: str
    destination: str
    reliability: Reliability = Reliability.BEST_EFFORT
    event: ImportPath | None = None
    unique_message_id: Template = "${property.uniqueMessageId}"
    message_source_id: Template = "${property.messageSourceId}"
    dup_detection_domain_id: Identifier | None = None
    max_batch_size: Count = 1000
    max_batch_bytes: Bytes = 16 * 1024 * 1024
    max_batch_interval_ms: CountOrZero = 20
    max_message_bytes: Bytes = 10 * 1024 * 1024
    on_mapping_error: OnMappingError = "dead_letter"
    mapping: Mapping[str, Template] = field(default_factory=dict)
    unhandled: OnUnhandled = "warn"
    flow_control: bool = False
    no_local: bool = False
    selector: SelectorText | None = None
    durable_topic_subscription_name: Identifier | None = None
    max_extra_mapping_threads: FewThreads = 0
    log_performance_breakdown: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def subscription(self) -> str:
        """Name under which a broker keeps this receiver's position in a topic, stream or file."""
        return self.durable_topic_subscription_name or self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """A function that a sender calls with each message (docs/calls.md).

    Attributes:
        function: import path `module:function` of a function, plain or `async def`, of a message and a key.
        concurrency: how many calls may be under way. Messages with the same key are called one after the other.
        timeout: how long a call of an `async def` function may take; without this setting, without limit.
    """

    function: ImportPath
    concurrency: Concurrency = 8
    timeout: SomeSeconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSettings:
    """A sender, which sends messages to destinations.

    Attributes:
        id: unique among all receivers and senders, static and dynamic, for the life of the store.
        connection: name of a connection.
        destination: the destination of messages that name none. Without this setting each message must name one.
        reliability: the reliability mode; `APP_CONTROLLED` is refused.
        unique_message_id_property: name of the property that carries the unique id, `seqNo:messageSourceId`.
        message_source_id_property: name of the property that carries the source id.
        max_batch_size: the most messages that the sender hands to the broker before it waits for their confirms.
        max_batch_interval_ms: how long a batch waits for more messages after its first one, in milliseconds. A
            checkpoint releases sends together, so 0 (do not wait) is the default.
        max_tries: how often the sender tries to send a message that the broker refuses; then the message becomes a dead
            letter. If the broker drops repeats, there is one try: the broker would take a later one for a repeat.
        retry_interval: time before the second try. It doubles with each further try (exponential back-off); jitter
            shortens it by up to half.
        max_retry_interval: the longest time between two tries.
        max_outstanding: how many messages of this sender may wait for a checkpoint or for the broker. At this limit
            receivers and contexts pause. When half of this number waits for a checkpoint, the engine takes one at once.
        persistent: let the broker keep the messages of a BEST_EFFORT sender on disk, as it does for the other modes.
        time_to_live: how long the broker may keep a message that has no time to live of its own; without this setting,
            without limit.
        mapping: from which part of the event each part of the message gets its value (docs/mapping.md). Without it the
            body is the event, as JSON.
        call: a function that the sender calls with each message; it sends what the function returns (docs/calls.md).
        log_performance_breakdown: log regularly what the sender's thread spends its time on (docs/status.md).
        options: options of the connector for this sender.
    """

    id: Identifier
    connection: str
    destination: str | None = None
    reliability: Reliability = Reliability.BEST_EFFORT
    unique_message_id_property: str = "uniqueMessageId"
    message_source_id_property: str = "messageSourceId"
    max_batch_size: Count = 500
    max_batch_interval_ms: CountOrZero = 0
    max_tries: Count = 3
    retry_interval: SomeSeconds = 0.5
    max_retry_interval: SomeSeconds = 30.0
    max_outstanding: Count = 200_000
    persistent: bool = False
    time_to_live: SomeSeconds | None = None
    mapping: Mapping[str, Template] = field(default_factory=dict)
    call: CallSettings | None = None
    log_performance_breakdown: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def called_by(part: ReceiverSettings | SenderSettings) -> str:
    """The function that a sender calls with each message; "" for none, and for a receiver."""
    return part.call.function if isinstance(part, SenderSettings) and part.call is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """A monitor that the engine creates at its start.

    Attributes:
        type: import path `module:Class` of the monitor class. Code may give the class itself; the attribute then holds
            its import path.
        context: name of the context in which the monitor lives; a context is a thread with a queue of events.
        on_error: what happens when one of its handlers raises: the engine stops (`stop`), the event becomes a dead
            letter (`dead_letter`), or the engine skips the event (`skip`).
        options: initial values of the monitor's attributes, given to the class as keyword arguments.
    """

    type: ImportPath
    context: Identifier = "main"
    on_error: OnError = "stop"
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            type: str | builtins.type[Any],  # noqa: A002  # as in the file
            context: str = ...,
            on_error: OnError = ...,
            options: Mapping[str, Any] = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        if isinstance(self.type, builtins.type):
            object.__setattr__(self, "type", f"{self.type.__module__}:{self.type.__qualname__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeSettings:
    """A bridge, which sends the messages of receivers on, without code and without Spark (docs/bridges.md).

    Attributes:
        name: unique among all bridges, pipelines and contexts.
        from_: ids of the receivers whose messages it takes.
        to: ids of the senders; each of them sends every message that the bridge takes.
        selector: send only messages for which this condition over headers and properties is true; the others are
            acknowledged and not sent (docs/receiving.md).
        mapping: from which part of the received message each part of the sent message gets its value (docs/bridges.md).
            Parts without an entry stay as they are.
    """

    name: Identifier
    from_: tuple[str, ...]
    to: tuple[str, ...]
    selector: SelectorText | None = None
    mapping: Mapping[str, Template] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """An HTTP server that shows what the engine does (docs/http.md), with a page for browsers (docs/status-page.md).

    Attributes:
        port: the TCP port; 0 for any free port, which the log names.
        host: the address of this machine at which it listens. Addresses that other machines can reach need a `token`.
        token: what clients send as `Authorization: Bearer TOKEN` to see more than `/ping` and `/ready`, and to change
            anything; at least 32 characters. Without a token every program of this machine sees the figures, and nobody
            changes anything.
    """

    port: Port
    host: str = "127.0.0.1"
    token: Token | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTelemetrySettings:
    """Where an engine sends its spans (docs/opentelemetry.md).

    Attributes:
        endpoint: URL at which a collector takes traces by OTLP over HTTP, such as `http://127.0.0.1:4318/v1/traces`.
    """

    endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettings:
    """The shares of an engine that several processes, its members, run together (docs/several-engines.md).

    Each share is an engine of its own, with a store of its own. `${share}` in a text of the settings stands for its
    number.

    Attributes:
        count: number of shares; they are numbered from 0.
        lease: how long the lease of a member lasts unless the member renews it; then others may run its shares.
        schema: prefix of the names of the PostgreSQL schemas: `SCHEMA_leases`, and `SCHEMA_NUMBER` for each share. By
            default the engine makes it from its name, as in `risk_share`.
    """

    count: ShareCount
    lease: LeaseSeconds = 10.0
    schema: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine: its store, its connections, and its static receivers, senders, monitors and bridges.

    Attributes:
        name: name of the engine. An engine with another name cannot open its store.
        store: URL of the store, `sqlite:///path` or `postgresql://…`. Without it the engine runs without persistence.
        witness_directory: directory on this machine for the witness of a PostgreSQL store, a file that records the last
            checkpoint. A start then refuses a store with an older state (E4311), as of an outdated replica or a
            restored backup. The witness of a SQLite store lies beside it.
        control_directory: directory of the control socket, which only the user of the engine may use; by default a
            directory of this user (docs/control.md).
        checkpoint: when the engine takes checkpoints.
        connections: connections to brokers, by name.
        destinations: logical destinations: for each name the `queue:NAME` or `topic:NAME` that it stands for.
        receivers: the static receivers.
        senders: the static senders.
        monitors: the monitors that the engine creates at its start.
        bridges: the bridges from receivers to senders.
        duplicate_detection: the windows of duplicate detection.
        http: a server that shows what the engine does; by default there is none.
        opentelemetry: where spans of messages go that belong to a sampled trace; by default nowhere.
        max_queued: how many messages of one receiver may wait in the queue of one context before this receiver pauses.
            The batch that a pipeline computes does not count; a batch has at most slightly more messages of one
            receiver.
        connection_retry_interval: time between the first two attempts to connect. It doubles with each further attempt
            (exponential back-off); jitter shortens it by up to half. The back-off starts again after a connection that
            lasted longer than the last interval.
        max_connection_retry_interval: the longest time between two attempts to connect.
        stop_timeout: how long an orderly stop may wait for brokers.
        fail_fast: stop with an error if a broker cannot be reached at the start, instead of trying again.
        status_interval: time between two status lines (`Messaging Status:`) in the log; 0 for none.
        performance_breakdown_interval: time that each line of `log_performance_breakdown` covers.
        dead_letter_sender: id of the sender that sends each dead letter, instead of keeping it in the store
            (docs/dead-letters.md).
        input_log: file that records all inputs of monitors, for `correlator replay`. Each start begins a new file, with
            a number appended to this name.
        handler_warning_after: how long a handler may run before the engine logs a warning (W5501); 0 for no warning.
        discard_state: keyed steps that are no longer configured and whose state the next start deletes. Each entry is
            `PIPELINE/STEP FINGERPRINT`, as the error of the refused start names it (E4331).
        shares: the shares into which several processes divide the work; by default one process does it all.
    """

    name: Identifier
    store: str | None = field(default=None, repr=False)
    witness_directory: str | None = None
    control_directory: str | None = None
    checkpoint: CheckpointSettings = CheckpointSettings()
    connections: Mapping[str, ConnectionSettings] = field(default_factory=dict)
    destinations: Mapping[str, str] = field(default_factory=dict)
    receivers: tuple[ReceiverSettings, ...] = ()
    senders: tuple[SenderSettings, ...] = ()
    monitors: tuple[MonitorSettings, ...] = ()
    bridges: tuple[BridgeSettings, ...] = ()
    duplicate_detection: DuplicateDetectionSettings = DuplicateDetectionSettings()
    http: HttpSettings | None = None
    opentelemetry: OpenTelemetrySettings | None = None
    max_queued: Count = 20_000
    connection_retry_interval: Seconds = 1.0
    max_connection_retry_interval: SomeSeconds = 30.0
    stop_timeout: Seconds = 30.0
    fail_fast: bool = False
    status_interval: Seconds = 5.0
    performance_breakdown_interval: Seconds = 60.0
    handler_warning_after: Seconds = 30.0
    dead_letter_sender: str | None = None
    input_log: str | None = None
    discard_state: tuple[str, ...] = ()
    shares: ShareSettings | None = None
