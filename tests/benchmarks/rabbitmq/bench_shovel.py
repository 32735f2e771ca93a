"""From one queue to another of one broker: an engine against the broker's own shovel, on the same server.

The engine receives and sends EXACTLY_ONCE, with a monitor in between that sends on what comes, and a store in SQLite. The
shovel acknowledges what the target has confirmed (`on-confirm`); it keeps no state, tells no repeats apart, and lives
inside the broker. The source queue is filled beforehand; the time goes from the start until the target queue has all
messages, which is asked in the same way for both. Both run in turn, several rounds; the ratio of each round is printed,
and its median. Processor time for each message is told, too, of the server and of the engine: other work on the machine
disturbs it less. What arrived is held against what was published: each message once, in order, with its id.

The shovel begins when the server has its parameter, so the start of `rabbitmqctl` does not count. Connecting counts, for
both: with few messages it is most of the time.

    python -m tests.benchmarks.rabbitmq.bench_shovel [--messages 200000] [--rounds 5] [--queue-type quorum] [--profile]

`--profile` runs the engine alone, twice: once with the shares of what receiver and sender spend their time on, once with
a profile of each thread by its processor time, which the profiler makes several times longer. Undisturbed, what holds
the interpreter lock:
`py-spy record --threads --gil --format raw --output FILE -- python -m tests.benchmarks.rabbitmq.bench_shovel …`
"""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from correlator import Engine, Message, Monitor, on
from correlator.events import Outgoing
from correlator.runtime import logs
from correlator.settings import CheckpointSettings, EngineSettings, ReceiverSettings, SenderSettings
from tests.benchmarks.bench_engine import profile_threads
from tests.benchmarks.comparison import spread_of
from tests.connectors.rabbit import forwarding, opened
from tests.rabbit_server import RabbitServer
from tests.servers import running

BATCH = 5000
LOOK_EVERY_S = 0.02
PATIENCE_S = 600.0
SHOVEL = "bench"
BREAKDOWN_EVERY_S = 2.0

T = TypeVar("T")


class Bridge(Monitor, persistent=True):
    """Sends on what comes."""

    bridged: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        """Count it and send it on."""
        self.bridged += 1
        self.send(message, to="out")


class Queues(NamedTuple):
    """The two queues of one run, and how many messages go from the one to the other."""

    server: RabbitServer
    type: str
    source: str
    target: str
    count: int

    def fill(self) -> None:
        """Publish what is to be moved, and make the target."""
        connection = self.server.connection(queue_type=self.type)
        destination = f"queue:{self.source}"
        sender = SenderSettings(id="f", connection="r", destination=destination, reliability="EXACTLY_ONCE")
        with opened(connection.sink(sender)) as sink:
            for first in range(1, self.count + 1, BATCH):
                batch = [
                    Outgoing(number, "bench", destination, numbered(number))
                    for number in range(first, min(first + BATCH, self.count + 1))
                ]
                assert not any(sink.send(batch))
        with opened(connection.source(ReceiverSettings(id="t", connection="r", destination=f"queue:{self.target}"))):
            pass

    def await_moved(self) -> None:
        """Until the target has them all."""
        deadline = time.monotonic() + PATIENCE_S
        with self.server.channel() as channel:
            while channel.queue_declare(self.target, passive=True).method.message_count < self.count:
                assert time.monotonic() < deadline, "not all messages came"
                time.sleep(LOOK_EVERY_S)

    def processor_time(self) -> float:
        """Seconds that the server has used."""
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # in user and in system mode

    def check(self) -> None:
        """Each message is in the target once, in order, and remove both queues."""
        receiver = ReceiverSettings(
            id="c",
            connection="r",
            destination=f"queue:{self.target}",
            max_batch_size=BATCH,
            reliability="AT_LEAST_ONCE",
        )
        wanted = 1
        with opened(self.server.connection(queue_type=self.type).source(receiver)) as source:
            while wanted <= self.count:
                chunk = source.receive(BATCH, PATIENCE_S)
                assert chunk.messages, f"{wanted - 1} of {self.count}"
                for message in chunk.messages:
                    same(message, wanted)
                    wanted += 1
                source.acknowledge(chunk.tokens)
        with self.server.channel() as channel:
            assert channel.queue_delete(self.target).method.message_count == 0, "more than was published"
            assert channel.queue_delete(self.source).method.message_count == 0, "not all was taken"


def numbered(number: int) -> Message:
    """A message of 256 bytes."""
    properties = {"number": number, "uniqueMessageId": f"{number}:bench", "messageSourceId": "bench"}
    return Message(b"%0256d" % number, properties)


def same(message: Message, number: int) -> None:
    """It is that of this number; the engine's sender gives an id of its own, with the same number before the colon."""
    assert message.body == b"%0256d" % number, f"not number {number}: {message.body!r}"
    assert message.properties["number"] == number
    assert message.properties["uniqueMessageId"].partition(":")[0] == str(number)


@contextlib.contextmanager
def shovel(queues: Queues, uri: str) -> Iterator[float]:
    """A shovel of the server; tells when it began, by the server's clock, which is ours."""
    definition = {
        "src-protocol": "amqp091",
        "src-uri": uri,
        "src-queue": queues.source,
        "dest-protocol": "amqp091",
        "dest-uri": uri,
        "dest-queue": queues.target,
        "ack-mode": "on-confirm",
    }
    escaped = json.dumps(json.dumps(definition))  # a string of Erlang is one of JSON, for these characters
    began = queues.server.control(
        "eval",
        "Began = os:system_time(microsecond), "
        f'ok = rabbit_runtime_parameters:parse_set(<<"/">>, <<"shovel">>, <<"{SHOVEL}">>, <<{escaped}>>, none), '
        "Began.",
    )
    yield int(began) / 1e6
    queues.server.control("clear_parameter", "shovel", SHOVEL)


def settings(queues: Queues, store: str, batch: int, interval: float) -> EngineSettings:
    """Of the engine."""
    return forwarding(
        "bench",
        store,
        f"{__name__}:Bridge",
        queues.source,
        queues.target,
        batch=batch,
        sent=batch,
        checkpoint=CheckpointSettings(interval=interval),
        status_interval=0.0,
    )


class Result(NamedTuple):
    """Messages a second, and microseconds of processor time for each: of the server, of the engine, of its threads."""

    rate: float
    server_us: float
    engine_us: float = 0.0
    threads_us: Mapping[str, float] = {}

    def __str__(self) -> str:
        return f"{self.rate:>6,.0f}/s ({self.server_us:.0f} + {self.engine_us:.0f} us)"


def run_shovel(queues: Queues, uri: str) -> Result:
    """One run of the shovel."""
    at_first = queues.processor_time()
    with shovel(queues, uri) as began:
        queues.await_moved()
        rate = queues.count / (time.time() - began)
        server = queues.processor_time() - at_first
    return Result(rate, server / queues.count * 1e6)


def run_engine(queues: Queues, batch: int, interval: float, *, measured: bool = False) -> Result:
    """One run of the engine.

    Args:
        measured: log what receiver and sender spend their time on.
    """
    with tempfile.TemporaryDirectory() as directory:
        chosen = settings(queues, f"sqlite:///{directory}/bench.db", batch, interval)
        chosen = with_breakdown(chosen) if measured else chosen
        at_first, engine, began = queues.processor_time(), time.process_time(), time.time()
        with Engine(chosen, connections={"rabbit": queues.server.connection(queue_type=queues.type)}):
            queues.await_moved()
            rate = queues.count / (time.time() - began)
            engine, server = time.process_time() - engine, queues.processor_time() - at_first
            threads = processor_times()
    each = {name: seconds / queues.count * 1e6 for name, seconds in threads.items()}
    return Result(rate, server / queues.count * 1e6, engine / queues.count * 1e6, each)


def with_breakdown(chosen: EngineSettings) -> EngineSettings:
    """The same; receiver and sender log what they spend their time on."""
    return replace(
        chosen,
        receivers=tuple(replace(one, log_performance_breakdown=True) for one in chosen.receivers),
        senders=tuple(replace(one, log_performance_breakdown=True) for one in chosen.senders),
        performance_breakdown_interval=BREAKDOWN_EVERY_S,
    )


def processor_times() -> dict[str, float]:
    """Seconds of processor time of each living thread but this one."""
    here = threading.current_thread()
    others = [thread for thread in threading.enumerate() if thread is not here and thread.ident is not None]
    return {thread.name: time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in others}


def main() -> None:
    """Both in turn on one server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queue-type", default="classic")
    parser.add_argument("--batch", type=int, default=BATCH, help="max_batch_size of receiver and sender")
    parser.add_argument("--interval", type=float, default=0.2, help="seconds between checkpoints")
    parser.add_argument(
        "--tcp", action="store_true", help="the shovel connects as a client does, not within the server"
    )
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    server = RabbitServer()
    uri = f"amqp://{server.user}:{server.password}@127.0.0.1:{server.port}" if options.tcp else "amqp://"

    def moved(run: Callable[[Queues], T], count: int = options.messages) -> T:
        queues = Queues(server, options.queue_type, server.queue(), server.queue(), count)
        queues.fill()
        result = run(queues)
        queues.check()
        return result

    def engine(queues: Queues) -> Result:
        return run_engine(queues, options.batch, options.interval, measured=options.profile)

    def peer(queues: Queues) -> Result:
        return run_shovel(queues, uri)

    with running(server), server.plugin("rabbitmq_shovel"):
        if options.profile:
            logs.configure()
            moved(engine)
            moved(lambda queues: profile_threads(lambda: engine(queues)))
            return
        moved(engine, 1000)
        moved(peer, 1000)
        compare(options.rounds, lambda: moved(engine), lambda: moved(peer))


def compare(rounds: int, run: Callable[[], Result], peer: Callable[[], Result]) -> None:
    """Both in turn; which of them is first alternates."""
    ratios, runs, peers = [], [], []
    for number in range(rounds):
        for one in (peer, run) if number % 2 else (run, peer):
            (runs if one is run else peers).append(one())
        ratios.append(runs[-1].rate / peers[-1].rate)
        print(f"shovel {peers[-1]}  engine {runs[-1]}  ratio {ratios[-1]:.2f}")
    print(f"median of ratios {spread_of(ratios)}, wanted: 0.50")
    print("processor time for a message, medians:")
    print(f"    {statistics.median(one.server_us for one in peers):>5.1f} us  server, shovel")
    print(f"    {statistics.median(one.server_us for one in runs):>5.1f} us  server, engine")
    print(f"    {statistics.median(one.engine_us for one in runs):>5.1f} us  engine; its threads:")
    medians = {name: statistics.median(one.threads_us[name] for one in runs) for name in runs[0].threads_us}
    for name, microseconds in sorted(medians.items(), key=lambda item: -item[1]):
        print(f"        {microseconds:>5.1f} us  {name}")


if __name__ == "__main__":
    main()
