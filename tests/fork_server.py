"""The process from which tests fork others: it has imported before what they need, so they begin cheaply."""

import multiprocessing
from multiprocessing.context import ForkServerContext

_prepared: list[str] = []


def fork_server(*modules: str) -> ForkServerContext:
    """The way to start processes that need these modules. Call it while a module of tests is imported.

    A test run has one such server, which imports the modules of all callers: `set_forkserver_preload` replaces those of
    an earlier call.
    """
    _prepared.extend(name for name in modules if name not in _prepared)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_prepared))
    return context
