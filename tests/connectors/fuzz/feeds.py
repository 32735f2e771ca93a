"""The feeds of hostile messages, by the name of the connector on the command line."""

from typing import Any

from tests.connectors.fuzz.local import CsvFeed, EmbeddedFeed, FileFeed
from tests.connectors.fuzz.pulsar import PulsarFeed
from tests.connectors.fuzz.rabbitmq import RabbitFeed
from tests.connectors.fuzz.streams import StreamFeed

FEEDS: dict[str, Any] = {
    "rabbitmq": RabbitFeed,
    "rabbitmq_stream": StreamFeed,
    "pulsar": PulsarFeed,
    "embedded": EmbeddedFeed,
    "file": FileFeed,
    "csv": CsvFeed,
}
