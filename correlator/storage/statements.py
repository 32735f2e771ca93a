"""The statements of the transactions of a store, compiled once for the dialect of its database."""

from sqlalchemy import Dialect, bindparam, delete, insert, or_, select, update
from sqlalchemy.sql import ClauseElement

from correlator.storage import tables
from correlator.storage.dialects import Statement, upsert

SUSPECT_KEY = ("context", "receiver", "first", "last")


class Statements:
    """The statements of commits. Their parameters are columns of the table, unless this list names others.

    Attributes:
        fence: changes the commit number; parameters `mine` (the epoch), `before` and `number`. It matches one row if no
            other engine has taken over, and no row otherwise.
        dead_letter_number: sets the last number of a dead letter; parameter `number`.
        confirm: raises `confirmed_batch` of a receiver, and never lowers it.
        consume: raises `consumed` of a receiver, and never lowers it.
        prune_receive_log: deletes the segments of a receiver (`owner`) that end at or before `through`.
        prune_outbox: deletes the segments of a sender (`owner`) that end at or before `through`.
        clear_suspects: deletes the suspects of a context (`owner`).
        absolve: deletes a suspect by its key.
        forget: deletes all messages of an endpoint (`owner`), with one statement for each table.
        forget_domain: deletes the ids of a receiver (`owner`), unless another receiver shares its duplicate detection
            domain; runs before `forget_endpoint`, which deletes the entry of the receiver.
    """

    def __init__(self, dialect: Dialect) -> None:
        def compiled(clause: ClauseElement) -> Statement:
            return Statement(dialect, clause)

        receive_log, outbox, progress = tables.receive_log, tables.outbox, tables.receive_progress
        self.fence = compiled(
            update(tables.engine)
            .where(tables.engine.c.epoch == bindparam("mine"), tables.engine.c.commit_number == bindparam("before"))
            .values(commit_number=bindparam("number"))
        )
        self.dead_letter_number = compiled(update(tables.engine).values(dead_letters=bindparam("number")))
        self.receive = compiled(insert(receive_log))
        self.put_ids = compiled(upsert(dialect, tables.accepted_ids))
        self.forget_ids = compiled(
            delete(tables.accepted_ids).where(
                tables.accepted_ids.c.domain == bindparam("domain"), tables.accepted_ids.c.number == bindparam("number")
            )
        )
        self.confirm = compiled(
            upsert(dialect, progress, only=["confirmed_batch", "confirmed_crc"], unless="confirmed_batch")
        )
        self.consume = compiled(upsert(dialect, progress, only=["consumed", "consumed_crc"], unless="consumed"))
        self.prune_receive_log = compiled(
            delete(receive_log).where(
                receive_log.c.receiver == bindparam("owner"),
                receive_log.c.first <= bindparam("through"),  # limits the search to a range of the primary key
                receive_log.c.last <= bindparam("through"),
            )
        )
        self.prune_outbox = compiled(
            delete(outbox).where(
                outbox.c.sender == bindparam("owner"),
                outbox.c.first <= bindparam("through"),
                outbox.c.last <= bindparam("through"),
            )
        )
        self.checkpoint = compiled(upsert(dialect, tables.checkpoint))
        self.add_state = compiled(insert(tables.state_log))
        self.drop_state = compiled(delete(tables.state_log).where(tables.state_log.c.number == bindparam("number")))
        self.send = compiled(insert(outbox))
        self.dead_letter = compiled(insert(tables.dead_letter))
        self.discard = compiled(delete(tables.dead_letter).where(tables.dead_letter.c.number == bindparam("discarded")))
        suspect = tables.suspect
        self.clear_suspects = compiled(delete(suspect).where(suspect.c.context == bindparam("owner")))
        self.put_suspects = compiled(upsert(dialect, suspect))
        self.absolve = compiled(delete(suspect).where(*(suspect.c[name] == bindparam(name) for name in SUSPECT_KEY)))
        self.put_endpoint = compiled(upsert(dialect, tables.endpoint))
        self.forget = [
            compiled(delete(table).where(column == bindparam("owner")))
            for table, column in (
                (receive_log, receive_log.c.receiver),
                (progress, progress.c.receiver),
                (outbox, outbox.c.sender),
            )
        ]
        self.forget_domain = compiled(_domains_of_nobody_else())
        self.forget_endpoint = compiled(delete(tables.endpoint).where(tables.endpoint.c.id == bindparam("owner")))


def _domains_of_nobody_else() -> ClauseElement:
    """Make the statement that deletes the ids of a receiver, except in a domain that another receiver shares."""
    ids, endpoint = tables.accepted_ids, tables.endpoint
    mine = select(endpoint.c.domain).where(endpoint.c.id == bindparam("owner"))
    others = select(endpoint.c.domain).where(endpoint.c.id != bindparam("owner"))
    return delete(ids).where(
        or_(ids.c.receiver == bindparam("owner"), ids.c.domain.in_(mine)), ids.c.domain.not_in(others)
    )
