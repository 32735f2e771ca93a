"""Bad inputs of files: what a user gets for every mistake in a configuration (input, exact code, place, text)."""

import os
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint

import pytest

from correlator.configuration import EngineFile, connectors, read_file, read_text
from correlator.errors import ConfigError, StateError, UsageError

HEAD = "version: 1\nname: orders\nstore: sqlite:///orders.db\n"
CONNECTION = "connections:\n  local: {type: embedded}\n"
RECEIVER = "receivers:\n  - {id: in, connection: local, destination: 'queue:in', reliability: EXACTLY_ONCE%s}\n"
GOOD = HEAD + CONNECTION + RECEIVER % ""


@dataclass(frozen=True)
class Row:
    number: int
    text: str | bytes
    code: str
    where: str
    says: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    connectors: tuple[str, ...] = ()


def engine(line: str) -> str:
    """A good configuration with one more line, its fourth."""
    return HEAD + line + "\n" + CONNECTION + RECEIVER % ""


def receiver(settings: str) -> str:
    """A good configuration whose receiver (line 7) has more settings."""
    return HEAD + CONNECTION + RECEIVER % f", {settings}"


def connection(settings: str, type_: str = "embedded") -> str:
    """A good configuration whose connection (line 5) has more settings."""
    return HEAD + f"connections:\n  local: {{type: {type_}, {settings}}}\n" + RECEIVER % ""


NODES = "[" + ", ".join("1" for _ in range(11_000)) + "]"
MANY = "receivers:\n" + "  - {id: r, connection: c, destination: 'queue:q'}\n" * 100_000

ROWS = [
    Row(2, b"name: \xff", "E1003", "config.yaml", "byte 6: not UTF-8"),
    Row(2, "name: x".encode("utf-16"), "E1003", "config.yaml", "UTF-16"),
    Row(2, b"name: a\n  b\0c", "E1003", "config.yaml:2:4", "'\\x00'"),
    Row(3, "", "E1004", "config.yaml", "is empty"),
    Row(3, "# nothing\n\n", "E1004", "config.yaml", "'name:'"),
    Row(3, "---\n...\n", "E1004", "config.yaml", "is empty"),
    Row(4, "- a\n", "E1005", "config.yaml:1:1", "top level is a list, must be a mapping"),
    Row(4, "just text", "E1005", "config.yaml:1:1", "single value"),
    Row(5, "name: x\ncheckpoint:\n\tinterval: 1s\n", "E1006", "config.yaml:3:1", "a tab where spaces are needed"),
    *(
        Row(5, text, "E1006", f"config.yaml:{at}:", f"YAML syntax: {says}")
        for text, at, says in [
            ("name: 'x\n", "2:1", "the quote that begins at line 1, column 7 has no end. Close it."),
            (
                "receivers: [a, b\n",
                "2:1",
                "expected ',' or ']' in the list or mapping that begins at line 1, column 12, found the end of",
            ),
            (
                "c: {a: 1 b: 2}\n",
                "1:11",
                "expected ',' or '}' in the list or mapping that begins at line 1, column 4, found ':'.",
            ),
            ("name: x\ndestination: queue: y\n", "2:19", "a ':' cannot stand here. Put a value that contains ': ' in"),
            (
                "name: x\n  store: y\n",
                "2:8",
                "a ':' cannot stand here. Put a value that contains ': ' in quotes; begin",
            ),
            ("name: - x\n", "1:7", "a list item cannot stand here. Begin the list on a line of its own."),
            (
                "receivers:\n  - id: a\n   connection: b\n",
                "3:4",
                "a key that does not fit the indentation of the lines that begin at line 2, column 3. Begin the line",
            ),
            (
                "name: x\n- a\n",
                "2:1",
                "a list item that does not fit the indentation of the lines that begin at line 1,",
            ),
            (
                "name: x\nstore\nfoo: bar\n",
                "3:1",
                "expected ':' after the key at line 2, column 1. Write 'key: value'.",
            ),
            ("name: @x\n", "1:7", "a value cannot begin with '@'. Put the value in quotes."),
            ("name: * x\n", "1:8", "a value cannot begin with '*' or '&'. Put the value in quotes."),
            ("name: 'it's'\n", "1:11", "text follows a value that has ended. Put the value in quotes, as a whole."),
            ("name: [a]]\n", "1:10", "']' closes nothing. Remove it."),
            ("name: ]\n", "1:7", "expected a value, found ']'. Put the value in quotes."),
            ('name: "a\\qb"\n', "1:10", r"'\q' means nothing within double quotes. Use single quotes, or write '\\'."),
            ("name: |x\n", "1:8", "after '|' or '>' the text begins on the next line."),
            ("%x\nname: y\n", "2:1", "expected '---' after lines that begin with '%', found a value."),
        ]
    ),
    Row(5, "? [a, b]\n: c\n", "E1006", "config.yaml:1:3", "a key must be"),
    Row(5, 'name: "\\UFFFFFFFF"\n', "E1006", "config.yaml:1:", "YAML syntax"),
    Row(5, 'name: "\\ud800"\n', "E1003", "config.yaml:1:7", "surrogate"),
    Row(5, "checkpoint: {interval: ${X}}\n", "E1006", "config.yaml:1:25", "quote a placeholder: '${NAME}'"),
    Row(6, "name: x\n---\nname: y\n", "E1007", "config.yaml:2:1", "second document starts at line 2. Only one"),
    Row(7, engine("name: again"), "E1008", "config.yaml:4:1 name", "'name' is given twice (first at line 2)"),
    Row(8, "name: &a x\nstore: *a\n", "E1009", "config.yaml:1:7", "anchors (&a) are not supported"),
    Row(8, "name: *a\n", "E1009", "config.yaml:1:7", "aliases (*a) are not supported"),
    Row(8, "<<: {name: x}\n", "E1009", "config.yaml:1:1", "merge keys"),
    Row(
        9, "name: !!python/object/apply:os.system ['x']\n", "E1010", "config.yaml:1:7", "'!!python/object/apply:os.sys"
    ),
    Row(9, "name: !!str x\n", "E1010", "config.yaml:1:7 name", "'!!str'"),
    Row(9, "name: !secret x\n", "E1010", "config.yaml:1:7", "'!secret'"),
    Row(9, "name: !e!x y\n", "E1010", "config.yaml:1:7", "tags are not allowed"),
    Row(10, "name: " + "[" * 60 + "]" * 60, "E1011", "config.yaml:1:57", "nested deeper than 50 levels"),
    Row(10, "name: x #" + "x" * 1024 * 1024, "E1011", "config.yaml", "larger than 1024 KiB"),
    Row(10, f"name: {NODES}", "E1011", "config.yaml:1:", "more than 10000 values"),
    Row(
        11, engine("checkpoint: {intervall: 1s}"), "E1020", "config.yaml:4:14 checkpoint.intervall", "Did you mean 'int"
    ),
    Row(11, engine("nonsense: 1"), "E1020", "config.yaml:4:1 nonsense", "Known: name, store"),
    Row(11, receiver("maxBatchSize: 5"), "E1020", "config.yaml:7:85 receivers[0].maxB", "called 'max_batch_size' here"),
    Row(11, receiver("maxBatchIntervalMillis: 5"), "E1020", "config.yaml:7:85", "called 'max_batch_interval_ms' here"),
    Row(11, receiver("dupDetectionExpiryTimeSecs: 5"), "E1020", "config.yaml:7:", "'duplicate_detection.expiry_time'"),
    Row(12, "version: 1\n", "E1021", "config.yaml:1:1", "'name' is missing"),
    Row(
        12,
        HEAD + "receivers:\n  - {id: x, connection: c}\n",
        "E1021",
        "config.yaml:5:5 receivers[0]",
        "'destination' is",
    ),
    Row(
        13,
        receiver('max_batch_size: "ten"'),
        "E1022",
        "config.yaml:7:101",
        "'ten' is a string, must be a whole number 1..100",
    ),
    Row(13, receiver("max_batch_size: [1]"), "E1022", "config.yaml:7:101", "is a list, must be a single value"),
    Row(13, engine("receivers: x"), "E1008", "config.yaml:7:1", "given twice"),
    Row(13, engine("senders: x"), "E1022", "config.yaml:4:10 senders", "is a single value, must be a list"),
    Row(13, engine("senders:"), "E1022", "config.yaml:4:9 senders", "is empty, must be a list"),
    Row(13, engine("checkpoint: 5s"), "E1022", "config.yaml:4:13 checkpoint", "must be a mapping. Its keys: interval"),
    Row(13, engine("fail_fast: 1"), "E1022", "config.yaml:4:12 fail_fast", "'1' is a number, must be true or false"),
    Row(13, "name:\n", "E1022", "config.yaml:1:6 name", "is empty, must be text"),
    Row(
        13,
        engine("tests: [{name: t, given: [{body: b, properties: {x: }}], then: []}]"),
        "E1022",
        "config.yaml:4:52 tests[0].given[0].properties.x",
        'is empty, must have a value. For an empty text write ""',
    ),
    Row(14, "on: x\nname: y\n", "E1023", "config.yaml:1:1 on", "key is the boolean true (YAML reads unquoted 'on' so)"),
    Row(14, "name: no\n", "E1023", "config.yaml:1:7 name", "boolean false"),
    Row(14, engine("fail_fast: off"), "E1023", "config.yaml:4:12 fail_fast", "Use true or false"),
    Row(14, connection("create: yes"), "E1023", "config.yaml:5:35 connections.local.create", "boolean true"),
    Row(14, "name: true\n", "E1023", "config.yaml:1:7 name", "the boolean true"),
    Row(15, "name: 12:30:45\n", "E1024", "config.yaml:1:7 name", "the number 45045. Quote it if you meant text"),
    Row(15, "name: 017\n", "E1024", "config.yaml:1:7 name", "the number 15"),
    Row(15, receiver("max_batch_size: 0100"), "E1024", "config.yaml:7:101", "the number 64"),
    Row(15, "name: 1.10\n", "E1024", "config.yaml:1:7 name", "the number 1.1"),
    Row(15, "name: 2024-01-31\n", "E1024", "config.yaml:1:7 name", "a date"),
    Row(15, "name: 1_000\n", "E1024", "config.yaml:1:7 name", "a number"),
    Row(15, engine("destinations: {7: 'queue:a'}"), "E1024", "config.yaml:4:16 destinations.7", "key is the number 7"),
    *(
        Row(16, receiver(f"max_batch_size: {bad}"), "E1022", "config.yaml:7:101", "a whole number 1..1000000")
        for bad in ("-1", "0", "1000001", "9" * 5000, "1.5", ".nan", ".inf", "true", "1e3", "~")
    ),
    Row(17, engine("checkpoint: {interval: 0s}"), "E1025", "config.yaml:4:24 checkpoint.interval", "at least 0.001 s"),
    *(
        Row(
            17, engine(f"checkpoint: {{interval: {bad}}}"), "E1025", "config.yaml:4:24 checkpoint.interval", "200ms, 5s"
        )
        for bad in ("5", "5 parsecs", "-1s", "1h30", "''", "1e3s", "12:30", "nan", "٣s", "~")
    ),
    *(
        Row(18, receiver(f"max_batch_bytes: {bad}"), "E1026", "config.yaml:7:102", "64KiB, 10MiB")
        for bad in ("'10Gb?'", "5", "0B", "-1KiB", "1.5MiB", "10kib", "''")
    ),
    Row(19, GOOD.replace("EXACTLY_ONCE", "EXACTLY-ONCE"), "E1203", "config.yaml:7:71", "Did you mean 'EXACTLY_ONCE'?"),
    Row(
        19,
        GOOD.replace("EXACTLY_ONCE", "sometimes"),
        "E1203",
        "config.yaml:7:71 receivers[0].reliability",
        "or APP_CONTROLLED.",
    ),
    Row(
        20,
        GOOD.replace("receivers", "senders").replace("EXACTLY_ONCE", "APP_CONTROLLED"),
        "E1204",
        "config.yaml:7:71",
        "receivers only",
    ),
    Row(21, GOOD.replace("store: sqlite:///orders.db\n", ""), "E1205", "config.yaml:6:71", "needs a persistent engine"),
    Row(
        21,
        GOOD.replace("store: sqlite:///orders.db", "store: ~"),
        "E1205",
        "config.yaml:7:71",
        "Set 'store', or use BEST_EFFORT",
    ),
    Row(
        22,
        GOOD + "  - {id: in, connection: local, destination: 'queue:b'}\n",
        "E1210",
        "config.yaml:8:10 receivers[1].id",
        "'in' is already used at line 7",
    ),
    Row(
        22,
        GOOD + "senders:\n  - {id: in, connection: local, destination: 'queue:b'}\n",
        "E1210",
        "config.yaml:9:10 senders[0].id",
        "already used at line 7",
    ),
    Row(22, GOOD.replace("id: in", "id: ''"), "E1210", "config.yaml:7:10", "is empty"),
    Row(22, GOOD.replace("id: in", "id: " + "x" * 201), "E1210", "config.yaml:7:10", "longer than 200 characters"),
    Row(22, GOOD.replace("id: in", 'id: "a\\nb"'), "E1210", "config.yaml:7:10", "'a\\nb' contains control characters"),
    Row(22, engine("destinations: {'': 'queue:a'}"), "E1210", "config.yaml:4:", "is empty"),
    Row(
        23,
        GOOD.replace("connection: local", "connection: locl"),
        "E1211",
        "config.yaml:7:26",
        "Defined: local. Did you mean 'local'?",
    ),
    Row(
        23, GOOD.replace("connection: local, ", ""), "E1021", "config.yaml:7:5 receivers[0]", "'connection' is missing"
    ),
    Row(23, GOOD.replace("queue:in", "in"), "E1215", "config.yaml:7:46", "Write queue:NAME or topic:NAME"),
    Row(
        23,
        GOOD.replace("queue:in", "ordrs") + "destinations: {orders: 'queue:o'}\n",
        "E1215",
        "config.yaml:7:46",
        "Did you mean 'orders'?",
    ),
    Row(
        23,
        engine("destinations: {a: b, b: 'queue:b'}"),
        "E1215",
        "config.yaml:4:19 destinations.a",
        "'b' is not a destination",
    ),
    Row(
        24,
        connection("x: 1", "jms"),
        "E1212",
        "config.yaml:5:17 connections.local.type",
        "'jms' is not a connector. Known: embedded",
    ),
    Row(24, connection("x: 1", "embeded"), "E1212", "config.yaml:5:17", "Did you mean 'embedded'?"),
    Row(28, "name: ${env:NOPE}\n", "E1030", "config.yaml:1:7 name", "environment variable NOPE is not set"),
    Row(28, "name: ${NOPE}\n", "E1030", "config.yaml:1:7 name", "${NOPE:default}"),
    Row(29, "name: ${env:}\n", "E1031", "config.yaml:1:7 name", "does not name an environment variable"),
    Row(29, "name: ${}\n", "E1031", "config.yaml:1:7 name", "does not name"),
    Row(29, "name: ${HOME\n", "E1031", "config.yaml:1:7 name", "not closed by '}'"),
    Row(29, "name: ${vault:x}\n", "E1031", "config.yaml:1:7 name", "'vault' is not a resolver"),
    Row(29, "name: ${A:${A}}\n", "E1031", "config.yaml:1:7 name", "holds another placeholder"),
    Row(29, "name: ${name}\n", "E1031", "config.yaml:1:7 name", "capital letters"),
    Row(29, "name: ${row.x}\n", "E1031", "config.yaml:1:7 name", "capital letters"),
    Row(29, receiver('unique_message_id: "${vault:x}"'), "E1031", "config.yaml:7:104", "'vault' is not a resolver"),
    Row(30, "name: ${file:/no/such/file}\n", "E1032", "config.yaml:1:7 name", "'/no/such/file': No such file"),
    Row(30, "name: ${file:/}\n", "E1032", "config.yaml:1:7 name", "not a regular file"),
    Row(30, "name: ${file:relative}\n", "E1031", "config.yaml:1:7 name", "does not name an absolute path"),
    *(
        Row(31, GOOD.replace("sqlite:///orders.db", url), "E1301", "config.yaml:3:8 store", says)
        for url, says in [
            ("mysql://host/db", "'mysql://host/db' is not the URL of a store. Use sqlite:///path or postgresql://"),
            ("orders.db", "is not the URL of a store"),
            ("'sqlite://'", "no host"),
            ("sqlite:///", "gone with the process"),
            ("'sqlite:///:memory:'", "gone with the process"),
            ("sqlite://orders.db", "three slashes"),
            ("postgresql://host:70000/db", "port 70000"),
            ("'postgresql:///db'", "has no host"),
            ("postgresql://h1:5432,h2:5433/db", "several hosts"),
            ("postgresql", "'postgresql' is not the URL of a store"),
            ("postgresql://host:0/", "port 0 is not in"),
            ("postgresql://host:x", "the port is not a number"),
            ("'postgresql://:5432'", "has no host"),
            ("postgresql://a b", "contains a space"),
            ("postgresql://::1:5432", "must stand in brackets"),
            ("'postgresql://[::g]:5432'", "not an IPv6 address"),
            ("postgresql://u:hunter2@host:70000", "port 70000"),
            ("postgresql://u:hunter/2@host:5432", "write '/' as %2F"),
        ]
    ),
    Row(33, GOOD.replace("orders.db", "orders.db?synchronous=NORMAL"), "E1302", "config.yaml:3:8 store", "power loss"),
    Row(
        33,
        HEAD.replace("sqlite:///orders.db", "postgresql://h/d?options=-csynchronous_commit%3Doff"),
        "E1302",
        "config.yaml:3:8",
        "power loss",
    ),
    *(
        Row(
            33,
            connection(f"store: '{url}'"),
            "E1303",
            "config.yaml:5:10 connections.local",
            "the database of the store",
        )
        for url in ("sqlite:///orders.db", "sqlite:///./x/../orders.db", "sqlite:///orders.db?timeout=5")
    ),
    *(
        Row(33, connection(f"store: '{url}'").replace("sqlite:///orders.db", store), "E1303", "config.yaml:5:10")
        for store, url in [
            ("postgresql://u@h/d?options=-csearch_path%3Dx", "postgresql+psycopg://v:w@h/d?options=-csearch_path%3Dx"),
            ("sqlite:////d/x.db", "sqlite:////d/x.db"),
        ]
    ),
    Row(33, GOOD.replace("orders.db", "correlator-broker.db"), "E1303", "config.yaml:5:10"),
    Row(
        35,
        engine("duplicate_detection: {per_source_window_size: 0, expiry_time: 0s}"),
        "E1402",
        "config.yaml:4:22",
        "both duplicate windows are 0",
    ),
    Row(37, receiver("selector: 'a ='"), "E6003", "config.yaml:7:95 receivers[0].selector", "a value after '='"),
    Row(37, receiver("selector: 'a == 1'"), "E6004", "config.yaml:7:95 receivers[0].selector", "Use '='"),
    Row(39, engine("monitors: [{type: my.mod}]"), "E1501", "config.yaml:4:19 monitors[0].type", "Write module:Class"),
    Row(
        39,
        engine("monitors: [{type: 'os.system(1):x'}]"),
        "E1501",
        "config.yaml:4:19 monitors[0].type",
        "not an import path",
    ),
    Row(
        39,
        engine("monitors: [{type: 'my.monitrs:A'}]"),
        "E1501",
        "config.yaml:4:19",
        "cannot import 'my.monitrs:A': No module named 'my'",
    ),
    Row(
        39,
        engine("monitors: [{type: 'pathlib:Pth'}]"),
        "E1501",
        "config.yaml:4:19",
        "'pathlib' has no 'Pth'. Did you mean 'Path'?",
    ),
    Row(
        46,
        "version: 3\nname: [what, ever]\n",
        "E1040",
        "config.yaml:1:10 version",
        "config version '3', this product knows 1",
    ),
    Row(47, engine("include: other.yaml"), "E1020", "config.yaml:4:1 include", "unknown key"),
    Row(48, engine("status: {listen: '0.0.0.0'}"), "E1020", "config.yaml:4:1 status", "unknown key"),
    Row(48, engine("max_outstanding: 5"), "E1020", "config.yaml:4:1 max_outstanding", "It is a setting of 'senders'."),
    Row(48, engine("interval: 5s"), "E1020", "config.yaml:4:1 interval", "It is a setting of 'checkpoint'."),
    Row(50, engine("logging: {level: INF}"), "E1020", "config.yaml:4:1 logging", "unknown key"),
    Row(51, MANY, "E1011", "config.yaml", "Split it into several engines"),
    Row(51, MANY[: 1024 * 1024], "E1011", "config.yaml:", "more than 10000 values"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.number}-{row.code}-{row.says[:24]}")
def test_bad_input(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = row.text if isinstance(row.text, bytes) else row.text.encode()
    (tmp_path / "config.yaml").write_bytes(content)
    began = time.process_time()
    with pytest.raises(ConfigError) as caught:
        read_file(
            "config.yaml",
            EngineFile,
            environment={"PW": "sentinel-4711", **row.environment},
            connectors=row.connectors,
            check_import=lambda _name, _found: None,
        )
    assert time.process_time() - began < 20
    text = str(caught.value)
    assert caught.value.exit_status == 2
    assert row.code in [problem.code for problem in caught.value.problems], text
    line = next(str(problem) for problem in caught.value.problems if problem.code == row.code)
    assert line.startswith(f"{row.code} {row.where}")
    assert row.says in line
    assert line in text
    assert "Traceback" not in text
    assert "sentinel-4711" not in text


def test_1_missing_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        read_file("config/orders.yaml", EngineFile)
    assert str(caught.value) == f"E1001 config/orders.yaml: no such file. Looked from {tmp_path}."


def test_2_directory_and_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, says in [(".", "is a directory"), ("pipe", "is not a regular file"), ("a\0b", "cannot be read")]:
        with pytest.raises(ConfigError) as caught:
            read_file(f"{tmp_path}/{name}", EngineFile)
        assert caught.value.code == "E1002"
        assert says in str(caught.value)


def test_2_name_with_control_characters_stays_on_one_line(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_file(tmp_path / "a\n\x1b[31m.yaml", EngineFile)
    assert str(caught.value).count("\n") == 0
    assert "\x1b" not in str(caught.value)


def test_t63_file_that_everybody_can_write_is_refused(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(GOOD)
    file.chmod(0o666)
    with pytest.raises(ConfigError) as caught:
        read_file(file, EngineFile)
    assert caught.value.code == "E9301"
    assert "0666" in str(caught.value)


def test_22_id_of_200_characters_is_allowed():
    text = GOOD.replace("id: in", "id: " + "ü" * 200)
    assert read_text(text, EngineFile).settings.receivers[0].id == "ü" * 200


def test_25_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pulsar", None)
    for name in [name for name in sys.modules if name.startswith("connectors.pulsar")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError) as caught:
        read_text(connection("service_url: 'pulsar://h:6650'", "pulsar"), EngineFile)
    assert str(caught.value) == (
        "E1213 config.yaml:5:10 connections.local: type 'pulsar' needs the module 'pulsar'. "
        "Install it: pip install 'correlator[pulsar]'."
    )


@pytest.mark.parametrize(
    ("content", "name", "says"),
    [
        ("x = 1", "Missing", "cannot be loaded: AttributeError: module 'broken_connector' has no attribute 'Missing'"),
        ("x = 1 / 0", "C", "cannot be loaded: ZeroDivisionError: division by zero. See module broken_connector"),
        ("def", "C", "cannot be loaded: SyntaxError"),
        ("from correlator.connector import Nope", "C", "cannot be loaded: ImportError: cannot import name 'Nope'"),
        ("import no_such_client", "C", "needs the module 'no_such_client'"),
    ],
)
def test_a_connector_that_cannot_be_loaded_says_why(tmp_path, monkeypatch, content, name, says):
    (tmp_path / "broken_connector.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken_connector", raising=False)
    point = EntryPoint("broken", f"broken_connector:{name}", "correlator.connectors")
    monkeypatch.setattr(connectors, "_installed", lambda: {"broken": point})
    with pytest.raises(ConfigError) as caught:
        read_text(connection("x: 1", "broken"), EngineFile)
    assert str(caught.value).startswith("E1213 config.yaml:5:10 connections.local: type 'broken' ")
    assert says in str(caught.value)


@pytest.mark.parametrize("settings", ["password: hunter2-sentinel", "url: 'amqp://me:hunter2-sentinel@h'"])
def test_27_plain_password(settings, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(connection(settings))
    file.chmod(0o600)
    loaded = read_file(file, EngineFile)
    assert [warning.code for warning in loaded.warnings] == ["W9001"]
    assert "connections.local" in str(loaded.warnings[0])
    assert "hunter2" not in str(loaded.warnings[0])
    file.chmod(0o644)
    with pytest.raises(ConfigError) as caught:
        read_file(file, EngineFile)
    assert caught.value.code == "E9001"
    assert "hunter2" not in str(caught.value)


PUBLIC = ["password: guest", "host: 127.0.0.1, password: guest"]


@pytest.mark.parametrize("type_", ["rabbitmq", "rabbitmq_stream"])
@pytest.mark.parametrize("settings", PUBLIC)
def test_the_password_that_everybody_knows_is_no_secret_on_loopback(settings, type_, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(connection(settings, type_))
    file.chmod(0o644)
    assert read_file(file, EngineFile).warnings == ()


def test_a_type_may_come_from_the_environment(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(connection("password: guest", "'${BROKER}'"))
    file.chmod(0o644)
    assert read_file(file, EngineFile, environment={"BROKER": "rabbitmq"}).warnings == ()


@pytest.mark.parametrize(
    ("settings", "type_"),
    [
        ("host: broker, password: guest", "rabbitmq"),
        ("password: guest1", "rabbitmq"),
        ("password: guest", "sql"),
        ("password: guest", "nope"),
    ],
)
def test_it_is_one_elsewhere(settings, type_, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(connection(settings, type_))
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="E9001"):
        read_file(file, EngineFile)


def test_30_secret_file(tmp_path):
    secret = tmp_path / "secret"
    text = connection(f"user: '${{file:{secret}}}'")
    for content, says in [("", "is empty"), ("x" * 70_000, "larger than 64 KiB"), (b"\xff", "not UTF-8")]:
        secret.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ConfigError) as caught:
            read_text(text, EngineFile)
        assert caught.value.code == "E1032"
        assert says in str(caught.value)
    secret.write_text("s3cret\n")
    secret.chmod(0o644)
    loaded = read_text(text, EngineFile)
    assert loaded.settings.connections["local"].options == {"user": "s3cret"}
    assert [warning.code for warning in loaded.warnings] == ["W9002"]
    secret.chmod(0o600)
    assert read_text(text, EngineFile).warnings == ()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///data/orders.db",
        "sqlite:////srv/orders.db",
        "postgresql://me@host/orders",
        "postgresql://me:p@ss@host/orders",
        "'postgresql://me@[::1]:5432/orders'",
    ],
)
def test_31_good_stores(url):
    assert read_text(GOOD.replace("sqlite:///orders.db", url), EngineFile).settings.store == url.strip("'")


def test_34_window_smaller_than_a_batch():
    text = engine("duplicate_detection: {per_source_window_size: 500}")
    (warning,) = read_text(text, EngineFile).warnings
    assert str(warning) == (
        "W1401 config.yaml:4:47 duplicate_detection.per_source_window_size: 500 is smaller than max_batch_size (1000) "
        "of receivers[0]. A redelivered batch may not be recognised."
    )


def test_36_expiry_time_smaller_than_redelivery():
    text = connection("ack_timeout: 100s", "pulsar")
    (warning,) = read_text(text, EngineFile).warnings
    assert warning.code == "W1403"
    assert "2 to 3 times" in str(warning)


def test_39_only_the_users_part_of_a_traceback(tmp_path, monkeypatch):
    (tmp_path / "broken_at_import.py").write_text("def f():\n    raise RuntimeError('no')\n\n\nf()\n")
    (tmp_path / "exits_at_import.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module, says in [("broken_at_import", "RuntimeError: no"), ("exits_at_import", "SystemExit: 3")]:
        with pytest.raises(ConfigError) as caught:
            read_text(engine(f"monitors: [{{type: '{module}:A'}}]"), EngineFile, check_import=lambda _n, _o: None)
        text = str(caught.value)
        assert f"cannot import '{module}:A': {says}" in text
        assert f"{module}.py:" in text
        assert "importlib" not in text
        assert "correlator/" not in text


@pytest.mark.parametrize("name", ["queue", "select", "yaml", "queue.monitors"])
def test_a_module_that_another_one_of_its_name_hides_is_named(name, tmp_path, monkeypatch):
    """Modules of the standard library, in Python and in C, and of an installed package come first."""
    own = tmp_path / f"{name.partition('.')[0]}.py"
    own.write_text("class Mine: ...\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(ConfigError) as caught:
        read_text(engine(f"monitors: [{{type: '{name}:Mine'}}]"), EngineFile, check_import=lambda _n, _o: None)
    text = str(caught.value)
    assert text.startswith(f"E1501 config.yaml:4:19 monitors[0].type: cannot import '{name}:Mine': ")
    assert f"'{own}' is not imported: another module named '{own.stem}' comes first, " in text
    assert text.endswith(". Rename your module.")


def test_a_module_that_nothing_hides_is_not_said_to_be_hidden(tmp_path, monkeypatch):
    (tmp_path / "only_once.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path), str(tmp_path)])
    with pytest.raises(ConfigError) as caught:
        read_text(engine("monitors: [{type: 'only_once:A'}]"), EngineFile, check_import=lambda _n, _o: None)
    assert "Rename" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        StateError("E4101", "monitor Orders", "field 'lock' has type threading.Lock, which cannot be stored"),
        UsageError("E4110", "monitor Orders", "request_flush() is not allowed in a persistent monitor"),
    ],
)
def test_40_41_what_the_check_of_monitors_says_gets_a_place(error):
    def check(_name, _found):
        raise error

    with pytest.raises(ConfigError) as caught:
        read_text(engine("monitors: [{type: 'pathlib:Path'}]"), EngineFile, check_import=check)
    assert caught.value.code == error.code
    assert str(caught.value).startswith(f"{error.code} config.yaml:4:19 monitors[0].type: {error.what}")


def test_52_line_ends_spaces_byte_order_mark_and_other_alphabets(tmp_path):
    text = GOOD.replace("name: orders", "name: bestellungen-ü   ").replace("\n", "\r\n")
    file = tmp_path / "bestellungen ü.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_file(file, EngineFile).settings.name == "bestellungen-ü"


def test_all_problems_at_once_in_the_order_of_the_file():
    lines = "".join(f"  - {{id: r{n}, connection: local, destination: 'queue:q', bad: 1}}\n" for n in range(27))
    with pytest.raises(ConfigError) as caught:
        read_text(HEAD + CONNECTION + "receivers:\n" + lines, EngineFile)
    shown = str(caught.value).splitlines()
    assert len(caught.value.problems) == 27
    assert len(shown) == 21
    assert shown[-1] == "and 7 more"
    assert [line.split(":")[1] for line in shown[:-1]] == [str(n) for n in range(7, 27)]
