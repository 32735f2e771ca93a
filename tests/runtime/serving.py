"""An engine with an HTTP server, over a broker in memory, and a client."""

import http.client
import json
import socket
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families

from correlator import Engine
from correlator.settings import ConnectionSettings, EngineSettings, HttpSettings
from correlator.testing.memory import MemoryBroker
from tests.runtime.world import monitor
from tests.waiting import answer_to

TOKEN = "t" * 32
PATIENCE_S = 60


def samples_of(text):
    """The values by the names of samples and the values of their labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Client:
    """Asks the server of an engine."""

    def __init__(self, address):
        self.host, self.port = address

    def ask(self, path, method="GET", *, body=None, **headers):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        try:
            connection.request(
                method, path, body, headers={name.replace("_", "-"): value for name, value in headers.items()}
            )
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers
        finally:
            connection.close()

    def json(self, path, **headers):
        return json.loads(self.ask(path, **headers)[1])

    def samples(self):
        _, text, _ = self.ask("/metrics")
        return samples_of(text)

    def raw(self, sent: bytes) -> bytes:
        """What comes back until the server closes."""
        with socket.create_connection((self.host, self.port), timeout=PATIENCE_S) as connection:
            return answer_to(sent, connection)


@contextmanager
def served(*parts, monitors=(), token=None, brokers=None, **options):
    """An engine, its broker `memory`, and a client; with `brokers`, these by the names of their connections."""
    brokers = brokers or {"memory": MemoryBroker()}
    settings = EngineSettings(
        name="shop",
        connections={name: ConnectionSettings(type="memory") for name in brokers},
        receivers=tuple(part for part in parts if hasattr(part, "unique_message_id")),
        senders=tuple(part for part in parts if not hasattr(part, "unique_message_id")),
        monitors=tuple(map(monitor, monitors)),
        http=HttpSettings(port=0, token=token),
        connection_retry_interval=0.05,
        max_connection_retry_interval=0.1,
        status_interval=0.0,
        **options,
    )
    connections = {name: broker.connection(name) for name, broker in brokers.items()}
    with Engine(settings, connections=connections) as engine:
        yield engine, brokers["memory"], Client(engine.http_address)
