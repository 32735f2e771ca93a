"""Reads a configuration file in stages: bytes, text, tree, settings, rules.

Each stage reports all mistakes that it finds. The next stage works only on the parts that were correct so far, so that
it does not report consequences of earlier mistakes.
"""

import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar, cast

from correlator.configuration.document import MOST_BYTES, compose, decode
from correlator.configuration.interpolation import Interpolation
from correlator.configuration.overrides import override
from correlator.configuration.problems import (
    OVERRIDDEN,
    Findings,
    InvalidConfiguration,
    Origin,
    Overridden,
    Places,
)
from correlator.configuration.reader import Reader
from correlator.configuration.rules import (
    Provided,
    check_engine,
    check_imports,
    check_plain_secrets,
    check_version,
    public_secrets,
    with_default_reliabilities,
)
from correlator.configuration.shares import example
from correlator.configuration.values import Values
from correlator.errors import ConfigError, printable
from correlator.secrets import Secrets
from correlator.settings import EngineSettings

T = TypeVar("T")
Check = Callable[[T, Findings], None]
"""A further check of all settings; it reports with `findings.error(code, path, …)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[T]):
    """A configuration without mistakes.

    Attributes:
        settings: the settings, with all defaults.
        warnings: settings that work but are probably not meant, in the order of the file; to be printed, not raised.
        secrets: values that no output may show.
        places: the places of the settings in the file.
        overridden: the settings that the command line has set, in its order.
    """

    settings: T
    warnings: tuple[ConfigError, ...]
    secrets: Secrets
    places: Places
    overridden: Sequence[Overridden] = field(default=(), repr=False)

    @property
    def origin(self) -> Origin:
        """Where the settings come from, for an engine that tells it."""
        return Origin(self.places, self.secrets.redact)


def read_file(
    path: str | os.PathLike[str],
    root: type[T],
    *,
    environment: Mapping[str, str] = os.environ,
    connectors: Collection[str] = (),
    check_import: Callable[[str, object], None] | None = None,
    checks: Collection[Check[T]] = (),
    overrides: Sequence[str] = (),
) -> Loaded[T]:
    """Read the settings of a file.

    Args:
        path: the file. Paths in it are relative to the working directory, not to the file.
        root: the class of the whole file, such as `EngineFile`.
        environment: the variables for `${NAME}`.
        connectors: connector types that are allowed beside the installed ones.
        check_import: called with each import path of the file and the object that it names; raises a
            `CorrelatorError` if the object cannot be used. Without it nothing is imported.
        checks: further checks of the settings.
        overrides: settings `KEY.PATH=VALUE` that override the file; the later one counts.

    Raises:
        InvalidConfiguration: with all problems (a `ConfigError`, exit status 2). No input raises another error.
    """
    file = printable(os.fspath(path))
    content, mode = _content(Path(path), file)
    return _read(
        decode(content, file),
        root,
        Findings(file),
        environment=environment,
        connectors=connectors,
        check_import=check_import,
        checks=checks,
        others_read=bool(mode & stat.S_IROTH),
        overrides=overrides,
    )


def read_text(
    text: str,
    root: type[T],
    *,
    file: str = "config.yaml",
    environment: Mapping[str, str] = os.environ,
    connectors: Collection[str] = (),
    check_import: Callable[[str, object], None] | None = None,
    checks: Collection[Check[T]] = (),
) -> Loaded[T]:
    """Read settings from a text, as `read_file` does. `file` is the name of the text in messages."""
    return _read(
        text,
        root,
        Findings(file),
        environment=environment,
        connectors=connectors,
        check_import=check_import,
        checks=checks,
        others_read=False,
        overrides=(),
    )


def _content(path: Path, file: str) -> tuple[bytes, int]:
    """Read a file; returns its bytes, at most one more than allowed, and its mode."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # a pipe would wait for ever
            kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise _refused("E1002", file, f"is {kind}", "Name a file")
        if mode & stat.S_IWOTH:
            raise _refused("E9301", file, f"every user can write it (mode {stat.S_IMODE(mode):04o})", "chmod o-w it")
        with path.open("rb") as opened:
            return opened.read(MOST_BYTES + 1), mode
    except FileNotFoundError as exc:
        raise _refused("E1001", file, "no such file", f"Looked from {_working_directory()}") from exc
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise _refused("E1002", file, f"cannot be read: {reason}", "") from exc


def _working_directory() -> str:
    try:
        return printable(str(Path.cwd()))
    except OSError:
        return "a directory that no longer exists"


def _refused(code: str, file: str, what: str, todo: str) -> InvalidConfiguration:
    return InvalidConfiguration([ConfigError(code, file, what, "", todo)])


def _read(
    text: str,
    root: type[T],
    findings: Findings,
    *,
    environment: Mapping[str, str],
    connectors: Collection[str],
    check_import: Callable[[str, object], None] | None,
    checks: Collection[Check[T]],
    others_read: bool,
    overrides: Sequence[str],
) -> Loaded[T]:
    tree = override(compose(text, findings), overrides, findings)
    check_version(tree, findings)
    has_shares = any(key.text == "shares" for key, _ in tree.entries)
    values = Values(Interpolation(environment, findings, shares=has_shares), findings)
    settings = Reader(values, findings).read(tree, root)
    connections = settings.connections if isinstance(settings, EngineSettings) else {}
    public = public_secrets(tree, values.plain_secrets, {name: one.type for name, one in connections.items()})
    in_file = [one for one in values.plain_secrets if findings.position(one) != OVERRIDDEN and one not in public]
    check_plain_secrets(in_file, findings, others_read=others_read)
    if check_import is not None:
        check_imports(values.import_paths, check_import, findings)
    if isinstance(settings, EngineSettings):
        complete = with_default_reliabilities(settings, findings)
        check_engine(complete, Provided(connectors=connectors), findings)
        settings = cast("T", complete)
    if settings is not None:
        for check in checks:
            check(_checkable(settings), findings)
    findings.raise_errors()
    assert settings is not None, "nothing was refused, so everything was read"
    return Loaded(
        settings=settings,
        warnings=findings.warnings,
        secrets=findings.secrets,
        places=Places(findings.file, findings.positions),
        overridden=findings.overridden,
    )


def _checkable(settings: T) -> T:
    """Return settings without the placeholder of shares."""
    return cast("T", example(settings)) if isinstance(settings, EngineSettings) else settings
