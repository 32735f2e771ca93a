"""correlator: an engine that receives and sends EXACTLY_ONCE, with the state of its monitor in SQLite.

Settings: both modes, as docs/guarantees.md asks; the number of an order is its unique id; all else by default.

It promises that no order is lost, and that each is counted once. It promises about results: a result that it sends again has
the same id and the same bytes. RabbitMQ stores both.
"""

from pathlib import Path
from urllib.parse import urlsplit

from correlator import Engine, Monitor, Reliability, StateTable, event, on
from correlator.settings import ConnectionSettings, EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from tests.connectors.campaign.verdict import counts_in
from tests.peers.job import Job

NAME = "peer"


@event
class Order:
    """An order."""

    order: int
    customer: str


@event
class Result:
    """An order with its count."""

    order: int
    customer: str
    count: int


class Counts(Monitor, persistent=True):
    """Counts orders for each customer."""

    numbers: StateTable[str, int]

    @on(Order)
    def order(self, order: Order) -> None:
        """Count one order, and send its result on."""
        number = self.numbers.get(order.customer, 0) + 1
        self.numbers[order.customer] = number
        self.send(Result(order=order.order, customer=order.customer, count=number), to="results")


def settings(job: Job) -> EngineSettings:
    """The settings of the engine."""
    place = urlsplit(job.broker)
    return EngineSettings(
        name=NAME,
        store=f"sqlite:///{job.directory}/engine.db",
        connections={
            "rabbit": ConnectionSettings(
                type="rabbitmq",
                options={
                    "host": place.hostname,
                    "port": place.port,
                    "user": place.username,
                    "password": place.password,
                },
            )
        },
        receivers=(
            ReceiverSettings(
                id="orders",
                connection="rabbit",
                destination=f"queue:{job.source}",
                reliability=Reliability.EXACTLY_ONCE,
                event="tests.peers.correlator_engine:Order",
                unique_message_id="${body.order}",
                message_source_id="shop",
            ),
        ),
        senders=(
            SenderSettings(
                id="results",
                connection="rabbit",
                destination=f"queue:{job.target}",
                reliability=Reliability.EXACTLY_ONCE,
            ),
        ),
        monitors=(MonitorSettings(type="tests.peers.correlator_engine:Counts"),),
    )


def counts_of(directory: Path) -> dict[str, int]:
    """What the state holds when the engine has ended."""
    return counts_in(f"sqlite:///{directory}/engine.db", NAME)


if __name__ == "__main__":
    with Engine(settings(Job.here())) as engine:
        engine.run_forever()
