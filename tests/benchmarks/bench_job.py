"""One job in three programs: the engine, Bytewax with recovery, and a loop that promises less.

The job is that of `bench_engine`: decode an order of 256 bytes of JSON, add it up for its account, encode the sum.
All three take the orders from memory and give the sums to memory, so that no broker limits them. A round runs all three
in turn and prints the engine's rate divided by the rate of each peer.

- Bytewax stores a snapshot of its state every 0.2 s, as often as the engine takes a checkpoint at least. It has no
  duplicate detection and no outbox, and repeats its outputs after a crash.
- The loop commits the changed sums to SQLite after each 1,000 orders, with the durability of the engine, and does
  nothing else.

    pip install -e '.[all,test,peers]'
    python -m tests.benchmarks.bench_job [--messages 200000] [--rounds 5]
"""

import argparse
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, TestingSource, cluster_main

from tests.benchmarks.bench_engine import BATCH, engine_rate, messages, synced_database
from tests.benchmarks.comparison import spread_of

SNAPSHOT_EVERY = timedelta(milliseconds=200)


def loop_rate(directory: Path, bodies: list[bytes]) -> float:
    """Orders a second of the loop."""
    sums: dict[str, int] = {}
    sent: list[bytes] = []
    with synced_database(directory / "loop.db") as connection:
        connection.execute("CREATE TABLE sums (account TEXT PRIMARY KEY, position INTEGER)")
        begin = time.perf_counter()
        for at in range(0, len(bodies), BATCH):
            changed: dict[str, int] = {}
            batch = []
            for body in bodies[at : at + BATCH]:
                order = orjson.loads(body)
                account = order["account"]
                position = changed[account] = sums[account] = sums.get(account, 0) + order["quantity"]
                batch.append(orjson.dumps({"account": account, "position": position, "note": order["note"]}))
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT OR REPLACE INTO sums VALUES (?, ?)", changed.items())
            connection.execute("COMMIT")
            sent += batch
        elapsed = time.perf_counter() - begin
    assert len(sent) == len(bodies)
    return len(bodies) / elapsed


def add(position: int | None, order: dict[str, Any]) -> tuple[int, bytes]:
    """The next sum of an account, and the result."""
    position = (position or 0) + order["quantity"]
    return position, orjson.dumps({"account": order["account"], "position": position, "note": order["note"]})


def bytewax_rate(directory: Path, bodies: list[bytes]) -> float:
    """Orders a second of a dataflow, its start included: some hundredths of a second."""
    sent: list[tuple[str, bytes]] = []
    flow = Dataflow("job")
    orders = op.map("decode", op.input("orders", flow, TestingSource(bodies, BATCH)), orjson.loads)
    keyed = op.key_on("account", orders, lambda order: order["account"])
    op.output("results", op.stateful_map("add", keyed, add), TestingSink(sent))
    recovery = directory / "recovery"
    recovery.mkdir()
    init_db_dir(recovery, 1)
    begin = time.perf_counter()
    cluster_main(flow, [], 0, epoch_interval=SNAPSHOT_EVERY, recovery_config=RecoveryConfig(recovery))
    elapsed = time.perf_counter() - begin
    assert len(sent) == len(bodies)
    return len(bodies) / elapsed


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    inputs = messages(arguments.messages)
    bodies = [message.body for message in inputs]
    ratios: dict[str, list[float]] = {"Bytewax": [], "loop": []}
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            peers = {"Bytewax": bytewax_rate(directory, bodies), "loop": loop_rate(directory, bodies)}
            ours = engine_rate(directory, inputs)
        for peer, rate in peers.items():
            ratios[peer].append(ours / rate)
        rates = ", ".join(f"{peer} {rate:,.0f}/s" for peer, rate in peers.items())
        print(f"round {number + 1}: engine {ours:,.0f}/s, {rates}")
    for peer, found in ratios.items():
        print(f"engine to {peer}: median of ratios {spread_of(found)}")


if __name__ == "__main__":
    main()
