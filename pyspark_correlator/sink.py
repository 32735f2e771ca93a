"""Writes the rows of a streaming query into queues and topics of an embedded broker, each batch once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from connectors.embedded.batches import Batch, store_batch
from correlator.errors import UsageError
from correlator.events import Message
from pyspark_correlator.options import WHERE, Writing
from pyspark_correlator.rows import message_of

_QUERY = "sql.streaming.queryId"
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Message])


@dataclass(frozen=True)
class Portion(WriterCommitMessage):
    """The messages of one task, encoded, and the id of the query."""

    query: str
    messages: bytes


class QueueSink(DataSourceStreamArrowWriter):
    """Tasks only make messages of rows, so it does not matter how often, and where, one runs. `commit` stores all.

    The identity of a batch is the name of the producer, the id of the query, which its checkpoint directory holds, and
    the number of the batch. The id of a run would be another one after each start.
    """

    def __init__(self, options: Writing) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Portion:
        """Make messages of the rows of a task. Raises `UsageError` E2202 for a row that has no destination."""
        to = self._options.to
        messages = [message_of(row, to) for batch in iterator for row in batch.to_pylist()]
        return Portion(_query(), _encoder.encode(messages))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Store the messages of all tasks, in the order of the tasks; raises as `store_batch`."""
        portions = [one for one in messages if isinstance(one, Portion)]
        if portions:
            self.store(portions[0].query, batchId, [m for one in portions for m in _decoder.decode(one.messages)])

    def store(self, query: str, number: int, messages: Sequence[Message]) -> None:
        """Store a batch, unless it is there."""
        batch = Batch(
            producer=self._options.name,
            query=query,
            number=number,
            sends=[(message.destination or "", message) for message in messages],
            instead_of=self._options.takeover,
        )
        store_batch(self._options.store, batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: a failed commit has stored nothing, or all, and the repeat of the batch finds out which."""


def _query() -> str:
    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY) if context is not None else None
    if not query:
        raise UsageError("E2206", WHERE, "this is no streaming query of Spark, so the batch has no identity")
    return str(query)
