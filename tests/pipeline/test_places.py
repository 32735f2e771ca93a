"""A mistake in a step of a file: the error of a start names the code, the step, the file and the line, and nothing of
Java or of a traceback. The line of the mistake is the one with the comment `#!`.
"""

import json
import re
import textwrap

import pytest

from correlator.cli import main
from correlator.configuration import Places, read_text
from correlator.errors import ConfigError, CorrelatorError, HandlerFailed
from correlator.pipeline.places import StepPlaces
from correlator.pipeline.processor import SparkProcessor
from correlator.pipeline.spec import PipelineFile
from tests.pipeline.conftest import CONFIG, HERE, TinyEngine, TinyState
from tests.pipeline.protos import compiled

HEAD = """\
version: 1
name: shop
store: sqlite:///shop.db
connections: {local: {type: embedded}}
receivers: [{id: in, connection: local, destination: "queue:in", reliability: AT_LEAST_ONCE}]
senders: [{id: out, connection: local, destination: "queue:out", reliability: AT_LEAST_ONCE}]
pipelines:
  - name: p
    from: [in]
    steps:
"""
DECODE = '- decode: {format: json, schema: "sensor STRING, at TIMESTAMP, value INT"}\n'
FOREIGN = re.compile(r"Traceback|java|scala|org\.apache|\tat |SQLSTATE|py4j|pyspark|Error:.*Error:", re.IGNORECASE)

# (code, number of the step, steps)
MISTAKES = [
    # decode
    ("E1022", 1, "- decode: {format: xml, schema: a INT} #!"),
    ("E1510", 1, "- decode: {format: json} #!"),
    ("E1510", 1, "- decode:\n    format: text\n    schema: a INT #!"),
    ("E1510", 1, "- decode: #\n    format: avro #!"),
    ("E1510", 1, "- decode:\n    format: protobuf #!\n    message: M"),
    ("E1510", 1, "- decode:\n    format: json\n    schema: a INT\n    writer_schema: '{}' #!"),
    ("E1511", 1, "- decode:\n    format: json\n    schema: a INTEGERS #!"),
    ("E1511", 1, "- decode:\n    format: json\n    schema: a MAP<INT, INT> #!"),
    ("E1511", 1, "- decode:\n    format: csv\n    schema: >- #!\n      a INT,\n      b ARRAY<INT>"),
    ("E1511", 1, "- decode:\n    format: json\n    schema: 'a INT, b DECIMAL(50,1)' #!"),
    ("E1527", 1, "- decode:\n    format: json\n    schema: a INT\n    options:\n      locale: de\n      mod: x #!"),
    ("E1527", 1, "- decode:\n    format: json\n    schema: a DATE\n    options: #\n      dateFormat: 'foo' #!"),
    ("E1517", 2, "- select: {a: key}\n- decode: {format: text} #!"),
    ("E1517", 1, "- decode:\n    format: json\n    schema: _out INT #!"),
    ("E1529", 1, "- decode:\n    format: avro\n    schema: '{' #!"),
    ("E1529", 1, "- decode:\n    format: avro\n    schema: '\"int\"' #!"),
    ("E1529", 1, "- decode:\n    format: avro\n    schema_file: nowhere.avsc #!"),
    ("E1529", 1, "- decode:\n    format: avro\n    schema: 'RECORD int'\n    writer_schema: '\"int\"' #!"),
    ("E1513", 1, "- decode:\n    format: avro\n    schema: 'RECORD [\"int\", \"string\"]' #!"),
    ("E1513", 1, "- decode:\n    format: avro\n    schema: 'RECORD {\"type\": \"array\", \"items\": \"null\"}' #!"),
    ("E1529", 1, "- decode:\n    format: protobuf\n    descriptor: nowhere.desc #!\n    message: M"),
    ("E1529", 1, "- decode:\n    format: protobuf\n    descriptor: DIRECTORY/text.csv #!\n    message: M"),
    ("E1529", 1, "- decode:\n    format: protobuf\n    descriptor: DIRECTORY/one.desc\n    message: Nope #!"),
    ("E1513", 1, "- decode:\n    format: protobuf\n    descriptor: DIRECTORY/one.desc\n    message: Node #!"),
    # where
    ("E1511", 2, f"{DECODE}- where: valu > 1 #!"),
    ("E1511", 2, f"{DECODE}- where: #\n    condition: value > #!"),
    ("E1511", 3, f"{DECODE}- where: value > 1\n- where: value + 1 #!"),
    ("E1516", 2, f"{DECODE}- where: value > max(value) OVER () #!"),
    ("E1525", 2, f"{DECODE}- where: rand() > 0.5 #!"),
    ("E1511", 2, f"{DECODE}- where: nope(value) #!"),
    ("E1020", 2, f"{DECODE}- where: {{condition: value > 1, conditions: a}} #!"),
    ("E1022", 2, f"{DECODE}- where: '' #!"),
    # select
    ("E1511", 2, f"{DECODE}- select:\n    a: value\n    b: a + 1\n    c: valu #!\n    d: value"),
    ("E1511", 2, f"{DECODE}- select:\n    columns: #\n      a: value\n      c: value + #!"),
    ("E1525", 2, f"{DECODE}- select:\n    a: value\n    b: now() #!"),
    ("E1516", 2, f"{DECODE}- select:\n    a: value\n    b: row_number() OVER (ORDER BY value) #!"),
    ("E1511", 2, f"{DECODE}- select:\n    a: value\n    b: explode(array(value)) + count(*) #!"),
    ("E1511", 2, f"{DECODE}- select:\n    a: to_timestamp(value, 'nonsense', 1, 2) #!"),
    ("E1511", 2, f"{DECODE}- select:\n    a: INTERVAL 'x' DAY #!"),
    # sql
    ("E1511", 2, f"{DECODE}- sql: FROM input #!"),
    ("E1511", 2, f"{DECODE}- sql:\n    query: SELECT nope FROM input #!"),
    ("E1511", 2, f"{DECODE}- sql: SELECT * FROM other #!"),
    ("E1516", 2, f"{DECODE}- sql: SELECT * FROM input LIMIT 1 #!"),
    ("E1517", 2, f"{DECODE}- sql: SELECT *, value FROM input #!"),
    # explode
    ("E1511", 2, f"{DECODE}- explode:\n    name: v\n    array: value #!"),
    ("E1511", 2, f"{DECODE}- explode:\n    name: v\n    array: nope #!"),
    ("E1517", 2, f"{DECODE}- explode:\n    array: array(value)\n    name: _live #!"),
    ("E1021", 2, f"{DECODE}- explode: {{array: array(value)}} #!"),
    # lookup
    ("E1518", 2, f"{DECODE}- lookup:\n    on: [sensor]\n    file: nowhere.csv #!"),
    ("E1518", 2, f"{DECODE}- lookup:\n    on: [sensor]\n    file: DIRECTORY/ragged.csv #!"),
    ("E1518", 2, f"{DECODE}- lookup:\n    on: [sensor]\n    file: DIRECTORY/twice.csv #!"),
    ("E1518", 2, f"{DECODE}- lookup:\n    on: [sensor]\n    file: DIRECTORY/latin.csv #!"),
    ("E1518", 2, f"{DECODE}- lookup:\n    on: [sensor]\n    file: DIRECTORY/empty.csv #!"),
    ("E1518", 2, f"{DECODE}- lookup:\n    on: [room]\n    file: DIRECTORY/text.csv #!\n    schema: sensor INT"),
    ("E1518", 2, f"{DECODE}- lookup:\n    on: [sensor]\n    format: json\n    schema: sensor INTS\n    file: DIRECTORY/bad.json #!"),
    ("E1518", 2, f"{DECODE}- lookup:\n    on: [sensor]\n    format: json\n    schema: sensor INT\n    file: DIRECTORY/bad.json #!"),
    ("E1518", 2, f"{DECODE}- lookup:\n    on: [sensor]\n    format: parquet\n    file: DIRECTORY/text.csv #!"),
    ("E1518", 2, f"{DECODE}- lookup:\n    on: [sensor]\n    table: nowhere #!"),
    ("E1517", 2, f"{DECODE}- lookup: #\n    on: [sensor] #!\n    file: DIRECTORY/clash.csv"),
    ("E1511", 2, f"{DECODE}- lookup:\n    file: DIRECTORY/text.csv\n    on:\n      - sensor\n      - room #!"),
    ("E1510", 2, f"{DECODE}- lookup: {{on: [sensor]}} #!"),
    # python
    ("E1501", 2, f"{DECODE}- python: machines:nope #!"),
    ("E1501", 2, f"{DECODE}- python: nowhere:nope #!"),
    ("E1511", 2, f"{DECODE}- python:\n    function: machines:same\n    schema: a TIMESTAMP(3) #!"),
    ("E1513", 2, f"{DECODE}- python:\n    function: machines:same\n    schema: a VARCHAR(3) #!"),
    ("E4117", 2, f"{DECODE}- python:\n    schema: a INT\n    function: machines:later #!"),
    # monitor
    ("E1501", 2, f"{DECODE}- monitor:\n    key: sensor\n    class: machines:Nope #!"),
    ("E1503", 2, f"{DECODE}- monitor:\n    key: sensor\n    class: machines:same #!"),
    ("E1517", 1, "- monitor:\n    key: key\n    class: machines:Sums #!"),
    ("E1511", 2, f"{DECODE}- monitor:\n    class: machines:Sums\n    key: nope #!"),
    ("E1511", 2, f"{DECODE}- monitor:\n    class: machines:Sums\n    key: sensor\n    event_time: atx #!"),
    ("E1525", 2, f"{DECODE}- monitor:\n    class: machines:Sums\n    key: uuid() #!"),
    ("E1510", 2, f"{DECODE}- monitor:\n    class: machines:Sums #!\n    key: sensor\n    expires: 1h"),
    ("E1510", 2, f"{DECODE}- monitor:\n    class: machines:Sums\n    key: sensor\n    name: a/b #!"),
    ("E1510", 2, f"{DECODE}- monitor:\n    class: machines:Sums\n    key: sensor\n    state: hold #!"),
    # aggregate
    ("E1512", 2, f"{DECODE}- aggregate:\n    key: sensor\n    event_time: at\n    window: 1h\n    values:\n      a: max(value) + 1 #!"),
    ("E1513", 2, f"{DECODE}- aggregate:\n    key: sensor\n    event_time: at\n    window: 1h\n    values:\n      n: count(*)\n      a: sum(sensor) #!"),
    ("E1513", 2, f"{DECODE}- aggregate:\n    key: sensor\n    event_time: at\n    window: 1h\n    values:\n      n: count(*)\n      a: avg(sensor) #!"),
    ("E1513", 2, f"{DECODE}- aggregate:\n    key: sensor\n    event_time: at\n    window: 1h\n    values:\n      a: max(array(value)) #!"),
    ("E1511", 2, f"{DECODE}- aggregate:\n    key: sensor\n    event_time: at\n    window: 1h\n    values:\n      n: count(*)\n      a: max(valu) #!"),
    ("E1511", 2, f"{DECODE}- aggregate:\n    values: {{n: count(*)}}\n    key: sensr #!\n    event_time: at\n    window: 1h"),
    ("E1511", 2, f"{DECODE}- aggregate:\n    values: {{n: count(*)}}\n    key: sensor\n    event_time: array(at) #!\n    window: 1h"),
    ("E1510", 2, f"{DECODE}- aggregate:\n    values: {{n: count(*)}} #!\n    key: sensor\n    event_time: at"),
    # correlate
    ("E1511", 2, f"{DECODE}- correlate:\n    key: sensor\n    event_time: at\n    within: 1m\n    first: value = 1\n    second: valu = 2 #!"),
    ("E1511", 2, f"{DECODE}- correlate:\n    key: sensor\n    event_time: at\n    within: 1m\n    first: sensor #!\n    second: value = 2"),
    ("E1525", 2, f"{DECODE}- correlate:\n    key: sensor\n    event_time: now() #!\n    within: 1m\n    first: value = 1\n    second: value = 2"),
    # route
    ("E1511", 2, f"{DECODE}- route:\n    to: out\n    where: nope #!"),
    ("E1511", 2, f"{DECODE}- route:\n    to: out\n    body: concat( #!"),
    ("E1511", 2, f"{DECODE}- route:\n    to: out\n    key: nope #!\n    body: sensor"),
    ("E1511", 2, f"{DECODE}- route:\n    to: out\n    headers:\n      a: value\n      b: nope #!"),
    ("E1513", 2, f"{DECODE}- route:\n    to: out\n    headers:\n      a: value\n      priority: sensor #!"),
    ("E1511", 2, f"{DECODE}- route:\n    to: out\n    destination: first(sensor) #!"),
    ("E1021", 2, f"{DECODE}- route: {{where: value > 1}} #!"),
]  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    made = tmp_path_factory.mktemp("files")
    contents = {
        "text.csv": b"sensor,room\na,1\n",
        "ragged.csv": b"sensor,room\na,1,2\n",
        "twice.csv": b"sensor,room\na,1\na,2\n",
        "latin.csv": b"sensor,room\n\xe9,1\n",
        "empty.csv": b"",
        "clash.csv": b"sensor,value\na,1\n",
        "bad.json": b'{"sensor": \n',
    }
    for name, content in contents.items():
        (made / name).write_bytes(content)
    compiled('syntax = "proto3"; message Node { Node next = 1; } message M { int32 a = 1; }', made)
    return made


def file_of(steps, directory):
    """The text of a file with these steps."""
    fields = r'{"type": "record", "name": "R", "fields": [{"name": "a", "type": \1}]}'
    steps = re.sub(r"RECORD (.*?)(?=' #!|'\n)", fields.replace("\\1", r"\\1").replace("\\\\1", r"\1"), steps)
    steps = re.sub(r'"type": int\b', '"type": "int"', steps)
    return HEAD + textwrap.indent(steps.replace("DIRECTORY", str(directory)), " " * 6) + "\n"


def refused(text, session):
    """The error of a start."""
    with pytest.raises(CorrelatorError) as caught:
        loaded = read_text(text, PipelineFile, file="shop.yaml", environment={}, check_import=lambda *_: None)
        pipeline = loaded.settings.pipelines[0]
        processor = SparkProcessor(pipeline, session, [str(CONFIG), str(HERE)], StepPlaces(loaded.places, 0))
        processor.open()
        processor.close()
    return caught.value


def line_of(text):
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith("#!"))


@pytest.mark.parametrize(("code", "number", "steps"), MISTAKES, ids=range(len(MISTAKES)))
def test_an_error_names_the_step_the_file_and_the_line(session, directory, monkeypatch, code, number, steps):
    monkeypatch.syspath_prepend(str(HERE))
    text = file_of(steps, directory)
    error = refused(text, session)
    told = str(error)
    assert told.startswith(f"{code} shop.yaml:{line_of(text)}:"), told
    assert f"pipeline p step {number} (" in error.where or f"pipelines[0].steps[{number - 1}]." in error.where, told
    assert not FOREIGN.search(told), told
    assert "\n" not in told, told


BINARY = [one for one in MISTAKES if "format: avro" in one[2] or "format: protobuf" in one[2]]


@pytest.mark.parametrize(("code", "number", "steps"), BINARY, ids=range(len(BINARY)))
def test_lint_finds_what_is_wrong_with_a_binary_format_at_the_same_line(
    directory, tmp_path, monkeypatch, capsys, code, number, steps
):
    monkeypatch.chdir(tmp_path)
    text = file_of(steps, directory)
    file = tmp_path / "shop.yaml"
    file.write_text(text)
    file.chmod(0o600)
    assert main.execute(["lint", "shop.yaml"]) == 2
    told = capsys.readouterr().out
    assert told.startswith(f"{code} shop.yaml:{line_of(text)}:"), told
    assert f" pipelines[0].steps[{number - 1}].decode" in told


def test_settings_of_code_have_no_file(session):
    loaded = read_text(HEAD + f"      {DECODE}      - where: nope", PipelineFile, file="shop.yaml", environment={})
    with pytest.raises(ConfigError) as caught:
        SparkProcessor(loaded.settings.pipelines[0], session).open()
    assert caught.value.where == "pipeline p step 2 (where)"


def test_a_setting_of_the_command_line_has_its_own_place():
    steps = StepPlaces(Places("shop.yaml", {"pipelines[0].steps[0].where": (0, 0)}))
    step = read_text(HEAD + "      - where: a", PipelineFile, environment={}).settings.pipelines[0].steps[0]
    assert steps.of(0, step, "condition") == "--set pipelines[0].steps[0].where"


def test_an_error_at_a_refresh_has_the_place_of_its_file(session, tmp_path):
    (tmp_path / "rooms.csv").write_text("sensor,room\na,1\n")
    text = HEAD + textwrap.indent(
        f"{DECODE}- lookup:\n    on: [sensor]\n    refresh: 1s\n    file: {tmp_path}/rooms.csv #!\n", " " * 6
    )
    loaded = read_text(text, PipelineFile, file="shop.yaml", environment={})
    processor = SparkProcessor(loaded.settings.pipelines[0], session, (), StepPlaces(loaded.places))
    processor.open()
    processor._opened.refresh(1.0)
    (tmp_path / "rooms.csv").write_text("sensor,room\na,1\na,2\n")
    with pytest.raises(ConfigError) as caught:
        processor._opened.refresh(9.0)
    processor.close()
    assert re.fullmatch(rf"shop.yaml:{line_of(text)}:\d+ pipeline p step 2 \(lookup\)", caught.value.where)
    assert TinyState().get("", b"") is None


def test_an_error_at_a_batch_has_the_place_of_its_step(session):
    step = "- monitor:\n    class: tests.pipeline.machines:Sums #!\n    key: sensor\n    event_time: at\n"
    text = HEAD + textwrap.indent(f"{DECODE}{step}- route: {{to: out}}\n", " " * 6)
    loaded = read_text(text, PipelineFile, file="shop.yaml", environment={})
    processor = SparkProcessor(loaded.settings.pipelines[0], session, (), StepPlaces(loaded.places))
    processor.open()
    engine = TinyEngine(processor)
    engine.state.entries["step:p/monitor:Sums#0", b"a"] = b"of another class"
    with pytest.raises(HandlerFailed, match=r"^E5510 .*: the step failed: E4203 ") as caught:
        engine.run('{"sensor": "a", "at": "2026-01-01T00:00:00Z", "value": 1}')
    processor.close()
    assert re.fullmatch(rf"shop.yaml:{line_of(text)}:\d+ pipeline p step 2 \(monitor\)", caught.value.where)


@pytest.mark.parametrize("command", ["test", "plan", "run"])
def test_each_command_names_the_place(session, tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    given = {"tests": [{"name": "t", "given": ["{}"], "then": []}]}
    text = f"{HEAD}      {DECODE}      - where: nope(value) #!\n{json.dumps(given)[1:-1]}\n"
    file = tmp_path / "shop.yaml"
    file.write_text(text)
    file.chmod(0o600)
    assert main.execute([command, "shop.yaml"]) == 2
    told = capsys.readouterr().err
    (line,) = [one for one in told.splitlines() if one.startswith("E1511")]
    assert line.startswith(f"E1511 shop.yaml:{line_of(text)}:"), told
    assert "pipeline p step 2 (where): " in line
    assert not FOREIGN.search(line)
