"""Sessions: connection, session, producer, consumer and browser as in JMS 2.0, over any connector (docs/sessions.md).

This package uses only the port of connectors (`correlator.connector`), and knows no broker.
"""

from connectors.messaging.browser import Browser
from connectors.messaging.completions import Completion
from connectors.messaging.connection import Connection
from connectors.messaging.consumer import Consumer
from connectors.messaging.deliveries import AcknowledgeMode
from connectors.messaging.factory import ConnectionFactory
from connectors.messaging.foreign import ForeignMessage
from connectors.messaging.housekeeping import ExceptionListener
from connectors.messaging.listening import Listener
from connectors.messaging.producer import Producer
from connectors.messaging.send_options import SendOptions
from connectors.messaging.session import Session

__all__ = [
    "AcknowledgeMode",
    "Browser",
    "Completion",
    "Connection",
    "ConnectionFactory",
    "Consumer",
    "ExceptionListener",
    "ForeignMessage",
    "Listener",
    "Producer",
    "SendOptions",
    "Session",
]
