"""`correlator deadletter`: lists, shows, replays and discards messages that could not be mapped, handled or sent."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from correlator.cli.arguments import Share, Target, Yes
from correlator.cli.asking import NOT_RUNNING, ask
from correlator.cli.loading import store_and_settings, store_url
from correlator.cli.output import Row, shortened, shown, write_json, write_line, write_table
from correlator.core.deadletters import DeadLetterKind, refused, together, why_not
from correlator.core.differences import joined
from correlator.errors import ConnectionLost, Fenced, UsageError
from correlator.pipeline.spec import PipelineFile
from correlator.runtime.commits import COMMIT_PATIENCE_S
from correlator.runtime.control.address import sockets_of
from correlator.runtime.control.protocol import MOST_NUMBERS, Discard, Replay
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
    _tell("replayed", _done(url, settings, selection, deadletters.replay, _let_replay))


def discard(
    target: Target,
    numbers: Numbers = None,
    kind: OfKind = None,
    origin: OfOrigin = "",
    everything: All = False,
    share: Share = None,
    yes: Yes = False,
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
    _tell("discarded", _done(url, settings, selection, deadletters.discard, _let_discard))


def _done(
    url: str,
    settings: PipelineFile | None,
    selection: Selection,
    act: Callable[[str, Selection], int],
    order: Callable[[Sequence[Path], str, Sequence[DeadLetterRow]], int],
) -> int:
    """Act on dead letters, or order it of the engine that owns the store. Returns their number."""
    try:
        return act(url, selection)
    except Fenced as owned:
        if settings is None:
            raise
        try:
            return order(sockets_of(settings), url, store.dead_letters(url, selection))
        except ConnectionLost as lost:
            if isinstance(lost.__cause__, NOT_RUNNING):
                raise owned from None  # the owner of the store is no engine, or an engine without a control socket
            raise


def _let_discard(place: Sequence[Path], _url: str, rows: Sequence[DeadLetterRow]) -> int:
    return _discarded(place, [row.number for row in rows])


def _let_replay(place: Sequence[Path], url: str, rows: Sequence[DeadLetterRow]) -> int:
    """Let an engine bring dead letters back, in several requests if there are many.

    All are checked before the first request, and one request names all dead letters about a message, or the engine
    would bring the message back twice. If one request cannot name so many, the rest is discarded once the message is
    back.
    """
    endpoints = {endpoint.id: endpoint for endpoint in store.registry(url)}
    refusals = [refused(row.number, row.letter, why) for row in rows if (why := why_not(row.letter, endpoints))]
    if refusals:
        raise joined(refusals)
    done = 0
    for numbers in _portions(together((row.number, row.letter) for row in rows)):
        request = Replay(numbers[:MOST_NUMBERS], COMMIT_PATIENCE_S)
        back = ask(place, request, COMMIT_PATIENCE_S)["numbers"]
        done += len(back) + (_discarded(place, numbers[MOST_NUMBERS:]) if back else 0)
    return done


def _portions(groups: Iterable[Sequence[int]]) -> Iterator[list[int]]:
    """Join groups as long as one request can name them; a larger group stays alone."""
    portion: list[int] = []
    for group in groups:
        if portion and len(portion) + len(group) > MOST_NUMBERS:
            yield portion
            portion = []
        portion = [*portion, *group]
    if portion:
        yield portion


def _discarded(place: Sequence[Path], numbers: Sequence[int]) -> int:
    for at in range(0, len(numbers), MOST_NUMBERS):
        ask(place, Discard(list(numbers[at : at + MOST_NUMBERS])), COMMIT_PATIENCE_S)
    return len(numbers)


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
