"""The oracle's side of the protocol with one child: brokers answer its calls, and the run gets its other messages."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

import msgspec

from correlator.errors import ConnectionLost
from correlator.settings import SenderSettings
from correlator.testing.kill9 import wire
from correlator.testing.kill9.brokers import ServedBrokers
from correlator.testing.kill9.zygote import Zygote
from correlator.testing.memory import MemorySink, MemorySource

_said = msgspec.msgpack.Decoder(wire.Said)
Statement = (
    wire.Intent | wire.Done | wire.Told | wire.Dying | wire.Quiet | wire.Failed | wire.Ended
)  # fmt: skip
"""A message of the child that is not a call of a broker."""


class Session:
    """The socket to one child. Used by the oracle's thread.

    Args:
        zygote: forks the child.
        job: the job of the child.
        brokers: the brokers to which its sources and sinks are connected.
        seen: what children have asked for with `First`, over all lives.
        stated: called with every statement.
    """

    def __init__(
        self,
        zygote: Zygote,
        job: wire.Job,
        brokers: ServedBrokers,
        seen: set[str],
        stated: Callable[[Statement], None],
    ) -> None:
        self.alive = True
        self._zygote = zygote
        self._pid, self._line = zygote.fork(job)
        self._reader = wire.Reader(self._line)
        self._brokers = brokers
        self._seen = seen
        self._stated = stated
        self._connections = {name: broker.connection(name) for name, broker in brokers.of.items()}
        self._sources: dict[int, MemorySource] = {}
        self._sinks: dict[int, MemorySink] = {}
        self._waiting: list[tuple[float, wire.Receive]] = []
        self._stopping = False

    def command(self, what: str) -> None:
        """Send the child a command; a dead child does not receive it. After "stop" no call waits for messages any
        more.
        """
        self._stopping = what == "stop"
        self._brokers.stirred = True
        self._say(wire.OracleCommand(what))

    def serve(self, timeout_s: float) -> None:
        """Read and answer what the child has sent; wait at most `timeout_s` seconds for it. `alive` tells whether it
        lives.
        """
        soonest = min((due for due, _ in self._waiting), default=float("inf"))
        wait = min(timeout_s, max(0.0, soonest - time.monotonic()))
        if self._brokers.stirred:
            wait = 0.0
        if select.select([self._line], [], [], wait)[0]:
            try:
                for content in self._reader.read():
                    self._take(_said.decode(content))
            except EOFError:
                self.alive = False
                return
        self._look_again()

    def kill(self) -> None:
        """Kill the child from outside; do nothing if it is dead."""
        os.kill(self._pid, signal.SIGKILL)

    def status(self) -> int:
        """Wait for the end of the child; return its exit status, or the negative number of the signal that ended it."""
        return self._zygote.status()

    def close(self) -> None:
        """The child is dead: return the messages that it held to the brokers."""
        self._line.close()
        for connection in self._connections.values():
            connection.close()

    def _take(self, said: wire.Said) -> None:
        match said:
            case wire.NewSource():
                self._sources[said.part] = self._connections[said.receiver.connection].source(said.receiver)
            case wire.NewSink():
                settings_of_sink = SenderSettings(id=said.sender, connection=said.connection)
                self._sinks[said.part] = self._connections[said.connection].sink(settings_of_sink)
            case wire.Connect() | wire.Receive() | wire.Settle() | wire.Send():
                self._brokers.meddle()
                self._serve(said)
            case wire.Close():
                self._end(said.part).close()
            case wire.First():
                self._answer(said.call, said.what not in self._seen)
                self._seen.add(said.what)
            case _:
                self._stated(said)

    def _serve(self, call: wire.Connect | wire.Receive | wire.Settle | wire.Send) -> None:
        """Serve a call of a broker; a lost connection is an answer, too."""
        try:
            match call:
                case wire.Connect():
                    self._end(call.part).connect()
                    self._answer(call.call, None)
                case wire.Receive():
                    self._receive(call, time.monotonic() + call.timeout_s)
                case wire.Settle():
                    source = self._sources[call.part]
                    (source.acknowledge if call.acknowledged else source.reject)(call.tokens)
                    self._answer(call.call, None)
                case wire.Send():
                    results = self._sinks[call.part].send(call.batch)
                    self._answer(call.call, [one and (one.code, one.where, one.what) for one in results])
        except ConnectionLost as lost:
            self._say(wire.CallResult(call.call, lost=(lost.code, lost.where, lost.what)))

    def _receive(self, call: wire.Receive, due: float) -> None:
        """Answer when there are messages, or when the time is over."""
        chunk = self._sources[call.part].receive(call.most, 0.0)
        if chunk.messages or self._stopping or time.monotonic() >= due:
            self._answer(call.call, (chunk.messages, chunk.tokens))
        else:
            self._waiting.append((due, call))

    def _look_again(self) -> None:
        """Serve the calls that wait, if there may be messages for them or their time is over."""
        waiting, self._waiting = self._waiting, []
        stirred, self._brokers.stirred = self._brokers.stirred, False
        now = time.monotonic()
        for due, call in waiting:
            if stirred or now >= due:
                try:
                    self._receive(call, due)
                except ConnectionLost as lost:
                    self._say(wire.CallResult(call.call, lost=(lost.code, lost.where, lost.what)))
            else:
                self._waiting.append((due, call))

    def _end(self, part: int) -> MemorySource | MemorySink:
        return self._sources[part] if part in self._sources else self._sinks[part]

    def _answer(self, call: int, value: object) -> None:
        self._say(wire.CallResult(call, wire.raw(value)))

    def _say(self, heard: wire.Heard) -> None:
        with contextlib.suppress(OSError):  # if the child is dead, the next read notices it
            self._line.sendall(wire.frame(heard))
