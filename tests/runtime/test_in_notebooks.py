"""What notebooks need: engines and results as HTML, and classes of the program itself."""

import dataclasses
import re
import sys

import pytest

from correlator import Engine, Message, Monitor, on
from correlator.errors import ConfigError
from correlator.events import Outgoing, PartStatus
from correlator.runtime import html
from correlator.runtime.replay import Cause, Output, Replayed
from correlator.settings import EngineSettings
from correlator.testing.store import Disk, ModelStore
from tests.runtime.world import monitor, receiver, sender

HOSTILE = "<script>alert('x')</script>&\x1b[31m\n"


class Counts(Monitor, persistent=True):
    """Stands in the main program while a test lasts."""

    count: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        """Count."""
        self.count += 1


@pytest.fixture
def in_main(monkeypatch):
    """The class as a cell of a notebook would define it."""
    monkeypatch.setattr(sys.modules["__main__"], "Counts", Counts, raising=False)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    return "__main__:Counts"


def settings(name, **changes):
    return dataclasses.replace(
        EngineSettings(name="notebook", monitors=(dataclasses.replace(monitor(Counts), type=name),)), **changes
    )


def test_a_store_in_memory_may_hold_state_of_classes_in_a_notebook(world, in_main):
    disk = Disk()
    for count in (1, 2):
        found = settings(in_main, receivers=(receiver(),))
        engine = Engine(found, store=ModelStore(disk), connections={"memory": world.broker.connection()})
        with engine:
            world.publish(f"m{count}")
            world.wait(lambda: not world.broker.waiting("queue:in"))
        (one,) = engine.contexts["main"].context.monitors.instances
        assert one.count == count


def test_a_store_on_disk_may_not(tmp_path, in_main):
    url = f"sqlite:///{tmp_path / 'engine.db'}"
    with pytest.raises(
        ConfigError, match=r"E5610 monitors\[0\].type: '__main__:Counts' .*Move the class into a module"
    ):
        Engine(settings(in_main, store=url))
    event = dataclasses.replace(receiver(), event="__main__:Order")
    with pytest.raises(ConfigError, match=r"E5610 receivers\[0\].event"):
        Engine(settings(f"{__name__}:Counts", store=url, receivers=(event,)))
    assert list(tmp_path.iterdir()) == []


def test_a_program_in_a_file_may_since_the_same_file_has_them_again(tmp_path, in_main, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "app.py", raising=False)
    Engine(settings(in_main, store=f"sqlite:///{tmp_path / 'engine.db'}"))


def test_a_table_escapes_everything():
    shown = html.table(HOSTILE, [HOSTILE], [[HOSTILE], [HOSTILE.encode()], ["x" * 1000]])
    assert re.findall(r"<(?!/?(?:table|caption|thead|tbody|tr|th|td)>)", shown) == []
    assert "\x1b" not in shown
    assert "&lt;script&gt;" in shown
    assert "x" * 201 not in shown
    assert shown.count("<tr>") == 4


def test_a_long_table_says_how_much_is_left_out():
    shown = html.table("t", ["a"], [[number] for number in range(html.MOST_ROWS + 7)])
    assert shown.count("<tr>") == html.MOST_ROWS + 1
    assert shown.endswith("<p>7 more</p>")


def test_engine_status_and_results_are_tables(world):
    engine = world.engine(receiver(), sender(), monitors=[Counts])
    assert "<caption>engine world: new</caption>" in engine._repr_html_()
    with engine:
        world.publish("x")
        world.wait(lambda: engine.status().conditions["out"].status is PartStatus.OK)
        shown = engine.status()._repr_html_()
    assert "<td>receiver in</td><td>OK</td>" in shown
    assert "<td>sender out</td>" in shown
    assert "<td>context main</td>" in shown
    assert ": stopped" in engine._repr_html_()
    sent = Outgoing(1, "s", "queue:out", Message(HOSTILE.encode()))
    replayed = Replayed(outputs=[Output(1, "out", sent, Cause("main"))], failure=HOSTILE)
    assert "<script>" not in replayed._repr_html_()
    assert "queue:out" in replayed._repr_html_()
