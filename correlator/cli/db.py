"""`correlator db`: upgrades, checks, copies and empties the database of a store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from alembic.runtime.migration import MigrationContext

from correlator.cli.arguments import Share, Target, Yes
from correlator.cli.failures import say
from correlator.cli.loading import store_and_settings, store_url
from correlator.cli.output import write_line, write_table
from correlator.errors import StoreError, UsageError, quoted
from correlator.processes import new_identity
from correlator.storage import adopt, checking, migrate
from correlator.storage.database import copy_while_running, location, parse, reading
from correlator.storage.forget import forget, holds
from correlator.storage.inspect import refuse_no_store
from correlator.storage.reset import Contents, contents, reset
from correlator.storage.witness import witness_of


def add_to(app: typer.Typer) -> None:
    """Register `correlator db` and its subcommands with `app`, the Typer application of all commands."""
    group = typer.Typer(help="Upgrade, check, back up or empty a store.", rich_markup_mode=None)
    group.command("upgrade")(upgrade)
    group.command("current")(current)
    group.command("check")(check)
    group.command("reset")(empty)
    group.command("forget")(forget_part)
    group.command("backup")(backup)
    group.command("adopt")(adopt_copy)
    app.add_typer(group, name="db")


def upgrade(target: Target, share: Share = None) -> None:
    """Upgrade the schema of a store to this version, or create the store. The engine must be stopped.

    The start of an engine does the same.
    """
    before, now = migrate.upgrade(store_url(target, share))
    write_line(f"{now}" if before == now else f"{before or 'new'} -> {now}")


def current(target: Target, share: Share = None) -> None:
    """Show the schema version of a store, and whether it needs an upgrade. An engine may be running."""
    url = store_url(target, share)
    with reading(url) as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migrate.VERSION_TABLE})
        revision = context.get_current_revision()
    write_line(revision or "none")
    if (revision or "") > migrate.HEAD:
        say(f"This version needs schema {migrate.HEAD}, and cannot use this store: upgrade this program")
    elif revision != migrate.HEAD:
        say(f"This version needs schema {migrate.HEAD}; the next start, or 'db upgrade', upgrades the store")


def check(target: Target, share: Share = None) -> None:
    """Check a store for damage: the structure of a SQLite file, and every row against its digest.

    Prints a line for each damage, and exits with 3 if there is one. Changes nothing; an engine may be running.
    """
    url = store_url(target, share)
    structure, found = checking.check(url)
    damages = [*structure, *(damage for one in found for damage in one.damages)]
    rows = [(one.table, one.intact, len(one.damages)) for one in found]
    write_table("Checked", ("part", "rows intact", "damaged"), rows)
    for damage in damages:
        say(damage)
    if damages:
        todo = "Stop the engine, keep a copy of the store, and restore a backup"
        raise StoreError("E3011", location(url), f"{len(damages)} parts of the store are damaged", "", todo)


def empty(
    target: Target,
    share: Share = None,
    yes: Yes = False,
) -> None:
    """Empty a store: delete its messages, state, dead letters and ids. The engine must be stopped.

    The brokers, and the positions that file connections keep, stay unchanged.
    """
    url, settings = store_and_settings(target, share)
    loss = contents(url)
    if not yes and any(one.rows for one in loss):
        _show("Would be lost", loss)
        raise UsageError("E2020", location(url), "is not empty: all of this would be lost", "", "If you mean it: --yes")
    directory = None if settings is None else settings.witness_directory
    reset(url, witness_of(directory, settings.name if settings is not None else "", url))
    _show("Removed", loss)


def forget_part(
    target: Target,
    part_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the receiver or sender.", show_default=False)],
    share: Share = None,
    yes: Yes = False,
) -> None:
    """Remove a receiver or sender that code has added, with its messages. The engine must be stopped.

    Use it if no start accepts the receiver or sender any more. A program removes a part from its running engine with
    'engine.remove'.
    """
    url = store_url(target, share)
    loss = holds(url, part_id)
    if not yes:
        _show("Would be lost", loss)
        raise UsageError(
            "E2020", location(url), f"all of this of {quoted(part_id)} would be lost", "", "If you mean it: --yes"
        )
    forget(url, part_id)
    _show("Removed", loss)


def backup(
    target: Target,
    copy: Annotated[Path, typer.Argument(metavar="COPY", help="File to write; it must not exist.", show_default=False)],
    share: Share = None,
) -> None:
    """Copy a SQLite store to a file, as one consistent snapshot. An engine may be running, and goes on meanwhile.

    To restore a copy: stop the engine, remove the file of the store and the files with its name followed by -wal or
    -shm, and put the copy in its place. If the engine has sent messages that the copy does not contain, its start
    refuses the copy; 'db adopt' lets it start.
    """
    url = store_url(target, share)
    if parse(url).get_backend_name() != "sqlite":
        todo = "Use pg_dump, which gives a copy of one moment as well"
        raise UsageError("E2026", location(url), "is a PostgreSQL database", "Only SQLite stores are copied", todo)
    refuse_no_store(url)
    if copy.exists():
        raise UsageError("E2025", str(copy), "exists already", "A backup never replaces a file", "Name another one")
    try:
        copy_while_running(url, copy.absolute())
    except OSError as error:
        raise UsageError("E2025", str(copy), f"cannot be written: {error.strerror}") from error
    write_line(f"{copy.stat().st_size} bytes")


def adopt_copy(
    target: Target,
    share: Share = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it. Without this option the command only shows what it would change.")
    ] = False,
) -> None:
    """Go on with an older copy of a store although the engine has sent messages since. The engine must be stopped.

    Everything that the engine has done since the copy was made is lost. Its senders get new source ids, so that nobody
    takes their next messages for repeats of those messages. The messages that the copy holds may be received twice.
    """
    url, settings = store_and_settings(target, share)
    held = adopt.senders(url)
    if not yes:
        _show_senders("Would be sent with new source ids", held)
        what = "what the engine has done since this copy was made would be lost"
        todo = "If the store is the newest one, start the engine instead; if you mean it: --yes"
        raise UsageError("E2020", location(url), what, "", todo)
    directory, name = (None, "") if settings is None else (settings.witness_directory, settings.name)
    adopt.adopt(url, witness_of(directory, name, url), new_identity())
    _show_senders("Sent with new source ids", held)


def _show_senders(title: str, held: Sequence[adopt.Adopted]) -> None:
    write_table(title, ("sender", "messages in the copy"), held)


def _show(title: str, loss: Sequence[Contents]) -> None:
    write_table(title, ("part", "rows", "messages"), [(one.table, one.rows, one.messages) for one in loss])
