"""What a value of a setting must be, wherever it comes from: a file, the code of a program, or a store.

A file's reader makes values of its text and asks here for each; settings that code made are walked through as a whole.
"""

import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from correlator.configuration.kinds import Kind, kind_of, settings_of
from correlator.configuration.problems import Findings, item, member
from correlator.errors import ConfigError, storable
from correlator.reliability import Reliability
from correlator.selector import Selector

_LONGEST_NAME = 200
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
IMPORT_PATH_PATTERN = f"^{_IMPORT_PATH.pattern}$"
_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_UNITS = {"duration": ("E1025", "a duration", " seconds"), "size": ("E1026", "a size", " bytes")}
Show = Callable[[object], str]


class Problem(NamedTuple):
    """Why a value is refused: the arguments of an error, but for the place."""

    code: str
    what: str
    allowed: str = ""
    todo: str = ""


def problem_of(value: Any, kind: Kind, show: Show) -> Problem | None:
    """What is wrong with a value that has the type of its setting.

    Args:
        value: a text, number or boolean.
        kind: of the setting.
        show: makes a value fit for a message.
    """
    if isinstance(value, str):
        return _problem_of_text(value, kind, show)
    if isinstance(value, bool) or not isinstance(value, int | float) or _in_range(value, kind):
        return None
    code = _UNITS.get(kind.marks.get("unit", ""), ("E1022",))[0]
    return Problem(code, f"{show(str(value))} is out of range, must be {noun_of(kind)}")


def _in_range(value: float, kind: Kind) -> bool:
    finite = isinstance(value, int) or math.isfinite(value)
    low = kind.ge is None or value >= kind.ge
    above = kind.gt is None or value > kind.gt
    return finite and low and above and (kind.le is None or value <= kind.le)


def _problem_of_text(text: str, kind: Kind, show: Show) -> Problem | None:
    if "identifier" in kind.marks:
        return problem_of_name(text, show)
    if storable(text) != text:
        return Problem("E1022", f"{show(text)} has half of a surrogate pair, which no file, broker or store takes")
    if "selector" in kind.marks:
        return _problem_of_selector(text)
    if "import_path" in kind.marks and not _IMPORT_PATH.fullmatch(text):
        return Problem("E1501", f"{show(text)} is not an import path", "Write module:Class")
    if not (kind.min_length or 0) <= len(text) <= (kind.max_length or len(text)):
        most = f" and at most {kind.max_length}" if kind.max_length else ""
        must = f"must have at least {kind.min_length or 0}{most}"
        return Problem("E1022", f"{show(text)} has {len(text)} characters, {must}")
    return None


def problem_of_name(text: str, show: Show) -> Problem | None:
    """What is wrong with a name that code, messages and the store will use: 1 to 200 characters, printable."""
    if not text.strip():
        return Problem("E1210", "is empty, must be a name")
    if len(text) > _LONGEST_NAME:
        return Problem("E1210", f"{show(text)} is longer than {_LONGEST_NAME} characters")
    if not text.isprintable():
        return Problem("E1210", f"{show(text)} contains control characters")
    return None


def _problem_of_selector(text: str) -> Problem | None:
    try:
        Selector.parse(text, "")
    except ConfigError as error:
        return Problem(error.code, error.what, error.allowed, error.todo)
    return None


def problem_of_choice(shown: str, kind: Kind, hint: str = "") -> Problem:
    """The refusal of what is none of the values that a setting may have; `shown` is it, fit for a message."""
    code, noun = (
        ("E1203", "a reliability mode") if kind.bare is Reliability else ("E1022", "one of the possible values")
    )
    *others, last = kind.choices
    allowed = f"Use {', '.join(others)} or {last}" if others else f"Use {last}"
    return Problem(code, f"{shown} is not {noun}", allowed, hint)


def noun_of(kind: Kind) -> str:
    """What a value must be, as messages say it: `a whole number 1..1000000`."""
    if kind.choices:
        return "a reliability mode" if kind.bare is Reliability else "one of the possible values"
    _, noun, unit = _UNITS.get(kind.marks.get("unit", ""), ("", _NOUNS.get(kind.bare, "text"), ""))
    return noun + range_of(kind, unit)


def range_of(kind: Kind, unit: str = "") -> str:
    """The range of a kind as messages show it: ` 1..1000000`."""
    low = kind.gt if kind.ge is None else kind.ge
    if low is None and kind.le is None:
        return ""
    above = " above" if kind.ge is None and kind.gt is not None else ""
    if kind.le is None:
        return f"{above} {low:g}{unit}" if above else f" of at least {low:g}{unit}"
    return f"{above} {'' if low is None else f'{low:.15g}'}..{kind.le:.15g}{unit}"


# --- settings that no reader has made ---


def check_settings(settings: Any, path: str, findings: Findings) -> None:
    """Report every value of a settings object, and of those within it, that a file could not have had."""
    for setting in settings_of(settings.__class__):
        value = getattr(settings, setting.attribute)
        if value is not setting.default:  # which is allowed
            _check(value, kind_of(setting.annotation), member(path, setting.key), findings)


def _check(value: Any, kind: Kind, path: str, findings: Findings) -> None:
    if kind.bare is Any or (value is None and kind.optional):
        return
    fitting = next((one for one in kind.alternatives if _is_of(value, one)), None)
    if fitting is None:
        _refuse_type(value, kind.alternatives[0], path, findings)
    elif fitting.is_settings:
        check_settings(value, path, findings)
    elif fitting.is_mapping:
        _check_mapping(value, fitting, path, findings)
    elif fitting.is_list:
        inner = kind_of(fitting.arguments[0])
        for index, entry in enumerate(value):
            _check(entry, inner, item(path, index), findings)
    else:
        _report(problem_of(value, fitting, findings.show), path, findings)


def _check_mapping(value: Mapping[Any, Any], kind: Kind, path: str, findings: Findings) -> None:
    names, inner = (kind_of(argument) for argument in kind.arguments)
    for name, entry in value.items():
        place = member(path, str(name))
        if _is_of(name, names):
            _report(problem_of_name(name, findings.show), place, findings)
        else:
            _refuse_type(name, names, place, findings)
        _check(entry, inner, place, findings)


def _is_of(value: Any, kind: Kind) -> bool:
    """Whether a value has the type of a kind; a whole number is a number, a boolean is neither."""
    if kind.is_settings:
        return isinstance(value, kind.bare)
    if kind.is_mapping:
        return isinstance(value, Mapping)
    if kind.is_list:
        return isinstance(value, list | tuple)
    if kind.choices:
        return value in kind.choices.values() and (isinstance(value, kind.bare) if _is_enum(kind) else True)
    if isinstance(value, bool) or kind.bare is bool:
        return isinstance(value, bool) and kind.bare is bool
    return isinstance(value, int | float) if kind.bare is float else isinstance(value, kind.bare)


def _is_enum(kind: Kind) -> bool:
    return isinstance(kind.bare, type) and issubclass(kind.bare, Enum)


def _refuse_type(value: object, kind: Kind, path: str, findings: Findings) -> None:
    if kind.choices:
        problem = problem_of_choice(findings.show(value), kind)
        wanted = next((one for one in kind.choices.values() if one == value), None)
        if wanted is not None:  # the text of a member of an enumeration
            of = type(wanted).__name__
            what = f"{findings.show(value)} is of type {type(value).__name__}, must be of type {of}"
            problem = Problem(problem.code, what, f"Use {of}.{wanted.name}")
        _report(problem, path, findings)
        return
    noun = "a mapping" if kind.is_mapping else "a list" if kind.is_list else noun_of(kind)
    noun = kind.bare.__name__ if kind.is_settings else noun
    what = f"{findings.show(value)} is of type {type(value).__name__}, must be {noun}"
    findings.error("E1022", path, what)


def _report(problem: Problem | None, path: str, findings: Findings) -> None:
    if problem is not None:
        findings.error(problem.code, path, problem.what, problem.allowed, problem.todo)
