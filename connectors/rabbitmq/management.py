"""Asks the server's management API for the arguments and policies of queues, which AMQP does not show."""

import http.client
import json
import time
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from connectors.rabbitmq.broker import RabbitBroker
from connectors.rabbitmq_server import reason
from correlator.errors import quoted

COLLECTING_S = 12.0
"""Longest wait in seconds for the policy of a new queue: the server collects statistics of its queues every 5 s."""
_LARGEST_ANSWER = 1 << 20
_POLICY = "effective_policy_definition"


class Queue(NamedTuple):
    """The properties of a queue at the server, or of one that would be declared.

    Attributes:
        rules: its arguments and its policy, with the names that policies use: `max-length`, not `x-max-length`.
        policy_known: whether the server has reported the policy; it does not if it collects no statistics.
    """

    durable: bool
    rules: Mapping[str, Any]
    policy_known: bool = True


def queue_of(broker: RabbitBroker, name: str, deadline: float) -> Queue:
    """Return the properties of an existing queue; ask until its policy is known, or until the (monotonic) deadline.

    Raises `OSError` whose text tells why the API gives no answer.
    """
    address = f"{broker.host}:{broker.management_port}"
    wanted = f"columns=durable,arguments,{_POLICY}"
    path = f"/api/queues/{quote(broker.virtual_host, safe='')}/{quote(name, safe='')}?{wanted}"
    try:
        found = _get(broker, path)
        durable = bool(found["durable"])
        while _POLICY not in found and time.monotonic() < deadline:
            time.sleep(0.2)
            found = _get(broker, path)
        rules = {**(found.get(_POLICY) or {}), **rules_of(found["arguments"])}
        return Queue(durable, rules, _POLICY in found)
    except OSError as error:
        raise OSError(f"{address}: {reason(error)}") from error
    except (http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OSError(f"{address}: what answers is not the management API") from error


def rules_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a queue with the names that policies use."""
    return {name.removeprefix("x-"): value for name, value in arguments.items()}


def _get(broker: RabbitBroker, path: str) -> Any:
    where, context = (broker.host, broker.management_port), broker.tls_context()
    connection = (
        http.client.HTTPConnection(*where, timeout=broker.timeout_s)
        if context is None
        else http.client.HTTPSConnection(*where, timeout=broker.timeout_s, context=context)
    )
    try:
        credentials = b64encode(f"{broker.user}:{broker.current_password()}".encode()).decode()
        connection.request("GET", path, headers={"Authorization": f"Basic {credentials}"})
        answer = connection.getresponse()
        content = answer.read(_LARGEST_ANSWER)
        if answer.status != http.client.OK:
            raise OSError(f"answered {answer.status} {quoted(answer.reason)}")
        return json.loads(content)
    finally:
        connection.close()
