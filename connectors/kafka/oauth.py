"""Logging in with a token of an authorization server (SASL OAUTHBEARER). The client library asks the server for it."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from connectors.kafka.tls import PROTOCOL
from correlator.errors import ConfigError
from correlator.serving import is_loopback

NO_LOGIN = "Failed to acquire SASL OAUTHBEARER token"
"""Begins the error with which the library reports that it has not got a token. It goes on with the token that it has,
and asks again after ten seconds.
"""
_MECHANISM = "OAUTHBEARER"
_METHOD, _ENDPOINT = "sasl.oauthbearer.method", "sasl.oauthbearer.token.endpoint.url"
_OIDC = "oidc"


def check_token(where: str, client: Mapping[str, Any]) -> None:
    """Raise `ConfigError` E1022 if a client would get no token, or would show its secret to others in the network.

    Args:
        where: the place of the settings.
        client: the settings of the client.
    """
    if not _uses_token(client):
        return
    if str(client.get(_METHOD)).lower() != _OIDC:
        what = "is missing or has another value, so the client would have no token that a broker can verify"
        raise ConfigError("E1022", f"{where}.{_METHOD}", what, "oidc", f"Also set {_ENDPOINT} and what it needs")
    if _ENDPOINT in client and not _keeps_secrets(str(client[_ENDPOINT])):
        what = "is no address of a server to which a secret can be sent without others reading it"
        raise ConfigError("E1022", f"{where}.{_ENDPOINT}", what, "https://HOST/PATH; on this machine also http")


def without_token(client: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings for a client that is made to check them: the library checks those of tokens as well, but asks
    no server.
    """
    return {**client, PROTOCOL: "SSL"} if _uses_token(client) else client


def _keeps_secrets(address: str) -> bool:
    try:
        url = urlsplit(address)
        host = url.hostname or ""
    except ValueError:
        return False
    return host != "" and (url.scheme == "https" or (url.scheme == "http" and is_loopback(host)))


def _uses_token(client: Mapping[str, Any]) -> bool:
    named = (client.get("sasl.mechanisms"), client.get("sasl.mechanism"))
    return any(str(name).upper() == _MECHANISM for name in named)
