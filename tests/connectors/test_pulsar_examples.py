"""The example pipelines between Pulsar and RabbitMQ run as they stand, against real servers that are killed meanwhile.

What goes round: a shop sends orders and payments to Pulsar; a bridge makes shipments of them, in RabbitMQ; a warehouse
sends a parcel for each shipment; a second bridge tells the shop of it, in Pulsar. RabbitMQ stores what is repeated, so
shipments are counted behind the warehouse's EXACTLY_ONCE receiver. Pulsar stores it once: what comes back is counted as
it lies there.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from correlator import Engine, Message, Monitor, Reliability, on
from correlator.errors import ConnectionLost
from correlator.events import Outgoing
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from tests.cli.commands import COMMAND, environment
from tests.connectors.rabbit import opened
from tests.pulsar_server import PulsarServer
from tests.rabbit_server import RabbitServer
from tests.servers import PostgresServer, running

pytestmark = pytest.mark.spark

CONFIG = Path(__file__).parents[2] / "config"
THERE, BACK = CONFIG / "pulsar-to-rabbitmq.yaml", CONFIG / "rabbitmq-to-pulsar.yaml"
PATIENCE_S = 600.0
"""Two sessions of Spark take minutes to start on a machine that is busy with other things."""
BATCH = 10
LATE = 5
"""So many batches of the shop wait for their other halves."""
AHEAD = 80
"""The shop is at most so many orders before the warehouse, so that there is always something under way."""
UNDISTURBED = 20
"""So many shipments come through before each fault."""


class Trade:
    """Counts due orders, and how often each order was shipped; no order is shipped while a thread holds `changed`."""

    def __init__(self) -> None:
        self.shipped = Counter()
        self._due = 0
        self.changed = threading.Condition()

    def pay(self, numbers) -> None:
        """Note that these orders and all earlier ones are sent with their payments."""
        with self.changed:
            self._due = len(paid(range(numbers.stop)))
            self.changed.notify_all()

    def ship(self, number) -> None:
        """Note that the warehouse has handled a shipment."""
        with self.changed:
            self.shipped[number] += 1
            self.changed.notify_all()

    @property
    def under_way(self) -> int:
        """The number of due shipments that the warehouse has not handled."""
        return self._due - len(self.shipped)

    def wait(self, shipped, under_way=0) -> None:
        """Wait until at least `shipped` different orders are shipped, and at least `under_way` more are due."""
        with self.changed:
            enough = self.changed.wait_for(
                lambda: len(self.shipped) >= shipped and self.under_way >= under_way, PATIENCE_S
            )
            assert enough, f"{len(self.shipped)} of {shipped} shipped, {self.under_way} of {under_way} under way"


TRADE = Trade()
"""The warehouse's engine never crashes, so this need not be state."""


class Warehouse(Monitor, persistent=True):
    """Packs a parcel for each shipment."""

    parcels: int = 0

    @on(Message)
    def shipment(self, shipment: Message) -> None:
        self.parcels += 1
        order = json.loads(shipment.body)["order"]
        TRADE.ship(int(order))
        parcel = {"order": order, "weight_kg": 2.5, "left_at": "2026-05-05T08:00:00Z"}
        self.send(Message(json.dumps(parcel).encode(), {"parcel": f"P{order}"}), to="parcels")


@pytest.fixture
def warehouse(rabbit: RabbitServer, tmp_path) -> Iterator[Engine]:
    """An engine that receives shipments and sends parcels."""
    mode = Reliability.EXACTLY_ONCE
    settings = EngineSettings(
        name="warehouse",
        store=f"sqlite:///{tmp_path}/warehouse.db",
        receivers=(
            ReceiverSettings(id="shipments", connection="rabbit", destination="queue:shipments", reliability=mode),
        ),
        senders=(SenderSettings(id="parcels", connection="rabbit", destination="queue:parcels", reliability=mode),),
        monitors=(MonitorSettings(type=f"{__name__}:Warehouse"),),
    )
    delete_queues(rabbit)
    with Engine(settings, connections={"rabbit": rabbit.connection(queue_type="quorum")}) as engine:
        yield engine
    delete_queues(rabbit)


def delete_queues(rabbit: RabbitServer) -> None:
    with rabbit.channel() as channel:
        for queue in ("shipments", "parcels"):
            channel.queue_delete(queue)


def is_paid(number):
    """Whether the payment of an order is large enough."""
    return number % 10 != 0


def paid(numbers):
    return [number for number in numbers if is_paid(number)]


def orders_of(numbers):
    """The messages of orders; the last comes twice, as from a shop that does not know whether it has arrived."""
    said = {"amount": 7.55, "at": "2026-05-04T10:00:00Z"}
    return [
        Message(json.dumps({"order": f"{n}", "customer": f"c{n % 7}", **said}).encode(), {"order": f"{n}"})
        for n in (*numbers, numbers[-1])
    ]


def payments_of(numbers):
    """The messages of payments; the last comes twice, as from a bank that does not know whether it has arrived."""
    return [
        Message(
            json.dumps({"order": f"{n}", "amount": 7.55 if is_paid(n) else 7.5, "at": "2026-05-04T10:02:00Z"}).encode(),
            {"payment": f"B{n}"},
        )
        for n in (*numbers, numbers[-1])
    ]


class Till:
    """Sends to one queue, and repeats until the messages are confirmed; Pulsar stores the repeats once."""

    def __init__(self, sink, destination) -> None:
        self._sink = sink
        self._destination = destination
        self._numbers = itertools.count(1)

    def send(self, messages):
        batch = [
            Outgoing(number, "shop", self._destination, one)
            for one, number in zip(messages, self._numbers, strict=False)
        ]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                refused = any(self._sink.send(batch))
            except ConnectionLost:
                assert time.monotonic() < deadline
            else:
                assert not refused
                return
            with contextlib.suppress(ConnectionLost):
                self._sink.connect()


class Half(NamedTuple):
    """The orders or the payments of a batch."""

    numbers: range
    till: Till
    messages: list[Message]

    def send(self):
        self.till.send(self.messages)


class Shop(threading.Thread):
    """Sends orders and payments, one half of each batch long before the other, until it is told to close.

    Then `count` orders are sent, and a payment for each.
    """

    def __init__(self, connection) -> None:
        super().__init__(name="shop")
        self.count = 0
        self._connection = connection
        self._closing = threading.Event()

    def run(self) -> None:
        """Send until `close`."""
        with self._till("orders") as orders, self._till("payments") as payments:
            waiting = deque()
            while waiting or not self._closing.is_set():
                if not self._closing.is_set():
                    waiting.append(self._begin(orders, payments))
                if self._closing.is_set() or len(waiting) > LATE:
                    half = waiting.popleft()
                    half.send()
                    TRADE.pay(half.numbers)
                    TRADE.wait(len(paid(range(half.numbers.stop - AHEAD))))

    def close(self) -> None:
        """Send the missing halves, and end."""
        self._closing.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()

    def _begin(self, orders, payments) -> Half:
        """Send one half of the next batch; return the other half."""
        numbers = range(self.count, self.count + BATCH)
        halves = [Half(numbers, orders, orders_of(numbers)), Half(numbers, payments, payments_of(numbers))]
        early, late = halves if numbers.start % (2 * BATCH) else reversed(halves)
        early.send()
        self.count = numbers.stop
        return late

    @contextlib.contextmanager
    def _till(self, queue):
        sender = SenderSettings(id=queue, connection="pulsar", destination=f"queue:{queue}")
        with opened(self._connection.sink(sender)) as sink:
            yield Till(sink, f"queue:{queue}")


class Bridge:
    """The command that runs a file, in a process session of its own, so that its JVM can be killed with it."""

    def __init__(self, file, directory, variables) -> None:
        self._file = file
        self._log = directory / f"{file.stem}.log"
        self._directory = directory
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [COMMAND, "run", str(self._file)],
                cwd=self._directory,
                env=environment(self._variables),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait(PATIENCE_S)
            self._process = None

    def stop(self) -> None:
        """Stop the command in order; it sends everything that it has, also if all its processes get the signal."""
        os.killpg(self.pid, signal.SIGTERM)
        status = self._process.wait(PATIENCE_S)
        self._process = None
        assert status == 128 + signal.SIGTERM, self._log.read_text()


class Process(NamedTuple):
    """One of the processes of a command."""

    parent: int
    command: str
    has_client: bool


def processes_of(session: int) -> dict[int, Process]:
    """All processes of a session, and whether the client of Pulsar is in their memory."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            _, parent, _, its_session = (directory / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session:
                command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                has_client = "/_pulsar." in (directory / "maps").read_text()
                found[int(directory.name)] = Process(int(parent), command, has_client)
    return found


def check_only_the_engine_has_a_client(bridge: Bridge) -> None:
    """Spark's Python workers are forked, but from a process that Java starts anew: no client is forked with them."""
    processes = processes_of(bridge.pid)
    assert [pid for pid, process in processes.items() if process.has_client] == [bridge.pid]
    workers = {
        pid: process for pid, process in processes.items() if " -m correlator.pipeline.daemon " in process.command
    }
    (forks,) = (pid for pid, process in workers.items() if process.parent not in workers)
    assert "java" in processes[workers[forks].parent].command.split()[0]
    assert len(workers) > 1


def orders_in(source, least):
    """The orders of all messages, repeats included, until there are `least` and no further message comes."""
    orders = []
    deadline = time.monotonic() + PATIENCE_S
    while True:
        chunk = source.receive(1000, 1.0)
        orders += [int(json.loads(message.body)["order"]) for message in chunk.messages]
        source.acknowledge(chunk.tokens)
        if not chunk.messages and len(orders) >= least:
            return sorted(orders)
        assert time.monotonic() < deadline, f"{len(orders)} of {least}"


@pytest.mark.kill9
@pytest.mark.pulsar
@pytest.mark.rabbitmq
@pytest.mark.postgres
def test_everything_is_killed_in_the_middle_of_traffic(
    pulsar: PulsarServer, rabbit: RabbitServer, warehouse: Engine, tmp_path
):
    namespace = pulsar.namespace(deduplication=True)
    connection = pulsar.connection(namespace=namespace, deduplication=True)
    variables = {
        "PULSAR_URL": pulsar.url,
        "PULSAR_NAMESPACE": namespace,
        "RABBITMQ_PORT": str(rabbit.port),
        "RABBITMQ_USER": rabbit.user,
        "RABBITMQ_PASSWORD": rabbit.password,
    }
    shop = Shop(connection)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(running(PostgresServer()))
        there, back = (
            Bridge(file, tmp_path, {**variables, "CORRELATOR_STORE": database.fresh_database()})
            for file in (THERE, BACK)
        )
        for bridge in (there, back):
            stack.callback(bridge.kill)
            bridge.start()
        shop.start()
        stack.callback(shop.close)

        in_the_middle()
        check_only_the_engine_has_a_client(there)
        for one in (there, pulsar, rabbit, database):
            with TRADE.changed:
                in_the_middle()
                one.kill()
            one.start()
        in_the_middle()
        shop.close()

        numbers = range(shop.count)
        with (
            opened(connection.source(receiver("dispatched"))) as told,
            opened(connection.source(receiver("underpaid"))) as short,
        ):
            assert orders_in(told, len(paid(numbers))) == paid(numbers)
            assert orders_in(short, len(numbers) - len(paid(numbers))) == [n for n in numbers if not is_paid(n)]
            there.stop()
            back.stop()
            assert orders_in(told, 0) == orders_in(short, 0) == []
        assert TRADE.shipped == dict.fromkeys(paid(numbers), 1)


def in_the_middle() -> None:
    """Wait until some more orders have come through while others are under way."""
    TRADE.wait(len(TRADE.shipped) + UNDISTURBED, under_way=BATCH)


def receiver(queue):
    return ReceiverSettings(id="shop", connection="pulsar", destination=f"queue:{queue}")
