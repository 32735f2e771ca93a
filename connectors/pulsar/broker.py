"""The options of a connection: addresses of the broker, token, TLS, time-outs, defaults."""

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import certifi

from connectors.pulsar.priorities import MAPPINGS
from correlator.errors import ConfigError, quoted
from correlator.options import (
    check_options,
    choice_option,
    duration_option,
    flag_option,
    secret_option,
    text_option,
    whole_option,
)

_TOKENS = ("token", "token_file", "password")
"""Options that may contain the token; only one of them may be set."""
_SCHEME = "token:"
_TOKEN = re.compile(r"[!-~]*")
"""Characters that the header of a request may contain."""
OPTIONS = (
    "service_url",
    "web_service_url",
    "namespace",
    *_TOKENS,
    "user",
    "tls_trust_certs_file",
    "timeout_s",
    "deduplication",
    "client_id",
    "ack_timeout",
    "priority_mapping",
)
_SHORTEST_ACK_TIMEOUT_S, _LONGEST_ACK_TIMEOUT_S = 10.0, 24 * 3600.0
_SCHEMES = {"pulsar": 6650, "pulsar+ssl": 6651}
"""The schemes of service URLs, with their default ports."""
_SERVICE_URL = re.compile(r"([^:/]+)://([^/]+)/?")
_WEB_SERVICE_URL = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?")
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_NAMESPACE = re.compile(r"[\w=:.-]+/[\w=:.-]+", re.ASCII)


class BrokerAddress(NamedTuple):
    """Host and port on which a broker or proxy listens for Pulsar's binary protocol."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarBroker:
    """A broker or cluster, and how to connect to it.

    Attributes:
        service_url: address of one broker, or of several brokers of one cluster.
        web_service_url: address of the REST interface, for browsing and deleting; "" if unknown.
        namespace: `TENANT/NAMESPACE` of destinations that name none.
        token_file: file with the token, instead of `token`; for a token that expires and is renewed.
        timeout_s: longest wait in seconds for an answer to a connect or a subscription, and for the next confirm.
        deduplication: whether the namespaces drop messages that a producer repeats.
        client_id: the beginning of the names of subscriptions of topics, as in JMS; "" for none.
        ack_timeout_s: seconds after which the client gives unacknowledged messages back; `None` for never.
        priority_mapping: how priorities are mapped to partitions, one of `MAPPINGS`; "" if they have no effect.
    """

    service_url: str = "pulsar://127.0.0.1:6650"
    web_service_url: str = ""
    namespace: str = "public/default"
    token: str = field(default="", repr=False)
    token_file: str = ""
    tls_trust_certs_file: str = ""
    timeout_s: int = 10
    deduplication: bool = False
    client_id: str = ""
    ack_timeout_s: float | None = None
    priority_mapping: str = ""

    @property
    def addresses(self) -> Sequence[BrokerAddress]:
        """All addresses of the service URL."""
        return _addresses(self.service_url)

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.service_url.startswith("pulsar+ssl:")

    @property
    def trusted(self) -> str:
        """The file with the certificates of trusted authorities."""
        return self.tls_trust_certs_file or certifi.where()

    def current_token(self) -> str:
        """Return the present token; "" for none.

        Reads its file each time; raises `OSError`, `ValueError` if the file contains no token.
        """
        if not self.token_file:
            return self.token
        token = Path(self.token_file).read_bytes().decode("ascii", errors="replace").strip()
        if not _TOKEN.fullmatch(token):
            raise ValueError("holds no token")
        return token

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the settings for TLS, `None` without TLS. Reads the certificates each time; raises `OSError`."""
        return ssl.create_default_context(cafile=self.trusted) if self.is_encrypted else None


def broker(where: str, options: Mapping[str, Any]) -> PulsarBroker:
    """Make a broker from the options of a connection. Raises `ConfigError` if one is wrong."""
    check_options(where, options, OPTIONS)
    default = PulsarBroker()
    made = PulsarBroker(
        service_url=_service_url(where, options, default.service_url),
        web_service_url=_web_service_url(where, options) if "web_service_url" in options else "",
        namespace=_namespace(where, options, default.namespace),
        token=_token(where, options),
        timeout_s=whole_option(where, options, "timeout_s", default.timeout_s, 3600),
        deduplication=flag_option(where, options, "deduplication"),
        ack_timeout_s=_ack_timeout_s(where, options),
        priority_mapping=_priority_mapping(where, options),
        **{
            name: text_option(where, options, name)
            for name in ("token_file", "tls_trust_certs_file", "client_id")
            if name in options
        },
    )
    if made.priority_mapping and made.ack_timeout_s is not None:
        what = (
            "is of no use beside 'priority_mapping': the client would count the time that messages wait for their turn"
        )
        raise ConfigError("E1022", f"{where}.ack_timeout", what, "", "Remove one of them")
    if made.tls_trust_certs_file and not made.is_encrypted:
        todo = "Set a service_url that begins with pulsar+ssl://"
        raise ConfigError("E1022", f"{where}.tls_trust_certs_file", "is of no use without TLS", "", todo)
    return made


def _token(where: str, options: Mapping[str, Any]) -> str:
    """Return the token. JMS has user and password: for Pulsar the password is a token, which names its user."""
    given = [name for name in _TOKENS if name in options]
    if len(given) > 1:
        raise ConfigError("E1022", f"{where}.{given[1]}", f"is of no use beside '{given[0]}'", "", "Set one of them")
    if "user" in options:
        text_option(where, options, "user")
        if "password" not in given:
            raise ConfigError("E1022", f"{where}.user", "is of no use without 'password'", "", "Remove it")
    name = "password" if "password" in given else "token"
    text = secret_option(where, options, name, "")
    if name == "password" and not text.startswith(_SCHEME):
        raise ConfigError("E1022", f"{where}.password", "holds no token", "token: and the token")
    token = text.removeprefix(_SCHEME) if name == "password" else text
    if not _TOKEN.fullmatch(token):
        what = "holds a blank, or a character that no token has"
        raise ConfigError("E1022", f"{where}.{name}", what, "Printable ASCII characters without blanks")
    return token


def _ack_timeout_s(where: str, options: Mapping[str, Any]) -> float | None:
    """Return the option `ack_timeout`. The client has no back-off for it, and allows no shorter time."""
    allowed = "One duration from 10s to 24h: it does not grow"
    shortest, longest = _SHORTEST_ACK_TIMEOUT_S, _LONGEST_ACK_TIMEOUT_S
    return duration_option(where, options, "ack_timeout", allowed, lambda time_s: shortest <= time_s <= longest)


def _priority_mapping(where: str, options: Mapping[str, Any]) -> str:
    name = "priority_mapping"
    return choice_option(where, options, name, MAPPINGS) if name in options else ""


def _service_url(where: str, options: Mapping[str, Any], default: str) -> str:
    """Return the service URL. The error does not repeat it, since a user may have written a password into it."""
    url = text_option(where, options, "service_url", default)
    try:
        _addresses(url)
    except ValueError as error:
        allowed = "Use pulsar://HOST:PORT or pulsar+ssl://HOST:PORT, several HOST:PORT separated by commas"
        raise ConfigError("E1214", f"{where}.service_url", str(error), allowed) from error
    return url


def _web_service_url(where: str, options: Mapping[str, Any]) -> str:
    """Return the address of the REST interface. The error does not repeat it, either."""
    url = text_option(where, options, "web_service_url")
    if not _WEB_SERVICE_URL.fullmatch(url):
        what = "is not the address of a REST interface"
        raise ConfigError("E1214", f"{where}.web_service_url", what, "Use http://HOST:PORT or https://HOST:PORT")
    return url


def _addresses(url: str) -> Sequence[BrokerAddress]:
    parts = _SERVICE_URL.fullmatch(url)
    if parts is None or parts[1] not in _SCHEMES:
        raise ValueError("is not the address of a Pulsar broker")
    return [_address(text, _SCHEMES[parts[1]]) for text in parts[2].split(",")]


def _address(text: str, usual_port: int) -> BrokerAddress:
    parts = _HOST.fullmatch(text)
    if parts is None:
        raise ValueError("has a malformed host or port")
    port = int(parts[2] or usual_port)
    if not 1 <= port <= 65535:
        raise ValueError(f"port {port} is not between 1 and 65535")
    return BrokerAddress(parts[1].strip("[]"), port)


def _namespace(where: str, options: Mapping[str, Any], default: str) -> str:
    namespace = text_option(where, options, "namespace", default)
    if not _NAMESPACE.fullmatch(namespace):
        what = f"{quoted(namespace)} is not a namespace"
        raise ConfigError("E1022", f"{where}.namespace", what, "TENANT/NAMESPACE, as in public/default")
    return namespace
