"""Other settings of SQLite than the product's, which refuses them."""

import sqlite3

from correlator.storage.sqlite import SqliteDatabase


def settled_as(*pragmas: str) -> None:
    """From now on have every store of this process set so, after the product has set and checked its own way."""
    settle = SqliteDatabase._settle  # noqa: SLF001  # on purpose

    def settled(self: SqliteDatabase, raw: sqlite3.Connection) -> None:
        settle(self, raw)
        for one in pragmas:
            raw.execute(f"PRAGMA {one}")

    SqliteDatabase._settle = settled  # type: ignore[method-assign]  # noqa: SLF001
