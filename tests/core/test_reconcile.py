"""What a restart may find changed in the configuration (rules A1.7 to A1.14)."""

from types import MappingProxyType

import msgspec
import pytest

from correlator.core.delivery import Layout, Received, is_stored, with_deliveries
from correlator.core.differences import Verdict
from correlator.core.registry import Rule, compare_parts, default_domain, endpoint_of, reconcile
from correlator.errors import RecoveryRefused
from correlator.reliability import Reliability
from correlator.settings import ReceiverSettings, SenderSettings

RECEIVER = ReceiverSettings(id="r1", connection="c", destination="queue:a", reliability=Reliability.EXACTLY_ONCE)
EXPLICIT = ReceiverSettings(
    id="r1",
    connection="c",
    destination="queue:a",
    reliability=Reliability.EXACTLY_ONCE,
    dup_detection_domain_id="orders",
)
SENDER = SenderSettings(id="s1", connection="c", destination="queue:b", reliability=Reliability.AT_LEAST_ONCE)


def changed(settings, **fields):
    values = {name: getattr(settings, name) for name in settings.__slots__}
    return type(settings)(**{**values, **fields})


def compared(stored, configured):
    """What a start with one context of monitors writes."""
    return reconcile(stored, configured, layout=Layout(["main"]), received=Received())


def recorded(settings):
    """The entry of a static part in such an engine."""
    endpoint = endpoint_of(settings, dynamic=False)
    return with_deliveries(endpoint, {"main": 0}) if is_stored(endpoint) else endpoint


def the_registry(*settings, dynamic=()):
    return [
        *[recorded(one) for one in settings],
        *[with_deliveries(endpoint_of(one, dynamic=True), {"main": 0}) for one in dynamic],
    ]


REFUSED = {
    "a1.7 a static receiver is gone": (RECEIVER, None, "E4301", "remove is only possible for dynamic ones"),
    "a1.7 a static sender is gone": (SENDER, None, "E4301", "remove is only possible for dynamic ones"),
    "a1.7 a static receiver has another id": (RECEIVER, changed(RECEIVER, id="r9"), "E4301", "receiver 'r1'"),
    "a1.11 the mode of a receiver": (
        RECEIVER,
        changed(RECEIVER, reliability=Reliability.AT_LEAST_ONCE),
        "E4302",
        "reliability changed from EXACTLY_ONCE to AT_LEAST_ONCE",
    ),
    "a1.11 the mode of a receiver with explicit domain": (
        EXPLICIT,
        changed(EXPLICIT, reliability=Reliability.BEST_EFFORT),
        "E4302",
        "reliability changed",
    ),
    "a1.11 the domain": (
        EXPLICIT,
        changed(EXPLICIT, dup_detection_domain_id="other"),
        "E4302",
        "domain changed from orders to other",
    ),
    "a1.11 destination and domain": (
        EXPLICIT,
        changed(EXPLICIT, destination="queue:z", dup_detection_domain_id="other"),
        "E4302",
        "destination changed from queue:a to queue:z",
    ),
    "a1.11 an explicit domain is dropped": (
        EXPLICIT,
        changed(EXPLICIT, dup_detection_domain_id=None),
        "E4302",
        "domain changed from orders to c:queue:a",
    ),
    "a1.12 the destination with the default domain": (
        RECEIVER,
        changed(RECEIVER, destination="queue:z"),
        "E4302",
        "Set dup_detection_domain_id: 'c:queue:a'",
    ),
    "a1.11 the connection of a receiver": (
        EXPLICIT,
        changed(EXPLICIT, connection="d"),
        "E4302",
        "connection changed from c to d",
    ),
    "a1.11 the destination of a sender": (
        SENDER,
        changed(SENDER, destination="queue:z"),
        "E4302",
        "destination changed from queue:b to queue:z",
    ),
    "a1.11 the mode of a sender": (
        SENDER,
        changed(SENDER, reliability=Reliability.EXACTLY_ONCE),
        "E4302",
        "reliability changed from AT_LEAST_ONCE to EXACTLY_ONCE",
    ),
    "a1.11 a receiver becomes a sender": (
        RECEIVER,
        changed(SENDER, id="r1", destination="queue:a", reliability=Reliability.EXACTLY_ONCE),
        "E4302",
        "kind changed from receiver to sender",
    ),
}


@pytest.mark.parametrize(("before", "after", "code", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_t28_43_refused(before, after, code, text):
    with pytest.raises(RecoveryRefused) as refused:
        compared(the_registry(before), [] if after is None else [after])
    assert refused.value.code == code
    assert f"'{before.id}'" in str(refused.value)
    assert text in str(refused.value)
    assert refused.value.exit_status == 6


ALLOWED = {
    "nothing changed": (RECEIVER, RECEIVER, False),
    "a1.11 the destination with an explicit domain": (EXPLICIT, changed(EXPLICIT, destination="queue:z"), True),
    "an explicit domain that says the default": (
        RECEIVER,
        changed(RECEIVER, dup_detection_domain_id="c:queue:a"),
        True,
    ),
    "the batch size": (RECEIVER, changed(RECEIVER, max_batch_size=7), True),
    "the event type": (RECEIVER, changed(RECEIVER, event="m:E"), True),
    "the tries of a sender": (SENDER, changed(SENDER, max_tries=9), True),
}


@pytest.mark.parametrize(("before", "after", "written"), ALLOWED.values(), ids=ALLOWED.keys())
def test_allowed(before, after, written):
    changes = compared(the_registry(before), [after])
    assert [endpoint.id for endpoint in changes.put] == ([after.id] if written else [])
    assert list(changes.removed) == []


def test_a1_9_a_new_static_part_is_recorded():
    changes = compared(the_registry(RECEIVER), [RECEIVER, SENDER])
    assert changes.put == [endpoint_of(SENDER, dynamic=False)]


def test_a1_9_a_static_part_may_not_take_the_id_of_a_dynamic_one():
    with pytest.raises(RecoveryRefused, match=r"E4304 receiver 'r1': is configured now but was added by code"):
        compared(the_registry(dynamic=[RECEIVER]), [RECEIVER])


def test_a1_5_dynamic_parts_need_no_configuration():
    assert list(compared(the_registry(SENDER, dynamic=[RECEIVER]), [SENDER]).put) == []


def test_t23_the_source_of_a_sender_is_kept():
    registry = [msgspec.structs.replace(endpoint_of(SENDER, dynamic=False), source="host:1:2:S01")]
    changes = compared(registry, [changed(SENDER, max_tries=9)])
    assert [endpoint.source for endpoint in changes.put] == ["host:1:2:S01"]


def test_every_difference_is_named_at_once():
    with pytest.raises(RecoveryRefused) as refused:
        compared(the_registry(RECEIVER, SENDER), [changed(SENDER, destination="queue:z")])
    assert "E4302 sender 's1'" in str(refused.value)
    assert "E4301 receiver 'r1'" in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "domain"),
    [
        ({"destination": "queue:orders"}, "c:queue:orders"),
        ({"destination": "topic:orders"}, "c:r1"),
        ({"destination": "logical"}, "c:logical"),
        ({"destination": "topic:orders", "dup_detection_domain_id": "mine"}, "mine"),
    ],
)
def test_a8_7_a8_8_a8_9_default_domains(fields, domain):
    assert default_domain(changed(RECEIVER, **fields)) == domain


def test_what_nobody_handles_is_kept_from_the_change_on():
    """The entry says which message was the last one before, as long as the setting stays."""
    received = Received(logged={"r1": 7})

    def started(stored, unhandled):
        configured = [changed(RECEIVER, unhandled=unhandled)]
        written = reconcile(stored, configured, layout=Layout(["main"]), received=received).put
        return list(written) or stored

    stored = the_registry(RECEIVER)
    told = []
    for unhandled in ("ignore", "dead_letter", "dead_letter", "warn", "dead_letter"):
        stored = started(stored, unhandled)
        told.append(stored[0].unhandled_after)
        received = received._replace(logged={"r1": received.logged["r1"] + 1})
    assert told == [0, 8, 8, 0, 11]
    new = reconcile([], [changed(RECEIVER, unhandled="dead_letter")], layout=Layout(["main"]), received=received)
    assert new.put[0].unhandled_after == 0


# --- the subscription that options of a connector name ---


def resubscribed(before, after=None, *, subscriptions=("old", "new"), dynamic=False, destinations=MappingProxyType({})):
    """What a start finds, if the receiver read the first one of the subscriptions before, and reads the other one."""
    stored = endpoint_of(before, dynamic=dynamic, subscription=subscriptions[0], destinations={"name": "queue:one"})
    configured = [] if dynamic else [after or before]
    found = compare_parts([stored], configured, (), destinations, {"r1": subscriptions[1]})
    return found[0]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("topic", [False, True])
def test_a1_11_another_subscription_is_refused(dynamic, topic):
    """The receiver would silently leave messages in the old one, and treat ids of the new one as repeats."""
    found = resubscribed(changed(RECEIVER, destination="topic:t") if topic else RECEIVER, dynamic=dynamic)
    assert (found.verdict, found.rule) == (Verdict.REFUSED, Rule.DEFAULT_DOMAIN)
    assert found.changes == [("subscription", "old", "new")]
    (refusal,) = found.refusals
    shown = str(refusal)
    assert shown.startswith("E4302 receiver 'r1': subscription changed from old to new. ")
    domain = "c:r1" if topic else "c:queue:a"
    way_out = "Put it back" if dynamic else f"Set dup_detection_domain_id: '{domain}'"
    assert shown.endswith(f"{way_out}.")
    assert found.put is None


@pytest.mark.parametrize("dynamic", [False, True])
def test_a1_11_another_subscription_is_accepted_with_an_explicit_domain(dynamic):
    found = resubscribed(EXPLICIT, dynamic=dynamic)
    assert (found.verdict, found.rule, found.refusals) == (Verdict.MOVED, Rule.EXPLICIT, ())
    assert found.note == "receives from the new subscription; the duplicate ids of its domain are kept"
    assert found.put.subscription == "new"


def test_a1_12_the_domain_that_a_refusal_names_lets_the_subscription_change():
    found = resubscribed(RECEIVER, changed(RECEIVER, dup_detection_domain_id="c:queue:a"))
    assert (found.verdict, found.put.subscription) == (Verdict.MOVED, "new")


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_subscription_that_an_earlier_version_did_not_record_is_recorded(dynamic):
    found = resubscribed(RECEIVER, subscriptions=("", "new"), dynamic=dynamic)
    assert (found.verdict, found.put.subscription) == (Verdict.UNCHANGED, "new")


@pytest.mark.parametrize("dynamic", [False, True])
def test_a1_15_a_connection_without_subscriptions_leaves_the_recorded_one(dynamic):
    found = resubscribed(RECEIVER, subscriptions=("old", ""), dynamic=dynamic)
    assert (found.verdict, found.put) in [(Verdict.UNCHANGED, None), (Verdict.UNCHANGED, recorded_as("old"))]


def recorded_as(subscription):
    return endpoint_of(RECEIVER, dynamic=False, subscription=subscription)


def test_a1_14_a_logical_destination_may_lead_to_another_subscription():
    logical = changed(RECEIVER, destination="name")
    for dynamic in (False, True):
        found = resubscribed(logical, dynamic=dynamic, destinations={"name": "queue:two"})
        assert (found.verdict, found.rule) == (Verdict.MOVED, Rule.LOGICAL)
        assert found.put.subscription == "new"


def test_another_name_of_a_subscription_in_the_settings_is_told_once():
    topic = changed(EXPLICIT, destination="topic:t")
    found = resubscribed(topic, changed(topic, durable_topic_subscription_name="new"))
    assert [refusal.what for refusal in found.refusals] == ["durable_topic_subscription_name changed from r1 to new"]
