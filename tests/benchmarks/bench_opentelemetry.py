"""What traces cost: CPU time of a message that carries a context, and with spans of none, some or all messages.

`python -m tests.benchmarks.bench_opentelemetry`; EXACTLY_ONCE in and out, one persistent monitor, SQLite, alternating. A
collector in another process takes the spans.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from correlator import Message
from correlator.settings import OpenTelemetrySettings
from tests.benchmarks import bench_engine
from tests.servers import free_port

COLLECTOR = """
import http.server, sys
class Takes(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Takes).serve_forever()
"""


class Case(NamedTuple):
    """What is measured.

    Attributes:
        name: how it is called.
        carries: whether messages have a context.
        spans: whether the engine makes spans.
        sampled: one in so many messages is sampled; 0 for none.
        share: what part of the messages goes through.
    """

    name: str
    carries: bool
    spans: bool
    sampled: int
    share: float = 1.0


PLAIN = Case("no context", carries=False, spans=False, sampled=0)
CASES = (
    PLAIN,
    Case("carried", carries=True, spans=False, sampled=0),
    Case("spans, none sampled", carries=True, spans=True, sampled=0),
    Case("spans, 1 % sampled", carries=True, spans=True, sampled=100),
    Case("spans, all sampled", carries=True, spans=True, sampled=1, share=0.1),
)


def traced(inputs: Sequence[Message], case: Case) -> list[Message]:
    """The messages with the contexts of a case."""
    if not case.carries:
        return list(inputs)
    return [
        msgspec.structs.replace(one, properties={**one.properties, "traceparent": _parent(number, case.sampled)})
        for number, one in enumerate(inputs, 1)
    ]


def _parent(number: int, sampled: int) -> str:
    return f"00-{number:032x}-{number:016x}-0{int(sampled > 0 and not number % sampled)}"


def measured(inputs: Sequence[Message], case: Case, settings: OpenTelemetrySettings) -> float:
    """CPU microseconds of this process for each message."""
    messages = traced(inputs[: round(len(inputs) * case.share)], case)
    with tempfile.TemporaryDirectory() as directory:
        begin = time.process_time()
        bench_engine.engine_rate(Path(directory), messages, opentelemetry=settings if case.spans else None)
        return (time.process_time() - begin) / len(messages) * 1e6


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    inputs = bench_engine.messages(arguments.messages)
    port = free_port()
    settings = OpenTelemetrySettings(endpoint=f"http://127.0.0.1:{port}/v1/traces")
    ratios: dict[str, list[float]] = {case.name: [] for case in CASES}
    with subprocess.Popen([sys.executable, "-c", COLLECTOR, str(port)]) as collector:
        try:
            measured(inputs[:1000], CASES[-1], settings)  # imports
            for number in range(arguments.rounds):
                found = {case: measured(inputs, case, settings) for case in CASES[:: 1 if number % 2 else -1]}
                for case, cost in found.items():
                    ratios[case.name].append(cost / found[PLAIN])
                print(", ".join(f"{case.name} {found[case]:.1f} us" for case in CASES), flush=True)
        finally:
            collector.kill()
    print("medians: " + ", ".join(f"{name} {statistics.median(one):.3f}" for name, one in ratios.items()))


if __name__ == "__main__":
    main()
