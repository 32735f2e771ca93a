"""An S3 server for tests: moto's, in a thread of this process, on loopback. Each bucket belongs to one test.

With the variables S3_TEST_ENDPOINT, S3_TEST_ACCESS_KEY and S3_TEST_SECRET_KEY the tests use a server that runs already.
"""

import itertools
import os
import secrets
import socket
from pathlib import Path
from typing import Any, Self

import boto3
from botocore.config import Config

from tests.servers import HOST, ProcessServer, free_port

_numbers = itertools.count(1)


ACCESS_KEY, SECRET_KEY = "key", "a secret of the tests"


class GatewayServer(ProcessServer):
    """Versity S3 Gateway in a process of its own; it keeps objects in files, and so survives a kill.

    Args:
        program: path of its binary, `versitygw`; the tests do not install it.
    """

    def __init__(self, program: Path) -> None:
        super().__init__("versitygw")
        self._command = [str(program), "--access", ACCESS_KEY, "--secret", SECRET_KEY]
        self._port = free_port()
        self.endpoint = f"http://{HOST}:{self._port}"
        self._places = [self.directory / name for name in ("objects", "attributes")]
        for place in self._places:
            place.mkdir()

    def start(self) -> None:
        """Start, and wait until it listens."""
        objects, attributes = map(str, self._places)
        self._begin([*self._command, "--port", f"{HOST}:{self._port}", "posix", "--sidecar", attributes, objects])
        self._wait_until(self._listens)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._port)) == 0


class S3Server:
    """The server.

    Args:
        endpoint: the address of a server that runs already, if it is not the one of the variables.

    Attributes:
        endpoint: its address.
        options: those of a connection to it.
        client: a client of it.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        self._endpoint = endpoint or os.environ.get("S3_TEST_ENDPOINT")

    def __enter__(self) -> Self:
        self._server: Any = None
        self.endpoint = self._endpoint or self._start()
        self.options = {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key": os.environ.get("S3_TEST_ACCESS_KEY", ACCESS_KEY),
            "secret_key": os.environ.get("S3_TEST_SECRET_KEY", SECRET_KEY),
        }
        self.client: Any = boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.options["access_key"],
            aws_secret_access_key=self.options["secret_key"],
            config=Config(s3={"addressing_style": "path"}),
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self._server is not None:
            self._server.stop()

    def bucket(self) -> str:
        """Make an empty bucket."""
        name = f"bucket-{next(_numbers)}-{secrets.token_hex(4)}"
        self.client.create_bucket(Bucket=name)
        return name

    def _start(self) -> str:
        from moto.server import ThreadedMotoServer  # noqa: PLC0415  # takes a second, and few tests need it

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        return f"http://{host}:{port}"
