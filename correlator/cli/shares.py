"""`correlator shares`: shows which member runs which share, and changes the number of shares."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import typer

from correlator.cli.arguments import ConfigurationFile
from correlator.cli.failures import telling
from correlator.cli.loading import importable, load
from correlator.cli.output import write_json, write_line, write_table
from correlator.configuration import of_share
from correlator.errors import UsageError
from correlator.pipeline.spec import PipelineFile
from correlator.runtime.member import shares_of
from correlator.storage.inspect import exists
from correlator.storage.leases import LeaseTable, MemberRow, ShareRow, Shares, Table, shown
from correlator.storage.reset import contents

_UNUSED_S = 60.0


def add_to(app: typer.Typer) -> None:
    """Register the command `correlator shares` with `app`, the Typer application of all commands."""
    app.command("shares")(show)


def show(
    file: ConfigurationFile,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object with the lists 'shares' and 'members'.")
    ] = False,
    recount: Annotated[
        bool,
        typer.Option("--recount", help="Change the number of shares to the number in FILE. Stop all members first."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --recount: do it. Without it the command only shows what would change.")
    ] = False,
) -> None:
    """Show which member runs which share, and all living members.

    The state of a share is 'held', 'ended' (its lease has ended, and no member has taken the share yet) or 'free'. If a
    held share has a problem, its member starts it again and again.

    With --recount the command changes the number of shares to the 'count' of FILE. Each share keeps its state; the
    command moves no state from one share to another. It lists the remaining content of the shares that would no longer
    run.
    """
    with importable(file):
        loaded = load(file)
    with telling(loaded.secrets.redact):
        shares = shares_of(loaded.settings)
        table = shown(shares)
        if recount:
            _recount(loaded.settings, shares, table, yes=yes)
        elif json:
            rows = {
                "shares": [one._asdict() for one in table.shares],
                "members": [one._asdict() for one in table.members],
            }
            write_json(rows)
        else:
            write_table("Shares", ShareRow._fields, table.shares)
            write_table("Members", MemberRow._fields, table.members)


def _recount(settings: PipelineFile, shares: Shares, table: Table, *, yes: bool) -> None:
    count = len(shares.stores)
    if table.count in (None, count):
        write_line(f"{count} shares, as before")
        return
    change = f"{table.count} -> {count} shares"
    left = list(_left(settings, count, table.count or 0))
    if not yes:
        write_table("Would no longer run, and still holds", ("share", "table", "rows", "messages"), left)
        what = f"{change}: keys that producers send to other shares from now on begin there without their state"
        raise UsageError("E2020", shares.schema, what, "", "If you mean it: --yes")
    leases = LeaseTable(shares, "", _UNUSED_S)
    try:
        leases.recount()
    finally:
        leases.close()
    write_line(change)


def _left(settings: PipelineFile, count: int, before: int) -> Iterator[tuple[int, str, int, int | None]]:
    """Return the contents of the stores of shares that would no longer run."""
    assert settings.shares is not None
    every = replace(settings, shares=replace(settings.shares, count=max(count, before)))
    for number in range(count, before):
        store = of_share(every, number).store
        assert store is not None
        for one in contents(store) if exists(store) else ():
            if one.rows:
                yield number, one.table, one.rows, one.messages
