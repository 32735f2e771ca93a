"""The messages of a batch that are in flight: a waiting thread is woken when it can go on, and by a failure."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pulsar import Result

from connectors.pulsar import flight as flights
from connectors.pulsar.flight import MOST_OUTSTANDING, MOST_OUTSTANDING_BYTES, BatchInFlight

LONG_S = 60.0
SHORT_S = 0.05


@pytest.fixture
def flight():
    return BatchInFlight()


@pytest.fixture
def waiting(flight):
    """Calls a function in another thread; returns when the function waits."""
    has_begun = threading.Event()
    original = flight._moved.wait_for

    def wait_for(*arguments):
        has_begun.set()
        return original(*arguments)

    flight._moved.wait_for = wait_for
    with ThreadPoolExecutor(1) as pool:

        def call(function, *arguments):
            future = pool.submit(function, *arguments)
            assert has_begun.wait(LONG_S)
            with flight._moved:  # it is free as soon as the other thread sleeps
                return future

        yield call


def begin(flight, count, size=1):
    assert all(flight.begin(size, SHORT_S) for _ in range(count))


def settle(flight, count, size=1, result=Result.Ok):
    for place in range(count):
        flight.settle(place, size, result, None)


def test_a_message_waits_until_a_tenth_of_the_room_is_free(flight, waiting, monkeypatch):
    """Nobody wakes the thread before."""
    woken = []
    original = flight._moved.notify
    monkeypatch.setattr(flight._moved, "notify", lambda: (woken.append(True), original()))
    begin(flight, MOST_OUTSTANDING)
    future = waiting(flight.begin, 1, LONG_S)
    settle(flight, MOST_OUTSTANDING // 10 - 1)
    assert not woken
    settle(flight, 1)
    assert future.result(LONG_S / 2)
    assert woken == [True]


def test_a_message_waits_for_the_bytes_of_others(flight, waiting):
    size = MOST_OUTSTANDING_BYTES // 4
    begin(flight, 4, size)
    future = waiting(flight.begin, size, LONG_S)
    settle(flight, 1, size)
    assert not future.done()
    settle(flight, 1, size)
    assert future.result(LONG_S / 2)


def test_a_message_larger_than_all_room_goes_alone(flight, waiting):
    begin(flight, 1)
    future = waiting(flight.begin, 2 * MOST_OUTSTANDING_BYTES, LONG_S)
    assert not future.done()
    settle(flight, 1)
    assert future.result(LONG_S / 2)


def test_the_last_confirm_ends_the_batch(flight, waiting):
    begin(flight, 3)
    future = waiting(flight.finish, LONG_S)
    settle(flight, 2)
    assert not future.done()
    settle(flight, 1)
    assert future.result(LONG_S / 2)


def test_a_failure_ends_it_at_once(flight, waiting):
    begin(flight, 3)
    future = waiting(flight.finish, LONG_S)
    settle(flight, 1, result=Result.ProducerFenced)
    assert future.result(LONG_S / 2) is False
    assert flight.failure == "ProducerFenced"
    assert flight.begin(1, LONG_S) is False


def test_a_message_that_is_too_large_is_no_failure(flight):
    begin(flight, 2)
    settle(flight, 1, result=Result.MessageTooBig)
    settle(flight, 1)
    assert flight.finish(SHORT_S)
    assert (flight.too_large, flight.failure) == ({0}, "")


def test_silence_ends_it(flight):
    begin(flight, 2)
    settle(flight, 1)
    assert flight.finish(SHORT_S) is False
    assert flight.failure == ""


def test_the_time_counts_from_the_last_confirm(flight, monkeypatch):
    """The wait goes on as long as a message is settled within each time-out."""
    begin(flight, 3)
    original = flight._moved.wait_for

    def settled_meanwhile(reached, timeout_s):
        flight._moved.release()
        settle(flight, 1)
        flight._moved.acquire()
        return original(reached, 0)

    monkeypatch.setattr(flight._moved, "wait_for", settled_meanwhile)
    assert flight.finish(SHORT_S)


def test_there_is_never_more_than_the_bounds(flight):
    """Two threads of the client settle messages while one thread sends."""
    most = 0
    left = threading.Semaphore(0)

    def client():
        for _ in range(MOST_OUTSTANDING * 2):
            assert left.acquire(timeout=LONG_S)
            flight.settle(0, 1, Result.Ok, None)

    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(client) for _ in range(2)]
        for _ in range(MOST_OUTSTANDING * 4):
            assert flight.begin(1, LONG_S)
            most = max(most, flight._outstanding)
            left.release()
        assert flight.finish(LONG_S)
        assert [one.result(LONG_S) for one in clients] == [None, None]
    assert 0 < most <= flights.MOST_OUTSTANDING
