"""The top level of the configuration file of an engine without pipelines."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from correlator.settings import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenMessage:
    """A message that an inline test gives to pipelines and bridges.

    Attributes:
        body: the body of the message, as text.
        receiver: the receiver from which it comes; by default the first receiver of the first pipeline or bridge.
        key: the key of the message.
        properties: the application properties of the message: text, numbers, `true` or `false`.
    """

    body: str
    receiver: str | None = None
    key: str | None = None
    properties: Mapping[str, str | bool | int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedMessage:
    """A message that an inline test expects.

    Attributes:
        to: id of the sender, or `dead_letters`.
        body: the whole text of the body; for a dead letter the beginning of the reason, such as `E5101`.
        row: fields that a JSON body must have, with their values as text; other fields are not compared.
    """

    to: str
    body: str | None = None
    row: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineTest:
    """A test in the file, run by `correlator test` without any broker.

    Attributes:
        name: name of the test, which says what the test shows.
        given: messages or only their bodies, in order; all input ends after them.
        then: all messages that are sent, in order for each sender.
    """

    name: str
    given: tuple[str | GivenMessage, ...]
    then: tuple[ExpectedMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFile(EngineSettings):
    """A configuration file of an engine without pipelines.

    Attributes:
        version: version of the format of configuration files.
        tests: inline tests, which `correlator test` runs.
    """

    version: int = 1
    tests: tuple[InlineTest, ...] = ()
