"""The entry point of the connector `objects`: checks options; makes sources and sinks."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from connectors.objects.bucket import Access, Bucket
from connectors.objects.folder import Folder
from connectors.objects.formats import ENDINGS, writer
from connectors.objects.sink import ObjectsSink
from connectors.objects.source import ObjectsSource, Reading
from connectors.objects.stores import Store
from connectors.table_columns import PROPERTIES_COLUMN
from correlator.connector import Advice, Features, Order
from correlator.errors import ConfigError, ConnectionLost, CorrelatorError, quoted
from correlator.options import (
    check_destination,
    check_options,
    choice_option,
    duration_option,
    secret_option,
    text_option,
    whole_option,
)
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

_OF_STORES = ("endpoint", "region", "access_key", "secret_key", "session_token", "ca_file")
_OF_RECEIVERS = ("order", "after", "poll_interval")
_BUCKET = re.compile(r"s3://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,254})(?:/(?P<prefix>[^\x00-\x1f\x7f]*))?")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=-]{0,199}")
_POLL_INTERVAL_S = 5.0
_LAST_NUMBER = 2**63 - 1
_HARDLY_MS = 1000
_ALLOWED = (
    "Use queue:FOLDER/*.jsonl, queue:FOLDER/*.jsonl.gz or queue:FOLDER/*.parquet; each part of FOLDER has letters A to "
    "Z, digits, '_', '-', '.' and '=', and begins with a letter or a digit"
)


class _Place(NamedTuple):
    """The objects that a destination names: those below a folder whose names have an ending."""

    folder: str
    ending: str


class ObjectsConnection:
    """Objects in a folder or in a bucket.

    Options: `path`, the folder or `s3://BUCKET/PREFIX`; `state`, the directory of the positions of receivers (default
        `PATH/.positions`; required for a bucket); for a bucket also `endpoint`, `region`, `access_key`, `secret_key`,
        `session_token` and `ca_file`. docs/objects.md describes all of them.
    """

    features = Features(
        order=Order.POSITION,
        acknowledges_surely=True,
        deduplicates_sends=True,
        misses_numbers=True,
        carries_properties=False,
        shares=False,
    )
    redelivery_options: Collection[str] = ()

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        self._where = where = f"connections.{name}"
        options = settings.options
        check_options(where, options, ("path", "state", *_OF_STORES))
        path = text_option(where, options, "path")
        bucket = _BUCKET.fullmatch(path)
        self._folder = Path(path.removeprefix("file://")).absolute()
        self._bucket: tuple[Access, str, str] | None = None
        if bucket is not None:
            prefix = (bucket["prefix"] or "").strip("/")
            self._bucket = _access(where, options), bucket["bucket"], f"{prefix}/" if prefix else ""
        elif "://" in path.removeprefix("file://"):
            allowed = "A path, file:///PATH, or s3://BUCKET/PREFIX"
            raise ConfigError("E1022", f"{where}.path", f"{quoted(path)} is not a place for objects", allowed)
        elif unused := sorted(options.keys() & {*_OF_STORES}):
            raise ConfigError("E1022", f"{where}.{unused[0]}", "is of no use in a folder", "", "Set path: s3://BUCKET")
        self._state = None if bucket else self._folder / ".positions"
        if "state" in options:
            self._state = Path(text_option(where, options, "state")).absolute()

    @staticmethod
    def advice(endpoint: ReceiverSettings | SenderSettings) -> Iterator[Advice]:
        """Warn of small batches; see `correlator.connector.Advising`."""
        if isinstance(endpoint, SenderSettings) and endpoint.max_batch_interval_ms < _HARDLY_MS:
            what = f"each batch is an object, and a batch waits {endpoint.max_batch_interval_ms} ms for more"
            todo = "Set max_batch_interval_ms: 10000 and max_batch_size: 50000, for example"
            yield Advice("W1412", "", what, "Many small objects make reading slow", todo)

    def source(self, receiver: ReceiverSettings) -> ObjectsSource:
        """Make a reader of the objects below a folder. Raises `ConfigError`."""
        where = f"receivers.{receiver.id}"
        place = _place(where, receiver.destination)
        options = receiver.options
        check_options(where, options, _OF_RECEIVERS)
        order = choice_option(where, options, "order", ("name", "modified"), "name")
        after = choice_option(where, options, "after", ("keep", "delete", "move"), "keep")
        interval_s = duration_option(where, options, "poll_interval", "From 10ms to 1h", lambda s: 0.01 <= s <= 3600)
        if self._state is None:
            what = "'state' is missing, the directory in which a receiver keeps its position"
            raise ConfigError("E1021", self._where, what, "Receivers of a bucket need it")
        names = [receiver.destination.removeprefix("queue:"), receiver.subscription]
        reading = Reading(
            place.folder,
            place.ending,
            order == "modified",
            after,
            _POLL_INTERVAL_S if interval_s is None else interval_s,
            self._state,
            names if self._bucket is None else ["s3", _address(*self._bucket), *names],
        )
        return ObjectsSource(receiver, self._store(writes=False), reading)

    def sink(self, sender: SenderSettings) -> ObjectsSink:
        """Make a writer of objects in a folder. Raises `ConfigError`."""
        where = f"senders.{sender.id}"
        if sender.destination is None:
            raise ConfigError("E1216", f"{where}.destination", "a sender of objects needs a destination", _ALLOWED)
        place = _place(where, sender.destination)
        made = writer(where, place.ending, sender.options)
        missing_up_to = whole_option(where, sender.options, "missing_up_to", 0, _LAST_NUMBER, least=0)
        return ObjectsSink(sender, self._store(writes=True), place.folder, place.ending, made, missing_up_to)

    def carries(self, sender: SenderSettings, _name: str) -> bool:
        """Whether a sender has a column for properties; see `correlator.connector.Carrying`."""
        return PROPERTIES_COLUMN in sender.options

    def examine(
        self, receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
    ) -> Sequence[CorrelatorError]:
        """Return why objects cannot be written or read, and where there are none, for `correlator
        doctor`. Changes nothing.
        """
        found = [*map(self._examine, receivers), *map(self._examine, senders)]
        return [error for error in found if error is not None]

    def close(self) -> None:
        """Do nothing: sources and sinks share no resources."""

    def _examine(self, part: ReceiverSettings | SenderSettings) -> CorrelatorError | None:
        writes = isinstance(part, SenderSettings)
        where = f"{'senders' if writes else 'receivers'}.{part.id}"
        place = _place(where, part.destination or "")
        store = self._store(writes=writes)
        try:
            store.connect(where)
            if writes or any(found.name.endswith(place.ending) for found in store.found(place.folder)):
                return None
        except ConnectionLost as error:
            return error
        finally:
            store.close()
        return ConfigError("W7668", where, f"there is no object *{place.ending} below {quoted(place.folder)} yet")

    def _store(self, *, writes: bool) -> Store:
        return Folder(self._folder, writes=writes) if self._bucket is None else Bucket(*self._bucket)


def _access(where: str, options: Mapping[str, Any]) -> Access:
    """Return how to reach the store. Raises `ConfigError` E1022, E1021, E1214."""
    endpoint = text_option(where, options, "endpoint") if "endpoint" in options else ""
    if endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            allowed = "Use https://HOST, https://HOST:PORT or http://HOST:PORT, without a user"
            raise ConfigError("E1214", f"{where}.endpoint", "is not the address of a store", allowed)
    access_key = secret_option(where, options, "access_key", "")
    secret_key = secret_option(where, options, "secret_key", "")
    session_token = secret_option(where, options, "session_token", "")
    if bool(access_key) != bool(secret_key):
        raise ConfigError("E1021", where, "of 'access_key' and 'secret_key' one is missing", "Set both or none")
    region = text_option(where, options, "region") if "region" in options else ""
    ca_file = text_option(where, options, "ca_file") if "ca_file" in options else ""
    if ca_file and endpoint.startswith("http://"):
        raise ConfigError(
            "E1022", f"{where}.ca_file", "is of no use without TLS", "", "Let endpoint begin with https://"
        )
    return Access(endpoint, region, access_key, secret_key, session_token, ca_file)


def _address(access: Access, bucket: str, prefix: str) -> str:
    """Return a text for a bucket and a prefix that no other store or bucket has."""
    parts = urlsplit(access.endpoint)
    return f"{parts.netloc.lower()}{parts.path.rstrip('/')}?{bucket}/{prefix}"


def _place(where: str, destination: str) -> _Place:
    """Return the folder and the ending. Raises `ConfigError` E1215 or E1216."""
    kind, name = check_destination(where, destination)
    folder, _, pattern = name.rpartition("/")
    ending = pattern.removeprefix("*")
    is_place = kind == "queue" and pattern != ending and ending in ENDINGS
    if not is_place or not all(_PART.fullmatch(part) for part in folder.split("/")):
        raise ConfigError("E1216", f"{where}.destination", f"{quoted(destination)} names no objects", _ALLOWED)
    return _Place(folder, ending)
