"""Finds for `correlator doctor` what in a cluster would stop receivers and senders, or lose messages."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing

from connectors.kafka.broker import KafkaBroker
from connectors.kafka.cluster import Cluster, Topic
from connectors.kafka.destinations import topic_of_sender, topics_of_receiver
from connectors.kafka.tail import first_after
from correlator.connector import NO_SUCH_DESTINATION
from correlator.errors import ConfigError, ConnectionLost, CorrelatorError, quoted
from correlator.reliability import SENDING
from correlator.settings import ReceiverSettings, SenderSettings

_WEEK_MIN = 10_080
"""`offsets.retention.minutes` of a new cluster."""
_LONGEST_TRANSACTION_MS = 900_000
"""`transaction.max.timeout.ms` of a new cluster, if the user may not see it."""


def examine(
    where: str, broker: KafkaBroker, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
) -> Iterator[CorrelatorError]:
    """Yield findings: topics that are missing, and settings of the cluster. Changes nothing.

    Args:
        where: the connection, for errors.
        broker: the cluster.
        receivers: those of the connection.
        senders: those of the connection.
    """
    try:
        with closing(Cluster(where, broker)) as cluster:
            settings = cluster.settings()
    except ConnectionLost as error:
        yield error
        return
    if settings is None:
        what = "the user may not see the settings of the brokers, so they were not examined"
        yield ConfigError("W7140", where, what, "", "Grant DESCRIBE_CONFIGS for the cluster")
        settings = {}
    yield from _of_cluster(where, broker, settings, receivers, senders)
    longest_ms = int(settings.get("transaction.max.timeout.ms", _LONGEST_TRANSACTION_MS))
    for receiver in receivers:
        yield from _of_receiver(broker, receiver, longest_ms)
    for sender in senders:
        yield from _of_sender(broker, sender)


def _of_cluster(
    where: str,
    broker: KafkaBroker,
    settings: Mapping[str, str],
    receivers: Iterable[ReceiverSettings],
    senders: Iterable[SenderSettings],
) -> Iterator[CorrelatorError]:
    kept_min = int(settings.get("offsets.retention.minutes", _WEEK_MIN))
    forgets = [f"receivers.{one.id}" for one in receivers if one.options.get("start") != "committed"]
    forgets += [f"senders.{one.id}" for one in senders if one.reliability == "EXACTLY_ONCE"]
    if kept_min < _WEEK_MIN and forgets:
        what = f"the brokers forget after offsets.retention.minutes = {kept_min} the offsets of {', '.join(forgets)} "
        what += "if the engine is down or idle for that long"
        yield ConfigError("W7141", where, what, "", "Raise it, and let receivers have 'start: committed'")
    sessions = tuple(int(settings.get(f"group.{end}.session.timeout.ms", -1)) for end in ("min", "max"))
    session_ms = int(broker.session_s * 1000)
    if receivers and -1 not in sessions and not sessions[0] <= session_ms <= sessions[1]:
        what = f"session.timeout.ms is {session_ms}, which the brokers refuse"
        allowed = f"From {sessions[0]} to {sessions[1]}, as group.min.session.timeout.ms and group.max… say"
        yield ConfigError("E7142", where, what, allowed)
    longest_ms = int(settings.get("transaction.max.timeout.ms", broker.transaction_ms))
    if longest_ms < broker.transaction_ms and any(one.reliability == "EXACTLY_ONCE" for one in senders):
        what = f"the transactions of senders may last {broker.transaction_ms} ms, which the brokers refuse"
        allowed = f"At most {longest_ms} ms, as transaction.max.timeout.ms says"
        yield ConfigError("E7143", where, what, allowed, "Raise it, or lower timeout_s")
    if settings.get("auto.create.topics.enable") == "true":
        what = "the brokers make a topic for each name that a program mistypes (auto.create.topics.enable)"
        yield ConfigError("W7144", where, what, "", "Set it to false, and make topics with the partitions they need")


def _of_receiver(broker: KafkaBroker, receiver: ReceiverSettings, longest_ms: int) -> Iterator[CorrelatorError]:
    where, wanted = f"receivers.{receiver.id}", topics_of_receiver(receiver)
    try:
        with closing(Cluster(where, broker)) as cluster:
            names = [wanted.text] if wanted.pattern is None else wanted.among(cluster.names())
            if not names:
                yield ConnectionLost(NO_SUCH_DESTINATION, where, f"no topic matches {quoted(wanted.text)}")
                return
            for topic in cluster.topics(names).values():
                yield from _held_back(where, broker, cluster, topic, longest_ms)
    except ConnectionLost as error:
        yield error


def _held_back(
    where: str, broker: KafkaBroker, cluster: Cluster, topic: Topic, longest_ms: int
) -> Iterator[CorrelatorError]:
    for place in cluster.held_back(topic):
        record = first_after(where, broker, place)
        age_ms = 0 if record is None else time.time_ns() // 1_000_000 - record.timestamp()[1]
        if age_ms > longest_ms:
            what = f"a transaction that nobody ends holds back partition {place.partition} of '{topic.name}' at offset "
            what += f"{place.offset}, whose message is {age_ms // 1000} s old"
            todo = f"kafka-transactions.sh find-hanging, then abort --topic {topic.name} --partition {place.partition}"
            yield ConfigError("W7145", where, what, "", todo)


def _of_sender(broker: KafkaBroker, sender: SenderSettings) -> Iterator[CorrelatorError]:
    where, name = f"senders.{sender.id}", topic_of_sender(sender)
    if name is None:
        return
    try:
        with closing(Cluster(where, broker)) as cluster:
            topic, needed = cluster.topic(name), cluster.rules([name])[name].in_sync
    except ConnectionLost as error:
        yield error
        return
    if needed > topic.replicas:
        what = f"the topic '{name}' needs {needed} replicas in sync (min.insync.replicas), and has {topic.replicas}"
        yield ConfigError("E7146", where, what, "", "Add replicas: until then it takes no message")
    elif needed == 1 and SENDING[sender.reliability].stored:
        what = f"the topic '{name}' confirms messages that only one broker has (min.insync.replicas = 1)"
        yield ConfigError("W7147", where, what, "", "Use 3 replicas, and min.insync.replicas = 2")
