"""The example from an outbox table into a lake, with a real database and a real table, in two lives of the engine."""

import json
import sqlite3

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from correlator.cli import main
from correlator.configuration import read_file
from correlator.pipeline.runner import build_engine
from correlator.pipeline.spec import PipelineFile
from tests.pipeline.conftest import CONFIG
from tests.waiting import wait_until

FILE = CONFIG / "outbox-to-lake.yaml"
ROWS = 60
ROW = '{"carrier": "UA", "origin": "EWR", "dest": "IAH", "scheduled": "2013-01-01T10:15:00Z"}'


def is_row(number):
    """Every tenth flight is cancelled."""
    return number % 10 != 0


def depart(airport, numbers):
    """Record departures and insert their messages, in one transaction; another transaction is rolled back."""
    for ends, some in ((airport.commit, numbers), (airport.rollback, [999])):
        for number in some:
            airport.execute("INSERT INTO departures VALUES (?)", (number,))
            row = {**json.loads(ROW), "flight": number, "dep_delay": number if is_row(number) else None}
            airport.execute("INSERT INTO outbox (body) VALUES (?)", (json.dumps(row),))
        ends()


@pytest.mark.usefixtures("session")
def test_each_departure_is_a_row_and_what_was_rolled_back_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    airport = sqlite3.connect("airport.db")
    airport.execute("CREATE TABLE departures (flight INTEGER)")
    assert main.execute(["outbox", "create", str(FILE), "departures"]) == 0
    for life in (range(1, ROWS // 2), range(ROWS // 2, ROWS)):
        depart(airport, life[: len(life) // 2])  # while no engine runs
        settings = read_file(FILE, PipelineFile, connectors=("sql", "lake")).settings
        with build_engine(settings, [str(CONFIG)]) as engine:
            depart(airport, life[len(life) // 2 :])
            wait_until(lambda: engine.status().senders["table"][1].sent == len([*filter(is_row, life)]))  # noqa: B023
    table = QueryBuilder().register("t", DeltaTable("lake/departures"))
    found = pa.table(table.execute("SELECT flight, late FROM t ORDER BY flight").read_all()).to_pylist()
    assert found == [{"flight": number, "late": number > 15} for number in range(1, ROWS) if is_row(number)]
    assert airport.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    airport.close()
