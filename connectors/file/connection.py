"""The connector's entry point: checks the options, opens nothing."""

from pathlib import Path

from connectors.file.places import Directory, file_name
from connectors.file.sink import WRITABLE, FileSink
from connectors.file.source import FileSource
from connectors.options import check_destination, check_options, flag_option, text_option
from correlator.errors import ConfigError, quoted
from correlator.ports import Features
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

READABLE = (".csv", ".jsonl")


class FileConnection:
    """A directory of files.

    Option `path`: the directory. Option `state`: where positions and confirmed lengths are kept, `PATH/.positions` by
    default. Receivers read `queue:NAME.csv` and `queue:NAME.jsonl` and have the option `follow`: wait for more at the
    end of the file (false). Senders write `queue:NAME.jsonl`.
    """

    features = Features(acknowledges_surely=True, deduplicates_sends=True, ends=True, topics=False)

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        where = f"connections.{name}"
        check_options(where, settings.options, ("path", "state"))
        path = Path(text_option(where, settings.options, "path")).absolute()
        state = Path(text_option(where, settings.options, "state", str(path / ".positions"))).absolute()
        self._directory = Directory(path, state)

    def source(self, receiver: ReceiverSettings) -> FileSource:
        """A reader of the file."""
        where = f"receivers.{receiver.id}"
        check_options(where, receiver.options, ("follow",))
        name = _file(where, receiver.destination, READABLE)
        return FileSource(where, self._directory, name, receiver, follow=flag_option(where, receiver.options, "follow"))

    def sink(self, sender: SenderSettings) -> FileSink:
        """A writer of the file."""
        where = f"senders.{sender.id}"
        check_options(where, sender.options, ())
        named = sender.destination
        return FileSink(where, self._directory, None if named is None else _file(where, named, WRITABLE))

    def close(self) -> None:
        """Nothing is shared."""


def _file(where: str, destination: str, endings: tuple[str, ...]) -> str:
    """The name of the file. Raises `ConfigError`."""
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
