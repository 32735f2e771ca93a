"""Programs in Java for tests, with a broker's own client: each run starts one, and it ends by itself.

A program is a directory here: `Program.java`, and `pom.xml` with what it needs. Maven fetches that once. No Java, no
Maven, no jars, or a program that fails: an error, never a skip.
"""

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.servers import KEPT, install_java

TIMEOUT_S = 180
_FETCH_TIMEOUT_S = 600
_HERE = Path(__file__).parent
_SHARED = _HERE / "Json.java"
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m")


class JavaProgram:
    """The program of a directory, compiled.

    Args:
        name: the directory.
        classes: an empty directory for what is compiled.
        environment: variables that it looks at.
    """

    def __init__(self, name: str, classes: Path, environment: Mapping[str, str]) -> None:
        install_java()
        self._environment = environment
        program = _HERE / name
        self._path = f"{classes}:{fetch_jars(program / 'pom.xml')}/*"
        sources = [_SHARED, program / "Program.java"]
        compiler = ["javac", "-proc:none", "-Xlint:all,-classfile", "-Werror", "-d", str(classes), "-cp", self._path]
        subprocess.run([*compiler, *sources], check=True, timeout=TIMEOUT_S)

    def run(self, *arguments: str) -> list[dict[str, Any]]:
        """What it prints: an object of JSON on each line."""
        done = subprocess.run(
            ["java", *_QUICK_START, "-cp", self._path, "Program", *arguments],
            env={**os.environ, **self._environment},
            check=True,
            stdout=subprocess.PIPE,
            timeout=TIMEOUT_S,
        )
        return [json.loads(line) for line in done.stdout.splitlines()]


def fetch_jars(pom: Path) -> Path:
    """The directory with what a program needs, which Maven fills when it is absent."""
    version = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    jars = KEPT / f"{pom.parent.name}-{version}"
    if jars.exists():
        return jars
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT) as scratch:
        fetched = Path(scratch) / "jars"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={fetched}"]
        subprocess.run(["mvn", "-q", "-B", "-f", pom, *goal], check=True, timeout=_FETCH_TIMEOUT_S)
        try:
            fetched.rename(jars)
        except OSError:  # another run of the tests was faster
            if not jars.exists():
                raise
    return jars
