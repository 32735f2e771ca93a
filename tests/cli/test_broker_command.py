"""`correlator broker`: each command with its table and its JSON, by file or by address, and what is refused."""

import json
import re
import subprocess

import pytest

from connectors.embedded import EmbeddedConnection, sending
from connectors.embedded.content import encode
from connectors.embedded.link import open_link
from connectors.embedded.sending import Terms
from connectors.embedded.storing import NewMessage
from correlator.cli import main
from correlator.connector import DEAD_MESSAGES, Work
from correlator.events import Headers, Message, Outgoing
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings
from tests.cli.commands import assert_fails, on_terminal, write

FILE = """
name: shop
connections:
  local: {type: embedded, store: "sqlite:///broker.db"}
  files: {type: file, path: data}
destinations: {orders: "queue:orders"}
"""
STATE = {
    "destination": str,
    "ready": int,
    "held": int,
    "delayed": int,
    "in_tx": int,
    "messages": int,
    "bytes": int,
    "oldest_ms": int | None,
    "consumers": int,
    "producers": int,
    "dropped": int,
    "paused": str | None,
    "created": bool,
    "properties": dict,
}
CONSUMER = {
    "destination": str,
    "subscription": str,
    "client_id": str,
    "consumer": int,
    "role": str,
    "pid": int,
    "host": str,
    "held": int,
    "oldest_ms": int | None,
}
SUBSCRIPTION = {
    "topic": str,
    "subscription": str,
    "client_id": str,
    "durable": bool,
    "shared": bool,
    "selector": str | None,
    "ready": int,
    "held": int,
    "delayed": int,
    "in_tx": int,
    "oldest_ms": int | None,
    "consumers": int,
}
TRANSACTION = {"name": str, "state": str, "age_ms": int, "acknowledged": int, "sends": int}
STYLE = re.compile(r"\x1b\[[0-9;]*m")
PLACE = {"destination": str, "subscription": str | None, "client_id": str | None}
DEAD = {
    "message_id": str,
    "reason": str | None,
    "destination": str | None,
    "subscription": str | None,
    "died_at": int | None,
    "deliveries": int | None,
    "body": str,
}


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A broker with five orders, two of them held by a consumer, one in a prepared transaction, and a dead message."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "shop.yaml", [FILE])
    store = f"sqlite:///{tmp_path}/broker.db"
    connection = EmbeddedConnection("c", ConnectionSettings(type="embedded", options={"store": store}))
    client = connection.attach("desk")
    session = client.session()
    sink = session.sink(SenderSettings(id="s", connection="c", destination="queue:orders"))
    sink.connect()
    sink.send([outgoing(n, "queue:orders") for n in range(1, 7)])
    source = session.source(ReceiverSettings(id="r", connection="c", destination="queue:orders"))
    source.connect()
    held = source.receive(3, 0.0)
    session.prepare("pay-1", Work([(source, held.tokens[:1])], [outgoing(9, "queue:paid")]))
    link = open_link(store)
    with link.transaction() as database:
        death = {"correlator_dmq_undelivered_reason": "EXPIRED", "correlator_dmq_destination": "queue:late"}
        dead = encode(Message(b"dead", death, None, None, Headers()))
        sending.store(database, DEAD_MESSAGES, [NewMessage("", 0, "ID:dead", dead)], Terms(link, set()))
    link.close()
    yield tmp_path
    source.close()
    session.close()
    client.close()


def outgoing(number, destination):
    return Outgoing(number, "", destination, Message(b"order %d" % number, {"n": number}, None, None, Headers()))


@pytest.fixture
def broker(capsys):
    """Runs a command; returns what it prints."""

    def run(*words, status=0):
        found = main.execute(["broker", *words])
        out, err = capsys.readouterr()
        assert (found, err) == (status, ""), err
        return out

    return run


def has_schema(value, schema):
    """Whether an object has exactly these keys, and values of these types."""
    return list(value) == list(schema) and all(isinstance(value[name], kind) for name, kind in schema.items())


@pytest.mark.parametrize("by", [("shop.yaml", "local"), ("--store", "sqlite:///broker.db")], ids=["file", "store"])
def test_list_and_show_count_truly(shop, broker, by):
    found = json.loads(broker("list", *by, "--json"))
    assert all(has_schema(one, STATE) for one in found)
    orders = {one["destination"]: one for one in found}["queue:orders"]
    assert [orders[name] for name in ("ready", "held", "in_tx", "delayed", "messages")] == [3, 2, 1, 0, 6]
    assert json.loads(broker("show", *by, "queue:orders", "--json"))["consumers"] == 1
    shown = broker("show", *by, "queue:orders")
    assert "ready: 3\n" in shown
    assert "use_dmq: true\n" in shown
    table = broker("list", *by).splitlines()
    assert table[0].split("\t") == [
        "destination",
        "ready",
        "held",
        "delayed",
        "in_tx",
        "bytes",
        "oldest_ms",
        "consumers",
        "paused",
    ]
    assert any(line.startswith("queue:orders\t3\t2\t0\t1\t") for line in table)


def test_a_logical_destination_of_the_file_stands_for_its_queue(shop, broker):
    assert json.loads(broker("show", "shop.yaml", "local", "orders", "--json"))["destination"] == "queue:orders"


def test_consumers_and_subscriptions(shop, broker):
    (one,) = json.loads(broker("consumers", "shop.yaml", "local", "--json"))
    assert has_schema(one, CONSUMER)
    assert (one["role"], one["held"]) == ("active", 2)
    assert broker("consumers", "shop.yaml", "local", "queue:orders").count("\tactive\t") == 1
    broker("create", "shop.yaml", "local", "topic:news", "--subscription", "mail", "--client-id", "desk", "--unshared")
    broker("create", "shop.yaml", "local", "topic:news", "--subscription", "all", "--selector", "n > 1")
    found = json.loads(broker("subscriptions", "shop.yaml", "local", "--json"))
    assert all(has_schema(one, SUBSCRIPTION) for one in found)
    assert [(one["subscription"], one["shared"], one["selector"]) for one in found] == [
        ("all", True, "n > 1"),
        ("mail", False, None),
    ]
    assert "mail\tdesk\tunshared durable\t0" in broker("subscriptions", "shop.yaml", "local", "topic:news")


def test_create_update_delete(shop, broker):
    made = json.loads(broker("create", "shop.yaml", "local", "queue:new", "max_num_msgs=5", "--json"))
    assert has_schema(made, STATE)
    assert made["properties"]["max_num_msgs"] == 5
    changed = json.loads(broker("update", "shop.yaml", "local", "queue:new", "max_num_msgs=default", "--json"))
    assert changed["properties"]["max_num_msgs"] == -1
    gone = json.loads(broker("delete", "shop.yaml", "local", "queue:new", "--json"))
    assert has_schema(gone, {**PLACE, "messages": int})
    assert "queue:new" not in broker("list", "shop.yaml", "local")


def test_delete_needs_force_for_messages(shop, broker, capsys):
    broker("dmq", "retry", "shop.yaml", "local")
    assert main.execute(["broker", "delete", "shop.yaml", "local", "queue:late"]) == 2
    assert "E7565 queue:late: 1 messages would be lost. If you mean it: --force." in capsys.readouterr().err
    assert broker("delete", "shop.yaml", "local", "queue:late", "--force") == "deleted, with 1 messages\n"


def test_purge_says_what_it_left(shop, broker):
    found = json.loads(broker("purge", "shop.yaml", "local", "queue:orders", "--json"))
    assert has_schema(found, {**PLACE, "purged": int, "left": int})
    assert (found["purged"], found["left"]) == (3, 3)
    assert broker("purge", "shop.yaml", "local", "queue:orders") == (
        "0 purged, 3 left that consumers or transactions hold\n"
    )


def test_pause_and_resume(shop, broker):
    def paused():
        return json.loads(broker("show", "shop.yaml", "local", "orders", "--json"))["paused"]

    assert json.loads(broker("pause", "shop.yaml", "local", "orders", "--json")) == {
        "destination": "queue:orders",
        "paused": "ALL",
    }
    assert paused() == "ALL"
    assert broker("pause", "shop.yaml", "local", "orders", "PRODUCERS") == "paused: PRODUCERS\n"
    assert paused() == "PRODUCERS"
    assert broker("resume", "shop.yaml", "local", "orders") == "paused: nobody\n"
    assert paused() is None


def test_browse_shows_what_the_command_of_that_name_shows(shop, broker, capsys):
    shown = broker("browse", "shop.yaml", "local", "orders", "--json")
    assert main.execute(["browse", "shop.yaml", "local", "orders", "--json"]) == 0
    assert capsys.readouterr().out == shown
    assert (
        len(json.loads(broker("browse", "--store", "sqlite:///broker.db", "queue:orders", "--limit", "2", "--json")))
        == 2
    )


def test_move(shop, broker):
    broker("create", "shop.yaml", "local", "queue:kept")
    words = ["move", "shop.yaml", "local", "orders", "queue:kept"]
    found = json.loads(broker(*words, "--selector", "n <> 5", "--limit", "1", "--json"))
    assert found == {"source": "queue:orders", "target": "queue:kept", "moved": 1, "left": 3, "skipped": 0}
    assert broker(*words, "--selector", "n <> 5") == (
        "1 moved, 3 left that consumers or transactions hold, 1 skipped\n"
    )


def test_dead_messages(shop, broker):
    (one,) = json.loads(broker("dmq", "list", "shop.yaml", "local", "--json"))
    assert has_schema(one, DEAD)
    assert (one["message_id"], one["reason"], one["destination"]) == ("ID:dead", "EXPIRED", "queue:late")
    assert "EXPIRED\tqueue:late\t" in broker("dmq", "list", "shop.yaml", "local")
    assert json.loads(broker("dmq", "retry", "shop.yaml", "local", "--json")) == {"moved": 1, "left": 0, "skipped": 0}
    assert "ID:dead" in broker("browse", "shop.yaml", "local", "queue:late")
    assert json.loads(broker("dmq", "purge", "shop.yaml", "local", "--json"))["purged"] == 0


@pytest.mark.parametrize(("command", "state", "paid"), [("commit", "COMMITTED", 1), ("rollback", "ROLLEDBACK", 0)])
def test_transactions(shop, broker, command, state, paid):
    (one,) = json.loads(broker("tx", "list", "shop.yaml", "local", "--json"))
    assert has_schema(one, TRANSACTION)
    assert (one["name"], one["state"], one["acknowledged"], one["sends"]) == ("pay-1", "PREPARED", 1, 1)
    assert json.loads(broker("tx", command, "shop.yaml", "local", "pay-1", "--json")) == {
        "name": "pay-1",
        "state": state,
    }
    assert broker("tx", command, "--store", "sqlite:///broker.db", "pay-1") == f"{state}\n"
    assert f"pay-1\t{state}\t" in broker("tx", "list", "shop.yaml", "local")
    assert broker("list", "shop.yaml", "local").count("queue:paid\t1") == paid


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["list"], "E2005", "missing FILE"),
        (["list", "shop.yaml"], "E2005", "missing CONNECTION"),
        (["show", "shop.yaml", "local"], "E2005", "missing DESTINATION"),
        (["show", "--store", "sqlite:///broker.db"], "E2005", "missing DESTINATION"),
        (["list", "shop.yaml", "local", "more"], "E2007", "'more'"),
        (["consumers", "--store", "sqlite:///broker.db", "queue:orders", "more"], "E2007", "'more'"),
        (["update", "shop.yaml", "local", "orders"], "E2005", "missing NAME=VALUE"),
        (["update", "shop.yaml", "local", "orders", "max_num_msgs"], "E2007", "NAME=VALUE"),
        (["update", "shop.yaml", "local", "orders", "use_dmq=true", "use_dmq=false"], "E2006", "twice"),
        (["update", "shop.yaml", "local", "orders", "max_num_msg=1"], "E7523", "max_num_msgs"),
        (["create", "shop.yaml", "local", "queue:x", "max_num_msgs=0"], "E7523", "'0'"),
        (["create", "shop.yaml", "local", "queue:mq.x"], "E7562", "mq."),
        (["create", "shop.yaml", "local", "orders"], "E7524", "already"),
        (["show", "shop.yaml", "local", "queue:order"], "E7564", "queue:orders"),
        (["delete", "shop.yaml", "local", DEAD_MESSAGES, "--force"], "E7566", "always there"),
        (["create", "shop.yaml", "local", "orders", "--subscription", "s"], "E7567", "no subscriptions"),
        (["create", "shop.yaml", "local", "topic:t", "max_num_msgs=1", "--subscription", "s"], "E2007", "properties"),
        (["list", "shop.yaml", "files"], "E7568", "'file'"),
        (["list", "shop.yaml", "lokal"], "E2012", "local"),
        (["move", "shop.yaml", "local", "orders", "queue:orders"], "E7569", "itself"),
        (["move", "shop.yaml", "local", "orders", DEAD_MESSAGES], "E7566", "only the broker"),
        (["move", "shop.yaml", "local", "orders", "queue:paid"], "E7564", "no such"),
        (["move", "shop.yaml", "local", DEAD_MESSAGES, "orders", "--selector", "n >"], "E6003", "^"),
        (["pause", "shop.yaml", "local", "orders", "producers"], "E2007", "PRODUCERS"),
        (["delete", "shop.yaml", "local", "orders", "--force"], "E7513", "consumes"),
        (["tx", "commit", "shop.yaml", "local", "none"], "E7520", "no prepared"),
        (["browse", "shop.yaml", "local", "queue:order"], "E2027", "queue:orders"),
        (["list", "--store", "mysql://u:geheim@h/d"], "E1214", ""),
    ],
)
def test_mistakes_get_their_codes(shop, capsys, words, code, said):
    before = listed(capsys)
    status = main.execute(["broker", *words])
    out, err = capsys.readouterr()
    assert_fails(subprocess.CompletedProcess(words, status, out, err), code, 2, said)
    assert "geheim" not in err
    assert listed(capsys) == before


def listed(capsys):
    """All that `list` shows, but ages."""
    assert main.execute(["broker", "list", "shop.yaml", "local", "--json"]) == 0
    return [{**one, "oldest_ms": None} for one in json.loads(capsys.readouterr().out)]


def test_a_broker_that_is_not_there_is_not_made_by_a_look(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.execute(["broker", "list", "--store", "sqlite:///none.db"]) == 4
    assert capsys.readouterr().err.startswith("E7003 ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["list", "consumers", "subscriptions", "tx list", "dmq list"])
def test_tables_fit_into_a_hundred_columns(shop, broker, command):
    broker("create", "shop.yaml", "local", "topic:news", "--subscription", "mail", "--client-id", "desk", "--unshared")
    shown = on_terminal("broker", *command.split(), "shop.yaml", "local", cwd=shop, env={"COLUMNS": "100"})
    lines = STYLE.sub("", shown).replace("\r", "").splitlines()
    assert max(map(len, lines)) <= 100
    wide = on_terminal("broker", *command.split(), "shop.yaml", "local", cwd=shop, env={"COLUMNS": "300"})
    assert len(lines) == len(wide.splitlines())
