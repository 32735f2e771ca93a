"""Monitors that use every means: what they do is repeated from an input log."""

from correlator import Message, Monitor, SenderFlushed, StateTable, event, every, match, on
from correlator.errors import UsageError


@event
class Tally:
    """From the counter to the audit."""

    count: int
    body: str


@event
class Checked:
    """The audit's answer."""

    total: int


class Counts(Monitor, persistent=True):
    """Counts, sends, sets timers, spawns, fails, talks to the audit."""

    count: int = 0
    ticks: int = 0
    late: list[float] = []
    checked: int = 0
    by_last: StateTable[str, int]

    @on(Message)
    def message(self, message: Message) -> None:
        """Everything at once."""
        body = message.body.decode()
        self.count += 1
        self.by_last[body[-1]] = self.by_last.get(body[-1], 0) + 1
        self.send(b"%d:%s" % (self.count, message.body), to="out", key=body[-1], properties={"at": self.engine_time})
        if self.count % 3 == 0:
            self.wait(0.01, then=self.is_late)
            self.spawn(Once, body=body)
        if self.count % 4 == 0:
            self.send(Tally(count=self.count, body=body), to="channel:audit")
        if body.endswith("7"):
            raise ValueError(f"{body} is not wanted")

    def is_late(self) -> None:
        """A timer."""
        self.late.append(self.engine_time)

    @on(Checked)
    def check(self, checked: Checked) -> None:
        """The audit has answered."""
        self.checked = checked.total

    @every(0.005)
    def tick(self) -> None:
        """A beat."""
        self.ticks += 1


class Once(Monitor, persistent=True):
    """Waits for one message, then ends."""

    body: str

    def onload(self) -> None:
        """Wait."""
        self.on_all(match(Message), then=self.heard)

    def heard(self, message: Message) -> None:
        """Tell and end."""
        self.send(Tally(count=0, body=f"{self.body} before {message.body.decode()}"), to="channel:audit")
        self.stop()


class Audits(Monitor, persistent=True):
    """In a context of its own: keeps what it is told, answers every third."""

    told: list[str] = []
    messages: int = 0

    @on(Message)
    def message(self, message: Message) -> None:
        """The same messages, in another context."""
        self.messages += 1

    @on(Tally)
    def tally(self, tally: Tally) -> None:
        """Keep."""
        self.told.append(tally.body)
        if len(self.told) % 3 == 0:
            self.send(Checked(total=len(self.told)), to="channel:main")


class Asks(Monitor):
    """Without lasting state: asks for flushes, and sends at once."""

    numbers: list[int] = []

    @on(Message)
    def message(self, message: Message) -> None:
        """Send, and ask when it is there."""
        self.send(message.body, to="quick")
        self.numbers.append(self.request_flush("quick"))

    @on(SenderFlushed)
    def flushed(self, notice: SenderFlushed) -> None:
        """Say so."""
        self.send(b"flushed %d of %d" % (notice.request_id, len(self.numbers)), to="quick")


class Follows(Monitor, persistent=True):
    """Subscribes, sends to the channel, and leaves it, as messages say; keeps what it heard and what was refused."""

    heard: list[str] = []
    refused: list[str] = []

    @on(Message)
    def message(self, message: Message) -> None:
        """Do as it says."""
        body = message.body.decode()
        if body.startswith("follow"):
            self.subscribe("news")
        elif body.startswith("leave"):
            self.unsubscribe("news")
        else:
            try:
                self.send(Tally(count=0, body=body), to="channel:news")
            except UsageError as error:
                self.refused.append(f"{error.code} {body}")

    @on(Tally)
    def tally(self, tally: Tally) -> None:
        """It was heard."""
        self.heard.append(tally.body)
