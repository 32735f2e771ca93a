"""The settings with which an engine runs, each with its source, as people read them.

What a file does not set has its default, and defaults may follow from other settings. So this list, and not the file,
says what an engine does.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from correlator.configuration.problems import OVERRIDDEN, Origin, item, member, nearest
from correlator.configuration.setting_types import Setting, SettingType, settings_of, type_of, word_of
from correlator.core.registry import default_domain
from correlator.reliability import RECEIVING
from correlator.runtime import logs
from correlator.runtime.versions import versions
from correlator.secrets import REDACTED, is_secret_name, without_secrets
from correlator.settings import EngineSettings, ReceiverSettings

LONGEST_VALUE = 1_000
"""Characters; a longer value is cut."""
_NOT_OF_ENGINE = ("version", "tests")
"""Settings of the file that no engine uses."""
_KINDS = {"connections": "connection", "receivers": "receiver", "senders": "sender", "monitors": "monitor"}
_KINDS |= {"bridges": "bridge", "pipelines": "pipeline"}
_SIZES = [(f"{prefix}iB", 1024**power) for power, prefix in ((4, "T"), (3, "G"), (2, "M"), (1, "K"))]


class EffectiveSetting(NamedTuple):
    """The effective value of a setting, and its source.

    Attributes:
        part: the part of the engine, such as `receiver orders`; `engine` for settings of the engine itself.
        name: the name of the setting, as in the file, below its part.
        value: its value with its unit; `***` for a secret, "" if the setting has no value.
        source: `FILE:LINE`, `command line`, `code` or `default`.
    """

    part: str
    name: str
    value: str
    source: str


def effective_settings(settings: EngineSettings, origin: Origin) -> Iterator[EffectiveSetting]:
    """Return all settings, defaults too: those of the engine itself, then those of its parts.

    A value is a secret if its name suggests it, or a name around it. Passwords in URLs are secret, too, and what the
    reader of the file has found to be one.
    """
    return _Lines(settings, origin).all()


class InUse(Protocol):
    """Returns what an engine runs with: `in_use` for its settings."""

    def __call__(self, *, with_settings: bool = True) -> dict[str, Any]:
        """See `in_use`."""
        ...


def in_use(settings: EngineSettings, origin: Origin, *, with_settings: bool = True) -> dict[str, Any]:
    """Return what an engine runs with as values that JSON has: `versions`, `log_level` and `settings`.

    Without `with_settings`, `settings` is `None`.
    """
    rows = [one._asdict() for one in effective_settings(settings, origin)] if with_settings else None
    return {"versions": versions(), "log_level": logs.level(), "settings": rows}


class _Lines:
    def __init__(self, settings: EngineSettings, origin: Origin) -> None:
        self._settings = settings
        self._origin = origin

    def all(self) -> Iterator[EffectiveSetting]:
        cls: type = type(self._settings)
        settings = [one for one in settings_of(cls) if one.key not in _NOT_OF_ENGINE]
        for setting in settings:
            if setting.key not in _KINDS:
                value = getattr(self._settings, setting.attribute)
                yield from self._value(value, setting, setting.key, ("engine", ""))
        for setting in settings:
            if setting.key in _KINDS:
                yield from self._parts(getattr(self._settings, setting.attribute), setting.key)

    def _parts(self, parts: Any, key: str) -> Iterator[EffectiveSetting]:
        kind = _KINDS[key]
        if isinstance(parts, Mapping):
            for name, one in parts.items():
                path = member(key, name)
                yield from self._fields(one, path, (f"{kind} {name}", path))
            return
        for at, one in enumerate(parts):
            path = item(key, at)
            name = getattr(one, "id", None) or getattr(one, "name", None) or one.type
            yield from self._fields(one, path, (f"{kind} {name}", path))

    def _fields(self, settings: Any, path: str, part: tuple[str, str]) -> Iterator[EffectiveSetting]:
        cls: type = type(settings)
        for setting in settings_of(cls):
            value = getattr(settings, setting.attribute)
            if type_of(setting.annotation).marks.get("remaining_keys"):
                yield from self._entries(value, path, part)
            else:
                yield from self._value(value, setting, member(path, setting.key), part, of=settings)

    def _value(
        self, value: Any, setting: Setting, path: str, part: tuple[str, str], *, of: Any = None
    ) -> Iterator[EffectiveSetting]:
        if is_dataclass(value):
            yield from self._fields(value, path, part)
        elif isinstance(value, Mapping) and value:
            yield from self._entries(value, path, part)
        elif isinstance(value, Sequence) and value and is_dataclass(value[0]):
            several = len(type_of(type_of(setting.annotation).arguments[0]).alternatives) > 1
            for at, one in enumerate(value):
                place = item(path, at)
                yield from self._fields(one, member(place, word_of(type(one))) if several else place, part)
        else:
            yield self._line(value, setting, path, part, secret=is_secret_name(setting.key), of=of)

    def _entries(self, entries: Mapping[Any, Any], path: str, part: tuple[str, str]) -> Iterator[EffectiveSetting]:
        for name, one in entries.items():
            yield self._line(one, None, member(path, name), part, secret=is_secret_name(str(name)))

    def _line(
        self, value: Any, setting: Setting | None, path: str, part: tuple[str, str], *, secret: bool, of: Any = None
    ) -> EffectiveSetting:
        source = self._source(value, setting, path, of)
        title, above = part
        name = path.removeprefix(above).lstrip(".")
        value = self._chosen_for(of, setting) if value is None and setting is not None else value
        text = REDACTED if secret and value not in (None, "") else self._text(value, setting)
        return EffectiveSetting(title, name, text, source)

    def _chosen_for(self, of: Any, setting: Setting) -> str | None:
        """The value that the engine takes in place of `None`."""
        if not isinstance(of, ReceiverSettings):
            return None
        if setting.key == "dup_detection_domain_id" and RECEIVING[of.reliability].deduplicated:
            return default_domain(of, self._settings.destinations)
        return of.subscription if setting.key == "durable_topic_subscription_name" else None

    def _source(self, value: Any, setting: Setting | None, path: str, of: Any) -> str:
        places = self._origin.places
        if path not in places.positions:
            if setting is not None and not setting.required and value == setting.default:
                return "default"
            path = self._given_by(setting, path, of)
        if not places.file:
            return "code"
        position = nearest(path, places.positions)
        return "command line" if position == OVERRIDDEN else f"{places.file}:{position.line}"

    def _given_by(self, setting: Setting | None, path: str, of: Any) -> str:
        """The setting from which another one follows: the mode of a part may be that of its connection."""
        if setting is None or setting.key != "reliability":
            return path
        kind = path.partition("s[")[0]
        return member(member("connections", of.connection), f"default_{kind}_reliability")

    def _text(self, value: Any, setting: Setting | None) -> str:
        unit = "" if setting is None else _unit_of(type_of(setting.annotation))
        text = self._origin.redact(_shown(without_secrets(value), unit))
        return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _unit_of(type_: SettingType) -> str:
    """`duration`, `size` or "". The type of a setting that may be absent has it in its alternative."""
    return next((one.marks["unit"] for one in (type_, *type_.alternatives) if "unit" in one.marks), "")


def _shown(value: Any, unit: str) -> str:
    """A value in the form of the file."""
    if value is None:
        return ""
    if unit == "duration":
        return f"{value * 1000:g}ms" if 0 < value < 1 else f"{value:g}s"
    if unit == "size":
        fitting = (f"{value // size}{name}" for name, size in _SIZES if value and value % size == 0)
        return next(fitting, f"{value}B")
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
