"""Calls of librdkafka that may last longer than the time-out that they are given, or may never return."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import confluent_kafka as kafka

from connectors.kafka.failures import timed_out

_GRACE_S = 1.0
T = TypeVar("T")


def answer_within(timeout_s: float, call: Callable[[], T]) -> T:
    """Make a call in a thread of its own, and return its result.

    Gives up one second after the time-out, which the call should keep itself. The thread then continues, and the caller
    must not use the client of the call again. Raises the error of the call, and `KafkaException` if it gives up.
    """
    done: Future[T] = Future()

    def make() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001  # the caller gets it
            done.set_exception(error)
        except kafka.KafkaError as error:  # type: ignore[misc]  # a fatal error comes bare, and is no `BaseException`
            done.set_exception(kafka.KafkaException(error))

    threading.Thread(target=make, name="kafka call", daemon=True).start()
    try:
        return done.result(timeout_s + _GRACE_S)
    except TimeoutError:
        raise timed_out("a call was given up") from None
