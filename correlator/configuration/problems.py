"""What is wrong with a configuration, and where: collected while reading, told together at the end.

A reader that stops at the first mistake makes its user run it once per mistake. So every part reports into one
`Findings` and goes on; only what makes the rest unreadable (syntax, encoding) ends the reading at once.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from correlator.configuration.secrets import Secrets
from correlator.configuration.words import did_you_mean
from correlator.errors import ConfigError, printable, quoted

_MOST_SHOWN = 20
_MOST_HINTS = 40  # nobody reads the hints of more problems than are shown, and each costs a search


class Position(NamedTuple):
    """A place in a file, both counted from 1."""

    line: int
    column: int


OVERRIDDEN = Position(0, 0)
"""The place of what the command line gave instead of the file."""


class Overridden(NamedTuple):
    """A setting that a later source has set: where, what stood there (`None` for nothing), and what stands there now.

    Both values are as they were written, and may be secret.
    """

    path: str
    before: str | None
    after: str


class InvalidConfiguration(ConfigError):
    """A configuration that cannot be used.

    Attributes:
        problems: all of them, in the order of the file; the text shows the first 20.
        warnings: what would work but is probably not meant, for a command that shows everything.
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
        file: the name of the file as messages show it; "" for settings that a program made.
        secrets: what must not appear in any message; values go through `show`.
        positions: path in the configuration, such as `receivers[0].destination`, to the place of its value.
        overridden: which settings a later source has set.
    """

    def __init__(self, file: str) -> None:
        self.file = printable(file)
        self.secrets = Secrets()
        self.positions: dict[str, Position] = {}
        self.overridden: list[Overridden] = []
        self._hints = 0
        self._errors: list[tuple[Position, ConfigError]] = []
        self._warnings: list[tuple[Position, ConfigError]] = []

    def error(
        self, code: str, path: str, what: str, allowed: str = "", todo: str = "", *, at: Position | None = None
    ) -> None:
        """Report what makes the configuration unusable; `at` overrides the place of the value at `path`."""
        place = at or self.position(path)
        self._errors.append((place, ConfigError(code, self.where(path, at=at), what, allowed, todo)))

    def warn(self, code: str, path: str, what: str, allowed: str = "", todo: str = "") -> None:
        """Report what will work but probably not as meant."""
        self._warnings.append((self.position(path), ConfigError(code, self.where(path), what, allowed, todo)))

    def reported(self, code: str, path: str) -> bool:
        """Whether this error was already reported at this place."""
        where = self.where(path)
        return any((error.code, error.where) == (code, where) for _, error in self._errors)

    def show(self, value: object) -> str:
        """A value for a message: without secrets, in quotes, short."""
        return quoted(self.secrets.redact(value if isinstance(value, str) else repr(value)))

    def hint(self, word: str, valid: Iterable[str]) -> str:
        """`Did you mean 'x'?`, or empty."""
        self._hints += 1
        return did_you_mean(word, valid) if self._hints <= _MOST_HINTS else ""

    def position(self, path: str) -> Position:
        """Where the value at `path` stands; for one that has its default, where the part around it stands."""
        while path and path not in self.positions:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.positions.get(path, Position(1, 1))

    def where(self, path: str, *, at: Position | None = None) -> str:
        """`file:line:column path.in.config`, as every message begins; `--set path` for what did not come from there."""
        line, column = place = at or self.position(path)
        if place == OVERRIDDEN:
            return f"--set {printable(path)}".rstrip()
        if not self.file:
            return printable(path)
        return f"{self.file}:{line}:{column} {path}".rstrip()

    @property
    def warnings(self) -> tuple[ConfigError, ...]:
        """The warnings in the order of the file."""
        return self._told(self._warnings)

    @property
    def unusable(self) -> bool:
        """Whether there is any error so far."""
        return bool(self._errors)

    def raise_errors(self) -> None:
        """Raise `InvalidConfiguration` if there is any error."""
        if self._errors:
            raise InvalidConfiguration(self._told(self._errors), self.warnings)

    def _told(self, problems: list[tuple[Position, ConfigError]]) -> tuple[ConfigError, ...]:
        """Problems in the order of the file; without the secrets that only became known after they were reported."""
        redact = self.secrets.redact
        in_order = (problem for _, problem in sorted(problems, key=lambda entry: entry[0]))
        return tuple(
            ConfigError(problem.code, problem.where, *map(redact, (problem.what, problem.allowed, problem.todo)))
            for problem in in_order
        )


def member(path: str, key: str) -> str:
    """The path of `key` inside the mapping at `path`."""
    shown = quoted(key)[1:-1]
    return f"{path}.{shown}" if path else shown


def item(path: str, index: int) -> str:
    """The path of the item at `index` inside the list at `path`."""
    return f"{path}[{index}]"
