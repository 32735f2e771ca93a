"""Spark Structured Streaming: a query with `foreachBatch`, with a state in SQLite.

Spark has no source for RabbitMQ. Orders come from its file source, which it can read again: each file holds some orders. Results go
to a queue of RabbitMQ with confirms, and RabbitMQ is the broker that is killed.

Settings, as the documentation advises: a checkpoint directory
(https://spark.apache.org/docs/latest/streaming/apis-on-dataframes-and-datasets.html#recovering-from-failures-with-checkpointing).

The documentation promises that `foreachBatch` gets each batch at least once, and the same batch again after a failure. For each order
to be counted once, the function must recognise a batch that comes again (same page, "ForeachBatch"); with `remembers` this one
recognises its orders. One transaction counts the orders of a batch.
"""

import json
from pathlib import Path

import pika
from pyspark.sql import DataFrame, SparkSession

from tests.peers.job import Job

JOB = Job.here()


def count(batch: DataFrame, _number: int) -> None:
    """Count the orders of one batch, and send their results on."""
    counts = JOB.counts()
    orders = sorted((row.order, row.customer) for row in batch.collect())
    with counts.transaction():
        results = [
            {"order": order, "customer": customer, "count": counts.add_within(order, customer)}
            for order, customer in orders
        ]
    with pika.BlockingConnection(pika.URLParameters(JOB.broker)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
        for result in results:
            channel.basic_publish("", JOB.target, json.dumps(result), persistent, mandatory=True)


def main() -> None:
    """Run the query until the process ends."""
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    orders = session.readStream.schema("order LONG, customer STRING").json(JOB.source)
    checkpoint = str(Path(JOB.directory) / "checkpoint")
    orders.writeStream.option("checkpointLocation", checkpoint).foreachBatch(count).start().awaitTermination()


if __name__ == "__main__":
    main()
