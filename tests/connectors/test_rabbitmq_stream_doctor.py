"""`correlator doctor` for streams, against a real server."""

import pytest

from correlator.settings import ReceiverSettings, SenderSettings
from tests.rabbit_server import RabbitServer
from tests.servers import free_port

pytestmark = pytest.mark.rabbitmq


def receiver(stream: str, **options: object) -> ReceiverSettings:
    return ReceiverSettings(id="in", connection="c", destination=f"queue:{stream}", options=options)


def sender(stream: str | None, **options: object) -> SenderSettings:
    place = None if stream is None else f"queue:{stream}"
    return SenderSettings(id="out", connection="c", destination=place, options=options)


def test_streams_that_nobody_makes(rabbit: RabbitServer) -> None:
    missing, made = rabbit.queue(), rabbit.queue()
    connection = rabbit.stream_connection()
    assert connection.examine([receiver(missing)], [sender(missing), sender(None)]) == []
    findings = connection.examine([receiver(missing, declare=False)], [sender(missing, declare=False)])
    assert [(one.code, one.where) for one in findings] == [("E7010", "receivers.in"), ("E7010", "senders.out")]
    assert f"there is no stream '{missing}', and 'declare' is false" in str(findings[0])
    source = connection.source(receiver(made))
    source.connect()
    source.close()
    assert connection.examine([receiver(made, declare=False)], [sender(made, declare=False)]) == []


@pytest.mark.parametrize(
    ("options", "code"), [({"port": 0}, "E7001"), ({"password": "wrong", "user": "nobody"}, "E7002")]
)
def test_a_server_that_lets_nobody_in(rabbit: RabbitServer, options, code) -> None:
    if "port" in options:
        options = {"port": free_port()}
    (finding,) = rabbit.stream_connection(**options).examine([], [sender("any")])
    assert finding.code == code
