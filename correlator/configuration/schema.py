"""The JSON Schema of a configuration file, for editors: generated from the settings classes that the reader uses.

It describes values as an editor sees them. Placeholders are allowed wherever a scalar is: the reader replaces them
before it looks at the type.
"""

import dataclasses
import inspect
import re
from typing import Any

from correlator.configuration.constraints import IMPORT_PATH_PATTERN
from correlator.configuration.kinds import Kind, Setting, kind_of, remaining_keys, settings_of, shorthand_of, word_of
from correlator.configuration.units import DURATION_PATTERN, SIZE_PATTERN

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLACEHOLDER = {"type": "string", "pattern": r"\$\{[^}]*\}"}
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
_ATTRIBUTE = re.compile(r"^ {4}(?P<name>\w+): ")

Schema = dict[str, Any]


def json_schema(root: type) -> Schema:
    """The schema of the YAML whose whole is `root`; descriptions come from the `Attributes` of the docstrings."""
    definitions: dict[str, Schema] = {}
    top = _settings(root, definitions)
    return {"$schema": _DIALECT, **top, "$defs": dict(sorted(definitions.items()))}


def _settings(cls: type, definitions: dict[str, Schema]) -> Schema:
    texts = _descriptions(cls)
    rest = remaining_keys(cls)
    settings = [setting for setting in settings_of(cls) if setting != rest]
    schema: Schema = {
        "type": "object",
        "description": _summary(cls),
        "properties": {setting.key: _property(setting, texts, definitions) for setting in settings},
        "additionalProperties": rest is not None,
    }
    required = [setting.key for setting in settings if setting.required]
    return schema | ({"required": required} if required else {})


def _property(setting: Setting, texts: dict[str, str], definitions: dict[str, Schema]) -> Schema:
    schema = _value(kind_of(setting.annotation), definitions)
    if setting.attribute in texts:
        schema = {"description": texts[setting.attribute], **schema}
    return schema


def _value(kind: Kind, definitions: dict[str, Schema]) -> Schema:
    alternatives = kind.alternatives
    if len(alternatives) > 1 and all(alternative.is_settings for alternative in alternatives):
        return {"oneOf": [_step(alternative.bare, definitions) for alternative in alternatives]}
    schemas = [_single(alternative, definitions) for alternative in alternatives]
    if kind.optional:
        schemas.append({"type": "null"})
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _single(kind: Kind, definitions: dict[str, Schema]) -> Schema:
    if kind.bare is Any:
        return {}
    if kind.is_settings:
        return _reference(kind.bare, definitions)
    if kind.is_mapping:
        return {"type": "object", "additionalProperties": _value(kind_of(kind.arguments[1]), definitions)}
    if kind.is_list:
        return {"type": "array", "items": _value(kind_of(kind.arguments[0]), definitions)}
    return _scalar(kind)


def _step(cls: type, definitions: dict[str, Schema]) -> Schema:
    """One of several classes: a mapping whose only key is its word."""
    value = _reference(cls, definitions)
    short = shorthand_of(cls)
    if short is not None:
        value = {"anyOf": [_value(kind_of(short.annotation), definitions), value]}
    word = word_of(cls)
    if not any(setting.required for setting in settings_of(cls)):
        value = {"anyOf": [value, {"type": "null"}]}
    return {"type": "object", "properties": {word: value}, "required": [word], "additionalProperties": False}


def _reference(cls: type, definitions: dict[str, Schema]) -> Schema:
    if cls.__name__ not in definitions:
        definitions[cls.__name__] = {}  # stands for itself while its own settings are described
        definitions[cls.__name__] = _settings(cls, definitions)
    return {"$ref": f"#/$defs/{cls.__name__}"}


def _scalar(kind: Kind) -> Schema:
    if kind.choices:
        return {"anyOf": [{"enum": list(kind.choices)}, _PLACEHOLDER]}
    if unit := kind.marks.get("unit"):
        pattern = DURATION_PATTERN if unit == "duration" else SIZE_PATTERN
        return {"anyOf": [{"type": "string", "pattern": pattern}, _PLACEHOLDER]}
    schema: Schema = {"type": _TYPES[kind.bare], **_limits(kind)}
    if "import_path" in kind.marks:
        schema["pattern"] = IMPORT_PATH_PATTERN
    # Text with a placeholder in it is text anyway; a pattern or another type would refuse it.
    return schema if schema["type"] == "string" and "pattern" not in schema else {"anyOf": [schema, _PLACEHOLDER]}


def _limits(kind: Kind) -> Schema:
    names = {
        "minimum": kind.ge,
        "exclusiveMinimum": kind.gt,
        "maximum": kind.le,
        "minLength": kind.min_length,
        "maxLength": kind.max_length,
    }
    return {name: limit for name, limit in names.items() if limit is not None}


def _summary(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def _descriptions(cls: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say about each attribute."""
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
