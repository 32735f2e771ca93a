"""The partitions of a Pulsar topic as shares: each partition goes to one share, also when members come and go."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from correlator import Member, Message, Monitor, Reliability, on
from correlator.events import Outgoing
from correlator.settings import (
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
    ShareSettings,
)
from correlator.testing.contract import PATIENCE_S
from tests.connectors.rabbit import opened
from tests.connectors.test_pulsar_priorities import contents, partitioned
from tests.pulsar_server import PulsarServer
from tests.servers import PostgresServer

pytestmark = [pytest.mark.pulsar, pytest.mark.postgres]

PARTITIONS = 4
ORDERS = 40


class Placed(Monitor, persistent=True):
    """Says which share has got a message, and as which of its key."""

    share: str = ""
    counts: dict[str, int] = {}

    @on(Message)
    def placed(self, message: Message) -> None:
        key = message.key or ""
        self.counts[key] = self.counts.get(key, 0) + 1
        self.send(f"{self.share} {key} {self.counts[key]}".encode(), to="out")


def wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.05)


def test_a_share_is_a_partition(pulsar: PulsarServer, postgres_server: PostgresServer) -> None:
    topic, out = partitioned(pulsar, PARTITIONS), pulsar.name()
    exactly_once = Reliability.EXACTLY_ONCE
    settings = EngineSettings(
        name="placed",
        store=postgres_server.fresh_database(),
        shares=ShareSettings(count=PARTITIONS, lease=5.0),
        connections={"pulsar": ConnectionSettings(type="pulsar", options=pulsar.options)},
        receivers=(
            ReceiverSettings(
                id="in",
                connection="pulsar",
                destination=f"topic:{topic}-partition-${{share}}",
                reliability=exactly_once,
            ),
        ),
        senders=(SenderSettings(id="out", connection="pulsar", destination=f"topic:{out}", reliability=exactly_once),),
        monitors=(MonitorSettings(type=Placed, options={"share": "${share}"}),),
        status_interval=0,
    )
    keys = [f"k{number % 10}" for number in range(ORDERS)]
    with opened(pulsar.connection().sink(settings.senders[0])) as sink:

        def publish(first: int) -> None:
            messages = [
                Message(b"x", {"uniqueMessageId": f"{number}:P"}, keys[number]) for number in range(first, first + 20)
            ]
            assert not any(sink.send([Outgoing(0, "", f"topic:{topic}", one) for one in messages]))

        with Member(settings) as first:
            wait(lambda: len(first.engines) == PARTITIONS)
            publish(0)
            with Member(settings) as second:
                wait(lambda: len(first.engines) == len(second.engines) == PARTITIONS // 2)
                publish(20)
                got = [body.decode().split() for _, body in contents(pulsar, out, ORDERS)]
    shares = {key: share for share, key, _ in got}
    assert len(set(shares.values())) > 1
    assert sorted(got) == sorted([shares[key], key, str(count)] for key in shares for count in range(1, 5))
