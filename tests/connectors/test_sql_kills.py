"""A process that writes into tables is killed before and behind its commits; a control shows that this is seen."""

import json
import multiprocessing
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.connectors import sql_bridge
from tests.connectors.tables import execute, rows, sqlite_file
from tests.servers import PostgresServer
from tests.waiting import wait_until

pytestmark = pytest.mark.kill9
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["connectors.file", "connectors.sql", sql_bridge.__name__])
LINES = 60
KILLS = 6


def doubles_after_kills(directory: Path, url: str, *, is_control: bool = False) -> int:
    """Kill lives, let one go on to the end; returns how many rows are there twice."""
    execute(url, "CREATE TABLE t (id INTEGER, name TEXT)")
    lines = [json.dumps({"id": number, "name": f"row {number}"}) for number in range(LINES)]
    (directory / "lines.jsonl").write_text("\n".join(lines) + "\n")
    for kill in range(KILLS):
        told, childs = FORKING.Pipe()
        life = FORKING.Process(
            target=sql_bridge.live,
            args=(directory, url, childs),
            kwargs={"behind": kill % 2 == 0, "is_control": is_control},
        )
        life.start()
        life.join()
        assert life.exitcode == -signal.SIGKILL
        if not is_control:
            assert rows(url, "SELECT sequence FROM correlator_sender") == rows(url, "SELECT count(*) FROM t")
        told.close()
        childs.close()
    told, childs = FORKING.Pipe()
    last = FORKING.Process(
        target=sql_bridge.live, args=(directory, url, childs), kwargs={"behind": None, "is_control": is_control}
    )
    last.start()
    wait_until(lambda: len(rows(url, "SELECT DISTINCT id FROM t")) == LINES)
    told.send("stop")
    last.join()
    assert last.exitcode == 0
    found = Counter(number for (number,) in rows(url, "SELECT id FROM t"))
    assert set(found) == set(range(LINES))
    told.close()
    childs.close()
    return found.total() - len(found)


def test_each_row_is_there_once_in_sqlite(tmp_path: Path) -> None:
    assert doubles_after_kills(tmp_path, sqlite_file(tmp_path)) == 0


@pytest.mark.postgres
def test_each_row_is_there_once_in_postgres(tmp_path: Path, postgres_server: PostgresServer) -> None:
    assert doubles_after_kills(tmp_path, postgres_server.fresh_schema()) == 0


def test_without_the_number_of_the_sender_rows_are_there_twice(tmp_path: Path) -> None:
    assert doubles_after_kills(tmp_path, sqlite_file(tmp_path), is_control=True) > 0
