"""What the reader makes of good configurations, and of settings classes that are not ours."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

import jsonschema
import msgspec
import pytest

from correlator.configuration import EngineFile, import_object, json_schema, read_text
from correlator.errors import ConfigError
from correlator.reliability import Reliability
from correlator.settings import Bytes, Identifier, ImportPath, Seconds, Template

ENGINE = """
version: 1
name: flights
store: ${CORRELATOR_STORE:sqlite:///flights.db}
checkpoint: {interval: 200ms}
connections:
  files:  {type: file, path: data, limits: {depth: 3, ratio: 1.10, on_error: ~}}
  local:  {type: embedded}
destinations: {late: "queue:delayed.jsonl"}
receivers:
  - {id: departures, connection: files, destination: "queue:flights.csv", reliability: EXACTLY_ONCE,
     unique_message_id: "${row.carrier}-${row.flight}-${row.date}-${row.origin}"}
senders:
  - {id: alerts,  connection: local, destination: "queue:alerts",  reliability: EXACTLY_ONCE}
  - {id: delayed, connection: files, destination: late, reliability: AT_LEAST_ONCE, options: {append: true}}
monitors:
  - {type: "flights.monitors:Delays", options: {limit: 15, names: [a, b]}}
"""


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """Decode.

    Attributes:
        format: how bodies are
            written.
    """

    format: Literal["csv", "json"] = "json"
    schema: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereStep:
    """Keep."""

    shorthand: ClassVar[str] = "condition"
    condition: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Columns."""

    word: ClassVar[str] = "select"
    shorthand: ClassVar[str] = "columns"
    columns: Mapping[str, str] | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinStep:
    """Joins."""

    shorthand: ClassVar[str] = "table"
    table: str
    key: Identifier

    def __post_init__(self):
        if self.table == self.key:
            raise ValueError("the table cannot be the key")
        if self.table == "x":
            raise ConfigError("E1299", "step", "x is no table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Things:
    """All kinds of settings."""

    from_: tuple[Identifier, ...] = ()
    steps: tuple[DecodeStep | WhereStep | Project | JoinStep, ...] = ()
    colour: Colour = Colour.RED
    ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    count: int = 0
    flag: bool = False
    wait: Annotated[Seconds, msgspec.Meta(ge=0.1)] = 1.0
    room: Bytes = 1
    code: ImportPath | None = None
    text: Template = ""
    either: int | bool | str | tuple[str, ...] = 0
    anything: Any = None
    names: list[str] = field(default_factory=list)
    by_colour: Mapping[Colour, float] = field(default_factory=dict)
    version: int = 1


def things(text: str, **environment: str) -> Things:
    return read_text(text, Things, environment=environment).settings


def refused(text: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        things(text, **environment)
    return str(caught.value)


def test_an_engine():
    loaded = read_text(ENGINE, EngineFile, environment={})
    settings = loaded.settings
    assert settings.store == "sqlite:///flights.db"
    assert settings.checkpoint.interval == 0.2
    assert settings.connections["files"].options == {
        "path": "data",
        "limits": {"depth": 3, "ratio": 1.1, "on_error": None},
    }
    assert settings.receivers[0].reliability is Reliability.EXACTLY_ONCE
    assert settings.receivers[0].unique_message_id == "${row.carrier}-${row.flight}-${row.date}-${row.origin}"
    assert settings.receivers[0].max_batch_size == 1000
    assert settings.senders[1].options == {"append": True}
    assert settings.monitors[0].options == {"limit": 15, "names": ["a", "b"]}
    assert loaded.warnings == ()
    assert loaded.places.positions["receivers[0].destination"] == (11, 54)


def test_keys_of_keywords_and_lists():
    assert things("from: [a, b]").from_ == ("a", "b")
    assert things("names: [a, b]").names == ["a", "b"]
    assert things("from: []").from_ == ()


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("decode:", DecodeStep()),
        ("decode: {format: csv}", DecodeStep(format="csv")),
        ("where: a > 1", WhereStep(condition="a > 1")),
        ("where: {condition: a > 1, note: x}", WhereStep(condition="a > 1", note="x")),
        ("select: {a: b}", Project(columns={"a": "b"})),
        ("select: [a, b]", Project(columns=("a", "b"))),
        ("select: {columns: {a: b}}", Project(columns={"a": "b"})),
        ("select: {columns: {columns: b}}", Project(columns={"columns": "b"})),
        ("select: {columns: {}}", Project(columns={})),
        ("select: {columns: [a, b]}", Project(columns=("a", "b"))),
        ("select: {columns: b}", Project(columns={"columns": "b"})),
        ("select: {columns: b, a: c}", Project(columns={"columns": "b", "a": "c"})),
        ("join: {table: t, key: k}", JoinStep(table="t", key="k")),
    ],
)
def test_steps(text, step):
    assert things(f"steps:\n  - {text}\n").steps == (step,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("wher: x", "E1020 config.yaml:2:5 steps[0].wher: unknown key. Did you mean 'where'?"),
        ("{where: x, decode: y}", "E1022 config.yaml:2:5 steps[0]: is a mapping with 2 keys, must be a mapping with"),
        ("where", "exactly one key. Known: decode, where, select, join"),
        ("where:", "E1022 config.yaml:2:11 steps[0].where: 'condition' is missing"),
        ("join: t", "E1021 config.yaml:2:11 steps[0].join: 'key' is missing"),
        ("join: {table: a, key: a}", "E1022 config.yaml:2:11 steps[0].join: the table cannot be the key"),
        ("join: {table: x, key: a}", "E1299 config.yaml:2:11 steps[0].join: x is no table"),
        ("decode: {format: xml}", "E1022 config.yaml:2:22 steps[0].decode.format: 'xml' is not one of the possible"),
        ("decode: csv", "E1022 config.yaml:2:13 steps[0].decode: is a single value, must be a mapping"),
        ("where: 1.10", "E1024"),
    ],
)
def test_bad_steps(text, says):
    assert says.replace("E1022 config.yaml:2:11 steps[0].where", "E1021 config.yaml:2:11 steps[0].where") in refused(
        f"steps:\n  - {text}\n"
    )


def test_units_choices_and_ranges():
    read = things(
        "{wait: 1.5m, room: 2KiB, colour: blue, ratio: 1, count: -0x10, by_colour: {red: 2}}".replace("-0x", "0x")
    )
    assert (read.wait, read.room, read.colour, read.ratio, read.count) == (90.0, 2048, Colour.BLUE, 1.0, 16)
    assert read.by_colour == {Colour.RED: 2.0}
    assert "'0.0' is out of range, must be a number above 0..1" in refused("ratio: 0")
    assert "E1025" in refused("wait: 10ms")
    assert "of at least 0.1 seconds" in refused("wait: 10ms")
    assert "Use red or blue. Did you mean 'red'?" in refused("colour: redd")
    assert "E1022" in refused("ratio: " + "9" * 350)
    assert "is a string, must be a whole number" in refused("count: '7'")


def test_unions_go_by_the_shape_of_the_value():
    assert [things(f"either: {text}").either for text in ("7", "true", "x", "[x]", "'7'")] == [
        7,
        True,
        "x",
        ("x",),
        "7",
    ]


def test_null_where_it_is_allowed():
    assert things("{code: ~, anything: null}").code is None
    assert "is empty, must be a list" in refused("names:")


def test_anything():
    text = "anything: [1, -2.5, 1e3, 0o17, 0x1F, true, null, '1', text, {a: [b]}, 99999999999999999999]"
    assert things(text).anything == [
        1,
        -2.5,
        1000.0,
        15,
        31,
        True,
        None,
        "1",
        "text",
        {"a": ["b"]},
        99999999999999999999,
    ]
    assert "not a finite number" in refused("anything: .nan")
    assert math.isclose(things("anything: .5").anything, 0.5)


def test_interpolated_values_become_what_the_setting_is():
    read = things(
        "{count: '${N}', flag: '${B}', ratio: '${R:0.25}', wait: '${N}s', text: '${env:N} ${row.x} ${body}', "
        "anything: '${N}', colour: '${C:blue}', from: ['a${X:}']}",
        N="5",
        B="true",
    )
    assert (read.count, read.flag, read.ratio, read.wait, read.colour) == (5, True, 0.25, 5.0, Colour.BLUE)
    assert read.text == "5 ${row.x} ${body}"
    assert read.anything == "5"
    assert read.from_ == ("a",)
    assert "'[1]' is a string, must be a whole number" in refused("count: ${N}", N="[1]")


def test_interpolated_values_are_only_text():
    text = "anything: ['${A}', '${A:x}', '$${A}', 'a ${A} b']"
    assert things(text, A="${B}\n- {c: d}").anything == [
        "${B}\n- {c: d}",
        "${B}\n- {c: d}",
        "${A}",
        "a ${B}\n- {c: d} b",
    ]
    assert "larger than 1024 KiB" in refused(f"anything: '{'${A}' * 300}'", A="x" * 4096)


def test_keys_are_not_interpolated():
    assert things("anything: {'${A}': 1}", A="x").anything == {"${A}": 1}


def test_further_rules_report_at_their_place():
    def no_seven(settings, findings):
        if settings.count == 7:
            findings.error("E1999", "count", f"{findings.show('7')} is unlucky")

    with pytest.raises(ConfigError) as caught:
        read_text("count: 7", Things, checks=[no_seven])
    assert str(caught.value) == "E1999 config.yaml:1:8 count: '7' is unlucky."


@pytest.mark.parametrize("root", [EngineFile, Things])
def test_schema_is_a_schema(root):
    schema = json_schema(root)
    jsonschema.Draft202012Validator.check_schema(schema)
    json.dumps(schema)


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ({"steps": [{"decode": None}, {"where": "x"}, {"select": {"a": "b"}}]}, True),
        ({"steps": [{"where": 1}]}, False),
        ({"steps": [{"decode": {}, "where": "x"}]}, False),
        ({"from": ["a"], "wait": "5s", "room": "1KiB", "colour": "red"}, True),
        ({"wait": 5}, False),
        ({"wait": "${WAIT}", "count": "${N:5}", "code": None}, True),
        ({"ratio": 0}, False),
        ({"unknown": 0}, False),
    ],
)
def test_schema_agrees_with_the_reader(value, good):
    validator = jsonschema.Draft202012Validator(json_schema(Things))
    assert validator.is_valid(value) is good
    if good:
        things(json.dumps(value), WAIT="1s", N="5")
    else:
        refused(json.dumps(value))


def test_schema_describes_settings():
    definition = json_schema(Things)["$defs"]["DecodeStep"]
    assert definition["properties"]["format"]["description"] == "how bodies are written."
    receiver = json_schema(EngineFile)["$defs"]["ReceiverSettings"]
    assert receiver["properties"]["destination"]["description"].startswith("`queue:NAME`")
    assert receiver["required"] == ["id", "connection", "destination"]


def test_import_of_an_attribute_that_raises(tmp_path, monkeypatch):
    (tmp_path / "lazy_module.py").write_text("def __getattr__(name):\n    raise RuntimeError('lazy')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"E1501 .*RuntimeError: lazy.*\n.*lazy_module.py:2 in __getattr__"):
        import_object("lazy_module:A")
    assert import_object("collections.abc:Mapping.get") is Mapping.get


def test_warnings_come_with_errors():
    with pytest.raises(ConfigError) as caught:
        read_text("name: x\nconnections: {c: {type: nope, password: x}}", EngineFile)
    assert [warning.code for warning in caught.value.warnings] == ["W9001"]


def test_a1_20_parts_that_name_no_reliability_have_that_of_their_connection():
    text = """
    name: n
    store: sqlite:///n.db
    connections:
      files: {type: file, path: data, default_receiver_reliability: AT_LEAST_ONCE}
      local: {type: embedded, default_sender_reliability: EXACTLY_ONCE}
    receivers:
      - {id: a, connection: files, destination: "queue:a.csv"}
      - {id: b, connection: files, destination: "queue:b.csv", reliability: EXACTLY_ONCE}
      - {id: c, connection: local, destination: "queue:c"}
    senders:
      - {id: d, connection: local, destination: "queue:d"}
      - {id: e, connection: files}
    """
    settings = read_text(text, EngineFile).settings
    modes = {part.id: str(part.reliability) for part in (*settings.receivers, *settings.senders)}
    assert modes == {
        "a": "AT_LEAST_ONCE",
        "b": "EXACTLY_ONCE",
        "c": "BEST_EFFORT",
        "d": "EXACTLY_ONCE",
        "e": "BEST_EFFORT",
    }
    assert settings.connections["files"].options == {"path": "data"}


def test_a1_20_app_controlled_is_no_default_of_senders():
    text = """
    name: n
    connections: {local: {type: embedded, default_sender_reliability: APP_CONTROLLED}}
    """
    with pytest.raises(ConfigError, match=r"E1204 .*connections.local.default_sender_reliability"):
        read_text(text, EngineFile)
