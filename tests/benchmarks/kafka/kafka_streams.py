"""Kafka Streams, which moves messages from one topic to another in a process of Java."""

import os
import subprocess
import tempfile
import time
from contextlib import closing
from functools import cache
from pathlib import Path

import confluent_kafka as confluent

from tests.benchmarks.comparison import Result
from tests.interop.java_program import fetch_jars
from tests.kafka_server import ANSWER_S, KafkaServer
from tests.servers import install_java
from tests.waiting import wait_until

_PROGRAM = Path(__file__).parent / "streams"
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_LOOK_EVERY_S = 0.005


def move(server: KafkaServer, name: str, topics: tuple[str, str], count: int, batch: int) -> Result:
    """Move so many messages of partition 0 of a topic to another one, each once; returns what this has taken.

    The time goes from the first commit, since the program needs some seconds to begin, until the offset of the last
    message is committed.
    """
    with tempfile.TemporaryDirectory() as directory:
        arguments = [server.servers, name, *topics, directory, str(batch)]
        process = subprocess.Popen(
            [
                "java",
                "-Xmx256m",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                "-cp",
                _path(),
                "Program",
                *arguments,
            ],
            stdin=subprocess.PIPE,
        )
        try:
            first = _wait_for(server, name, topics[0], 1)
            wall_s, processor_s = time.perf_counter(), _processor_s(process.pid)
            moved = _wait_for(server, name, topics[0], count) - first
            wall_s, processor_s = time.perf_counter() - wall_s, _processor_s(process.pid) - processor_s
            assert moved > 0, "the first commit has all messages"
            process.communicate(b"\n", ANSWER_S)
        finally:
            process.kill()
            process.wait()
    return Result(moved / wall_s, processor_s / moved * 1e6)


def _wait_for(server: KafkaServer, group: str, topic: str, least: int) -> int:
    """Wait until the group has committed at least this offset of partition 0; returns the offset."""
    place = confluent.TopicPartition(topic, 0)
    settings = {"bootstrap.servers": server.servers, "group.id": group, "isolation.level": "read_uncommitted"}
    with closing(confluent.Consumer(settings)) as asking:

        def committed() -> int:
            offset: int = asking.committed([place], ANSWER_S)[0].offset
            return offset if offset >= least else 0

        return wait_until(committed, 300.0, _LOOK_EVERY_S)


def _processor_s(pid: int) -> float:
    """Seconds of processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


@cache
def _path() -> str:
    """Where Java finds the program, which is compiled once in a process, and what it needs."""
    install_java()
    classes = tempfile.mkdtemp(prefix="correlator-streams-")
    path = f"{classes}:{fetch_jars(_PROGRAM / 'pom.xml')}/*"
    compiler = ["javac", "-proc:none", "-Xlint:all,-classfile", "-Werror", "-d", classes, "-cp", path]
    subprocess.run([*compiler, _PROGRAM / "Program.java"], check=True)
    return path
