"""A process that the tests kill: an engine that sends on from one stream to another, EXACTLY_ONCE.

    python stream_worker.py OPTIONS STORE SOURCE TARGET HIT NAMED

It kills itself at the HIT-th time that a batch is confirmed and nothing of that is noted yet; never for 0. Without
NAMED its messages have no source, so that the server cannot recognise repeats.
"""

import json
import os
import signal
import sys
from itertools import count

from connectors.rabbitmq_stream import StreamConnection
from correlator import Engine, Message, Monitor, on
from correlator.core import faults
from correlator.events import Outgoing
from correlator.settings import CheckpointSettings, ConnectionSettings
from tests.connectors.rabbit import forwarding


class Forwards(Monitor, persistent=True):
    """Sends on each message."""

    forwarded: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        self.forwarded += 1
        self.send(message.body, to="out")


class Nameless(StreamConnection):
    """Sends messages without a name, so that the server does not recognise repeats."""

    def sink(self, sender):
        sink = super().sink(sender)
        send = sink.send
        sink.send = lambda batch: send([Outgoing(one.sequence, "", one.destination, one.message) for one in batch])
        return sink


def kill_at(hit):
    confirmed = count(1)

    def handler(point):
        if point == "tx.publish.after" and next(confirmed) == hit:
            os.kill(os.getpid(), signal.SIGKILL)

    faults.install(handler)


def main(options, store, source, target, hit, named):
    kill_at(int(hit))
    connection = (StreamConnection if named == "named" else Nameless)(
        "rabbit", ConnectionSettings(type="rabbitmq_stream", options=json.loads(options))
    )
    settings = forwarding(
        "worker",
        store,
        "tests.connectors.stream_worker:Forwards",
        source,
        target,
        receiver_id=f"from {source}",
        sent=10,
        checkpoint=CheckpointSettings(interval=0.02),
    )
    with Engine(settings, connections={"rabbit": connection}) as engine:
        engine.run_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
