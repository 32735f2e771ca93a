"""A real RabbitMQ server for tests: an ordinary process on loopback, its data in a directory of its own.

A server that does not start is an error, never a skip. Its port mapper is a process of its own, too: two servers, of
two test runs, know nothing of each other.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika

from connectors.rabbitmq import RabbitConnection
from connectors.rabbitmq_stream import StreamConnection
from correlator.settings import ConnectionSettings
from tests.servers import START_TIMEOUT_S, ProcessServer, free_port, install_packages

_PACKAGE = "rabbitmq-server"
_BINARIES = Path("/usr/lib/rabbitmq/bin")
_CONFIG = """
listeners.tcp.1 = 127.0.0.1:{port}
listeners.ssl.1 = 127.0.0.1:{tls_port}
stream.listeners.tcp.1 = 127.0.0.1:{stream_port}
stream.listeners.ssl.1 = 127.0.0.1:{stream_tls_port}
stream.advertised_host = 127.0.0.1
stream.advertised_port = {stream_port}
stream.advertised_tls_port = {stream_tls_port}
ssl_options.cacertfile = {directory}/ca.pem
ssl_options.certfile = {directory}/server.pem
ssl_options.keyfile = {directory}/server.key
ssl_options.verify = verify_none
default_user = {user}
default_pass = {password}
default_permissions.configure = .*
default_permissions.read = .*
default_permissions.write = .*
disk_free_limit.absolute = 10MB
log.console = false
"""
_ADVANCED = """
[{{rabbit, [{{channel_tick_interval, 200}}, {{collect_statistics_interval, 200}}]}},
 {{rabbitmq_management, [{{tcp_config, [{{ip, "127.0.0.1"}}, {{port, {management_port}}}]}}]}}].
"""
"""A consumer that holds messages too long is found in time; the management API, while its plugin is on, is here alone."""


class RabbitServer(ProcessServer):
    """A RabbitMQ server of its own; `start` may be called again after `stop` and `kill`, on the same data and ports."""

    user = "correlator"

    def __init__(self) -> None:
        install_rabbitmq()
        self.password = secrets.token_hex(8)
        self.port, self.tls_port, self._mapper_port = free_port(), free_port(), free_port()
        self.stream_port, self.stream_tls_port, self.management_port = free_port(), free_port(), free_port()
        super().__init__("RabbitMQ")
        self._mapper: subprocess.Popen[bytes] | None = None
        self._queues = 0
        self._write_files()

    @property
    def options(self) -> dict[str, object]:
        """The options of a connection to it."""
        return {"host": "127.0.0.1", "port": self.port, "user": self.user, "password": self.password}

    def start(self) -> None:
        """Start and wait until it speaks AMQP."""
        if self._mapper is None:
            command = ["epmd", "-address", "127.0.0.1", "-port", str(self._mapper_port)]
            self._mapper = subprocess.Popen(command, env=self._environment())
        program = [_BINARIES / "rabbitmq-server"]
        self._begin(program, env=self._environment(), cwd=self.directory, start_new_session=True)
        self._wait_until(self._speaks)

    def write_definitions(self) -> None:
        """It has written all queues it knows to its disk: it confirms a declaration up to half a second before."""
        self.evaluate("begin [ok = dets:sync(Table) || Table <- dets:all()], ok = mnesia:sync_log() end")

    @contextlib.contextmanager
    def out_of_memory(self) -> Iterator[None]:
        """Its memory alarm is on: it reads nothing more from those who publish."""
        self.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.0000001)")
        try:
            yield
        finally:
            self.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0.4)")

    @contextlib.contextmanager
    def setting(self, name: str, value: int, usual: int) -> Iterator[None]:
        """The server runs with another value of one of its settings within the block."""
        self.evaluate(f"application:set_env(rabbit, {name}, {value})")
        try:
            yield
        finally:
            self.evaluate(f"application:set_env(rabbit, {name}, {usual})")

    def queues(self) -> dict[str, int]:
        """Its queues, and how many messages each has."""
        shown = 'rabbit_amqqueue:info_all(<<"/">>, [name, messages])'
        return dict(self.evaluate(f"[[Name, Count] || [{{_, {{resource, _, queue, Name}}}}, {{_, Count}}] <- {shown}]"))

    def add_user(self, name: str, password: str, configure: str, write: str, read: str) -> None:
        """Add a user who may configure, write and read what has a name of these patterns."""
        self.evaluate(f'rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"{password}">>, <<"test">>)')
        self.permit(name, configure, write, read)

    def permit(self, user: str, configure: str, write: str, read: str) -> None:
        """Let a user configure, write and read what has a name of these patterns."""
        patterns = f'<<"{configure}">>, <<"{write}">>, <<"{read}">>'
        self.evaluate(f'rabbit_auth_backend_internal:set_permissions(<<"{user}">>, <<"/">>, {patterns}, <<"test">>)')

    def delete_user(self, name: str) -> None:
        """Remove a user."""
        self.evaluate(f'rabbit_auth_backend_internal:delete_user(<<"{name}">>, <<"test">>)')

    def evaluate(self, expression: str) -> Any:
        """Let it evaluate an expression of Erlang; returns the value, converted to JSON and back.

        It takes a millisecond of processor time. `rabbitmqctl` takes more than half a second, in which it starts.
        """
        command = ["erl_call", "-address", f"127.0.0.1:{self._distribution_port}", "-R", "-fetch_stdout", "-e"]
        told = subprocess.run(
            command,
            input=f'io:format("~ts", [rabbit_json:encode({expression})]).\n',
            env=self._environment(),
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        value, succeeded, more = told.rpartition("{ok, ok}")
        if not succeeded or more:
            raise RuntimeError(f"RabbitMQ does not evaluate {expression}: {told}")
        return json.loads(value)

    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl`; returns what it prints."""
        return self._run("rabbitmqctl", *arguments)

    @contextlib.contextmanager
    def plugin(self, name: str) -> Iterator[None]:
        """It runs with one more plugin within the block."""
        self.control("await_startup")
        self._run("rabbitmq-plugins", "enable", name)
        try:
            yield
        finally:
            self._run("rabbitmq-plugins", "disable", name)

    def streams(self, *arguments: str) -> str:
        """Run `rabbitmq-streams`; returns what it prints."""
        return self._run("rabbitmq-streams", *arguments)

    def close_connections(self) -> None:
        """Let it close every connection, as an operator does."""
        every = 'rabbit_connection_tracking:list(<<"/">>)'
        self.evaluate(f'rabbit_connection_tracking_handler:close_connections({every}, <<"closed by the test">>, 0)')

    def connection(self, **options: object) -> RabbitConnection:
        """A connection of the connector to it."""
        return RabbitConnection("rabbit", ConnectionSettings(type="rabbitmq", options={**self.options, **options}))

    def stream_connection(self, **options: object) -> StreamConnection:
        """A connection of the connector for streams to it."""
        options = {**self.options, "port": self.stream_port, **options}
        return StreamConnection("rabbit", ConnectionSettings(type="rabbitmq_stream", options=options))

    def queue(self) -> str:
        """A name that no queue of it has had."""
        self._queues += 1
        return f"test {self._queues}"

    @contextlib.contextmanager
    def channel(self) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
        """A channel of a plain client, for what tests do beside the connector."""
        credentials = pika.PlainCredentials(self.user, self.password)
        parameters = pika.ConnectionParameters("127.0.0.1", self.port, credentials=credentials, heartbeat=0)
        with pika.BlockingConnection(parameters) as connection:
            yield connection.channel()

    def close(self) -> None:
        """Kill the server and its port mapper, and remove its directory."""
        self.kill()
        if self._mapper is not None:
            self._mapper.terminate()
            self._mapper.wait(START_TIMEOUT_S)
        super().close()

    def _run(self, command: str, *arguments: str) -> str:
        line = [str(_BINARIES / command), "--quiet", *arguments]
        return subprocess.run(line, env=self._environment(), check=True, capture_output=True, text=True).stdout

    def _environment(self) -> dict[str, str]:
        here = self.directory
        local = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(here),
            "RUNNING_UNDER_SYSTEMD": "true",  # the launcher becomes the server, instead of waiting for it as a child
            "RABBITMQ_NODENAME": "test@localhost",
            "RABBITMQ_CONF_ENV_FILE": str(here / "empty"),
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(here / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(here / "data"),
            "RABBITMQ_LOG_BASE": str(here / "log"),
            "RABBITMQ_LOGS": str(here / "log" / "rabbit.log"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(here / "generated"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-start_epmd false {local}",
            "RABBITMQ_CTL_ERL_ARGS": local,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._mapper_port),
        }

    def _write_files(self) -> None:
        here = self.directory
        self._distribution_port = free_port()
        (here / "empty").touch()
        (here / "plugins").write_text("[rabbitmq_stream].")
        (here / "advanced.config").write_text(_ADVANCED.format_map(vars(self)))
        (here / "rabbitmq.conf").write_text(_CONFIG.format_map({**vars(self), "user": self.user}))
        make_certificates(here)

    def _speaks(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                probe.sendall(b"AMQP\x00\x00\x09\x01")
                return probe.recv(1) == b"\x01"
        except OSError:
            return False


def make_certificates(directory: Path) -> None:
    """An authority (`ca.pem`), a server (`server.*`), one whose time is over, and one of another name."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority", "-days", "2")
    own_names = "DNS:localhost, IP:127.0.0.1"
    for name, days, names in (("server", "2", own_names), ("expired", "-1", own_names), ("another", "2", "DNS:other")):
        (directory / "names").write_text(f"subjectAltName = {names}\n")
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=test")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", days)
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)


def install_rabbitmq() -> None:
    """Install the Debian package when it is absent, without starting anything."""
    if (_BINARIES / "rabbitmq-server").exists():
        return
    install_packages(_PACKAGE)
