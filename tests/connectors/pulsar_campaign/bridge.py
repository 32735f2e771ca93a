"""The process that is killed: an engine that counts orders and sends them on from the queue `in` to the queue `out`.

    python -m tests.connectors.pulsar_campaign.bridge OPTIONS STORE MODE

It prints a line when it has begun, ends when its standard input does, and then prints what its parts have counted. The
engine is made here and nowhere else: Pulsar's client does not survive a fork.
"""

import json
import select
import sys
from dataclasses import asdict
from typing import Any

import structlog

from connectors.pulsar import PulsarConnection
from correlator import Engine, Message, Monitor, Reliability, StateTable, on
from correlator.settings import (
    CheckpointSettings,
    ConnectionSettings,
    DuplicateDetectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)
from tests.connectors.campaign.board import LOOK_S, name_of
from tests.connectors.campaign.publisher import RETRY_S

NAME = "bridge"
SOURCE, TARGET = "in", "out"
LARGEST_BATCH = 50
LARGEST_SENT = 300
"""So many that a kill often finds a batch of which some are stored."""


class Bridges(Monitor, persistent=True):
    """Counts each order in its state and sends it on."""

    counts: StateTable[str, int]

    @on(Message)
    def order(self, order: Message) -> None:
        """Count one order, and send it on."""
        name = name_of(order.body)
        self.counts[name] = self.counts.get(name, 0) + 1
        self.send(order.body, to="sender")


def settings(store: str, reliability: Reliability) -> EngineSettings:
    """The settings of the engine; `reliability` is the mode of its receiver."""
    return EngineSettings(
        name=NAME,
        store=store,
        checkpoint=CheckpointSettings(interval=0.02),
        receivers=(
            ReceiverSettings(
                id="receiver",
                connection="pulsar",
                destination=f"queue:{SOURCE}",
                reliability=reliability,
                max_batch_size=LARGEST_BATCH,
                max_batch_interval_ms=5,
            ),
        ),
        senders=(
            SenderSettings(
                id="sender",
                connection="pulsar",
                destination=f"queue:{TARGET}",
                reliability=Reliability.EXACTLY_ONCE,
                max_batch_size=LARGEST_SENT,
            ),
        ),
        duplicate_detection=DuplicateDetectionSettings(per_source_window_size=1, expiry_time=0.0),  # none to speak of
        monitors=(MonitorSettings(type="tests.connectors.pulsar_campaign.bridge:Bridges"),),
        connection_retry_interval=RETRY_S,
        max_connection_retry_interval=RETRY_S,
        status_interval=0.0,
    )


def main(options: str, store: str, reliability: str) -> None:
    """Run the engine until standard input ends."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    connection = PulsarConnection("pulsar", ConnectionSettings(type="pulsar", options=json.loads(options)))
    engine = Engine(settings(store, Reliability(reliability)), connections={"pulsar": connection})
    with engine:
        _tell({})
        while not select.select([sys.stdin], [], [], LOOK_S)[0]:
            engine.raise_failure()
    receivers = {name: asdict(receiver.counters) for name, receiver in engine.receivers.items()}
    _tell(receivers | {name: asdict(sender.counters) for name, sender in engine.senders.items()})


def _tell(counters: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(counters) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
