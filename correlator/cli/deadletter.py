"""`correlator deadletter`: lists, shows, replays and discards messages that could not be mapped, handled or sent."""

from collections.abc import Callable
from typing import Annotated

import typer

from correlator.cli.arguments import Share, Target
from correlator.cli.asking import ask
from correlator.cli.loading import store_and_settings, store_url
from correlator.cli.output import Row, shortened, shown, write_json, write_line, write_table
from correlator.core.deadletters import DeadLetterKind
from correlator.errors import ConnectionLost, Fenced, UsageError
from correlator.pipeline.spec import PipelineFile
from correlator.runtime.commits import COMMIT_PATIENCE_S
from correlator.runtime.control.address import sockets_of
from correlator.runtime.control.protocol import MOST_NUMBERS, Discard, Replay, Request
from correlator.storage import deadletters
from correlator.storage import inspect as store
from correlator.storage.database import location
from correlator.storage.inspect import DeadLetterRow, Selection
from correlator.storage.letters import described

COLUMNS = ("number", "kind", "origin", "receiver", "unique_id", "engine_time", "reason", "body")

Numbers = Annotated[
    list[int] | None,
    typer.Argument(metavar="NUMBER…", help="Numbers of dead letters, as 'list' shows them.", show_default=False),
]
OfKind = Annotated[
    DeadLetterKind | None,
    typer.Option("--kind", metavar="KIND", help=f"Only of this kind: {', '.join(DeadLetterKind)}.", show_default=False),
]
OfOrigin = Annotated[
    str,
    typer.Option(
        "--origin",
        metavar="ID",
        help="Only of the receiver, monitor, context, pipeline or sender with this id.",
        show_default=False,
    ),
]
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print a JSON list with an object for each dead letter; messages in full.")
]


def add_to(app: typer.Typer) -> None:
    """Register `correlator deadletter` and its subcommands with `app`, the Typer application of all commands."""
    group = typer.Typer(help="List, show, replay or discard dead letters of a store.", rich_markup_mode=None)
    group.command("list")(list_letters)
    group.command("show")(show)
    group.command("replay")(replay)
    group.command("discard")(discard)
    app.add_typer(group, name="deadletter")


def list_letters(
    target: Target, kind: OfKind = None, origin: OfOrigin = "", share: Share = None, json: Json = False
) -> None:
    """List dead letters, one line for each. Changes nothing; an engine may be running."""
    rows = store.dead_letters(store_url(target, share), _selection([], kind, origin))
    if json:
        write_json([described(row) for row in rows])
    else:
        write_table("Dead letters", COLUMNS, [_line(row) for row in rows])


def show(
    target: Target,
    numbers: Annotated[
        list[int],
        typer.Argument(metavar="NUMBER…", help="Numbers of dead letters, as 'list' shows them.", show_default=False),
    ],
    share: Share = None,
    json: Json = False,
) -> None:
    """Show dead letters in full: reason, body, properties and headers. Changes nothing; an engine may be running."""
    url, selection = store_url(target, share), Selection(numbers=numbers)
    store.counted_dead_letters(url, selection)
    rows = store.dead_letters(url, selection)
    if json:
        write_json([described(row) for row in rows])
        return
    for row in rows:
        for name, value in described(row).items():
            write_line(f"{name}: {shown(value)}")
        write_line("")


def replay(
    target: Target,
    numbers: Numbers = None,
    kind: OfKind = None,
    origin: OfOrigin = "",
    everything: All = False,
    share: Share = None,
) -> None:
    """Bring dead letters back: the next start handles or sends their messages again.

    A running engine does so at once; in this case name its configuration file. A received message goes to all contexts
    and pipelines that take from its receiver, including those that have handled it before. If one of the named dead
    letters cannot go back, none does, and the error names it.
    """
    selection = _chosen(numbers, kind, origin, everything=everything)
    url, settings = store_and_settings(target, share)
    done = _done(url, settings, selection, deadletters.replay, lambda some: Replay(some, COMMIT_PATIENCE_S))
    _tell("replayed", done)


def discard(
    target: Target,
    numbers: Numbers = None,
    kind: OfKind = None,
    origin: OfOrigin = "",
    everything: All = False,
    share: Share = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it. Without this option the command only shows what would be lost.")
    ] = False,
) -> None:
    """Delete dead letters permanently. A running engine does so itself; in this case name its configuration file."""
    selection = _chosen(numbers, kind, origin, everything=everything)
    url, settings = store_and_settings(target, share)
    loss = store.counted_dead_letters(url, selection)
    if loss and not yes:
        write_table("Would be lost", ("kind", "origin", "messages"), [(o.kind, o.origin, o.count) for o in loss])
        count = sum(one.count for one in loss)
        what = f"{count} dead letter{'s' if count > 1 else ''} would be lost"
        raise UsageError("E2020", location(url), what, "", "If you mean it: --yes")
    _tell("discarded", _done(url, settings, selection, deadletters.discard, Discard))


def _done(
    url: str,
    settings: PipelineFile | None,
    selection: Selection,
    act: Callable[[str, Selection], int],
    request: Callable[[list[int]], Request],
) -> int:
    """Act on dead letters, or let the engine that owns the store do it. Returns their number."""
    try:
        return act(url, selection)
    except Fenced as owned:
        if settings is None:
            raise
        found = [row.number for row in store.dead_letters(url, selection)]
        try:
            answers = [
                ask(sockets_of(settings), request(found[at : at + MOST_NUMBERS]), COMMIT_PATIENCE_S)
                for at in range(0, len(found), MOST_NUMBERS)
            ]
        except ConnectionLost:
            raise owned from None  # the owner of the store is no engine, or an engine without a control socket
        return sum(len(answer["numbers"]) for answer in answers)


def _chosen(numbers: list[int] | None, kind: DeadLetterKind | None, origin: str, *, everything: bool) -> Selection:
    """Return the dead letters that were named; raises `UsageError` E2022 unless the command line names some."""
    given = bool(numbers or kind or origin)
    if given == everything:
        what = "both --all and a selection are given" if everything else "names no dead letter"
        raise UsageError("E2022", "deadletter", what, "Give numbers, --kind or --origin, or else --all")
    return _selection(numbers or [], kind, origin)


def _selection(numbers: list[int], kind: DeadLetterKind | None, origin: str) -> Selection:
    return Selection(numbers=numbers, kind=kind or "", origin=origin)


def _tell(done: str, count: int) -> None:
    write_line(f"{count} {done}")


def _line(row: DeadLetterRow) -> Row:
    letter = row.letter
    return (
        row.number,
        letter.kind,
        letter.origin,
        letter.receiver,
        letter.unique_id,
        letter.time,
        letter.reason,
        shortened(shown(letter.message.body)),
    )
