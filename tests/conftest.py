"""Fixtures for every test: real servers, one for the session, a database for each test."""

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

from correlator.runtime import logs as engine_logs
from tests.compiling import compile_once
from tests.kafka_server import KafkaServer
from tests.mysql_server import MysqlServer
from tests.pulsar_server import PulsarServer
from tests.rabbit_server import RabbitServer
from tests.s3_server import S3Server
from tests.servers import KEPT, PostgresServer, running

SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Flags of Java for a program that ends soon: they halve the CPU time of a test that starts Spark."""
LONG = ("cluster", "crash", "simulation")
"""Directories of the tests that take longest."""
MEMORY = Path("/dev/shm")
ENOUGH = 8 << 30
"""Bytes: more than the servers and the stores of all workers take together."""


def pytest_configure() -> None:
    """Keep stores and servers in memory, where a sync costs nothing, and let every JVM of Spark begin quickly.

    No example of a property has a deadline, because the machine may be busy with something else. The cache of the user stays untouched.

    A killed process loses nothing in memory either. What a disk loses with its power is simulated, and the calls of a
    sync are the same ones.
    """
    settings.register_profile("correlator", deadline=None)
    settings.load_profile("correlator")
    os.environ["XDG_CACHE_HOME"] = str(KEPT / "cache")
    os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="correlator-run-")
    os.environ["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_LAUNCHER_OPTS"] = SHORT_LIFE
    if "TMPDIR" not in os.environ and _can_hold_all(MEMORY):
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def pytest_unconfigure() -> None:
    """Remove the directory of control sockets."""
    shutil.rmtree(os.environ.pop("XDG_RUNTIME_DIR"), ignore_errors=True)


def _can_hold_all(directory: Path) -> bool:
    """Whether a directory has space for what tests write, and may hold the programs that they make."""
    if not directory.is_dir() or os.statvfs(directory).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(directory).free > ENOUGH


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests that take longest begin first, so that no worker is left with one of them at the end."""
    items.sort(key=lambda item: item.path.parent.name not in LONG)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what was imported and collected, 600,000 objects of the whole suite, out of every later collection of garbage.

    Else each full one, such as a test of asyncio calls for, would take most of a second.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Compile before the workers start, so that each file is compiled once."""
    compile_once(config.args)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one worker run all tests of a server."""
    from tests.groups import scheduler  # noqa: PLC0415  # a run without workers needs no pytest-xdist

    return scheduler(config, log)


@pytest.fixture(autouse=True)
def _log_of_each_test() -> Iterator[None]:
    """A test, or a command that it executes in this process, sets up the log for itself alone."""
    yield
    structlog.reset_defaults()
    engine_logs._levels.clear()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole session; a test that harms it starts one of its own."""
    limits = ["max_replication_slots=50", "max_wal_senders=50", "max_prepared_transactions=5"]
    with running(PostgresServer(settings=["wal_level=logical", *limits])) as server:
        yield server


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MysqlServer]:
    """A MariaDB server for the whole session; a test that harms it starts one of its own."""
    with running(MysqlServer()) as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server for the whole session."""
    with S3Server() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Callable[[], str]:
    """Makes an empty schema at each call and returns its address."""
    return postgres_server.fresh_schema


@pytest.fixture
def postgres_store(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> str:
    """The address of an empty store or broker: a schema, or for a test that copies it, a database."""
    return (postgres_server.fresh_database if "copied" in request.fixturenames else postgres_server.fresh_schema)()


@pytest.fixture(scope="session")
def rabbit() -> Iterator[RabbitServer]:
    """A RabbitMQ server for the whole session; a test that kills it starts it again."""
    with running(RabbitServer()) as server:
        yield server


@pytest.fixture(scope="session")
def pulsar() -> Iterator[PulsarServer]:
    """A Pulsar broker for the whole session; a test that kills it starts it again."""
    with running(PulsarServer()) as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A Kafka broker for the whole session; a test that kills it starts it again."""
    with running(KafkaServer()) as server:
        yield server
