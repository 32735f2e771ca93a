"""Private names of client libraries that our code relies on: a version that changes one of them fails here.

Only then the upper bound of the library in `pyproject.toml` may be raised. `PRIVATE` lists the names, each with a check
of the form that is relied on; what the whole does with them the tests of the connectors and of pipelines show.
"""

import ast
import asyncio
import importlib
import inspect
import re
import socket
import tomllib
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pika
import pulsar
import pymysql
import pytest
from pika.adapters.select_connection import IOLoop
from pika.adapters.utils import io_services_utils
from pika.frame import Heartbeat
from pyspark import SparkContext, find_spark_home
from pyspark.sql import SparkSession, types
from pyspark.sql.classic.dataframe import DataFrame
from rstream.client import Client
from rstream.connection import Connection

from connectors.pulsar.schemas import _kind

ROOT = Path(__file__).parents[2]
LIBRARIES = {
    "pika": "pika",
    "pulsar": "pulsar-client",
    "rstream": "rstream",
    "pymysql": "pymysql",
    "pyspark": "pyspark",
    "py4j": "pyspark",
}
"""The modules by which our code imports them, and their distributions."""


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


# --- pika ---


def of_pika(check):
    """Make a check that gets a pika connection, which nobody opens."""

    def checked():
        with closing(IOLoop()) as loop:
            return check(pika.SelectConnection(custom_ioloop=loop, internal_connection_workflow=False))

    return checked


def frames_are_processed(connection):
    processed = []
    connection._process_frame = processed.append
    connection._on_data_available(Heartbeat().marshal())
    return len(processed) == 1


def frames_are_read_through_it(connection):
    read = []
    connection._read_frame = lambda: read.append(bytes(connection._frame_buffer)) or (0, None)
    connection._on_data_available(b"abc")
    return read == [b"abc"] and connection._frame_buffer == b"abc"


def frames_are_cut_off(connection):
    connection._frame_buffer = b"abc"
    connection._trim_frame_buffer(2)
    return connection._frame_buffer == b"c"


def the_transport_gets_frames_as_they_are(connection):
    written = []
    connection._transport = SimpleNamespace(write=written.append)
    connection._output_marshaled_frames([b"frames of several messages"])
    return written == [b"frames of several messages"]


def a_transport_has_its_socket(connection):
    one, other = socket.socketpair()
    with closing(one), closing(other):
        one.setblocking(False)
        plain = io_services_utils._AsyncPlaintextTransport(one, connection, connection._nbio)
        return plain._sock is one and issubclass(io_services_utils._AsyncSSLTransport, type(plain).__bases__)


PIKA = {
    "_frame_buffer": of_pika(lambda connection: connection._frame_buffer == b""),
    "_on_data_available": of_pika(lambda connection: parameters(connection._on_data_available) == ["data_in"]),
    "_output_marshaled_frames": of_pika(the_transport_gets_frames_as_they_are),
    "_process_frame": of_pika(frames_are_processed),
    "_read_frame": of_pika(frames_are_read_through_it),
    "_sock": of_pika(a_transport_has_its_socket),
    "_terminate_stream": of_pika(lambda connection: parameters(connection._terminate_stream) == ["error"]),
    "_transport": of_pika(lambda connection: connection._transport is None),
    "_trim_frame_buffer": of_pika(frames_are_cut_off),
}

# --- rstream ---


def stream_client():
    return Client("localhost", 1, frame_max=1, heartbeat=1)


def ends_with_the_connection():
    client = stream_client()
    client._is_not_closed = False
    return not client.is_connection_alive()


def starts_with_it(method):
    """Whether the client itself calls this method, which we override."""
    return f"self.{method}()" in inspect.getsource(Client) + inspect.getsource(Client.__mro__[1])


def deliveries_come_through_the_queue():
    async def delivered():
        client, came = stream_client(), asyncio.get_running_loop().create_future()
        await client.run_queue_listener_task(0, came.set_result)
        await client._frames[0].put("a delivery")
        await came
        for name in list(client._tasks):
            await client.stop_task(name)
        return came.result() == "a delivery" and not client._tasks

    return asyncio.run(delivered())


RSTREAM = {
    "_buffer": lambda: Connection("localhost", 1)._buffer == b"",
    "_conn": lambda: stream_client()._conn is None and "_conn = Connection(" in inspect.getsource(Client.start),
    "_frames": deliveries_come_through_the_queue,
    "_heartbeat_sender": lambda: starts_with_it("_heartbeat_sender"),
    "_is_not_closed": ends_with_the_connection,
    "_last_heartbeat": lambda: stream_client()._last_heartbeat == 0,
    "_listener": lambda: starts_with_it("_listener"),
    "_on_close": lambda: "add_handler(schema.Close, self._on_close)" in inspect.getsource(Client.start),
    "_tasks": lambda: stream_client()._tasks == {},
    "_writer": lambda: Connection("localhost", 1)._writer is None,
}

# --- pulsar ---


def subscribed_pattern():
    """The arguments that the inner client gets when the outer client subscribes to a pattern with another period."""
    asked = []
    client = pulsar.Client("pulsar://127.0.0.1:1")
    inner = client._client
    client._client = SimpleNamespace(subscribe_pattern=lambda *given: asked.append(given))
    client.subscribe(re.compile("p.*"), "s", pattern_auto_discovery_period=17)
    client._client = inner
    held = len(client._consumers)
    client._consumers.clear()
    client.close()
    (given,) = asked
    return given, held


def a_kind_that_the_client_does_not_know_has_no_name():
    return _kind(pulsar._pulsar.SchemaType(1)) == "STRING" and _kind(pulsar._pulsar.SchemaType(5)) == "type 5"


PULSAR = {
    "_client": lambda: (
        subscribed_pattern()[0][:2] == ("p.*", "s")
        and all(hasattr(pulsar._pulsar.Client, name) for name in ("get_schema_info", "subscribe_pattern"))
    ),
    "_consumers": lambda: subscribed_pattern()[1] == 1,
    "_message": lambda: (
        hasattr(pulsar._pulsar.Message, "int_schema_version")
        and pulsar.Message._wrap("its message")._message == "its message"
    ),
    "_pulsar": a_kind_that_the_client_does_not_know_has_no_name,
}


def test_the_client_does_not_yet_pass_the_period_of_discovery_on():
    """When this test fails, `connectors/pulsar` needs the inner client no longer."""
    assert subscribed_pattern()[0][2].pattern_auto_discovery_period() != 17


# --- pymysql ---

PYMYSQL = {"_sock": lambda: pymysql.Connection(defer_connect=True)._sock is None}

# --- pyspark; tests/pipeline/test_spark_version.py asks a session for more ---


def has_line(statement, of):
    """Whether a line of a class begins so."""
    return any(line.strip().startswith(statement) for line in inspect.getsource(of).splitlines())


PYSPARK = {
    "_accumulatorServer": lambda: has_line("self._accumulatorServer = start_update_server(", SparkContext),
    "_activeSession": lambda: has_line("SparkSession._activeSession = self", SparkSession),
    "_active_spark_context": lambda: has_line("_active_spark_context: ClassVar[", SparkContext),
    "_find_spark_home": lambda: Path(find_spark_home._find_spark_home(), "jars").is_dir(),
    "_gateway": lambda: "SparkContext._gateway = gateway or launch_gateway(" in inspect.getsource(SparkContext),
    "_jdf": lambda: DataFrame("its Java object", SimpleNamespace(_sc=None))._jdf == "its Java object",
    "_instantiatedSession": lambda: has_line("SparkSession._instantiatedSession = self", SparkSession),
    "_jsc": lambda: has_line("self._jsc = jsc or self._initialize_context(", SparkContext),
    "_jvm": lambda: "self._jvm = " in inspect.getsource(SparkSession.__init__),
    "_parse_datatype_string": lambda: parameters(types._parse_datatype_string) == ["s"],
}

PRIVATE = {"pika": PIKA, "rstream": RSTREAM, "pulsar": PULSAR, "pymysql": PYMYSQL, "pyspark": PYSPARK}


@pytest.mark.parametrize(
    ("library", "name"), [(library, name) for library, names in PRIVATE.items() for name in names], ids=str
)
def test_a_private_name_is_what_is_relied_on(library, name):
    assert PRIVATE[library][name]()


def test_no_other_private_name_is_relied_on():
    used = {library: set() for library in PRIVATE}
    for package in ("connectors", "correlator", "pyspark_correlator"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            for library in {LIBRARIES[one] for one in imported(tree) if one in LIBRARIES}:
                used[next(name for name, its in LIBRARIES.items() if its == library)] |= set(private_names(tree))
    assert used == {library: set(names) for library, names in PRIVATE.items()}


def imported(tree):
    """The top-level packages that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name.split(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def private_names(tree):
    """Private names of others that a module uses: imported names, attributes of other objects, names of bases."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in LIBRARIES:
            yield from (name for one in node.names for name in (*node.module.split("."), one.name) if is_private(name))
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and not is_self(node.value):
            yield node.attr
        elif isinstance(node, ast.ClassDef) and (bases := of_libraries(tree, node)):
            yield from inherited(node, bases)


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def of_libraries(tree, made):
    """The base classes of a class that come from a library."""
    homes = {
        one.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in LIBRARIES
        for one in node.names
    }
    names = [base.id for base in made.bases if isinstance(base, ast.Name) and base.id in homes]
    return [getattr(importlib.import_module(homes[name]), name) for name in names]


def inherited(made, bases):
    """The private names that a class uses of its bases: all names but those that it makes itself."""
    methods = {node.name: node for node in made.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own = {name for name in methods if not any(hasattr(base, name) for base in bases)}
    if "__init__" in methods:
        own |= {
            node.attr
            for node in ast.walk(methods["__init__"])
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
    used = {node.attr for node in ast.walk(made) if isinstance(node, ast.Attribute) and is_self(node.value)}
    return {name for name in used | set(methods) if is_private(name)} - own


@pytest.mark.parametrize("distribution", sorted(set(LIBRARIES.values())))
def test_the_next_version_of_the_library_is_excluded(distribution):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (required,) = {one for its in extras.values() for one in its if re.match(rf"{distribution}\b", one)}
    found = re.fullmatch(rf"{distribution}>=(\d+)\.(\d+)[.\d]*,<(\d+)\.(\d+)", required)
    assert found is not None, f"{required}: no upper bound of a minor version"
    tried, excluded = tuple(map(int, found.groups()[:2])), tuple(map(int, found.groups()[2:]))
    assert excluded == (tried[0], tried[1] + 1)
    assert tuple(map(int, version(distribution).split(".")[:2])) == tried
