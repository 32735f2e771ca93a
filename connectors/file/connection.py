"""The entry point of the connector `file`: checks options; makes sources and sinks."""

import re
from pathlib import Path

from connectors.file.journal import WriteOptions
from connectors.file.paths import Directory, file_name
from connectors.file.sink import WRITABLE, FileSink
from connectors.file.source import FileSource
from correlator.connector import Features, Order
from correlator.errors import ConfigError, quoted
from correlator.options import check_destination, check_options, flag_option, text_option
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

_MODE = re.compile("0?[67][0-7][0-7]")
READABLE = (".csv", ".jsonl")


class FileConnection:
    """A directory of files.

    Options: `path`, the directory; `state`, the directory of positions and confirmed lengths (default
        `PATH/.positions`). Receivers read `queue:NAME.csv` and `queue:NAME.jsonl`; their option `follow` (false) lets
        them wait for more records at the end of the file. Senders write `queue:NAME.jsonl`; their option `mode`
        ("0600") sets the permissions of new files.
    """

    features = Features(
        order=Order.POSITION,
        acknowledges_surely=True,
        deduplicates_sends=True,
        carries_properties=False,
        shares=False,
    )

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        where = f"connections.{name}"
        check_options(where, settings.options, ("path", "state"))
        path = Path(text_option(where, settings.options, "path")).absolute()
        state = Path(text_option(where, settings.options, "state", str(path / ".positions"))).absolute()
        self._directory = Directory(path, state)

    def source(self, receiver: ReceiverSettings) -> FileSource:
        """Make a reader of the file. Raises `ConfigError`."""
        where = f"receivers.{receiver.id}"
        check_options(where, receiver.options, ("follow",))
        name = _file(where, receiver.destination, READABLE)
        return FileSource(where, self._directory, name, receiver, follow=flag_option(where, receiver.options, "follow"))

    def sink(self, sender: SenderSettings) -> FileSink:
        """Make a writer of the file. Raises `ConfigError`."""
        where = f"senders.{sender.id}"
        check_options(where, sender.options, ("mode",))
        named = sender.destination
        options = WriteOptions(_mode(where, sender), sender.reliability != "BEST_EFFORT")
        return FileSink(where, self._directory, None if named is None else _file(where, named, WRITABLE), options)

    def close(self) -> None:
        """Do nothing: sources and sinks share no resources."""


def _mode(where: str, sender: SenderSettings) -> int:
    """Return the permissions of new files. Raises `ConfigError` E1022."""
    given = sender.options.get("mode", "0600")
    if not isinstance(given, str) or not _MODE.fullmatch(given):
        allowed = 'Three octal digits, quoted, as in "0640"; the owner can read and write: the first is 6 or 7'
        raise ConfigError("E1022", f"{where}.mode", f"{quoted(given)} is not a mode of a file", allowed)
    return int(given, 8)


def _file(where: str, destination: str, endings: tuple[str, ...]) -> str:
    """Return the name of the file. Raises `ConfigError` E1215 or E1216."""
    check_destination(where, destination)
    name = file_name(destination, endings)
    if name is None:
        allowed = " or ".join(f"queue:NAME{ending}" for ending in endings)
        raise ConfigError(
            "E1216",
            f"{where}.destination",
            f"{quoted(destination)} is not a file of the connection",
            f"Use {allowed}, a path below its directory without hidden parts",
        )
    return name
