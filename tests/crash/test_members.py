"""Members as processes that are killed and frozen; the long form is `python -m tests.crash.members`."""

import os
import random
import time
from collections.abc import Iterator

import pytest

from tests.crash.member_child import Job
from tests.crash.members import Fleet, MemberFigures, Orders, campaign
from tests.servers import PostgresServer, suspend

pytestmark = [pytest.mark.postgres, pytest.mark.kill9]

LEASE_S = 2.0


@pytest.fixture
def fleet(postgres_server: PostgresServer) -> Iterator[Fleet]:
    job = Job(store=postgres_server.fresh_database(), broker=postgres_server.fresh_database(), shares=4, lease=LEASE_S)
    made = Fleet(job)
    yield made
    made.close()


@pytest.fixture
def orders(fleet: Fleet) -> Iterator[Orders]:
    made = Orders(fleet.job, random.Random(1))
    yield made
    made.close()


def all_held_by(fleet: Fleet, *pids: int) -> bool:
    table = fleet.table()
    return all(
        one.state == "held" and one.member.startswith(tuple(f"pid {pid} " for pid in pids)) for one in table.shares
    )


def test_a_standby_takes_over_within_the_lease_and_two_seconds(fleet: Fleet, orders: Orders):
    first = fleet.start()
    fleet.joined(first)
    fleet.wait(lambda _: all_held_by(fleet, first.pid), "the first member runs everything")
    orders.publish(30)
    second = fleet.start()
    fleet.joined(second)
    fleet.wait(lambda _: len(fleet.held(second.pid)) == 2, "the second member has its part")
    killed = time.monotonic()
    fleet.kill(first)
    orders.publish(30)
    fleet.wait(lambda _: all_held_by(fleet, second.pid), "the second member has everything")
    assert time.monotonic() - killed < LEASE_S + 2
    while not orders.all_left():
        fleet.wait(lambda _: True, "")
    fleet.stop()
    orders.check()


def test_a_member_that_was_frozen_beyond_its_lease_is_fenced_and_joins_again(fleet: Fleet, orders: Orders):
    first = fleet.start()
    fleet.joined(first)
    orders.publish(30)
    fleet.wait(lambda _: all_held_by(fleet, first.pid), "the first member runs everything")
    suspend(first.pid)
    try:
        second = fleet.start()
        fleet.joined(second)
        fleet.wait(lambda _: all_held_by(fleet, second.pid), "the second member has everything")
        orders.publish(30)
    finally:
        os.kill(first.pid, 18)
    fleet.wait(lambda _: len(fleet.held(first.pid)) == len(fleet.held(second.pid)) == 2, "both have their part")
    while not orders.all_left():
        fleet.wait(lambda _: True, "")
    fleet.stop()
    orders.check()


@pytest.mark.campaign
def test_members_that_are_killed_lose_and_double_nothing(postgres_server: PostgresServer):
    figures: MemberFigures = campaign(postgres_server, kills=6, seed=1, lease=1.0, shares=4)
    assert figures.violations == []
    assert figures.struck == 6
    assert figures.orders > 50
