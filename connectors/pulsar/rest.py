"""Requests to the broker's REST interface, for operations that its binary protocol does not have."""

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from typing import Any

from connectors.pulsar.broker import PulsarBroker
from correlator.errors import ConnectionLost


class NotThere(Exception):
    """The topic or subscription does not exist."""


class InUse(Exception):
    """The topic or subscription has a consumer or producer."""


_MEANINGS: dict[int, type[Exception]] = {HTTPStatus.NOT_FOUND: NotThere, HTTPStatus.PRECONDITION_FAILED: InUse}


def ask(where: str, broker: PulsarBroker, method: str, topic: str, *rest: str) -> Any:
    """Return the answer to a request about a topic, or about a part of it; `None` for an empty answer.

    Raises `NotThere`, `InUse`, `ConnectionLost`.
    """
    return _ask(where, broker, method, "persistent", *parts_of(topic), *rest)


def ask_about(where: str, broker: PulsarBroker, *names: str) -> Any:
    """Return the answer to a question about something that is no topic, such as a namespace.

    Raises `NotThere`, `ConnectionLost`.
    """
    return _ask(where, broker, "GET", *names)


def ask_schema(where: str, broker: PulsarBroker, topic: str, version: int) -> Any:
    """Return the answer to a request for an existing version of a topic's schema. Raises `ConnectionLost`."""
    try:
        return _ask(where, broker, "GET", "schemas", *parts_of(topic), "schema", str(version))
    except NotThere as error:
        what = f"{broker.web_service_url} answered 404 about schema {version} of {topic}, which there is"
        raise ConnectionLost("E7025", where, what, "", "Look at web_service_url") from error


def parts_of(topic: str) -> list[str]:
    """Return tenant, namespace and name of a topic."""
    return topic.removeprefix("persistent://").split("/", 2)


def _ask(where: str, broker: PulsarBroker, method: str, *names: str) -> Any:
    path = "/".join(urllib.parse.quote(name, safe="") for name in names)
    address = f"{broker.web_service_url.rstrip('/')}/admin/v2/{path}"
    try:
        token = broker.current_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(address, headers=headers, method=method)  # noqa: S310  # see the options
        context = ssl.create_default_context(cafile=broker.trusted) if address.startswith("https:") else None
        opener = urllib.request.build_opener(_Redirects, urllib.request.HTTPSHandler(context=context))
        with opener.open(request, timeout=broker.timeout_s) as answer:
            content = answer.read()
        return json.loads(content) if content else None
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _MEANINGS:
            raise _MEANINGS[error.code] from error
        raise _refused(where, broker, error.code) from error
    except (OSError, ValueError) as error:
        what = f"cannot ask {broker.web_service_url} ({str(error).lower()})"
        raise ConnectionLost("E7001", where, what, "", "Look at web_service_url") from error


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects with every method: a broker redirects requests about topics of another broker."""

    def redirect_request(self, req: urllib.request.Request, *there: Any) -> urllib.request.Request:
        *_, address = there
        return urllib.request.Request(address, headers=req.headers, method=req.get_method())  # noqa: S310


def _refused(where: str, broker: PulsarBroker, status: int) -> ConnectionLost:
    what = f"{broker.web_service_url} answered {status}"
    if status == HTTPStatus.UNAUTHORIZED:
        return ConnectionLost("E7002", where, what, "", "Check token or token_file")
    if status == HTTPStatus.FORBIDDEN:
        return ConnectionLost("E7007", where, what, "", "Grant the permission on the namespace")
    return ConnectionLost("E7025", where, what)
