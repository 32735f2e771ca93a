"""`correlator db`: the database of a store: its schema, and emptying it."""

from collections.abc import Sequence
from typing import Annotated

import typer
from alembic.runtime.migration import MigrationContext

from correlator.cli.failures import say
from correlator.cli.loading import store_url
from correlator.cli.output import write_line, write_table
from correlator.errors import UsageError
from correlator.storage import migrate
from correlator.storage.database import location, reading
from correlator.storage.reset import Contents, contents, reset

Target = Annotated[
    str, typer.Argument(metavar="FILE_OR_STORE_URL", help="A configuration file, or the store's address.")
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = typer.Typer(help="Upgrade, look at or empty the database of a store.", rich_markup_mode=None)
    group.command("upgrade")(upgrade)
    group.command("current")(current)
    group.command("reset")(empty)
    app.add_typer(group, name="db")


def upgrade(target: Target) -> None:
    """Bring the schema of a store up to date; makes the store when there is none. The engine must be stopped."""
    before, now = migrate.upgrade(store_url(target))
    write_line(f"{now}" if before == now else f"{before or 'new'} -> {now}")


def current(target: Target) -> None:
    """Show the schema of a store, and the one that this version needs. An engine may be running on it."""
    url = store_url(target)
    with reading(url) as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migrate.VERSION_TABLE})
        revision = context.get_current_revision()
    write_line(revision or "none")
    if revision != migrate.HEAD:
        say(f"This version needs schema {migrate.HEAD}; the next start of the engine, or 'db upgrade', brings it up")


def empty(
    target: Target,
    yes: Annotated[bool, typer.Option("--yes", help="Really do it.")] = False,
) -> None:
    """Empty a store: messages, state, progress and duplicate ids are gone; shows what would be lost without --yes.

    Brokers, and the positions that file connections keep, stay as they are. The engine must be stopped.
    """
    url = store_url(target)
    loss = contents(url)
    if not yes and any(one.rows for one in loss):
        _show("Would be lost", loss)
        raise UsageError("E2020", location(url), "is not empty: all of this would be lost", "", "If you mean it: --yes")
    reset(url)
    _show("Removed", loss)


def _show(title: str, loss: Sequence[Contents]) -> None:
    write_table(title, ("part", "rows", "messages"), [(one.table, one.rows, one.messages) for one in loss])
