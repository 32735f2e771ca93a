"""A real schema registry for tests: Apicurio Registry, which has the REST interface of Confluent's, on loopback.

It comes from Maven Central, into a directory that all test runs share. It keeps schemas in memory. A server that does not
start is an error, never a skip.
"""

import contextlib
import subprocess
import tarfile
import tempfile
import urllib.request
from pathlib import Path

from tests.servers import HOST, KEPT, ProcessServer, free_port, install_java

_VERSION = "2.6.13.Final"
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{_VERSION}:tar.gz:all"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
_HOME = KEPT / f"apicurio-{_VERSION}"
_FETCH_TIMEOUT_S = 600
_JAVA = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_ASK_S = 1.0


class RegistryServer(ProcessServer):
    """A registry of its own."""

    def __init__(self) -> None:
        _install()
        self._port = free_port()
        super().__init__("Registry")

    @property
    def url(self) -> str:
        """Begins the addresses of Confluent's interface."""
        return f"http://{HOST}:{self._port}/apis/ccompat/v7"

    def start(self) -> None:
        """Start and wait until it answers."""
        (runner,) = (_HOME / "app").glob("*-runner.jar")
        at = f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={self._port}", f"-Djava.io.tmpdir={self.directory}"
        self._begin([*_JAVA, *at, "-jar", runner])
        self._wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=_ASK_S):
                return True
        except OSError:
            return False


def _install() -> None:
    """Fetch the registry when it is absent; another test run may do the same at the same time."""
    if (_HOME / "app").exists():
        return
    install_java()
    _HOME.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_HOME) as scratch:
        work = Path(scratch)
        goal = [f"{_PLUGIN}:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={work}"]
        subprocess.run(["mvn", "-B", "-q", *goal], check=True, cwd=work, timeout=_FETCH_TIMEOUT_S)
        (archive,) = work.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(work / "app", filter="data")
        with contextlib.suppress(OSError):  # of the other test run
            (work / "app").rename(_HOME / "app")
