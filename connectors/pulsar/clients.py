"""Which client ids the connections of this process have. The broker knows none, and nobody knows of other processes."""

import threading
import weakref
from typing import NamedTuple

from connectors.pulsar.broker import PulsarBroker
from correlator.errors import ConfigError, quoted
from correlator.settings import ConnectionSettings


class _Claim(NamedTuple):
    """What a connection has; those with the very same settings object count as one, as sessions of one connection."""

    name: str
    settings: ConnectionSettings
    service_url: str
    client_id: str

    def excludes(self, other: "_Claim") -> bool:
        same = (self.service_url, self.client_id) == (other.service_url, other.client_id)
        return same and self.settings is not other.settings


_claims: "weakref.WeakKeyDictionary[object, _Claim]" = weakref.WeakKeyDictionary()
_changing = threading.Lock()


def claim(holder: object, name: str, settings: ConnectionSettings, broker: PulsarBroker) -> None:
    """Have the client id of a broker, until `release` or the end of the holder. Raises `ConfigError` E1226."""
    if not broker.client_id:
        return
    mine = _Claim(name, settings, broker.service_url, broker.client_id)
    with _changing:
        for other in _claims.values():
            if mine.excludes(other):
                what = f"{quoted(mine.client_id)} is that of connection '{other.name}' in this process"
                raise ConfigError("E1226", f"connections.{name}.client_id", what, "", "Choose another one")
        _claims[holder] = mine


def release(holder: object) -> None:
    """Let others have it."""
    with _changing:
        _claims.pop(holder, None)
