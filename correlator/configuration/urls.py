"""Checks the URL of a broker, without showing its password."""

import re
from ipaddress import AddressValueError, IPv6Address

_HOST = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>[^:]*))?")
_USER_INFO = re.compile(r"(?<=://)[^/?#]*@")


def check_url(url: str) -> str | None:
    """Return what is wrong with a URL such as `amqp://host:5672/vhost`, or `None`.

    The text quotes at most the scheme, the host and the port, never the user or the password.

    Args:
        url: the URL; several hosts, as Pulsar allows, are separated by commas.
    """
    if any(c.isspace() or not c.isprintable() for c in url):
        return "contains a space or a control character"
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return "has no scheme, such as amqp://"
    authority = re.split(r"[/?#]", _USER_INFO.sub("", f"://{rest}")[3:], maxsplit=1)[0]
    if "@" in rest and "@" not in re.split(r"[/?#]", rest, maxsplit=1)[0]:
        return "has an '@' after the host: in a password, write '/' as %2F, '?' as %3F and '#' as %23"
    problems = (_check_host(host) for host in authority.split(","))
    return next((problem for problem in problems if problem), None)


def _check_host(authority: str) -> str | None:
    found = _HOST.fullmatch(authority)
    if found is None:
        return "an IPv6 address must stand in brackets, as in [::1]"
    host, port = found["host"], found["port"]
    if host.startswith("[") and not _is_ipv6(host[1:-1]):
        return "has brackets around what is not an IPv6 address"
    return _check_port(port) if host else "has no host"


def _is_ipv6(text: str) -> bool:
    try:
        return bool(IPv6Address(text))
    except AddressValueError:
        return False


def _check_port(port: str | None) -> str | None:
    if port is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", port, re.ASCII):
        return "the port is not a number"
    return None if 1 <= int(port) <= 65535 else f"port {int(port)} is not in 1..65535"
