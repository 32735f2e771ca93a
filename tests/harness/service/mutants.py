"""Deliberate bugs of the message service, with the check that finds each: runs with kills, losses of power, or a test.

Each mutant is a named patch of the product's code, as in `tests.harness.mutants`. `NONE` explains bugs for which the
design leaves no place.
"""

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from sqlalchemy import Connection, event

from connectors.embedded import (
    claiming,
    consumers,
    dead,
    destinations,
    evicting,
    limits,
    link,
    moving,
    schema,
    service,
    settling,
    source,
    starting,
    storing,
    subscribing,
    sweeping,
    tally,
    waking,
)
from connectors.embedded.claiming import Claimed, Holder
from connectors.embedded.database import SqliteTransaction
from connectors.embedded.scan import Scan
from connectors.embedded.sql import Sql
from connectors.messaging.completions import Completions
from connectors.messaging.connection import Connection as ProgramConnection
from connectors.messaging.consumer import Consumer
from connectors.messaging.deliveries import AcknowledgeMode
from connectors.messaging.intake import Intake
from connectors.messaging.producer import Producer
from correlator.connector import Work
from correlator.testing.files import write_json
from tests.harness.mutants.catalogue import Patches
from tests.harness.service import roles
from tests.harness.service.campaign import FileStores, ServiceFigures, run_seed
from tests.harness.service.life import fork, shorten_waits
from tests.harness.service.power import power

NONE = {
    "claims_beyond_a_bound_not_reset": "a claim has no lower bound of numbers that a return would have to reset: it"
    " reads the index of ready messages from its beginning",
}
"""Bugs for which the design leaves no place, with the reason."""
_NOTHING = Sql("SELECT 1")
_QUIETLY = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
_TESTS = "tests/connectors/test_embedded_"


class Check(NamedTuple):
    """The check that finds a mutant.

    Attributes:
        kind: `kills`, `power` or `test`.
        test: the id of the test.
        cast: the roles of the processes of the runs.
        seed: the first seed.
        budget: number of runs or images in which the mutant must be found.
        expected: ids of violations, of which one must be found.
    """

    kind: str
    test: str = ""
    cast: roles.Cast = roles.ROLES
    seed: int = 1
    budget: int = 40
    expected: frozenset[str] = frozenset()


class Mutant(NamedTuple):
    """A deliberate bug: its effect, the check that finds it, and how it is put into the code."""

    sentence: str
    check: Check
    patch: Callable[[Patches], None]


CATALOGUE: dict[str, Mutant] = {}
Patch = Callable[[Patches], None]


def _mutant(name: str, sentence: str, check: Check) -> Callable[[Patch], Patch]:
    def enter(patch: Patch) -> Patch:
        assert name not in CATALOGUE, name
        CATALOGUE[name] = Mutant(sentence, check, patch)
        return patch

    return enter


def _kills(*expected: str, seed: int = 1, budget: int = 40, cast: Sequence[Callable[..., None]] = ()) -> Check:
    wanted = dict.fromkeys(cast, 1) if cast else roles.ROLES
    return Check("kills", cast=wanted, seed=seed, budget=budget, expected=frozenset(expected))


def _test(name: str) -> Check:
    return Check("test", test=name)


def _in_two(connection: Connection) -> None:
    """End the transaction, and begin another one."""
    raw = connection.connection.cursor()
    raw.execute("COMMIT")
    raw.execute("BEGIN IMMEDIATE" if connection.dialect.name == "sqlite" else "BEGIN")


def _sql(patches: Patches, owner: Any, name: str, change: Callable[[str], str]) -> None:
    """Change the text of a statement."""

    def changed(original: Sql) -> Sql:
        texts = {dialect: change(text) for dialect, text in original._texts.items()}
        assert texts != original._texts, name
        return Sql(texts["sqlite"], texts["postgresql"])

    patches.replace(owner, name, changed)


# --- settling ---


@_mutant(
    "acknowledged_before_sent",
    "a transaction commits what it acknowledges, then what it sends",
    _kills("ATOMIC", "PREPARED", "LOST", cast=(roles.feed, roles.take_and_send)),
)
def _(patches: Patches) -> None:
    def settle(original: Any) -> Any:
        def mutated(self: Any, work: Work) -> None:
            original(self, Work(work.acknowledged, []))
            original(self, Work([], work.sends))

        return mutated

    patches.replace(service.EmbeddedSession, "settle", settle)


@_mutant(
    "sent_before_acknowledged",
    "a transaction commits what it sends, then what it acknowledges",
    _kills("ATOMIC", cast=(roles.feed, roles.take_and_send)),
)
def _(patches: Patches) -> None:
    def settle(original: Any) -> Any:
        def mutated(self: Any, work: Work) -> None:
            original(self, Work([], work.sends))
            original(self, Work(work.acknowledged, []))

        return mutated

    patches.replace(service.EmbeddedSession, "settle", settle)


@_mutant(
    "settled_without_sync",
    "the commit of a transaction does not wait for the disk",
    Check("power", budget=3000, expected=frozenset({"LOST", "AGAIN", "PREPARED"})),
)
def _(patches: Patches) -> None:
    patches.replace(
        service.EmbeddedSession,
        "_commit",
        lambda original: lambda self, do, synced=True: original(self, do, synced=False),
    )


@_mutant(
    "row_count_ignored",
    "a consumer that does not hold its messages any more acknowledges them",
    _test(_TESTS + "service.py::test_who_was_struck_off_settles_nothing[sqlite]"),
)
def _(patches: Patches) -> None:
    patches.replace(settling, "acknowledge", lambda original: lambda *given: original(*given) or True)


@_mutant(
    "returned_with_a_new_number",
    "a message that is given back gets a new number",
    _test(_TESTS + "service.py::test_priority_then_number_and_what_is_returned_keeps_its_place[sqlite]"),
)
def _(patches: Patches) -> None:
    def reject(original: Any) -> Any:
        def mutated(connection: Connection, holder: Holder, numbers: Sequence[int]) -> None:
            original(connection, holder, numbers)
            for number in numbers:
                (new,) = storing.draw(connection, "", 1).numbers
                for table in ("content", "delivery"):
                    connection.exec_driver_sql(f"UPDATE broker_{table} SET number = {new} WHERE number = {number}")

        return mutated

    patches.replace(settling, "reject", reject)


@_mutant(
    "content_goes_with_the_first_reference",
    "the acknowledgement of one subscription deletes the message of all",
    _kills("ROWS", cast=(roles.send_in_transactions, roles.consume_shared)),
)
def _(patches: Patches) -> None:
    patches.replace(
        settling,
        "leave",
        lambda original: (
            lambda connection, holder, *given: original(connection, holder._replace(is_queue=True), *given)
        ),
    )


@_mutant(
    "references_from_an_old_read",
    "the references of a message are counted from those that it had once",
    _kills("ROWS", cast=(roles.send_in_transactions, roles.consume_shared)),
)
def _(patches: Patches) -> None:
    before = "(SELECT count(*) FROM broker_subscription s WHERE s.destination = broker_content.destination)"
    _sql(patches, settling, "_LET_GO", lambda text: text.replace("refs_left = refs_left -", f"refs_left = {before} -"))


@_mutant(
    "tally_outside_the_transaction",
    "messages are counted after the commit that stores or removes them",
    _kills("ROWS", cast=(roles.send, roles.consume)),
)
def _(patches: Patches) -> None:
    def add(original: Any) -> Any:
        def mutated(connection: Connection, *given: int) -> None:
            _in_two(connection)
            original(connection, *given)

        return mutated

    patches.replace(tally, "add", add)


# --- the start ---


@_mutant(
    "not_persistent_kept",
    "the start of the broker keeps what is not persistent",
    _kills("PASSING", cast=(roles.send, roles.consume)),
)
def _(patches: Patches) -> None:
    for name in ("_TALLY", "_DELIVERIES", "_CONTENT"):
        patches.replace(starting, name, lambda _: _NOTHING)


@_mutant(
    "started_while_another_lives",
    "whoever opens the broker starts it, also while another process has it open",
    _kills("START", cast=(roles.send, roles.consume)),
)
def _(patches: Patches) -> None:
    patches.replace(link.SqliteLink, "is_first", lambda _: lambda self: True)


@_mutant(
    "prepared_rolled_back_at_the_start",
    "the start of the broker rolls back prepared transactions",
    _kills("PREPARED", "FAILED", cast=(roles.feed, roles.prepare)),
)
def _(patches: Patches) -> None:
    def start(original: Any) -> Any:
        def mutated(connection: Connection, lives: Any) -> None:
            original(connection, lives)
            for (tx,) in connection.exec_driver_sql("SELECT id FROM broker_tx WHERE state = 'PREPARED'").all():
                settling.return_prepared(connection, tx)
                connection.exec_driver_sql(f"DELETE FROM broker_tx_send WHERE tx = {tx}")
                connection.exec_driver_sql(f"UPDATE broker_tx SET state = 'ROLLEDBACK' WHERE id = {tx}")

        return mutated

    patches.replace(link, "start", start)


# --- prepared transactions ---


@_mutant(
    "prepared_sends_visible",
    "what a prepared transaction sends comes at once",
    _kills("PREPARED", "GHOST", cast=(roles.feed, roles.prepare, roles.consume)),
)
def _(patches: Patches) -> None:
    def prepare(original: Any) -> Any:
        def mutated(self: Any, name: str, work: Work) -> None:
            original(self, name, work)
            self.settle(Work([], work.sends))

        return mutated

    patches.replace(service.EmbeddedSession, "prepare", prepare)


@_mutant(
    "prepared_returned_at_strike_off",
    "whoever strikes off a dead consumer returns what prepared transactions have acknowledged",
    _kills("PREPARED", "AGAIN", "ROWS", cast=(roles.feed, roles.prepare)),
)
def _(patches: Patches) -> None:
    def strike_off(original: Any) -> Any:
        def mutated(connection: Connection, subscription: int, *given: Any) -> None:
            original(connection, subscription, *given)
            connection.exec_driver_sql(
                f"UPDATE broker_delivery SET state = 0, consumer = 0 WHERE state = 3 AND subscription = {subscription}"
            )

        return mutated

    patches.replace(consumers, "strike_off", strike_off)


# --- the dead ---


@_mutant(
    "backup_promoted_before_strike_off",
    "a dead consumer does not count, though its messages are not ready yet",
    _test(_TESTS + "backups.py::test_a_dead_consumer_counts_until_its_messages_are_ready[sqlite]"),
)
def _(patches: Patches) -> None:
    def is_backup(_: Any) -> Any:
        def mutated(self: Any) -> bool:
            if self._holder.max_active < 0:
                return False
            open_ = self._open_link()
            with self._access.reading(self._where, open_) as connection:
                others = consumers.of_subscription(connection, self._holder.subscription)
                earlier = [one for one in others if one.id < self._holder.consumer and not open_.is_dead(str(one.id))]
            return bool(len(earlier) >= self._holder.max_active)

        return mutated

    patches.replace(source.EmbeddedSource, "_is_backup", is_backup)


@_mutant(
    "struck_off_by_age",
    "a consumer is dead when it is some time old",
    _kills("FAILED", "SHARED", "AGAIN", "BROKEN", cast=(roles.send, roles.consume)),
)
def _(patches: Patches) -> None:
    def is_dead(original: Any) -> Any:
        def mutated(self: Any, name: str) -> bool:
            try:
                age_s = time.time() - (self._lives / name).stat().st_mtime
            except FileNotFoundError:
                return True
            return age_s > 0.1 or bool(original(self, name))

        return mutated

    patches.replace(link.SqliteLink, "is_dead", is_dead)


@_mutant(
    "struck_off_in_two_steps",
    "a dead consumer is removed in one transaction, and what it held returns in another one",
    _kills("ROWS", "STUCK", budget=80, cast=(roles.send_in_order, roles.consume_in_order, roles.consume_in_order)),
)
def _(patches: Patches) -> None:
    def strike_off(original: Any) -> Any:
        def mutated(connection: Connection, subscription: int, consumer: Any, boot: str) -> None:
            connection.exec_driver_sql(f"DELETE FROM broker_consumer WHERE id = {consumer.id}")
            _in_two(connection)
            original(connection, subscription, consumer, boot)

        return mutated

    patches.replace(consumers, "strike_off", strike_off)


@_mutant(
    "redelivered_from_the_count",
    "after a loss of power a message is not marked whose claim was lost",
    Check("power", budget=6000, expected=frozenset({"FLAG"})),
)
def _(patches: Patches) -> None:
    patches.replace(
        subscribing,
        "subscribe",
        lambda original: lambda *given: original(*given)._replace(suspect_through=0),
    )


@_mutant(
    "suspects_together",
    "what a dead consumer held is claimed at once, so that the neighbours of a poison message suffer",
    _test(_TESTS + "service.py::test_suspects_come_one_by_one_and_only_the_poison_counts_on[sqlite]"),
)
def _(patches: Patches) -> None:
    patches.replace(
        claiming,
        "within",
        lambda original: lambda ready, bounds, suspects_alone: original(ready, bounds, suspects_alone=False),
    )


@_mutant(
    "suspects_counted_late",
    "the claim of a suspect does not count it",
    _test(_TESTS + "service.py::test_a_suspect_is_counted_in_the_commit_that_claims_it[sqlite]"),
)
def _(patches: Patches) -> None:
    _sql(patches, claiming, "_TAKE", lambda text: text.replace(", deliveries = deliveries + :suspect", ""))


# --- the dead message queue, limits, and times ---


@_mutant(
    "buried_before_it_leaves",
    "a message is in the queue of dead messages before it has left its own",
    _test(_TESTS + "dead.py::test_a_death_and_the_end_of_the_message_are_one_transaction[sqlite]"),
)
def _(patches: Patches) -> None:
    def bury(original: Any) -> Any:
        def mutated(connection: Connection, *given: Any) -> None:
            original(connection, *given)
            _in_two(connection)

        return mutated

    patches.replace(dead, "bury", bury)


@_mutant(
    "limit_checked_before_the_transaction",
    "a sender counts what a destination holds before it has its turn",
    _kills("ROWS", cast=(roles.send,)),
)
def _(patches: Patches) -> None:
    before: dict[tuple[int, str], Any] = {}

    def find(original: Any) -> Any:
        def mutated(connection: Connection, name: str) -> Any:
            found = original(connection, name)
            if found is None or found.messages is None:
                return found
            last = before.get((os.getpid(), name), found)
            before[os.getpid(), name] = found
            return found._replace(messages=last.messages)

        return mutated

    patches.replace(destinations, "find", find)


@_mutant(
    "oldest_removed_while_held",
    "a message that makes room for others may be one that a consumer holds",
    _test(_TESTS + "limits.py::test_what_somebody_holds_does_not_go"),
)
def _(patches: Patches) -> None:
    for name in ("_OLDEST", "_OLDEST_OF_RANK"):
        _sql(
            patches,
            evicting,
            name,
            lambda text: text.replace("deliveries, state", "deliveries, 0").replace("(0, 2)", "(0, 1, 2)"),
        )

    def remove(original: Any) -> Any:
        def mutated(connection: Connection, there: Any, victims: Sequence[Any]) -> None:
            for victim in victims:
                connection.exec_driver_sql(
                    f"UPDATE broker_delivery SET state = 0, consumer = 0 WHERE number = {victim.number}"
                )
            original(connection, there, victims)

        return mutated

    patches.replace(evicting, "remove", remove)


@_mutant(
    "victims_go_before_the_commit",
    "a message makes room for one whose transaction is rolled back",
    _test(_TESTS + "limits.py::test_victims_stay_if_the_send_is_rolled_back[sqlite]"),
)
def _(patches: Patches) -> None:
    def remove(original: Any) -> Any:
        def mutated(connection: Connection, *given: Any) -> None:
            original(connection, *given)
            _in_two(connection)

        return mutated

    patches.replace(evicting, "remove", remove)


@_mutant(
    "refused_and_dead",
    "a message that is refused goes to the queue of dead messages",
    _kills("GHOST", "DEAD", cast=(roles.send,)),
)
def _(patches: Patches) -> None:
    def turn_away(original: Any) -> Any:
        def mutated(self: Any, arrival: Any) -> None:
            original(self, arrival)
            if arrival.at in self._verdict.refused:
                self._outdone.append(arrival)

        return mutated

    patches.replace(limits.Gatekeeper, "_turn_away", turn_away)


@_mutant(
    "expired_messages_claimed",
    "only the sweeper looks whether a message has expired",
    _test(_TESTS + "service.py::test_an_expired_message_is_never_handed_over[sqlite]"),
)
def _(patches: Patches) -> None:
    def claimed(original: Any) -> Any:
        def mutated(*given: Any) -> list[Claimed]:
            return [one._replace(ends="") for one in original(*given)]

        return mutated

    patches.replace(claiming, "_claimed", claimed)


@_mutant(
    "delay_from_the_clock_of_the_client",
    "the delay of a message is counted by the clock of the sender's host",
    _test(_TESTS + "promises.py::test_times_are_those_of_the_server"),
)
def _(patches: Patches) -> None:
    def append(original: Any) -> Any:
        def mutated(connection: Connection, there: Any, readers: Any, fresh: Any, _: int) -> Any:
            return original(connection, there, readers, fresh, time.time_ns() // 1_000_000)

        return mutated

    patches.replace(storing, "append", append)


@_mutant(
    "two_sweepers",
    "each process that may tidy up does so",
    _test(_TESTS + "sweeper.py::test_one_sweeper_is_elected_at_a_time[sqlite]"),
)
def _(patches: Patches) -> None:
    patches.replace(sweeping, "elected", lambda _: lambda _link: True)


# --- waking, processes, ids ---


@_mutant(
    "waits_without_another_look",
    "a consumer waits for the next ring, and has not seen the one since its look",
    _test("tests/connectors/test_waking.py::test_what_has_rung_before_the_wait_wakes_at_once[sqlite]"),
)
def _(patches: Patches) -> None:
    def wait_for_any(original: Any) -> Any:
        def mutated(self: Any, names: Any, _: int, timeout_s: float) -> Any:
            wanted = list(names)
            return original(self, wanted, self.rung(*wanted), timeout_s)

        return mutated

    patches.replace(waking.Bells, "wait_for_any", wait_for_any)


@_mutant(
    "lazily_acknowledged_before_handed_over",
    "mode DUPS_OK acknowledges what a program has not got yet",
    _kills("LOST", cast=(roles.send_plainly, roles.consume_lazily)),
)
def _(patches: Patches) -> None:
    def init(original: Any) -> Any:
        def mutated(
            self: Any, where: str, source_: Any, unacknowledged: Any, mode: AcknowledgeMode, *more: Any
        ) -> None:
            taken = AcknowledgeMode.NO_ACKNOWLEDGE if mode is AcknowledgeMode.DUPS_OK else mode
            original(self, where, source_, unacknowledged, taken, *more)

        return mutated

    patches.replace(Intake, "__init__", init)


@_mutant(
    "client_id_released_before_its_consumers",
    "a connection that closes releases its client id before its consumers have ended",
    _test(_TESTS + "promises.py::test_a_client_id_is_free_when_its_consumers_have_ended[sqlite]"),
)
def _(patches: Patches) -> None:
    def close(original: Any) -> Any:
        def mutated(self: Any) -> None:
            if self._client is not None:
                self._client.close()
            original(self)

        return mutated

    patches.replace(ProgramConnection, "close", close)


@_mutant(
    "message_ids_counted_in_memory",
    "the id of a message is a number that each process counts from 1",
    _kills("IDS", cast=(roles.send, roles.consume)),
)
def _(patches: Patches) -> None:
    def init(original: Any) -> Any:
        def mutated(self: Any, *given: Any, **named: Any) -> None:
            original(self, *given, **named)
            self._life = "program"

        return mutated

    patches.replace(Producer, "__init__", init)


@_mutant(
    "migrated_without_a_transaction",
    "a revision of the schema is not one transaction",
    _test(_TESTS + "migration.py::test_a_death_at_any_statement_loses_nothing"),
)
def _(patches: Patches) -> None:
    def upgrade(original: Any) -> Any:
        def mutated(connection: Connection, found: str) -> None:
            event.listen(connection, "after_cursor_execute", _commit_changes)
            original(connection, found)

        return mutated

    patches.replace(schema, "upgrade", upgrade)


def _commit_changes(_: Any, cursor: Any, statement: str, *_given: Any) -> None:
    """Commit after each statement of SQLite that changes something."""
    if statement.split(maxsplit=1)[0] in ("CREATE", "DROP", "INSERT", "UPDATE", "DELETE", "ALTER"):
        cursor.connection.execute("COMMIT")
        cursor.connection.execute("BEGIN IMMEDIATE")


@_mutant(
    "not_persistent_flushed_late",
    "a persistent message overtakes those before it that are not persistent",
    _test(
        "tests/connectors/test_messaging_conformance.py"
        "::test_q3_a_persistent_message_waits_for_those_before_it[embedded]"
    ),
)
def _(patches: Patches) -> None:
    patches.replace(Completions, "flush", lambda _: lambda self: None)


@_mutant(
    "moved_in_two_transactions",
    "a move removes messages in one transaction, and stores them in another one",
    _kills("LOST", cast=(roles.send, roles.administer)),
)
def _(patches: Patches) -> None:
    def take(original: Any) -> Any:
        def mutated(connection: Connection, *given: Any) -> None:
            original(connection, *given)
            _in_two(connection)

        return mutated

    patches.replace(moving, "take", take)


@_mutant(
    "gate_released_before_the_commit",
    "a writer gives up its turn before it has committed",
    _test(_TESTS + "promises.py::test_a_writer_keeps_its_turn_until_it_has_committed"),
)
def _(patches: Patches) -> None:
    def transaction(_: Any) -> Any:
        @contextmanager
        def mutated(self: Any, *, synced: bool = True) -> Iterator[Connection]:
            with ExitStack() as transaction:
                with self._turn:
                    transaction.enter_context(SqliteTransaction(self._raw, "BEGIN IMMEDIATE"))
                yield self.connection

        return mutated

    patches.replace(link.SqliteLink, "transaction", transaction)


@_mutant(
    "numbers_drawn_ahead",
    "a session of the server draws twenty numbers ahead, so that numbers do not follow the order of sending",
    _test(_TESTS + "promises.py::test_messages_of_two_senders_come_in_the_order_of_sending[postgres]"),
)
def _(patches: Patches) -> None:
    def upgrade(original: Any) -> Any:
        def mutated(connection: Connection, found: str) -> None:
            original(connection, found)
            if connection.dialect.name == "postgresql":
                with connection.begin():
                    connection.exec_driver_sql("ALTER SEQUENCE broker_number CACHE 20")

        return mutated

    patches.replace(schema, "upgrade", upgrade)


@_mutant(
    "subscription_deleted_without_its_messages",
    "the messages of a deleted subscription stay until somebody finds them",
    _kills("ROWS", "LEFT", cast=(roles.send, roles.consume_passing)),
)
def _(patches: Patches) -> None:
    for name in ("_SUBSCRIPTION_LETS_GO", "_TALLY_UNREFERENCED", "_DELETE_UNREFERENCED", "_DELETE_DELIVERIES"):
        patches.replace(destinations, name, lambda _: _NOTHING)


@_mutant(
    "closed_consumer_drops_duties",
    "what a closed consumer got is not acknowledged by the session any more",
    _test(_TESTS + "promises.py::test_a_transaction_acknowledges_what_a_closed_consumer_got[sqlite]"),
)
def _(patches: Patches) -> None:
    def close(original: Any) -> Any:
        def mutated(self: Any) -> None:
            if not self._closed:
                self._holdings.unacknowledged.forget(self._intake)
            original(self)

        return mutated

    patches.replace(Consumer, "close", close)


@_mutant(
    "passed_over_at_once",
    "a consumer with a selector passes over a number that a slower sender has drawn",
    _test(_TESTS + "promises.py::test_a_message_that_is_committed_late_is_not_passed_over"),
)
def _(patches: Patches) -> None:
    def look_on(original: Any) -> Any:
        def mutated(self: Any, *given: Any) -> None:
            original(self, *given)
            self._pass(self._through)

        return mutated

    patches.replace(Scan, "_look_on", look_on)


@_mutant(
    "number_drawn_before_the_transaction_has_an_id",
    "a sender draws its numbers before its transaction has an id",
    _test(_TESTS + "promises.py::test_a_message_that_is_committed_late_is_not_passed_over"),
)
def _(patches: Patches) -> None:
    _sql(patches, storing, "_DRAW", lambda text: text.replace("SELECT pg_current_xact_id()", "SELECT 0"))


# --- hunting ---


class Fate(msgspec.Struct, frozen=True):
    """The fate of a mutant: what found it, after how many runs or images; nothing if it survives."""

    name: str
    kind: str
    found: list[str]
    runs: int

    def line(self) -> str:
        """Return the fate as one line."""
        by = f"killed after {self.runs:4} by {', '.join(self.found)}" if self.found else f"SURVIVED {self.runs}"
        return f"{self.name:46} {self.kind:6} {by}"


def hunt(name: str, directory: Path) -> Fate:
    """Let a separate process have the bug, and see whether its check finds it."""
    mutant = CATALOGUE[name]
    report = directory / "fate"
    report.unlink(missing_ok=True)

    def seek() -> None:
        patches = Patches()
        if mutant.check.kind != "test":
            shorten_waits()
        mutant.patch(patches)
        report.write_bytes(msgspec.json.encode(_found_by(mutant.check, name)))

    status = os.waitstatus_to_exitcode(os.waitpid(fork(directory, seek), 0)[1])
    if status:
        log = (directory / "log").read_text(errors="replace").strip().splitlines()
        raise SystemExit(f"the hunt for {name} ended with status {status}: {log[-1:]}")
    return msgspec.json.decode(report.read_bytes(), type=Fate)


def passes(test: str, directory: Path) -> bool:
    """Return whether a test passes without any bug."""

    def check() -> None:
        assert pytest.main([*_QUIETLY, test]) == pytest.ExitCode.OK

    return os.waitpid(fork(directory, check), 0)[1] == 0


def _found_by(check: Check, name: str) -> Fate:
    if check.kind == "test":
        return Fate(name, check.kind, [check.test] if _fails(check.test) else [], 1)
    if check.kind == "power":
        figures = power(check.budget, seed=check.seed, most_bad=1)
        return Fate(name, check.kind, sorted(check.expected & figures.by_violation.keys()), figures.images)
    stores = FileStores()
    for runs in itertools.count(1):
        found = run_seed(check.seed + runs - 1, stores, ServiceFigures(), check.cast, keeps=False)
        ids = sorted(check.expected & {one.id for one in found})
        if ids or runs >= check.budget:
            return Fate(name, check.kind, ids, runs)
    raise AssertionError


def _fails(test: str) -> bool:
    return pytest.main([*_QUIETLY, test]) == pytest.ExitCode.TESTS_FAILED


class MutantsReport(msgspec.Struct, frozen=True):
    """The figures of a hunt for all mutants."""

    mutants: int
    survived: int
    seconds: float
    fates: list[Fate]


def command(report: Path | None, names: Sequence[str] = ()) -> int:
    """Hunt mutants, all without `names`; return 1 if one survives, or if a test fails without a bug."""
    began = time.monotonic()
    fates: list[Fate] = []
    bad = 0
    with tempfile.TemporaryDirectory(prefix="correlator-mutants-") as place:
        directory = Path(place)
        chosen = names or list(CATALOGUE)
        for test in sorted({CATALOGUE[name].check.test for name in chosen} - {""}):
            if not passes(test, directory):
                bad += 1
                sys.stdout.write(f"{test} fails without a bug\n")
        for name in chosen:
            fates.append(hunt(name, directory))
            sys.stdout.write(fates[-1].line() + "\n")
            sys.stdout.flush()
    survived = sum(not one.found for one in fates)
    seconds = round(time.monotonic() - began, 2)
    sys.stdout.write(f"{len(fates)} mutants, {survived} survived, {len(NONE)} have no place, {seconds:.0f} s\n")
    if report:
        write_json(report, MutantsReport(len(fates), survived, seconds, fates))
    return 1 if survived or bad else 0
