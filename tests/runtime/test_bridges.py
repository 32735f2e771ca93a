"""Engines with bridges: from receivers to senders without code (docs/bridges.md)."""

import pytest

from correlator import Engine, Reliability
from correlator.configuration import InvalidConfiguration
from correlator.errors import ConfigError, UsageError
from correlator.runtime.member import shares_of
from correlator.settings import BridgeSettings, EngineSettings, MonitorSettings, ShareSettings
from tests.runtime.flows import Idles
from tests.runtime.world import message, receiver, sender


def bridge(name="b", from_=("in",), to=("out",), **more):
    return BridgeSettings(name=name, from_=from_, to=to, **more)


def test_messages_go_from_receivers_to_senders_and_are_counted(any_world):
    world, parts = any_world, (receiver("in"), receiver("other"), sender("out"), sender("large"))
    bridges = (
        bridge("all", ("in", "other"), mapping={"key": "${property.customer}"}),
        bridge("some", to=("large",), selector="euros > 100"),
    )
    with world.engine(*parts, bridges=bridges) as engine:
        world.publish(message("a", customer="ada"), message("b", euros=200), message("c"))
        world.publish(message("d"), to="queue:other")
        world.wait(lambda: engine.status().totals()["sent"] == 5)
        status = engine.status()
    assert sorted(world.sent()) == ["a", "b", "c", "d"]
    assert [one for one in world.sent() if one != "d"] == ["a", "b", "c"]
    assert {one.key for one in world.broker.received("queue:out")} == {"ada", None}
    assert world.sent("queue:large") == ["b"]
    assert [status.pipelines[name].received for name in ("all", "some")] == [4, 3]
    assert [status.pipelines[name].sent for name in ("all", "some")] == [4, 1]


def test_a_message_that_cannot_be_mapped_becomes_a_dead_letter(world, logs):
    bridges = (bridge(mapping={"key": "${body.a}"}),)
    with world.engine(receiver(), sender(), bridges=bridges) as engine:
        world.publish(message("x"), message("{}"))
        world.wait_for("{}")
        world.wait(lambda: engine.status().totals()["dead letters"] == 1)
    [reason] = world.dead_letters()
    assert reason.startswith("E5101 bridge b.mapping: ")
    (told,) = [one for one in logs if one["event"] == "rows became dead letters"]
    assert (told["receiver"], told["number"], told["unique_id"]) == ("in", 1, "x")


def test_a_receiver_of_a_bridge_needs_no_monitor(world):
    parts = receiver(reliability=Reliability.APP_CONTROLLED), sender()
    with pytest.raises(ConfigError, match="E1207"):
        world.engine(*parts, bridges=(bridge(),)).start()


def test_bridges_are_not_recorded(world, tmp_path):
    with pytest.raises(ConfigError, match=r"E2040 input_log: the engine has pipelines or bridges"):
        world.engine(receiver(), sender(), bridges=(bridge(),), input_log=str(tmp_path / "input.log"))


def test_a_part_that_a_bridge_names_cannot_be_removed(world):
    with (
        world.engine(receiver(), sender(), bridges=(bridge(),)) as engine,
        pytest.raises(UsageError, match="E830[16]"),
    ):
        engine.remove("out")


def test_bridges_come_beside_pipelines(world):
    class Pipeline(Idles):
        name = "p"
        receivers = ("other",)

    parts = receiver(), receiver("other"), sender()
    with world.engine(*parts, bridges=(bridge(),), processors=[Pipeline()]) as engine:
        world.publish("a")
        world.publish("b", to="queue:other")
        world.wait_for("a")
        world.wait(lambda: engine.status().pipelines["p"].received == 1)


def test_a_bridge_that_receives_what_it_sends_is_told(world, logs):
    with world.engine(receiver(), sender(destination="queue:in"), bridges=(bridge(),)):
        pass
    warned = [one["event"] for one in logs if one["event"].startswith("W1539")]
    assert len(warned) == 1
    other = (bridge(selector="a = 1"), bridge("c", mapping={"destination": "queue:c"}))
    with world.engine(receiver(), sender(destination="queue:in"), bridges=other):
        pass
    assert [one["event"] for one in logs if one["event"].startswith("W1539")] == warned


def test_members_of_shares_must_have_the_same_bridges():
    def digest(*bridges):
        store = "postgresql://user@127.0.0.1/base"
        return shares_of(EngineSettings(name="e", store=store, shares=ShareSettings(count=2), bridges=bridges)).digest

    assert len({digest(), digest(bridge()), digest(bridge("c")), digest(bridge(selector="a = 1"))}) == 4


def refused(*parts, **settings):
    """The codes and places of the problems of settings that code has made."""
    with pytest.raises(InvalidConfiguration) as error:
        Engine(
            EngineSettings(
                name="e",
                store="sqlite:///e.db",
                receivers=tuple(one for one in parts if hasattr(one, "event")),
                senders=tuple(one for one in parts if not hasattr(one, "event")),
                **settings,
            ),
            connections={"memory": None},
        )
    return [(one.code, one.where) for one in error.value.problems]


def test_what_a_bridge_names_must_be_there_once():
    parts = receiver(), sender()
    assert refused(*parts, bridges=(bridge(from_=()),)) == [("E1521", "bridges[0].from")]
    assert refused(*parts, bridges=(bridge(from_=("no",)),)) == [("E1521", "bridges[0].from[0]")]
    assert refused(*parts, bridges=(bridge(to=()),)) == [("E1522", "bridges[0].to")]
    assert refused(*parts, bridges=(bridge(to=("no",)),)) == [("E1522", "bridges[0].to[0]")]
    assert refused(*parts, bridges=(bridge(to=("out", "out")),)) == [("E1522", "bridges[0].to[1]")]
    assert refused(*parts, bridges=(bridge(), bridge())) == [("E1520", "bridges[1].name")]
    assert refused(*parts, bridges=(bridge(selector="a ="),)) == [("E6003", "bridges[0].selector")]
    homeless = sender(destination=None)
    assert refused(receiver(), homeless, bridges=(bridge(),)) == [("E1524", "bridges[0].to")]
    beside = MonitorSettings(type="tests.runtime.flows:Hears", context="b")
    assert refused(*parts, bridges=(bridge(),), monitors=(beside,)) == [("E1520", "bridges[0].name")]
