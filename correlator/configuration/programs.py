"""Checks settings that code has made, or that a store has kept, by the same rules as those of a file."""

from correlator.configuration.constraints import check_settings
from correlator.configuration.problems import Findings
from correlator.configuration.rules import (
    NOTHING_PROVIDED,
    Provided,
    advisors,
    check_endpoint,
    check_engine,
    check_windows,
)
from correlator.configuration.shares import check_shares
from correlator.errors import ConfigError
from correlator.settings import EngineSettings, ReceiverSettings, SenderSettings

_NO_FILE = ""


def require(settings: object, wanted: type, where: str, todo: str = "") -> None:
    """Raise `ConfigError` E1022 unless the object is an instance of the class.

    Args:
        settings: the object that a program has given.
        wanted: the class.
        where: the function or class that gets the object, for the message.
        todo: what to do, for a common mistake.
    """
    if not isinstance(settings, wanted):
        what = f"is of type {type(settings).__name__}, must be {wanted.__name__}"  # it may hold a password
        raise ConfigError("E1022", where, what, "", todo)


def check_engine_settings(settings: EngineSettings, provided: Provided = NOTHING_PROVIDED) -> tuple[ConfigError, ...]:
    """Check the settings of an engine; returns warnings.

    Raises:
        InvalidConfiguration: with all problems, as for a file, each with its path only.
    """
    findings = Findings(_NO_FILE)
    check_settings(settings, "", findings)
    findings.raise_errors()
    check_engine(settings, provided, findings)
    findings.raise_errors()
    return findings.warnings


def check_part_settings(
    part: ReceiverSettings | SenderSettings, settings: EngineSettings, provided: Provided = NOTHING_PROVIDED
) -> tuple[ConfigError, ...]:
    """Check a receiver or sender that is to be added to an engine with these settings; returns warnings.

    Raises:
        InvalidConfiguration: with all problems.
    """
    findings = Findings(_NO_FILE)
    kind = "receiver" if isinstance(part, ReceiverSettings) else "sender"
    path = f"{kind} {findings.show(part.id)}"
    check_settings(part, path, findings)
    findings.raise_errors()
    advising = advisors(settings, provided)
    check_endpoint(path, part, settings, provided, advising, findings)
    check_windows([(path, part)], settings, advising, findings)
    findings.raise_errors()
    return findings.warnings


def check_member_settings(settings: EngineSettings) -> tuple[ConfigError, ...]:
    """Check the settings of an engine with shares, except what the engine of each share checks; returns warnings.

    Raises:
        InvalidConfiguration: with all problems.
    """
    findings = Findings(_NO_FILE)
    check_settings(settings, "", findings)
    findings.raise_errors()
    check_shares(settings, findings)
    findings.raise_errors()
    return findings.warnings
