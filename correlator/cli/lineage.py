"""`correlator lineage`: which inputs caused a send, and what came of a message, from an input log."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from correlator.cli.arguments import LogConfiguration, Share
from correlator.cli.loading import importable, load_engine
from correlator.cli.output import write_line
from correlator.configuration.rules import known_names
from correlator.configuration.words import did_you_mean
from correlator.errors import UsageError, quoted
from correlator.runtime.lineage import Call, Handling, Input, Letter, lineage
from correlator.runtime.replay import started


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator lineage` with `app`, the Typer application of all commands."""
    app.command("lineage")(show_lineage)


def show_lineage(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Input log of one life of an engine.", show_default=False)],
    sender: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only what gave messages to this sender.", show_default=False),
    ] = None,
    receiver: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only what came of messages of this receiver.", show_default=False),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="Only the message with this number.", show_default=False),
    ] = None,
    message_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Only the received message with this id.", show_default=False),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only messages with this key.", show_default=False)
    ] = None,
    config: LogConfiguration = None,
    share: Share = None,
    json: Annotated[bool, typer.Option("--json", help="Print each input as a line of JSON.")] = False,
) -> None:
    """Show what an engine handled in one life, which handlers it called, what each changed and what it gave to senders.

    --sender finds the cause of a send, --receiver finds what came of a received message. The command repeats the life
    as `correlator replay` does: it sends nothing, and opens no connection and no store.
    """
    if (sender is None) == (receiver is None) and (sender, number, message_id, key) != (None, None, None, None):
        _refuse("--number, --id and --key need a sender or a receiver, and only one of them")
    if sender is not None and message_id is not None:
        _refuse("--id finds a received message; a send has a number")
    with importable(config or Path("-")):
        settings = None if config is None else load_engine(config, share=share).settings
        start, _ = started(log)
        known = {(one.kind, one.id) for one in start.endpoints}
        for one in lineage(log, settings):
            known.add(("receiver", one.input.receiver))
            known.update(("sender", send.sender) for call in one.calls for send in call.sends)
            if (sender is None or _sent(one, sender, number, key)) and (
                receiver is None or _comes_from(one.origin, receiver, number, message_id, key)
            ):
                if json:
                    write_line(msgspec.json.encode(one).decode())
                else:
                    for line in _lines(one, persistent=start.persistent):
                        write_line(line)
    if sender is not None:
        _refuse_unknown("sender", sender, known)
    if receiver is not None:
        _refuse_unknown("receiver", receiver, known)


def _refuse(what: str) -> None:
    raise UsageError("E2004", "correlator lineage", what, "--sender with --number and --key; --receiver also with --id")


def _refuse_unknown(kind: str, name: str, known: Iterable[tuple[str, str]]) -> None:
    """Refuse a name that no part had at the start, and under which nothing was received or sent."""
    names = sorted(one for its_kind, one in known if its_kind == kind and one)
    if name not in names:
        what = f"{quoted(name)} is not a {kind} of this log"
        raise UsageError("E2004", f"correlator lineage --{kind}", what, known_names(names), did_you_mean(name, names))


def _sent(one: Handling, sender: str, number: int | None, key: str | None) -> bool:
    return any(
        send.sender == sender and number in (None, send.number) and key in (None, send.key)
        for call in one.calls
        for send in call.sends
    )


def _comes_from(origin: Input, receiver: str, number: int | None, message_id: str | None, key: str | None) -> bool:
    return (
        origin.receiver == receiver
        and number in (None, origin.number)
        and message_id in (None, origin.id)
        and key in (None, origin.key)
    )


def _lines(one: Handling, *, persistent: bool) -> Iterator[str]:
    """The input, and each call with what it did on a line of its own."""
    begun = f", sent by {one.sent_by}, begun by {_named(one.origin)}" if one.sent_by else ""
    kept = ", in no checkpoint" if persistent and not one.checkpoint else ""
    yield f"{one.line} {_named(one.input)} in context {one.input.context}{begun}{kept}"
    yield from (f"  {_dead(letter)}" for letter in one.dead_letters)
    for call in one.calls:
        yield f"  {call.handler}"
        yield from (f"    {what}" for what in _effects(call))


def _named(taken: Input) -> str:
    if taken.receiver:
        identity = f" (id {taken.id})" if taken.id else ""
        return f"message {taken.number} of {taken.receiver}{identity}"
    return f"event {taken.event}" if taken.event else "timer or life-cycle method"


def _effects(call: Call) -> Iterator[str]:
    for changed in call.state:
        yield f"changed {changed.table} key {changed.key}"
    for event in call.events:
        yield f"sent event {event.event} to channel {event.channel}"
    for send in call.sends:
        key = f" key {send.key}" if send.key else ""  # not "sent": the log does not have the answer of the broker
        yield f"gave message {send.number} to sender {send.sender}, for {send.destination}{key}"
    if call.failure:
        yield f"failed: {call.failure}"
    yield from map(_dead, call.dead_letters)


def _dead(letter: Letter) -> str:
    return f"dead letter ({letter.kind}) of {letter.origin}: {letter.reason}"
