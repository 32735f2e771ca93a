"""Places of objects for tests: a folder, and a bucket of an S3 server. Tests look at them without the connector."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from connectors.objects import ObjectsConnection
from correlator.settings import ConnectionSettings
from tests.s3_server import S3Server


class Place(Protocol):
    """A place with objects."""

    options: dict[str, Any]

    def connection(self, **options: Any) -> ObjectsConnection: ...

    def make_folder(self, name: str) -> None: ...

    def put(self, name: str, content: bytes) -> None: ...

    def get(self, name: str) -> bytes: ...

    def remove(self, name: str) -> None: ...

    def names(self) -> Sequence[str]: ...


def make_connection(options: dict[str, Any]) -> ObjectsConnection:
    return ObjectsConnection("objects", ConnectionSettings(type="objects", options=options))


class FolderPlace:
    """A folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.options = {"path": str(path)}
        path.mkdir(exist_ok=True)

    def connection(self, **options: Any) -> ObjectsConnection:
        return make_connection({**self.options, **options})

    def make_folder(self, name: str) -> None:
        (self.path / name).mkdir(parents=True, exist_ok=True)

    def put(self, name: str, content: bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}")
        part.write_bytes(content)
        part.rename(path)

    def get(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def remove(self, name: str) -> None:
        (self.path / name).unlink()

    def names(self) -> Sequence[str]:
        found = [path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if path.is_file()]
        return sorted(name for name in found if not name.startswith(".positions") and not name.endswith(".lock"))


class BucketPlace:
    """A bucket, with a prefix."""

    def __init__(self, server: S3Server, state: Path) -> None:
        self.server = server
        self.bucket = server.bucket()
        self.options = {**server.options, "path": f"s3://{self.bucket}/some/prefix", "state": str(state)}

    def connection(self, **options: Any) -> ObjectsConnection:
        return make_connection({**self.options, **options})

    def make_folder(self, name: str) -> None:
        """Do nothing: a bucket has no folders."""

    def put(self, name: str, content: bytes) -> None:
        self.server.client.put_object(Bucket=self.bucket, Key=f"some/prefix/{name}", Body=content)

    def get(self, name: str) -> bytes:
        try:
            answer = self.server.client.get_object(Bucket=self.bucket, Key=f"some/prefix/{name}")
        except self.server.client.exceptions.NoSuchKey as error:
            raise FileNotFoundError(name) from error
        content: bytes = answer["Body"].read()
        return content

    def remove(self, name: str) -> None:
        self.server.client.delete_object(Bucket=self.bucket, Key=f"some/prefix/{name}")

    def names(self) -> Sequence[str]:
        listed = self.server.client.list_objects_v2(Bucket=self.bucket).get("Contents", ())
        names = [one["Key"].removeprefix("some/prefix/") for one in listed]
        return sorted(name for name in names if not name.endswith("/_created"))
