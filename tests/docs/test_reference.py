"""The reference is what the code has: settings, commands, codes, routes and events."""

import re

import pytest

from correlator.configuration.schema import descriptions
from tests.docs import reference
from tests.docs.test_pages import ROOT

_ADDED = re.compile(r"(?:told|timeline\.add)\(\s*\"(\w+)\"")


@pytest.mark.parametrize("name", ["settings.md", "commands.md", "codes.md"])
def test_a_page_is_what_the_code_says(name):
    assert (reference.PLACE / name).read_text() == reference.pages()[name], "run: python -m tests.docs.reference"


def test_each_setting_has_a_sentence():
    assert [cls.__name__ for cls in reference.sections() if "" in descriptions(cls).values()] == []


def test_each_route_is_on_the_page():
    source = (ROOT / "correlator" / "runtime" / "http" / "routes.py").read_text()
    routes = set(re.findall(r"\"(/\w+)\": Route\(", source))
    assert len(routes) > 8
    page = (ROOT / "docs" / "http.md").read_text()
    assert {one for one in routes if f"| `{one}" not in page} == set()


def test_each_event_is_on_the_page():
    sources = [path.read_text() for path in (ROOT / "correlator" / "runtime").rglob("*.py")]
    events = {name for source in sources for name in _ADDED.findall(source)} | {"paused", "resumed"}
    assert {"phase", "status", "dead_letters", "unhandled", "handler_failed", "failed"} <= events
    table = (
        (ROOT / "docs" / "control.md")
        .read_text()
        .partition("## Which events are there?")[2]
        .partition("\nEach event")[0]
    )
    assert events == set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))
