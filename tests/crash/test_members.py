"""Members as processes that are killed and frozen; the long form is `python -m tests.crash.members`."""

import os
import random
from collections.abc import Iterator
from datetime import datetime

import pytest

from correlator.storage.database import reading
from correlator.storage.leases import Table
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


def looks_past_the_leases(fleet: Fleet, of: int, dead: int) -> set[datetime]:
    """The last look of a member, if it came after the end of leases that a dead member still has."""
    past = (
        "SELECT alive.until FROM member AS alive JOIN share ON alive.until - %(lease)s * interval '1 s' > share.until"
        " JOIN member AS dead ON dead.id = share.owner WHERE alive.host LIKE %(alive)s AND dead.host LIKE %(dead)s"
    )
    with reading(fleet.shares.url) as connection:
        given = {"lease": LEASE_S, "alive": f"pid {of} %", "dead": f"pid {dead} %"}
        return set(connection.exec_driver_sql(past, given).scalars())


def test_a_standby_takes_over_when_it_first_looks_after_the_lease(fleet: Fleet, orders: Orders):
    """Once more at most, since a look and the taking are two transactions. When it looks, `core/test_shares` tests."""
    first = fleet.start()
    fleet.joined(first)
    fleet.wait(lambda _: all_held_by(fleet, first.pid), "the first member runs everything")
    orders.publish(30)
    second = fleet.start()
    fleet.joined(second)
    fleet.wait(lambda _: len(fleet.held(second.pid)) == 2, "the second member has its part")
    dead, past = first.pid, set[datetime]()
    fleet.kill(first)
    orders.publish(30)

    def has_everything(_table: Table) -> bool:
        past.update(looks_past_the_leases(fleet, second.pid, dead))
        return all_held_by(fleet, second.pid)

    fleet.wait(has_everything, "the second member has everything")
    assert len(past) <= 2
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
