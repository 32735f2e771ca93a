"""Parts that code added in an earlier life: they come back by the rules of today, or are refused by name."""

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from correlator.configuration import NOTHING_PROVIDED, Provided, check_part_settings
from correlator.core.commit import Endpoint
from correlator.core.differences import Difference, Verdict
from correlator.errors import ConfigError, RecoveryRefused
from correlator.settings import EngineSettings, ReceiverSettings, SenderSettings


def dynamic_part(endpoint: Endpoint) -> ReceiverSettings | SenderSettings:
    """The settings of a dynamic part.

    Raises:
        RecoveryRefused: E4305, they have a value that no setting of this version may have.
    """
    try:
        if endpoint.kind == "receiver":
            return msgspec.json.decode(endpoint.settings, type=ReceiverSettings)
        return msgspec.json.decode(endpoint.settings, type=SenderSettings)
    except msgspec.ValidationError as error:
        raise _unusable(endpoint, f"E1022 {error}") from error


def compare_stored(
    endpoints: Iterable[Endpoint], settings: EngineSettings, provided: Provided = NOTHING_PROVIDED
) -> list[Difference]:
    """The dynamic parts that this configuration and this version cannot use any more (E4305), refused."""
    refused = []
    for endpoint in endpoints:
        try:
            with made_again(endpoint):
                if endpoint.origin == "dynamic":
                    check_part_settings(dynamic_part(endpoint), settings, provided)
        except RecoveryRefused as refusal:
            refused.append(
                Difference(kind=endpoint.kind, name=endpoint.id, verdict=Verdict.REFUSED, refusals=[refusal])
            )
    return refused


@contextmanager
def made_again(endpoint: Endpoint) -> Iterator[None]:
    """What is wrong with a dynamic part that is made in the block is told with its name, and with what removes it.

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
