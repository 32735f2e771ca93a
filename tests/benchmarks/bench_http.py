"""What it costs to observe an engine: its rate and CPU time with observers, and without.

The observers are another process that reads `/status` and `/metrics` each second, and that reads the stream of the
status page all the time, as an open page does.

`python -m tests.benchmarks.bench_http`; EXACTLY_ONCE in and out, one persistent monitor, SQLite, alternating. Other work
on the machine changes these figures by more than the observers do. So the program also measures the processor time that
an engine without messages uses in a second, with observers and without.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from correlator import Engine, Message
from correlator.settings import HttpSettings
from correlator.testing.memory import MemoryBroker
from tests.benchmarks import bench_engine
from tests.servers import free_port

SETTLING_S = 3.0
"""Seconds after its start in which an engine and its observers still have something to begin."""
READER = """
import http.client, sys, threading, time, urllib.request
def answer(route):
    return urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/{route}", timeout=5)
def follow():
    while True:
        try:
            for line in answer("events?status"):
                pass
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)
threading.Thread(target=follow, daemon=True).start()
while True:
    for route in ("status", "metrics"):
        try:
            answer(route).read()
        except (OSError, http.client.HTTPException):
            pass
    time.sleep(1)
"""


def measured(inputs: Sequence[Message], http: HttpSettings | None) -> tuple[float, float]:
    """Messages a second, and CPU microseconds of this process for each."""
    with tempfile.TemporaryDirectory() as directory:
        begin = time.process_time()
        rate = bench_engine.engine_rate(Path(directory), list(inputs), http=http)
        return rate, (time.process_time() - begin) / len(inputs) * 1e6


def at_rest(http: HttpSettings, seconds: float) -> float:
    """CPU milliseconds of this process in a second, with an engine that has nothing to do."""
    with tempfile.TemporaryDirectory() as directory:
        settings = bench_engine.settings_in(Path(directory), http=http)
        with Engine(settings, connections={"memory": MemoryBroker().connection()}):
            time.sleep(SETTLING_S)
            begin, used = time.monotonic(), time.process_time()
            time.sleep(seconds)
            return (time.process_time() - used) / (time.monotonic() - begin) * 1e3


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rest", type=float, default=15.0, help="seconds of an engine without messages")
    arguments = parser.parse_args()
    inputs = bench_engine.messages(arguments.messages)
    http, alone = HttpSettings(port=free_port()), HttpSettings(port=free_port())
    rates, costs = [], []
    with subprocess.Popen([sys.executable, "-c", READER, str(http.port)]) as reader:
        try:
            measured(inputs, http)  # imports
            for number in range(arguments.rounds):
                found = {one: measured(inputs, one) for one in ((None, http) if number % 2 else (http, None))}
                (off, off_us), (on, on_us) = found[None], found[http]
                rates.append(on / off)
                costs.append(on_us / off_us)
                print(
                    f"off {off:,.0f}/s {off_us:.1f} us  on {on:,.0f}/s {on_us:.1f} us  cost {costs[-1]:.3f}", flush=True
                )
            off_ms, on_ms = at_rest(alone, arguments.rest), at_rest(http, arguments.rest)
        finally:
            reader.kill()
    print(f"medians: rate {statistics.median(rates):.3f}, CPU time of a message {statistics.median(costs):.3f}")
    print(
        f"at rest: off {off_ms:.1f} ms a second, on {on_ms:.1f}, so observers need {(on_ms - off_ms) / 10:.2f} % of a core"
    )


if __name__ == "__main__":
    main()
