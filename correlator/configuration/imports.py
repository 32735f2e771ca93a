"""Imports what a configuration names as `module:Class`, and tells what went wrong in the words of the user's code."""

import importlib
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from correlator.configuration.words import did_you_mean
from correlator.errors import ConfigError, quoted

_MOST_FRAMES = 5
_MISSING: Any = object()


def import_object(path: str, where: str = "") -> Any:
    """The object that `module:name` names; `where` that stands, in errors, is the path itself by default.

    Importing runs the user's code: a configuration is trusted like a program, which is why a file that others can
    write is refused.

    Raises:
        ConfigError: `E1501`; names the module or attribute, and the lines of the user's code that failed.
    """
    module_name, _, names = path.partition(":")
    try:
        found = importlib.import_module(module_name)
        for name in names.split("."):
            owner, found = found, getattr(found, name, _MISSING)
            if found is _MISSING:
                break
    except (Exception, SystemExit) as exc:  # whatever the user's module does when it is imported
        what = f"cannot import {quoted(path)}: {_summary(exc)}"
        raise ConfigError("E1501", where or path, what, "", _user_frames(exc.__traceback__)) from exc
    if found is _MISSING:
        what = f"cannot import {quoted(path)}: {quoted(getattr(owner, '__name__', path))} has no {quoted(name)}"
        raise ConfigError("E1501", where or path, what, did_you_mean(name, dir(owner)))
    return found


def _summary(exc: BaseException) -> str:
    text = str(exc).partition("\n")[0]
    if isinstance(exc, ModuleNotFoundError):
        return text
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def _user_frames(trace: TracebackType | None) -> str:
    """The lines of the user's modules in a traceback; nothing of ours and nothing of the import system."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if frame.filename != __file__ and not _is_machinery(frame.filename)]
    lines = [f"\n  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in own[-_MOST_FRAMES:]]
    return f"Raised at{''.join(lines)}" if lines else ""


def _is_machinery(file: str) -> bool:
    return file.startswith("<frozen ") or Path(file) == Path(importlib.__file__)
