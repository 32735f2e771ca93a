"""Typed settings with their defaults: the one place where a default stands. Read once, passed down, never changed.

Durations are seconds as `float` and sizes bytes as `int` here; the configuration file writes them with units.
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
FewThreads = Annotated[int, msgspec.Meta(ge=0, le=64)]
CountOrZero = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]
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
    """When checkpoints are taken.

    Attributes:
        interval: time from the end of one checkpoint to the beginning of the next; a checkpoint with nothing to
            write is not taken.
    """

    interval: SomeSeconds = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """A broker.

    Attributes:
        type: the connector: an entry point of `correlator.connectors`.
        default_receiver_reliability: of the receivers in the file that name none.
        default_sender_reliability: of the senders in the file that name none, and of the default sender, which a
            connection without senders has under the id `CONNECTION-default-sender`.
        options: what only this connector knows; in the file these keys stand beside `type`.
    """

    type: str
    default_receiver_reliability: Reliability = Reliability.BEST_EFFORT
    default_sender_reliability: Reliability = Reliability.BEST_EFFORT
    options: RemainingKeys = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateDetectionSettings:
    """The windows of the duplicate detector (docs/guarantees.md): 0 disables either, both at 0 are refused."""

    per_source_window_size: CountOrZero = 2000
    expiry_time: Seconds = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    """What takes from a destination.

    Attributes:
        id: unique among all receivers and senders, static and dynamic, for the life of the store.
        connection: name of a connection.
        destination: `queue:NAME`, `topic:NAME` or a logical name of `destinations`.
        reliability: what the receiver promises (docs/guarantees.md).
        event: import path `module:Class` of the event type that bodies become; not needed for a pipeline.
        unique_message_id: template of the id for duplicate detection; the property `uniqueMessageId` by default.
        message_source_id: template of the source; the property `messageSourceId` by default.
        dup_detection_domain_id: the duplicate detection domain; `connection:destination` for queues and
            `connection:id` for topics by default.
        max_batch_size: messages in one batch: also the most that are received and not acknowledged.
        max_batch_bytes: bytes of bodies that close a batch.
        max_batch_interval_ms: how long a batch waits for more after its first message.
        max_message_bytes: a larger message becomes a dead letter (E5001).
        on_mapping_error: what happens with a message that cannot be mapped: it becomes a dead letter, it stops the
            engine, or it is logged and dropped.
        mapping: for each field of `event` where its value is (docs/mapping.md); without it the body is the event.
        unhandled: what happens with a message that no monitor listens for: it becomes a dead letter, or it is counted
            and warned of, or nothing.
        flow_control: deliver only as far as the application allows by `update_flow_control_window`.
        no_local: drop what this engine's own senders sent.
        selector: take only messages for which this condition on headers and properties is true (docs/receiving.md).
        durable_topic_subscription_name: what the broker keeps a topic's messages under while the engine is down; the
            receiver's id by default.
        max_extra_mapping_threads: threads that map while the receiver's own thread goes on receiving.
        log_performance_breakdown: log what the receiver's thread spends its time on (docs/status.md).
        options: what only this connector knows.
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
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def subscription(self) -> str:
        """The name under which its place is kept where each reader gets every message: of a topic, stream or file."""
        return self.durable_topic_subscription_name or self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderSettings:
    """What sends to a destination.

    Attributes:
        id: unique among all receivers and senders, static and dynamic, for the life of the store.
        connection: name of a connection.
        destination: where messages go that name no other; without one, each message names its own.
        reliability: what the sender promises; `APP_CONTROLLED` is refused.
        unique_message_id_property: property that carries `seqNo:messageSourceId`.
        message_source_id_property: property that carries the source.
        max_batch_size: most messages handed to the broker before their confirms are awaited.
        max_batch_interval_ms: how long a batch waits for more after its first message; a checkpoint releases
            sends together, so 0 (do not wait) is the default.
        max_tries: tries of a message that the broker refuses, before it becomes a dead letter. A broker that stores a
            repeat once gets one: there a number that comes after higher ones counts as a repeat.
        retry_interval: time before the second try; it doubles with each further one, less a random part of up to half.
        max_retry_interval: the longest time between two tries.
        max_outstanding: messages that wait for a checkpoint or for the broker; beyond it receivers and contexts pause,
            and a checkpoint is taken at once where half of them wait for one.
        persistent: have the broker keep what a BEST_EFFORT sender sends on disk, as it keeps that of the others.
        time_to_live: how long the broker may keep a message that says nothing itself; without it, for ever.
        mapping: for each part of a message where an event has it (docs/mapping.md); without it the event is the body.
        log_performance_breakdown: log what the sender's thread spends its time on (docs/status.md).
        options: what only this connector knows.
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
    log_performance_breakdown: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """A monitor class that the engine creates at start.

    Attributes:
        type: import path `module:Class`, or the class itself, which then has its import path here.
        context: the context (one thread) that it lives in.
        on_error: what an exception in one of its handlers does.
        options: keyword arguments of the class: initial values of its attributes.
    """

    type: ImportPath
    context: Identifier = "main"
    on_error: OnError = "stop"
    options: Mapping[str, Any] = field(default_factory=dict)

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
class EngineSettings:
    """One engine: its store, its connections, and the static parts.

    Attributes:
        name: identity of the instance; its store opens under no other name.
        store: `sqlite:///path` or `postgresql://…`; `None` runs without persistence.
        witness_directory: where this machine notes the last checkpoint of a PostgreSQL store, so that a start refuses
            one that went back (E4311): an older replica, a backup. SQLite needs none.
        max_queued: events that may wait in the queue of one context before receiving pauses.
        connection_retry_interval: time between the first two attempts to connect; it doubles with each further
            one, less a random part of up to half, and begins anew after a connection that held longer than that.
        max_connection_retry_interval: the longest time between two attempts to connect.
        stop_timeout: how long an orderly stop may wait for brokers.
        fail_fast: stop with an error instead of waiting when a broker cannot be reached at start.
        status_interval: time between two lines `Messaging Status:` of the log; 0 for none.
        performance_breakdown_interval: time that a line of `log_performance_breakdown` tells about.
        input_log: file that records what monitors take in, for `correlator replay`; each start begins a new one, with
            a number behind the name.
        handler_warning_after: how long a handler may run before the log says so (W5501); 0 for any time.
        discard_state: state of keyed steps that are not configured any more, which the next start deletes: each
            `PIPELINE/STEP FINGERPRINT`, as the refused start tells it (E4331).
    """

    name: Identifier
    store: str | None = None
    witness_directory: str | None = None
    checkpoint: CheckpointSettings = CheckpointSettings()
    connections: Mapping[str, ConnectionSettings] = field(default_factory=dict)
    destinations: Mapping[str, str] = field(default_factory=dict)
    receivers: tuple[ReceiverSettings, ...] = ()
    senders: tuple[SenderSettings, ...] = ()
    monitors: tuple[MonitorSettings, ...] = ()
    duplicate_detection: DuplicateDetectionSettings = DuplicateDetectionSettings()
    max_queued: Count = 20_000
    connection_retry_interval: Seconds = 1.0
    max_connection_retry_interval: SomeSeconds = 30.0
    stop_timeout: Seconds = 30.0
    fail_fast: bool = False
    status_interval: Seconds = 5.0
    performance_breakdown_interval: Seconds = 60.0
    handler_warning_after: Seconds = 30.0
    input_log: str | None = None
    discard_state: tuple[str, ...] = ()
