"""Makes the archive of the classes that Spark loads: `python -m correlator.pipeline.archiver DELAY`.

It starts Spark, runs a pipeline on one message, and lets the JVM write the archive at its end, which takes a minute of
one processor. It works at the lowest priority, and the kernel ends it first if memory is short. One process at a time
makes archives; a second process ends at once. If the process is killed, the next one begins anew.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from correlator.core.batch_context import Delivered
from correlator.durable import make_private_directory
from correlator.events import Message
from correlator.pipeline import jvm
from correlator.pipeline.archive import MAKER_FLAGS, Archive, archive_of, prune
from correlator.pipeline.java import JavaProgram, java_home, java_program
from correlator.pipeline.processor import SparkProcessor
from correlator.pipeline.spark import SharedSession, settings_of
from correlator.pipeline.spec import DecodeStep, PipelineSettings, RouteStep, SelectStep, SparkSettings, WhereStep
from correlator.processes import LockFile

_LOWEST_PRIORITY = 19
_ENDED_FIRST = "1000"
_WRITES_WITHIN_S = 1800.0
_SETTINGS = SparkSettings(master="local[2]")
_STEPS = (
    DecodeStep(format="json", schema="name STRING, number INT, time TIMESTAMP"),
    WhereStep(condition="number > 1"),
    SelectStep(columns={"name": "upper(name)", "next": "number + 1", "hour": "date_trunc('HOUR', time)"}),
    RouteStep(to="out"),
)
_MESSAGE = Message(b'{"name": "a", "number": 2, "time": "2024-01-01T10:15:00Z"}')


class _NoState:
    """The state of a pipeline without keyed steps."""

    def get(self, owner: str, key: bytes) -> bytes | None:
        """Return `None`: no owner has a key."""

    def items(self, owner: str) -> Sequence[tuple[bytes, bytes]]:  # noqa: ARG002
        """Return nothing: no owner has a key."""
        return ()


def make_missing(delay_s: float = 0.0) -> None:
    """Make the archive for the Spark and the Java of this environment, if it is missing and nobody else makes it.

    Args:
        delay_s: how long to wait before it begins; meanwhile no other process may make an archive.
    """
    with tempfile.TemporaryDirectory(prefix="correlator-archive-") as scratch:
        if home := java_home(os.environ, Path(scratch)):
            os.environ["JAVA_HOME"] = home
        java = java_program(os.environ)
        archive = archive_of(java.identity, jvm.spark_home(), os.environ)
        if archive is None:
            return
        cache = archive.directory.parent
        make_private_directory(cache)
        with closing(LockFile(cache / "lock")) as lock:
            if lock.try_lock():
                time.sleep(delay_s)
                if not archive.is_whole():
                    _make(archive, java, scratch)
                prune(cache)


def _make(archive: Archive, java: JavaProgram, scratch: str) -> None:
    try:
        with archive.making() as made:
            _write(made, java, scratch)
            archive.store(made)
    except Exception:
        archive.note_failure()
        raise


def _write(made: Path, java: JavaProgram, scratch: str) -> None:
    """Run a pipeline in a JVM that writes an archive at its end."""
    flags = (*MAKER_FLAGS, f"-XX:ArchiveClassesAtExit={made}")
    session = SharedSession(_SETTINGS)
    with jvm.gateway(java.path, jvm.arguments(settings_of(_SETTINGS, scratch), {}, flags)) as process:
        if process is None:
            raise RuntimeError("the JVM does not start")
        started = session.acquire()
    try:
        _work(session, started)
        _end(process)
    finally:
        process.kill()


def _work(session: SharedSession, started: SparkSession) -> None:
    processor = SparkProcessor(PipelineSettings(name="archive", from_=("in",), steps=_STEPS), session)
    processor.open()
    effects = processor.process([Delivered("in", 1, _MESSAGE)], _NoState(), 0.0)
    assert len(effects.sends) == 1
    started.range(1).mapInArrow(_same, "id BIGINT").toArrow()
    processor.close()
    session.release()


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    """The function of a step in Python."""
    yield from batches


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let the JVM end, and wait until it has written the archive."""
    assert process.stdin is not None
    process.stdin.close()
    if status := process.wait(_WRITES_WITHIN_S):
        raise RuntimeError(f"the JVM ended with {status}")


def _main() -> None:
    os.nice(_LOWEST_PRIORITY)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_ENDED_FIRST, encoding="ascii")
    make_missing(float(sys.argv[1]))


if __name__ == "__main__":
    _main()
