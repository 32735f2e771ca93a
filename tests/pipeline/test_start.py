"""How a local Spark starts: the command of its JVM, and the archive of classes in the cache."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from pyspark import SparkContext

from correlator.errors import ConfigError
from correlator.pipeline import archive, jvm, spark
from correlator.pipeline.archive import Archive, cache_directory, key_of, make_later, prune
from correlator.pipeline.java import java_program
from correlator.pipeline.spec import SparkSettings
from correlator.processes import LockFile

LOCAL = {"spark.master": "local[2]"}
WITHIN_S = 400
SESSION = """
import sys
from pathlib import Path
from correlator.pipeline import archive
from correlator.pipeline.spark import SharedSession
from correlator.pipeline.spec import SparkSettings
archive.make_later = lambda *given: asked.append(given)
asked = []
shared = SharedSession(SparkSettings(master="local[2]"), ends_soon=True)
session = shared.acquire()
assert session.range(3).count() == 3
process = session.sparkContext._gateway.proc
maps = Path(f"/proc/{process.pid}/maps").read_text()
Path(sys.argv[1]).write_text(f"{process.args[0]} {'correlator/jvm' in maps} {len(asked)}")
shared.release()
process.stdin.close()
process.wait()
"""
"""Starts Spark; writes what ran, whether it had mapped an archive, and how often an archive was asked for."""


def stored(directory: Path, content: bytes = b"classes" * 1000) -> Archive:
    one = Archive(directory)
    with one.making() as made:
        made.write_bytes(content)
        one.store(made)
    return one


def files_of(one: Archive) -> list[str]:
    return sorted(path.name for path in one.directory.iterdir())


def forge_record(one: Archive) -> None:
    (one.directory / "classes.size").write_bytes(archive._measure(one.directory / "classes.jsa"))


@pytest.fixture
def no_process(monkeypatch):
    def refused(*_args, **_kwargs):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", refused)


# The command


@pytest.mark.parametrize(
    ("config", "environment"),
    [
        ({"spark.master": "yarn"}, {}),
        ({"spark.master": "spark://127.0.0.1:7077 x"}, {}),
        ({"spark.master": "local-cluster[2,1,1024]"}, {}),
        ({}, {}),
        (LOCAL | {"spark.driver.extraClassPath": "/x.jar"}, {}),
        (LOCAL | {"spark.driver.defaultJavaOptions": "-Da=b"}, {}),
        (LOCAL | {"spark.driver.extraLibraryPath": "/x"}, {}),
        (LOCAL | {"spark.remote": "local"}, {}),
        (LOCAL | {"spark.driver.extraJavaOptions": "-Da='x y'"}, {}),
        (LOCAL | {"spark.driver.extraJavaOptions": "-Da=x\\ y"}, {}),
        (LOCAL | {"spark.driver.extraJavaOptions": "-Xmx2g"}, {}),
        (LOCAL, {"SPARK_DRIVER_MEMORY": "2g"}),
        (LOCAL, {"SPARK_SUBMIT_OPTS": "-Da='x y'"}),
        (LOCAL, {"SPARK_HOME": "/opt/spark"}),
        (LOCAL, {"SPARK_CONF_DIR": "/etc/spark"}),
        (LOCAL, {"PYSPARK_SUBMIT_ARGS": "--driver-memory 2g pyspark-shell"}),
        (LOCAL, {"PYSPARK_GATEWAY_PORT": "1"}),
        (LOCAL, {"HADOOP_CONF_DIR": "/etc/hadoop"}),
    ],
)
def test_pyspark_starts_the_jvm_if_the_launcher_may_change_the_command(config, environment):
    assert not jvm.is_plain(config, environment)


@pytest.mark.parametrize(
    ("config", "environment"),
    [
        ({}, {}),
        ({"spark.master": "spark://127.0.0.1:7077"}, {}),
        ({"spark.master": "spark://one:7077,two:7077"}, {}),
        ({"spark.master": "local"}, {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": "python3"}),
        ({"spark.master": "local[*, 2]", "spark.jars": "/x.jar", "spark.driver.memory": "3g"}, {"PATH": "/bin"}),
        ({"spark.driver.extraJavaOptions": "-Da=b -XX:+UseParallelGC"}, {"JAVA_TOOL_OPTIONS": "-Da='x y'"}),
    ],
)
def test_other_settings_and_variables_do_not_concern_the_launcher(config, environment):
    assert jvm.is_plain(LOCAL | config, environment)


def test_a_directory_of_settings_is_for_the_launcher(tmp_path, monkeypatch):
    monkeypatch.setattr(jvm, "spark_home", lambda: tmp_path)
    assert jvm.is_plain(LOCAL, {})
    (tmp_path / "conf").mkdir()
    assert not jvm.is_plain(LOCAL, {})


def test_definitions_are_no_options_that_conflict_with_flags():
    assert not jvm.has_own_options({}, {})
    assert not jvm.has_own_options({"spark.driver.extraJavaOptions": "-Da=b -Dc=d"}, {})
    assert jvm.has_own_options({"spark.driver.extraJavaOptions": "-Da=b -XX:+UseParallelGC"}, {})
    for variable in ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"):
        assert jvm.has_own_options({}, {variable: "-Xms1g"}), variable


@pytest.mark.parametrize("program", ["/bin/true", "/bin/false", "/no/such/java"])
def test_a_jvm_that_ends_early_leaves_nothing(program):
    before = dict(os.environ)
    with jvm.gateway(Path(program), []) as process:
        assert process is None
        assert dict(os.environ) == before


LISTENS = """
import os, pathlib, struct, sys, time
if sys.argv[1:] == ["never"]:
    sys.exit(3)
path = pathlib.Path(os.environ["_PYSPARK_DRIVER_CONN_INFO_PATH"])
path.with_name("new").write_bytes(struct.pack(">ii", 4711, 6) + b"secret")
path.with_name("new").rename(path)
sys.stdin.read()
"""
"""Listens like the JVM of a gateway, and ends when its standard input is closed."""


@pytest.fixture
def no_gateway(monkeypatch):
    """The process has no JVM yet. Without it, a gateway of these tests would take the place of the session's JVM."""
    monkeypatch.setattr(SparkContext, "_gateway", None)


@pytest.fixture
def ahead(no_gateway):
    """Launches such a process ahead; returns the launch."""

    def ahead(*arguments: str, environment: dict[str, str] | None = None) -> jvm.Launch:
        command = [sys.executable, "-c", LISTENS, *arguments]
        jvm.launch_ahead(lambda: jvm.Launch(command, os.environ if environment is None else environment))
        (waiting,) = jvm._ahead
        waiting._thread.join()
        assert waiting._made is not None
        launches.append(waiting._made)
        return waiting._made

    launches: list[jvm.Launch] = []
    yield ahead
    jvm._end_ahead()
    for one in launches:
        one.end()
        assert not one._directory.exists()


def test_a_jvm_that_was_launched_ahead_is_used(ahead):
    launched = ahead()
    before = dict(os.environ)
    with jvm.gateway(Path(sys.executable), ["-c", LISTENS]) as process:
        assert process is launched._process
        assert (os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]) == ("4711", "secret")
    assert dict(os.environ) == before
    assert process.poll() is not None


def test_a_jvm_ignores_the_signals_that_stop_the_engine(no_gateway):
    """Java keeps ignoring what it ignores when it begins."""
    with jvm.gateway(Path(sys.executable), ["-c", LISTENS]) as process:
        (ignored,) = re.findall(r"SigIgn:\s+(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    assert all(int(ignored, 16) >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGTERM))


@pytest.mark.parametrize("differs", ["command", "environment"])
def test_a_jvm_with_other_settings_is_ended_and_not_used(ahead, differs):
    other = {**os.environ, "JAVA_TOOL_OPTIONS": "-Xmx1g"} if differs == "environment" else None
    launched = ahead(*(["-Xmx1g"] if differs == "command" else []), environment=other)
    with jvm.gateway(Path(sys.executable), ["-c", LISTENS]) as process:
        assert launched._process.poll() is not None
        assert process is not launched._process


def test_a_jvm_that_nobody_takes_ends_with_the_process(ahead):
    first = ahead()
    second = ahead()
    assert first._process.poll() is not None
    jvm._end_ahead()
    assert second._process.poll() is not None
    jvm._end_ahead()


def test_a_jvm_that_was_launched_ahead_and_has_ended_leaves_nothing(ahead):
    ahead("never")
    with jvm.gateway(Path(sys.executable), ["-c", LISTENS, "never"]) as process:
        assert process is None


def test_a_launch_ahead_that_fails_is_left_to_the_session():
    def fails() -> jvm.Launch:
        raise ConfigError("E1514", "spark", "no Java found")

    jvm.launch_ahead(fails)
    with jvm.gateway(Path("/bin/true"), []) as process:
        assert process is None


@pytest.mark.parametrize("ends_soon", [True, False])
def test_the_session_uses_what_was_launched_ahead_for_it(tmp_path, monkeypatch, ends_soon):
    """The two commands differ in nothing, although the session has a directory of its own."""
    launches, used = [], []

    @contextmanager
    def gateway(java, arguments):
        used.append(([str(java), *arguments], dict(os.environ)))
        raise RuntimeError("far enough")
        yield

    class Launch:
        def __init__(self, command, environment):
            launches.append((command, environment))

    settings = SparkSettings(master="local[2]", config={"spark.driver.memory": "3g"})
    for name in spark._CHANGED:
        monkeypatch.setenv(name, "changed by the session")
        monkeypatch.delenv(name)
    monkeypatch.setattr(jvm, "has_gateway", lambda: False)
    monkeypatch.setattr(jvm, "Launch", Launch)
    monkeypatch.setattr(jvm, "launch_ahead", lambda launch: launch())
    monkeypatch.setattr(jvm, "gateway", gateway)
    spark.launch_ahead(settings, ends_soon=ends_soon)
    with pytest.raises(ConfigError, match="far enough"):
        spark._start(settings, str(tmp_path), ends_soon=ends_soon)
    assert launches == used
    assert "-Xmx3g" in launches[0][0]


def test_nothing_is_launched_ahead_for_a_cluster(monkeypatch):
    monkeypatch.setattr(jvm, "has_gateway", lambda: False)
    monkeypatch.setattr(jvm, "launch_ahead", lambda _: pytest.fail("launched"))
    spark.launch_ahead(SparkSettings(master="spark://127.0.0.1:7077"))


# The archive, without a JVM


@pytest.mark.parametrize(
    ("environment", "directory"),
    [
        ({"XDG_CACHE_HOME": "/c"}, "/c/correlator/jvm"),
        ({"XDG_CACHE_HOME": "relative"}, None),
        ({"XDG_CACHE_HOME": "/c:d"}, None),
        ({"XDG_CACHE_HOME": ""}, "/home/one/.cache/correlator/jvm"),
    ],
)
def test_the_place_of_archives(environment, directory, monkeypatch):
    monkeypatch.setenv("HOME", "/home/one")
    assert cache_directory(environment) == (Path(directory) if directory else None)


def test_a_key_for_each_java_spark_and_set_of_jars(tmp_path, monkeypatch):
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "a.jar").write_bytes(b"one")
    keys = [key_of("17.0.15", tmp_path), key_of("17.0.16", tmp_path)]
    os.utime(jars / "a.jar", (1, 1))
    keys.append(key_of("17.0.15", tmp_path))
    (jars / "a.jar").write_bytes(b"longer")
    os.utime(jars / "a.jar", (1, 1))
    keys.append(key_of("17.0.15", tmp_path))
    (jars / "b.jar").touch()
    keys.append(key_of("17.0.15", tmp_path))
    monkeypatch.setattr(archive, "version", lambda package: "4.3.9")
    keys.append(key_of("17.0.15", tmp_path))
    monkeypatch.setattr(archive, "MAKER_FLAGS", ())
    keys.append(key_of("17.0.15", tmp_path))
    assert len(set(keys)) == len(keys)
    assert key_of("17.0.15", tmp_path) == keys[-1]


def test_the_order_of_jars_is_part_of_the_key(tmp_path, monkeypatch):
    (tmp_path / "jars").mkdir()
    for name in ("a.jar", "b.jar"):
        (tmp_path / "jars" / name).touch()
    scandir, keys = os.scandir, []

    class Sorted(list):
        def __enter__(self):
            return self

        def __exit__(self, *raised):
            return None

    for backwards in (False, True):
        monkeypatch.setattr(
            archive.os,
            "scandir",
            lambda path, backwards=backwards: Sorted(
                sorted(scandir(path), key=lambda jar: jar.name, reverse=backwards)
            ),
        )
        keys.append(key_of("17", tmp_path))
    assert keys[0] != keys[1]


def test_this_java_is_identified():
    text = java_program(os.environ).identity
    assert text.startswith("java.home = /")
    assert 'version "' in text


def test_an_archive_is_private_and_whole(tmp_path):
    one = stored(tmp_path / "jvm" / "key")
    assert one.is_whole()
    assert files_of(one) == ["classes.jsa", "classes.size"]
    assert {oct(path.stat().st_mode & 0o777) for path in (one.directory, one.directory.parent)} == {"0o700"}
    one.remove()
    assert files_of(one) == []
    assert not one.is_whole()


@pytest.mark.parametrize("kept", [0, 0.01, 0.5, 0.999])
def test_a_truncated_archive_is_not_used_but_replaced(tmp_path, kept):
    one = stored(tmp_path / "jvm" / "key")
    path = one.directory / "classes.jsa"
    before = path.stat()
    os.truncate(path, int(before.st_size * kept))
    os.utime(path, (before.st_atime, before.st_mtime))
    assert not one.is_whole()
    assert stored(one.directory).is_whole()


def test_an_archive_with_other_bytes_is_not_used_but_replaced(tmp_path):
    one = stored(tmp_path / "jvm" / "key")
    path = one.directory / "classes.jsa"
    os.utime(path, (1, 1))
    forge_record(one)
    assert one.is_whole()
    with path.open("r+b") as file:
        file.write(b"other")
    assert not one.is_whole()
    assert stored(one.directory).is_whole()


@pytest.mark.parametrize("record", [None, b"", b"7000", b"\xff\xfe"])
def test_an_archive_without_its_record_is_not_used(tmp_path, record):
    one = stored(tmp_path / "jvm" / "key")
    path = one.directory / "classes.size"
    path.unlink() if record is None else path.write_bytes(record)
    assert not one.is_whole()


@pytest.mark.parametrize("which", ["key", "jvm"])
def test_an_archive_that_others_can_change_is_not_used(tmp_path, which):
    one = stored(tmp_path / "jvm" / "key")
    (one.directory if which == "key" else one.directory.parent).chmod(0o770)
    assert not one.is_whole()


def test_an_interrupted_store_leaves_no_archive(tmp_path, monkeypatch):
    one = stored(tmp_path / "jvm" / "key")
    monkeypatch.setattr(Path, "rename", lambda path, target: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        stored(one.directory, b"new")
    assert not one.is_whole()
    assert files_of(one) == ["classes.size"]


def test_the_jvm_of_a_maker_that_was_killed_has_no_place_to_write(tmp_path):
    one = Archive(tmp_path / "jvm" / "key")
    killed = one.making()
    left = killed.__enter__()
    left.write_bytes(b"a part")
    with one.making() as made:
        assert made.parent != left.parent
        assert not left.parent.exists()
    killed.__exit__(None, None, None)
    assert files_of(one) == []


def test_the_two_keys_that_were_used_last_are_kept(tmp_path):
    for age, name in enumerate("abcd"):
        stored(tmp_path / name)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "lock").touch()
    Archive(tmp_path / "c").flags()
    prune(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "lock"]


def test_after_a_failure_nobody_tries_for_a_day(tmp_path, no_process):
    one = stored(tmp_path / "jvm" / "key")
    one.note_failure()
    make_later(one, os.environ)
    os.utime(one.directory / "failed", (1, 1))
    with pytest.raises(AssertionError, match="a process was started"):
        make_later(one, os.environ)


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, no_process):
    (tmp_path / "file").touch()
    one = Archive(tmp_path / "file" / "correlator" / "jvm" / "key")
    assert not one.is_whole()
    make_later(one, os.environ)
    one.remove()
    one.note_failure()
    shared = tmp_path / "jvm"
    shared.mkdir(mode=0o755)
    make_later(Archive(shared / "key"), os.environ)


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Starts a JVM that is none: whether it would map an archive, and how often another one is asked for."""

    def started(cache: Path = tmp_path):
        commands, asked = [], []

        @contextmanager
        def gateway(_java, command):
            commands.append(list(command))
            yield object()

        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        monkeypatch.setattr(jvm, "has_gateway", lambda: False)
        monkeypatch.setattr(jvm, "gateway", gateway)
        monkeypatch.setattr(archive, "make_later", lambda *given: asked.append(given))
        with spark._quickly(LOCAL, {}, ()):
            pass
        (command,) = commands
        return any("SharedArchiveFile" in one for one in command), len(asked)

    return started


def test_spark_starts_with_a_whole_archive_and_without_another_one_it_asks_for_one(started, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert started() == (False, 1)
    whole = archive.archive_of(java_program(os.environ).identity, jvm.spark_home(), os.environ)
    stored(whole.directory)
    assert started() == (True, 0)
    path = whole.directory / "classes.jsa"
    path.chmod(0o600)
    os.truncate(path, path.stat().st_size // 2)
    assert started() == (False, 1)


def test_spark_starts_with_a_cache_that_cannot_be_written(started, tmp_path):
    (tmp_path / "file").touch()
    assert started(tmp_path / "file") == (False, 1)


# With real JVMs


def environment_with(cache: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in ("SPARK_SUBMIT_OPTS", "XDG_CACHE_HOME")}
    return own | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def archiver(cache: Path) -> subprocess.Popen[str]:
    """A maker of archives with the priority of the tests."""
    return subprocess.Popen(
        [sys.executable, "-c", "from correlator.pipeline.archiver import make_missing; make_missing()"],
        env=environment_with(cache),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def session_in(cache: Path, scratch: Path) -> tuple[str, str]:
    """What a Spark with this cache tells (see `SESSION`), and all that it prints."""
    told = scratch / "told"
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(told)],
        env=environment_with(cache),
        cwd=scratch,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return told.read_text(), done.stdout


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Archive:
    """An archive, made while a second maker tried the same at the same time. All processes of a test run share it."""
    root = tmp_path_factory.getbasetemp()
    shared = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "archive"
    with closing(LockFile(shared.with_suffix(".lock"))) as lock:
        assert lock.try_lock(WITHIN_S)
        if not shared.exists():
            makers = [archiver(shared), archiver(shared)]
            errors = [maker.communicate(timeout=WITHIN_S)[1] for maker in makers]
            assert [maker.returncode for maker in makers] == [0, 0], errors
    (directory,) = [path for path in (shared / "correlator" / "jvm").iterdir() if path.is_dir()]
    return Archive(directory)


@pytest.fixture
def copy(made, tmp_path) -> Archive:
    """The archive in a cache of its own, which a test may harm."""
    directory = tmp_path / "cache" / "correlator" / "jvm" / made.directory.name
    return stored(directory, (made.directory / "classes.jsa").read_bytes())


def cache_of(one: Archive) -> Path:
    return one.directory.parents[2]


@pytest.mark.spark
def test_two_makers_make_one_whole_archive_and_spark_uses_it(made, tmp_path):
    assert files_of(made) == ["classes.jsa", "classes.size"]
    assert made.is_whole()
    assert session_in(cache_of(made), tmp_path) == ("/bin/sh True 0", "")


@pytest.mark.spark
def test_spark_runs_although_a_jvm_dies_of_its_archive(copy, tmp_path):
    """The record fits the truncated archive: only the death of the JVM shows that it is not whole."""
    path = copy.directory / "classes.jsa"
    os.truncate(path, 1_000_000)
    forge_record(copy)
    assert copy.is_whole()
    told, _ = session_in(cache_of(copy), tmp_path)
    assert told.split()[1:] == ["False", "0"]
    assert told.split()[0].endswith("spark-submit")
    assert files_of(copy) == []


@pytest.mark.spark
@pytest.mark.kill9
def test_a_maker_that_is_killed_leaves_no_archive_and_no_lock(tmp_path):
    cache = tmp_path / "correlator" / "jvm"
    maker = archiver(tmp_path)
    try:
        deadline = time.monotonic() + WITHIN_S
        while not (maker_jvm := children_of(maker.pid)):
            assert time.monotonic() < deadline
            assert maker.poll() is None, maker.stderr.read()
            time.sleep(0.05)
    finally:
        maker.send_signal(signal.SIGKILL)
        maker.communicate()
    assert maker_jvm
    assert not list(cache.glob("*/classes.*"))
    lock = LockFile(cache / "lock")
    assert lock.try_lock()
    lock.close()


def children_of(pid: int) -> list[int]:
    """The JVMs that a process has started, after their identification."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            content, command = stat.read_text(), stat.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if int(content.rpartition(")")[2].split()[1]) == pid and b"SparkSubmit" in command:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize(("ends_soon", "others"), [(True, "TieredStopAtLevel"), (False, "Tier4InvocationThreshold")])
def test_java_accepts_the_flags_of_short_and_of_long_runs(ends_soon, others, tmp_path, monkeypatch):
    chosen = []

    def quickly(_config, _surroundings, flags):
        chosen.extend(flags)
        raise RuntimeError("far enough")

    monkeypatch.setattr(spark, "_quickly", quickly)
    with pytest.raises(ConfigError, match="far enough"):
        spark._start(SparkSettings(master="local[2]"), str(tmp_path), ends_soon=ends_soon)
    assert any(others in one for one in chosen)
    java = java_program(os.environ).path
    told = subprocess.run([java, *chosen, "-version"], capture_output=True, text=True, timeout=WITHIN_S, check=True)
    assert "warning" not in f"{told.stdout}{told.stderr}".lower()
