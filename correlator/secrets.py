"""Recognises secrets of a configuration (passwords, tokens, keys), and removes them from output."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

REDACTED = "***"
"""Stands for a secret in every output."""
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:(?:ssl)?password|passwd|pwd|passphrase|secret|token|credentials?"
    r"|(?:api|access|private|secret)_?key|key_pem)$"
)
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Wider than a URL allows, so that a password whose "/" or "@" was not escaped is found too; bounded, to stay linear.
_URL_PASSWORD = re.compile(r"(?<=://)[^/?#:@\s]*:(?P<password>\S{1,256})@")
_PARAMETER = re.compile(r"(?<=[?&])(?P<name>[\w.-]{1,64})=(?P<value>[^&#\s]{1,4096})", re.ASCII)


class Secrets:
    """The secret values of one configuration. Its `repr` does not show them."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)} values)"

    def add(self, value: str) -> None:
        """Remember a secret value; ignore an empty one."""
        self._values.update(form for form in (value, value.strip(), unquote(value)) if form)

    def redact(self, text: str) -> str:
        """Replace every secret in a text by `***`."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, REDACTED)
        return text


def is_secret_name(name: str) -> bool:
    """Whether the name of a key or a variable suggests a secret: `password`, `DB_PASSWORD`, `authToken`."""
    return _SECRET_NAME.search(_CAMEL_HUMP.sub("_", name).replace("-", "_").replace(".", "_").lower()) is not None


def url_passwords(text: str) -> list[str]:
    """Return the passwords in the URLs of a text: before the host, and in parameters that are named like secrets."""
    if "://" not in text:
        return []
    before_hosts = [match["password"] for match in _URL_PASSWORD.finditer(text)]
    parameters = _PARAMETER.finditer(text)
    return [*before_hosts, *(match["value"] for match in parameters if is_secret_name(match["name"]))]


def without_secrets(value: Any) -> Any:
    """Return a copy of a value, for example of an option, with `***` in place of its secrets."""
    if isinstance(value, str):
        for password in url_passwords(value):
            value = value.replace(password, REDACTED)
    elif isinstance(value, Mapping):
        return {name: REDACTED if is_secret_name(str(name)) else without_secrets(one) for name, one in value.items()}
    elif isinstance(value, list | tuple):
        return [without_secrets(one) for one in value]
    return value
