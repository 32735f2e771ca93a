"""RabbitMQ's own JMS client for tests: a program in Java that each call starts, and that ends with it.

Maven fetches its jars once. No Java, no Maven, no jars, or a program that fails: an error, never a skip.
"""

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.rabbit_server import RabbitServer
from tests.servers import install_java

TIMEOUT_S = 180
_FETCH_TIMEOUT_S = 600
_SOURCES = Path(__file__).parent / "connectors" / "java"
_PROGRAM = _SOURCES / "JmsProgram.java"
_POM = _SOURCES / "pom.xml"
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m")


class JavaClient:
    """`JmsProgram.java` against a server; the destinations are declared for AMQP, and must be there."""

    def __init__(self, server: RabbitServer) -> None:
        install_java()
        self._server = server
        self._jars = fetch_jars()

    def send(self, *queues: str) -> list[dict[str, Any]]:
        """Send the program's messages to each queue; returns them as Java has them then."""
        return self._run("send", *queues)

    def receive(self, numbers: Mapping[str, int]) -> list[dict[str, Any]]:
        """Receive so many messages from each queue; returns them as Java has them."""
        return self._run("receive", *(word for name, number in numbers.items() for word in (name, str(number))))

    def _run(self, *arguments: str) -> list[dict[str, Any]]:
        server = {"PORT": str(self._server.port), "USER_NAME": self._server.user, "PASSWORD": self._server.password}
        done = subprocess.run(
            ["java", *_QUICK_START, "-cp", f"{self._jars}/*", _PROGRAM, *arguments],
            env=os.environ | server,
            check=True,
            stdout=subprocess.PIPE,
            timeout=TIMEOUT_S,
        )
        return [json.loads(line) for line in done.stdout.splitlines()]


def fetch_jars() -> Path:
    """The directory with what the program needs, which Maven fills when it is absent."""
    version = hashlib.sha256(_POM.read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "correlator-tests"
    jars = cache / f"rabbitmq-jms-{version}"
    if jars.exists():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        fetched = Path(scratch) / "jars"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={fetched}"]
        subprocess.run(["mvn", "-q", "-B", "-f", _POM, *goal], check=True, timeout=_FETCH_TIMEOUT_S)
        try:
            fetched.rename(jars)
        except OSError:  # another run of the tests was faster
            if not jars.exists():
                raise
    return jars
