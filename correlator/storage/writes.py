"""The statements of a transaction, with their rows. They are made before the transaction begins.

So the encoding takes place without a lock, and an error during the encoding leaves the store unchanged.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from correlator.core.commit import (
    CheckpointCommit,
    ContextCut,
    DiscardCommit,
    Endpoint,
    IdSegment,
    ReceiveCommit,
    RegistryCommit,
    SuspectCommit,
    Write,
)
from correlator.events import DeadLetter
from correlator.storage import codec, tables
from correlator.storage.dialects import Statement
from correlator.storage.statements import SUSPECT_KEY, Statements

THE_ROW = 1
"""The key of the row in a table that has only one row."""


class TransactionStep(NamedTuple):
    """One statement of a transaction with its rows, and the name of the fault point before it."""

    point: str
    statement: Statement
    rows: Sequence[Mapping[str, Any]]

    def run(self, connection: Connection) -> None:
        """Execute the statement. Raises errors of SQLAlchemy."""
        self.statement.run(connection, self.rows)


class ForgetCuts(NamedTuple):
    """Removes endpoints from the last checkpoint, so that a start does not bring them back."""

    point: str
    statements: Statements
    removed: Sequence[str]

    def run(self, connection: Connection) -> None:
        """Read, filter and rewrite the row of the checkpoint.

        Raises:
            RecoveryRefused: E4201, E4202, the row cannot be read.
        """
        row = connection.execute(select(tables.checkpoint)).first()
        if row is not None:
            cut = codec.read(codec.CheckpointContent, f"checkpoint {row.number}", row.content, row.crc)
            self.statements.checkpoint.run(connection, [checkpoint_row(without(cut, self.removed))])


class TransactionPlan:
    """The steps of one transaction, and the numbers that the store keeps in memory after its commit.

    Args:
        statements: the statements, compiled for the dialect of the store.
        writes: the changes to write, in order.
        dead_letters: the last number of a dead letter before this transaction.

    Attributes:
        steps: the steps, in order.
        dead_letters: the last number of a dead letter after this transaction.
        checkpoint: number of the checkpoint that the transaction writes, 0 if it writes none.
    """

    def __init__(self, statements: Statements, writes: Sequence[Write], dead_letters: int) -> None:
        self._statements = statements
        self.dead_letters = dead_letters
        self.checkpoint = 0
        self.steps: list[TransactionStep | ForgetCuts] = []
        for write in writes:
            if isinstance(write, ReceiveCommit):
                self.steps += self._receive(write)
            elif isinstance(write, CheckpointCommit):
                self.steps += self._checkpoint(write)
                self.checkpoint = write.number
            elif isinstance(write, SuspectCommit):
                self.steps += self._suspects(write)
            elif isinstance(write, DiscardCommit):
                self.steps += self._discard(write.numbers)
            else:
                self.steps += self._registry(write)

    def _receive(self, write: ReceiveCommit) -> Iterator[TransactionStep]:
        do = self._statements
        if write.segment is not None:
            yield TransactionStep("rx.tx.insert", do.receive, [segment_row("receiver", write.receiver, write.segment)])
        ids = [_ids_row(segment) for segment in (write.ids, *write.rewritten) if segment is not None]
        if ids:
            yield TransactionStep("rx.tx.dedup", do.put_ids, ids)
        if write.forgotten:
            rows = [{"domain": domain, "number": number} for domain, number in write.forgotten]
            yield TransactionStep("rx.tx.expire", do.forget_ids, rows)
        if write.confirmed_batch:
            row = codec.progress_row(write.receiver, confirmed_batch=write.confirmed_batch)
            yield TransactionStep("rx.tx.confirmed", do.confirm, [row])
        yield from self._dead("rx.tx.dead_letter", write.dead_letters)
        yield from self._discard(write.returned)

    def _checkpoint(self, write: CheckpointCommit) -> Iterator[TransactionStep]:
        do = self._statements
        cut = codec.CheckpointContent(
            write.number, write.engine_time, write.digest, list(write.contexts), list(write.senders)
        )
        done = [(sender.sender, sender.confirmed_through) for sender in write.senders if sender.confirmed_through]
        if done:  # rows are deleted before others are inserted, to make room on a full disk (trap T67)
            yield TransactionStep("ck.tx.prune_outbox", do.prune_outbox, _through(done))
        if write.consumed:
            yield TransactionStep("ck.tx.prune_rx", do.prune_receive_log, _through(write.consumed.items()))
        if write.state_dropped:
            yield TransactionStep(
                "ck.tx.state.dropped", do.drop_state, [{"number": number} for number in write.state_dropped]
            )
        if write.state:
            rows = [
                {"number": segment.number, "count": len(segment.entries), **codec.content_of(segment)}
                for segment in write.state
            ]
            yield TransactionStep("ck.tx.state", do.add_state, rows)
        if write.outbound:
            rows = [segment_row("sender", segment.sender, segment) for segment in write.outbound]
            yield TransactionStep("ck.tx.outbox", do.send, rows)
        if write.consumed:
            rows = [codec.progress_row(receiver, consumed=number) for receiver, number in write.consumed.items()]
            yield TransactionStep("ck.tx.consumed", do.consume, rows)
        yield from self._dead("ck.tx.dead_letter", write.dead_letters)
        yield from self._discard(write.returned)
        if write.absolved:
            rows = [{name: getattr(one, name) for name in SUSPECT_KEY} for one in write.absolved]
            yield TransactionStep("ck.tx.absolve", do.absolve, rows)
        yield TransactionStep("ck.tx.meta", do.checkpoint, [checkpoint_row(cut)])

    def _registry(self, write: RegistryCommit) -> Iterator[TransactionStep | ForgetCuts]:
        do = self._statements
        if write.put:
            yield TransactionStep("cfg.tx.put", do.put_endpoint, [_endpoint_row(endpoint) for endpoint in write.put])
        if write.removed:
            owners = [{"owner": endpoint} for endpoint in write.removed]
            for statement in (*do.forget, do.forget_domain, do.forget_endpoint):
                yield TransactionStep("cfg.tx.forget", statement, owners)
            yield ForgetCuts("cfg.tx.forget.cuts", do, write.removed)

    def _suspects(self, write: SuspectCommit) -> Iterator[TransactionStep]:
        yield TransactionStep(
            "rec.tx.suspects.clear", self._statements.clear_suspects, [{"owner": one} for one in write.contexts]
        )
        if write.suspects:
            rows = [
                {**msgspec.structs.asdict(suspect), "crc": codec.content_of(suspect)["crc"]}
                for suspect in write.suspects
            ]
            yield TransactionStep("rec.tx.suspects", self._statements.put_suspects, rows)

    def _discard(self, numbers: Sequence[int]) -> Iterator[TransactionStep]:
        if numbers:
            yield TransactionStep("dl.tx.discard", self._statements.discard, [{"discarded": one} for one in numbers])

    def _dead(self, point: str, letters: Sequence[DeadLetter]) -> Iterator[TransactionStep]:
        """Give the next numbers to dead letters, and store the letters.

        The same transaction stores the last number.
        """
        if not letters:
            return
        rows = [
            {"number": number, "kind": letter.kind, "origin": letter.origin, **codec.content_of(letter)}
            for number, letter in enumerate(letters, self.dead_letters + 1)
        ]
        self.dead_letters += len(letters)
        yield TransactionStep(point, self._statements.dead_letter, rows)
        yield TransactionStep(point, self._statements.dead_letter_number, [{"number": self.dead_letters}])


def checkpoint_row(cut: codec.CheckpointContent) -> dict[str, Any]:
    """Return the row of a checkpoint, for the table `checkpoint`."""
    return {"id": THE_ROW, "number": cut.number, **codec.content_of(cut)}


def without(cut: codec.CheckpointContent, removed: Sequence[str]) -> codec.CheckpointContent:
    """Return a checkpoint without these endpoints. The caller removes the messages of these endpoints from the receive
    log.
    """
    return codec.CheckpointContent(
        cut.number,
        cut.engine_time,
        cut.digest,
        [_context_without(context, removed) for context in cut.contexts],
        [sender for sender in cut.senders if sender.sender not in removed],
    )


def _context_without(context: ContextCut, removed: Sequence[str]) -> ContextCut:
    return ContextCut(
        context.context,
        {receiver: number for receiver, number in context.entered.items() if receiver not in removed},
        [run for run in context.queue if run.receiver not in removed],
        context.spawned,
    )


def segment_row(owner_column: str, owner: str, segment: Any) -> dict[str, Any]:
    """Return the row of a segment of messages.

    Args:
        owner_column: `receiver` or `sender`.
        owner: id of the receiver or sender.
        segment: the segment.
    """
    last = segment.first + len(segment.messages) - 1
    return {owner_column: owner, "first": segment.first, "last": last, **codec.content_of(segment)}


def _ids_row(segment: IdSegment) -> dict[str, Any]:
    return {
        "domain": segment.domain,
        "number": segment.number,
        "receiver": segment.receiver,
        "count": sum(len(run.ids) for run in segment.runs),
        **codec.content_of(segment),
    }


def _endpoint_row(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "id": endpoint.id,
        "kind": endpoint.kind,
        "reliability": endpoint.reliability,
        "connection": endpoint.connection,
        "destination": endpoint.destination,
        "domain": endpoint.domain,
        **codec.content_of(endpoint),
    }


def _through(pairs: Any) -> list[dict[str, Any]]:
    return [{"owner": owner, "through": number} for owner, number in pairs]
