"""The destinations of a run, and how a broker with them is made."""

from pathlib import Path
from typing import NamedTuple

from connectors.embedded import EmbeddedConnection
from connectors.embedded.access import Access
from connectors.embedded.administrator import EmbeddedAdministration
from correlator.connector import Place
from correlator.settings import ConnectionSettings

PLAIN, ORDERED, IN, OUT = "queue:plain", "queue:ordered", "queue:in", "queue:out"
PREPARED_IN, PREPARED_OUT = "queue:prepared-in", "queue:prepared-out"
DEPOT, ARCHIVE, WASTE, TIMED = "queue:depot", "queue:archive", "queue:waste", "queue:timed"
NEWS = "topic:news"
DEAD = "queue:mq.sys.dmq"
LIMIT = 12
LIMITED = {
    "queue:reject": "REJECT_NEWEST",
    "queue:flow": "FLOW_CONTROL",
    "queue:oldest": "REMOVE_OLDEST",
    "queue:low": "REMOVE_LOW_PRIORITY",
}
EVICTING = {"queue:oldest": "OLDEST", "queue:low": "LOW_PRIORITY"}
MOST_DELIVERIES = 4
"""The property `max_num_deliveries` of the queue `PLAIN`."""
QUEUES = (PLAIN, ORDERED, IN, OUT, PREPARED_IN, PREPARED_OUT, DEPOT, ARCHIVE, WASTE, TIMED, *LIMITED)
CLIENT_ID = "desk"
FLOW_TIMEOUT_MS = 60


class Durable(NamedTuple):
    """A durable subscription of `NEWS`, which exists from the beginning."""

    name: str
    shared: bool
    selector: str | None = None


DURABLES = (
    Durable("shared", shared=True),
    Durable("own", shared=False),
    Durable("even", shared=True, selector="even = TRUE"),
)


def place_of(topic: str, subscription: str) -> str:
    """Return the place that holds the messages of a subscription."""
    return f"{topic}/{subscription}"


def places(destination: str, *, is_even: bool) -> list[str]:
    """Return the places in which a message to a destination certainly arrives."""
    if destination != NEWS:
        return [destination]
    return [place_of(NEWS, one.name) for one in DURABLES if one.selector is None or is_even]


def connection(store: str) -> EmbeddedConnection:
    """Make a connection of the port to a broker."""
    return EmbeddedConnection("run", ConnectionSettings(type="embedded", options={"store": store}))


def make(store: str) -> None:
    """Make the broker with its destinations."""
    broker = connection(store)
    for queue in QUEUES:
        given: dict[str, object] = {}
        if queue in LIMITED:
            given = {"max_num_msgs": LIMIT, "limit_behavior": LIMITED[queue]}
        elif queue == ORDERED:
            given = {"max_num_active_consumers": 1, "max_num_backup_consumers": 3}
        elif queue == PLAIN:
            given = {"max_num_deliveries": MOST_DELIVERIES}
        broker.create(queue, given)
    broker.create(NEWS)
    administration: EmbeddedAdministration = broker.administration()
    for one in DURABLES:
        client_id = "" if one.shared else CLIENT_ID
        administration.subscribe(Place(NEWS, one.name, client_id), shared=one.shared, selector=one.selector)
    Access(store).close()


def template(directory: Path) -> bytes:
    """Return the bytes of a SQLite file with this broker."""
    path = directory / "template.db"
    make(f"sqlite:///{path}")
    return path.read_bytes()
