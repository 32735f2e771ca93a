"""Engines whose store is PostgreSQL, killed with -9: what test_killed.py and test_registry.py show over SQLite.

The store of the embedded broker stays a file, so that the two can be told apart.
"""

import pytest

from tests.runtime.flows import Forwards
from tests.runtime.test_killed import COUNT, a_flow, numbers_and_bodies
from tests.runtime.test_registry import two
from tests.runtime.world import Queues, World, message, numbered, receiver, sender
from tests.servers import database_of

pytestmark = [pytest.mark.kill9, pytest.mark.postgres]


def flow_over(postgres, directory, **order):
    directory.mkdir(mode=0o700, exist_ok=True)
    queues, flow = a_flow(directory, **order)
    return queues, {**flow, "store": postgres()}


def test_a1_5_a_dynamic_best_effort_receiver_comes_back_after_kill_9(children, postgres, tmp_path):
    queues = Queues(tmp_path)
    flow = {"store": postgres(), "broker": queues.url, "receive": ""}
    assert children.run(**flow, add=["extra"], wanted=1, kill="rx.poll", hit=2)["killed"]
    queues.publish([message("a")], to="queue:extra")
    again = children.run(**flow, wanted=1)
    assert (again["exit"], queues.bodies()) == (0, ["1:a"])


def test_a1_15_a_copy_of_a_store_is_examined_without_touching_production(postgres_server, postgres, tmp_path):
    """The copy is made by the server, from the database that a crashed engine has left."""
    production = World(postgres())
    production.broker.publish("queue:in", numbered(3))
    parts = (receiver(), sender(connection="away"))
    with production.engine(*parts, monitors=[Forwards], connections=two(production)) as engine:
        production.away.down = True
        production.wait(lambda: engine.status().senders["out"][2] == 3)
        production.crash(engine)
    copy = postgres_server.fresh_database(f"TEMPLATE {database_of(production.store)}")
    production.away.down = False
    before = list(production.trace)
    elsewhere = World(copy)
    connections = {name: elsewhere.broker.connection(name) for name in ("memory", "away")}
    with elsewhere.engine(*parts, monitors=[Forwards], connections=connections):
        elsewhere.publish("new")
        elsewhere.wait_for("1:m1", "2:m2", "3:m3", "4:new")
    assert (production.trace, production.away.received("queue:out")) == (before, [])


def test_a2_5_b2_ids_after_a_kill(children, postgres, tmp_path):
    for mode, sources in (("EXACTLY_ONCE", 1), ("BEST_EFFORT", 2)):
        queues, flow = flow_over(postgres, tmp_path / mode, send=mode)
        queues.publish(numbered(COUNT))
        assert children.run(**flow, kill="tx.confirm", hit=2)["killed"]
        assert children.run(**flow)["exit"] == 0
        ids = [one.properties["uniqueMessageId"] for one in queues.read()]
        assert len({unique_id.partition(":")[2] for unique_id in ids}) == sources
        assert len(set(ids)) == len(ids)


def test_a2_14_best_effort_shows_the_inconsistency_that_reliable_modes_do_not(children, postgres, tmp_path):
    for mode in ("BEST_EFFORT", "EXACTLY_ONCE"):
        queues, flow = flow_over(postgres, tmp_path / mode, send=mode, interval=3600.0)
        queues.publish(numbered(COUNT))
        assert children.run(**flow, kill="rx.ack.after", hit=4)["killed"]
        assert children.run(**{**flow, "interval": 0.01})["exit"] == 0
        numbers = [number for number, _ in numbers_and_bodies(queues)]
        assert len(numbers) > len(set(numbers)) if mode == "BEST_EFFORT" else numbers == list(range(1, COUNT + 1))
