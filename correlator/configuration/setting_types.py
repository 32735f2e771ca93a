"""Takes annotations of settings apart: bare types, constraints, and the fields of settings classes.

Both the reader and the JSON Schema use this module, so that they cannot disagree.
"""

import dataclasses
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_CLASS_SUFFIXES = ("Step", "Settings")


@dataclass(frozen=True, kw_only=True)
class SettingType:
    """The type of a setting: its annotation, taken apart.

    Attributes:
        bare: the type without `Annotated`.
        ge: smallest allowed value.
        gt: number that the value must exceed.
        le: largest allowed value.
        min_length: smallest number of characters or items.
        max_length: largest number of characters or items.
        marks: the `extra` of the annotations (`unit`, `identifier`, `template`, `selector`, `import_path`,
            `remaining_keys`).
    """

    bare: Any
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    marks: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def origin(self) -> Any:
        """The generic type (`tuple`, `Mapping`, `Literal`, `Union`), or the type itself."""
        origin = get_origin(self.bare)
        return Union if origin is types.UnionType else origin or self.bare

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the generic type."""
        return get_args(self.bare)

    @cached_property
    def is_settings(self) -> bool:
        """Whether this is a settings class."""
        return isinstance(self.bare, type) and dataclasses.is_dataclass(self.bare)

    @cached_property
    def is_mapping(self) -> bool:
        """Whether this is a mapping from names to values."""
        return isinstance(self.origin, type) and issubclass(self.origin, Mapping)

    @cached_property
    def is_list(self) -> bool:
        """Whether this is a list of values."""
        return isinstance(self.origin, type) and issubclass(self.origin, Sequence) and not issubclass(self.origin, str)

    @cached_property
    def choices(self) -> Mapping[str, Any]:
        """The values of a `Literal` or an enumeration, by the text that stands for them; empty for other types."""
        if self.origin is Literal:
            return {str(value): value for value in self.arguments}
        if isinstance(self.bare, type) and issubclass(self.bare, Enum):
            return {str(choice.value): choice for choice in self.bare}
        return {}

    @cached_property
    def alternatives(self) -> tuple["SettingType", ...]:
        """The members of a union, without `None`; for another type, the type itself."""
        if self.origin is not Union:
            return (self,)
        return tuple(type_of(member) for member in self.arguments if member is not types.NoneType)

    @cached_property
    def optional(self) -> bool:
        """Whether the setting may be `None`: its annotation is `None` or a union that includes `None`."""
        return self.bare is None or types.NoneType in (self.arguments if self.origin is Union else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of a settings class: its key in the file, its attribute, its type, and whether it is required."""

    key: str
    attribute: str
    annotation: Any
    required: bool
    default: Any


@cache
def type_of(annotation: Any) -> SettingType:
    """Take an annotation apart. Constraints of nested `Annotated` are joined; the outermost constraint of a kind
    counts.
    """
    if get_origin(annotation) is not Annotated:
        return SettingType(bare=annotation)
    bare, *metadata = get_args(annotation)
    found: dict[str, Any] = {}
    marks: dict[str, Any] = {}
    for meta in (entry for entry in metadata if isinstance(entry, msgspec.Meta)):
        limits = {name: getattr(meta, name) for name in ("ge", "gt", "le", "min_length", "max_length")}
        found |= {name: limit for name, limit in limits.items() if limit is not None}
        marks |= meta.extra or {}
    return SettingType(bare=bare, marks=marks, **found)


@cache
def settings_of(cls: type) -> tuple[Setting, ...]:
    """Return the fields of a settings class. A trailing underscore, as in `from_`, is not part of the key."""
    hints = get_type_hints(cls, include_extras=True)
    missing = dataclasses.MISSING
    return tuple(
        Setting(
            key=entry.name.removesuffix("_"),
            attribute=entry.name,
            annotation=hints[entry.name],
            required=entry.default is missing and entry.default_factory is missing,
            default=entry.default_factory() if entry.default_factory is not missing else entry.default,
        )
        for entry in dataclasses.fields(cls)
        if entry.init
    )


def remaining_keys(cls: type) -> Setting | None:
    """Return the field that collects all keys that do not belong to another field of the class, or `None`."""
    found = (entry for entry in settings_of(cls) if type_of(entry.annotation).marks.get("remaining_keys"))
    return next(found, None)


def word_of(cls: type) -> str:
    """Return the key that chooses this class among others: its `word`, or its name in snake_case without `Step`."""
    declared = vars(cls).get("word")
    if isinstance(declared, str):
        return declared
    name = cls.__name__
    for suffix in _CLASS_SUFFIXES:
        name = name.removesuffix(suffix)
    return _CAMEL_HUMP.sub("_", name).lower()


def shorthand_of(cls: type) -> Setting | None:
    """Return the field that a single value sets if it stands in the place of a mapping of all fields, or `None`."""
    name = getattr(cls, "shorthand", None)
    return next((entry for entry in settings_of(cls) if entry.attribute == name), None)
