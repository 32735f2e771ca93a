"""An engine whose handler forks children, in a process of its own; prints what the child met, or how it ended."""

# ruff: noqa: T201 - what it prints is how it speaks to the test

import multiprocessing
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from correlator import Engine, Monitor, event, match
from correlator.cli.signals import StopSignals
from correlator.errors import CorrelatorError
from correlator.events import FlowControlMarker
from correlator.runtime.signals import stop_signals
from correlator.settings import EngineSettings, MonitorSettings

FORK: Any = multiprocessing.get_context("fork")
DONE = threading.Event()


@event
class Late:
    """Nobody sends it."""


class Asks(Monitor):
    """Its first handler forks."""

    does: ClassVar[Callable[[Any], None]]

    def onload(self) -> None:
        type(self).does(self)
        DONE.set()

    def later(self, *_events: Any) -> None: ...


def ask(one: Asks) -> None:
    """The child makes each call of a monitor, in the thread that its parent's handler runs in, and in another one."""
    calls: list[Callable[[], object]] = [
        lambda: one.send(b"1", to="out"),
        lambda: one.once(match(Late), one.later),
        lambda: one.cancel(1),
        lambda: one.wait(1, one.later),
        lambda: one.spawn(Asks),
        one.stop,
        lambda: one.subscribe("other"),
        lambda: one.unsubscribe("other"),
        lambda: one.outstanding("out"),
        lambda: one.request_flush("out"),
        lambda: one.acknowledge_and_resume("in"),
        lambda: one.update_flow_control_window(FlowControlMarker(receiver="in", number=0), 1),
    ]

    def make() -> None:
        print("met", *{met_by(call) for call in calls}, flush=True)

    def child() -> None:
        make()
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()

    process = FORK.Process(target=child)
    process.start()
    process.join()


def met_by(call: Callable[[], object]) -> str:
    try:
        call()
    except CorrelatorError as error:
        return error.code
    return "nothing"


def terminate(_: Asks) -> None:
    """The child is asked to end while it is busy."""
    process = FORK.Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    process.join()
    print("met", process.exitcode, flush=True)


def pool(_: Asks) -> None:
    """A pool of children, which leaving its block terminates."""
    with FORK.Pool(2) as workers:
        print("met", sum(workers.map(abs, [-1, -2])), flush=True)


WHATS: dict[str, Callable[[Asks], None]] = {"ask": ask, "terminate": terminate, "pool": pool}


def main(what: str, signals: str) -> None:
    """Run an engine until its handler has done what it is to do."""
    Asks.does = WHATS[what]
    settings = EngineSettings(name="forking", monitors=(MonitorSettings(type="tests.forks.handling:Asks"),))
    with StopSignals() if signals == "run" else stop_signals(), Engine(settings):
        DONE.wait()
