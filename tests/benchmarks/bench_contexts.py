"""Ten contexts in parallel against one: messages of a BEST_EFFORT receiver, handled by a monitor in every context.

Every context hears every message, so ten contexts handle ten times as many events: what is compared is events handled
a second. Handlers share one interpreter lock, therefore a ratio near 1 is what contexts can reach that only compute; a
handler that waits for something else lets the others run.

    python -m tests.benchmarks.bench_contexts [--messages 20000] [--contexts 10] [--rounds 3]
"""

import argparse
import json
import statistics
import threading
import time

from correlator import Engine, Message, Monitor, Reliability, event, on
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings
from correlator.testing.memory import MemoryBroker

PATIENCE_S = 120.0


@event
class Trade:
    """What comes in."""

    account: str
    quantity: int


class Adds(Monitor):
    """Adds up; `last` is told when it has handled so many."""

    wanted = 0
    last = threading.Semaphore(0)

    def __init__(self) -> None:
        super().__init__()
        self.positions: dict[str, int] = {}
        self.handled = 0

    @on(Trade)
    def trade(self, trade: Trade) -> None:
        """Add."""
        self.positions[trade.account] = self.positions.get(trade.account, 0) + trade.quantity
        self.handled += 1
        if self.handled == Adds.wanted:
            Adds.last.release()


def rate(contexts: int, messages: list[Message]) -> float:
    """Events handled a second, in all contexts together."""
    Adds.wanted = len(messages)
    broker = MemoryBroker()
    settings = EngineSettings(
        name="bench",
        receivers=(
            ReceiverSettings(
                id="in",
                connection="memory",
                destination="queue:in",
                reliability=Reliability.BEST_EFFORT,
                event=f"{__name__}:Trade",
            ),
        ),
        monitors=tuple(
            MonitorSettings(type=f"{__name__}:Adds", context=f"context-{number}") for number in range(contexts)
        ),
    )
    with Engine(settings, connections={"memory": broker.connection()}):
        begin = time.perf_counter()
        broker.publish("queue:in", messages)
        for _ in range(contexts):
            assert Adds.last.acquire(timeout=PATIENCE_S)
        elapsed = time.perf_counter() - begin
    return contexts * len(messages) / elapsed


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--contexts", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    messages = [
        Message(json.dumps({"account": f"A{number % 1000}", "quantity": number}).encode())
        for number in range(arguments.messages)
    ]
    ratios = []
    for number in range(arguments.rounds):
        one, many = rate(1, messages), rate(arguments.contexts, messages)
        ratios.append(many / one)
        print(
            f"round {number + 1}: one {one:,.0f}/s  {arguments.contexts} contexts {many:,.0f}/s  ratio {many / one:.2f}"
        )
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
