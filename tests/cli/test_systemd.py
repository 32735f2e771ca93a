"""What systemd hears: states at both kinds of addresses, and signs of life while the store writers answer."""

import os
import socket

import pytest
from structlog.testing import capture_logs

from correlator.cli import systemd
from correlator.cli.systemd import Heart, notify


@pytest.fixture(params=["path", "abstract"])
def address(request, tmp_path):
    return str(tmp_path / "notify") if request.param == "path" else f"@correlator-{os.getpid()}"


@pytest.fixture
def heard(address, monkeypatch):
    """Returns the lines since the last call."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    listening.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
    monkeypatch.setenv("NOTIFY_SOCKET", address)

    def lines():
        found = []
        try:
            while True:
                found += listening.recv(4096).decode().split("\n")
        except BlockingIOError:
            return found

    yield lines
    listening.close()


class Answers:
    """A store writer that answers, or not."""

    def __init__(self):
        self.steps = 0
        self.hangs = False

    def wake(self):
        self.steps += not self.hangs


@pytest.fixture
def now(monkeypatch):
    """The time, which tests set."""
    times = [100.0]
    monkeypatch.setattr(systemd.time, "monotonic", lambda: times[0])
    return times


def test_states_arrive(heard):
    notify("READY=1", "STATUS=ready")
    assert heard() == ["READY=1", "STATUS=ready"]


def test_a_sign_of_life_needs_the_answer_of_every_writer(heard, now, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    first, second = Answers(), Answers()
    writers = [first]
    heart = Heart(lambda: writers, lambda: "ready")

    def beat():
        heart.beat()
        now[0] += 1.0
        return heard()

    alive, dead = ["WATCHDOG=1", "STATUS=ready"], ["STATUS=ready"]
    assert [beat(), beat()] == [alive, alive]
    writers.append(second)
    assert [beat(), beat()] == [alive, alive]
    second.hangs = True
    assert [beat(), beat(), beat()] == [alive, dead, dead]  # the first of them still answers to the last wake-up
    second.hangs = False
    assert [beat(), beat()] == [dead, alive]
    writers.clear()  # an engine without a store
    assert beat() == alive


def test_it_speaks_once_in_an_interval(heard, now, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    heart = Heart(list, lambda: "ready")
    for _ in range(10):
        heart.beat()
        now[0] += 0.25
    assert len(heard()) == 2 * 3
    monkeypatch.setenv("WATCHDOG_PID", "1")  # the watchdog waits for another process
    heart = Heart(list, lambda: "ready")
    now[0] += 100
    heart.beat()
    now[0] += 4.9
    heart.beat()
    assert heard() == ["WATCHDOG=1", "STATUS=ready"]


@pytest.mark.parametrize("value", ["", "x", "-5", "²", "1.5"])
def test_a_watchdog_time_that_nobody_can_read_is_none(monkeypatch, value):
    monkeypatch.setenv("WATCHDOG_USEC", value)
    assert systemd._watchdog_s() == float("inf")


def test_without_systemd_nobody_is_asked(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    Heart(lambda: pytest.fail("asked"), lambda: pytest.fail("asked")).beat()


@pytest.mark.parametrize("path", ["relative", "vsock:2:1234", ""])
def test_an_address_of_another_kind_is_left_alone(monkeypatch, path):
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    with capture_logs() as logs:
        notify("READY=1")
    assert logs == []


def test_a_systemd_that_does_not_listen_is_told_in_the_log(monkeypatch, tmp_path):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    with capture_logs() as logs:
        notify("READY=1")
    assert [(entry["log_level"], entry["event"]) for entry in logs] == [("warning", "systemd cannot be told")]
