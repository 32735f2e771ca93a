"""The constraints on values of settings, whether they come from a file, from the code of a program, or from a store.

The reader of a file checks each value here. Settings that code made are checked as a whole by `check_settings`.
"""

import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from correlator.configuration.problems import Findings, item, member
from correlator.configuration.setting_types import SettingType, settings_of, type_of
from correlator.errors import ConfigError, storable
from correlator.reliability import Reliability
from correlator.selector import Selector

_LONGEST_NAME = 200
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
IMPORT_PATH_PATTERN = f"^{_IMPORT_PATH.pattern}$"
_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_UNITS = {"duration": ("E1025", "a duration", " seconds"), "size": ("E1026", "a size", " bytes")}
Show = Callable[[object], str]


class ValueProblem(NamedTuple):
    """Why a value is refused: the arguments of an error without the place."""

    code: str
    what: str
    allowed: str = ""
    todo: str = ""


def problem_of(value: Any, type_: SettingType, show: Show) -> ValueProblem | None:
    """Check a value that already has the bare type of its setting; returns the problem, or `None`.

    Args:
        value: a text, number or boolean.
        type_: type of the setting.
        show: makes a value fit for a message.
    """
    if isinstance(value, str):
        return _problem_of_text(value, type_, show)
    if isinstance(value, bool) or not isinstance(value, int | float) or _in_range(value, type_):
        return None
    code = _UNITS.get(type_.marks.get("unit", ""), ("E1022",))[0]
    return ValueProblem(code, f"{show(str(value))} is out of range, must be {noun_of(type_)}")


def _in_range(value: float, type_: SettingType) -> bool:
    finite = isinstance(value, int) or math.isfinite(value)
    low = type_.ge is None or value >= type_.ge
    above = type_.gt is None or value > type_.gt
    return finite and low and above and (type_.le is None or value <= type_.le)


def _problem_of_text(text: str, type_: SettingType, show: Show) -> ValueProblem | None:
    if "identifier" in type_.marks:
        return problem_of_name(text, show)
    if storable(text) != text:
        return ValueProblem("E1022", f"{show(text)} has half of a surrogate pair, which no file, broker or store takes")
    if "selector" in type_.marks:
        return _problem_of_selector(text)
    if "import_path" in type_.marks and not _IMPORT_PATH.fullmatch(text):
        return ValueProblem("E1501", f"{show(text)} is not an import path", "Write module:Class")
    if not (type_.min_length or 0) <= len(text) <= (type_.max_length or len(text)):
        most = f" and at most {type_.max_length}" if type_.max_length else ""
        must = f"must have at least {type_.min_length or 0}{most}"
        return ValueProblem("E1022", f"{show(text)} has {len(text)} characters, {must}")
    return None


def problem_of_name(text: str, show: Show) -> ValueProblem | None:
    """Check a name that code, messages and the store use: 1 to 200 printable characters; returns the problem."""
    if not text.strip():
        return ValueProblem("E1210", "is empty, must be a name")
    if len(text) > _LONGEST_NAME:
        return ValueProblem("E1210", f"{show(text)} is longer than {_LONGEST_NAME} characters")
    if not text.isprintable():
        return ValueProblem("E1210", f"{show(text)} contains control characters")
    return None


def _problem_of_selector(text: str) -> ValueProblem | None:
    try:
        Selector.parse(text, "")
    except ConfigError as error:
        return ValueProblem(error.code, error.what, error.allowed, error.todo)
    return None


def problem_of_choice(shown: str, type_: SettingType, hint: str = "") -> ValueProblem:
    """Return the problem of a value that is none of the choices of a setting; `shown` is the value for the message."""
    code, noun = (
        ("E1203", "a reliability mode") if type_.bare is Reliability else ("E1022", "one of the possible values")
    )
    *others, last = type_.choices
    allowed = f"Use {', '.join(others)} or {last}" if others else f"Use {last}"
    return ValueProblem(code, f"{shown} is not {noun}", allowed, hint)


def noun_of(type_: SettingType) -> str:
    """Return, for a message, what a value must be: `a whole number 1..1000000`."""
    if type_.choices:
        return "a reliability mode" if type_.bare is Reliability else "one of the possible values"
    _, noun, unit = _UNITS.get(type_.marks.get("unit", ""), ("", _NOUNS.get(type_.bare, "text"), ""))
    return noun + range_of(type_, unit)


def range_of(type_: SettingType, unit: str = "") -> str:
    """Return the range of a setting for a message: ` 1..1000000`."""
    low = type_.gt if type_.ge is None else type_.ge
    if low is None and type_.le is None:
        return ""
    above = " above" if type_.ge is None and type_.gt is not None else ""
    if type_.le is None:
        return f"{above} {low:g}{unit}" if above else f" of at least {low:g}{unit}"
    return f"{above} {'' if low is None else f'{low:.15g}'}..{type_.le:.15g}{unit}"


# --- settings that the code of a program has made ---


def check_settings(settings: Any, path: str, findings: Findings) -> None:
    """Report every value that a configuration file could not have, in a settings object and in those inside it."""
    for setting in settings_of(settings.__class__):
        value = getattr(settings, setting.attribute)
        if value is not setting.default:  # a default is always allowed
            _check(value, type_of(setting.annotation), member(path, setting.key), findings)


def _check(value: Any, type_: SettingType, path: str, findings: Findings) -> None:
    if type_.bare is Any or (value is None and type_.optional):
        return
    for fitting in type_.alternatives:
        if _is_of(value, fitting):
            break
    else:
        _refuse_type(value, type_.alternatives[0], path, findings)
        return
    if fitting.is_settings:
        check_settings(value, path, findings)
    elif fitting.is_mapping:
        _check_mapping(value, fitting, path, findings)
    elif fitting.is_list:
        inner = type_of(fitting.arguments[0])
        for index, entry in enumerate(value):
            _check(entry, inner, item(path, index), findings)
    else:
        _report(problem_of(value, fitting, findings.show), path, findings)


def _check_mapping(value: Mapping[Any, Any], type_: SettingType, path: str, findings: Findings) -> None:
    names, inner = (type_of(argument) for argument in type_.arguments)
    for name, entry in value.items():
        place = member(path, str(name))
        if _is_of(name, names):
            _report(problem_of_name(name, findings.show), place, findings)
        else:
            _refuse_type(name, names, place, findings)
        _check(entry, inner, place, findings)


def _is_of(value: Any, type_: SettingType) -> bool:
    """Whether a value has this type. A whole number counts as a number, a boolean as neither."""
    if type_.is_settings:
        return isinstance(value, type_.bare)
    if type_.is_mapping:
        return isinstance(value, Mapping)
    if type_.is_list:
        return isinstance(value, list | tuple)
    if type_.choices:
        return value in type_.choices.values() and (isinstance(value, type_.bare) if _is_enum(type_) else True)
    if isinstance(value, bool) or type_.bare is bool:
        return isinstance(value, bool) and type_.bare is bool
    return isinstance(value, int | float) if type_.bare is float else isinstance(value, type_.bare)


def _is_enum(type_: SettingType) -> bool:
    return isinstance(type_.bare, type) and issubclass(type_.bare, Enum)


def _refuse_type(value: object, type_: SettingType, path: str, findings: Findings) -> None:
    if type_.choices:
        problem = problem_of_choice(findings.show(value), type_)
        wanted = next((one for one in type_.choices.values() if one == value), None)
        if wanted is not None:  # code gave the text of an enumeration's member instead of the member
            of = type(wanted).__name__
            what = f"{findings.show(value)} is of type {type(value).__name__}, must be of type {of}"
            problem = ValueProblem(problem.code, what, f"Use {of}.{wanted.name}")
        _report(problem, path, findings)
        return
    noun = "a mapping" if type_.is_mapping else "a list" if type_.is_list else noun_of(type_)
    noun = type_.bare.__name__ if type_.is_settings else noun
    what = f"{findings.show(value)} is of type {type(value).__name__}, must be {noun}"
    findings.error("E1022", path, what)


def _report(problem: ValueProblem | None, path: str, findings: Findings) -> None:
    if problem is not None:
        findings.error(problem.code, path, problem.what, problem.allowed, problem.todo)
