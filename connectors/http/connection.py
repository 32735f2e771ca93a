"""The entry point of the connector `http`: checks options; makes sources and sinks."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from connectors.http.application import Rules
from connectors.http.paths import check_path
from connectors.http.server import WebServer
from connectors.http.service import Service, service
from connectors.http.signatures import key_of
from connectors.http.sink import Calling, HttpSink
from connectors.http.source import HttpSource
from correlator.connector import Features
from correlator.errors import ConfigError, ConnectionLost, CorrelatorError, quoted
from correlator.events import UNIQUE_ID
from correlator.options import check_options, duration_option, flag_option, host_option, text_option, whole_option
from correlator.serving import is_loopback
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

_OPTIONS = ("host", "port", "url", "ca_file", "deduplication")
_OF_RECEIVERS = ("token", "secret", "headers")
_OF_SENDERS = ("token", "headers", "content_type", "concurrency", "timeout")
_LEAST_TOKEN = 32
_TOKEN = re.compile(r"[!-~]+")
_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}")
_OWN_HEADERS = frozenset(
    {"authorization", "connection", "content-length", "content-type", "cookie", "host", "idempotency-key"}
    | {"transfer-encoding", "expect", "te", "trailer", "upgrade", "accept-encoding", "content-encoding"}
)
_MOST_LANES = 64
_LONGEST_TIMEOUT_S = 600.0
_TIMEOUT_S = 30.0


class HttpConnection:
    """A port at which requests become messages, or a service that gets messages as requests, or both.

    docs/web.md lists the options of the connection and those of receivers and senders.
    """

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        self._where = where = f"connections.{name}"
        options = settings.options
        check_options(where, options, _OPTIONS)
        self._server: WebServer | None = None
        if "port" in options:
            port = whole_option(where, options, "port", 0, 65_535, least=0)
            self._server = WebServer(where, host_option(where, options, "host", "127.0.0.1"), port)
        elif "host" in options:
            raise ConfigError("E1021", where, "'port' is missing", "'host' is an address at which a port is open")
        self._service: Service | None = None
        if "url" in options:
            self._service = service(where, options)
        elif unused := {"ca_file", "deduplication"} & options.keys():
            raise ConfigError("E1021", where, "'url' is missing", f"{min(unused)} is about the service of senders")
        self.features = Features(
            redelivers=False,
            answers=True,
            shares=False,
            carries_properties=False,
            deduplicates_sends=flag_option(where, options, "deduplication"),
        )

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port at which it listens; `None` if it does not listen."""
        return None if self._server is None else self._server.address

    def source(self, receiver: ReceiverSettings) -> HttpSource:
        """Make a source of the requests to a path. Raises `ConfigError` E1216 for a connection without a port."""
        where = f"receivers.{receiver.id}"
        check_options(where, receiver.options, _OF_RECEIVERS)
        path = check_path(where, receiver.destination)
        if self._server is None:
            what = "receives at no port, since its connection has none"
            raise ConfigError("E1216", f"{where}.destination", what, "", f"Set {self._where}.port")
        return HttpSource(receiver, self._server, path, _rules(where, receiver, self._server))

    def sink(self, sender: SenderSettings) -> HttpSink:
        """Make a sink that sends requests to the service. Raises `ConfigError` E1216 for a connection without a URL."""
        where = f"senders.{sender.id}"
        check_options(where, sender.options, _OF_SENDERS)
        if sender.destination is not None:
            check_path(where, sender.destination)
        if self._service is None:
            what = "sends to no service, since its connection has none"
            raise ConfigError("E1216", f"{where}.destination", what, "", f"Set {self._where}.url")
        return HttpSink(self._service, _calling(where, sender))

    def carries(self, sender: SenderSettings, name: str) -> bool:
        """Whether a property becomes a header of requests; see `correlator.connector.Carrying`."""
        return name.lower() in _headers(f"senders.{sender.id}", sender.options)

    def listen(self) -> None:
        """Begin to listen. Until the receiver of a path is connected, the path answers 503. Raises
        `ConfigError` E1604.
        """
        if self._server is not None:
            self._server.listen()

    def examine(
        self, _receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
    ) -> Sequence[CorrelatorError]:
        """Return why the service cannot be reached, for `correlator doctor`. Sends nothing."""
        if self._service is None or not senders:
            return []
        try:
            self._service.open(self._where, _TIMEOUT_S).close()
        except ConnectionLost as error:
            return [error]
        return []

    def close(self) -> None:
        """Stop listening; the port is free when this returns. Never raises."""
        if self._server is not None:
            self._server.close()


def _rules(where: str, receiver: ReceiverSettings, server: WebServer) -> Rules:
    """Read the options of a receiver. Raises `ConfigError`."""
    tokens = _tokens(where, receiver.options)
    keys = _keys(where, receiver.options)
    if not tokens and not keys and not is_loopback(server.host):
        what = f"every machine that reaches {quoted(server.host)} could send, without a token and without a signature"
        todo = "Set 'token' or 'secret' in the options, or leave 'host' of the connection out"
        raise ConfigError("E1601", where, what, "", todo)
    return Rules(
        name=receiver.destination.partition(":")[2],
        tokens=tokens,
        keys=keys,
        headers=_headers(where, receiver.options),
        needs_key=receiver.reliability == "EXACTLY_ONCE" and f"property.{UNIQUE_ID}" in receiver.unique_message_id,
        most_lines=receiver.max_batch_size,
        most_bytes=max(receiver.max_batch_bytes, receiver.max_message_bytes),
        most_message_bytes=receiver.max_message_bytes,
    )


def _calling(where: str, sender: SenderSettings) -> Calling:
    """Read the options of a sender. Raises `ConfigError`."""
    options = sender.options
    allowed = f"From 100ms to {_LONGEST_TIMEOUT_S:g}s"
    timeout_s = duration_option(where, options, "timeout", allowed, lambda s: 0.1 <= s <= _LONGEST_TIMEOUT_S)
    tokens = _tokens(where, options, least=1)
    if len(tokens) > 1:
        raise ConfigError("E1022", f"{where}.token", "is a list; a sender has one token")
    content_type = text_option(where, options, "content_type", "application/json")
    if not content_type.isascii() or not content_type.isprintable():
        raise ConfigError("E1022", f"{where}.content_type", f"{quoted(content_type)} is not a content type")
    return Calling(
        where=where,
        stamps_key=sender.reliability != "AT_LEAST_ONCE",
        token=next(iter(tokens), ""),
        headers=_headers(where, options),
        content_type=content_type,
        lanes=whole_option(where, options, "concurrency", 1, _MOST_LANES),
        timeout_s=_TIMEOUT_S if timeout_s is None else timeout_s,
    )


def _listed(where: str, options: Mapping[str, Any], name: str) -> Sequence[str]:
    """Return a text, or a list of texts, as a list. Raises `ConfigError` E1022, whose text omits the value."""
    value = options.get(name, ())
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise ConfigError("E1022", f"{where}.{name}", "is neither a text nor a list of texts")
    if name in options and not listed:
        raise ConfigError("E1022", f"{where}.{name}", "is an empty list", "", "Leave it out, or give a value")
    return listed


def _tokens(where: str, options: Mapping[str, Any], least: int = _LEAST_TOKEN) -> Sequence[str]:
    tokens = _listed(where, options, "token")
    for token in tokens:
        if len(token) < least:
            raise ConfigError("E1022", f"{where}.token", "is too short", f"At least {least} characters")
        if not _TOKEN.fullmatch(token):
            what = "contains a blank, or a character that is not allowed in an HTTP header"
            raise ConfigError("E1602", f"{where}.token", what, "Printable ASCII characters without blanks")
    return tokens


def _keys(where: str, options: Mapping[str, Any]) -> Collection[bytes]:
    keys = [key_of(secret) for secret in _listed(where, options, "secret")]
    if None in keys:
        allowed = "Base64 of at least 24 bytes, usually after whsec_, as Standard Webhooks defines it"
        raise ConfigError("E1022", f"{where}.secret", "is not the secret of a webhook", allowed)
    return [key for key in keys if key is not None]


def _headers(where: str, options: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of headers in lower case. Raises `ConfigError` E1022."""
    names = [name.lower() for name in _listed(where, options, "headers")]
    for name in names:
        if not _HEADER_NAME.fullmatch(name) or name in _OWN_HEADERS:
            raise ConfigError("E1022", f"{where}.headers", f"{quoted(name)} is not a header that may be named here")
    return names
