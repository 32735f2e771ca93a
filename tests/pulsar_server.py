"""A real Pulsar broker for tests: a standalone one, an ordinary process on loopback, its data in a directory of its own.

It comes from Maven Central and is unpacked once, into a directory that all test runs share. A server that does not
start is an error, never a skip.
"""

import contextlib
import itertools
import json
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from connectors.pulsar import PulsarConnection
from correlator.settings import ConnectionSettings
from tests.rabbit_server import make_certificates
from tests.servers import KEPT, START_TIMEOUT_S, ClassArchive, ProcessServer, free_port, install_java

"""A machine that is busy with other things starts it ten times as slowly."""
_READY_TIMEOUT_S = 10
INSTALL_TIMEOUT_S = 900
_REGISTERED_AGAIN = b"Successfully re-acquired lock at /ledgers/available/"
_OFTEN = 10
NAMESPACE = "public/default"
_VERSION = "4.0.8"
_ARTIFACT = f"org.apache.pulsar:pulsar-server-distribution:{_VERSION}:tar.gz:bin"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_HOME = KEPT / f"pulsar-{_VERSION}"
_OPENED = (
    "java.base/java.io",
    "java.base/java.util.zip",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
_JAVA = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:MaxDirectMemorySize=128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xlog:disable",
    "-Dio.netty.tryReflectionSetAccessible=true",
    *itertools.chain.from_iterable(("--add-opens", f"{package}=ALL-UNNAMED") for package in _OPENED),
)
_CONFIG = """
clusterName=standalone
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
listeningInterface=lo
allowLoopback=true
brokerServicePort={port}
brokerServicePortTls={tls_port}
webServicePort={web_port}
tlsCertificateFilePath={directory}/server.pem
tlsKeyFilePath={directory}/server.key
tlsTrustCertsFilePath={directory}/ca.pem
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
managedLedgerCacheSizeMB=32
loadManagerClassName=org.apache.pulsar.broker.loadbalance.NoopLoadManager
loadBalancerEnabled=false
topicLevelPoliciesEnabled=true
systemTopicEnabled=true
brokerDeleteInactiveTopicsEnabled=false
backlogQuotaCheckIntervalInSeconds=1
activeConsumerFailoverDelayTimeMillis=0
webSocketServiceEnabled=false
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
dbStorage_writeCacheMaxSizeMb=16
dbStorage_readAheadCacheMaxSizeMb=8
dbStorage_rocksDB_blockCacheSize=8388608
nettyMaxFrameSizeBytes=5253120
journalPreAllocSizeMB=4
journalSyncData=false
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.99
numIOThreads=2
numHttpServerThreads=8
numOrderedExecutorThreads=2
bookkeeperClientNumWorkerThreads=2
"""


class PulsarServer(ProcessServer):
    """A Pulsar broker of its own; `start` may be called again after `stop` and `kill`, on the same data and ports.

    Args:
        settings: of the broker, beside those that all have.
        token: with which its REST interface is spoken to, where it wants one.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, token: str = "") -> None:
        install_pulsar()
        self.port, self.tls_port, self.web_port = free_port(), free_port(), free_port()
        super().__init__("Pulsar")
        self._token = token
        self._classes = ClassArchive(_HOME / "classes.jsa", self.directory / "classes.jsa")
        self._names = itertools.count(1)
        make_certificates(self.directory)
        lines = [f"{name}={value}\n" for name, value in (settings or {}).items()]
        (self.directory / "standalone.conf").write_text(_CONFIG.format_map(vars(self)) + "".join(lines))

    @property
    def url(self) -> str:
        """Where its clients find it."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, object]:
        """The options of a connection to it."""
        return {"service_url": self.url}

    def start(self) -> None:
        """Start and wait until it is ready for clients.

        After a kill it finds the registration of its own bookie, and in every fourth start or so goes on removing and
        making it again for a minute, and answers nobody meanwhile: a defect of its `ResourceLockImpl` (apache/pulsar
        issue 17759). A process that begins with that is killed at once and started again.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        output = self.directory / "output"
        while not self._comes_up(output, output.stat().st_size if output.exists() else 0, deadline):
            self.kill()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it in order, or as the signal does."""
        super().stop(how)
        self._classes.keep()

    def close(self) -> None:
        """End it (in order only where that leaves something to later ones) and remove its directory."""
        self.stop(signal.SIGKILL if self._classes.is_kept else signal.SIGTERM)
        super().close()

    def connection(self, **options: object) -> PulsarConnection:
        """A connection of the connector to it."""
        return PulsarConnection("pulsar", ConnectionSettings(type="pulsar", options={**self.options, **options}))

    def name(self) -> str:
        """A name that no topic or namespace of it has had."""
        return f"test-{next(self._names)}"

    # --- REST ---

    def request(self, method: str, path: str, content: object = None) -> Any:
        """Ask its REST interface for something; what it answers."""
        text = self._answer(method, path, content)
        return json.loads(text) if text else None

    def namespace(self, *, deduplication: bool = False) -> str:
        """A fresh namespace of the tenant `public`."""
        namespace = f"public/{self.name()}"
        self.request("PUT", f"namespaces/{namespace}", {})
        if deduplication:
            self.request("POST", f"namespaces/{namespace}/deduplication", True)
        return namespace

    def stats(self, topic: str, namespace: str = NAMESPACE) -> dict[str, Any]:
        """What the broker counts about a topic."""
        found: dict[str, Any] = self.request("GET", f"{self.path(topic, namespace)}/stats")
        return found

    def subscriptions(self, topic: str, namespace: str = NAMESPACE) -> dict[str, Any]:
        """What it counts about each of the topic's subscriptions."""
        found: dict[str, Any] = self.stats(topic, namespace)["subscriptions"]
        return found

    def path(self, topic: str, namespace: str = NAMESPACE) -> str:
        """Where REST has a topic."""
        return f"persistent/{namespace}/{urllib.parse.quote(topic, safe='')}"

    def _comes_up(self, output: Path, begin: int, deadline: float) -> bool:
        """Start the process; returns whether it becomes ready, instead of waiting for its own registration."""
        here = self.directory
        directories = ("--metadata-dir", here / "metadata", "--bookkeeper-dir", here / "bookkeeper")
        arguments = ("--config", here / "standalone.conf", "--no-functions-worker", "--no-stream-storage", *directories)
        command = ["java", *_JAVA, self._classes.flag(), "-cp", f"{_HOME}/lib/*"]
        starter = "org.apache.pulsar.PulsarStandaloneStarter"
        self._begin([*command, starter, *arguments], cwd=here, start_new_session=True)
        is_ready = False
        while not is_ready:
            self._give_time(deadline)
            is_ready = self._is_ready()
            with output.open("rb") as read:
                read.seek(begin)
                if read.read().count(_REGISTERED_AGAIN) > _OFTEN:
                    return False
        return True

    def _is_ready(self) -> bool:
        """Call the broker's health check, which sends and receives a message, so that later calls find everything loaded."""
        try:
            return (
                NAMESPACE.encode() in self._answer("GET", "namespaces/public", timeout_s=_READY_TIMEOUT_S)
                and self._answer("GET", "brokers/health", timeout_s=_READY_TIMEOUT_S) == b"ok"
            )
        except OSError:
            return False

    def _answer(self, method: str, path: str, content: object = None, timeout_s: float = START_TIMEOUT_S) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        body = None if content is None else json.dumps(content).encode()
        address = f"http://127.0.0.1:{self.web_port}/admin/v2/{path}"
        request = urllib.request.Request(address, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            answered: bytes = answer.read()
            return answered


def install_pulsar() -> None:
    """Fetch the broker when it is absent; another test run may do the same at the same time."""
    if (_HOME / "lib").exists():
        return
    install_java()
    _HOME.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=_HOME))
    goal = [f"{_PLUGIN}:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={work}"]
    subprocess.run(["mvn", "-B", "-q", *goal], check=True, cwd=work, timeout=INSTALL_TIMEOUT_S)
    (archive,) = work.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        jars = [member for member in packed if "/lib/" in member.name]
        packed.extractall(work, jars, filter="data")
    (libraries,) = work.glob("*/lib")
    with contextlib.suppress(OSError):  # of the other test run
        libraries.rename(_HOME / "lib")
    shutil.rmtree(work)
