"""The connector `http` against bare clients and servers of the same libraries.

`python -m tests.benchmarks.bench_web`; the other end is another process. Receiving: requests of 32 clients, answered by
an application that reads the body and answers at once; by a source whose messages are acknowledged at once; by an
EXACTLY_ONCE engine on SQLite, which commits first. Sending: requests one after the other on one connection.
"""

import argparse
import http.client
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable

from connectors.http import HttpConnection
from connectors.http.protocol import BoundedProtocol
from correlator import Engine, Message, Monitor, Reliability, on
from correlator.serving import HttpServer, Receive, Response, Scope, Send, respond
from correlator.settings import (
    ConnectionSettings,
    EngineSettings,
    MonitorSettings,
    ReceiverSettings,
    SenderSettings,
)
from correlator.testing.contract import outgoing
from tests.benchmarks.comparison import BODY, Result, Stopwatch, compare
from tests.servers import free_port
from tests.waiting import wait_until

CLIENTS = 32
CALLS = """
import socket, sys, threading
port, clients, count = map(int, sys.argv[1:])

def ask(first):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(first, count, clients):
            head = f"POST /orders HTTP/1.1\\r\\nHost: localhost\\r\\nIdempotency-Key: {number}\\r\\nContent-Length: 256\\r\\n\\r\\n"
            connection.sendall(head.encode() + bytes(256))
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 202 "), answer

threads = [threading.Thread(target=ask, args=(first,)) for first in range(clients)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
SERVES = """
import socketserver, sys

class Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        while self.rfile.readline():
            length = 0
            while (line := self.rfile.readline()) not in (b"\\r\\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            self.rfile.read(length)
            self.wfile.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

with Server(("127.0.0.1", 0), Handler) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""


class Drops(Monitor):
    """Hears of each message."""

    @on(Message)
    def message(self, message: Message) -> None:
        """Do nothing."""


async def at_once(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, and answer."""
    while (await receive()).get("more_body"):
        pass
    await respond(send, Response(202, b'{"id":"1"}', "application/json"), scope["method"])


def called(port: int, count: int) -> Result:
    """Let clients send so many requests."""
    watch = Stopwatch()
    subprocess.run([sys.executable, "-c", CALLS, str(port), str(CLIENTS), str(count)], check=True)
    return watch.result(count)


def bare_server(count: int) -> Result:
    """An application that answers at once."""
    server = HttpServer("bench", "127.0.0.1", 0)
    server.start(at_once, name="bare", most_connections=500, longest_header_bytes=65_536, protocol=BoundedProtocol)
    try:
        return called(server.address[1], count)
    finally:
        server.stop()


def with_source(count: int) -> Result:
    """A source whose messages are acknowledged at once."""
    connection = HttpConnection("web", ConnectionSettings(type="http", options={"port": 0}))
    source = connection.source(ReceiverSettings(id="r", connection="web", destination="queue:orders"))
    source.connect()
    ended = threading.Event()

    def take() -> None:
        while not ended.is_set():
            source.acknowledge(source.receive(1000, 0.1).tokens)

    taker = threading.Thread(target=take)
    taker.start()
    try:
        assert connection.address is not None
        return called(connection.address[1], count)
    finally:
        ended.set()
        taker.join()
        source.close()
        connection.close()


def with_engine(count: int) -> Result:
    """An EXACTLY_ONCE receiver."""
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        settings = EngineSettings(
            name="bench",
            store=f"sqlite:///{directory}/store.db",
            connections={"web": ConnectionSettings(type="http", options={"port": port})},
            receivers=(
                ReceiverSettings(
                    id="orders",
                    connection="web",
                    destination="queue:orders",
                    reliability=Reliability.EXACTLY_ONCE,
                    max_batch_interval_ms=1,
                ),
            ),
            monitors=(MonitorSettings(type=Drops),),
            status_interval=0.0,
        )
        with Engine(settings) as engine:
            wait_until(lambda: engine.status().conditions["orders"].status.name == "OK")
            return called(port, count)


def bare_client(port: int, count: int) -> Result:
    """One request after the other."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    watch = Stopwatch()
    for _ in range(count):
        connection.request("POST", "/orders", BODY, {"Idempotency-Key": "1:life", "Content-Type": "application/json"})
        connection.getresponse().read()
    found = watch.result(count)
    connection.close()
    return found


def with_sink(port: int, count: int) -> Result:
    """A sink with one lane, in batches of 500."""
    options = {"url": f"http://127.0.0.1:{port}"}
    connection = HttpConnection("web", ConnectionSettings(type="http", options=options))
    sink = connection.sink(SenderSettings(id="s", connection="web", destination="queue:orders"))
    sink.connect()
    watch = Stopwatch()
    for first in range(0, count, 500):
        results = sink.send(outgoing("queue:orders", [BODY] * min(500, count - first), "life", first + 1))
        assert not any(results)
    found = watch.result(count)
    sink.close()
    return found


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    count, rounds = arguments.messages, arguments.rounds
    ours: dict[str, Callable[[int], Result]] = {"source": with_source, "EXACTLY_ONCE engine": with_engine}
    for name, one in ours.items():
        compare(name, rounds, lambda: bare_server(count), lambda one=one: one(count), wanted=0.4)  # type: ignore[misc]
    with subprocess.Popen([sys.executable, "-c", SERVES], stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            port = int(service.stdout.readline())
            compare("sink", rounds, lambda: bare_client(port, count), lambda: with_sink(port, count))
        finally:
            service.kill()


if __name__ == "__main__":
    main()
