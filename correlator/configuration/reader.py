"""Turns a tree of YAML nodes into settings. It works for any frozen dataclass, so that no setting needs code of its
own.

A settings class defines everything: its fields with their annotations (`settings.py`), `word` and `shorthand` of a
class that is one of several alternatives (a step), and errors that `__post_init__` raises, `ConfigError` or
`ValueError`, for constraints that a type cannot express. All mistakes are reported. No refused value reaches a settings
class.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from correlator.configuration.document import MappingNode, Node, ScalarNode, SequenceNode
from correlator.configuration.problems import Findings, item, member
from correlator.configuration.scalars import core_value, describe, other_boolean
from correlator.configuration.setting_types import (
    Setting,
    SettingType,
    remaining_keys,
    settings_of,
    shorthand_of,
    type_of,
    word_of,
)
from correlator.configuration.values import INVALID, Values
from correlator.configuration.words import modern_spelling
from correlator.errors import CorrelatorError, quoted

T = TypeVar("T")
_ANY = SettingType(bare=Any)
_SCALARS: dict[Any, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (int, float)}


class Reader:
    """Reads the settings of one file; owned by the thread that reads it."""

    def __init__(self, values: Values, findings: Findings) -> None:
        self._values = values
        self._findings = findings

    def read(self, node: Node, root: type[T]) -> T | None:
        """Read the settings of a whole file; `None` if a value was refused, which is then reported."""
        settings = self._value(node, SettingType(bare=root), "", "")
        return settings if isinstance(settings, root) else None

    def _value(self, node: Node, type_: SettingType, path: str, key: str) -> Any:
        """Read a node; reports a mistake, and then returns `INVALID`. `key` is the nearest key above the node."""
        self._findings.positions[path] = node.position
        if type_.optional and _is_null(node):
            return None
        if _is_null(node) and any(not one.is_settings for one in type_.alternatives[1:]):
            return self._refuse("E1022", path, "is empty, must have a value", 'For an empty text write ""')
        type_ = _fitting(type_, node)
        if type_.bare is Any:
            return self._anything(node, path, key)
        if type_.origin is not type_.bare and len(type_.alternatives) > 1:
            return self._one_of(node, [alternative.bare for alternative in type_.alternatives], path)
        return self._single(node, type_, path, key)

    def _single(self, node: Node, type_: SettingType, path: str, key: str) -> Any:
        if type_.is_settings:
            return self._settings(node, type_.bare, path)
        if type_.is_mapping:
            return self._mapping(node, type_, path)
        if type_.is_list:
            return self._list(node, type_, path, key)
        if not isinstance(node, ScalarNode):
            return self._refuse("E1022", path, f"is {_shape(node)}, must be a single value")
        return self._values.read(node, type_, path, key)

    def _anything(self, node: Node, path: str, key: str) -> Any:
        match node:
            case ScalarNode():
                return self._values.read(node, _ANY, path, key)
            case SequenceNode():
                return self._list(node, SettingType(bare=list[Any]), path, key)
            case MappingNode():
                return self._mapping(node, SettingType(bare=dict[str, Any]), path)

    def _list(self, node: Node, type_: SettingType, path: str, key: str) -> Any:
        if not isinstance(node, SequenceNode):
            return self._refuse("E1022", path, f"is {_shape(node)}, must be a list", "Write [a, b] or lines with '- '")
        inner = type_of(type_.arguments[0])
        values = [self._value(entry, inner, item(path, index), key) for index, entry in enumerate(node.items)]
        if not _all_valid(values):
            return INVALID
        return values if type_.origin is list else tuple(values)

    def _mapping(self, node: Node, type_: SettingType, path: str) -> Any:
        if not isinstance(node, MappingNode):
            return self._refuse("E1022", path, f"is {_shape(node)}, must be a mapping")
        names, inner = (type_of(argument) for argument in type_.arguments)
        values = {}
        for key, value in node.entries:
            place = member(path, key.text)
            self._findings.positions[place] = value.position
            values[self._name(key, names, place)] = self._value(value, inner, place, key.text)
        return values if _all_valid([*values, *values.values()]) else INVALID

    def _name(self, key: ScalarNode, type_: SettingType, path: str) -> Any:
        """Read a key of a mapping whose keys the user chooses."""
        if self._mistaken(key, path):
            return INVALID
        if type_.choices:
            return self._values.read(key, type_, path, "")
        return self._values.identifier(key.text, path)

    def _mistaken(self, key: ScalarNode, path: str) -> bool:
        """Report a key that is not text in one of the versions of YAML; returns whether there was one."""
        if not key.plain:
            return False
        if other_boolean(key.text) is not None or isinstance(core_value(key.text), bool):
            boolean = other_boolean(key.text) or core_value(key.text) is True
            what = f"key is the boolean {str(boolean).lower()} (YAML reads unquoted '{key.text}' so)"
            self._findings.error("E1023", path, what, "", f'Quote it: "{key.text}"', at=key.position)
            return True
        if isinstance(core_value(key.text), str):
            return False
        self._findings.error("E1024", path, f"key is {describe(key.text)}", "", "Quote it", at=key.position)
        return True

    def _settings(self, node: Node, cls: type, path: str) -> Any:
        if not isinstance(node, MappingNode):
            return self._refuse("E1022", path, f"is {_shape(node)}, must be a mapping", _keys_of(cls))
        known = {setting.key: setting for setting in settings_of(cls)}
        rest = remaining_keys(cls)
        if rest is not None:
            del known[rest.key]
        values: dict[str, Any] = {}
        others: list[tuple[ScalarNode, Node]] = []
        for key, value in node.entries:
            if setting := known.get(key.text):
                values[setting.attribute] = self._member(value, setting, member(path, key.text))
            else:
                others.append((key, value))
        if rest is not None:
            values[rest.attribute] = self._mapping(_without(others, node), type_of(rest.annotation), path)
        else:
            self._unknown(others, known, path, _below(cls))
        if not self._complete(node, known.values(), values, path):
            return INVALID
        return self._construct(cls, values, path)

    def _member(self, node: Node, setting: Setting, path: str) -> Any:
        return self._value(node, type_of(setting.annotation), path, setting.key)

    def _unknown(
        self,
        entries: list[tuple[ScalarNode, Node]],
        known: Collection[str],
        path: str,
        elsewhere: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Report keys that are not known; `elsewhere` says for some where they belong."""
        for key, _ in entries:
            place = member(path, key.text)
            if self._mistaken(key, place):
                continue
            hint = modern_spelling(key.text, known) or elsewhere.get(key.text, "")
            hint = hint or self._findings.hint(key.text, known)
            known_keys = "" if hint else f"Known: {', '.join(known)}"
            self._findings.error("E1020", place, "unknown key", hint or known_keys, at=key.position)

    def _complete(self, node: Node, settings: Iterable[Setting], values: dict[str, Any], path: str) -> bool:
        """Report missing settings; returns whether none is missing and no value was refused."""
        missing = [entry.key for entry in settings if entry.required and entry.attribute not in values]
        for key in missing:
            self._findings.error("E1021", path, f"{quoted(key)} is missing", at=node.position)
        return not missing and _all_valid(values.values())

    def _construct(self, cls: type, values: dict[str, Any], path: str) -> Any:
        try:
            return cls(**values)
        except CorrelatorError as exc:
            setting = f"{path}.{exc.where}"
            place = setting if setting in self._findings.positions else path
            return self._refuse(exc.code, place, exc.what, exc.allowed, exc.todo)
        except ValueError as exc:
            return self._refuse("E1022", path, str(exc))

    def _one_of(self, node: Node, classes: list[type], path: str) -> Any:
        """Read a mapping with one key, which chooses the class; its value holds the fields, or the shorthand."""
        by_word = {word_of(cls): cls for cls in classes}
        if not isinstance(node, MappingNode) or len(node.entries) != 1:
            what = f"is {_shape(node)}, must be a mapping with exactly one key"
            return self._refuse("E1022", path, what, f"Known: {', '.join(by_word)}")
        key, value = node.entries[0]
        place = member(path, key.text)
        cls = by_word.get(key.text)
        if cls is None:
            self._unknown([(key, value)], by_word, path)
            return INVALID
        self._findings.positions[place] = value.position
        return self._alternative(value, cls, place)

    def _alternative(self, node: Node, cls: type, path: str) -> Any:
        short = shorthand_of(cls)
        if short is not None and _is_shorthand(node, cls, short):
            values = {short.attribute: self._member(node, short, path)}
            complete = self._complete(node, settings_of(cls), values, path)
            return self._construct(cls, values, path) if complete else INVALID
        return self._settings(MappingNode(position=node.position, entries=()) if _is_null(node) else node, cls, path)

    def _refuse(self, code: str, path: str, what: str, allowed: str = "", todo: str = "") -> Any:
        self._findings.error(code, path, what, allowed, todo)
        return INVALID


def _fitting(type_: SettingType, node: Node) -> SettingType:
    """Choose the member of a union that a node of this shape can be. A union of classes stays as it is."""
    alternatives = type_.alternatives
    if len(alternatives) == 1:
        return alternatives[0]
    if all(alternative.is_settings for alternative in alternatives):
        return type_
    return next((entry for entry in alternatives if _fits(entry, node)), alternatives[0])


def _fits(type_: SettingType, node: Node) -> bool:
    match node:
        case SequenceNode():
            return type_.is_list
        case MappingNode():
            return type_.is_mapping or type_.is_settings
        case ScalarNode():
            value = core_value(node.text) if node.plain and "${" not in node.text else node.text
            if type_.is_list or type_.is_mapping or type_.is_settings:
                return False
            return type(value) in _SCALARS.get(type_.bare, (str,))


def _is_shorthand(node: Node, cls: type, short: Setting) -> bool:
    """Whether a node is the value of the shorthand. A mapping is one only if the class has no other field."""
    if isinstance(node, ScalarNode):
        return not _is_null(node)
    types_ = type_of(short.annotation).alternatives
    if isinstance(node, SequenceNode):
        return any(type_.is_list for type_ in types_)
    is_mapping = any(type_.is_mapping for type_ in types_) and len(settings_of(cls)) == 1
    return is_mapping and not _names_setting(node, short)


def _names_setting(node: MappingNode, short: Setting) -> bool:
    """Whether a mapping has the setting of a shorthand as its only key, and not an entry of this name."""
    if len(node.entries) != 1:
        return False
    key, value = node.entries[0]
    return key.text == short.key and not isinstance(value, ScalarNode)


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.plain and core_value(node.text) is None


def _shape(node: Node) -> str:
    match node:
        case SequenceNode():
            return "a list"
        case MappingNode():
            return f"a mapping with {len(node.entries)} keys" if len(node.entries) != 1 else "a mapping"
        case _:
            return "empty" if _is_null(node) else "a single value"


@cache
def _below(cls: type) -> Mapping[str, str]:
    """For each key of the settings that are directly below those of a class, a hint that says where it belongs."""
    found: dict[str, list[str]] = {}
    for setting in settings_of(cls):
        for key in {one.key for inner in _classes_in(type_of(setting.annotation)) for one in settings_of(inner)}:
            found.setdefault(key, []).append(f"'{setting.key}'")
    return {key: f"It is a setting of {' or '.join(places)}" for key, places in found.items()}


def _classes_in(type_: SettingType) -> Iterator[type]:
    """The settings classes that a type is made of: the class itself, or those of the items of a list or mapping."""
    for one in type_.alternatives:
        if one.is_settings:
            yield one.bare
        elif one.is_list or one.is_mapping:
            yield from _classes_in(type_of(one.arguments[-1 if one.is_mapping else 0]))


def _keys_of(cls: type) -> str:
    return f"Its keys: {', '.join(setting.key for setting in settings_of(cls))}"


def _without(entries: list[tuple[ScalarNode, Node]], node: MappingNode) -> MappingNode:
    return MappingNode(position=node.position, entries=tuple(entries))


def _all_valid(values: Iterable[Any]) -> bool:
    return all(value is not INVALID for value in values)
