"""Asks a schema registry, by the REST interface of Confluent, which other registries have, too."""

import base64
import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple

from connectors.kafka.protobuf import File
from correlator.errors import ConfigError, ConnectionLost, quoted
from correlator.options import secret_option, text_option

URL, USER, PASSWORD = "schema_registry", "schema_registry_user", "schema_registry_password"  # no secret
MISSING = "E7150"
"""The registry answers that it does not have a schema or subject."""
UNUSABLE = "E7152"
"""The registry refuses a request, or a sender cannot use a schema."""
_SILENT = "E7151"
_NOT_THERE = re.compile(rb'"error_code"\s*:\s*404[0-9]{2}\b')
"""Found in the answer of a registry that lacks something; a 404 of a proxy, or for a wrong path, does
not contain it.
"""
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_MOST_BYTES = 16 * 1024 * 1024
_MOST_KEPT = 1000
_MOST_FILES = 1000
_SERIALIZED = "?format=serialized"
"""Asks for a Protobuf schema as a `FileDescriptorProto` instead of its text."""
_MOST_TOLD, _MOST_SHOWN = 10_000, 500
_WAIT = "The engine continues as soon as the registry has it; a message waits for it for a minute"


class Used(NamedTuple):
    """Another schema of the registry, with the name by which a schema refers to it."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema of a registry.

    Attributes:
        id: its number, which never means another schema.
        kind: AVRO, JSON or PROTOBUF.
        definition: text of the schema.
        uses: other schemas of the registry that it uses.
    """

    id: int
    kind: str
    definition: str
    uses: Sequence[Used] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The address of a registry, and the user who asks it.

    Attributes:
        url: beginning of all its addresses.
        user: "" for none.
        password: of the user.
        timeout_s: the longest wait for an answer.
    """

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    timeout_s: int = 10


def registry(where: str, options: Mapping[str, Any], timeout_s: int) -> Registry | None:
    """Return the registry of a connection; `None` if it has none. Raises `ConfigError`."""
    if URL not in options:
        for name in (USER, PASSWORD):
            if name in options:
                raise ConfigError("E1022", f"{where}.{name}", f"is of no use without '{URL}'")
        return None
    url = text_option(where, options, URL)
    if not _is_address(url):
        todo = f"A user belongs to '{USER}' and '{PASSWORD}'"
        what = "is not the address of a registry"
        raise ConfigError("E1214", f"{where}.{URL}", what, "As in https://HOST:PORT", todo)
    user = text_option(where, options, USER) if USER in options else ""
    return Registry(
        url=url.rstrip("/"), user=user, password=secret_option(where, options, PASSWORD, ""), timeout_s=timeout_s
    )


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and not {" ", "@", "?", "#"} & set(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and is_plain


class Schemas:
    """The schemas of a registry, for one receiver or sender. One thread uses it.

    Args:
        where: the receiver or sender, for errors.
        registry: the registry.
    """

    def __init__(self, where: str, registry: Registry) -> None:
        self._where = where
        self._registry = registry
        self._opener = urllib.request.build_opener(_NoRedirects)
        self.of_id = lru_cache(_MOST_KEPT)(self._of_id)

    def latest(self, subject: str) -> Schema:
        """Return the latest schema of a subject. Raises `ConnectionLost` E7150 if there is none."""
        return self._asked(f"the subject {quoted(subject)}", _version(subject, "latest"))

    def register(self, subject: str, kind: str, definition: str) -> Schema:
        """Register a schema for a subject; if the registry has it already, it returns the same id.

        Raises `ConnectionLost` E7152 if the registry does not accept it.
        """
        body = {"schema": definition} | ({} if kind == "AVRO" else {"schemaType": kind})
        answer = self._ask(f"the subject {quoted(subject)}", _path("subjects", subject, "versions"), body)
        return Schema(_id_of(self._where, answer), kind, definition)

    def files(self, schema: Schema) -> tuple[str, Sequence[File]]:
        """Return a Protobuf schema in the form that `protobuf.codec` takes. Raises `ConnectionLost`."""
        path = _path("schemas", "ids", str(schema.id)) + _SERIALIZED
        found: dict[str, File] = {}
        self._add_files(schema.uses, found)
        return self._asked(f"schema {schema.id}", path, schema.id).definition, list(found.values())

    def _add_files(self, uses: Sequence[Used], found: dict[str, File]) -> None:
        for name, subject, version in uses:
            if name not in found and len(found) < _MOST_FILES:
                found[name] = File(name, "")  # a file that imports itself is malformed; ask for it once only
                what, path = f"version {version} of the subject {quoted(subject)}", _version(subject, str(version))
                schema = self._asked(what, path + _SERIALIZED)
                self._add_files(schema.uses, found)
                del found[name]  # so that it comes after those that it uses
                found[name] = File(name, schema.definition)

    def _of_id(self, number: int) -> Schema:
        """Return the schema with this id. Raises `ConnectionLost` E7150 if there is none."""
        return self._asked(f"schema {number}", _path("schemas", "ids", str(number)), number)

    def _asked(self, what: str, path: str, number: int | None = None) -> Schema:
        answer = self._ask(what, path)
        definition = answer.get("schema")
        if not isinstance(definition, str):
            raise ConnectionLost(UNUSABLE, self._where, f"the registry answers about {what} without a schema")
        its_id = _id_of(self._where, answer) if number is None else number
        try:
            uses = [Used(one["name"], one["subject"], int(one["version"])) for one in answer.get("references") or ()]
        except (TypeError, KeyError, ValueError) as error:
            what = f"the registry answers about {what} with malformed references"
            raise ConnectionLost(UNUSABLE, self._where, what) from error
        return Schema(its_id, str(answer.get("schemaType", "AVRO")), definition, uses)

    def _ask(self, what: str, path: str, body: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the answer to GET, or to POST with a body. Raises `ConnectionLost`."""
        registry = self._registry
        headers = {"Accept": _MEDIA_TYPE, "Content-Type": _MEDIA_TYPE}
        if registry.user:
            pair = base64.b64encode(f"{registry.user}:{registry.password}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(registry.url + path, data, headers)  # noqa: S310  # the option was checked
        try:
            with self._opener.open(request, timeout=registry.timeout_s) as answer:
                told = json.loads(answer.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            raise self._refused(what, error) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = f"the registry {registry.url} cannot be asked ({str(error).lower()})"
            raise ConnectionLost(_SILENT, self._where, reason) from error
        if not isinstance(told, dict):
            raise ConnectionLost(UNUSABLE, self._where, f"the registry answers about {what} with an unexpected content")
        return told

    def _refused(self, what: str, error: urllib.error.HTTPError) -> ConnectionLost:
        with error:
            try:
                told = error.read(_MOST_TOLD)
            except (OSError, http.client.HTTPException):
                told = b""
        if error.code == HTTPStatus.NOT_FOUND and _NOT_THERE.search(told):
            return ConnectionLost(MISSING, self._where, f"the registry does not have {what}", "", _WAIT)
        if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            todo = f"Check {USER} and {PASSWORD}"
            return ConnectionLost("E7002", self._where, f"the registry answers {error.code} about {what}", "", todo)
        if HTTPStatus.MULTIPLE_CHOICES <= error.code < HTTPStatus.BAD_REQUEST:
            there = quoted(error.headers.get("Location", ""))
            reason = f"the registry answers {error.code} about {what} and redirects to {there}, which is not followed"
            return ConnectionLost(UNUSABLE, self._where, reason, "", f"Set {URL} to the address that answers")
        shown = " ".join(told[:_MOST_SHOWN].decode(errors="replace").split())
        return ConnectionLost(UNUSABLE, self._where, f"the registry answers {error.code} about {what}: {shown}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into an error: user and password of the request are only for the configured address."""

    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect."""


def _path(*names: str) -> str:
    return "".join(f"/{urllib.parse.quote(name, safe='')}" for name in names)


def _version(subject: str, version: str) -> str:
    return _path("subjects", subject, "versions", version)


def _id_of(where: str, answer: Mapping[str, Any]) -> int:
    number = answer.get("id")
    if not isinstance(number, int):
        raise ConnectionLost(UNUSABLE, where, "the registry answers without the id of a schema")
    return number
