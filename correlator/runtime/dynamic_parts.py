"""Parts that code added in an earlier life: a start makes them again, or names the parts that it refuses."""

import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from correlator.configuration import NOTHING_PROVIDED, Provided, check_part_settings
from correlator.core.commit import Endpoint
from correlator.core.differences import Difference, Verdict
from correlator.core.intake import Numbers
from correlator.core.registry import RECEIVER, SENDER
from correlator.errors import ConfigError, RecoveryRefused
from correlator.ports import Processor
from correlator.runtime.clock import EngineTime, SystemClock
from correlator.runtime.parts import Parts
from correlator.settings import EngineSettings, ReceiverSettings, SenderSettings


def dynamic_part(endpoint: Endpoint) -> ReceiverSettings | SenderSettings:
    """Decode the settings of a dynamic part.

    Raises:
        RecoveryRefused: E4305, a setting has a value that this version does not allow.
    """
    try:
        if endpoint.kind == "receiver":
            return RECEIVER.decode(endpoint.settings)
        return SENDER.decode(endpoint.settings)
    except msgspec.ValidationError as error:
        raise _unusable(endpoint, f"E1022 {error}") from error


def compare_stored(
    endpoints: Iterable[Endpoint], settings: EngineSettings, provided: Provided = NOTHING_PROVIDED
) -> list[Difference]:
    """Return a refusal (E4305) for each dynamic part that this configuration or this version no longer allows."""
    return _refused(endpoints, lambda part: check_part_settings(part, settings, provided))


def compare_made(
    endpoints: Iterable[Endpoint], settings: EngineSettings, processors: Iterable[Processor]
) -> list[Difference]:
    """Return a refusal (E4305) for each dynamic part that a connector or a pipeline of this configuration does not
    accept.

    Makes all parts as a start does, and opens nothing. Raises `ConfigError` if a configured part is not accepted.
    """
    clock = SystemClock()
    parts = Parts(
        settings,
        {},
        clock=clock,
        engine_time=EngineTime(clock),
        writer=None,
        blocking=False,
        jitter=lambda: 0.0,
    )

    def make(part: ReceiverSettings | SenderSettings) -> None:
        if isinstance(part, ReceiverSettings):
            parts.add_receiver(parts.make_receiver(part, Numbers(), ""))
        else:
            parts.add_sender(parts.make_sender(part, ""))

    try:
        for name in {monitor.context: None for monitor in settings.monitors} or ("main",):
            parts.context(name, lambda *_: None)
        for processor in processors:
            parts.add_processor(processor)
        configured: list[ReceiverSettings | SenderSettings] = [*settings.senders, *settings.receivers]
        for part in configured:
            make(part)
        names = {part.id for part in configured}
        return _refused([endpoint for endpoint in endpoints if endpoint.id not in names], make)
    finally:
        parts.close()


def _refused(
    endpoints: Iterable[Endpoint], ask: Callable[[ReceiverSettings | SenderSettings], object]
) -> list[Difference]:
    refused = []
    for endpoint in (one for one in endpoints if one.origin == "dynamic"):
        try:
            with made_again(endpoint):
                ask(dynamic_part(endpoint))
        except RecoveryRefused as refusal:
            refused.append(
                Difference(kind=endpoint.kind, name=endpoint.id, verdict=Verdict.REFUSED, refusals=[refusal])
            )
    return refused


@contextmanager
def made_again(endpoint: Endpoint) -> Iterator[None]:
    """Turn a `ConfigError` of the block into a refusal that names the dynamic part and the command that removes it.

    Raises:
        RecoveryRefused: E4305.
    """
    try:
        yield
    except ConfigError as error:
        if endpoint.origin != "dynamic":
            raise
        raise _unusable(endpoint, str(error)) from error


def _unusable(endpoint: Endpoint, why: str) -> RecoveryRefused:
    return RecoveryRefused(
        "E4305",
        f"{endpoint.kind} '{endpoint.id}'",
        "was added by code before, and cannot be used any more",
        why,
        f"Make it usable again, or remove it with what it holds: correlator db forget STORE {shlex.quote(endpoint.id)}",
    )
