"""Whatever a file holds: settings or a `ConfigError`, soon."""

import functools
import json
import time
from contextlib import suppress

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from correlator.configuration import EngineFile, read_text
from correlator.configuration.document import compose, decode
from correlator.configuration.problems import Findings
from correlator.configuration.scalars import core_value, describe, other_boolean, other_reading
from correlator.configuration.words import edits
from correlator.errors import ConfigError

PIECES = [
    "name", ": ", ":", "\n", "  ", "- ", "{", "}", "[", "]", ",", "&a ", "*a", "<<", "!x ", "!!str ", "|", ">", "'", '"',
    "# ", "---\n", "...\n", "%YAML 1.2\n", "? ", "${A}", "${file:/x}", "${", "}", "\t", "on", "017", "1:30", "\\x", "\\U0011ffff",
    "receivers", "connections", "version", "store", "id", "password", "ü", "\r\n", "\u2028", "~", "9" * 30, "1e999", "@", "`",
]  # fmt: skip
CALM = settings(max_examples=300, deadline=60_000, suppress_health_check=[HealthCheck.too_slow])
yaml_like = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


@CALM
@given(st.one_of(yaml_like, st.text(max_size=200)))
def test_text(text):
    """Trap T49."""
    with suppress(ConfigError):
        read_text(text, EngineFile, environment={"A": "b"})


@CALM
@given(st.binary(max_size=200))
def test_bytes(content):
    with suppress(ConfigError):
        compose(decode(content, "f"), Findings("f"))


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10), st.sampled_from(PIECES)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
KEYS = ["version", "name", "store", "checkpoint", "connections", "destinations", "receivers", "senders", "monitors"]


@CALM
@given(st.dictionaries(st.sampled_from([*KEYS, "duplicate_detection", "max_queued", "stop_timeout"]), values))
def test_structures(structure):
    with suppress(ConfigError):
        read_text(json.dumps(structure), EngineFile, environment={})


@given(st.text(alphabet="0123456789+-._:exobEinfaINTt ", max_size=30))
def test_scalars(text):
    core_value(text)
    describe(text)
    other_boolean(text)
    other_reading(text)


@pytest.mark.parametrize("digits", [400, 4301, 100_000])
@pytest.mark.parametrize("form", ["{}", "-{}.0", "{}e5", "{}:30:15", "0{}", "0x{}", "1_{}"])
def test_long_numbers(digits, form):
    text = form.format("7" * digits)
    core_value(text)
    describe(text)
    other_reading(text)


@given(st.text(alphabet="abc", max_size=6), st.text(alphabet="abc", max_size=6))
def test_edits(first, second):
    def distance(one, other):
        if not one or not other:
            return len(one) + len(other)
        if one[0] == other[0]:
            return distance(one[1:], other[1:])
        return 1 + min(distance(one[1:], other), distance(one, other[1:]), distance(one[1:], other[1:]))

    assert min(edits(first, second, 2), 3) == min(distance(first, second), 3)


MEBIBYTE = 1024 * 1024
LARGE = {
    "brackets": "[" * MEBIBYTE,
    "braces": "{" * MEBIBYTE,
    "dashes": "- " * (MEBIBYTE // 2),
    "questions": "? " * (MEBIBYTE // 2),
    "colons": ":" * MEBIBYTE,
    "lines": "\n" * MEBIBYTE,
    "quoted lines": '"' + "a\n" * (MEBIBYTE // 2 - 1),
    "escapes": 'name: "' + "\\x41" * 250_000 + '"',
    "comment": "#" + "x" * (MEBIBYTE - 1),
    "folded": "name: >\n" + "  x\n" * 250_000,
    "placeholders": "name: " + "${A}" * 250_000,
    "unclosed": "name: '" + "${" * 500_000 + "'",
    "urls": "name: " + "://a:" * 200_000,
    "urls that end": "name: " + "://a:" * 200_000 + "@",
    "secrets": "connections: {" + ", ".join(f"c{n}: {{type: x, password: p{n}}}" for n in range(1600)) + "}",
    "unknown keys": "name: x\n" + "".join(f"unknown{n}: 1\n" for n in range(4900)),
    "unknown connections": "name: x\nconnections:\n"
    + "".join(f"  connection{n}: {{type: embedded}}\n" for n in range(900))
    + "receivers:\n"
    + "".join(f"  - {{id: r{n}, connection: konektion{n}, destination: 'queue:q'}}\n" for n in range(700)),
}


@functools.cache
def parser_s():
    """The CPU time that PyYAML alone needs to find the tokens of a large text, on this machine."""
    began = time.process_time()
    assert len(list(yaml.scan('"' + "a\n" * (MEBIBYTE // 2 - 1) + '"'))) == 3
    return time.process_time() - began


@pytest.mark.parametrize("name", LARGE)
def test_large_files_take_about_as_long_as_their_parser(name):
    may_s = 3 * parser_s()
    began = time.process_time()
    with pytest.raises(ConfigError):
        read_text(LARGE[name], EngineFile, environment={"A": "b" * 1000})
    assert time.process_time() - began < may_s
