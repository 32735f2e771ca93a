"""Crash tests of an engine whose dead letters go out through a sender (docs/dead-letters.md)."""

import pytest

from correlator.core.commit import DiscardCommit
from correlator.core.staging import Staging
from correlator.runtime.forwarding import Forwarder
from correlator.runtime.requests import DiscardRequest
from correlator.testing.crashtest.levels import opened
from tests.crash.projects import assert_holds_at, project, searched

ENGINE = """
name: orders
store: sqlite:///orders.db
connections:
  local: {type: embedded}
receivers:
  - {id: orders, connection: local, destination: "queue:orders", reliability: EXACTLY_ONCE, event: "app:Order",
     max_batch_size: 3}
senders:
  - {id: bills, connection: local, destination: "queue:bills", reliability: EXACTLY_ONCE}
  - {id: letters, connection: local, destination: "queue:letters", reliability: EXACTLY_ONCE}
monitors:
  - {type: "app:Picky", on_error: dead_letter}
dead_letter_sender: letters
"""
PICKY = """
class Picky(Monitor, persistent=True):
    total: int = 0

    @on(Order)
    def order(self, order):
        if order.id % 3 == 0:
            raise ValueError("a third")
        self.total += 1
        self.send(Bill(id=order.id, total=self.total), to="bills")
"""


def every_order_has_a_bill_or_a_letter(world):
    world.publish("queue:orders", [*({"id": number} for number in range(12)), b"not JSON"])
    world.run_until_quiet()
    world.check()
    billed = world.sent("bills").values("id")
    letters = [bytes(one.body) for one in world.sent("letters")]
    assert billed == [number for number in range(12) if number % 3]
    assert sorted(letters) == [b"not JSON", *(b'{"id":%d}' % number for number in (0, 3, 6, 9))]
    assert world.dead_letters() == []


@pytest.mark.parametrize(("level", "runs"), [("sim", 30), pytest.param("kill9", 8, marks=pytest.mark.kill9)])
def test_no_crash_loses_or_doubles_a_letter(tmp_path, level, runs):
    directory = project(tmp_path, PICKY, ENGINE)
    with opened(level, directory / "engine.yaml") as opened_level:
        assert_holds_at(opened_level, every_order_has_a_bill_or_a_letter, singles=runs, drawn=runs)


def deleted_too_early(forwarder, found):
    """Delete the letters in a transaction of their own, and stage the sends for the next checkpoint."""
    forwarder._writer.submit(DiscardRequest(DiscardCommit(numbers=[number for number, _ in found])), lambda _: None)
    return stage(forwarder, found)


def never_deleted(staging, sender, message, _number):
    """Stage the send, and leave the letter in the store."""
    staging.sends[sender].append(message)


stage = Forwarder._stage


@pytest.mark.parametrize(
    ("owner", "method", "wrong"),
    [(Forwarder, "_stage", deleted_too_early), (Staging, "bring_back", never_deleted)],
)
def test_a_wrong_forwarder_is_found(tmp_path, monkeypatch, owner, method, wrong):
    monkeypatch.setattr(owner, method, wrong)
    with opened("sim", project(tmp_path, PICKY, ENGINE) / "engine.yaml") as level:
        assert searched(level, every_order_has_a_bill_or_a_letter).found
