"""Imports what a configuration names as `module:Class`; an error shows the lines of the user's own code."""

import importlib
import sys
import traceback
from importlib.machinery import PathFinder
from pathlib import Path
from types import TracebackType
from typing import Any

from correlator.configuration.words import did_you_mean
from correlator.errors import ConfigError, printable, quoted

_MOST_FRAMES = 5
_MISSING: Any = object()
_INSTALLED = ("site-packages", "dist-packages")
"""Names of directories that hold no modules of the user."""
_RENAME = "Rename your module"
_OWN = tuple(Path(__file__).parents[2] / name for name in ("correlator", "connectors", "pyspark_correlator"))
"""The directories of correlator's own code, which tells a user nothing about a mistake in a module."""


def import_object(path: str, where: str = "") -> Any:
    """Import the object that `module:name` names.

    Importing runs the user's code: a configuration is trusted like a program, which is why the engine refuses a file
    that other users can write.

    Args:
        path: `module:name`; the name may have dots.
        where: the place of the path, for the message of an error; the path itself by default.

    Raises:
        ConfigError: E1501; it names the module or attribute, the lines of the user's code that failed, and a module of
            the user that another module of the same name hides.
    """
    module_name, _, names = path.partition(":")
    try:
        found = importlib.import_module(module_name)
        for name in names.split("."):
            owner, found = found, getattr(found, name, _MISSING)
            if found is _MISSING:
                break
    except (Exception, SystemExit) as exc:  # an import may run any code of the user
        what = f"cannot import {quoted(path)}: {_summary(exc)}"
        if isinstance(exc, ModuleNotFoundError) and (hidden := _hidden(module_name)):
            raise ConfigError("E1501", where or path, what, hidden, _RENAME) from exc
        raise ConfigError("E1501", where or path, what, "", _user_frames(exc.__traceback__)) from exc
    if found is _MISSING:
        what = f"cannot import {quoted(path)}: {quoted(getattr(owner, '__name__', path))} has no {quoted(name)}"
        if hidden := _hidden(module_name):
            raise ConfigError("E1501", where or path, what, hidden, _RENAME)
        raise ConfigError("E1501", where or path, what, did_you_mean(name, dir(owner)))
    return found


def try_import(path: str) -> Any:
    """Import the object that `module:name` names, or return the `ConfigError` of `import_object`."""
    try:
        return import_object(path)
    except ConfigError as exc:
        return exc


def _hidden(module_name: str) -> str:
    """Name the user's file that is not imported because another module of the same name is found first; or empty."""
    top = module_name.partition(".")[0]
    imported = sys.modules.get(top)
    if imported is None:
        return ""
    file = getattr(imported, "__file__", None)
    for place in sys.path:
        spec = PathFinder.find_spec(top, [place]) if Path(place).name not in _INSTALLED else None
        if spec is None or not spec.has_location or (file is not None and Path(str(spec.origin)).samefile(file)):
            continue
        first = file or "which is a part of Python"
        return f"'{printable(str(spec.origin))}' is not imported: another module named '{top}' comes first, {first}"
    return ""


def _summary(exc: BaseException) -> str:
    text = str(exc).partition("\n")[0]
    if isinstance(exc, ModuleNotFoundError):
        return text
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def _user_frames(trace: TracebackType | None) -> str:
    """The lines of the user's modules in a traceback, without lines of correlator and of the import system."""
    frames = traceback.extract_tb(trace)
    users = [frame for frame in frames if not _is_machinery(frame.filename)]
    lines = [f"\n  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in users[-_MOST_FRAMES:]]
    return f"Raised at{''.join(lines)}" if lines else ""


def _is_machinery(file: str) -> bool:
    path = Path(file)
    is_own = any(path.is_relative_to(place) for place in _OWN)
    return is_own or file.startswith("<frozen ") or path == Path(importlib.__file__)
