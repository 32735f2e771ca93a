"""Bytewax: a dataflow with recovery, from one topic of Kafka to another.

Bytewax has no connector for RabbitMQ; it has one for Kafka, which recovery can rewind. So both queues are topics of
Kafka with one partition, and the broker that is killed is Kafka.

Settings, as the documentation advises:

- a recovery directory, here with a snapshot each second (https://bytewax.io/docs/concepts/recovery);
- a sink whose producer is idempotent and waits for all replicas
  (https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md, to which the connector's own page refers).

Its documentation says that this source can support exactly-once processing, and this sink at-least-once: "Messages from
the resume epoch will be duplicated right after resume" (docstrings of `KafkaSource` and `KafkaSink`).
"""

import json
from typing import Any

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource, KafkaSourceMessage
from bytewax.dataflow import Dataflow

from tests.peers.job import Job


def by_customer(message: KafkaSourceMessage[Any, bytes]) -> tuple[str, int]:
    """The key and the number of an order."""
    order = json.loads(message.value)
    return order["customer"], order["order"]


def count(counted: int | None, order: int) -> tuple[int, tuple[int, int]]:
    """The next state of a customer, and a result."""
    number = (counted or 0) + 1
    return number, (order, number)


def message_of(result: tuple[str, tuple[int, int]]) -> KafkaSinkMessage[None, bytes]:
    """A result as it is sent."""
    customer, (order, number) = result
    return KafkaSinkMessage(None, json.dumps({"order": order, "customer": customer, "count": number}).encode())


def flow() -> Dataflow:
    """Build the dataflow of the job."""
    job = Job.here()
    dataflow = Dataflow("peer")
    orders = op.map("by_customer", op.input("orders", dataflow, KafkaSource([job.broker], [job.source])), by_customer)
    counted = op.stateful_map("count", orders, count)
    sink = KafkaSink([job.broker], job.target, add_config={"enable.idempotence": "true", "acks": "all"})
    op.output("results", op.map("message", counted, message_of), sink)
    return dataflow
