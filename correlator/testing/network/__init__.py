"""A TCP proxy for tests that loses, cuts, holds and delays the bytes of a connection at places that the test names.

    with FaultProxy(server_port) as proxy:
        lost = proxy.inject(lost_reply(POSTGRES_COMMIT))
        ...                                                # the program under test talks to proxy.port
        assert lost.wait(10)

Proxy and server are on loopback. `faults` defines the faults, `proxy` the proxy.
"""

from correlator.testing.network.faults import (
    ANY,
    POSTGRES_COMMIT,
    Action,
    AtByte,
    AtRequest,
    CutConnection,
    Delay,
    Direction,
    FaultPlace,
    NetworkFault,
    Stall,
    Swallow,
    lost_reply,
    lost_request,
)
from correlator.testing.network.link import Injection
from correlator.testing.network.proxy import FaultProxy

__all__ = [
    "ANY",
    "POSTGRES_COMMIT",
    "Action",
    "AtByte",
    "AtRequest",
    "CutConnection",
    "Delay",
    "Direction",
    "FaultPlace",
    "FaultProxy",
    "Injection",
    "NetworkFault",
    "Stall",
    "Swallow",
    "lost_reply",
    "lost_request",
]
