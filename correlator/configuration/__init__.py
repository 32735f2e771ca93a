"""Reads a configuration file: turns YAML into typed settings, and reports all mistakes at once, each with its place.

The package knows the settings, the errors and the reliability modes, but nothing of the engine, Spark or databases.
"""

from correlator.configuration.files import EngineFile
from correlator.configuration.imports import import_object
from correlator.configuration.loading import Check, Loaded, read_file, read_text
from correlator.configuration.problems import IN_CODE, Findings, InvalidConfiguration, Origin, Places, Position
from correlator.configuration.programs import (
    check_engine_settings,
    check_member_settings,
    check_part_settings,
    require,
)
from correlator.configuration.rules import NOTHING_PROVIDED, Provided
from correlator.configuration.schema import json_schema
from correlator.configuration.shares import in_schema, of_share, schema_of
from correlator.secrets import Secrets

__all__ = [
    "IN_CODE",
    "NOTHING_PROVIDED",
    "Check",
    "EngineFile",
    "Findings",
    "InvalidConfiguration",
    "Loaded",
    "Origin",
    "Places",
    "Position",
    "Provided",
    "Secrets",
    "check_engine_settings",
    "check_member_settings",
    "check_part_settings",
    "import_object",
    "in_schema",
    "json_schema",
    "of_share",
    "read_file",
    "read_text",
    "require",
    "schema_of",
]
