"""What docs/connectors.md shows is the template, and what it says of the template happens."""

import dataclasses
import os
import re
import signal
import subprocess
import tomllib
from pathlib import Path

import pytest
import spool

from correlator import connector
from correlator.cli.codes import CODES
from tests.docs.test_pages import ROOT, blocks
from tests.docs.test_transcripts import environment, run_transcripts

PAGE = ROOT / "docs" / "connectors.md"
TEMPLATE = ROOT / "docs" / "examples" / "spool"
PATIENCE_S = 60.0
_NAMED = re.compile(r"# (?:FILE )?(\S+\.\w+)\n")
QUOTED = [text for language, text in blocks(PAGE) if language in ("py", "toml") and not _NAMED.match(text)]


@pytest.mark.parametrize("text", QUOTED, ids=lambda text: text.splitlines()[0][:40])
def test_what_the_page_quotes_is_in_the_template(text):
    assert any(quotes(text, file.read_text()) for file in TEMPLATE.iterdir() if file.is_file())


def quotes(text: str, source: str) -> bool:
    """Whether all lines of a text stand together in the source, indented or not; blank ones are left out."""
    wanted, there = ([line for line in one.splitlines() if line.strip()] for one in (text, source))
    places = [at for at, line in enumerate(there) if line.endswith(wanted[0])]
    return any(
        there[at : at + len(wanted)] == [there[at].removesuffix(wanted[0]) + line for line in wanted] for at in places
    )


def test_a_line_that_differs_is_noticed():
    assert quotes("b\n  c\n", "a\n  b\n\n    c\nd\n")
    assert not quotes("b\nc\n", "a\n  b\n    c\nd\n")
    assert not quotes("b\nc\n", "a\n  b\n")


def test_the_page_quotes_the_important_pieces():
    assert len(QUOTED) > 8


def test_every_feature_is_explained():
    rows = re.findall(r"^\| (`.*?`) \|", PAGE.read_text(), re.MULTILINE)
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {field.name for field in dataclasses.fields(connector.Features)} <= explained
    assert {order.name for order in connector.Order} <= explained
    optional = {
        name for name, one in vars(connector).items() if getattr(one, "__dict__", {}).get("_is_runtime_protocol")
    }
    assert len(optional) > 10
    assert optional <= explained


def test_the_codes_are_those_of_the_product():
    assert set(re.findall(r"\b[EW]\d{4}\b", PAGE.read_text())) <= set(CODES)


# --- the template, installed ---


@pytest.fixture
def place(tmp_path):
    """A directory with the files of the page, and with the entry point that an installation of the template makes."""
    for _, text in blocks(PAGE):
        if named := _NAMED.match(text):
            (tmp_path / named[1]).write_text(text)
            (tmp_path / named[1]).chmod(0o600)
    project = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]
    installed = tmp_path / "site" / f"correlator_spool-{project['version']}.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["correlator.connectors"].items()
    lines = ["[correlator.connectors]", *(f"{name} = {value}" for name, value in points)]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    return tmp_path


def variables(place: Path) -> dict[str, str]:
    return environment() | {"PYTHONPATH": os.pathsep.join(map(str, (TEMPLATE, place / "site")))}


def test_u6_the_template_is_a_connector_like_any_other(place):
    run_transcripts(blocks(PAGE), place, variables(place))
    bills = spool.Queue(place / "spool", "bills")
    bills.lock("consumer").close()
    command = ["correlator", "run", "relay.yaml"]
    with subprocess.Popen(command, cwd=place, env=variables(place), stderr=subprocess.PIPE, text=True) as engine:
        try:
            (number,) = bills.oldest(1, 1_000_000, (), PATIENCE_S)
            assert b'{"id": 1}' in bills.get(number, 1000)[0]
            assert not spool.Queue(place / "spool", "orders").oldest(1, 1, (), 0.0), (
                "it is acknowledged before it is sent"
            )
        finally:
            engine.send_signal(signal.SIGTERM)
            _, errors = engine.communicate(timeout=PATIENCE_S)
    assert engine.returncode == 128 + signal.SIGTERM, errors
