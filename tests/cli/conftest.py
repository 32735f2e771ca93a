"""A working directory with engines that need no server."""

import functools
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import run, write

ENGINE = """
name: trades
store: sqlite:///store/trades.db
connections:
  files: {type: file, path: data}
  broker: {type: embedded, store: "sqlite:///store/broker.db"}
receivers:
  - {id: trades, connection: files, destination: "queue:trades.jsonl", reliability: EXACTLY_ONCE, event: "positions:Trade",
     unique_message_id: "${body.number}"}
senders:
  - {id: out, connection: broker, destination: "queue:out", reliability: EXACTLY_ONCE}
monitors:
  - {type: "positions:Positions"}
"""
ENDLESS = ENGINE.replace(
    'connection: files, destination: "queue:trades.jsonl"', "connection: broker, destination: queue:in"
)
STUCK = ENGINE.replace("sqlite:///store/broker.db", "sqlite:////dev/null/nowhere/broker.db")
MONITOR = """
from correlator import Monitor, event, on


@event
class Trade:
    number: int
    account: str


class Positions(Monitor, persistent=True):
    counts: dict[str, int] = {}

    @on(Trade)
    def trade(self, trade: Trade) -> None:
        if trade.account == "boom":
            raise ValueError("no such account")
        self.counts[trade.account] = self.counts.get(trade.account, 0) + 1
        self.send(trade, to="out")
"""


def trade(number: int, account: str = "a") -> str:
    return f'{{"number": {number}, "account": "{account}"}}'


@pytest.fixture(autouse=True, scope="session")
def signals_reach_commands():
    """Commands begin with the usual signals, also where the tests were started in the background or by `nohup`."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """`engine.yaml` reads a file of ten trades, one of them twice, and sends them to an embedded broker."""
    return fill(tmp_path)


@pytest.fixture
def after_a_run(runs: Callable[[bytes], Path], tmp_path: Path) -> Callable[[bytes], Path]:
    """Makes `place` as a run leaves it that has read these lines behind the trades."""
    return lambda lines: shutil.copytree(runs(lines), tmp_path, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], Path]:
    """Runs the engine once for all tests with the same lines; each of them works in a copy of the directory."""

    @functools.cache
    def ran(lines: bytes) -> Path:
        place = fill(tmp_path_factory.mktemp("run"))
        with (place / "data" / "trades.jsonl").open("ab") as file:
            file.write(lines)
        assert run("run", "engine.yaml", cwd=place).returncode == 0
        return place

    return ran


def fill(place: Path) -> Path:
    write(place / "engine.yaml", [ENGINE])
    write(place / "endless.yaml", [ENDLESS])
    write(place / "stuck.yaml", [STUCK])
    write(place / "positions.py", [MONITOR])
    (place / "data").mkdir()
    (place / "store").mkdir(mode=0o700)
    write(place / "data" / "trades.jsonl", [*(trade(number) for number in range(10)), trade(3)])
    return place
