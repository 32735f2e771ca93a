"""Pipelines on a real cluster: the same output as on one host, and what a part that dies costs."""

import contextlib
import json
import subprocess

import pytest

from tests.crash.test_flights import alerts, by_carrier, place
from tests.harness.cluster.brokers import EmbeddedBroker
from tests.harness.cluster.world import COMMAND, FILE, World, chain_of
from tests.harness.processes import environment
from tests.pipeline.test_flights import reference, sample
from tests.servers import HOST, free_port
from tests.spark_cluster import kill, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


def test_flights_give_what_one_host_gives(cluster, postgres, tmp_path):
    """SP1: the example unchanged but for master and store; no worker has the project or the monitors of the example."""
    directory = place(tmp_path / "run")
    store = postgres()
    arguments = ["--set", f"spark.master={cluster.url}", "--set", f"store={store}"]
    done = subprocess.run(
        [COMMAND, "run", "config/flights.yaml", *arguments],
        cwd=directory,
        env=environment(**cluster.environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    delayed, alarms, malformed = reference(list(dict.fromkeys(sample())))
    assert (directory / "config/data/delayed.jsonl").read_text() == "".join(f"{line}\n" for line in delayed)
    assert by_carrier(alerts(directory)) == by_carrier([body.encode() for body in alarms]) != {}
    dead = subprocess.run(
        [COMMAND, "deadletter", "list", store, "--json"], env=environment(), capture_output=True, check=True
    )
    assert len(json.loads(dead.stdout)) == len(malformed)
    assert "Traceback" not in done.stderr


def test_a_master_that_nobody_runs_is_told_at_once(tmp_path, postgres):
    """SP6: within seconds, by its address, without a traceback."""
    master = f"spark://{HOST}:{free_port()}"
    variables = {"STORE": postgres(), "MASTER": master, "BROKER": f"sqlite:///{tmp_path}/broker.db"}
    done = subprocess.run(
        [COMMAND, "run", str(FILE)],
        cwd=tmp_path,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=65,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"E1515 spark: no master answers at {master}: Connection refused. Start the master, or correct 'spark.master'."
    )
    assert "Traceback" not in done.stderr


@pytest.fixture
def world(cluster, postgres, tmp_path):
    with contextlib.closing(EmbeddedBroker(f"sqlite:///{tmp_path}/broker.db")) as broker:
        made = World(cluster, postgres(), broker, tmp_path)
        yield made
        made.close()


def test_parts_die_and_nothing_is_lost_doubled_or_out_of_order(cluster, world):
    """SP3 to SP7 in one life of an engine: each part that dies costs a batch, and one line tells of it."""
    world.begin(hurried=True)
    world.feed(1, refused=1)
    world.wait_for_all()

    world.feed(300)
    wait_until(cluster.pythons)
    for pid in cluster.pythons():
        kill(pid)
    world.feed(100)
    world.wait_for_all()

    world.feed(300)
    first = cluster.executors()
    assert kill(first[0])
    world.wait_for_all()
    wait_until(lambda: "W5514 spark: executor" in world.text())

    cluster.kill_worker()
    cluster.start_worker()
    cluster.kill_master()
    world.feed(300)
    world.wait_for_all()
    assert f"W5514 spark: the master {cluster.url} does not answer" in world.text()
    cluster.start_master()

    world.feed(300)
    jvm = world.jvm
    assert kill(jvm)
    world.wait_for_all()
    assert world.jvm != jvm
    assert len(world.lines("W5511")) == 1
    assert "W5511 pipeline chains: Spark was lost: its JVM has ended. Spark starts again" in world.text()

    cluster.kill_worker()
    cluster.kill_worker()
    world.feed(100)
    wait_until(lambda: f"W5513 pipeline chains: no executors at {cluster.url} for " in world.text())
    cluster.start_worker()
    cluster.start_worker()
    world.wait_for_all()

    world.poison()
    assert world.wait() == 1
    assert world.text().splitlines()[-1].replace(f"{FILE.parent}/", "") == (
        "E5510 chains.yaml:27:17 pipeline chains step 3 (python): Spark failed: Python worker exited unexpectedly (crashed). "
        "The batch is processed again at the next start."
    )
    assert world.check() == []


def test_the_model_of_the_tests_sees_an_exchange():
    assert chain_of("a", 2) != [*reversed(chain_of("a", 2))]
