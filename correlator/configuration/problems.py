"""Collects the mistakes of a configuration with their places, and raises all of them together at the end.

If a reader stopped at the first mistake, its user would have to run it once for each mistake. So every stage reports to
one `Findings` and goes on. Only mistakes that make the rest unreadable (syntax, encoding) end the reading at once.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from correlator.configuration.imports import try_import
from correlator.configuration.words import did_you_mean
from correlator.errors import ConfigError, printable, quoted
from correlator.secrets import Secrets

_MOST_SHOWN = 20
_MOST_HINTS = 40  # problems beyond the shown ones need no hint, and each hint costs a search


class Position(NamedTuple):
    """A place in a file, both counted from 1."""

    line: int
    column: int


OVERRIDDEN = Position(0, 0)
"""The place of a value that the command line has given."""


@dataclass(frozen=True, slots=True)
class Places:
    """The places of the settings of a file; without a file nothing is known.

    Attributes:
        file: the name of the file in messages.
        positions: the place in the file of each path, such as `receivers[0].destination`.
    """

    file: str = ""
    positions: Mapping[str, Position] = field(default_factory=dict)

    def at(self, path: str) -> str:
        """The place of the value at `path`: `file:line:column`; `--set path` for an overridden value."""
        if not self.file:
            return ""
        line, column = position = nearest(path, self.positions)
        return f"--set {printable(path)}" if position == OVERRIDDEN else f"{self.file}:{line}:{column}"


def nearest(path: str, positions: Mapping[str, Position]) -> Position:
    """The place of the value at `path`; for a default value, the place of the mapping around it."""
    while path and path not in positions:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return positions.get(path, Position(1, 1))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the settings of an engine come from.

    Attributes:
        places: the places of the settings in their file; no file for settings that code has made.
        redact: replaces in a text the secrets that the reader of the file knows.
    """

    places: Places = Places()
    redact: Callable[[str], str] = str


IN_CODE = Origin()
"""The origin of settings without a file."""


class Overridden(NamedTuple):
    """A setting of the file that the command line has overridden. Its values are unchanged texts, and may be secret.

    Attributes:
        path: path of the setting.
        before: value in the file; `None` if the file has none.
        after: value of the command line.
    """

    path: str
    before: str | None
    after: str


class InvalidConfiguration(ConfigError):
    """A configuration that cannot be used.

    Attributes:
        problems: all problems, in the order of the file; the text of the error shows the first 20.
        warnings: settings that would work but are probably not meant.
    """

    def __init__(self, problems: Sequence[ConfigError], warnings: Sequence[ConfigError] = ()) -> None:
        first = problems[0]
        super().__init__(first.code, first.where, first.what, first.allowed, first.todo)
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)

    def __str__(self) -> str:
        lines = [ConfigError.__str__(self), *map(str, self.problems[1:_MOST_SHOWN])]
        hidden = len(self.problems) - _MOST_SHOWN
        return "\n".join([*lines, f"and {hidden} more"] if hidden > 0 else lines)


class Findings:
    """Collects errors and warnings of one file; owned by the thread that reads it.

    Attributes:
        file: the name of the file in messages; "" for settings that code has made.
        secrets: values that must not appear in a message; `show` removes them.
        positions: the place in the file of each path, such as `receivers[0].destination`.
        overridden: the settings that the command line has overridden.
        imported: returns the object that `module:name` names, or its `ConfigError`; code whose import fails is not run
            again for each setting that names it.
    """

    def __init__(self, file: str) -> None:
        self.file = printable(file)
        self.secrets = Secrets()
        self.positions: dict[str, Position] = {}
        self.overridden: list[Overridden] = []
        self.imported = functools.cache(try_import)
        self._hints = 0
        self._errors: list[tuple[Position, ConfigError]] = []
        self._warnings: list[tuple[Position, ConfigError]] = []

    def error(
        self, code: str, path: str, what: str, allowed: str = "", todo: str = "", *, at: Position | None = None
    ) -> None:
        """Report a mistake that makes the configuration unusable; `at` overrides the place of the value at `path`."""
        place = at or self.position(path)
        self._errors.append((place, ConfigError(code, self.where(path, at=at), what, allowed, todo)))

    def warn(self, code: str, path: str, what: str, allowed: str = "", todo: str = "") -> None:
        """Report a setting that works but is probably not meant."""
        self._warnings.append((self.position(path), ConfigError(code, self.where(path), what, allowed, todo)))

    def reported(self, code: str, path: str) -> bool:
        """Whether this error was already reported at this place."""
        where = self.where(path)
        return any((error.code, error.where) == (code, where) for _, error in self._errors)

    def show(self, value: object) -> str:
        """Make a value fit for a message: without secrets, in quotes, short."""
        return quoted(self.secrets.redact(value if isinstance(value, str) else repr(value)))

    def hint(self, word: str, valid: Iterable[str]) -> str:
        """Return `Did you mean 'x'?`, or an empty text."""
        self._hints += 1
        return did_you_mean(word, valid) if self._hints <= _MOST_HINTS else ""

    def position(self, path: str) -> Position:
        """Return the place of the value at `path`; for a default value, the place of the mapping around it."""
        return nearest(path, self.positions)

    def where(self, path: str, *, at: Position | None = None) -> str:
        """Return the place for a message: `file:line:column path.in.config`; `--set path` for an overridden value."""
        line, column = place = at or self.position(path)
        if place == OVERRIDDEN:
            return f"--set {printable(path)}".rstrip()
        if not self.file:
            return printable(path)
        return f"{self.file}:{line}:{column} {path}".rstrip()

    @property
    def warnings(self) -> tuple[ConfigError, ...]:
        """The warnings in the order of the file."""
        return self._in_order(self._warnings)

    @property
    def unusable(self) -> bool:
        """Whether there is any error so far."""
        return bool(self._errors)

    def raise_errors(self) -> None:
        """Raise `InvalidConfiguration` if there is any error."""
        if self._errors:
            raise InvalidConfiguration(self._in_order(self._errors), self.warnings)

    def _in_order(self, problems: list[tuple[Position, ConfigError]]) -> tuple[ConfigError, ...]:
        """Sort problems in the order of the file, and remove secrets that became known after the report."""
        redact = self.secrets.redact
        in_order = (problem for _, problem in sorted(problems, key=lambda entry: entry[0]))
        return tuple(
            ConfigError(problem.code, problem.where, *map(redact, (problem.what, problem.allowed, problem.todo)))
            for problem in in_order
        )


def member(path: str, key: str) -> str:
    """Return the path of `key` in the mapping at `path`."""
    shown = quoted(key)[1:-1]
    return f"{path}.{shown}" if path else shown


def item(path: str, index: int) -> str:
    """Return the path of the item at `index` in the list at `path`."""
    return f"{path}[{index}]"
