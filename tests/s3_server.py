"""An S3 server for tests: moto's, in a thread of this process, on loopback. Each bucket belongs to one test.

With the variables S3_TEST_ENDPOINT, S3_TEST_ACCESS_KEY and S3_TEST_SECRET_KEY the tests use a server that runs already.
"""

import itertools
import os
import secrets
from typing import Any, Self

import boto3
from botocore.config import Config

_numbers = itertools.count(1)


class S3Server:
    """The server.

    Attributes:
        endpoint: its address.
        options: those of a connection to it.
        client: a client of it.
    """

    def __enter__(self) -> Self:
        self._server: Any = None
        self.endpoint = os.environ.get("S3_TEST_ENDPOINT") or self._start()
        self.options = {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key": os.environ.get("S3_TEST_ACCESS_KEY", "key"),
            "secret_key": os.environ.get("S3_TEST_SECRET_KEY", "a secret of the tests"),
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
