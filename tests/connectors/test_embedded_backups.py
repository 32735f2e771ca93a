"""Active and backup consumers of a queue of the embedded broker."""

import signal
import subprocess
import sys
import threading

import pytest

from correlator.errors import ConnectionLost, UsageError
from tests.connectors.embedded import QUEUE, bodies, counts, kill

DEADLINE_S = 30.0
HOLDER = """
import sys
from tests.connectors.embedded import Broker, QUEUE

broker = Broker(sys.argv[1])
source = broker.plain()
held = source.receive(1, 20.0)
print("held", held.messages[0].body.decode(), flush=True)
sys.stdin.readline()
source.acknowledge(held.tokens)
print("acknowledged", flush=True)
source.close()
"""
"""A process that takes one message, and acknowledges it when it is told to."""


def limited(broker, active, backup):
    broker.connection.create(QUEUE, {"max_num_active_consumers": active, "max_num_backup_consumers": backup})


def test_the_first_gets_all_the_second_nothing_and_the_third_is_refused(broker):
    limited(broker, 1, 1)
    first, second = broker.plain(), broker.plain()
    with pytest.raises(ConnectionLost, match=r"^E7514 queue:work: it has 2 consumers, the first in pid \d+ on host"):
        broker.plain()  # an engine tries again
    with pytest.raises(UsageError, match="^E7514"):
        broker.source(broker.session())
    broker.send("a", "b")
    assert second.receive(9, 0.0).messages == ()
    assert bodies(first.receive(9, 0.0)) == ["a", "b"]
    second.close()
    broker.plain()  # there is a place again


@pytest.mark.parametrize("selector", [None, "n IS NULL"])
@pytest.mark.parametrize("how", ["kill", "close", "cancel"])
def test_a_backup_follows_in_the_order_of_registration(broker, how, selector):
    limited(broker, 1, -1)
    first, second, third = (broker.plain(selector=selector) for _ in range(3))
    broker.send("a", "b")
    assert bodies(first.receive(1, 0.0)) == ["a"]
    assert second.receive(9, 0.0).messages == third.receive(9, 0.0).messages == ()
    {"kill": lambda: kill(first), "close": first.close, "cancel": first.cancel}[how]()
    if how == "kill":
        assert third.receive(9, 1.5).messages == ()  # it has removed the dead one, and is a backup still
    held = second.receive(9, DEADLINE_S)
    assert bodies(held) == (["b"] if how == "cancel" else ["a", "b"])
    assert counts(held)[-2:-1] == ([] if how == "cancel" else [(True, 2)])
    broker.send("c")
    assert third.receive(9, 0.0).messages == ()
    assert bodies(second.receive(9, 0.0)) == ["c"]


def test_two_active_consumers_share_and_the_next_follows(broker):
    limited(broker, 2, 1)
    sources = [broker.plain() for _ in range(3)]
    broker.send("a", "b", "c")
    assert [bodies(source.receive(1, 0.0)) for source in sources] == [["a"], ["b"], []]
    kill(sources[0])
    assert bodies(sources[2].receive(1, DEADLINE_S)) == ["a"]


def test_a_waiting_backup_is_woken_when_its_turn_comes(broker):
    limited(broker, 1, 1)
    first, second = broker.plain(), broker.plain()
    broker.send("a")
    results = []
    thread = threading.Thread(target=lambda: results.append(second.receive(1, DEADLINE_S)))
    thread.start()
    first.close()
    thread.join(DEADLINE_S / 2)
    assert bodies(*results) == ["a"]


def test_a_dead_consumer_counts_until_its_messages_are_ready(broker, monkeypatch):
    limited(broker, 1, 1)
    broker.send("a", "b")
    first, second = broker.plain(), broker.plain()
    assert bodies(first.receive(1, 0.0)) == ["a"]
    kill(first)
    monkeypatch.setattr(second, "_dead", lambda *_: ())  # nobody has struck it off yet
    assert second.receive(9, 0.0).messages == ()
    monkeypatch.undo()
    assert bodies(second.receive(9, DEADLINE_S)) == ["a", "b"]


def test_a_process_that_is_stopped_is_not_dead(broker):
    limited(broker, 1, 1)
    broker.send("a", "b")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, broker.store], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "held a\n"
        process.send_signal(signal.SIGSTOP)
        second = broker.plain()
        assert second.receive(9, 2.5).messages == ()  # it looks for dead consumers each second
        process.send_signal(signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "acknowledged\n"
        assert bodies(second.receive(9, DEADLINE_S)) == ["b"]
    finally:
        process.kill()
        process.communicate()


def test_the_numbers_change_only_without_consumers(broker):
    limited(broker, 1, 0)
    source = broker.plain()
    with pytest.raises(UsageError, match="^E7525 queue:work: pid"):
        broker.connection.update(QUEUE, {"max_num_backup_consumers": 1})
    broker.connection.update(QUEUE, {"max_num_msgs": 5})
    source.close()
    broker.connection.update(QUEUE, {"max_num_backup_consumers": 1})
    assert len([broker.plain(), broker.plain()]) == 2


def test_topics_do_not_have_them(broker):
    with pytest.raises(UsageError, match="^E7523"):
        broker.connection.create("topic:news", {"max_num_active_consumers": 1})
