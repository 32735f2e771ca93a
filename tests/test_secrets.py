"""No secret of a configuration is in any output or file of an engine, whatever connector it is of (row O22).

The tests know no connector: each tells its options in the error of an unknown one, and an option is secret by its name,
or because its value is a URL with a password. A connector with an option that it requires may need a value in `FITTING`.
"""

import contextlib
import dataclasses
import json
import re
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from correlator import Engine, Reliability, replay, rerun
from correlator.configuration.connectors import connector
from correlator.connector import Browsable, Connection, Examinable, ListsQueues
from correlator.errors import ConfigError, CorrelatorError, StoreError
from correlator.events import PartStatus
from correlator.runtime import logs
from correlator.secrets import is_secret_name, without_secrets
from correlator.settings import (
    BridgeSettings,
    ConnectionSettings,
    EngineSettings,
    HttpSettings,
    ReceiverSettings,
    SenderSettings,
)
from correlator.storage.database import location
from tests.cli.commands import run
from tests.runtime.serving import Client
from tests.servers import free_port
from tests.waiting import wait_until

CONNECTORS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["entry-points"][
    "correlator.connectors"
]
SENTINEL = "S3ntine1" * 4
"""Long enough for a token, and the base64 of enough bytes for the secret of a webhook."""
FORMS = (SENTINEL, f"token:{SENTINEL}", f"whsec_{SENTINEL}", f"{SENTINEL}\n{SENTINEL}")
"""What the value of a secret option may look like; a connector takes at least one."""
URLS = (
    *(f"{scheme}://me:{SENTINEL}@127.0.0.1:1/x" for scheme in ("postgresql", "http", "amqp", "pulsar")),
    f"postgresql://me@127.0.0.1:1/x?connect_timeout=1&sslpassword={SENTINEL}",
)
"""Values of an option for an address. Also one that takes no password must not tell it."""
ADDRESS = re.compile(r"^host$|(^|_)(address|database|endpoint|servers?|store|ur[il])$")
NESTED = ("password", "sasl.password", "ssl.key.password")
DESTINATIONS = ("queue:name", "queue:name.jsonl", "topic:name")
ONCE = Reliability.EXACTLY_ONCE


class Use(NamedTuple):
    """Settings with a secret that a connector accepts: of a connection, and perhaps of a receiver or sender of it."""

    type: str
    options: Mapping[str, Any]
    receiver: Mapping[str, Any] | None = None
    sender: Mapping[str, Any] | None = None
    place: str = ""


def fitting(directory: Path) -> dict[str, Any]:
    """Values for options that a connector may require; nobody listens at the addresses."""
    port = free_port()
    return {
        "bootstrap_servers": f"127.0.0.1:{port}",
        "database": f"sqlite:///{directory}/none.db",
        "format": "delta",
        "host": "127.0.0.1",
        "path": str(directory / "files"),
        "port": port,
        "schema_registry": f"http://127.0.0.1:{port}",
        "schema_registry_user": "me",
        "service_url": f"pulsar://127.0.0.1:{port}",
        "state": str(directory / "state"),
        "store": f"sqlite:///{directory}/broker.db",
        "timeout_s": 1,
        "url": f"http://127.0.0.1:{port}",
        "web_service_url": f"http://127.0.0.1:{port}",
    }


def known_options(make: Callable[[Mapping[str, Any]], object]) -> list[str]:
    """The options that a connection, receiver or sender may have: it refuses another one, and names them."""
    try:
        make({"no_such_option": 1})
    except ConfigError as error:
        if error.code != "E1020":  # as one that has no receivers
            return []
        return error.allowed.removeprefix("Known: ").split(", ") if error.allowed.startswith("Known: ") else []
    raise AssertionError("it ignores an option that it does not know")


def made(use: Use) -> Connection:
    return connector(use.type, "connections.c")("c", ConnectionSettings(type=use.type, options=use.options))


def source_of(connection: Connection, options: Mapping[str, Any], destination: str, mode: Reliability = ONCE) -> Any:
    return connection.source(
        ReceiverSettings(id="r", connection="c", destination=destination, reliability=mode, options=options)
    )


def sink_of(connection: Connection, options: Mapping[str, Any], destination: str, mode: Reliability = ONCE) -> Any:
    return connection.sink(
        SenderSettings(id="s", connection="c", destination=destination, reliability=mode, options=options)
    )


def values_with_a_secret(option: str, directory: Path) -> Iterator[Any]:
    """Values of an option that would hold the sentinel as a secret."""
    if is_secret_name(option):
        yield from (*FORMS, [SENTINEL], {"of": SENTINEL})
    elif is_secret_name(option.removesuffix("_file")):
        for name, content in (
            ("text", SENTINEL.encode()),
            ("lines", f"{SENTINEL}\n{SENTINEL}".encode()),
            ("bytes", b"\xff" + SENTINEL.encode()),
        ):
            (directory / name).write_bytes(content)
            yield str(directory / name)
    else:
        yield from URLS if ADDRESS.search(option) else ()
        yield from ({name: SENTINEL} for name in NESTED)


def chain(error: BaseException) -> Iterator[str]:
    """All texts of an error and of the errors behind it."""
    yield "".join(traceback.format_exception(error))
    one: BaseException | None = error
    while one is not None:
        yield str(one)
        yield repr(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def assert_silent(*texts: object) -> None:
    for text in texts:
        shown = text if isinstance(text, str) else repr(text)
        assert SENTINEL.lower() not in shown.lower(), f"a secret is told: {shown}"


@contextlib.contextmanager
def silent_refusals(*kinds: type[BaseException]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        assert_silent(*chain(error))


def uses_of(type_: str, directory: Path) -> Iterator[Use]:
    """All settings with a secret that a connector accepts. What it refuses must be refused without the secret."""
    options = known_options(lambda given: made(Use(type_, given)))
    values = fitting(directory)
    base = {name: values[name] for name in options if name in values}
    if "endpoint" in options:  # only a place of that kind has secrets
        endpoint = {"path": "s3://bucket", "endpoint": values["url"], "access_key": "me", "secret_key": "of-me"}
        base = {**base, **endpoint}
    for option in options:
        for value in values_with_a_secret(option, directory):
            use = Use(type_, {**base, option: value}, place=option)
            with silent_refusals(ConfigError):
                made(use).close()
                yield use
    with contextlib.closing(made(Use(type_, base))) as connection:
        for role, make in (("receiver", source_of), ("sender", sink_of)):
            for option in known_options(lambda given, make=make: make(connection, given, DESTINATIONS[0])):
                for value in values_with_a_secret(option, directory):
                    with silent_refusals(ConfigError):
                        make(connection, {option: value}, DESTINATIONS[0])
                        yield Use(type_, base, place=f"{role} {option}", **{role: {option: value}})


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Use]]:
    return {name: list(uses_of(name, tmp_path_factory.mktemp(name))) for name in CONNECTORS}


def test_every_secret_option_of_every_connector_is_covered(uses, tmp_path):
    """What is named like a secret has a value that the connector accepts; otherwise the tests below look at nothing."""
    covered = {(name, use.place) for name, found in uses.items() for use in found}
    for name in CONNECTORS:
        options = known_options(lambda given, name=name: made(Use(name, given)))
        assert {(name, one) for one in options if is_secret_name(one)} <= covered
    assert {place.split()[0] for _, place in covered if " " in place} == {"receiver", "sender"}


def exercise(use: Use) -> None:
    """Let a connector fail in each way that needs no broker. Nothing removes secrets from its texts here."""
    connection = made(use)
    assert_silent(connection, *filter(dataclasses.is_dataclass, vars(connection).values()))
    with contextlib.closing(connection):
        for make, options in ((source_of, use.receiver or {}), (sink_of, use.sender or {})):
            for destination in DESTINATIONS:
                with silent_refusals(CorrelatorError):
                    one = make(connection, options, destination)
                    assert_silent(one, *(repr(getattr(one, name)) for name in dir(one) if name.endswith("settings")))
                    with contextlib.closing(one):
                        one.connect()
                    break
        if isinstance(connection, Browsable):
            with silent_refusals(CorrelatorError):
                connection.browse("queue:name", 1)
        if isinstance(connection, ListsQueues):
            with silent_refusals(CorrelatorError):
                connection.queues()
        if isinstance(connection, Examinable):
            receivers = [ReceiverSettings(id="r", connection="c", destination="queue:name")]
            senders = [SenderSettings(id="s", connection="c", destination="queue:name")]
            with silent_refusals(CorrelatorError):
                for finding in connection.examine(receivers, senders):
                    assert_silent(*chain(finding))


@pytest.mark.parametrize("name", CONNECTORS)
def test_no_error_of_a_connector_has_a_secret(name, uses):
    for use in uses[name]:
        exercise(use)


def parts_of(every: list[Use]) -> Iterator[tuple[str, Use, list[ReceiverSettings], list[SenderSettings]]]:
    """A connection for each use, with a receiver and a sender where the connector accepts them."""
    for number, use in enumerate(every):
        name = f"c{number}"
        receivers, senders = [], []
        with contextlib.closing(made(use)) as connection:
            for destination in DESTINATIONS:
                given = {"connection": name, "destination": destination, "reliability": ONCE}
                with contextlib.suppress(ConfigError):
                    part = ReceiverSettings(id=f"r{number}", options=use.receiver or {}, **given)
                    connection.source(part)
                    receivers = receivers or [part]
                with contextlib.suppress(ConfigError):
                    sender = SenderSettings(id=f"s{number}", options=use.sender or {}, **given)
                    connection.sink(sender)
                    senders = senders or [sender]
        yield name, use, receivers, senders


def engine_settings(every: list[Use], directory: Path, **more: Any) -> EngineSettings:
    """One engine with all of them."""
    found = list(parts_of(every))
    receivers = [one for _, _, ones, _ in found for one in ones]
    senders = [one for _, _, _, ones in found for one in ones]
    return EngineSettings(
        name="secrets",
        store=f"sqlite:///{directory}/store/engine.db",
        control_directory=str(directory / "control"),
        connections={name: ConnectionSettings(type=use.type, options=use.options) for name, use, _, _ in found},
        receivers=tuple(receivers),
        senders=tuple(senders),
        bridges=(
            BridgeSettings(name="all", from_=tuple(one.id for one in receivers), to=tuple(one.id for one in senders)),
        ),
        connection_retry_interval=0.05,
        status_interval=0.1,
        stop_timeout=10.0,
        **more,
    )


@pytest.fixture
def everything(uses) -> list[Use]:
    """One use of each place: an engine cannot listen twice at an address, nor read a file twice."""
    return list({(name, use.place): use for name, found in uses.items() for use in found}.values())


def with_own_ports(every: list[Use]) -> list[Use]:
    return [
        use._replace(options={**use.options, **({"port": free_port()} if "port" in use.options else {})})
        for use in every
    ]


def test_no_output_or_file_of_an_engine_has_a_secret(everything, tmp_path, capsys):
    """Logs at their lowest level, status, metrics, events, and every file that the engine leaves. Nothing is redacted."""
    (tmp_path / "store").mkdir(0o700)
    settings = engine_settings(with_own_ports(everything), tmp_path, http=HttpSettings(port=0, token=SENTINEL))
    assert_silent(settings, *settings.connections.values(), *settings.receivers, *settings.senders)
    logs.configure(level="DEBUG")
    with Engine(settings) as engine:
        waiting = [*settings.receivers, *settings.senders]

        def tried() -> bool:
            conditions = engine.status().conditions
            return all(conditions[one.id].status is not PartStatus.CONNECTING for one in waiting)

        wait_until(tried)
        status = engine.status()
        assert_silent(status, json.dumps(status.to_dict()))
        client = Client(engine.http_address)
        bearer = {"Authorization": f"Bearer {SENTINEL}"}
        for path in (
            "/status",
            "/metrics",
            "/letters",
            "/state",
            "/control",
            "/ready",
            "/",
            "/paths?part=s0",
            "/checkpoints",
            "/settings",
        ):
            answer = client.ask(path, **bearer)
            assert_silent(answer[1], str(answer[2]))
        assert_silent(*client.ask("/status", Authorization="Bearer wrong")[1:])
    said = capsys.readouterr()
    assert "serving HTTP" in said.err
    assert_silent(said.err, said.out)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.name == "engine.db" for file in files)
    for file in files:
        assert SENTINEL.encode() not in file.read_bytes(), file


def quoted(value: Any) -> str:
    return json.dumps(value)


def test_no_command_tells_a_secret(everything, tmp_path):
    """The secrets come from the file itself, from variables and from files of secrets, by turns."""
    (tmp_path / "secret").write_text(SENTINEL + "\n")
    (tmp_path / "secret").chmod(0o600)
    written = {
        0: SENTINEL,
        1: "${A_VALUE}",
        2: f"${{file:{tmp_path}/secret}}",
    }
    settings = engine_settings(with_own_ports(everything), tmp_path)
    file = {
        "name": settings.name,
        "store": settings.store,
        "connections": {
            name: json.loads(json.dumps({"type": one.type, **one.options}).replace(SENTINEL, written[number % 3]))
            for number, (name, one) in enumerate(settings.connections.items())
        },
        "receivers": [part_in_file(one, written[number % 3]) for number, one in enumerate(settings.receivers)],
        "senders": [part_in_file(one, written[number % 3]) for number, one in enumerate(settings.senders)],
        "bridges": [{"name": "all", "from": [*settings.bridges[0].from_], "to": [*settings.bridges[0].to]}],
        "fail_fast": True,
        "stop_timeout": "100ms",
    }
    engine = tmp_path / "engine.yaml"
    engine.write_text(json.dumps(file))
    engine.chmod(0o600)
    last = next(f"connections.{name}.database" for name, one in settings.connections.items() if one.type == "sql")
    commands = (
        ("explain", "engine.yaml"),
        ("lint", "engine.yaml"),
        ("plan", "engine.yaml", "--json"),
        ("doctor", "engine.yaml"),
        ("run", "engine.yaml", "--log-level", "DEBUG", "--log-json", "--set", f"{last}=postgresql://u:{SENTINEL}@h/d"),
        ("status", "engine.yaml"),
    )
    for command in commands:
        result = run(*command, cwd=tmp_path, env={"A_VALUE": SENTINEL, "LOG_LEVEL": "DEBUG"})
        assert result.stdout + result.stderr != ""
        assert_silent(result.stdout, result.stderr)


def part_in_file(part: ReceiverSettings | SenderSettings, written: str) -> dict[str, Any]:
    options = json.loads(json.dumps(dict(part.options)).replace(SENTINEL, written))
    return {
        "id": part.id,
        "connection": part.connection,
        "destination": part.destination,
        "reliability": "EXACTLY_ONCE",
        **({"options": options} if options else {}),
    }


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SENTINEL}@127.0.0.1:{{port}}/d?connect_timeout=1",
        f"postgresql://me@127.0.0.1:{{port}}/d?connect_timeout=1&password={SENTINEL}",
        f"postgresql://127.0.0.1:{{port}}/d?connect_timeout=1&sslpassword={SENTINEL}",
    ],
)
def test_no_error_of_a_store_has_a_secret(url):
    address = url.format(port=free_port())
    assert_silent(location(address))
    with pytest.raises(StoreError) as refused:
        Engine(EngineSettings(name="secrets", store=address)).start()
    assert_silent(*chain(refused.value))


def test_a_dynamic_part_keeps_its_secrets_since_a_start_makes_it_from_the_store(tmp_path):
    """The one place in which a store holds a secret (docs/threat-model.md)."""
    options = {"port": free_port()}
    settings = EngineSettings(
        name="secrets",
        store=f"sqlite:///{tmp_path}/engine.db",
        connections={"web": ConnectionSettings(type="http", options=options)},
    )
    part = ReceiverSettings(
        id="hook", connection="web", destination="queue:hook", options={"token": SENTINEL}, unhandled="ignore"
    )
    with Engine(settings) as engine:
        engine.add_receiver(part)
    with Engine(settings) as engine:
        assert engine.add_receiver(part) is engine.receivers["hook"]
    assert any(SENTINEL.encode() in file.read_bytes() for file in tmp_path.iterdir())


def test_no_input_log_has_a_secret(everything, tmp_path):
    """Neither those of the file nor those of a dynamic part, which a life adds and the next one finds in its store."""
    settings = engine_settings(with_own_ports(everything), tmp_path, input_log=str(tmp_path / "input.log"))
    web = ConnectionSettings(type="http", options={"port": free_port()})
    settings = dataclasses.replace(settings, bridges=(), connections={**settings.connections, "web": web})
    part = ReceiverSettings(
        id="hook", connection="web", destination="queue:hook", options={"token": SENTINEL}, unhandled="ignore"
    )
    (tmp_path / "store").mkdir(0o700)
    for number in (1, 2):
        with Engine(settings) as engine:
            engine.add_receiver(part)
        log = tmp_path / f"input.log.{number}"
        assert b"hook" in log.read_bytes()
        assert SENTINEL.encode() not in log.read_bytes()
        assert replay(log, settings).in_order
        assert rerun(log).in_order


def test_values_without_secrets():
    given = {"token": SENTINEL, "url": f"x://u:{SENTINEL}@h", "deep": [{"ssl.key.pem": SENTINEL}, 1], "plain": None}
    assert without_secrets(given) == {
        "token": "***",
        "url": "x://u:***@h",
        "deep": [{"ssl.key.pem": "***"}, 1],
        "plain": None,
    }
