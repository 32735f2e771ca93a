"""Generates the JSON Schema of a configuration file, for editors, from the settings classes that the reader uses.

The schema describes the text of values. It allows a placeholder in the place of any scalar, because the reader replaces
placeholders before it checks types.
"""

import dataclasses
import inspect
import re
from typing import Any

from correlator.configuration.constraints import IMPORT_PATH_PATTERN
from correlator.configuration.setting_types import (
    Setting,
    SettingType,
    remaining_keys,
    settings_of,
    shorthand_of,
    type_of,
    word_of,
)
from correlator.configuration.units import DURATION_PATTERN, SIZE_PATTERN

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLACEHOLDER = {"type": "string", "pattern": r"\$\{[^}]*\}"}
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
_ATTRIBUTE = re.compile(r"^ {4}(?P<name>\w+): ")

Schema = dict[str, Any]


def json_schema(root: type) -> Schema:
    """Return the schema of a file of class `root`. Its descriptions are the `Attributes` of docstrings."""
    definitions: dict[str, Schema] = {}
    top = _settings(root, definitions)
    return {"$schema": _DIALECT, **top, "$defs": dict(sorted(definitions.items()))}


def _settings(cls: type, definitions: dict[str, Schema]) -> Schema:
    texts = descriptions(cls)
    rest = remaining_keys(cls)
    settings = [setting for setting in settings_of(cls) if setting != rest]
    schema: Schema = {
        "type": "object",
        "description": summary(cls),
        "properties": {setting.key: _property(setting, texts, definitions) for setting in settings},
        "additionalProperties": rest is not None,
    }
    required = [setting.key for setting in settings if setting.required]
    return schema | ({"required": required} if required else {})


def _property(setting: Setting, texts: dict[str, str], definitions: dict[str, Schema]) -> Schema:
    schema = _value(type_of(setting.annotation), definitions)
    if setting.attribute in texts:
        schema = {"description": texts[setting.attribute], **schema}
    return schema


def _value(type_: SettingType, definitions: dict[str, Schema]) -> Schema:
    alternatives = type_.alternatives
    if len(alternatives) > 1 and all(alternative.is_settings for alternative in alternatives):
        return {"oneOf": [_step(alternative.bare, definitions) for alternative in alternatives]}
    schemas = [_single(alternative, definitions) for alternative in alternatives]
    if type_.optional:
        schemas.append({"type": "null"})
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _single(type_: SettingType, definitions: dict[str, Schema]) -> Schema:
    if type_.bare is Any:
        return {}
    if type_.is_settings:
        return _reference(type_.bare, definitions)
    if type_.is_mapping:
        return {"type": "object", "additionalProperties": _value(type_of(type_.arguments[1]), definitions)}
    if type_.is_list:
        return {"type": "array", "items": _value(type_of(type_.arguments[0]), definitions)}
    return _scalar(type_)


def _step(cls: type, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of one of several classes: a mapping whose only key is the word of the class."""
    value = _reference(cls, definitions)
    short = shorthand_of(cls)
    if short is not None:
        value = {"anyOf": [_value(type_of(short.annotation), definitions), value]}
    word = word_of(cls)
    if not any(setting.required for setting in settings_of(cls)):
        value = {"anyOf": [value, {"type": "null"}]}
    return {"type": "object", "properties": {word: value}, "required": [word], "additionalProperties": False}


def _reference(cls: type, definitions: dict[str, Schema]) -> Schema:
    if cls.__name__ not in definitions:
        definitions[cls.__name__] = {}  # ends the recursion while its own settings are described
        definitions[cls.__name__] = _settings(cls, definitions)
    return {"$ref": f"#/$defs/{cls.__name__}"}


def _scalar(type_: SettingType) -> Schema:
    if type_.choices:
        return {"anyOf": [{"enum": list(type_.choices)}, _PLACEHOLDER]}
    if unit := type_.marks.get("unit"):
        pattern = DURATION_PATTERN if unit == "duration" else SIZE_PATTERN
        return {"anyOf": [{"type": "string", "pattern": pattern}, _PLACEHOLDER]}
    schema: Schema = {"type": _TYPES[type_.bare], **_limits(type_)}
    if "import_path" in type_.marks:
        schema["pattern"] = IMPORT_PATH_PATTERN
    # Text with a placeholder in it is text anyway; a pattern or another type would refuse it.
    return schema if schema["type"] == "string" and "pattern" not in schema else {"anyOf": [schema, _PLACEHOLDER]}


def _limits(type_: SettingType) -> Schema:
    names = {
        "minimum": type_.ge,
        "exclusiveMinimum": type_.gt,
        "maximum": type_.le,
        "minLength": type_.min_length,
        "maxLength": type_.max_length,
    }
    return {name: limit for name, limit in names.items() if limit is not None}


def summary(cls: type) -> str:
    """Return the first paragraph of the docstring of a class, in one line."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def descriptions(cls: type) -> dict[str, str]:
    """Return the description of each attribute in the docstrings of a class and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            texts |= _attributes(inspect.cleandoc(vars(base).get("__doc__") or ""))
    return texts


def _attributes(docstring: str) -> dict[str, str]:
    lines = docstring.partition("Attributes:\n")[2].partition("\n\n")[0].splitlines()
    texts: dict[str, str] = {}
    name = ""
    for line in lines:
        if found := _ATTRIBUTE.match(line):
            name = found["name"]
            texts[name] = line[found.end() :]
        elif name:
            texts[name] += f" {line.strip()}"
    return texts
