"""Which receivers and senders code may add and remove (rules A1.8 to A1.10)."""

from dataclasses import replace

import pytest

from correlator.core.registry import Users, endpoint_of, is_known, lacks_source, refuse_default, refuse_removal
from correlator.errors import UsageError
from correlator.reliability import Reliability
from correlator.settings import ReceiverSettings, SenderSettings

ORDERS = ReceiverSettings(id="orders", connection="c", destination="queue:orders")
BILLS = SenderSettings(id="bills", connection="c", destination="queue:bills")
REGISTRY = {
    "orders": endpoint_of(ORDERS, dynamic=True),
    "bills": endpoint_of(BILLS, dynamic=False),
}


def test_a1_10_a_part_with_the_same_settings_is_known() -> None:
    assert is_known(REGISTRY, ORDERS, leaving=False)
    assert not is_known(REGISTRY, replace(ORDERS, id="others"), leaving=False)


@pytest.mark.parametrize(
    ("settings", "leaving", "code"),
    [
        (replace(ORDERS, destination="queue:others"), False, "E8303 .*exists already .dynamic., with other settings"),
        (replace(BILLS, id="orders"), False, "E8303 receiver 'orders'"),
        (BILLS, False, "E8303 .*exists already .static."),
        (ORDERS, True, "E8304"),
    ],
)
def test_a1_10_an_id_that_is_taken_is_refused(
    settings: ReceiverSettings | SenderSettings, leaving: bool, code: str
) -> None:
    with pytest.raises(UsageError, match=code):
        is_known(REGISTRY, settings, leaving=leaving)


def test_a_default_sender_is_added_with_its_own_settings_only() -> None:
    defaults = {"bills": BILLS}
    refuse_default(defaults, BILLS)
    refuse_default(defaults, replace(BILLS, id="others"))
    with pytest.raises(UsageError, match="E8303 .*is the default sender"):
        refuse_default(defaults, replace(BILLS, max_batch_size=7))


@pytest.mark.parametrize(
    ("part", "users", "code"),
    [
        ("bills", [], "E8301 sender 'bills'"),
        ("unknown", [], "E8302 .*bills, orders"),
        ("orders", [Users("copies", ["orders"], [])], "E8306 .*pipeline 'copies' takes from it"),
        ("orders", [Users("copies", [], ["orders"])], "E8306 .*pipeline 'copies' sends to it"),
    ],
)
def test_a1_8_what_must_not_be_removed(part: str, users: list[Users], code: str) -> None:
    with pytest.raises(UsageError, match=code):
        refuse_removal(REGISTRY, part, users)


def test_a1_8_a_dynamic_part_that_no_pipeline_names_is_removed() -> None:
    refuse_removal(REGISTRY, "orders", [Users("copies", ["others"], ["bills"])])


@pytest.mark.parametrize(("mode", "lacks"), [(Reliability.EXACTLY_ONCE, True), (Reliability.BEST_EFFORT, False)])
def test_the_source_of_a_sender_is_recorded_where_its_messages_are(mode: Reliability, lacks: bool) -> None:
    endpoint = endpoint_of(replace(BILLS, reliability=mode), dynamic=True)
    assert lacks_source(endpoint) is lacks
    assert not lacks_source(REGISTRY["orders"])
