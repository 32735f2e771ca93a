"""The bills of a customer add up, whatever dies and when."""

from correlator.testing import crash_test


@crash_test(config="orders.yaml", budget="10s")
def test_bills_add_up(world):
    world.publish("queue:orders", [{"id": n, "customer": "ada", "amount": n} for n in range(1, 21)])
    world.run_until_quiet()
    world.check()
    assert world.sent("bills").values("total") == [n * (n + 1) // 2 for n in range(1, 21)]
