"""Gives SQLite settings that the product itself refuses."""

import sqlite3

from correlator.storage.sqlite import SqliteDatabase


def settled_as(*pragmas: str) -> None:
    """From now on, run these pragmas on each store that this process opens, after the product's own settings."""
    settle = SqliteDatabase._settle  # noqa: SLF001  # the product has no public method for this

    def settled(self: SqliteDatabase, raw: sqlite3.Connection) -> None:
        settle(self, raw)
        for one in pragmas:
            raw.execute(f"PRAGMA {one}")

    SqliteDatabase._settle = settled  # type: ignore[method-assign]  # noqa: SLF001
