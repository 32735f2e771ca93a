"""Turns a scalar into a value of the type of its setting, or reports what the value must be."""

import math
import re
from collections.abc import Callable
from typing import Any, Final

from correlator.configuration import units
from correlator.configuration.constraints import noun_of, problem_of, problem_of_choice, problem_of_name
from correlator.configuration.document import ScalarNode
from correlator.configuration.interpolation import Interpolation
from correlator.configuration.problems import Findings
from correlator.configuration.scalars import core_value, describe, other_boolean, other_reading
from correlator.configuration.setting_types import SettingType
from correlator.secrets import is_secret_name, url_passwords

INVALID: Final = object()
"""The result of reading a value that was reported; never part of settings."""

_WHOLE = re.compile(r"[-+]?[0-9]{1,19}", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


class Values:
    """Reads scalars of one file. A method that has reported a mistake returns `INVALID`.

    Attributes:
        import_paths: the import paths of the file, by the path of their setting.
        plain_secrets: the paths of passwords that stand in the file itself.
    """

    def __init__(self, interpolation: Interpolation, findings: Findings) -> None:
        self._interpolation = interpolation
        self._findings = findings
        self.import_paths: dict[str, str] = {}
        self.plain_secrets: list[str] = []

    def read(self, node: ScalarNode, type_: SettingType, path: str, key: str) -> Any:
        """Read a scalar for a setting of this type, whose key is `key`."""
        text = self._interpolation.resolve(node.text, key=key, path=path, template="template" in type_.marks)
        if text is None:
            return INVALID
        plain = node.plain and "${" not in node.text
        self._note_secret(node, path, key)
        return self._reader_of(type_)(_Word(text, plain, "${" in node.text, is_secret_name(key)), type_, path)

    def _note_secret(self, node: ScalarNode, path: str, key: str) -> None:
        in_url = any("${" not in password for password in url_passwords(node.text))
        named = is_secret_name(key) and "${" not in node.text and core_value(node.text) is not None
        if named:
            self._findings.secrets.add(node.text)
        if named or in_url:
            self.plain_secrets.append(path)

    def _reader_of(self, type_: SettingType) -> "Callable[[_Word, SettingType, str], Any]":
        if type_.choices:
            return self._choice
        if unit := type_.marks.get("unit"):
            return {"duration": self._duration, "size": self._size}[unit]
        return {bool: self._boolean, int: self._whole, float: self._number, Any: self._any}.get(type_.bare, self._text)

    def _text(self, word: "_Word", type_: SettingType, path: str) -> Any:
        if word.plain and core_value(word.text) is None:
            return self._refuse("E1022", path, "is empty, must be text")
        if word.plain and self._ambiguous(word, path):
            return INVALID
        if word.plain and not isinstance(core_value(word.text), str):
            return self._refuse_unquoted(word, path, describe(word.text))
        return self._checked_text(word.text, type_, path)

    def _checked_text(self, text: str, type_: SettingType, path: str) -> Any:
        value = self._checked(text, type_, path)
        if "import_path" in type_.marks and value is not INVALID:
            self.import_paths[path] = text
        return value

    def _checked(self, value: Any, type_: SettingType, path: str) -> Any:
        problem = problem_of(value, type_, self._findings.show)
        return value if problem is None else self._refuse(problem.code, path, *problem[1:])

    def identifier(self, text: str, path: str) -> Any:
        """Read a name that code, messages and the store use."""
        problem = problem_of_name(text, self._findings.show)
        return text if problem is None else self._refuse(problem.code, path, *problem[1:])

    def _ambiguous(self, word: "_Word", path: str) -> bool:
        """Report a scalar that YAML 1.1 and 1.2 read differently; returns whether it is one."""
        boolean = other_boolean(word.text)
        if boolean is not None:
            what = f"value is the boolean {str(boolean).lower()} (YAML 1.1 reads unquoted '{word.text}' so)"
            self._refuse("E1023", path, what, "", f'Quote it: "{word.text}"')
            return True
        reading = other_reading(word.text)
        if reading is not None:
            self._refuse_unquoted(word, path, reading)
        return reading is not None

    def _refuse_unquoted(self, word: "_Word", path: str, reading: str) -> Any:
        code = "E1023" if "boolean" in reading else "E1024"
        shown = "something else" if word.secret else reading
        return self._refuse(code, path, f"YAML reads this unquoted as {shown}", "", "Quote it if you meant text")

    def _boolean(self, word: "_Word", _kind: SettingType, path: str) -> Any:
        value = core_value(word.text)
        if isinstance(value, bool) and not word.quoted:
            return value
        if word.plain and other_boolean(word.text) is not None:
            shown = self._findings.show(word.text)
            return self._refuse("E1023", path, f"{shown} is not a boolean in YAML 1.2", "Use true or false")
        return self._wrong_type(word, "true or false", path)

    def _whole(self, word: "_Word", type_: SettingType, path: str) -> Any:
        if word.plain and self._ambiguous(word, path):
            return INVALID
        value = core_value(word.text)
        whole = isinstance(value, int) and not isinstance(value, bool) and not word.quoted
        if not whole or not (word.plain or _WHOLE.fullmatch(word.text)):
            return self._wrong_type(word, noun_of(type_), path)
        return self._checked(value, type_, path)

    def _number(self, word: "_Word", type_: SettingType, path: str) -> Any:
        if word.plain and self._ambiguous(word, path):
            return INVALID
        value = core_value(word.text)
        if word.quoted or isinstance(value, bool | str) or value is None or not _finite(value):
            return self._wrong_type(word, noun_of(type_), path)
        return self._checked(float(value), type_, path)

    def _duration(self, word: "_Word", type_: SettingType, path: str) -> Any:
        value = units.seconds(word.text)
        if value is None:
            shown = self._findings.show(word.text)
            return self._refuse("E1025", path, f"{shown} is not a duration", "Examples: 200ms, 5s, 2m, 1h")
        return self._checked(value, type_, path)

    def _size(self, word: "_Word", type_: SettingType, path: str) -> Any:
        value = units.size(word.text)
        if value is None:
            shown = self._findings.show(word.text)
            return self._refuse("E1026", path, f"{shown} is not a size", "Examples: 64KiB, 10MiB, 1MB")
        return self._checked(value, type_, path)

    def _choice(self, word: "_Word", type_: SettingType, path: str) -> Any:
        if word.plain and self._ambiguous(word, path):
            return INVALID
        if word.text in type_.choices:
            return type_.choices[word.text]
        findings = self._findings
        problem = problem_of_choice(findings.show(word.text), type_, findings.hint(word.text, type_.choices))
        return self._refuse(problem.code, path, *problem[1:])

    def _any(self, word: "_Word", _kind: SettingType, path: str) -> Any:
        if not word.plain:
            return word.text
        if self._ambiguous(word, path):
            return INVALID
        value = core_value(word.text)
        if isinstance(value, float) and not math.isfinite(value):
            return self._refuse("E1022", path, f"{self._findings.show(word.text)} is not a finite number")
        return value

    def _wrong_type(self, word: "_Word", noun: str, path: str) -> Any:
        shown = self._findings.show(word.text)
        return self._refuse("E1022", path, f"{shown} is {word.description}, must be {noun}")

    def _refuse(self, code: str, path: str, what: str, allowed: str = "", todo: str = "") -> Any:
        self._findings.error(code, path, what, allowed, todo)
        return INVALID


class _Word:
    """A scalar after interpolation."""

    def __init__(self, text: str, plain: bool, interpolated: bool, secret: bool) -> None:
        self.text = text
        self.plain = plain
        self.quoted = not plain and not interpolated
        self.secret = secret

    @property
    def description(self) -> str:
        """Describe the scalar for a message about a wrong type."""
        if not self.plain:
            return "a string"
        match core_value(self.text):
            case None:
                return "empty"
            case bool():
                return "a boolean"
            case int() | float():
                return "a number"
            case _:
                return "a string"


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False
