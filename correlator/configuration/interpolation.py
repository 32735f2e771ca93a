"""Replaces `${NAME}`, `${NAME:default}`, `${env:NAME}` and `${file:/path}` in scalar values.

Only parsed scalars are interpolated, never the text of the file, so that no value can change the structure. An inserted
value is not interpolated again. `$${` stands for a plain `${`. In a message template, a placeholder that begins with a
lower-case word and has no resolver (`${row.flight}`) is left for the template. In a file with shares, `${share}` is
left for the settings of each share (`correlator.configuration.shares`).
"""

import re
import stat
from collections.abc import Mapping
from pathlib import Path

from correlator.configuration.problems import Findings
from correlator.configuration.shares import PLACEHOLDER
from correlator.errors import ConfigError, quoted
from correlator.secrets import is_secret_name, url_passwords

_PLACEHOLDER = re.compile(r"(\$)?\$\{(?P<inside>[^}]*)(?P<end>\}?)")
_VARIABLE = re.compile(r"(?:env:)?(?P<name>[A-Z_][A-Z0-9_]*)(?::(?P<default>.*))?", re.DOTALL)
_FILE = re.compile(r"file:(?P<file>/.*)", re.DOTALL)
_RESOLVER = re.compile(r"[a-z]\w*:")
_TEMPLATE = re.compile(r"[a-z][^:]*")
_LARGEST_FILE = 64 * 1024
_MOST_TEXT = 1024 * 1024
_FORMS = "Use ${NAME}, ${NAME:default} or ${file:/path}; write $${ for a plain ${"


class Interpolation:
    """Replaces placeholders in the values of one configuration, and remembers the secret values.

    Args:
        environment: the variables.
        findings: gets the mistakes.
        shares: whether the file has shares.
    """

    def __init__(self, environment: Mapping[str, str], findings: Findings, *, shares: bool = False) -> None:
        self._environment = environment
        self._shares = shares
        self._findings = findings
        self._length = 0

    def resolve(self, text: str, *, key: str, path: str, template: bool) -> str | None:
        """Replace the placeholders of a text. Reports a placeholder that cannot be replaced, and then returns `None`.

        Args:
            text: the scalar, as the file has it.
            key: name of the setting; if it is named like a secret, its values are secret.
            path: place of the scalar, for messages.
            template: whether the setting is a message template.
        """
        try:
            resolved = _PLACEHOLDER.sub(lambda found: self._replacement(found, key, path, template=template), text)
        except ConfigError as exc:
            self._findings.error(exc.code, path, exc.what, exc.allowed, exc.todo)
            return None
        self._remember_passwords(resolved, key, changed=resolved != text)
        return resolved

    def _replacement(self, found: re.Match[str], key: str, path: str, *, template: bool) -> str:
        inside = found["inside"]
        if found[1]:
            return found[0] if template else found[0][1:]
        if self._shares and found[0] == PLACEHOLDER:
            return found[0]
        if template and found["end"] and _TEMPLATE.fullmatch(inside):
            return found[0]
        if not found["end"] or "${" in inside:
            raise ConfigError("E1031", path, _complaint(found), _FORMS)
        if variable := _VARIABLE.fullmatch(inside):
            return self._bounded(self._variable(variable["name"], variable["default"], key, path), path)
        if file := _FILE.fullmatch(inside):
            return self._bounded(self._file(file["file"], path), path)
        raise ConfigError("E1031", path, _complaint(found), _FORMS)

    def _variable(self, name: str, default: str | None, key: str, path: str) -> str:
        value = self._environment.get(name, default)
        if value is None:
            todo = f"Set it, or give a default: ${{{name}:default}}"
            raise ConfigError("E1030", path, f"environment variable {name} is not set", "", todo)
        if is_secret_name(key) or is_secret_name(name):
            self._findings.secrets.add(value)
        return value

    def _file(self, name: str, path: str) -> str:
        try:
            value, mode = _read_secret(Path(name))
        except (OSError, ValueError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else exc
            raise ConfigError("E1032", path, f"file {quoted(name)}: {reason}", "It must hold the value alone") from exc
        self._findings.secrets.add(value)
        if mode & stat.S_IROTH:
            self._findings.warn("W9002", path, f"file {quoted(name)} is readable by every user", "", "chmod 600 it")
        return value

    def _remember_passwords(self, text: str, key: str, *, changed: bool) -> None:
        for password in url_passwords(text):
            self._findings.secrets.add(password)
        if changed and is_secret_name(key):
            self._findings.secrets.add(text)

    def _bounded(self, value: str, path: str) -> str:
        self._length += len(value)
        if self._length > _MOST_TEXT:
            what = f"interpolated values are larger than {_MOST_TEXT // 1024} KiB together"
            raise ConfigError("E1011", path, what)
        return value


def _complaint(found: re.Match[str]) -> str:
    inside = found["inside"]
    if found[0] == PLACEHOLDER:
        return f"{quoted(PLACEHOLDER)} is for files with 'shares'"
    if not found["end"]:
        return "'${' is not closed by '}'"
    if "${" in inside:
        return f"{quoted(found[0])} holds another placeholder"
    if inside.startswith("file:"):
        return f"{quoted(found[0])} does not name an absolute path"
    if (resolver := _RESOLVER.match(inside)) and resolver[0] != "env:":
        return f"{quoted(resolver[0][:-1])} is not a resolver"
    return f"{quoted(found[0])} does not name an environment variable (capital letters, digits and '_')"


def _read_secret(path: Path) -> tuple[str, int]:
    """Read a file; returns its content without the last line end, and its mode. Raises `OSError` or `ValueError`."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):  # a pipe would wait for ever
        raise ValueError("is not a regular file")
    with path.open("rb") as file:
        content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise ValueError("is larger than 64 KiB")
    try:
        value = content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:  # not as the cause: it has the content of the file
        raise ValueError("is not UTF-8") from None
    if not value:
        raise ValueError("is empty")
    return value, mode
