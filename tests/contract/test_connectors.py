"""One contract for every connector, against its real broker."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from correlator.testing.contract import Check, check_a_second_consumer_overtakes_nobody, checks_for
from correlator.testing.service_contract import service_checks_for
from tests.connectors.embedded import new_file
from tests.connectors.places import BucketPlace, FolderPlace
from tests.connectors.tables import sqlite_file
from tests.connectors.web import serving
from tests.contract.worlds import (
    CapturedWorld,
    CsvWorld,
    DeduplicatingMemoryWorld,
    DeduplicatingPulsarWorld,
    DeduplicatingServiceOfOneWorld,
    DeltaLakeWorld,
    EmbeddedWorld,
    ExclusivePulsarWorld,
    FileWorld,
    KafkaWorld,
    MemoryWorld,
    MysqlWorld,
    ObjectsWorld,
    PackedObjectsWorld,
    ParquetLakeWorld,
    ParquetObjectsWorld,
    PolledWorld,
    PositionMemoryWorld,
    PulsarWorld,
    QuorumRabbitWorld,
    RabbitWorld,
    ServiceOfOneWorld,
    ServiceWorld,
    SqlWorld,
    StreamWorld,
    WebhookWorld,
)
from tests.kafka_server import KafkaServer
from tests.mysql_server import MysqlServer
from tests.pulsar_server import PulsarServer
from tests.rabbit_server import RabbitServer
from tests.s3_server import S3Server
from tests.servers import PostgresServer


def _checks(world: type) -> Callable[..., object]:
    checks = [*checks_for(world), *service_checks_for(world)]
    return pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__.removeprefix("check_"))


@_checks(MemoryWorld)
def test_memory(check: Check) -> None:
    check(MemoryWorld())


@_checks(DeduplicatingMemoryWorld)
def test_memory_that_deduplicates(check: Check) -> None:
    check(DeduplicatingMemoryWorld())


@_checks(PositionMemoryWorld)
def test_memory_with_positions(check: Check) -> None:
    check(PositionMemoryWorld())


@_checks(ServiceWorld)
def test_service_in_memory(check: Check) -> None:
    check(ServiceWorld())


def test_only_a_world_that_declares_a_message_service_has_its_checks() -> None:
    assert service_checks_for(MemoryWorld) == []
    assert len(service_checks_for(ServiceWorld)) > 10


@_checks(EmbeddedWorld)
def test_embedded_on_sqlite(check: Check, tmp_path: Path) -> None:
    check(EmbeddedWorld(new_file(tmp_path)))


class CutPostgresWorld(EmbeddedWorld):
    """A restart ends every session of the broker's database."""

    server: PostgresServer

    def restart(self) -> None:
        self.server.terminate_backends(self.store)


@pytest.mark.postgres
@_checks(CutPostgresWorld)
def test_embedded_on_postgres(check: Check, postgres: Callable[[], str], postgres_server: PostgresServer) -> None:
    world = CutPostgresWorld(postgres())
    world.server = postgres_server
    check(world)


@_checks(FileWorld)
def test_json_lines(check: Check, tmp_path: Path) -> None:
    check(FileWorld(tmp_path))


@_checks(CsvWorld)
def test_csv(check: Check, tmp_path: Path) -> None:
    check(CsvWorld(tmp_path))


@_checks(DeltaLakeWorld)
def test_delta_tables(check: Check, tmp_path: Path) -> None:
    check(DeltaLakeWorld(tmp_path))


@_checks(ParquetLakeWorld)
def test_tables_of_parquet_files(check: Check, tmp_path: Path) -> None:
    check(ParquetLakeWorld(tmp_path))


@_checks(ObjectsWorld)
def test_objects_in_a_folder(check: Check, tmp_path: Path) -> None:
    check(ObjectsWorld(FolderPlace(tmp_path)))


@_checks(PackedObjectsWorld)
def test_packed_objects(check: Check, tmp_path: Path) -> None:
    check(PackedObjectsWorld(FolderPlace(tmp_path)))


@_checks(ParquetObjectsWorld)
def test_objects_of_parquet(check: Check, tmp_path: Path) -> None:
    check(ParquetObjectsWorld(FolderPlace(tmp_path)))


@_checks(ObjectsWorld)
def test_objects_in_a_bucket(check: Check, s3: S3Server, tmp_path: Path) -> None:
    check(ObjectsWorld(BucketPlace(s3, tmp_path), per_object=19))


@_checks(SqlWorld)
def test_tables_of_sqlite(check: Check, tmp_path: Path) -> None:
    check(SqlWorld(sqlite_file(tmp_path)))


class CutSqlWorld(SqlWorld):
    """A restart ends every session of the database."""

    server: PostgresServer

    def restart(self) -> None:
        self.server.terminate_backends(self.url)


@pytest.mark.postgres
@_checks(CutSqlWorld)
def test_tables_of_postgres(check: Check, postgres_server: PostgresServer) -> None:
    world = CutSqlWorld(postgres_server.fresh_schema())
    world.server = postgres_server
    check(world)


class CutMysqlWorld(MysqlWorld):
    """A restart ends every session of the database."""

    server: MysqlServer

    def restart(self) -> None:
        self.server.kill_sessions(self.url)


@pytest.mark.mysql
@_checks(CutMysqlWorld)
def test_tables_of_mysql(check: Check, mysql_server: MysqlServer) -> None:
    world = CutMysqlWorld(mysql_server.fresh_database())
    world.server = mysql_server
    check(world)


@_checks(PolledWorld)
def test_tables_that_are_polled(check: Check, tmp_path: Path) -> None:
    check(PolledWorld(sqlite_file(tmp_path), tmp_path / "state"))


@pytest.mark.postgres
@_checks(CapturedWorld)
def test_changes_that_are_captured(check: Check, postgres_server: PostgresServer, tmp_path: Path) -> None:
    with closing(CapturedWorld(postgres_server.fresh_schema(), tmp_path / "state")) as world:
        check(world)


@_checks(WebhookWorld)
def test_webhooks(check: Check) -> None:
    with closing(WebhookWorld()) as world:
        check(world)


@_checks(ServiceOfOneWorld)
def test_a_service_on_the_web(check: Check) -> None:
    with serving() as service:
        check(ServiceOfOneWorld(service))


@_checks(DeduplicatingServiceOfOneWorld)
def test_a_service_on_the_web_that_deduplicates(check: Check) -> None:
    with serving(deduplicates=True) as service:
        check(DeduplicatingServiceOfOneWorld(service))


@pytest.mark.rabbitmq
@_checks(RabbitWorld)
def test_rabbitmq(check: Check, rabbit: RabbitServer, tmp_path: Path) -> None:
    check(RabbitWorld(rabbit, tmp_path.name))


@pytest.mark.rabbitmq
@_checks(QuorumRabbitWorld)
def test_rabbitmq_with_quorum_queues(check: Check, rabbit: RabbitServer, tmp_path: Path) -> None:
    check(QuorumRabbitWorld(rabbit, tmp_path.name))


@pytest.mark.rabbitmq
@_checks(StreamWorld)
def test_rabbitmq_streams(check: Check, rabbit: RabbitServer, tmp_path: Path) -> None:
    check(StreamWorld(rabbit, tmp_path.name))


@pytest.mark.pulsar
@_checks(PulsarWorld)
def test_pulsar(check: Check, pulsar: PulsarServer) -> None:
    check(PulsarWorld(pulsar))


@pytest.mark.pulsar
@_checks(DeduplicatingPulsarWorld)
def test_pulsar_that_deduplicates(check: Check, pulsar: PulsarServer) -> None:
    check(DeduplicatingPulsarWorld(pulsar))


@pytest.mark.pulsar
def test_pulsar_where_one_consumer_takes_at_a_time(pulsar: PulsarServer) -> None:
    check_a_second_consumer_overtakes_nobody(ExclusivePulsarWorld(pulsar))


@pytest.mark.kafka
@_checks(KafkaWorld)
def test_kafka(check: Check, kafka: KafkaServer, tmp_path: Path) -> None:
    check(KafkaWorld(kafka, tmp_path.name))
