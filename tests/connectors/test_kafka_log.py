"""What librdkafka logs reaches the log, once for each kind of line in a while."""

import logging
from types import SimpleNamespace

import confluent_kafka as confluent
import pytest

from connectors.kafka.log import LOG, LineLimit
from tests.kafka_server import KafkaServer
from tests.servers import free_port
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was logged before."""
    monkeypatch.setattr(LOG, "filters", [LineLimit()])


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOG.name]


def test_a_kind_of_line_comes_once_in_ten_minutes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("connectors.kafka.log.time", SimpleNamespace(monotonic=lambda: now_s))

    def say(kind: str, level: int = logging.WARNING) -> None:
        LOG.log(level, "%s [%s] %s", kind, "c", "text")

    for _ in range(5):
        say("FAIL", logging.ERROR)
    say("MAXPOLL")
    for kind in ("CONFWARN", "TXNERR", "FATAL"):
        say(kind, logging.CRITICAL)
    now_s += 599.0
    say("FAIL")
    assert lines(caplog) == ["librdkafka: FAIL [c] text", "librdkafka: MAXPOLL [c] text"]
    now_s += 1.0
    say("FAIL")
    say("MAXPOLL")
    said = ["librdkafka: FAIL [c] text (5 similar lines were left out)", "librdkafka: MAXPOLL [c] text"]
    assert lines(caplog)[2:] == said


def test_who_lowers_the_level_sees_all_lines_below_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, LOG.name):
        for _ in range(3):
            LOG.debug("%s [%s] %s", "RECV", "c", "text")
    assert lines(caplog) == ["RECV [c] text"] * 3


def test_a_broker_that_is_not_there_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    broker = KafkaServer.connection_to(f"127.0.0.1:{free_port()}", client={"session.timeout.ms": 6000})._broker
    errors: list[confluent.KafkaError] = []
    consumer = confluent.Consumer(broker.of_consumer("g") | {"error_cb": errors.append}, logger=LOG)
    wait_until(lambda: consumer.poll(0.1) or len(errors) > 5)
    consumer.close()
    (line,) = lines(caplog)
    assert line.startswith("librdkafka: FAIL [correlator#consumer-")
    assert "Connection refused" in line
