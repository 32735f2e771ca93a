"""Settings that a program made, or that a store has kept: checked by the rules that a file's settings pass."""

from correlator.configuration.constraints import check_settings
from correlator.configuration.problems import Findings
from correlator.configuration.rules import NOTHING_PROVIDED, Provided, advisors, check_endpoint, check_engine
from correlator.errors import ConfigError
from correlator.settings import EngineSettings, ReceiverSettings, SenderSettings

_NO_FILE = ""


def require(settings: object, wanted: type, where: str, todo: str = "") -> None:
    """Refuse what is no object of this class. Raises `ConfigError` E1022.

    Args:
        settings: as a program gives it.
        wanted: the class.
        where: who is given it, for the message.
        todo: what to do where a mistake is common.
    """
    if not isinstance(settings, wanted):
        what = f"is of type {type(settings).__name__}, must be {wanted.__name__}"  # it may hold a password
        raise ConfigError("E1022", where, what, "", todo)


def check_engine_settings(settings: EngineSettings, provided: Provided = NOTHING_PROVIDED) -> tuple[ConfigError, ...]:
    """Check the settings of an engine; gives what will work and is probably not meant.

    Raises:
        InvalidConfiguration: with all problems, as for a file; places are named by their path alone.
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
    """Check a receiver or sender that is to be added to an engine with these settings; as `check_engine_settings`.

    Raises:
        InvalidConfiguration: with all problems.
    """
    findings = Findings(_NO_FILE)
    kind = "receiver" if isinstance(part, ReceiverSettings) else "sender"
    path = f"{kind} {findings.show(part.id)}"
    check_settings(part, path, findings)
    findings.raise_errors()
    check_endpoint(path, part, settings, provided, advisors(settings, provided), findings)
    findings.raise_errors()
    return findings.warnings
