"""What tests of the RabbitMQ connector are written with."""

import contextlib
import time

import pytest

from correlator.errors import ConnectionLost
from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import PATIENCE_S, bodies


def receiver(queue, **options):
    return ReceiverSettings(id="r", connection="rabbit", destination=f"queue:{queue}", options=options)


def sender(queue, **options):
    destination = None if queue is None else f"queue:{queue}"
    return SenderSettings(id="s", connection="rabbit", destination=destination, options=options)


def outgoing(queue, *contents):
    return [
        Outgoing(number, "life", f"queue:{queue}", content if isinstance(content, Message) else Message(content))
        for number, content in enumerate(contents, 1)
    ]


@contextlib.contextmanager
def opened(end):
    try:
        end.connect()
        yield end
    finally:
        end.close()


def lost(call) -> ConnectionLost:
    """What the call raises."""
    with pytest.raises(ConnectionLost) as raised:
        call()
    return raised.value


def lost_by(source) -> ConnectionLost:
    """What ends receiving."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            source.receive(1, 0.2)
        except ConnectionLost as error:
            return error
    raise AssertionError("nothing ends")


def drained(source, different):
    """All bodies, repeats too, until so many different ones have come and nothing more does."""
    received = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        chunk = source.receive(1000, 0.2)
        if not chunk.messages and len(set(received)) >= different:
            break
        received += bodies([chunk])
        source.acknowledge([chunk.token] if chunk.messages else [])
    return received


def codes(results):
    return [result and result.code for result in results]
