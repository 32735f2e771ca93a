"""A server in place of a schema registry: it answers as the documentation of Confluent's REST interface says.

Tests use it where a registry should answer wrongly or not at all, and for Protobuf; `tests/registry_server.py` is a real one.
It has the requests that the connector makes, and keeps schemas in memory. It checks no compatibility, but refuses the
definitions that a test names. It does not compile schemas of Protobuf: a test gives it their serialized form, too.
"""

import base64
import contextlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class SchemaRegistry(ThreadingHTTPServer):
    """The server. Its attributes may be changed while it runs.

    Attributes:
        schemas: answers about schemas, by id.
        serialized: the definitions of schemas of Protobuf in their serialized form, by their text.
        subjects: the ids of each subject.
        asked: the requests so far, as `METHOD PATH`.
        incompatible: definitions that it refuses.
        user: the user and password that it wants, as `USER:PASSWORD`; "" for nobody.
        moved_to: the address to which it redirects; "" for none.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas: dict[int, dict[str, Any]] = {}
        self.serialized: dict[str, str] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.incompatible: set[str] = set()
        self.user = ""
        self.moved_to = ""

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def register(self, subject: str, definition: str, kind: str = "AVRO", **more: object) -> int:
        """Register a schema for a subject; returns its id, which a schema has once."""
        made = {"schema": definition, **({} if kind == "AVRO" else {"schemaType": kind}), **more}
        number = next((one for one, its in self.schemas.items() if its == made), len(self.schemas) + 100_000)
        self.schemas[number] = made
        its_versions = self.subjects.setdefault(subject, [])
        if number not in its_versions:
            its_versions.append(number)
        return number


@contextlib.contextmanager
def serving() -> Iterator[SchemaRegistry]:
    """A server while the block runs."""
    with SchemaRegistry() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: SchemaRegistry

    def do_GET(self) -> None:
        match self._names():
            case ["schemas", "ids", number] if int(number) in self.server.schemas:
                self._answer(HTTPStatus.OK, self._shown(int(number)))
            case ["schemas", "ids", _]:
                self._refuse(HTTPStatus.NOT_FOUND, 40403, "Schema not found")
            case ["subjects", subject, "versions", version] if subject in self.server.subjects:
                versions = self.server.subjects[subject]
                at = len(versions) if version == "latest" else int(version)
                its = {"subject": subject, "version": at, "id": versions[at - 1]}
                self._answer(HTTPStatus.OK, {**its, **self._shown(versions[at - 1])})
            case ["subjects", subject, "versions", _]:
                self._refuse(HTTPStatus.NOT_FOUND, 40401, f"Subject '{subject}' not found.")
            case [_, *_]:
                self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match self._names():
            case ["subjects", _, "versions"] if told["schema"] in self.server.incompatible:
                self._refuse(HTTPStatus.CONFLICT, 409, "Schema being registered is incompatible")
            case ["subjects", subject, "versions"]:
                number = self.server.register(subject, told["schema"], told.get("schemaType", "AVRO"))
                self._answer(HTTPStatus.OK, {"id": number})

    def _names(self) -> list[str]:
        """The parts of the path; none if the request is answered already."""
        self.server.asked.append(f"{self.command} {self.path}")
        wanted = f"Basic {base64.b64encode(self.server.user.encode()).decode()}"
        if self.server.user and self.headers["Authorization"] != wanted:
            self._refuse(HTTPStatus.UNAUTHORIZED, 40101, "Unauthorized")
            return []
        if self.server.moved_to:
            self.send_response(HTTPStatus.FOUND)
            self.send_header("Location", self.server.moved_to + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return []
        assert self.headers["Accept"] == MEDIA_TYPE
        return [urllib.parse.unquote(name) for name in self.path.split("?")[0].split("/")[1:]]

    def _shown(self, number: int) -> dict[str, Any]:
        """A schema in the form that the request wants."""
        schema = self.server.schemas[number]
        if not self.path.endswith("?format=serialized"):
            return schema
        return {**schema, "schema": self.server.serialized[schema["schema"]]}

    def _refuse(self, status: HTTPStatus, code: int, text: str) -> None:
        self._answer(status, {"error_code": code, "message": text})

    def _answer(self, status: HTTPStatus, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", MEDIA_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
