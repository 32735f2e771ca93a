"""The command `correlator crashtest`."""

import contextlib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from correlator.cli.failures import say
from correlator.cli.output import write_line
from correlator.errors import UsageError, quoted
from correlator.testing import files
from correlator.testing.crashtest import replay, report
from correlator.testing.crashtest.campaign import Result, campaign, repeated
from correlator.testing.crashtest.levels import LEVELS, opened, seconds
from correlator.testing.crashtest.runs import Body, Level
from correlator.testing.crashtest.served import ENVIRONMENT
from correlator.testing.worlds import World

DIRECTORY = Path(".crash")
"""The directory for the replay files of failures."""
VIOLATED = 1


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator crashtest` with `app`, the Typer application of all commands."""
    app.command("crashtest")(crashtest)


def crashtest(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The configuration file.", show_default=False)
    ] = None,
    messages: Annotated[
        list[str] | None,
        typer.Option(
            "--messages",
            metavar="DESTINATION=FILE",
            help="Publish each line of FILE to DESTINATION as the body of a message. May be repeated.",
            show_default=False,
        ),
    ] = None,
    level: Annotated[str, typer.Option(metavar="LEVEL", help=f"One of {', '.join(LEVELS)}, or all.")] = "sim",
    budget: Annotated[str, typer.Option(metavar="DURATION", help="How long each level looks for a failure.")] = "60s",
    seed: Annotated[int, typer.Option(metavar="N", help="The seed of all random choices.")] = 1,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar=ENVIRONMENT,
            help="The PostgreSQL database of level broker, on this machine.",
            show_default=False,
        ),
    ] = None,
    again: Annotated[
        Path | None, typer.Option("--replay", metavar="FILE", help="Repeat the failure that this file describes.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write figures as JSON.")] = None,
) -> None:
    """Kill the engine of a configuration file again and again, and check its guarantees each time.

    Exits with 1 if a guarantee is broken.
    """
    if file is None:
        raise UsageError("E2428", "crashtest", "FILE is missing", "", "Name a configuration file")
    budget_s, known = seconds(budget), None if again is None else replay.read(again)
    given = [part for one in messages or [] for part in ("--messages", one)]
    published = list(lines_of(messages or []))
    body = _body(published)
    results: list[Result] = []
    every = level == "all" and known is None
    for opened_level in _opened(_levels(level, known), file, store, all_of_them=every):
        if known is None:
            result = campaign(opened_level, body, budget_s=budget_s, seed=seed)
        else:
            if doubts := known.doubts(file, shlex.join([str(file), *given])):
                say(f"warning: {doubts}")
            result = repeated(opened_level, body, known.plan)
        _tell(result, file, given)
        results.append(result)
    if not any(bodies for _, bodies in published):
        say("warning: nothing was published, so little could go wrong; give --messages DESTINATION=FILE")
    if output is not None:
        files.write_json(output, [report.figures(result) for result in results])
    if any(result.found for result in results):
        raise typer.Exit(VIOLATED)


def _levels(asked: str, again: replay.SavedFailure | None) -> Sequence[str]:
    """Return the levels to run: the level of the replay file if there is one, else those that the option names."""
    if again is not None:
        return [again.level]
    return list(LEVELS) if asked == "all" else [asked]


def _opened(names: Sequence[str], file: Path, store: str | None, *, all_of_them: bool) -> Iterator[Level]:
    """Open one level after another; each stays open until the caller asks for the next.

    With `all_of_them`, levels that refuse FILE are skipped with a warning.
    """
    for name in names:
        with contextlib.ExitStack() as stack:
            try:
                level = stack.enter_context(opened(name, file, store))
            except UsageError as error:
                if not all_of_them:
                    raise
                say(f"warning: level {name} is left out: {error}")
                continue
            yield level


def lines_of(messages: Iterable[str]) -> Iterator[tuple[str, list[bytes]]]:
    """Yield destination and bodies of each `--messages`. Raises `UsageError` E2427 if one is wrong or a
    file is unreadable.
    """
    for given in messages:
        destination, found, path = given.rpartition("=")
        if not (destination and found and path):
            raise UsageError("E2427", "--messages", f"{quoted(given)} is not DESTINATION=FILE")
        try:
            yield destination, [line for line in Path(path).read_bytes().splitlines() if line.strip()]
        except OSError as error:
            raise UsageError("E2427", "--messages", f"{quoted(path)} cannot be read: {error.strerror}") from error


def _body(published: Sequence[tuple[str, list[bytes]]]) -> Body:
    def body(world: World) -> None:
        for destination, bodies in published:
            world.publish(destination, bodies)
        world.run_until_quiet()
        world.check()

    return body


def _tell(result: Result, file: Path, given: Sequence[str]) -> None:
    if result.shrunk is None:
        write_line(f"no violation. {result.figures.line()}")
        return
    what = [str(file), *given]
    try:
        kept = replay.write(DIRECTORY, file, shlex.join(what), result.figures.level, result.shrunk)
    except UsageError as error:
        again = str(error)
    else:
        again = shlex.join(["correlator", "crashtest", *what, "--replay", str(kept)])
    for line in report.failure(result, again).splitlines():
        write_line(line)
