"""How much memory a receiver of a topic with a large backlog takes, beside that of a process that has only made it.

A process of its own takes one message, lets the client library fetch ahead for a while, and then takes the whole backlog,
batch by batch. The growth of its largest resident set is printed at the end of each step.

    python -m tests.benchmarks.kafka.bench_memory [--megabytes 1000] [--body 10000] [--batch-megabytes 16]
"""

import argparse
import multiprocessing
import resource
import time

from connectors.kafka import KafkaConnection
from correlator.runtime.reporter import resident_bytes
from correlator.settings import ConnectionSettings, ReceiverSettings
from tests.kafka_server import KafkaServer
from tests.servers import running

AHEAD_S = 3.0
_AT_ONCE = 10_000_000


def grown_mb(since_kb: int) -> float:
    """By how much the largest resident set of this process so far is larger, in MB."""
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - since_kb) / 1024


def take(servers: str, topic: str, count: int, batch_bytes: int) -> None:
    """Take the backlog; runs in a process of its own."""
    settings = ConnectionSettings(type="kafka", options={"bootstrap_servers": servers})
    connection = KafkaConnection("kafka", settings)
    receiver = ReceiverSettings(id="r", connection="kafka", destination=f"topic:{topic}", max_batch_bytes=batch_bytes)
    source = connection.source(receiver)
    before_kb = resident_bytes() // 1024
    source.connect()
    chunk = source.receive(1, 10.0)
    time.sleep(AHEAD_S)
    print(f"one message taken: {grown_mb(before_kb):.0f} MB")
    taken = 0
    while taken < count:
        taken += len(chunk.messages)
        source.acknowledge(chunk.tokens)
        chunk = source.receive(1000, 1.0)
    print(f"all taken: {grown_mb(before_kb):.0f} MB")
    source.close()


def main() -> None:
    """Fill a topic, and let a process take it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--body", type=int, default=10_000)
    parser.add_argument("--batch-megabytes", type=int, default=16)
    options = parser.parse_args()
    with running(KafkaServer()) as server:
        topic = server.topic()
        at_once = max(1, _AT_ONCE // options.body)
        count = options.megabytes * 1_000_000 // options.body // at_once * at_once
        for _ in range(0, count, at_once):
            server.publish(topic, *[{"value": bytes(options.body)}] * at_once)
        arguments = server.servers, topic, count, options.batch_megabytes * 1024 * 1024
        process = multiprocessing.get_context("spawn").Process(target=take, args=arguments)
        process.start()
        process.join()


if __name__ == "__main__":
    main()
