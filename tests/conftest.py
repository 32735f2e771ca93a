"""Fixtures for every test: real servers, one for the session, a database for each test."""

from collections.abc import Callable, Iterator

import pytest

from tests.pulsar_server import PulsarServer
from tests.rabbit_server import RabbitServer
from tests.servers import PostgresServer, running


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole session; a test that harms it starts one of its own."""
    with running(PostgresServer()) as server:
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Callable[[], str]:
    """Makes a fresh, empty database at each call and returns its address."""
    return postgres_server.fresh_database


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
