"""The client ids of the connections of this process. Pulsar has no client ids, so other processes are not checked."""

import threading
import weakref
from typing import NamedTuple

from connectors.pulsar.broker import PulsarBroker
from correlator.errors import ConfigError, quoted
from correlator.settings import ConnectionSettings


class _Claim(NamedTuple):
    """The client id of a connection. Connections with the same settings object count as one, because
    sessions need this.
    """

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
    """Reserve the client id for the holder until `release`, or until the holder is deleted.

    Raises `ConfigError` E1226.
    """
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
    """Free the client id of the holder."""
    with _changing:
        _claims.pop(holder, None)
