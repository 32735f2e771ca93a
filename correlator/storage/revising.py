"""Runs Alembic, one thread at a time: the revisions find their connection by modules that all threads share.

Without turns, two threads that open new stores at the same time run the revisions of one on the other.
"""

import os
import threading
from pathlib import Path

from alembic import command
from alembic.config import Config

_turn = threading.Lock()


def run(scripts: Path, head: str, **attributes: object) -> None:
    """Run the missing revisions up to `head`; any thread may call it.

    Args:
        scripts: the Alembic directory. Its `env.py` finds the attributes in `context.config.attributes`.
        head: the revision to reach.
        **attributes: among them the connection, outside a transaction.
    """
    config = Config(attributes=attributes)
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with _turn:
        command.upgrade(config, head)


def _renew_turn() -> None:
    """Run in a forked child: a thread of its parent may have had the turn."""
    global _turn  # noqa: PLW0603
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_renew_turn)
