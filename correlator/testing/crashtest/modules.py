"""Executes the user's modules anew for every simulated engine, as a new process does.

A simulated crash does not end the Python process. Nevertheless, the values in the user's modules (globals, attributes
of classes) must be lost with the engine. Otherwise a monitor that keeps state there would seem right after a crash. It
would seem wrong in a run without faults, which would find the values of the previous run.
"""

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from correlator.errors import ConfigError, UsageError
from correlator.runtime.names import resolve

_INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OURS = frozenset({"correlator", "connectors", "__main__"})


class OwnModules:
    """The user's modules: those beside a configuration file or below its directory, without installed packages.

    Args:
        directory: the directory of the file.
        paths: the classes that the file names, as `module:Class`; their modules are imported already.
    """

    def __init__(self, directory: Path, paths: Sequence[str]) -> None:
        self._directory = directory
        self._below = tuple({f"{one}{os.sep}" for one in (directory.absolute(), directory.resolve())})
        self._paths = paths
        self._here: dict[str, ModuleType] = {}
        self._others: set[str] = set()

    @contextlib.contextmanager
    def present(self) -> Iterator[None]:
        """Within the block, let imports find the modules that the last call of `renew` has executed."""
        outside = self._imported()
        sys.modules.update(self._here)
        try:
            yield
        finally:
            self._here = self._imported()
            _replace(self._here, outside)

    def renew(self) -> None:
        """Execute the modules again that the file names, and those that they import. Call it within `present`.

        Modules that no engine imports, such as the modules of tests, stay as they are.

        Raises:
            UsageError: E2445, a module cannot be executed twice in a process.
        """
        before = self._imported()
        _replace(before, {})
        try:
            for path in self._paths:
                resolve(path)
        except ConfigError as error:
            _replace(self._imported(), before)
            what = f"its modules can be imported once, and not again in the same process: {error}"
            allowed = "Level sim imports them for each engine, as a new process does"
            raise UsageError("E2445", str(self._directory), what, allowed, "Use level kill9") from error
        for name, module in before.items():
            sys.modules.setdefault(name, module)

    def _imported(self) -> dict[str, ModuleType]:
        """Return the user's modules among all imported ones. Remembers the names that it has checked."""
        own = {name: sys.modules[name] for name in sys.modules.keys() - self._others}
        own = {name: module for name, module in own.items() if self._owns(name, module)}
        self._others = sys.modules.keys() - own.keys()
        return own

    def _owns(self, name: str, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.startswith(self._below):
            return False
        return not file.startswith(_INSTALLED) and name.partition(".")[0] not in _OURS


def _replace(old: Mapping[str, ModuleType], new: Mapping[str, ModuleType]) -> None:
    for name in old:
        del sys.modules[name]
    sys.modules.update(new)
