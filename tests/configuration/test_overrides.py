"""`--set KEY.PATH=VALUE` in place of what the file says (rule A9.18)."""

import pytest

from correlator.configuration import InvalidConfiguration, read_file
from correlator.pipeline.spec import PipelineFile

FILE = """
name: trades
store: sqlite:///trades.db
connections:
  broker: {type: embedded}
receivers:
  - {id: in, connection: broker, destination: queue:in}
senders:
  - {id: out, connection: broker, destination: queue:out}
"""


@pytest.fixture
def read(tmp_path):
    """The file, read with overrides."""
    file = tmp_path / "engine.yaml"
    file.write_text(FILE)
    file.chmod(0o600)
    return lambda *overrides, **more: read_file(file, PipelineFile, overrides=overrides, **more)


@pytest.mark.parametrize(
    ("assignment", "look", "expected"),
    [
        ("name=other", lambda s: s.name, "other"),
        ('name="017"', lambda s: s.name, "017"),
        ("name='a=b'", lambda s: s.name, "a=b"),
        ("checkpoint.interval=1s", lambda s: s.checkpoint.interval, 1.0),
        ("max_queued=7", lambda s: s.max_queued, 7),
        ("fail_fast=true", lambda s: s.fail_fast, True),
        ("receivers[0].destination=queue:other", lambda s: s.receivers[0].destination, "queue:other"),
        ("receivers.in.destination=queue:other", lambda s: s.receivers[0].destination, "queue:other"),
        ("senders.out.max_tries=7", lambda s: s.senders[0].max_tries, 7),
        ("destinations.orders=queue:o", lambda s: s.destinations, {"orders": "queue:o"}),
        (
            "connections.broker.store=sqlite:///b.db",
            lambda s: s.connections["broker"].options["store"],
            "sqlite:///b.db",
        ),
        ("store=null", lambda s: s.store, None),
    ],
)
def test_a9_18_the_command_line_wins(assignment, look, expected, read):
    assert look(read(assignment).settings) == expected


def test_a9_18_the_later_one_wins(read):
    assert read("max_queued=7", "max_queued=8").settings.max_queued == 8


def test_what_is_overridden_is_known_with_both_values(read):
    found = read("max_queued=7", "receivers.in.destination=queue:other", "max_queued=8", "destinations.o=queue:o")
    assert [tuple(one) for one in found.overridden] == [
        ("max_queued", None, "7"),
        ("receivers[0].destination", "queue:in", "queue:other"),
        ("max_queued", "7", "8"),
        ("destinations.o", None, "queue:o"),
    ]


def test_a_name_that_no_item_has(read):
    with pytest.raises(
        InvalidConfiguration, match=r"E2030 --set receivers.out.id: there is no item 'out'; there are in\."
    ):
        read("receivers.out.id=x")


def test_a9_18_all_else_stays(read):
    changed, plain = read("checkpoint.interval=1s").settings, read().settings
    assert (changed.receivers, changed.senders, changed.store) == (plain.receivers, plain.senders, plain.store)


def test_a9_18_variables_and_secrets_as_in_the_file(read):
    loaded = read("connections.broker.password=${PW}", environment={"PW": "geheim99"})
    assert loaded.settings.connections["broker"].options["password"] == "geheim99"
    assert loaded.secrets.redact("geheim99") == "***"


def test_a9_18_a_plain_secret_of_the_command_line_is_none_of_the_file(read):
    loaded = read("connections.broker.password=geheim99")
    assert loaded.warnings == ()
    assert loaded.secrets.redact("geheim99") == "***"


@pytest.mark.parametrize(
    ("assignment", "code", "text"),
    [
        ("checkpoint.intervall=1s", "E1020", "--set checkpoint.intervall: unknown key. Did you mean 'interval'?"),
        ("checkpoint.interval=5", "E1025", "--set checkpoint.interval"),
        ("name=017", "E1024", "--set name"),
        ("receivers[0].reliability=MAYBE", "E1203", "--set receivers[0].reliability"),
        ("receivers[1].id=x", "E2030", "--set receivers[1].id: there is no item [1]"),
        ("connections[0]=x", "E2030", "there is no item [0]"),
        ("name.first=x", "E2030", "no mapping that could hold 'first'"),
        ("name", "E2030", "'name' is no setting"),
        ("=x", "E2030", "is no setting"),
        ("a..b=x", "E2030", "is no setting"),
        ("a[x]=1", "E2030", "is no setting"),
        ("[0]=1", "E2030", "is no setting"),
    ],
)
def test_a9_18_what_cannot_be_set(assignment, code, text, read):
    with pytest.raises(InvalidConfiguration) as refused:
        read(assignment)
    assert refused.value.code == code
    assert text in str(refused.value)
