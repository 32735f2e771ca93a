"""What a configuration changes: the same values for `plan` and for a refused start (rules A1.5 to A1.13)."""

import msgspec
import pytest

from correlator.core.commit import ContextCut, QueueRun
from correlator.core.differences import (
    Difference,
    FieldChange,
    StoredMonitorFacts,
    Verdict,
    compare_contexts,
    compare_monitors,
    compare_tables,
    refuse,
)
from correlator.core.registry import Rule, compare_parts, default_senders, endpoint_of
from correlator.errors import RecoveryRefused, StateError
from correlator.reliability import Reliability
from correlator.settings import ConnectionSettings, EngineSettings
from tests.core.test_reconcile import EXPLICIT, RECEIVER, SENDER, changed, the_registry

BATCH = changed(RECEIVER, max_batch_size=7, options={"prefetch": 5})
PARTS = {
    "unchanged": (RECEIVER, RECEIVER, Verdict.UNCHANGED, "", []),
    "new": (None, RECEIVER, Verdict.NEW, Rule.NEW_ID, []),
    "what is not recorded": (
        RECEIVER,
        BATCH,
        Verdict.CHANGED,
        "",
        [("max_batch_size", "1000", "7"), ("options.prefetch", "null", "5")],
    ),
    "moved": (
        EXPLICIT,
        changed(EXPLICIT, destination="queue:z"),
        Verdict.MOVED,
        Rule.EXPLICIT,
        [("destination", "queue:a", "queue:z")],
    ),
    "default domain": (
        RECEIVER,
        changed(RECEIVER, destination="queue:z"),
        Verdict.REFUSED,
        Rule.DEFAULT_DOMAIN,
        [("destination", "queue:a", "queue:z"), ("domain", "c:queue:a", "c:queue:z")],
    ),
    "mode": (
        SENDER,
        changed(SENDER, reliability=Reliability.EXACTLY_ONCE, max_tries=9),
        Verdict.REFUSED,
        Rule.STAYS,
        [("reliability", "AT_LEAST_ONCE", "EXACTLY_ONCE"), ("max_tries", "3", "9")],
    ),
    "removed": (SENDER, None, Verdict.REFUSED, Rule.STATIC, []),
}


@pytest.mark.parametrize(("before", "after", "verdict", "rule", "changes"), PARTS.values(), ids=PARTS.keys())
def test_a1_11_every_part_has_one_verdict(before, after, verdict, rule, changes):
    stored = the_registry(before) if before else []
    (found,) = compare_parts(stored, [after] if after else [])
    assert (found.verdict, found.rule) == (verdict, rule)
    assert [tuple(change) for change in found.changes] == changes
    assert bool(found.refusals) == (verdict is Verdict.REFUSED)
    assert (found.put is None) == (verdict in (Verdict.UNCHANGED, Verdict.REFUSED))


def test_a1_5_what_code_added_comes_back_as_it_was():
    (found,) = compare_parts(the_registry(dynamic=[RECEIVER]), [])
    assert (found.verdict, found.rule, found.refusals) == (Verdict.UNCHANGED, "", ())


def test_a1_11_a_setting_that_an_older_version_did_not_have_is_no_difference():
    settings = msgspec.json.decode(endpoint_of(RECEIVER, dynamic=False).settings)
    del settings["max_batch_bytes"]
    older = msgspec.structs.replace(endpoint_of(RECEIVER, dynamic=False), settings=msgspec.json.encode(settings))
    (found,) = compare_parts([older], [RECEIVER])
    assert (found.verdict, list(found.changes)) == (Verdict.UNCHANGED, [])


def test_a1_13_the_address_of_a_connection_is_no_difference():
    stored = [endpoint_of(RECEIVER, dynamic=False)]
    assert [one.verdict for one in compare_parts(stored, [RECEIVER])] == [Verdict.UNCHANGED]


def test_a1_20_a_default_sender_that_was_used_keeps_its_mode():
    settings = EngineSettings(name="e", connections={"c": ConnectionSettings(type="memory")})
    (default,) = default_senders(settings)
    assert (default.id, default.reliability) == ("c-default-sender", Reliability.BEST_EFFORT)
    stored = [endpoint_of(changed(default, reliability=Reliability.AT_LEAST_ONCE), dynamic=True)]
    (found,) = compare_parts(stored, [], [default])
    assert (found.verdict, found.rule) == (Verdict.REFUSED, Rule.DEFAULT_SENDER)
    assert compare_parts([], [], [default]) == []


def test_a1_20_a_connection_that_a_sender_names_has_no_default_sender():
    settings = EngineSettings(name="e", connections={"c": ConnectionSettings(type="memory")}, senders=(SENDER,))
    assert [sender.id for sender in default_senders(settings, ["other"])] == ["other-default-sender"]


WAITING = ContextCut("old", {}, [QueueRun("", 0, 1, [("m:E", b"")])])
RECEIVED = ContextCut("old", {}, [QueueRun("in", 1, 5)])


@pytest.mark.parametrize(
    ("cuts", "contexts", "verdicts"),
    [
        ([ContextCut("main", {}, [])], ["main"], {"main": Verdict.UNCHANGED}),
        ([], ["main"], {"main": Verdict.NEW}),
        ([ContextCut("old", {}, [])], ["main"], {"old": Verdict.CHANGED, "main": Verdict.NEW}),
        ([WAITING], ["main"], {"old": Verdict.REFUSED, "main": Verdict.NEW}),
        ([WAITING], ["old"], {"old": Verdict.UNCHANGED}),
        ([RECEIVED], ["main"], {"old": Verdict.CHANGED, "main": Verdict.NEW}),  # test_delivery.py
    ],
)
def test_contexts(cuts, contexts, verdicts):
    found = compare_contexts(cuts, contexts)
    assert {one.name: one.verdict for one in found} == verdicts
    assert [refusal.code for one in found for refusal in one.refusals] == ["E4315"] * (
        Verdict.REFUSED in verdicts.values()
    )


CONFIGURED = StoredMonitorFacts("Trades", "0", "m:Trades", "main")
SPAWNED = StoredMonitorFacts("Order", "main.1", "m:Order", "main")


@pytest.mark.parametrize(
    ("stored", "configured", "contexts", "expected"),
    [
        ([], {"Trades": "main"}, ["main"], [("Trades", Verdict.NEW, "")]),
        ([CONFIGURED], {"Trades": "main"}, ["main"], [("Trades", Verdict.UNCHANGED, "")]),
        ([CONFIGURED], {"Trades": "other"}, ["other"], [("Trades", Verdict.REFUSED, "E4313")]),
        ([CONFIGURED], {}, ["main"], [("Trades", Verdict.REFUSED, "E4202")]),
        ([SPAWNED], {}, ["main"], [("Order main.1", Verdict.UNCHANGED, "")]),
        ([SPAWNED], {}, ["other"], [("Order main.1", Verdict.REFUSED, "E4315")]),
    ],
)
def test_monitors(stored, configured, contexts, expected):
    found = compare_monitors(stored, configured, contexts)
    assert [(one.name, one.verdict, "".join(r.code for r in one.refusals)) for one in found] == expected


def test_tables():
    kept = {"table:M#0.a": 3, "table:M#0.b": 2, "table:M#0.empty": 0}
    (found,) = compare_tables(kept, ["table:M#0.a"])
    assert (found.name, found.refusals[0].code) == ("table:M#0.b", "E4203")


def test_all_refusals_are_one_error_with_a_line_for_each():
    first = RecoveryRefused("E4301", "sender 's'", "is gone", "", "Put it back")
    second = StateError("E4203", "table:x", "has changed")
    both = [
        Difference(kind="sender", name="s", verdict=Verdict.REFUSED, refusals=[first]),
        Difference(kind="table", name="x", verdict=Verdict.REFUSED, refusals=[second]),
    ]
    with pytest.raises(RecoveryRefused) as refused:
        refuse(both)
    assert str(refused.value) == "E4301 sender 's': is gone. Put it back.\nE4203 table:x: has changed."
    refuse([Difference(kind="sender", name="s", verdict=Verdict.NEW, changes=[FieldChange("a", "b", "c")])])


def test_a1_11_an_option_that_says_where_a_sender_sends_stays():
    """Only such an option: the others may change."""
    before, after = (changed(SENDER, options={"schema": name, "mode": name}) for name in ("one", "two"))
    (found,) = compare_parts(the_registry(before), [after], routing={"c": ["schema"]})
    assert (found.verdict, found.rule) == (Verdict.REFUSED, Rule.STAYS)
    assert found.changes == [("options.schema", "one", "two"), ("options.mode", "one", "two")]
    assert [refusal.what for refusal in found.refusals] == ["options.schema changed from one to two"]
    (other,) = compare_parts(the_registry(before), [after], routing={"d": ["schema"]})
    assert other.verdict is Verdict.CHANGED


def test_an_option_of_a_receiver_does_not_say_where_a_sender_sends():
    before, after = (changed(RECEIVER, options={"schema": name}) for name in ("one", "two"))
    (found,) = compare_parts(the_registry(before), [after], routing={"c": ["schema"]})
    assert found.verdict is Verdict.CHANGED
