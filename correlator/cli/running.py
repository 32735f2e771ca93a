"""The second half of `correlator run`: runs an engine, or a member of several, to its end or until a signal comes."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from correlator.cli import progress
from correlator.cli.loading import directory_of
from correlator.cli.output import Row
from correlator.cli.signals import StopSignals
from correlator.cli.systemd import Heart, notify
from correlator.cli.watching import Watcher, watcher
from correlator.configuration import Loaded
from correlator.errors import printable
from correlator.pipeline.runner import build_engine
from correlator.pipeline.spec import PipelineFile
from correlator.runtime import logs
from correlator.runtime.engine import Engine
from correlator.runtime.member import Member
from correlator.runtime.status import PIPELINE_TIMES, PipelineCounters, Status
from correlator.settings import EngineSettings

TICK_S = 0.1
COLUMNS = (
    "part",
    "received",
    "duplicates dropped",
    "dead letters",
    "sent",
    "checkpoints",
    "in/s",
    "out/s",
)


def run(file: Path, loaded: Loaded[PipelineFile]) -> tuple[list[Row], int]:
    """Run what the file describes; returns the rows of the table and the exit status."""
    return _run(file, loaded, watcher()) if loaded.settings.shares is None else _run_member(file, loaded)


def _run(file: Path, loaded: Loaded[PipelineFile], shown: Watcher) -> tuple[list[Row], int]:
    """Run the engine; returns the rows of the table and the exit status."""
    with StopSignals() as signals:
        engine = build_engine(loaded.settings, [directory_of(file)], loaded.origin)
        seconds = _drive(engine, signals, shown)
        status = engine.status()
        for name, did in status.pipelines.items():
            log = logs.get_logger(pipeline=name, batches=did.batches, received=did.received, sent=did.sent)
            log.info("time of a pipeline", **_times(did), commit_s=round(status.checkpoints.total_duration_s, 3))
        logs.get_logger().info("ended", seconds=round(seconds, 3))
        return _rows(status, seconds), signals.exit_status


def _run_member(file: Path, loaded: Loaded[PipelineFile]) -> tuple[list[Row], int]:
    """Run a member until a signal comes; returns the rows of the table, one for each share, and the exit status."""

    def make(settings: EngineSettings, **more: Any) -> Engine:
        assert isinstance(settings, PipelineFile)
        return build_engine(settings, [directory_of(file)], loaded.origin, **more)

    with StopSignals() as signals, Member(loaded.settings, make_engine=make) as member:
        began = time.monotonic()
        notify("READY=1")
        heart = Heart(
            lambda: [engine.writer for engine in member.engines.values() if engine.writer is not None],
            lambda: f"runs {len(member.engines)} of the shares",
        )
        while signals.received is None and member.failure is None:
            if (line := progress.present()) is not None:
                line.show(f"running {len(member.engines)} of the shares")
            heart.beat()
            time.sleep(TICK_S)
        notify("STOPPING=1")
        if signals.received is not None:
            _tell_stop(signals.received.name)
    member.raise_failure()
    seconds = time.monotonic() - began
    logs.get_logger().info("ended", seconds=round(seconds, 3))
    every = [(f"share {number}", did) for number, did in sorted(member.totals.items())]
    total = sum((did for _, did in every), Counter())
    return [_row_of(name, did, seconds) for name, did in (*every, ("total", total))], signals.exit_status


def _tell_stop(signal: str) -> None:
    again = "a second signal ends the process at once, and the next start recovers"
    logs.get_logger().info("stopping", signal=signal, again=again)


def _state(status: Status) -> str:
    """One line for `systemctl status`."""
    reasons = status.not_ready()
    totals = status.totals()
    figures = ", ".join(f"{name} {totals[name]}" for name in ("received", "sent", "dead letters"))
    return printable(f"{f'not ready: {reasons[0]}' if reasons else 'ready'}; {figures}")


def _row_of(name: str, totals: Mapping[str, int], seconds: float) -> Row:
    figures = (totals.get(column, 0) for column in COLUMNS[1:6])
    return (name, *figures, _rate(totals.get("received", 0), seconds), _rate(totals.get("sent", 0), seconds))


def _drive(engine: Engine, signals: StopSignals, shown: Watcher) -> float:
    """Recover, run, and stop in order; returns the seconds since the end of recovery.

    A separate thread waits for the end of the engine, so that this thread can check signals and figures.
    """
    heart = Heart(lambda: [] if engine.writer is None else [engine.writer], lambda: _state(engine.status()))
    with engine:
        began = time.monotonic()
        logs.get_logger().info("running", receivers=len(engine.receivers), senders=len(engine.senders))
        notify("READY=1")
        waiting = _Waiting(engine)
        waiting.start()
        asked = False
        while waiting.is_alive():
            if signals.received is not None and not asked:
                asked = True
                _tell_stop(signals.received.name)
                engine.request_stop()
            waiting.join(TICK_S)
            heart.beat()
            shown.tick(engine.status())
        notify("STOPPING=1")
        waiting.raise_failure()
    engine.raise_failure()
    return time.monotonic() - began


class _Waiting(threading.Thread):
    """Waits for the end of a running engine, and keeps the error that it raised."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(name="waiting")
        self._engine = engine
        self._error: Exception | None = None

    def run(self) -> None:
        """Wait for the end. An engine without receivers works only by timers and has no end."""
        try:
            if self._engine.receivers:
                self._engine.run_until_ended()
            else:
                self._engine.run_forever()
        except Exception as error:  # noqa: BLE001  # raised again in the main thread
            self._error = error

    def raise_failure(self) -> None:
        """Raise the error of the engine, if there is one."""
        if self._error is not None:
            raise self._error


def _rows(status: Status, seconds: float) -> list[Row]:
    rows: list[Row] = []
    for name, (_, got) in status.receivers.items():
        counts = (got.received, got.duplicates, got.dead_letters)
        rows.append((f"receiver {name}", *counts, None, None, _rate(got.received, seconds), None))
    for name, (_, gave, _) in status.senders.items():
        rate = _rate(gave.sent, seconds)
        rows.append((f"sender {name}", None, None, gave.dead_letters, gave.sent, None, None, rate))
    for name, did in status.pipelines.items():
        rates = _rate(did.received, seconds), _rate(did.sent, seconds)
        rows.append((f"pipeline {name}", did.received, None, did.dead_letters, did.sent, None, *rates))
    return [*rows, _row_of("total", status.totals(), seconds)]


def _times(did: PipelineCounters) -> dict[str, float]:
    return {item: round(getattr(did, item), 3) for item in PIPELINE_TIMES}


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 1)
