"""An S3 server for tests: moto's, in a thread of this process, on loopback. Each bucket belongs to one test."""

import itertools
from typing import Any, Self

import boto3
from botocore.config import Config

_numbers = itertools.count(1)


class S3Server:
    """The server."""

    def __enter__(self) -> Self:
        from moto.server import ThreadedMotoServer  # noqa: PLC0415  # takes a second, and few tests need it

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        self.options = {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key": "key",
            "secret_key": "a secret of the tests",
        }
        self.client: Any = boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            config=Config(s3={"addressing_style": "path"}),
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.stop()

    def bucket(self) -> str:
        """Make an empty bucket."""
        name = f"bucket-{next(_numbers)}"
        self.client.create_bucket(Bucket=name)
        return name
