"""Turns errors of librdkafka and of the cluster into errors of the port."""

from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka as kafka

from connectors.kafka.broker import KafkaBroker
from connectors.kafka.oauth import NO_LOGIN
from connectors.kafka.tls import REFUSED, SETTINGS, is_encrypted, refusal
from correlator.connector import NO_SUCH_DESTINATION, TAKES_NOTHING
from correlator.errors import ConnectionLost

TLS = "E7016"
LEFT = "E7019"
FENCED = "E7061"
GONE = "E7062"
NO_POSITION = "E7063"
SMALLER_LIMIT = "E7064"
_ERROR = kafka.KafkaError
_CODES = {
    _ERROR._AUTHENTICATION: "E7002",  # noqa: SLF001  # a public name of the library in spite of the underscore
    _ERROR.SASL_AUTHENTICATION_FAILED: "E7002",
    _ERROR.UNSUPPORTED_SASL_MECHANISM: "E7002",
    _ERROR.TOPIC_AUTHORIZATION_FAILED: "E7007",
    _ERROR.GROUP_AUTHORIZATION_FAILED: "E7007",
    _ERROR.CLUSTER_AUTHORIZATION_FAILED: "E7007",
    _ERROR.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "E7007",
    _ERROR._SSL: TLS,  # noqa: SLF001
    _ERROR._TRANSPORT: "E7001",  # noqa: SLF001
    _ERROR._RESOLVE: "E7001",  # noqa: SLF001
    _ERROR._ALL_BROKERS_DOWN: "E7001",  # noqa: SLF001
    _ERROR._MAX_POLL_EXCEEDED: LEFT,  # noqa: SLF001
    _ERROR._TIMED_OUT: "E7023",  # noqa: SLF001
    _ERROR._TIMED_OUT_QUEUE: "E7023",  # noqa: SLF001
    _ERROR._MSG_TIMED_OUT: "E7023",  # noqa: SLF001
    _ERROR.REQUEST_TIMED_OUT: "E7023",
    _ERROR.UNKNOWN_TOPIC_OR_PART: NO_SUCH_DESTINATION,
    _ERROR.UNKNOWN_TOPIC_ID: NO_SUCH_DESTINATION,
    _ERROR._UNKNOWN_TOPIC: NO_SUCH_DESTINATION,  # noqa: SLF001
    _ERROR._UNKNOWN_PARTITION: NO_SUCH_DESTINATION,  # noqa: SLF001
    _ERROR.NOT_ENOUGH_REPLICAS: TAKES_NOTHING,
    _ERROR.NOT_ENOUGH_REPLICAS_AFTER_APPEND: TAKES_NOTHING,
    _ERROR.KAFKA_STORAGE_ERROR: TAKES_NOTHING,
    _ERROR.MSG_SIZE_TOO_LARGE: SMALLER_LIMIT,
    _ERROR._FENCED: FENCED,  # noqa: SLF001
    _ERROR.PRODUCER_FENCED: FENCED,
    _ERROR.INVALID_PRODUCER_EPOCH: FENCED,
}
_EXPLAIN_SILENCE = ("E7001", "E7002", TLS)
"""Codes of errors that may be the cause if no answer comes."""
_SERIOUS = frozenset(
    {
        _ERROR._ALL_BROKERS_DOWN,  # noqa: SLF001
        _ERROR._AUTHENTICATION,  # noqa: SLF001
        _ERROR._SSL,  # noqa: SLF001
    }
)
_SHAKING_HANDS = "SSL_HANDSHAKE"
"""In the text of an error: the client was about to agree on TLS with a broker."""
_TODO = {
    "E7002": "Check the settings below 'client'",
    "E7007": "Grant the right to the user: the page about Kafka lists all of them",
    NO_SUCH_DESTINATION: "Create the topic; the engine waits for it",
    SMALLER_LIMIT: "Let the user describe the configuration of the topic, so that the sender knows its limit",
}
_WHAT = {
    LEFT: "the receiver has taken nothing for longer than max.poll.interval.ms, and so has left its group",
    FENCED: "another producer has taken over the transactions of this source",
    SMALLER_LIMIT: "the topic takes smaller messages than the sender knows",
}


class TransactionExpired(ConnectionLost):
    """A transaction lasted longer than the cluster lets it, which has ended it without effect.

    The cluster answers as if another producer had taken over. A new producer can send the batch again.
    """


class Complaints:
    """Remembers what a client of librdkafka reports by itself: its `error_cb`.

    Attributes:
        cause: the last error that is not only a consequence of others.
        serious: the error after which the client can no longer be used; `None` while it can.
    """

    def __init__(self) -> None:
        self.cause: kafka.KafkaError | None = None
        self.serious: kafka.KafkaError | None = None

    def __call__(self, error: kafka.KafkaError) -> None:
        """Take an error that the client reports."""
        if error.code() != _ERROR._ALL_BROKERS_DOWN:  # noqa: SLF001
            self.cause = error
        if error.fatal() or (error.code() in _SERIOUS and not error.str().startswith(NO_LOGIN)):
            self.serious = error


def lost(
    where: str, error: kafka.KafkaError, broker: KafkaBroker, complaints: Complaints | None = None
) -> ConnectionLost:
    """Return the error of the port for an error of the library; if no answer came, the client's own reports decide."""
    code = _code_of(error)
    cause = None if complaints is None else complaints.cause
    todo = ""
    if code in ("E7001", "E7023"):
        if cause is not None and _code_of(cause) in _EXPLAIN_SILENCE:
            error, code = cause, _code_of(cause)
        elif cause is None and not is_encrypted(broker.client):  # a broker with TLS just ends such a connection
            todo = "If the brokers use TLS, set security.protocol below 'client'"
    reason = " ".join(error.str().split())
    what = f"{_WHAT[code]} ({reason})" if code in _WHAT else reason
    if code in ("E7001", "E7023"):
        what = f"no answer from {broker.servers}: {reason}"
    elif code == TLS:
        what, todo = refusal(reason, broker.client, broker.timeout_s)
    return ConnectionLost(code, where, what, "", _TODO.get(code, todo))


def _code_of(error: kafka.KafkaError) -> str:
    code, told = _CODES.get(error.code(), "E7025"), error.str()
    is_of_files = error.code() == _ERROR._INVALID_ARG and SETTINGS in told  # noqa: SLF001
    is_of_handshake = code == "E7001" and (_SHAKING_HANDS in told or REFUSED in told)
    return TLS if is_of_files or is_of_handshake else code


def timed_out(what: str) -> kafka.KafkaException:
    """Make the error for a wait that the connector itself has given up."""
    return kafka.KafkaException(kafka.KafkaError(_ERROR._TIMED_OUT, what))  # noqa: SLF001


@contextmanager
def translated(where: str, broker: KafkaBroker, complaints: Complaints | None = None) -> Iterator[None]:
    """Within the block, turn errors of the library into `ConnectionLost`."""
    try:
        yield
    except kafka.KafkaException as error:
        raise lost(where, error.args[0], broker, complaints) from error
    except kafka.KafkaError as error:  # type: ignore[misc]  # a fatal error comes bare, and is no `BaseException`
        raise lost(where, error, broker, complaints) from None
