"""Runs Alembic in one thread at a time: revisions find their connection through modules that all threads share.

Without this, if two threads opened new stores at the same time, the revisions of one store could run on the other.
"""

import os
import re
import threading
from pathlib import Path

_turn = threading.Lock()
_REVISION = re.compile(r"(?!0000)[0-9]{4}")


def is_revision(text: str) -> bool:
    """Return whether a revision may have this name: four digits. A damaged database may hold anything in its place."""
    return _REVISION.fullmatch(text) is not None


def run(scripts: Path, head: str, **attributes: object) -> None:
    """Run the missing revisions up to `head`; any thread may call it.

    Args:
        scripts: the Alembic directory. Its `env.py` finds the attributes in `context.config.attributes`.
        head: the revision to reach.
        **attributes: values for `env.py`, such as the connection, on which no transaction is open.
    """
    from alembic import command  # noqa: PLC0415  # most starts find their store up to date, and save 0.1 s
    from alembic.config import Config  # noqa: PLC0415  # as above

    config = Config(attributes=attributes)
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with _turn:
        command.upgrade(config, head)


def _renew_turn() -> None:
    """Make a new lock in a forked child: a thread of the parent may have held the old one at the fork."""
    global _turn  # noqa: PLW0603
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_renew_turn)
