"""A program with a session that the tests kill.

    python -m tests.connectors.session_worker TYPE OPTIONS QUEUE MODE FLOW_LIMIT

OPTIONS are JSON. For each number that it reads it receives so many messages, and prints their bodies.
"""

# ruff: noqa: T201 - what it prints is how it speaks to the test

import json
import sys

from connectors.embedded import EmbeddedConnection
from connectors.messaging import AcknowledgeMode, ConnectionFactory
from connectors.pulsar import PulsarConnection
from connectors.rabbitmq import RabbitConnection

PATIENCE_S = 60.0
TYPES = {"embedded": EmbeddedConnection, "rabbit": RabbitConnection, "pulsar": PulsarConnection}


def main(kind, options, queue, mode, flow_limit):
    factory = ConnectionFactory(TYPES[kind], json.loads(options))
    session = factory.create_connection().create_session(AcknowledgeMode(mode))
    consumer = session.create_consumer(queue, flow_limit=int(flow_limit))
    for line in sys.stdin:
        print(*(consumer.receive(PATIENCE_S).body.decode() for _ in range(int(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
