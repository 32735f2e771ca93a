"""What users type wrong, and the places they call from."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from correlator.cli import main
from correlator.core.differences import joined
from correlator.errors import CorrelatorError
from tests.cli.commands import COMMAND, assert_fails, on_terminal, run, start, write


@pytest.mark.parametrize(
    ("arguments", "code", "texts"),
    [
        (["rnu", "x.yaml"], "E2001", ["unknown command 'rnu'", "Did you mean 'run'?"]),
        (["frobnicate"], "E2001", ["Commands: create, run, lint"]),
        (["db", "rset", "x"], "E2001", ["Did you mean 'reset'"]),
        (["run", "x.yaml", "--bogus"], "E2002", ["--bogus", "correlator run --help"]),
        (["run", "x.yaml", "--log-levl", "INFO"], "E2002", ["--log-level"]),
        (["--workers", "two"], "E2002", ["--workers"]),
        (["run", "x.yaml", "--log-level"], "E2003", ["--log-level"]),
        (["run", "x.yaml", "--log-json=yes"], "E2003", ["--log-json"]),
        (["run", "x.yaml", "--log-level", "LOUD"], "E2004", ["'LOUD'", "'debug', 'info', 'warning', 'error'"]),
        (["browse", "x.yaml", "c", "queue:q", "--limit", "two"], "E2004", ["'--limit'"]),
        (["browse", "x.yaml", "c", "queue:q", "--limit", "-1"], "E2004", ["'--limit'"]),
        (["inspect", "everything", "x.yaml"], "E2004", ["'everything'", "'dead-letters'"]),
        (["run"], "E2005", ["FILE"]),
        (["lint"], "E2005", ["FILE"]),
        (["inspect", "state"], "E2005", ["FILE_OR_STORE_URL"]),
        (["run", "x.yaml", "--log-level", "INFO", "--log-level=DEBUG"], "E2006", ["'--log-level' is given twice"]),
        (["run", "x.yaml", "y.yaml"], "E2007", ["y.yaml"]),
        (["explain", "E9999"], "E2010", ["no such code"]),
        (["explain", ""], "E2010", []),
        (["run", "missing.yaml"], "E1001", ["missing.yaml", "no such file"]),
        (["run", "."], "E1002", ["is a directory"]),
        (["inspect", "state", "sqlite:///none.db"], "E3010", ["none.db", "there is no store yet"]),
        (["inspect", "state", "mysql://u:geheim@h/d"], "E1001", []),
        (["inspect", "state", "sqlite://"], "E1301", ["sqlite:///path"]),
    ],
)
def test_a_mistake_gets_its_code_and_status(arguments, code, texts, tmp_path, capsys, monkeypatch):
    """Bad inputs 54 to 57, 59 and 68."""
    monkeypatch.chdir(tmp_path)
    status = main.execute(arguments)
    out, err = capsys.readouterr()
    assert_fails(subprocess.CompletedProcess(arguments, status, out, err), code, 3 if code[1] == "3" else 2, *texts)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["db", "rset"], "Did you mean 'reset', 'forget'? See: correlator db --help."),
        (["deadletter", "reply"], "Did you mean 'replay'? See: correlator deadletter --help."),
        (["rn", "x.yaml"], "unknown command 'rn'. Did you mean 'run'?"),
    ],
)
def test_a_question_has_no_full_stop(arguments, told, capsys):
    assert main.execute(arguments) == 2
    assert capsys.readouterr().err.endswith(f"{told}\n")


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (("what", "", ""), "E1 x: what."),
        (("what.", "is.", "do."), "E1 x: what. is. do."),
        (("what?", "is?", "do?"), "E1 x: what? is? do?"),
        (("what\n  ^", "", ""), "E1 x: what\n  ^"),
        (("", "", "do"), "E1 x: . do."),
    ],
)
def test_an_error_is_told_in_sentences(parts, told):
    assert str(CorrelatorError("E1", "x", *parts)) == told


def test_several_errors_are_told_in_sentences():
    asked = CorrelatorError("E1", "x", "what", "", "Did you mean 'y'?")
    assert str(joined([asked])) == "E1 x: what. Did you mean 'y'?"
    assert str(joined([asked, asked])) == "E1 x: what. Did you mean 'y'?\nE1 x: what. Did you mean 'y'?"
    plain = CorrelatorError("E1", "x", "what", "", "Do")
    assert str(joined([plain, plain])) == "E1 x: what. Do.\nE1 x: what. Do."


def test_53_no_arguments_show_a_short_help(tmp_path):
    result = run(cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert all(f"  {command.name} " in result.stderr for command in main.COMMANDS)


@pytest.mark.parametrize("command", [(), *((command.name,) for command in main.COMMANDS), ("db", "reset")])
def test_help_is_a_result(command, capsys):
    assert main.execute([*command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: correlator")
    assert err == ""


def test_a_bug_of_ours_has_an_incident_and_a_log(monkeypatch, capsys):
    def broken(_app):
        raise RuntimeError("oops")

    monkeypatch.setattr("correlator.cli.version.add_to", broken)
    assert main.execute(["version"]) == 70
    out, err = capsys.readouterr()
    log, message = err.splitlines()[:2]
    assert out == ""
    assert message.startswith("E2070 correlator: internal error RuntimeError (incident ")
    incident = message.partition("incident ")[2][:8]
    assert incident in log
    assert "oops" in log
    assert "Traceback" not in message


def test_versions_start_without_a_database_or_spark(tmp_path):
    program = (
        "import sys; from correlator.cli import main; status = main.execute(sys.argv[1:]);"
        "heavy = {'pyspark', 'pyarrow', 'sqlalchemy', 'alembic', 'pandas'} & set(sys.modules); print(heavy); sys.exit(status or len(heavy))"
    )
    python = Path(COMMAND).with_name("python")
    lines = ["name: e", "connections: {files: {type: file, path: .}}"]
    lines += ["receivers: [{id: r, connection: files, destination: 'queue:a.csv'}]"]
    lines += ["pipelines: [{name: p, from: [r], steps: [{decode: {format: text}}]}]"]
    write(tmp_path / "e.yaml", lines)
    for arguments in (["version"], ["explain", "E1020"], ["lint", "e.yaml"]):
        result = subprocess.run(
            [python, "-c", program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("found", "warns"),
    [((3, 6, 23), False), ((3, 7, 0), True), ((3, 51, 2), True), ((3, 51, 3), False), ((3, 53, 0), False)],
)
def test_version_warns_of_a_sqlite_that_has_the_bug(found, warns, monkeypatch, capsys):
    monkeypatch.setattr("sqlite3.sqlite_version_info", found)
    assert main.execute(["version"]) == 0
    warning = capsys.readouterr().err
    assert warning.startswith("W3011 sqlite: ") == warns
    assert ("No engine and no command does that" in warning) == warns


def test_version_names_what_a_report_needs(tmp_path):
    result = run("version", cwd=tmp_path)
    assert result.returncode == 0
    assert [line.split()[0] for line in result.stdout.splitlines()][:3] == ["correlator", "python", "sqlite"]


def test_explain_knows_every_spelling_of_a_code(capsys):
    assert main.execute(["explain", "e1020"]) == 0
    assert capsys.readouterr().out.startswith("E1020 (configuration error): A key is not known")


# --- where results and messages go ---


@pytest.mark.parametrize("arguments", [["version"], ["explain", "E1020"], ["lint", "missing.yaml"]])
def test_62_a_reader_that_goes_away_is_no_error(arguments, tmp_path):
    process = start(*arguments, cwd=tmp_path)
    process.stdout.close()
    assert process.wait(60) == 141
    with process.stderr as messages:
        assert "Error" not in messages.read()


def test_a_full_disk_behind_standard_output_is_told(tmp_path):
    with Path("/dev/full").open("w") as full:
        result = run("explain", "E1020", cwd=tmp_path, stdout=full)
    assert result.returncode == 2
    assert "E2013 standard output: cannot be written" in result.stderr


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(redirection, tmp_path):
    result = subprocess.run(
        ["/bin/sh", "-c", f'"{COMMAND}" explain E1020 {redirection}'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_63_no_terminal_no_escape_sequences(place):
    result = run("run", "engine.yaml", cwd=place)
    assert "\x1b" not in result.stdout + result.stderr
    assert result.stdout.splitlines()[0].split("\t")[0] == "part"


def test_a_terminal_gets_a_table(place):
    shown = on_terminal("run", "engine.yaml", cwd=place)
    assert "receiver trades" in shown
    assert "\t" not in shown


def test_63_no_color(place):
    shown = on_terminal("run", "engine.yaml", cwd=place, env={"NO_COLOR": "1"})
    assert "\x1b[3" not in shown.replace("\x1b[3m", "")  # italics are no colour


# --- where it is called from ---


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "POSIX", "LANG": None},
        {"PYTHONIOENCODING": "ascii"},
        {"HOME": None},
        {"HOME": "/nonexistent", "TERM": "dumb"},
        {"PATH": "/nonexistent"},
    ],
)
def test_66_67_any_environment(env, place):
    assert run("explain", "E1301", cwd=place, env=env).returncode == 0
    assert_clean(run("run", "engine.yaml", cwd=place, env=env))


def assert_clean(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "name", [b"a b.yaml", b"a\nb.yaml", b"\xff\xfe.yaml", "bestellungen-ü.yaml".encode(), b"-x.yaml"]
)
def test_66_any_file_name(name, place):
    path = os.fsencode(place) + b"/" + name
    with open(path, "w") as file:  # noqa: PTH123  a name that is no text
        file.write((place / "engine.yaml").read_text() + "colour: red\n")
    os.chmod(path, 0o600)  # noqa: PTH101
    result = run("lint", b"--", name, cwd=place)
    assert result.returncode == 2
    assert [line.partition(" ")[0] for line in result.stdout.splitlines()] == ["I1411", "E1020"]
    assert result.stderr == ""


def test_a_directory_with_any_name(place):
    directory = place / "a b\nc"
    directory.mkdir()
    for name in ("engine.yaml", "positions.py"):
        (place / name).rename(directory / name)
    assert_clean(run("run", str(directory / "engine.yaml"), cwd=place))


def test_67_a_working_directory_that_cannot_be_written(place):
    assert run("lint", str(place / "engine.yaml"), cwd="/proc").returncode == 0
    result = run("run", str(place / "engine.yaml"), cwd="/proc")
    assert_fails(result, "E3006", 3, "/proc/store")


def test_67_a_working_directory_that_is_gone(place, tmp_path_factory):
    gone = tmp_path_factory.mktemp("gone")
    script = f'rmdir "{gone}"; "{COMMAND}" lint "{place}/engine.yaml"; "{COMMAND}" lint engine.yaml'
    result = subprocess.run(["/bin/sh", "-c", script], cwd=gone, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.count("E2016 working directory: ") == 2
    assert "Traceback" not in result.stderr


ENTRY = "from correlator.cli.entry import main; main()"


@pytest.mark.parametrize(("module", "status"), [("typer", -signal.SIGINT), ("sqlalchemy", 130)])
def test_an_interrupt_while_the_command_is_imported_ends_it_without_a_traceback(module, status, place):
    (place / "early").mkdir()
    write(place / "early" / f"{module}.py", ["import signal", "signal.raise_signal(signal.SIGINT)"])
    environment = {**os.environ, "PYTHONPATH": str(place / "early")}
    command = [sys.executable, "-c", ENTRY, "run", "engine.yaml"]
    ended = subprocess.run(command, cwd=place, env=environment, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, b"", b"")


def test_an_interrupt_of_a_command_ends_it_without_a_traceback(place):
    write(place / "positions.py", ["import signal", "signal.raise_signal(signal.SIGINT)"])
    ended = run("lint", "engine.yaml", cwd=place)
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (130, "", "")


def of_a_script(place, source):
    """What a Python program says whose own directory comes first where modules are looked up."""
    command = [sys.executable, "-c", source]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)


def test_a_store_is_made_by_our_revisions_whatever_package_of_migrations_a_program_has(place):
    (place / "migrations").mkdir()
    for module in ("__init__.py", "env.py"):
        write(place / "migrations" / module, ["raise SystemExit('of somebody else')"])
    script = "from correlator.storage.migrate import upgrade; print(upgrade('sqlite:///store/new.db')[0] == '')"
    ended = of_a_script(place, script)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


def loading(place):
    """The last line that is said when the connector of a type is loaded, where the directory's packages come first."""
    source = "from correlator.configuration.connectors import connector; connector('embedded', 'connections.a')"
    return of_a_script(place, source).stderr.splitlines()[-1].partition("ConfigError: ")[2]


@pytest.mark.parametrize(
    "files",
    [
        {"connectors/__init__.py": []},
        {"connectors/__init__.py": [], "connectors/embedded/__init__.py": []},
        {"connectors/__init__.py": ["raise ImportError('not here')"]},
    ],
    ids=["an empty one", "with a module of the same name", "one that fails"],
)
def test_a_package_that_hides_the_connectors_is_named(place, files):
    for name, lines in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        write(place / name, lines)
    assert loading(place) == (
        f"E1213 connections.a: another package named 'connectors' ({place / next(iter(files))}) hides the one that "
        "type 'embedded' is in. Rename that package."
    )


def test_a_distribution_that_installs_its_files_among_the_connectors_is_named(place):
    (place / "theirs-1.0.dist-info").mkdir()
    write(place / "theirs-1.0.dist-info" / "METADATA", ["Name: theirs", "Version: 1.0"])
    write(place / "theirs-1.0.dist-info" / "top_level.txt", ["connectors"])
    (place / "connectors").mkdir()
    write(place / "connectors" / "__init__.py", [])
    assert loading(place) == (
        f"E1213 connections.a: another package named 'connectors' ({place / 'connectors' / '__init__.py'}), installed "
        "by 'theirs', hides the one that type 'embedded' is in. Uninstall 'theirs', then install 'correlator' again."
    )
