"""`db adopt`: an engine goes on with an older copy of its store, and nobody takes its next messages for repeats (T33)."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from correlator import Engine, Monitor, event, on
from correlator.cli.main import execute
from correlator.core.commit import OutboundSegment, RegistryCommit, SenderCut
from correlator.errors import Fenced, RecoveryRefused, StoreError
from correlator.storage import files
from correlator.storage.adopt import Adopted, adopt, senders
from tests.storage import values
from tests.storage.conftest import MakeStore
from tests.storage.values import opened

ALERTS = msgspec.structs.replace(values.endpoint("alerts", "sender"), source="old:S01")
BILLS = msgspec.structs.replace(values.endpoint("bills", "sender"), source="old:S02")


def filled(make_store: MakeStore, url: str) -> None:
    """A store where `alerts` has settled 1 to 5 and holds 3 to 4, 5 to 7 and 8, and `bills` has sent nothing yet."""
    store = make_store(url)
    opened(store)
    outbound = [values.outbound(3, 2), values.outbound(5, 3), values.outbound(8, 1)]
    cut = SenderCut("alerts", "old:S01", 9, 5)
    writes = [
        RegistryCommit(put=[ALERTS, BILLS, values.endpoint("orders")]),
        values.checkpoint(1, senders=[values.sender(2, 9)], outbound=outbound),
    ]
    store.commit(1, writes)
    store.commit(2, [values.checkpoint(2, senders=[cut])])
    store.close()


def test_messages_of_an_adopted_store_are_numbered_anew(make_store: MakeStore, url: str) -> None:
    filled(make_store, url)
    assert [one.sender for one in senders(url)] == ["alerts", "bills"]
    adopt(url, None, "new")
    recovered = opened(make_store(url))
    assert [(one.id, one.source) for one in recovered.endpoints] == [
        ("alerts", "new:S01"),
        ("bills", "new:S02"),
        ("orders", ""),
    ]
    assert list(recovered.senders) == [SenderCut("alerts", "new:S01", 4, 0)]
    assert list(recovered.outbound) == [
        OutboundSegment("alerts", 1, values.messages(6, 2)),
        OutboundSegment("alerts", 3, values.messages(8, 1)),
    ]
    assert recovered.checkpoint == 2


def contents(make_store: MakeStore, url: str) -> dict[str, object]:
    store = make_store(url)
    found = values.contents(store.read())
    store.close()
    return found


def test_all_else_stays(make_store: MakeStore, url: str) -> None:
    store = make_store(url)
    opened(store)
    store.commit(1, [RegistryCommit(put=[values.endpoint("orders")]), values.received(1, 4, number=1)])
    store.commit(2, [values.checkpoint(1, contexts=[values.context()], state=[values.state(1, a=b"1")])])
    store.close()
    before = contents(make_store, url)
    adopt(url, None, "new")
    assert contents(make_store, url) == before
    assert senders(url) == []


def test_what_waits_is_told_and_nothing_is_changed(make_store: MakeStore, url: str) -> None:
    filled(make_store, url)
    before = contents(make_store, url)
    assert senders(url) == [Adopted("alerts", 4), Adopted("bills", 0)]
    assert contents(make_store, url) == before


def test_an_engine_that_runs_keeps_its_store(make_store: MakeStore, url: str) -> None:
    opened(make_store(url))
    with pytest.raises(Fenced, match="E3201"):
        adopt(url, None, "new")


def test_a_store_that_is_not_there(sqlite_url: str) -> None:
    for call in (lambda: senders(sqlite_url), lambda: adopt(sqlite_url, None, "new")):
        with pytest.raises(StoreError, match="E3010"):
            call()


def test_a_death_before_the_witness_is_removed_changes_nothing_for_the_next_start(
    make_store: MakeStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start refuses the store as before, and the command can be repeated."""
    filled(make_store, sqlite_url)
    witness = files.beside(Path(sqlite_url.removeprefix("sqlite:///")), ".witness")
    witness.write_text('{"name": "alpha", "checkpoint": 7}')

    def dies(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", dies)
        with pytest.raises(KeyboardInterrupt):
            adopt(sqlite_url, witness, "new")
    with pytest.raises(RecoveryRefused, match="E4311 .*correlator db adopt FILE"):
        make_store(sqlite_url).read()
    adopt(sqlite_url, witness, "newer")
    assert list(opened(make_store(sqlite_url)).senders) == [SenderCut("alerts", "newer:S01", 4, 0)]


# --- whole ---


@event
class Order:
    number: int


class Forward(Monitor, persistent=True):
    @on(Order)
    def order(self, order: Order) -> None:
        self.send(order, to="out")


def adopted(place: Path) -> None:
    assert execute(["db", "adopt", str(place / "desk.yaml")]) == 2
    with pytest.raises(RecoveryRefused, match="E4311"):
        life(place)
    assert execute(["db", "adopt", str(place / "desk.yaml"), "--yes"]) == 0


def without_witness(place: Path) -> None:
    (place / "store.db.witness").unlink()


def life(place: Path, *numbers: int) -> None:
    with (place / "in.jsonl").open("a") as lines:
        lines.writelines(json.dumps({"number": number}) + "\n" for number in numbers)
    with Engine.from_yaml(place / "desk.yaml") as engine:
        engine.run_until_ended()


@pytest.mark.parametrize(
    ("choice", "arrived"),
    [(adopted, [1, 2, 3, 4, 5, 6, 7]), (without_witness, [1, 2, 3, 4, 7])],
    ids=["adopted", "the witness removed"],
)
def test_what_an_adopted_copy_sends_is_no_repeat(
    choice: Callable[[Path], None], arrived: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """3 and 4 were sent after the copy was made. Without new source ids, the broker takes 5 and 6 for 3 and 4."""
    tmp_path.chmod(0o700)
    (tmp_path / "desk.yaml").write_text(
        f"""
version: 1
name: desk
store: sqlite:///{tmp_path}/store.db
connections:
  files: {{type: file, path: "{tmp_path}"}}
  local: {{type: embedded, store: "sqlite:///{tmp_path}/broker.db"}}
receivers:
  - {{id: in, connection: files, destination: "queue:in.jsonl", reliability: EXACTLY_ONCE, event: "{__name__}:Order"}}
senders:
  - {{id: out, connection: local, destination: "queue:out", reliability: EXACTLY_ONCE}}
monitors:
  - {{type: "{__name__}:Forward"}}
"""
    )
    life(tmp_path, 1, 2)
    shutil.copy(tmp_path / "store.db", tmp_path / "copy.db")
    life(tmp_path, 3, 4)
    shutil.copy(tmp_path / "copy.db", tmp_path / "store.db")
    choice(tmp_path)
    life(tmp_path, 5, 6, 7)
    capsys.readouterr()
    assert execute(["browse", str(tmp_path / "desk.yaml"), "local", "queue:out", "--json"]) == 0
    assert [json.loads(row["body"])["number"] for row in json.loads(capsys.readouterr().out)] == arrived
