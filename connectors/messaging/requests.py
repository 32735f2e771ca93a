"""Sends the questions of a session, and finds the answers to them."""

import time
import uuid
from typing import TYPE_CHECKING

import msgspec

from connectors.messaging.consumer import Consumer
from connectors.messaging.foreign import ForeignMessage, converted
from connectors.messaging.send_options import seconds
from correlator.connector import NO_SUCH_DESTINATION
from correlator.errors import ConnectionLost
from correlator.events import Headers, Message

if TYPE_CHECKING:
    from connectors.messaging.session import Session


class Requests:
    """Sends questions of a session one by one. The first question makes the temporary queue for all answers."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._answers: Consumer | None = None
        self._queue = ""

    def ask(self, destination: str, question: ForeignMessage, timeout_s: float | None) -> Message | None:
        """Send a question, and return its answer; see `Session.request`."""
        try:
            return self._ask(destination, question, timeout_s)
        except ConnectionLost:
            if self._answers is not None:
                self._answers.close()
                self._answers = None
            raise

    def _consumer(self) -> Consumer:
        """Make the consumer of the answers.

        Makes a new queue if there is none, or if the queue has ended with its connection.
        """
        if self._queue:
            try:
                return self._session.create_consumer(self._queue)
            except ConnectionLost as error:
                if error.code != NO_SUCH_DESTINATION:
                    raise
        self._queue = self._session.create_temporary_queue()
        return self._session.create_consumer(self._queue)

    def _ask(self, destination: str, question: ForeignMessage, timeout_s: float | None) -> Message | None:
        wait_s = seconds("request", timeout_s)
        native = converted(question, f"request to {destination}")
        if self._answers is None:
            self._answers = self._consumer()
        correlation = uuid.uuid4().hex
        headers = msgspec.structs.replace(native.headers or Headers(), correlation_id=correlation, reply_to=self._queue)
        producer = self._session.create_producer(destination)
        try:
            producer.send(msgspec.structs.replace(native, headers=headers))
        finally:
            producer.close()
        deadline = time.monotonic() + wait_s
        while (answer := self._answers.receive(max(0.0, deadline - time.monotonic()))) is not None:
            self._answers.settle(answer)
            if answer.headers is not None and answer.headers.correlation_id == correlation:
                return answer
        return None
