"""OpenMQ and ActiveMQ Classic as peers, each with its own client by the interface of JMS.

Maven fetches both once, into the cache of the tests: 25 MB, under the Eclipse Public License 2.0 (OpenMQ) and the Apache
License 2.0 (ActiveMQ). Nothing of it is part of the product.
"""

import shutil
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.benchmarks.service.peer import BrokerPeer
from tests.interop.java_program import fetch_jars
from tests.servers import free_port, install_java

START_TIMEOUT_S = 60.0
OPENMQ_VERSION = "6.5.1"
ACTIVEMQ_VERSION = "6.1.8"
_SOURCES = Path(__file__).parent / "jms"
_JAVA = ("java", "-Xmx512m")


class JavaServer:
    """A broker and the client program, in a directory of its own.

    Args:
        kind: `openmq` or `activemq`.
        options: what the address of the clients has behind the port.
    """

    def __init__(self, kind: str, options: str = "") -> None:
        install_java()
        self.settings = ""
        self._kind = kind
        self._options = options
        self._port = free_port()
        self._jars = fetch_jars(_SOURCES / "pom.xml")
        self._openmq = _unpacked(self._jars / f"mq-distribution-{OPENMQ_VERSION}.zip")
        self._directory = Path(tempfile.mkdtemp(prefix=f"correlator-{kind}-"))
        self._path = f"{self._directory}/classes:{self._jars}/*:{self._openmq}/lib/imq.jar"
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Compile the programs, start the broker, and wait until it says that it can be used."""
        lints = "-Xlint:all,-classfile,-path"
        compiler = ["javac", "-proc:none", lints, "-Werror", "-d", self._directory / "classes", "-cp", self._path]
        subprocess.run([*compiler, *_SOURCES.glob("*.java")], check=True)
        command, ready = self._openmq_broker() if self._kind == "openmq" else self._activemq_broker()
        self._process = subprocess.Popen(
            command,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said: list[str] = []
        is_ready = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self._process, said, ready, is_ready))
        self._reader.start()
        if not is_ready.wait(START_TIMEOUT_S) or ready not in said[-1]:
            raise RuntimeError(f"the broker did not start: {''.join(said)}")
        self.settings = self._described(said[-1].strip())

    def close(self) -> None:
        """Kill the broker, and remove its data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def client(self) -> Sequence[str | Path]:
        """A client of it."""
        scheme = "mq" if self._kind == "openmq" else "tcp"
        address = f"{scheme}://127.0.0.1:{self._port}{self._options}"
        return [*_JAVA, "-cp", self._path, "Client", self._kind, address]

    def _openmq_broker(self) -> tuple[list[str], str]:
        home = {"home": self._openmq, "varhome": self._directory, "etchome": self._openmq / "etc"}
        places = [f"-Dimq.{name}={path}" for name, path in {**home, "libhome": self._openmq / "lib"}.items()]
        jars = ":".join(str(self._openmq / "lib" / name) for name in ("imqbroker.jar", "imqutil.jar"))
        settings = [
            "-Dimq.hostname=127.0.0.1",
            "-Dimq.persist.file.sync.enabled=true",
            "-Dimq.autocreate.destination.maxNumMsgs=-1",
            "-Dimq.autocreate.destination.maxTotalMsgBytes=-1",
        ]
        broker = ["com.sun.messaging.jmq.jmsserver.Broker", "-tty", "-name", "bench", "-port", str(self._port)]
        return [*_JAVA, *places, "-cp", jars, *broker, *settings], "[B1039]"

    def _activemq_broker(self) -> tuple[list[str], str]:
        address = f"tcp://127.0.0.1:{self._port}"
        return [*_JAVA, "-cp", self._path, "ActiveMqBroker", f"{self._directory}/data", address], "KahaDB"

    def _described(self, said: str) -> str:
        java = f"clients by JMS, Java {_java_version()}, {_JAVA[1]}"
        if self._kind == "openmq":
            store = "file store with imq.persist.file.sync.enabled=true"
            return f"OpenMQ {OPENMQ_VERSION}, {store}, queue without limits; {java}"
        return f"ActiveMQ Classic {ACTIVEMQ_VERSION}, {said}, clients' options {self._options or 'default'}; {java}"

    def _read(self, process: "subprocess.Popen[str]", said: list[str], ready: str, is_ready: threading.Event) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not is_ready.is_set():
                said.append(line)
            if ready in line:
                is_ready.set()
        is_ready.set()


def _java_version() -> str:
    said = subprocess.run(["java", "--version"], check=True, capture_output=True, text=True).stdout
    return said.split()[1]


def _unpacked(archive: Path) -> Path:
    """The home of OpenMQ beside its archive; another run may unpack it at the same time."""
    home = archive.with_suffix("")
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=archive.parent) as scratch, zipfile.ZipFile(archive) as packed:
            packed.extractall(scratch, [name for name in packed.namelist() if name.startswith(("mq/lib/", "mq/etc/"))])
            try:
                (Path(scratch) / "mq").rename(home)
            except OSError:
                if not home.exists():
                    raise
    return home


def openmq() -> BrokerPeer:
    """OpenMQ, whose clients wait until each acknowledgement is on disk."""
    return BrokerPeer("openmq", partial(JavaServer, "openmq"))


def activemq() -> BrokerPeer:
    """ActiveMQ with its defaults: a client does not wait for the answer to an acknowledgement."""
    return BrokerPeer("activemq", partial(JavaServer, "activemq"))


def activemq_waiting() -> BrokerPeer:
    """ActiveMQ whose clients wait until each acknowledgement is on disk, as those of OpenMQ and ours do."""
    return BrokerPeer("activemq_waiting", partial(JavaServer, "activemq", "?jms.sendAcksAsync=false"))
