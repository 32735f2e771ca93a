"""The entry point of the connector `lake`: checks options; makes sinks."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Never

import pyarrow as pa

from connectors.lake.delta import DeltaLog
from connectors.lake.places import TablePlace, table_name
from connectors.lake.plain import ParquetLog
from connectors.lake.sink import LakeSink
from connectors.lake.tables import TABLE_ERRORS, TableLog, unusable
from connectors.table_columns import PROPERTIES_COLUMN, Columns, columns_from
from connectors.table_rows import RowMaker
from correlator.connector import Advice, Features
from correlator.errors import ConfigError, ConnectionLost, CorrelatorError, quoted
from correlator.options import check_destination, check_options, choice_option, text_option, whole_option
from correlator.settings import ConnectionSettings, ReceiverSettings, SenderSettings

_FORMATS = ("delta", "parquet")
_LAST_NUMBER = 2**63 - 1
_HARDLY_MS = 1000


class LakeConnection:
    """A directory of tables, to which senders write. It has no receivers.

    Options: `path`, the directory; `format`, `delta` or `parquet`. Senders write to `queue:TABLE`; their options are
        `schema`, the columns for the fields of the JSON body; `extra_fields` (`refuse`), how to treat a body with a
        field without a column; `key_column`, `unique_id_column` and `properties_column`, names of further columns; and
        `missing_up_to` (0), the number up to which the table may lack messages of the sender.
    """

    features = Features(deduplicates_sends=True, misses_numbers=True, carries_properties=False)
    redelivery_options: Collection[str] = ()

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        where = f"connections.{name}"
        check_options(where, settings.options, ("path", "format"))
        self._path = Path(text_option(where, settings.options, "path")).absolute()
        self._format = choice_option(where, settings.options, "format", _FORMATS)

    @staticmethod
    def advice(endpoint: ReceiverSettings | SenderSettings) -> Iterator[Advice]:
        """Warn of small batches; see `correlator.connector.Advising`."""
        if isinstance(endpoint, SenderSettings) and endpoint.max_batch_interval_ms < _HARDLY_MS:
            what = f"each batch is a file and a commit, and a batch waits {endpoint.max_batch_interval_ms} ms for more"
            todo = "Set max_batch_interval_ms: 10000 and max_batch_size: 50000, for example"
            yield Advice("W1412", "", what, "Many small files make reading slow", todo)

    def source(self, receiver: ReceiverSettings) -> Never:
        """Refuse the receiver with `ConfigError` E1216."""
        what = "a lake has no receivers"
        raise ConfigError("E1216", f"receivers.{receiver.id}.destination", what, "Senders write to it")

    def sink(self, sender: SenderSettings) -> LakeSink:
        """Make a writer of the table. Raises `ConfigError`."""
        where = f"senders.{sender.id}"
        table = _table(where, sender.destination)
        maker = RowMaker(self._columns(where, sender))
        missing_up_to = whole_option(where, sender.options, "missing_up_to", 0, _LAST_NUMBER, least=0)
        place = TablePlace(where, self._path, table)
        return LakeSink(sender, place, self._log(place, maker.arrow, sender), maker, missing_up_to)

    def carries(self, sender: SenderSettings, _name: str) -> bool:
        """Whether a sender has a column for properties; see `correlator.connector.Carrying`."""
        return PROPERTIES_COLUMN in sender.options

    def examine(
        self, _receivers: Sequence[ReceiverSettings], senders: Sequence[SenderSettings]
    ) -> Sequence[CorrelatorError]:
        """Return what keeps senders from writing to their tables, for `correlator doctor`. Changes nothing."""
        return [error for sender in senders for error in self._examine(sender)]

    def close(self) -> None:
        """Do nothing: sinks share no resources."""

    def _columns(self, where: str, sender: SenderSettings) -> Columns:
        return columns_from(where, sender.options, has_times=self._format == "parquet")

    def _log(self, place: TablePlace, columns: pa.Schema, sender: SenderSettings) -> TableLog:
        if self._format == "parquet":
            return ParquetLog(place, columns)
        return DeltaLog(place, columns, sends_again=sender.reliability != "BEST_EFFORT")

    def _examine(self, sender: SenderSettings) -> Iterator[CorrelatorError]:
        where = f"senders.{sender.id}"
        place = TablePlace(where, self._path, _table(where, sender.destination))
        try:
            self._log(place, self._columns(where, sender).arrow, sender).check()
        except ConnectionLost as error:
            yield error
        except TABLE_ERRORS as error:
            yield unusable(place, error)


def _table(where: str, destination: str | None) -> str:
    """Return the name of the table. Raises `ConfigError` E1215 or E1216."""
    allowed = "Use queue:TABLE, with letters A to Z, digits, '_', '-' and '.'; first a letter or a digit"
    if destination is None:
        what = "a sender of a lake needs a destination of its own"
        raise ConfigError("E1216", f"{where}.destination", what, allowed)
    check_destination(where, destination)
    name = table_name(destination)
    if name is None:
        raise ConfigError("E1216", f"{where}.destination", f"{quoted(destination)} is not a table", allowed)
    return name
