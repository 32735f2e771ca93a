"""The library of system calls: what it records, what it strikes, and what an engine does when its disk fails."""

import contextlib
import os
import random
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from correlator.errors import UsageError
from correlator.storage import inspect
from correlator.testing.power.disk import Disk
from correlator.testing.syscalls import library
from correlator.testing.syscalls.library import Action, CallFault
from correlator.testing.syscalls.trace import CallKind, CallRecord, Trace
from tests.crash import disk_full
from tests.crash.armed import Armed, End, Order
from tests.crash.campaign import check, publish
from tests.crash.child import Job

pytestmark = pytest.mark.kill9

SYNCS_OF_THE_LOG = frozenset({CallKind.FDATASYNC})
WRITES = frozenset({CallKind.WRITE})


# --- one process, call by call ---

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs Python code in the directory `w`, which is watched."""
    (tmp_path / "w").mkdir()

    def run(code: str, *, trace: bool = False, fault: CallFault | None = None) -> subprocess.CompletedProcess[str]:
        environment = library.environment(tmp_path / "w", trace=tmp_path / "trace" if trace else None, fault=fault)
        command = [sys.executable, "-S", "-c", "import os\n" + textwrap.dedent(code)]
        return subprocess.run(command, cwd=tmp_path / "w", env=environment, check=False, capture_output=True, text=True)

    return run


def test_every_call_is_recorded_in_order(run: Run, tmp_path: Path) -> None:
    done = run(
        """
        f = os.open("a", os.O_RDWR | os.O_CREAT)
        os.write(f, b"one")
        os.write(f, b"two")
        os.pwrite(f, b"three", 10)
        os.ftruncate(f, 12)
        os.fsync(f)
        os.fdatasync(f)
        os.open("a", os.O_RDWR | os.O_CREAT)
        os.open("a", os.O_RDWR | os.O_TRUNC)
        os.rename("a", "../w/b")
        d = os.open(".", os.O_RDONLY)
        os.fsync(d)
        os.unlink("b")
        os.write(f, b"nobody sees this")
        """,
        trace=True,
    )
    assert done.stderr == ""
    assert list(Trace(tmp_path / "trace")) == [
        CallRecord(CallKind.CREATE, "a", 0, b""),
        CallRecord(CallKind.WRITE, "a", 0, b"one"),
        CallRecord(CallKind.WRITE, "a", 3, b"two"),
        CallRecord(CallKind.WRITE, "a", 10, b"three"),
        CallRecord(CallKind.TRUNCATE, "a", 12, b""),
        CallRecord(CallKind.FSYNC, "a", 0, b""),
        CallRecord(CallKind.FDATASYNC, "a", 0, b""),
        CallRecord(CallKind.TRUNCATE, "a", 0, b""),
        CallRecord(CallKind.RENAME, "a", 0, b"b"),
        CallRecord(CallKind.FSYNC, "", 0, b""),
        CallRecord(CallKind.UNLINK, "b", 0, b""),
    ]


@pytest.mark.parametrize("size", ["", "64"])
def test_calls_of_both_offset_sizes_are_recorded(run: Run, tmp_path: Path, size: str) -> None:
    """Programs reach files by one of two sets of names; on 64 bits both mean the same."""
    done = run(
        f"""
        import ctypes
        c = ctypes.CDLL(None)
        f = c.open{size}(b"a", os.O_RDWR | os.O_CREAT, 0o600)
        c.pwrite{size}(f, b"abc", ctypes.c_size_t(3), ctypes.c_long(5))
        c.ftruncate{size}(f, ctypes.c_long(6))
        """,
        trace=True,
    )
    assert done.stderr == ""
    assert list(Trace(tmp_path / "trace")) == [
        CallRecord(CallKind.CREATE, "a", 0, b""),
        CallRecord(CallKind.WRITE, "a", 5, b"abc"),
        CallRecord(CallKind.TRUNCATE, "a", 6, b""),
    ]
    assert stat.S_IMODE((tmp_path / "w" / "a").stat().st_mode) == 0o600


def test_other_directories_and_failed_calls_are_not_recorded(run: Run, tmp_path: Path) -> None:
    done = run(
        """
        f = os.open("../beside", os.O_RDWR | os.O_CREAT)
        os.write(f, b"x")
        g = os.open("../w-too", os.O_RDWR | os.O_CREAT)
        os.write(g, b"x")
        os.fsync(g)
        for call in (lambda: os.open("no/such", os.O_CREAT), lambda: os.unlink("none"), lambda: os.write(99, b"")):
            try:
                call()
            except OSError as error:
                print(error.errno)
        """,
        trace=True,
    )
    assert done.stdout == "2\n2\n9\n"
    assert list(Trace(tmp_path / "trace")) == []


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_a_process_dies_right_before_its_nth_call(run: Run, tmp_path: Path, n: int) -> None:
    done = run(
        """
        f = os.open("a", os.O_WRONLY | os.O_CREAT)
        for _ in range(9):
            os.write(f, b"x")
        """,
        fault=CallFault(action=Action.KILL, at=n, kinds=WRITES),
    )
    assert done.returncode == -9
    assert (tmp_path / "w" / "a").read_bytes() == b"x" * (n - 1)


def test_the_first_counting_call_may_be_the_creation(run: Run, tmp_path: Path) -> None:
    assert run("os.open('a', os.O_CREAT)", fault=CallFault(action=Action.KILL)).returncode == -9
    assert list((tmp_path / "w").iterdir()) == []


WRITE_FIVE_TIMES = """
    f = os.open("a.log", os.O_WRONLY | os.O_CREAT)
    for _ in range(5):
        try:
            print(os.write(f, b"four"))
        except OSError as error:
            print(error.strerror)
    """


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (CallFault(action=Action.EIO, at=2, kinds=WRITES), [4, "Input/output error", 4, 4, 4]),
        (CallFault(action=Action.ENOSPC, at=2, times=2, kinds=WRITES), [4, *["No space left on device"] * 2, 4, 4]),
        (CallFault(action=Action.ENOSPC, at=3, times=0, kinds=WRITES), [4, 4, *["No space left on device"] * 3]),
        (CallFault(action=Action.SHORT, at=2, kinds=WRITES), [4, 2, 4, 4, 4]),
        (CallFault(action=Action.ENOSPC, at_byte=10, kinds=WRITES), [4, 4, 2, "No space left on device", 4]),
        (CallFault(action=Action.ENOSPC, at_byte=8, times=0, kinds=WRITES), [4, 4, *["No space left on device"] * 3]),
        (CallFault(action=Action.EIO, at=1, kinds=WRITES, suffix=".log"), ["Input/output error", 4, 4, 4, 4]),
        (CallFault(action=Action.EIO, at=1, kinds=WRITES, suffix=".db"), [4] * 5),
        (CallFault(action=Action.EIO, at=1, kinds=SYNCS_OF_THE_LOG), [4] * 5),
    ],
)
def test_a_fault_strikes_the_calls_that_it_names(run: Run, fault: CallFault, expected: list[object]) -> None:
    done = run(WRITE_FIVE_TIMES, fault=fault)
    assert done.stdout.splitlines() == [str(one) for one in expected]
    assert done.stderr == ""


def test_a_trace_tells_what_was_struck_and_what_took_place(run: Run, tmp_path: Path) -> None:
    run(WRITE_FIVE_TIMES, trace=True, fault=CallFault(action=Action.SHORT, at=2, kinds=WRITES))
    assert list(Trace(tmp_path / "trace"))[1:4] == [
        CallRecord(CallKind.WRITE, "a.log", 0, b"four"),
        CallRecord(CallKind.STRUCK, "a.log", CallKind.WRITE, b""),
        CallRecord(CallKind.WRITE, "a.log", 4, b"fo"),
    ]


def test_forks_and_programs_of_an_armed_process_are_not_watched(run: Run, tmp_path: Path) -> None:
    done = run(
        """
        import subprocess, sys
        if os.fork() == 0:
            os.open("fork", os.O_CREAT)
            os._exit(0)
        os.wait()
        subprocess.run([sys.executable, "-S", "-c", "open('program', 'w')"], check=True)
        os.open("own", os.O_CREAT)
        """,
        trace=True,
    )
    assert done.stderr == ""
    assert sorted(path.name for path in (tmp_path / "w").iterdir()) == ["fork", "own", "program"]
    assert [one.path for one in Trace(tmp_path / "trace")] == ["own"]


def test_a_process_that_cannot_record_does_not_begin(tmp_path: Path) -> None:
    environment = library.environment(tmp_path, trace=tmp_path / "no" / "trace")
    done = subprocess.run(
        [sys.executable, "-c", "print('began')"], env=environment, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (70, "")
    assert done.stderr == "correlator: system calls cannot be watched: No such file or directory\n"


def test_a_forked_child_is_armed_by_itself(tmp_path: Path) -> None:
    """The whole Python side, as a server of forks uses it."""
    code = f"""
        import os
        from pathlib import Path
        from correlator.testing.syscalls import library
        from correlator.testing.syscalls.library import Action, CallFault

        directory, trace = Path({str(tmp_path / "w")!r}), Path({str(tmp_path / "trace")!r})
        def child():
            library.arm(directory, trace=trace)
            open(directory / "a", "wb").write(b"x")
            library.mark(b"fact")
            library.disarm()
            open(directory / "b", "wb").write(b"x")
            print(library.calls(), library.struck())
            library.arm(directory, fault=CallFault(action=Action.EIO, times=0))
            for _ in range(3):
                try:
                    open(directory / "c", "wb")
                except OSError:
                    print(library.calls(), library.struck())
        print(library.preloaded(), flush=True)
        open(directory / "server", "wb").write(b"x")
        if os.fork() == 0:
            child()
        else:
            os.wait()
        """
    (tmp_path / "w").mkdir()
    with library.preloading():
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], check=False, capture_output=True, text=True
        )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["True", "2 0", "1 1", "2 2", "3 3"]
    assert [(one.kind, one.path, one.content) for one in Trace(tmp_path / "trace")] == [
        (CallKind.CREATE, "a", b""),
        (CallKind.WRITE, "a", b"x"),
        (CallKind.MARK, "", b"fact"),
    ]


# --- the library itself ---


def test_the_library_lies_where_only_its_user_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = library.library()
    assert path.parent == tmp_path / "correlator"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    made = path.stat()
    assert library.library().stat() == made, "it is compiled once"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("compiler", "text"),
    [("", "there is no C compiler 'cc'"), ("#!/bin/sh\necho stdio.h: missing >&2\nexit 1\n", "stdio.h: missing")],
)
def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, text: str) -> None:
    if compiler:
        (tmp_path / "cc").write_text(compiler)
        (tmp_path / "cc").chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=rf"^E2401 .*{text}.*Install"):
        library.library()
    assert list((tmp_path / "cache" / "correlator").iterdir()) == []


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "correlator").mkdir()
    (tmp_path / "correlator").chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"^E2401 .* is not a directory of this user alone. chmod 700"):
        library.library()


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match=r"^E2401 .* on darwin. This needs Linux"):
        library.library()


def test_a_process_without_the_library_cannot_be_armed(tmp_path: Path) -> None:
    assert not library.preloaded()
    for call in (lambda: library.arm(tmp_path), lambda: library.mark(b""), library.calls, library.disarm):
        with pytest.raises(UsageError, match=r"^E2402 .*was started without it"):
            call()


def test_a_path_with_a_line_break_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^E2404 "):
        library.environment(tmp_path, trace=tmp_path / "two\nlines")


def test_preloading_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "/lib/other.so"):
        if before is None:
            monkeypatch.delenv("LD_PRELOAD", raising=False)
        else:
            monkeypatch.setenv("LD_PRELOAD", before)
        with library.preloading():
            assert os.environ["LD_PRELOAD"].startswith(str(library.library()))
            assert os.environ["LD_PRELOAD"].endswith(before or ".so")
        assert os.environ.get("LD_PRELOAD") == before


# --- engines whose disk fails ---


@pytest.fixture(scope="module")
def armed() -> Iterator[Armed]:
    """Forks engines."""
    with contextlib.closing(Armed()) as process:
        yield process


@dataclass
class Shop:
    """A store in a directory of its own, a broker with orders, a trace."""

    armed: Armed
    directory: Path
    trace: Path
    job: Job
    published: int

    def live(self, fault: CallFault | None = None) -> End:
        """One engine."""
        trace = str(self.trace) if fault else ""
        return self.armed.live(Order(job=self.job, directory=str(self.directory), fault=fault, trace=trace))

    def finish(self) -> None:
        """An engine with a sound disk does what is left: everything has happened once."""
        end = self.live()
        assert (end.status, end.code) == (0, "")
        check(self.job.store, self.job.broker, self.published)

    def records(self) -> list[CallRecord]:
        """The trace."""
        return list(Trace(self.trace))

    def after_the_fault(self) -> list[CallRecord]:
        """What the engine did when the fault had struck for the last time."""
        records = self.records()
        return records[max(at for at, one in enumerate(records) if one.kind is CallKind.STRUCK) + 1 :]


@pytest.fixture
def shop(armed: Armed, tmp_path: Path) -> Shop:
    """Orders wait for the first engine."""
    directory, broker = tmp_path / "store", f"sqlite:///{tmp_path / 'broker.db'}"
    directory.mkdir(mode=0o700)
    published = publish(random.Random(1), broker, 0)
    job = Job(store=f"sqlite:///{directory / 'engine.db'}", broker=broker, expected=published)
    return Shop(armed, directory, tmp_path / "trace", job, published)


def passed(records: list[CallRecord]) -> list[str]:
    """The fault points among them."""
    return [one.content.decode() for one in records if one.kind is CallKind.MARK]


def commits(names: list[str]) -> int:
    """How many commits were reported."""
    return sum(name.endswith("tx.commit.after") for name in names)


@pytest.mark.parametrize("nth", [8, 11, 15])
def test_t2_t3_an_engine_whose_commit_cannot_be_synced_stops(shop: Shop, nth: int) -> None:
    """Given one failed sync of the log, then sound ones: when it commits, then it ends; the next start finds the truth."""
    end = shop.live(CallFault(action=Action.EIO, at=nth, kinds=SYNCS_OF_THE_LOG, suffix="-wal"))
    assert (end.status, end.code, end.struck) == (3, "E3104", 1)

    after, names = shop.after_the_fault(), passed(shop.records())
    assert commits(passed(after)) == 0, "nothing is reported as committed any more"
    assert [one for one in after if one.kind is CallKind.WRITE and one.path.endswith("-wal")] == [], (
        "nothing is committed"
    )
    assert names.count("rx.ack.before") <= commits(names), "a batch is acknowledged after its commit"

    there = max((one.number for one in inspect.checkpoints(shop.job.store)), default=0)
    done = names.count("ck.tx.commit.after")
    assert there in (done, done + 1), "invariant G1"
    shop.finish()


@pytest.mark.parametrize(("at_byte", "times"), [(1_000_000, 1), (1_100_000, 3)])
def test_t2_a_full_disk_is_a_clean_rollback(shop: Shop, at_byte: int, times: int) -> None:
    """Trap T2: given a disk that is full from byte n on, for a while, then the engine waits and goes on."""
    fault = CallFault(action=Action.ENOSPC, at_byte=at_byte, times=times, kinds=WRITES, suffix="-wal")
    end = shop.live(fault)
    assert (end.status, end.code, end.struck) == (0, "", times)
    names = passed(shop.records())
    begun = sum(name.endswith("tx.commit.before") for name in names)
    assert begun - commits(names) == times, "each was rolled back and tried again"
    shop.finish()


def test_150_a_start_without_space_leaves_what_the_next_one_needs(shop: Shop) -> None:
    """Given a full disk at a start, then it is refused, and with space it succeeds."""
    for nth in (1, 4, 9, 12):
        end = shop.live(CallFault(action=Action.ENOSPC, at=nth, times=0, kinds=WRITES))
        assert (end.status, end.code in disk_full.DOCUMENTED) == (3, True)
    shop.finish()


def test_the_calls_of_many_threads_are_one_order(shop: Shop) -> None:
    """A trace, replayed, makes the files that the engine left."""
    shop.live(CallFault(action=Action.KILL, at=1_000_000))
    disk = Disk()
    for one in shop.records():
        disk.apply(one)
    there = {path.name: path.read_bytes() for path in shop.directory.iterdir()}
    assert {name: bytes(file.content) for name, file in disk.names.items()} == there


@pytest.mark.campaign
def test_disk_full_campaign(tmp_path: Path) -> None:
    """The quick form of `python -m tests.crash.disk_full`."""
    report = tmp_path / "report.json"
    assert disk_full.main(["--runs", "10", "--seed", "3", "--report", str(report)]) == 0
    figures = msgspec.json.decode(report.read_bytes())
    assert figures["runs"] == 10
    assert figures["violations"] == []
    assert sum(figures["faults"].values()) + figures["runs_without_fault"] == 10
    assert sum(figures["faults"].values()) >= 6
