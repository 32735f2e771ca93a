"""A load test that cannot overwhelm the broker (rule A9.17): the receiving side says how far it has come.

One engine sends as fast as it may; another one receives and reports back every 0.5 s, through the broker, how many
messages it has had. The sending side keeps what is sent and not reported under a bound.

    python -m tests.benchmarks.bench_outstanding [--messages 500000] [--bound 20000]
"""

import argparse
import time

import msgspec

from correlator import Engine, Message, Monitor, Reliability, event, every, on
from correlator.settings import EngineSettings, MonitorSettings, ReceiverSettings, SenderSettings
from correlator.testing.memory import MemoryBroker

REPORT_EVERY_S = 0.5
SEND_EVERY_S = 0.01
MOST_AT_ONCE = 2000


@event
class Report:
    """So many messages have arrived."""

    received: int


class Load(Monitor):
    """Sends whatever the bound allows."""

    bound: int
    sent: int = 0
    reported: int = 0

    @on(Report)
    def report(self, report: Report) -> None:
        """The other side has come so far."""
        self.reported = report.received

    @every(SEND_EVERY_S)
    def send_more(self) -> None:
        """Up to the bound, not all at once."""
        for _ in range(min(MOST_AT_ONCE, self.bound - (self.sent - self.reported))):
            self.sent += 1
            self.send(b"x" * 256, to="load")


class Measures(Monitor):
    """Counts what arrives and reports."""

    received: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        """One more."""
        del message
        self.received += 1

    @every(REPORT_EVERY_S)
    def tell(self) -> None:
        """Report."""
        self.send(Report(received=self.received), to="reports")


def engine(broker: MemoryBroker, name: str, takes: ReceiverSettings, gives: str, monitor: MonitorSettings) -> Engine:
    """One side."""
    sender = SenderSettings(id=gives, connection="memory", destination=f"queue:{gives}")
    settings = EngineSettings(name=name, receivers=(takes,), senders=(sender,), monitors=(monitor,))
    return Engine(settings, connections={"memory": broker.connection()})


def reported(broker: MemoryBroker) -> int:
    """What the other side has said last."""
    reports = broker.received("queue:reports")
    return msgspec.json.decode(reports[-1].body, type=Report).received if reports else 0


def run(messages: int, bound: int) -> int:
    """The most that was sent and not reported, until so many messages are received."""
    broker = MemoryBroker()
    reports = ReceiverSettings(
        id="reports", connection="memory", destination="queue:reports", event=f"{__name__}:Report"
    )
    load = ReceiverSettings(
        id="load", connection="memory", destination="queue:load", reliability=Reliability.BEST_EFFORT
    )
    sends = MonitorSettings(type=f"{__name__}:Load", options={"bound": bound})
    measures = MonitorSettings(type=f"{__name__}:Measures")
    most = 0
    with (
        engine(broker, "receiving", load, "reports", measures) as receiving,
        engine(broker, "sending", reports, "load", sends) as sending,
    ):
        while receiving.status().received < messages:
            status = sending.status()
            sent = status.settled + status.senders["load"][2]
            most = max(most, sent - reported(broker))  # looked at later, so that it can only be more
            time.sleep(REPORT_EVERY_S / 10)
        return most


def main() -> None:
    """Print what came through and whether the bound was kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--bound", type=int, default=20_000)
    options = parser.parse_args()
    start = time.monotonic()
    most = run(options.messages, options.bound)
    rate = options.messages / (time.monotonic() - start)
    kept = "kept" if most <= options.bound else "BROKEN"
    print(f"{options.messages:,} received ({rate:,.0f}/s); outstanding at most {most:,} of {options.bound:,}: {kept}")


if __name__ == "__main__":
    main()
