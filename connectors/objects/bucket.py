"""Objects in a bucket of an S3 store.

Requests are conditional where it matters: with `If-None-Match` the store makes an object only if there is none, and
with `If-Match` it reads only the object that was listed.
"""

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004  # the library uses this name
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
)

from connectors.objects.stores import LONGEST_NUMBER, Content, Found, changed, check_name, gone, is_shown
from correlator.connector import NO_SUCH_DESTINATION
from correlator.errors import ConnectionLost, quoted

PAGE = 1000
"""Most objects that one request lists."""
AHEAD_BYTES = 1024 * 1024
"""Fewest bytes that one request reads."""
_CONNECT_S, _ANSWER_S = 5, 15
_MARKER = "_created"
_BEHIND = "~"  # sorts after the dot of an ending
_REFUSED_USERS = frozenset({
    "403", "AccessDenied", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "SignatureDoesNotMatch",
})  # fmt: skip
_EXISTS = frozenset({"412", "PreconditionFailed"})
_MISSING = frozenset({"404", "NoSuchKey"})


class Access(NamedTuple):
    """How to reach a store. The library takes values that are "" from the environment of the process.

    Attributes:
        endpoint: URL of the store; "" for Amazon's.
        region, access_key, secret_key, session_token: the values that the store expects.
        ca_file: file with the trusted certificates.
    """

    endpoint: str
    region: str
    access_key: str
    secret_key: str
    session_token: str
    ca_file: str

    def client(self) -> Any:
        """Make a client, without connecting."""
        style = {"addressing_style": "path" if self.endpoint else "auto"}
        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_ANSWER_S,
            retries={"total_max_attempts": 1},
            s3=style,
            max_pool_connections=1,
        )
        with _making:
            return _session().client(
                "s3",
                endpoint_url=self.endpoint or None,
                region_name=self.region or None,
                aws_access_key_id=self.access_key or None,
                aws_secret_access_key=self.secret_key or None,
                aws_session_token=self.session_token or None,
                verify=self.ca_file or None,
                config=config,
            )


_making = threading.Lock()


@functools.cache
def _session() -> Any:
    """Return the library's session with the description of S3. Only one thread at a time may make a client from it."""
    return boto3.session.Session()


class Bucket:
    """The objects of a bucket below a prefix.

    Args:
        access: how to reach the store.
        bucket: name of the bucket.
        prefix: "", or a path with a slash at its end.
    """

    def __init__(self, access: Access, bucket: str, prefix: str) -> None:
        self._access = access
        self._bucket = bucket
        self._prefix = prefix
        self._where = ""
        self._client: Any = None

    def connect(self, where: str) -> None:
        """List one object, to check that the bucket can be read."""
        self._where = where
        self.close()
        with self._translated():
            self._client = self._access.client()
            self._page(self._prefix, "", 1)

    def close(self) -> None:
        """Close the connections to the store. Never raises."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def found(self, folder: str) -> Iterator[Found]:
        """Yield the objects below a folder, in order of name."""
        for found in self._below(f"{self._prefix}{folder}/", ""):
            if is_shown(found.name, folder):
                yield found

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of all objects directly in a folder."""
        for found in self._below(f"{self._prefix}{folder}/", ""):
            if "/" not in found.name.removeprefix(f"{folder}/"):
                yield found.name

    def newest(self, folder: str, ending: str) -> str | None:
        """Search for the object with the highest number. Needs few requests, however many objects there are."""
        with self._translated():
            prefix = f"{self._prefix}{folder}/"
            page, is_whole = self._page(prefix, "", PAGE)
            numbers = _numbers(page, prefix, ending)
            if not numbers:
                return None
            newest = max(numbers)
            if not is_whole:
                newest = self._search(prefix, ending, newest)
            return f"{folder}/{newest:0{LONGEST_NUMBER}}{ending}"

    def check_creation(self, folder: str) -> None:
        """Make an object unless it exists, and try to make it again."""
        name = f"{folder}/{_MARKER}"
        if self.create(name, b"") and self.create(name, b""):
            what = "the store replaced an existing object in spite of If-None-Match"
            todo = "Use a store that obeys If-None-Match"
            raise ConnectionLost("E7660", self._where, what, "Otherwise two engines could replace objects", todo)

    def create(self, name: str, content: bytes) -> bool:
        """Make an object with one request."""
        try:
            with self._translated():
                self._connected().put_object(
                    Bucket=self._bucket, Key=self._prefix + name, Body=content, IfNoneMatch="*"
                )
        except _Answered as answered:
            if answered.answer in _EXISTS:
                return False
            raise
        return True

    def open(self, found: Found) -> Content:
        """Return a content that reads the object in blocks; nothing is read yet."""
        return _Object(self, found)

    def head(self, name: str) -> Found | None:
        """Return size and tag of one object, as `Store.head`."""
        try:
            with self._translated():
                answer = self._connected().head_object(Bucket=self._bucket, Key=self._prefix + name)
        except _Answered as answered:
            if answered.answer in _MISSING:
                return None
            raise
        return Found(name, answer["ContentLength"], answer["ETag"], answer["LastModified"].timestamp())

    def remove(self, found: Found, moved_to: str) -> None:
        """Copy an object if it is to be kept, then remove it."""
        now = self.head(found.name)
        if now is None or now.tag != found.tag:
            return
        key = self._prefix + found.name
        with self._translated():
            if moved_to:
                source = {"Bucket": self._bucket, "Key": key}
                config = TransferConfig(use_threads=False)
                self._connected().copy(source, self._bucket, self._prefix + moved_to, Config=config)
            self._connected().delete_object(Bucket=self._bucket, Key=key)

    def lock(self, _folder: str, _source: str) -> None:
        """Do nothing: an engine notices another one by the objects that the other one has made."""

    def read(self, found: Found, begin: int, end: int) -> bytes:
        """Read a part of an object, if it is still the one that was listed."""
        try:
            with self._translated():
                answer = self._connected().get_object(
                    Bucket=self._bucket,
                    Key=self._prefix + found.name,
                    Range=f"bytes={begin}-{end - 1}",
                    IfMatch=found.tag,
                )
                with answer["Body"] as body:
                    content: bytes = body.read()
        except _Answered as answered:
            if answered.answer in _EXISTS:
                raise changed(self._where, found.name) from answered
            if answered.answer in _MISSING:
                raise gone(self._where, found.name) from answered
            raise
        return content

    def _connected(self) -> Any:
        if self._client is None:
            raise ConnectionLost("E7001", self._where, "not connected")
        return self._client

    def _below(self, prefix: str, after: str) -> Iterator[Found]:
        is_whole = False
        while not is_whole:
            with self._translated():
                page, is_whole = self._page(prefix, after, PAGE)
            for one in page:
                after = one["Key"]
                if not after.endswith("/"):  # consoles make such objects to show a folder
                    name = check_name(self._where, after.removeprefix(self._prefix))
                    yield Found(name, one["Size"], one["ETag"], one["LastModified"].timestamp())

    def _page(self, prefix: str, after: str, most: int) -> tuple[Sequence[Mapping[str, Any]], bool]:
        """Return objects in order of their names, after the name `after`; and whether these are all."""
        answer = self._connected().list_objects_v2(Bucket=self._bucket, Prefix=prefix, StartAfter=after, MaxKeys=most)
        return answer.get("Contents", ()), not answer["IsTruncated"]

    def _search(self, prefix: str, ending: str, known: int) -> int:
        """Return the highest number of a name, beginning at the existing number `known`: double the
        step, then halve it.
        """
        step = 1
        while (higher := self._behind(prefix, ending, known + step)) is not None:
            known, step = higher, 2 * step
        end = known + step  # there is none after it
        while known < end:
            middle = (known + end) // 2
            higher = self._behind(prefix, ending, middle)
            if higher is None:
                end = middle
            else:
                known = higher
        return known

    def _behind(self, prefix: str, ending: str, number: int) -> int | None:
        """Return the lowest number after a number."""
        page, _ = self._page(prefix, f"{prefix}{number:0{LONGEST_NUMBER}}{_BEHIND}", 1)
        return min(_numbers(page, prefix, ending), default=None)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Within the block, turn the errors of the library into `ConnectionLost`."""
        try:
            yield
        except ClientError as error:
            raise _Answered(self._where, self._bucket, error) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            todo = "Set access_key and secret_key, or set the environment variables of Amazon's tools"
            raise ConnectionLost("E7002", self._where, str(error), "", todo) from error
        except SSLError as error:
            raise ConnectionLost("E7016", self._where, f"no TLS with the store: {error}") from error
        except (ConnectionError, HTTPClientError) as error:
            raise ConnectionLost("E7001", self._where, f"the store cannot be reached: {error}") from error
        except (BotoCoreError, OSError, ValueError) as error:
            raise ConnectionLost("E7025", self._where, f"the store cannot be used: {error}") from error


class _Answered(ConnectionLost):
    """The store has answered with an error.

    Attributes:
        answer: the code of the error in S3.
    """

    def __init__(self, where: str, bucket: str, error: ClientError) -> None:
        said = error.response.get("Error", {})
        self.answer = str(said.get("Code", ""))
        text = f"the store answers {quoted(self.answer)}: {said.get('Message', '')} ({error.operation_name})"
        if self.answer == "NoSuchBucket":
            super().__init__(NO_SUCH_DESTINATION, where, f"there is no bucket {quoted(bucket)}", "", "Make it")
        elif self.answer in _REFUSED_USERS:
            super().__init__("E7002", where, text)
        else:
            super().__init__("E7025", where, text)


class _Object:
    """An object that is being read."""

    def __init__(self, bucket: Bucket, found: Found) -> None:
        self._bucket = bucket
        self._found = found
        self._begin, self._block = 0, b""
        self.size = found.size

    def read(self, size: int, offset: int) -> bytes:
        """Read from the last block that was read, or read the next block."""
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        if not self._begin <= offset < end <= self._begin + len(self._block):
            until = min(max(end, offset + AHEAD_BYTES), self.size)
            self._begin, self._block = offset, self._bucket.read(self._found, offset, until)
        return self._block[offset - self._begin : end - self._begin]

    def close(self) -> None:
        """Drop the last block."""
        self._block = b""


def _numbers(page: Sequence[Mapping[str, Any]], prefix: str, ending: str) -> Sequence[int]:
    """Return the numbers of the objects whose name consists of a number and the ending."""
    stems = [one["Key"].removeprefix(prefix).removesuffix(ending) for one in page if one["Key"].endswith(ending)]
    return [int(stem) for stem in stems if len(stem) == LONGEST_NUMBER and stem.isascii() and stem.isdigit()]
