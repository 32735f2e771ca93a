"""What it costs that a share changes hands, and what shares cost a process.

    python -m tests.benchmarks.bench_takeover --runs 5

Two members run eight shares. In each run one of them leaves in order, or is killed; the time counts until all shares have
sent an order that was published after its end. Then the memory of one process with eight shares is compared
with that of eight processes with one share each, and the time until all eight shares have sent an order.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from tests.crash.member_child import Job
from tests.crash.members import PATIENCE_S, SHARES, Fleet, Orders
from tests.servers import PostgresServer, running

LOOK_S = 0.01


def wait_sent(orders: Orders, most: float = PATIENCE_S) -> None:
    """Wait until every order has left."""
    deadline = time.monotonic() + most
    while not orders.all_left():
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)


def one_each(orders: Orders) -> None:
    """Publish an order to each share."""
    for share in orders.published:
        orders.publish_one(share)


def handed_over(job: Job, end: Callable[[Fleet], None]) -> float:
    """Seconds from the end of one of two members until all shares have sent an order."""
    fleet = Fleet(job)
    with closing(fleet), closing(Orders(job, random.Random(1))) as orders:
        for _ in range(2):
            fleet.joined(fleet.start())
        pids = [process.pid for process in fleet.processes]
        fleet.wait(lambda _: all(len(fleet.held(pid)) == SHARES // 2 for pid in pids), "two halves")
        one_each(orders)
        wait_sent(orders)
        began = time.monotonic()
        end(fleet)
        one_each(orders)
        wait_sent(orders)
        return time.monotonic() - began


def leaves(fleet: Fleet) -> None:
    """Let the first member stop in order, and wait for its end: what is published later is for the other one."""
    fleet.processes[0].terminate()
    fleet.processes[0].join()


def dies(fleet: Fleet) -> None:
    """Kill the first member."""
    fleet.kill(fleet.processes[0])


def resident(pid: int) -> float:
    """Private memory of a process in MB: what it shares with others is not counted."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000


def together(server: PostgresServer, members: int) -> tuple[float, float]:
    """Eight shares in so many processes: their private memory in MB, and the seconds until all have sent an order."""
    job = Job(store=server.fresh_database(), broker=server.fresh_database(), shares=SHARES, lease=10.0)
    fleet = Fleet(job)
    with closing(fleet), closing(Orders(job, random.Random(1))) as orders:
        one_each(orders)
        began = time.monotonic()
        for process in [fleet.start() for _ in range(members)]:
            fleet.joined(process)
        wait_sent(orders)
        seconds = time.monotonic() - began
        per = SHARES // members
        fleet.wait(lambda _: all(len(fleet.held(one.pid or 0)) == per for one in fleet.processes), "fair parts")
        return sum(resident(one.pid or 0) for one in fleet.processes), seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_takeover")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--lease", type=float, default=5.0)
    parsed = parser.parse_args(arguments)
    with running(PostgresServer()) as server:
        for name, end in (("leaves in order", leaves), ("is killed", dies)):
            times = []
            for _ in range(parsed.runs):
                job = Job(
                    store=server.fresh_database(), broker=server.fresh_database(), shares=SHARES, lease=parsed.lease
                )
                times.append(handed_over(job, end))
            median = statistics.median(times)
            print(
                f"a member {name}: its shares send again after {median:.2f} s ({min(times):.2f} to {max(times):.2f}), "
                f"{median / parsed.lease:.2f} of the lease"
            )
        one, seconds = together(server, 1)
        many, others = together(server, SHARES)
        print(f"{SHARES} shares in 1 process: {one:.0f} MB, all have sent after {seconds:.2f} s")
        print(f"{SHARES} shares in {SHARES} processes: {many:.0f} MB, all have sent after {others:.2f} s")
        print(f"memory {many / one:.1f} times as much, time {others / seconds:.1f} times as long")
    return 0


if __name__ == "__main__":
    sys.exit(main())
