"""`lint`, `plan` and `explain` tell of what works, and to no effect; an engine says the same when it starts."""

import pytest

from tests.cli.commands import run, write

ENGINE = """
name: effects
store: sqlite:///store/effects.db
connections: {local: {type: embedded}}
receivers:
  - {id: in, connection: local, destination: "queue:in", event: "app:Order"}
senders:
  - {id: out, connection: local, destination: "queue:out", reliability: AT_LEAST_ONCE}
monitors:
  - {type: "app:App"}
  - {type: "app:Other", context: other}
"""
HEAD = """
from correlator import FlowControlMarker, Message, Monitor, ReceivingSuspended, event, match, on


@event
class Order:
    id: int


@event
class Paid:
    id: int


UNPAID = match(Order, id=1).then(match(Paid))


class Other(Monitor):
    pass


"""
HEARS_ORDERS = """
class App(Monitor):
    @on(Order)
    def order(self, order):
        self.send(order, to="out")
"""
RECEIVER = 'event: "app:Order"'


def effects(place, command, app, engine=ENGINE):
    write(place / "app.py", [HEAD + app])
    write(place / "effects.yaml", [engine])
    result = run(command, "effects.yaml", cwd=place)
    found = result.stdout if command == "lint" else result.stderr
    return [line for line in found.splitlines() if line.startswith(("W153", "E"))]


def codes(lines):
    return [line[:5] for line in lines]


COUNTS = """
    {line}

    @on(Order)
    def order(self, order):
        self.{name} = 1 + order.id
"""
DOES_NOTHING = {
    "an attribute without annotation": (
        "class App(Monitor, persistent=True):\n" + COUNTS.format(line="count = 0", name="count"),
        ("", ""),
        "W1536",
        "changes 'count' of App, which begins anew at each start",
    ),
    "an attribute without annotation that a base class adds to": (
        (
            "class Base:\n    def more(self):\n        self.count += 1\n"
            "class App(Base, Monitor, persistent=True):\n    count = 0\n"
            "    order = on(Order)(lambda self, order: self.more())\n"
        ),
        ("", ""),
        "W1536",
        "'count' of App",
    ),
    "no event class": (HEARS_ORDERS, (RECEIVER, "max_batch_size: 5"), "W1530", "delivers Message, since it has no"),
    "another event class": (HEARS_ORDERS, (RECEIVER, 'event: "app:Paid"'), "W1530", "Monitors listen for: Order."),
    "a base class is called": (
        (
            "class App(Monitor):\n    def onload(self):\n        super(App, self).onload()\n        super().onload()\n"
            "    @staticmethod\n    def helped(order):\n        return str(order)\n"
        ),
        ("", ""),
        "W1530",
        "Monitors listen for: nothing",
    ),
    "only sends it": (
        'class App(Monitor):\n    def onload(self):\n        self.send(Order(id=1), to="out")\n',
        ("", ""),
        "W1530",
        "delivers Order, and no monitor listens for it. Monitors listen for: nothing",
    ),
    "nobody resumes": (
        HEARS_ORDERS,
        (RECEIVER, RECEIVER + ", reliability: APP_CONTROLLED"),
        "W1531",
        "after its first",
    ),
    "resumes another one": (
        HEARS_ORDERS + '        self.acknowledge_and_resume("elsewhere")\n',
        (RECEIVER, RECEIVER + ", reliability: APP_CONTROLLED"),
        "W1531",
        "receivers[0].reliability",
    ),
    "no window": (HEARS_ORDERS, (RECEIVER, RECEIVER + ", flow_control: true"), "W1532", "delivers nothing"),
    "a marker, no window": (
        HEARS_ORDERS + "    @on(FlowControlMarker)\n    def marker(self, marker):\n        pass\n",
        (RECEIVER, RECEIVER + ", flow_control: true"),
        "W1532",
        "update_flow_control_window",
    ),
    "no such sender": (
        HEARS_ORDERS.replace('to="out"', 'to="alarms"'),
        ("", ""),
        "W1533",
        "app.py:26 sends to 'alarms', which is no sender. Senders: out",
    ),
    "no such sender, by position": (HEARS_ORDERS.replace('to="out"', '"alarms"'), ("", ""), "W1533", "'alarms'"),
    "no such channel": (HEARS_ORDERS.replace('"out"', '"channel:no"'), ("", ""), "W1534", "sends to channel 'no'"),
    "nobody in the channel": (
        HEARS_ORDERS.replace('order, to="out"', 'Paid(id=1), to="channel:other"'),
        ("", ""),
        "W1535",
        "sends Paid to channel 'other', and no monitor listens for it",
    ),
}


COMMANDS = [(case, "lint") for case in DOES_NOTHING]
COMMANDS += [(case, command) for case in ("no event class", "no such sender") for command in ("plan", "explain")]


@pytest.mark.parametrize(("case", "command"), COMMANDS)
def test_what_does_nothing_is_told_of(case, command, place):
    app, (old, new), code, text = DOES_NOTHING[case]
    found = effects(place, command, app, ENGINE.replace(old, new) if old else ENGINE)
    assert codes(found) == [code]
    assert text in found[0]
    assert found[0].startswith(f"{code} effects.yaml:")


RIGHT = {
    "declared": HEARS_ORDERS,
    **{
        what: f"class App(Monitor, persistent={kept}):\n{COUNTS.format(line=line, name=name)}"
        for what, kept, line, name in (
            ("an attribute that is kept", True, "count: int = 0", "count"),
            ("an attribute whose name says that it is not", True, "_count = 0", "_count"),
            ("an attribute that has no value in the class", True, "limit: int = 5", "count"),
            ("an attribute of a monitor that is not kept itself", False, "count = 0", "count"),
        )
    },
    "an expression of the class": "class App(Monitor):\n    @on(match(Paid) & match(Order))\n    def a(self, *_): ...\n",
    "asked for later": (
        "class App(Monitor):\n    def onload(self):\n        self.on_all(match(Order), self.a)\n    def a(self, o): ...\n"
    ),
    "a constant": "class App(Monitor):\n    def onload(self):\n        self.once(UNPAID, self.a)\n    def a(self, *_): ...\n",
    "in a base class": HEARS_ORDERS.replace("App", "Base") + "class App(Base):\n    pass\n",
    "spawned": HEARS_ORDERS.replace("App", "One")
    + "class App(Monitor):\n    def onload(self):\n        self.spawn(One)\n",
    "what cannot be told": (
        "class App(Monitor):\n    def onload(self):\n        self.hear(Order)\n"
        "    def hear(self, what):\n        self.once(match(what), self.a)\n    def a(self, *_): ...\n"
    ),
    "a function that gets the monitor": (
        "def listen(monitor):\n    monitor.once(match(Order), monitor.a)\n"
        "class App(Monitor):\n    def onload(self):\n        listen(self)\n    def a(self, *_): ...\n"
    ),
    **{
        f"a monitor that is given away: {use}": (
            "def listen(*, monitor):\n    monitor.once(match(Order), monitor.a)\n"
            "class App(Monitor):\n    def onload(self):\n\n"
            f"        {use}\n    def a(self, *_): ...\n"
        )
        for use in ("listen(monitor=self)", "[listen(monitor=one) for one in [self]]", "me = self; listen(monitor=me)")
    },
    "a monitor that is given away under another name": (
        "def listen(monitor):\n    monitor.once(match(Order), monitor.a)\n"
        "class App(Monitor):\n    def onload(this):\n        listen(this)\n    def a(self, *_): ...\n"
    ),
    "a method that is passed on": (
        "class App(Monitor):\n    def onload(self):\n        once = self.once\n        once(match(Order), self.a)\n"
        "    def a(self, *_): ...\n"
    ),
    "a class without source": (
        "App = type('App', (Monitor,), {'a': lambda self, order: None, '__module__': __name__})\n"
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_may_be_right_is_not_complained_about(case, place):
    assert effects(place, "lint", RIGHT[case]) == []


CALLS = """
class App(Monitor):
    @on(Order)
    def order(self, order):
        pass

    @on(ReceivingSuspended)
    def suspended(self, notice):
        self.acknowledge_and_resume(notice.receiver)

    @on(FlowControlMarker)
    def marker(self, marker):
        self.update_flow_control_window(marker, 10)
"""


@pytest.mark.parametrize("more", ["reliability: APP_CONTROLLED", "flow_control: true", "unhandled: ignore"])
def test_what_is_answered_is_not_complained_about(more, place):
    event = RECEIVER if "unhandled" not in more else 'event: "app:Paid"'
    assert effects(place, "lint", CALLS, ENGINE.replace(RECEIVER, f"{event}, {more}")) == []


def test_channels_that_are_subscribed(place):
    app = HEARS_ORDERS.replace('to="out"', 'to="channel:news"') + "        self.subscribe('news')\n"
    assert effects(place, "lint", app) == []


@pytest.mark.parametrize("command", ["lint", "plan"])
def test_a_receiver_that_delivers_to_nobody_beside_pipelines(command, place):
    engine = ENGINE.partition("monitors:")[0].replace(', event: "app:Order"', "") + (
        '  - {id: other, connection: local, destination: "queue:other"}\npipelines:\n'
        '  - {name: p, from: [out], steps: [{decode: {format: json, schema: "a INT"}}]}\n'
    ).replace("from: [out]", "from: [in2]")
    engine = engine.replace("senders:", '  - {id: in2, connection: local, destination: "queue:in2"}\nsenders:')
    found = effects(place, command, HEARS_ORDERS, engine)
    assert codes(found) == ["E1208"]


def test_nobody_at_all(place):
    found = effects(place, "lint", HEARS_ORDERS, ENGINE.partition("monitors:")[0])
    assert codes(found) == ["W1530"]
    assert "no monitor, pipeline or bridge" in found[0]
