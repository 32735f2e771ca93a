"""A secret appears in no message, no warning and no `repr` (trap T50)."""

import pytest

from correlator.configuration import EngineFile, Secrets, read_text
from correlator.errors import ConfigError
from correlator.secrets import is_secret_name

SENTINEL = "sentinel-p4ss"
ENGINE = """
version: 1
name: n
store: %s
connections:
  c: {type: embedded, %s}
receivers:
  - {id: r, connection: c, destination: "queue:q"}
"""


@pytest.mark.parametrize(
    "options",
    [
        "password: '${PASSWORD}'",
        "user: '${DB_TOKEN}'",
        "authToken: '${X}'",
        "auth: {client_secret: 'a${X}'}",
        "url: 'amqp://u:${X}@host'",
        f"token: [{SENTINEL}]",
        f"api-key: {SENTINEL}",
    ],
)
def test_secrets_are_known(options):
    environment = dict.fromkeys(["PASSWORD", "DB_TOKEN", "X"], SENTINEL)
    loaded = read_text(ENGINE % ("sqlite:///x.db", options), EngineFile, environment=environment)
    assert SENTINEL not in loaded.secrets.redact(f"cannot connect: {SENTINEL} was refused")
    assert SENTINEL not in "".join(map(str, loaded.warnings))
    assert SENTINEL not in repr(loaded.secrets)


@pytest.mark.parametrize(
    "options",
    [
        f"password: {SENTINEL}, password: 1",
        f"bad: {SENTINEL}, password: {SENTINEL}, on: x",
        f"url: 'amqp://u:{SENTINEL}@host:99999'",
        f"url: 'amqp://u:{SENTINEL}@ho st'",
        "url: 'amqp://u:${PASSWORD}@host:x'",
        "type: '${PASSWORD}'",
    ],
)
@pytest.mark.parametrize(
    "store", ["mysql://u:${PASSWORD}@h", f"mysql://u:{SENTINEL}/x@h", "sqlite:///x?synchronous=off"]
)
def test_t50_secrets_are_in_no_error(options, store):
    with pytest.raises(ConfigError) as caught:
        read_text(ENGINE % (store, options), EngineFile, environment={"PASSWORD": SENTINEL})
    error: BaseException | None = caught.value
    while error is not None:
        assert SENTINEL not in str(error)
        assert SENTINEL not in repr(error)
        error = error.__cause__
    assert all(SENTINEL not in str(problem) for problem in caught.value.problems)


def test_a_secret_that_yaml_reads_as_a_number():
    with pytest.raises(ConfigError) as caught:
        read_text(ENGINE % ("sqlite:///x", "password: 0471147114711"), EngineFile)
    assert "4711" not in str(caught.value)
    assert "E1024" in str(caught.value)


def test_a_secret_that_is_known_only_after_it_was_quoted():
    with pytest.raises(ConfigError) as caught:
        read_text(
            f"name: [x]\nversion: {SENTINEL}\n" + "connections: {c: {type: x, password: sentinel-p4ss}}", EngineFile
        )
    assert "E1022" in str(caught.value)
    assert SENTINEL not in str(caught.value)


def test_longer_secrets_are_redacted_first():
    secrets = Secrets()
    for value in ("", "abc", "abcdef", "p%40ss"):
        secrets.add(value)
    assert secrets.redact("abcdef abc p@ss p%40ss x") == "*** *** *** *** x"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("password", True),
        ("DB_PASSWORD", True),
        ("authToken", True),
        ("api_key", True),
        ("apiKey", True),
        ("spark.hadoop.fs.s3a.secret.key", True),
        ("password_file", False),
        ("token_url", False),
        ("tokenizer", False),
        ("key", False),
    ],
)
def test_names_of_secrets(name, secret):
    assert is_secret_name(name) is secret
