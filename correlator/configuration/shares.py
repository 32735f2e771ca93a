"""Shares: the settings of the engine of one share, and the rules for settings that have shares."""

import dataclasses
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from correlator.configuration.problems import Findings, item, member
from correlator.errors import UsageError
from correlator.settings import EngineSettings

Settings = TypeVar("Settings", bound=EngineSettings)
PLACEHOLDER = "${share}"
"""Stands for the number of the share in every text of the settings."""
_LONGEST_SCHEMA = 63
"""Bytes; PostgreSQL cuts longer names off."""
_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]*", re.ASCII)
_LONGEST_NAME = 195
"""Characters of the name of an engine; the names of shares have up to 5 more."""


def of_share(settings: Settings, number: int) -> Settings:
    """Return the settings of the engine that runs one share: its store, its name, and its number in every text.

    Raises:
        UsageError: E2060, the settings have no such share.
    """
    if settings.shares is None or not 0 <= number < settings.shares.count:
        there = "no shares" if settings.shares is None else f"the shares 0 to {settings.shares.count - 1}"
        raise UsageError("E2060", f"share {number}", f"the engine {settings.name} has {there}")
    store = None if settings.store is None else in_schema(settings.store, f"{schema_of(settings)}_{number}")
    numbered: Settings = _numbered(dataclasses.replace(settings, shares=None, store=None), str(number))
    return dataclasses.replace(numbered, name=f"{settings.name}/{number}", store=store)


def example(settings: Settings) -> Settings:
    """Return settings that can be checked like the settings of one engine: those of the first share, if there are
    shares.
    """
    return settings if settings.shares is None else of_share(settings, 0)


def schema_of(settings: EngineSettings) -> str:
    """Return the beginning of the names of the schemas; the numbers of the shares follow it."""
    assert settings.shares is not None
    return settings.shares.schema or re.sub(r"[^a-z0-9_]", "_", settings.name.lower()) + "_share"


def in_schema(url: str, schema: str) -> str:
    """Return the URL of a schema in a PostgreSQL database; sessions have its name as their application name."""
    base, _, query = url.partition("?")
    given = parse_qsl(query, keep_blank_values=True)
    options = [value for name, value in given if name == "options"]
    others = [(name, value) for name, value in given if name not in ("options", "application_name")]
    named = [("options", " ".join([*options, f"-csearch_path={schema}"])), ("application_name", schema)]
    return f"{base}?{urlencode([*others, *named], quote_via=quote)}"


def check_shares(settings: EngineSettings, findings: Findings) -> None:
    """Report settings that several shares cannot have."""
    if settings.shares is None:
        return
    _check_store(settings.store, findings)
    _check_names(settings, settings.shares.count, findings)
    for index, receiver in enumerate(settings.receivers):
        destination = settings.destinations.get(receiver.destination, receiver.destination)
        if PLACEHOLDER not in destination + (receiver.durable_topic_subscription_name or ""):
            what = f"every share would receive from {findings.show(destination)}"
            allowed = f"{PLACEHOLDER} is the number of the share"
            todo = f"Put {PLACEHOLDER} into the destination, or for a topic into durable_topic_subscription_name"
            findings.error("E1332", member(item("receivers", index), "destination"), what, allowed, todo)
    if settings.input_log is not None and PLACEHOLDER not in settings.input_log:
        findings.error("E1332", "input_log", "every share would write the same file", "", f"Put {PLACEHOLDER} into it")
    if settings.http is not None and settings.http.port:
        what = f"every share would listen at port {settings.http.port}"
        findings.error("E1334", "http.port", what, "", "Set it to 0: the log names the port of each share")


def _check_store(store: str | None, findings: Findings) -> None:
    if store is None or not store.startswith("postgresql"):
        what = "shares need a store that all members can reach"
        findings.error("E1331", "store", what, "Use postgresql://user@host/database")
    elif "search_path" in "".join(value for name, value in parse_qsl(store.partition("?")[2]) if name == "options"):
        what = "the URL sets search_path, and each share has a schema of its own"
        findings.error("E1331", "store", what, "", "Remove the option; shares.schema names the schemas")


def _check_names(settings: EngineSettings, count: int, findings: Findings) -> None:
    schema = schema_of(settings)
    longest = max(f"{schema}_{count - 1}", f"{schema}_leases", key=len)
    todo = "Set shares.schema to a shorter name of lower-case letters, digits and '_'"
    if not _SCHEMA.fullmatch(schema):
        findings.error("E1333", "shares.schema", f"{findings.show(schema)} is not the name of a schema", "", todo)
    elif len(longest) > _LONGEST_SCHEMA:
        what = f"the name of a schema, {findings.show(longest)}, is longer than {_LONGEST_SCHEMA} bytes"
        findings.error("E1333", "shares.schema", what, "", todo)
    if len(settings.name) > _LONGEST_NAME:
        findings.error("E1333", "name", f"is longer than {_LONGEST_NAME} characters", "Shares add their number to it")


def _numbered(value: Any, number: str) -> Any:
    """Return a value with the number in place of the placeholder in every text."""
    if isinstance(value, str):
        return value if isinstance(value, Enum) else value.replace(PLACEHOLDER, number)
    if isinstance(value, Mapping):
        return {name: _numbered(one, number) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_numbered(one, number) for one in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [one.name for one in dataclasses.fields(value) if one.init]
        changed = {name: new for name in fields if (new := _numbered(old := getattr(value, name), number)) != old}
        return dataclasses.replace(value, **changed) if changed else value
    return value
