"""The options of a connection: the servers, time-outs, and settings for the client library librdkafka."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka as kafka

from connectors.kafka.log import LOG
from connectors.kafka.oauth import check_token, without_token
from connectors.kafka.registry import PASSWORD, URL, USER, Registry, registry
from connectors.kafka.tls import (
    IDENTITY,
    LOGIN,
    PROTOCOL,
    SETTINGS,
    check_identity,
    is_encrypted,
    logs_in,
    with_protocol,
)
from correlator.errors import ConfigError, quoted
from correlator.options import check_options, text_option, whole_option

OPTIONS = ("bootstrap_servers", "client", "timeout_s", URL, USER, PASSWORD)
_SESSION, _POLL = "session.timeout.ms", "max.poll.interval.ms"
_SESSION_MS, _POLL_MS = 10_000, 300_000
_TRANSACTION_MS = 60_000
_REFRESH, _REFRESH_MS = "topic.metadata.refresh.interval.ms", 30_000
_LARGEST_MESSAGE = 1_000_000_000
_OURS = frozenset(
    {
        "acks",
        "allow.auto.create.topics",
        "auto.offset.reset",
        "batch.size",
        "bootstrap.servers",
        "delivery.report.only.error",
        "delivery.timeout.ms",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "isolation.level",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.max.bytes",
        "message.send.max.retries",
        "message.timeout.ms",
        "metadata.broker.list",
        "partition.assignment.strategy",
        "plugin.library.paths",
        "request.required.acks",
        "retries",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
"""Settings on which the guarantees depend; an option of the connection, receiver or sender replaces some of them."""
_UNVERIFIED = frozenset({"enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm"})
"""Settings that switch off the check of the certificate of a broker, or of the name in it."""
_WHOLE = frozenset({_SESSION, _POLL, _REFRESH})
"""Settings whose values the connector itself reads."""
_CALLBACKS = "_cb"
"""Ending of the names of functions, which the Python module of the library takes in place of settings."""
_OF_MODULE = frozenset({"default.topic.config", "logger", "on_delivery"})
"""Further names that the Python module takes, and that are no settings of the library."""
_FILES = ".location"
"""Ending of the names of settings with a file, which may exist on the machine of the engine only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaBroker:
    """The servers of a cluster, and the options for its clients.

    Attributes:
        servers: `HOST:PORT`; several are separated by commas.
        timeout_s: the longest wait for an answer, or for the next confirm of a batch.
        client: further settings for librdkafka; they may contain passwords. They turn TLS on for brokers on other
            machines, unless the options say otherwise.
        registry: the schema registry; `None` if there is none.
    """

    servers: str
    timeout_s: int = 10
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    registry: Registry | None = None

    @property
    def session_s(self) -> float:
        """Seconds without a sign of life after which the cluster removes a consumer from its group."""
        return int(self.client.get(_SESSION, _SESSION_MS)) / 1000

    @property
    def holds_s(self) -> float:
        """Seconds without a call of `receive` after which a consumer leaves its group."""
        return int(self.client.get(_POLL, _POLL_MS)) / 1000

    @property
    def discovers_s(self) -> float:
        """Seconds after which a consumer looks for new topics and partitions again."""
        refresh_ms = int(self.client.get(_REFRESH, _REFRESH_MS))
        return (refresh_ms if refresh_ms > 0 else _REFRESH_MS) / 1000

    @property
    def transaction_ms(self) -> int:
        """Milliseconds after which the cluster ends an open transaction of a producer."""
        return max(_TRANSACTION_MS, self.timeout_s * 1000)

    def common(self) -> dict[str, Any]:
        """Return the settings for any client."""
        return {
            "client.id": "correlator",
            "socket.timeout.ms": self.timeout_s * 1000,
            **self.client,
            "bootstrap.servers": self.servers,
        }

    def of_producer(self, transactional_id: str, batch_bytes: int) -> dict[str, Any]:
        """Return the settings for a producer that keeps the order and stores a message once, even if it retries by
        itself.

        Args:
            transactional_id: names its transactions; "" for a producer without transactions.
            batch_bytes: the most bytes that it sends to a partition at once.
        """
        settings = {
            "partitioner": "murmur2_random",  # as in Java, so that a key has the same partition for all programs
            **self.common(),
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": self.timeout_s * 1000,
            "delivery.report.only.error": True,
            "message.max.bytes": _LARGEST_MESSAGE,  # the sink itself checks the limit of each topic
            "batch.size": batch_bytes,
        }
        if transactional_id:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": self.transaction_ms}
        return settings

    def of_consumer(self, group: str) -> dict[str, Any]:
        """Return the settings for a consumer that skips aborted messages, and commits and sets its
        position only when told.
        """
        return {
            _SESSION: _SESSION_MS,
            _POLL: _POLL_MS,
            _REFRESH: _REFRESH_MS,
            **self.common(),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "partition.assignment.strategy": "cooperative-sticky",
        }


def broker(where: str, options: Mapping[str, Any]) -> KafkaBroker:
    """Make a broker from the options of a connection. Raises `ConfigError` if one is wrong; connects to nothing."""
    check_options(where, options, OPTIONS)
    timeout_s = whole_option(where, options, "timeout_s", 10, 300)
    servers = text_option(where, options, "bootstrap_servers")
    if "@" in servers:
        todo = "Set sasl.username and sasl.password in client"
        raise ConfigError("E1022", f"{where}.bootstrap_servers", "holds an '@'", "HOST:PORT, several with commas", todo)
    made = KafkaBroker(
        servers=servers,
        timeout_s=timeout_s,
        client=_client(f"{where}.client", options.get("client", {}), servers),
        registry=registry(where, options, timeout_s),
    )
    # Without servers, librdkafka checks the settings and connects to nothing.
    left_out = {name for name in made.client if name.endswith(_FILES)}
    if left_out & IDENTITY:  # the library compares a certificate with its key, and one of them is in a file
        left_out |= IDENTITY
    checked = {name: value for name, value in without_token(made.client).items() if name not in left_out}
    without = KafkaBroker(servers="", timeout_s=made.timeout_s, client=checked)
    _check(where, lambda: kafka.Producer(without.of_producer("check", _LARGEST_MESSAGE), logger=LOG))
    _check(where, lambda: kafka.Consumer(without.of_consumer("check"), logger=LOG))
    return made


def _client(where: str, given: object, servers: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError("E1022", where, "is not a mapping", "As in {security.protocol: SSL}")
    for name, value in given.items():
        _check_setting(f"{where}.{name}", name, value)
    client = with_protocol(given, servers)
    for name in client:
        if name.startswith(SETTINGS) and not is_encrypted(client):
            what, todo = "is of no use without TLS", f"Set {PROTOCOL}: SSL, or SASL_SSL for a user with a password"
            raise ConfigError("E1022", f"{where}.{name}", what, "", todo)
        if name.startswith(LOGIN) and not logs_in(client):
            what = f"is of no use with {PROTOCOL}: {client[PROTOCOL]}, since the client would not log in"
            raise ConfigError("E1022", f"{where}.{name}", what, "", f"Set {PROTOCOL}: SASL_SSL, or leave it out")
    check_identity(where, client)
    check_token(where, client)
    return dict(client)


def _check_setting(where: str, name: object, value: object) -> None:
    """Raise `ConfigError` E1022 for a setting that the library cannot take, or that a guarantee forbids."""
    if name in _OURS:
        what = "is set by the connector, because the guarantees depend on it"
        raise ConfigError("E1022", where, what, "", "Leave it out")
    if name in _UNVERIFIED:
        what, todo = "would let anybody pass for a broker", "Leave it out, and set ssl.ca.location"
        raise ConfigError("E1022", where, what, "", todo)
    if not isinstance(name, str) or not isinstance(value, str | int | float):
        raise ConfigError("E1022", where, "is not a text, a number, true or false")
    if name.endswith(_CALLBACKS) or name in _OF_MODULE:
        raise ConfigError("E1022", where, "is not a setting of librdkafka", "", "Leave it out")
    if name in _WHOLE and not str(value).removeprefix("-").isdecimal():
        raise ConfigError("E1022", where, f"{quoted(value)} is not a whole number")


def _check(where: str, make: Callable[[], object]) -> None:
    try:
        make()
    except kafka.KafkaException as error:
        reason = error.args[0].str().strip()
        raise ConfigError("E1022", f"{where}.client", f"librdkafka refuses the settings: {reason}") from None
