"""A real Kafka broker for tests: one node that is its own controller, an ordinary process on loopback.

It comes from Maven Central, into a directory that all test runs share. Its data lie in a directory of its own. A server
that does not start is an error, never a skip.
"""

import contextlib
import functools
import itertools
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from connectors.kafka import KafkaConnection
from connectors.kafka.log import LOG
from correlator.settings import ConnectionSettings
from tests import token_server
from tests.interop.java_program import fetch_jars
from tests.rabbit_server import make_certificates
from tests.servers import HOST, KEPT, START_TIMEOUT_S, ClassArchive, ProcessServer, free_port, install_java
from tests.waiting import wait_until

_POM = Path(__file__).parent / "interop" / "kafka" / "pom.xml"
_JAVA = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)
_CLUSTER = "correlatortests0000000"
USER, PASSWORD = "billing", "a password"
_LOGINS = "org.apache.kafka.common.security"
_PLAIN = f'{_LOGINS}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
_SCRAM = f"{_LOGINS}.scram.ScramLoginModule required;"
_TOKENS = f"{_LOGINS}.oauthbearer.OAuthBearerLoginModule required;"
_CERTIFICATES = ("server", "expired", "another")
_PROTOCOLS = {
    "PLAINTEXT": "PLAINTEXT",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SSL": "SSL",
    "SASL_SSL": "SASL_SSL",
    "EXPIRED": "SSL",
    "ANOTHER": "SSL",
    "MUTUAL": "SSL",
    "TOKEN": "SASL_SSL",
}
"""The protocol of each listener for clients. The certificate of EXPIRED has expired, that of ANOTHER is for another host.
A client of MUTUAL needs a certificate itself, and a client of TOKEN a token (SASL OAUTHBEARER).
"""
_ASK_S = 1.0
ANSWER_S = 30.0
_CONFIG = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners={listeners}
listener.name.sasl_plaintext.sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.sasl_plaintext.plain.sasl.jaas.config={plain}
listener.name.sasl_ssl.plain.sasl.jaas.config={plain}
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={scram}
ssl.keystore.type=PEM
ssl.keystore.location={directory}/server.both
listener.name.expired.ssl.keystore.location={directory}/expired.both
listener.name.another.ssl.keystore.location={directory}/another.both
listener.name.mutual.ssl.client.auth=required
listener.name.mutual.ssl.truststore.type=PEM
listener.name.mutual.ssl.truststore.location={directory}/ca.pem
ssl.principal.mapping.rules=RULE:^CN=test$/{user}/
listener.name.token.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.token.oauthbearer.sasl.jaas.config={tokens}
listener.name.token.oauthbearer.sasl.server.callback.handler.class={logins}.oauthbearer.OAuthBearerValidatorCallbackHandler
listener.name.token.sasl.oauthbearer.jwt.validator.class={logins}.oauthbearer.BrokerJwtValidator
listener.name.token.sasl.oauthbearer.jwks.endpoint.url={keys}
listener.name.token.sasl.oauthbearer.expected.audience={audience}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
listener.security.protocol.map={protocols},CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={directory}/data
auto.create.topics.enable=false
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=100
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.segment.bytes=16777216
log.cleaner.dedupe.buffer.size=2097152
log.cleaner.threads=1
num.network.threads=2
num.io.threads=2
background.threads=2
controlled.shutdown.enable=false
broker.session.timeout.ms=1000
broker.heartbeat.interval.ms=200
"""


class KafkaServer(ProcessServer):
    """A Kafka broker of its own; `start` may be called again after `stop` and `kill`, on the same data and ports.

    Clients without a name may do everything. At the ports of SASL the user `USER` logs in, who has the rights of `grant`.

    Args:
        settings: of the broker, beside those that all have.

    Attributes:
        ports: the ports for clients, by the name of their listener.
        authority: the file of the authority that has signed its certificates.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        install_java()
        self._jars = fetch_jars(_POM)
        self._made = KEPT / f"{self._jars.name}-made"
        self._made.mkdir(exist_ok=True)
        self.ports = {name: free_port() for name in _PROTOCOLS}
        self.controller_port = free_port()
        super().__init__("Kafka")
        self._make_certificates()
        keys = self.directory / "keys.json"
        keys.write_text(token_server.keys(self.signing_key))
        self._keys = keys.as_uri()
        self.authority = self.directory / "ca.pem"
        self._names = itertools.count(1)
        self._file = self.directory / "server.properties"
        lines = [f"{name}={value}\n" for name, value in (settings or {}).items()]
        listeners = ",".join(f"{name}://{HOST}:{port}" for name, port in self.ports.items())
        protocols = ",".join(f"{name}:{protocol}" for name, protocol in _PROTOCOLS.items())
        values = {
            "listeners": listeners,
            "protocols": protocols,
            "logins": _LOGINS,
            "plain": _PLAIN,
            "scram": _SCRAM,
            "tokens": _TOKENS,
            "user": USER,
            "audience": token_server.AUDIENCE,
            "keys": self._keys,
        }
        self._file.write_text(_CONFIG.format_map({**vars(self), **values}) + "".join(lines))
        self._classes = ClassArchive(self._made / "classes.jsa", self.directory / "classes.jsa")
        shutil.copytree(self._formatted(), self.directory / "data")

    @property
    def port(self) -> int:
        """The port for clients without a name."""
        return self.ports["PLAINTEXT"]

    @property
    def servers(self) -> str:
        """Where its clients find it."""
        return f"{HOST}:{self.port}"

    @property
    def signing_key(self) -> Path:
        """The key of the tokens that it accepts at its listener TOKEN."""
        return self.directory / "server.key"

    @property
    def options(self) -> dict[str, object]:
        """The options of a connection to it."""
        return {"bootstrap_servers": self.servers}

    @property
    def version(self) -> str:
        """The version of Kafka."""
        (jar,) = self._jars.glob("kafka-clients-*.jar")
        return jar.stem.rpartition("-")[2]

    def start(self) -> None:
        """Start and wait until it answers clients."""
        command = self._java(self._classes.flag(), "kafka.Kafka", self._file)
        self._begin(command, cwd=self.directory, start_new_session=True)
        self._wait_until(self._is_ready)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it in order, or as the signal does."""
        super().stop(how)
        self._classes.keep()

    def close(self) -> None:
        """End it (in order only where that leaves something to later ones) and remove its directory."""
        self.stop(signal.SIGKILL if self._classes.is_kept else signal.SIGTERM)
        super().close()

    def connection(self, **options: object) -> KafkaConnection:
        """A connection of the connector to it."""
        return self.connection_to(self.servers, **options)

    @staticmethod
    def connection_to(servers: str, **options: object) -> KafkaConnection:
        """A connection of the connector to these servers."""
        given = {"bootstrap_servers": servers, **options}
        return KafkaConnection("kafka", ConnectionSettings(type="kafka", options=given))

    def connection_of_user(self, password: str = PASSWORD, **options: object) -> KafkaConnection:
        """A connection of the connector to the port where `USER` logs in."""
        client = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": USER,
            "sasl.password": password,
        }
        return self.connection_at("SASL_PLAINTEXT", client, **options)

    def connection_at(self, listener: str, client: Mapping[str, object], **options: object) -> KafkaConnection:
        """A connection of the connector to one of its listeners, with settings of the client."""
        return self.connection_to(f"{HOST}:{self.ports[listener]}", client=dict(client), **options)

    # --- its own client ---

    @functools.cached_property
    def admin(self) -> AdminClient:
        """A client that administers it."""
        return AdminClient(self._client(), logger=LOG)

    def topic(self, partitions: int = 1, **settings: str) -> str:
        """Make a topic with a name that no other one has; underscores in names of settings stand for dots."""
        name = f"test-{next(self._names)}"
        self.make_topic(name, partitions, **settings)
        return name

    def make_topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        """Make a topic of this name, and wait until the broker knows it: it answers before that."""
        config = {key.replace("_", "."): value for key, value in settings.items()}

        def is_made() -> bool:
            made = self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])
            try:
                made[name].result(ANSWER_S)
            except kafka.KafkaException as error:
                if error.args[0].code() != kafka.KafkaError.INVALID_REPLICATION_FACTOR:
                    raise
                return False  # the broker was silent for a second, and its controller does not count it at present
            return True

        wait_until(is_made)
        wait_until(lambda: self.admin.list_topics(name, ANSWER_S).topics[name].error is None)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([name], operation_timeout=ANSWER_S)[name].result(ANSWER_S)

    def configure(self, name: str, **settings: str) -> None:
        """Change settings of a topic, named as in `topic`."""
        entries = [ConfigEntry(key.replace("_", "."), value) for key, value in settings.items()]
        for one in entries:
            one.incremental_operation = AlterConfigOpType.SET
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(ANSWER_S)

    def add_partition(self, name: str, partitions: int) -> None:
        """Let a topic have so many partitions."""
        self.admin.create_partitions([NewPartitions(name, partitions)])[name].result(ANSWER_S)

    def delete_records(self, name: str, before: int) -> None:
        """Remove the records of partition 0 before an offset, as retention does."""
        place = kafka.TopicPartition(name, 0, before)
        self.admin.delete_records([place])[place].result(ANSWER_S)

    def delete_group(self, name: str) -> None:
        """Delete what a group has committed."""
        self.admin.delete_consumer_groups([name])[name].result(ANSWER_S)

    def grant(self, kind: ResourceType, name: str, *operations: AclOperation, is_prefix: bool = False) -> None:
        """Let `USER` do this with a topic, group or transactional id, or with all whose names begin so."""
        pattern = ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL
        allow = AclPermissionType.ALLOW
        rights = [AclBinding(kind, name, pattern, f"User:{USER}", "*", one, allow) for one in operations]
        for made in self.admin.create_acls(rights).values():
            made.result(ANSWER_S)

    def revoke(self, kind: ResourceType, name: str) -> None:
        """Take all rights of `USER` for this away."""
        any_ = AclOperation.ANY, AclPermissionType.ANY
        rights = AclBindingFilter(kind, name, ResourcePatternType.LITERAL, f"User:{USER}", None, *any_)  # type: ignore[arg-type]  # any host
        for removed in self.admin.delete_acls([rights]).values():
            removed.result(ANSWER_S)

    def let_log_in(self, user: str, password: str) -> None:
        """Let a user log in with SCRAM-SHA-512."""
        made = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsertion = UserScramCredentialUpsertion(user, made, password.encode())
        self.admin.alter_user_scram_credentials([upsertion])[user].result(ANSWER_S)

    def publish(self, topic: str, *records: Mapping[str, Any]) -> None:
        """Put records into a topic; each has the arguments of `Producer.produce`."""
        producer = kafka.Producer(self._client(), logger=LOG)
        for record in records:
            producer.produce(topic, **record)
        assert producer.flush(ANSWER_S) == 0

    def records(self, topic: str, *, committed: bool = True, settled: bool = True) -> list[kafka.Message]:
        """All records of a topic, partition by partition.

        The broker confirms a commit before readers see it. So with `committed` and `settled` it waits until no
        transaction is open. A killed program may leave one open.
        """
        if committed and settled:
            wait_until(lambda: self._ends(topic, IsolationLevel.READ_COMMITTED) == self._ends(topic))
        isolation = "read_committed" if committed else "read_uncommitted"
        mine = {
            "group.id": "tests",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
        consumer = kafka.Consumer({**self._client(), **mine, "auto.offset.reset": "earliest"}, logger=LOG)
        partitions = consumer.list_topics(topic, ANSWER_S).topics[topic].partitions
        found: list[kafka.Message] = []
        for partition in partitions:
            consumer.assign([kafka.TopicPartition(topic, partition, kafka.OFFSET_BEGINNING)])
            while (record := consumer.poll(ANSWER_S)) is not None and record.error() is None:
                found.append(record)
            assert record is not None
            assert (end := record.error()) is not None
            assert end.code() == kafka.KafkaError._PARTITION_EOF
        consumer.close()
        return found

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """What a group has committed, by topic and partition."""
        consumer = kafka.Consumer({**self._client(), "group.id": group}, logger=LOG)
        topics = consumer.list_topics(timeout=ANSWER_S).topics
        places = [kafka.TopicPartition(name, number) for name, one in topics.items() for number in one.partitions]
        committed = consumer.committed(places, ANSWER_S)
        consumer.close()
        return {(one.topic, one.partition): one.offset for one in committed if one.offset >= 0}

    def _ends(self, topic: str, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> list[int]:
        """The end of each partition as readers with this isolation see it."""
        numbers = self.admin.list_topics(topic, ANSWER_S).topics[topic].partitions
        wanted = {kafka.TopicPartition(topic, number): OffsetSpec.latest() for number in numbers}  # type: ignore[no-untyped-call]
        answers = self.admin.list_offsets(wanted, isolation_level=isolation, request_timeout=ANSWER_S)
        return [answers[place].result().offset for place in wanted]

    def _client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.servers}

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port)):
                pass
            asking = kafka.Consumer({**self._client(), "group.id": "nobody"}, logger=LOG)
            asking.committed([kafka.TopicPartition("none", 0)], _ASK_S)
        except (OSError, kafka.KafkaException, TimeoutError):
            return False
        return True

    def _make_certificates(self) -> None:
        make_certificates(self.directory)
        for name in _CERTIFICATES:
            parts = [(self.directory / f"{name}.{ending}").read_text() for ending in ("key", "pem")]
            (self.directory / f"{name}.both").write_text("".join(parts))

    def _formatted(self) -> Path:
        """The empty directory of a server, which is made once for all test runs."""
        kept = self._made / "formatted"
        if not kept.exists():
            made = self.directory / "formatted"
            file = self.directory / "format.properties"
            file.write_text(self._file.read_text().replace(f"{self.directory}/data", str(made)))
            command = self._java("kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER, "--config", file)
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=START_TIMEOUT_S)
            with contextlib.suppress(OSError):  # another run of the tests was faster
                shutil.move(made, kept)
        return kept

    def _java(self, *arguments: object) -> list[str]:
        may_read = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._keys}"
        return ["java", *_JAVA, may_read, "-cp", f"{self._jars}/*", *map(str, arguments)]
