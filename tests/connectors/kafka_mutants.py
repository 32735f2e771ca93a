"""Deliberate bugs of the connector for Kafka, with the test that finds each at a real broker.

Each mutant is a named patch of the connector, as in `tests.harness.mutants`. `EQUIVALENT` explains what no test can find.
"""

import functools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import pytest

from connectors.kafka.broker import KafkaBroker
from connectors.kafka.content import Decoder
from connectors.kafka.member import GroupMember
from connectors.kafka.partitions import AssignedPartition
from connectors.kafka.producer import KafkaProducer, _Flight
from correlator import Reliability
from tests.connectors import test_kafka as tests
from tests.harness.mutants.catalogue import Patches
from tests.kafka_server import KafkaServer
from tests.waiting import wait_until

EQUIVALENT = {
    "number_read_by_a_reader_of_uncommitted_offsets": "the number is read after `init_transactions`, which returns when"
    " the cluster has ended the open transaction of the source; until another producer takes the source over, no"
    " transaction of it is open, so both kinds of readers get the same number; and after another one has taken over, the"
    " commit of this producer fails, whatever it has read",
}
"""Bugs that change nothing, with the proof. Together with another bug such a bug may do harm, and is in the catalogue."""
_SHORT_S = 3.0
"""How long a test waits for what does not come with the bug."""
Check = Callable[[KafkaServer, pytest.MonkeyPatch], None]


class Mutant(NamedTuple):
    """A deliberate bug.

    Attributes:
        name: a name that never changes.
        sentence: what the bug does wrong.
        check: the test that finds it.
        found: how the test fails: `AssertionError`, or the code of an error of the connector.
        patch: puts the bug into the code.
    """

    name: str
    sentence: str
    check: Check
    found: str
    patch: Callable[[Patches], None]


CATALOGUE: dict[str, Mutant] = {}


def _mutant(name: str, sentence: str, check: Check, found: str = "AssertionError") -> Callable[[Any], Any]:
    def enter(patch: Callable[[Patches], None]) -> Callable[[Patches], None]:
        assert name not in CATALOGUE, name
        CATALOGUE[name] = Mutant(name, sentence, check, found, patch)
        return patch

    return enter


# --- senders ---


def _at_the_last_moment(kafka: KafkaServer, patched: pytest.MonkeyPatch) -> None:
    tests.test_what_an_earlier_life_commits_at_the_last_moment_counts(kafka, patched)


@_mutant(
    "number_read_before_init",
    "the number of a source is read while the transaction of an earlier life is open",
    _at_the_last_moment,
    "E7023",
)
def number_read_before_init(patches: Patches) -> None:
    """The cluster does not answer before it knows the outcome of the transaction, which may never end."""

    def begin(_original: Any) -> Any:
        def read_group(self: KafkaProducer, _topic: str) -> None:
            self._group = self._call(self._group_of_name)

        return read_group

    def numbers(original: Any) -> Any:
        def read(self: KafkaProducer, topics: Collection[str]) -> Any:
            found = original(self, topics)
            self._opened.init_transactions(self._broker.timeout_s)
            return found

        return read

    patches.replace(KafkaProducer, "begin", begin)
    patches.replace(KafkaProducer, "numbers", numbers)


@_mutant(
    "number_read_uncommitted_before_init",
    "the number of a source is read before the transaction of an earlier life is committed",
    _at_the_last_moment,
)
def number_read_uncommitted_before_init(patches: Patches) -> None:
    """The number does not count what the earlier life commits after that, so the sink sends it again."""
    number_read_before_init(patches)
    _change_consumer(patches, {"isolation.level": "read_uncommitted"})


@_mutant(
    "refusals_not_looked_at",
    "a message that the broker refuses counts as stored",
    lambda kafka, _: tests.test_what_only_the_broker_knows_to_be_wrong_is_found(kafka, Reliability.AT_LEAST_ONCE),
)
def refusals_not_looked_at(patches: Patches) -> None:
    """No callback tells the sink that a message is not stored."""
    patches.replace(_Flight, "refuse", lambda _: lambda *_args, **_options: None)


@_mutant(
    "expired_transaction_taken_for_a_rival",
    "a transaction that has expired is reported as if another producer had taken over",
    lambda kafka, patched: tests.test_a_transaction_that_expired_is_no_rival(kafka, patched, "offsets"),
    "E7061",
)
def expired_transaction_taken_for_a_rival(patches: Patches) -> None:
    """The error is the same; only the duration of the transaction tells them apart."""
    patches.replace(KafkaProducer, "_check_age", lambda _: lambda *_args: None)


# --- receivers ---


def _after_a_move(kafka: KafkaServer, patched: pytest.MonkeyPatch) -> None:
    patched.setattr(tests, "wait_until", functools.partial(wait_until, within_s=_SHORT_S))
    tests.test_a_late_acknowledgement_of_a_partition_that_moved_has_no_effect(kafka)


def _after_retention(kafka: KafkaServer, patched: pytest.MonkeyPatch) -> None:
    patched.setattr(tests, "PATIENCE_S", _SHORT_S)
    tests.test_what_retention_removes_while_a_receiver_holds_it_is_not_left_out_silently(kafka)


@_mutant(
    "own_offset_acknowledged",
    "the offset of the last message is acknowledged, not that of the next one",
    lambda kafka, _: tests.test_the_acknowledged_offset_is_that_of_the_next_message(kafka),
)
def own_offset_acknowledged(patches: Patches) -> None:
    """The last message of each batch comes again after a restart."""
    patches.replace(GroupMember, "_position", lambda original: lambda self, one: max(0, int(original(self, one)) - 1))


@_mutant(
    "late_acknowledgement_counts",
    "a message is acknowledged after its partition has moved to another member of the group",
    _after_a_move,
)
def late_acknowledgement_counts(patches: Patches) -> None:
    """The cluster accepts it, so after a crash the other member leaves out messages that it has not handled."""
    before: list[AssignedPartition] = []

    def revoke(original: Any) -> Any:
        def remember(self: GroupMember, consumer: Any, places: Any) -> None:
            before.extend(self.assigned.values())
            original(self, consumer, places)

        return remember

    def by_partition(original: Any) -> Any:
        def with_earlier(self: GroupMember, given: Any) -> Any:
            numbers = [(one, [number for epoch, number in given if epoch == one.epoch]) for one in before]
            return [*original(self, given), *((one, taken) for one, taken in numbers if taken)]

        return with_earlier

    patches.replace(GroupMember, "_on_revoke", revoke)
    patches.replace(GroupMember, "_by_partition", by_partition)


@_mutant(
    "earliest_after_retention",
    "the client goes on at the oldest message if the topic does not hold the next one any more",
    _after_retention,
)
def earliest_after_retention(patches: Patches) -> None:
    """Messages are left out, and nobody learns of it."""
    _change_consumer(patches, {"auto.offset.reset": "earliest"})


@_mutant(
    "unique_id_without_topic_id",
    "the unique id of a message names its place, but not which of the topics with this name it is in",
    lambda kafka, _: tests.test_a_topic_that_was_made_again_is_read_from_its_beginning(kafka),
)
def unique_id_without_topic_id(patches: Patches) -> None:
    """If a topic is made again, its new messages are taken for repeats of the old ones."""

    def make(original: Any) -> Any:
        return lambda self, _topic_id, *arguments, **options: original(self, "", *arguments, **options)

    patches.replace(Decoder, "__init__", make)


def _change_consumer(patches: Patches, settings: dict[str, str]) -> None:
    patches.replace(KafkaBroker, "of_consumer", lambda original: lambda self, group: original(self, group) | settings)
