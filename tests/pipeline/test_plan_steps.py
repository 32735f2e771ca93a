"""`correlator plan` and `correlator run` of a file whose pipeline has changed: both say the same, before anything is written."""

import json

import pytest

from correlator.cli import main
from tests.cli.commands import write

FILE = """
name: sales
store: sqlite:///store.db
stop_timeout: 120s
spark: {master: "local[1]"}
connections:
  files: {type: file, path: data}
receivers:
  - {id: in, connection: files, destination: "queue:in.jsonl", reliability: EXACTLY_ONCE}
senders:
  - {id: out, connection: files, destination: "queue:out.jsonl", reliability: EXACTLY_ONCE}
pipelines:
  - name: sales
    from: [in]
    steps:
      - decode: {format: json, schema: "shop STRING, at TIMESTAMP, amount INT"}
      - aggregate: {key: shop, event_time: at, window: 10m, values: {total: sum(amount)}}
      - route: {to: out}
"""

NEXT = '{{"shop": "a", "at": "2026-01-01T00:{minute:02}:00Z", "amount": {amount}}}'


@pytest.fixture
def place(session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "in.jsonl", [NEXT.format(minute=1, amount=5)])
    return tmp_path


@pytest.fixture
def planned(place, capsys):
    """Runs `plan --json` of the file with these texts replaced: its steps by name, exit status, standard error."""

    def planned(*replacements):
        text = FILE
        for before, after in replacements:
            assert before in text
            text = text.replace(before, after)
        write(place / "sales.yaml", [text])
        status = main.execute(["plan", "sales.yaml", "--json"])
        out, err = capsys.readouterr()
        return {one["name"]: one for one in json.loads(out) if one["kind"] == "step"}, status, err

    return planned


def started():
    return main.execute(["run", "sales.yaml", "--log-level", "ERROR"])


def test_what_a_start_does_with_each_step(place, planned, capsys):
    steps, status, _ = planned()
    assert ({name: one["verdict"] for name, one in steps.items()}, status) == ({"sales/aggregate#0": "new"}, 0)
    assert started() == 0
    capsys.readouterr()
    steps, status, _ = planned()
    assert steps["sales/aggregate#0"]["verdict"] == "unchanged"
    assert steps["sales/aggregate#0"]["note"] == "goes on with the state of 1 key"

    changed = ("sum(amount)", "max(amount)")
    before = (place / "store.db").read_bytes()
    steps, status, err = planned(changed)
    (change,) = steps["sales/aggregate#0"]["changes"]
    assert change == {"field": "value 1 function", "before": "sum", "after": "max"}
    (refusal,) = steps["sales/aggregate#0"]["refusals"]
    assert (refusal["code"], status) == ("E4330", 6)
    assert started() == 6
    assert set(capsys.readouterr().err.strip().splitlines()) <= set(err.strip().splitlines())
    assert (place / "store.db").read_bytes() == before

    steps, status, err = planned(("      - aggregate", "      # - aggregate"))
    assert (steps["sales/aggregate#0"]["verdict"], status) == ("refused", 6)
    assert "E4331 step 'sales/aggregate#0'" in err

    decision = "discard " + refusal["todo"].partition("state: discard ")[2][:8]
    steps, status, _ = planned(changed, ("window: 10m", f"window: 10m, state: {decision}"))
    assert steps["sales/aggregate#0"]["note"] == "the state of 1 key of 'sales/aggregate#0' is discarded"
    assert status == 0
    assert started() == 0
    capsys.readouterr()
    steps, status, _ = planned(changed)
    assert (steps["sales/aggregate#0"]["verdict"], status) == ("unchanged", 0)


def test_an_expression_that_a_start_refuses_is_refused_before_there_is_a_store(place, capsys):
    write(place / "sales.yaml", [FILE.replace("      - route", "      - where: rand() < 0.5\n      - route")])
    assert main.execute(["plan", "sales.yaml"]) == 2
    planned = capsys.readouterr().err
    assert planned.startswith("E1525 sales.yaml:18:16 pipeline sales step 3 (where): 'rand()' may have another value")
    assert not (place / "store.db").exists()
    assert started() == 2
    assert planned == capsys.readouterr().err
