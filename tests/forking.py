"""The process from which tests fork others, which have then imported what they need.

There is one for each worker, and of several lists of modules it would import the last one only.
"""

import multiprocessing
from multiprocessing.context import ForkServerContext

_context = multiprocessing.get_context("forkserver")
_modules = {"alembic.command": None}
"""What makes new stores and brokers, which others import only then; and what callers need."""


def forking(*modules: str) -> ForkServerContext:
    """What forks from a process that imports these modules, and those of all other callers, when it starts.

    Called while tests are imported, before any of them runs.
    """
    _modules.update(dict.fromkeys(modules))
    _context.set_forkserver_preload(list(_modules))
    return _context
