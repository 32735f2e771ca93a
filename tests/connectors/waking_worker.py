"""A process that shares the bells of a store with a test.

    python -m tests.connectors.waking_worker follow|limited|fork STORE

`follow` prints `saw N` for each new highest number in the table of the test, and works for a moment before it looks.
`limited` prints `waits` before each wait and `woken` or `late` after it.
`fork` waits in a thread while a forked child does the same, and prints what either meets.
"""

# ruff: noqa: T201 - what it prints is how it speaks to the test

import logging
import os
import random
import sys
import threading
from pathlib import Path

from connectors.embedded.waking import bells
from correlator.storage.database import open_reader

DESTINATION = "queue:a"
FOR_EVER_S = 60.0


def follow(store: str) -> None:
    ours, work, chance, seen = bells(store), threading.Event(), random.Random(3), 0
    with open_reader(store).connect() as connection:
        while True:
            rung = ours.rung(DESTINATION)
            with connection.begin():
                last = connection.exec_driver_sql("SELECT coalesce(max(n), 0) FROM numbers").scalar_one()
            if last > seen:
                print("saw", last, flush=True)
                seen = last
                work.wait(chance.choice([0, 0.005, 0.02, 0.3]))  # longer than a bell is listened to without a waiter
            else:
                ours.wait(DESTINATION, rung, FOR_EVER_S)


def limited(store: str) -> None:
    ours = bells(store)
    while True:
        rung = ours.rung(DESTINATION)
        print("waits", flush=True)
        print("woken" if ours.wait(DESTINATION, rung, FOR_EVER_S) else "late", flush=True)


def fork(store: str) -> None:
    listening(store)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    else:
        print("child has", *sorted({kind for kind in map(kind_of, open_files()) if kind}), flush=True)
        listening(store)
    ours = bells(store)
    rung = ours.rung(DESTINATION)
    print("child" if not pid else "parent", "waits", flush=True)
    print("woken" if ours.wait(DESTINATION, rung, FOR_EVER_S) else "late", flush=True)
    os._exit(0)


def listening(store: str) -> None:
    """Wait until this process listens: then the bell has rung by itself, twice with PostgreSQL."""
    for rung in range(2 if store.startswith("postgresql") else 1):
        assert bells(store).wait(DESTINATION, rung, FOR_EVER_S)


def open_files() -> list[str]:
    return [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]


def kind_of(target: str) -> str:
    return next((kind for kind in ("inotify", "socket") if kind in target), "")


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="told %(message)s")
    {"follow": follow, "limited": limited, "fork": fork}[sys.argv[1]](sys.argv[2])
