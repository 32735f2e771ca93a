"""Messages with a delivery delay (rule S4.4)."""

import time

import pytest

from correlator.events import Message, Outgoing
from correlator.settings import ReceiverSettings, SenderSettings
from correlator.testing.contract import bodies, take
from tests.connectors.rabbit import opened
from tests.pulsar_server import PulsarServer

pytestmark = pytest.mark.pulsar

DELAY_S = 3.0


def test_s4_4_a_shared_subscription_keeps_to_the_delay_and_an_exclusive_one_does_not(pulsar: PulsarServer):
    """Given both, when a delayed message is sent, then the exclusive one has it while the shared one waits."""
    connection, topic = pulsar.connection(), pulsar.name()
    made = [
        connection.source(ReceiverSettings(id=kind, connection="pulsar", destination=f"{kind}:{topic}"))
        for kind in ("queue", "topic")
    ]
    settings = SenderSettings(
        id="s", connection="pulsar", destination=f"queue:{topic}", options={"delivery_delay": f"{DELAY_S:g}s"}
    )
    with opened(made[0]) as shared, opened(made[1]) as exclusive, opened(connection.sink(settings)) as sink:
        begun = time.monotonic()
        assert sink.send([Outgoing(1, "", f"queue:{topic}", Message(b"later"))]) == [None]
        assert bodies(take(exclusive, 1)) == [b"later"]
        at_once = time.monotonic() - begun
        assert bodies(take(shared, 1)) == [b"later"]
        late = time.monotonic() - begun
    assert at_once < late
    assert late >= DELAY_S
