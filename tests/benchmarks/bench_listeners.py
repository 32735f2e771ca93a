"""The cost of an event against the number of listeners: few and many that ask for a value, and many attempts.

Both sizes run in turn, several rounds, in one context without threads; the ratio of each round is printed, and its
median. An event matches one listener of the many.

    python -m tests.benchmarks.bench_listeners [--few 100] [--many 100000] [--events 20000] [--rounds 5]
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

from correlator.core.context import Context
from correlator.core.expressions import match
from correlator.core.monitor import Monitor
from correlator.core.queue import Run
from correlator.core.routes import Routes
from correlator.events import event
from correlator.runtime.names import resolve

SLICE = 1000


@event
class Order:
    """Begins an attempt."""

    id: int


@event
class Payment:
    """What listeners and attempts wait for."""

    order: int


class Patterns(Monitor, persistent=True):
    """A listener for each order; each stays."""

    count: int = 0
    heard: int = 0

    def onload(self) -> None:
        """Begin to listen."""
        for number in range(self.count):
            self.on_all(match(Payment, order=number), then=self.paid)

    def paid(self, payment: Payment) -> None:
        """A match."""
        del payment
        self.heard += 1


class Attempts(Monitor, persistent=True):
    """One expression; an attempt for each order waits for its payment, which begins no other one."""

    count: int = 0
    heard: int = 0

    def onload(self) -> None:
        """Begin to listen."""
        order = match(Order)
        self.on_all(order.then(match(Payment, order=order["id"])).within(900), then=self.paid)

    def paid(self, order: Order, payment: Payment) -> None:
        """A match."""
        del order, payment
        self.heard += 1


def of_patterns(count: int, events: int) -> tuple[Context, list[Any]]:
    """So many listeners, and payments for them."""
    return a_context(Patterns(count=count)), [Payment(order=number * 7919 % count) for number in range(events)]


def of_attempts(count: int, events: int) -> tuple[Context, list[Any]]:
    """So many attempts that are under way, and orders of which each is paid at once."""
    context = a_context(Attempts())
    work(context, [Order(id=number) for number in range(count)])
    fresh = range(count, count + events // 2)
    return context, [one for number in fresh for one in (Order(id=number), Payment(order=number))]


def a_context(monitor: Monitor) -> Context:
    """A context of one monitor."""
    context = Context("main", Routes(), resolve)
    context.load(monitor, "stop")
    context.call_one(monitor, "onload")
    context.take_state()
    return context


def work(context: Context, events: list[Any]) -> float:
    """Handle events; returns seconds."""
    for at in range(0, len(events), SLICE):
        context.queue.deliver(Run("", 0, (), events[at : at + SLICE], stored=False))
    gc.collect()
    begin = time.process_time()
    while context.work(SLICE, 1.0):
        pass
    return time.process_time() - begin


def compare(name: str, make: Callable[[int, int], tuple[Context, list[Any]]], arguments: argparse.Namespace) -> None:
    """Print the cost of an event with few and with many, and the ratio."""
    few = make(arguments.few, arguments.events)
    many = make(arguments.many, arguments.events)
    ratios = []
    for number in range(arguments.rounds):
        costs = [work(context, events) / arguments.events * 1e6 for context, events in (few, many)]
        ratios.append(costs[1] / costs[0])
        print(f"{name}, round {number + 1}: {costs[0]:.2f} us with few, {costs[1]:.2f} us with many: {ratios[-1]:.2f}")
    print(f"{name}: median ratio of {arguments.many:,} against {arguments.few:,}: {statistics.median(ratios):.2f}")


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    compare("listeners", of_patterns, arguments)
    compare("attempts", of_attempts, arguments)


if __name__ == "__main__":
    main()
